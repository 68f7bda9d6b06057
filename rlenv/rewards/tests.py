"""The kind `tests`: the policy's code under hidden tests that it can neither read nor forge.

Where the tests stand and what they are told is `rlenv.tools.trials`: the code runs in one sandbox and what tests it in
another, and only plain values pass between them. The forms of tests are those of the usual data sets: calls with
expected values and standard input with expected output (APPS, Hendrycks et al. 2021, arXiv:2105.09938; LiveCodeBench,
Jain et al. 2024, arXiv:2403.07974), and programs that assert (HumanEval, Chen et al. 2021, arXiv:2107.03374; MBPP,
Austin et al. 2021, arXiv:2108.07732).
"""

from __future__ import annotations

import ast
import asyncio
import base64
import json
import os
import pickletools
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.errors import RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.requirements import sandbox
from rlenv.language.spec import Bool, Float, Int, RewardSpec, Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import NO_ANSWER, compile_for_context, where_answer
from rlenv.rewards.rules.text import is_near
from rlenv.tools.trials import Trials, TrialVerdict, check_sandbox, encode_value, open_trials


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the value that it is to give; `message` is for the tests' sandbox."""

    name: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AssertingProgram:
    """A program that asserts."""

    name: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """The input of a program, and its expected output."""

    name: str
    given: str
    expected: str


Test = Call | AssertingProgram | Printed


def read_calls(value: Any, entry: str) -> Sequence[Test]:
    """The calls of a task: a list of `{args, kwargs, expected}` (or `input`, `output` as LiveCodeBench names them), or
    `{inputs, outputs}` as APPS has it; also as JSON text.

    Arguments may stand as text: of JSON with one value a line (LiveCodeBench). A test of the `testtype` stdin, as
    LiveCodeBench has it, is one of the code as a program.

    Raises:
        RewardError: they are something else, or `entry` is no name.
    """
    tests: list[Test] = []
    for number, row in enumerate(_rows(value, "calls"), 1):
        if row.get("testtype") == "stdin":
            tests += read_printed([row])
            continue
        try:
            ast.parse(entry, mode="eval")
        except (SyntaxError, ValueError):
            raise RewardError(f"entry: '{entry:.80}' names nothing that can be called") from None
        given, expected = (
            _field(row, "calls", number, "args", "input"),
            _field(row, "calls", number, "expected", "output"),
        )
        if isinstance(given, str):  # LiveCodeBench: one JSON value a line
            given, expected = [_json(line) for line in given.splitlines()], _json(expected)
        if not isinstance(given, (list, tuple)):
            raise RewardError(f"calls: test {number} gives {given!r:.80} as args; expected a list")
        values = {"args": list(given), "kwargs": dict(row.get("kwargs") or {}), "expected": expected}
        message = {"entry": entry, **{key: encode_value(one) for key, one in values.items()}}
        tests.append(Call(str(row.get("name") or number), message))
    return tests


def read_printed(value: Any) -> Sequence[Test]:
    """The inputs and outputs of a task: a list of `{input, output}`, or APPS's `{inputs, outputs}`; also as JSON text.

    Raises:
        RewardError: they are something else.
    """
    tests: list[Test] = []
    for number, row in enumerate(_rows(value, "stdin"), 1):
        given, expected = _lines(_field(row, "stdin", number, "input")), _lines(_field(row, "stdin", number, "output"))
        tests.append(Printed(str(row.get("name") or number), given, expected))
    return tests


def read_programs(value: Any, *, setup: str, names: Any) -> Sequence[Test]:
    """The programs of a task: one, or a list of which each is a test.

    Raises:
        RewardError: one is no text, or cannot be read as Python.
    """
    programs = [value] if isinstance(value, str) else value
    names = [names] if isinstance(names, str) else names
    if not isinstance(programs, (list, tuple)) or not isinstance(names, (list, tuple)):
        raise RewardError(f"programs: found {value!r:.80} with names {names!r:.80}; expected text, or a list of it")
    for text in (setup, *programs):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, TypeError, RecursionError) as error:
            raise RewardError(f"programs: {text!r:.80} is no program: {error}") from None
    return [
        AssertingProgram(str(number), {"setup": setup, "program": text, "names": [name for name in names if name]})
        for number, text in enumerate(programs, 1)
    ]


def _rows(value: Any, key: str) -> list[Mapping[str, Any]]:
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
        return [row for text in value for row in _rows(text, key)]  # such as public tests and private ones
    found = _read(value, key) if isinstance(value, str) else value
    if isinstance(found, Mapping) and "inputs" in found and "outputs" in found:
        inputs, outputs = found["inputs"], found["outputs"]
        if len(inputs) != len(outputs):
            raise RewardError(f"{key}: there are {len(inputs)} inputs and {len(outputs)} outputs")
        return [{"input": given, "output": one} for given, one in zip(inputs, outputs, strict=True)]
    if not isinstance(found, (list, tuple)) or not all(isinstance(row, Mapping) for row in found):
        raise RewardError(f"{key}: found {value!r:.80}; expected a list of tests, or inputs and outputs")
    return list(found)


_TEXT_ALONE = frozenset(
    "PROTO FRAME UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8 MEMOIZE PUT BINPUT LONG_BINPUT STOP".split()
)
_MOST_UNPACKED = 256_000_000


def _read(text: str, key: str) -> Any:
    """The tests in a text: JSON, or as LiveCodeBench packs it, base64 of zlib of a pickle of that.

    A pickle is a program. This one may give one text and do nothing else: it is read, and never run.
    """
    if text.lstrip()[:1] in ("[", "{"):
        return _json(text)
    try:
        stream = zlib.decompressobj()
        packed = stream.decompress(base64.b64decode(text, validate=True), _MOST_UNPACKED)
    except (ValueError, zlib.error):
        raise RewardError(f"{key}: {text!r:.80} is neither JSON nor packed as LiveCodeBench packs its tests") from None
    if stream.unconsumed_tail:
        raise RewardError(f"{key}: the packed tests have more than {_MOST_UNPACKED} bytes")
    found: list[str] = []
    try:
        for opcode, given, _ in pickletools.genops(packed):
            if opcode.name not in _TEXT_ALONE or (found and isinstance(given, str)):
                raise RewardError(f"{key}: the packed tests are more than a text (they ask for {opcode.name})")
            found += [given] if isinstance(given, str) else []
    except ValueError as error:
        raise RewardError(f"{key}: the packed tests cannot be read: {error}") from None
    return _json(found[0] if found else "")


def _field(row: Mapping[str, Any], key: str, number: int, *names: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise RewardError(f"{key}: test {number} has no '{names[0]}'; it has: {', '.join(row)}")


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise RewardError(f"{text!r:.80} is no JSON") from None


def _lines(value: Any) -> str:
    """APPS writes some inputs and outputs as lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def same_output(found: str, expected: str, by: str, tolerance: float, relative: float) -> bool:
    """True if a program printed what it was to print. Linear in the length of both.

    `exact` counts every character. Otherwise white space at the ends of lines and empty lines at the end do not count;
    where a tolerance is given, lines are compared word by word, and two numbers may be apart by `tolerance`, or by
    `relative` times the expected one.
    """
    if by == "exact":
        return found == expected
    near = partial(_near, tolerance=Decimal(repr(tolerance)), relative=Decimal(repr(relative)))
    mine, gold = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (found, expected))
    if mine == gold:
        return True
    if not (tolerance or relative) or len(mine) != len(gold):
        return False
    for ours, theirs in zip(mine, gold, strict=True):
        words, wanted = ours.split(), theirs.split()
        if len(words) != len(wanted):
            return False
        for word, want in zip(words, wanted, strict=True):
            if word != want and not near(word, want):
                return False
    return True


def _near(word: str, wanted: str, tolerance: Decimal, relative: Decimal) -> bool:
    try:
        mine, gold = Decimal(word), Decimal(wanted)
        return mine.is_finite() and gold.is_finite() and is_near(mine, gold, tolerance=tolerance, relative=relative)
    except ArithmeticError:  # no number, or one beyond all exponents
        return False


_MAX_CODE = 200_000
_LONG = 65_536  # characters of an answer, or of what its code prints, that are read beside the event loop
_QUEUE, _LEAST_S = 10, 3.0
"""For how many times `timeout_s`, or this, the tests of an answer may be kept from the processor."""
_KEPT_FAILURES = 8
_KEPT_CHARS = 300
_FENCE = re.compile(r"^[ \t]*(?:(`{3,})([^`\n]*)|(~{3,})([^\n]*))$", re.MULTILINE)
_NOT_ANSWER = frozenset(("task", "vars", "resources"))


class TestsSpec(RewardSpec):
    """The share of tests that the policy's code passes.

    A test that the code fails, or in which it uses up its time or memory, is worth 0; where a sandbox cannot be started
    or is taken away, the term is invalid. Needs bubblewrap.
    """

    __test__ = False  # no test of pytest's

    kind: Literal["tests"]
    code: Text = "{{ answer }}"
    """What the policy wrote, as a template."""
    block: Literal["last", "none"] = "last"
    """`last`: the last fenced block of it, where there is one; `none`: all of it."""
    before: str = ""
    """Runs in the code's own process before it, as a template: imports, or a prompt that defines helpers."""
    after: str = ""
    """Runs in the code's own process after it, as a template: what builds arguments of the code's own classes."""
    calls: Any = None
    """Tests that call `entry`: a list of `{args, kwargs, expected}`, or `{inputs, outputs}`; as a template, or JSON."""
    entry: Text | None = None
    """What `calls` call, as a template: a function's name, or such as `Solution().add`."""
    stdin: Any = None
    """Tests of the code as a program: a list of `{input, output}`, or `{inputs, outputs}`; as a template, or JSON."""
    programs: Any = None
    """Tests that assert: a program, or a list of programs of which each is a test; as a template."""
    setup: Any = ""
    """Runs before each of `programs`, apart from the code: a program, or a list of lines; as a template."""
    names: Any = ()
    """The code's own names in `programs` that are also names of `setup` or of built-ins; others are found alone."""
    in_place: Bool = False
    """What the code changes in its arguments is changed for `programs` too."""
    compare: Literal["equal", "exact", "unordered"] = "equal"
    """For `calls`: `exact` tells lists from tuples and 1 from 1.0; `unordered`: in any order. For `stdin`: `exact`
    tells spaces and line ends; otherwise those at the ends of lines, and empty lines at the end, do not count."""
    tolerance: Annotated[Float, Field(ge=0)] = 0.0
    """Numbers may be apart by so much."""
    relative_tolerance: Annotated[Float, Field(ge=0)] = 0.0
    """Or by so much of the expected one."""
    credit: Literal["share", "all"] = "share"
    """`share`: the share of tests that passed; `all`: 1 where all did, else 0 (and the first failure ends it)."""
    time_s: Annotated[Float, Field(gt=0, le=600)] = 3.0
    """Seconds of its own that the code may take in each test."""
    timeout_s: Annotated[Float, Field(gt=0, le=3_600)] = 20.0
    """Seconds of its own that the code may take in all tests of an answer; those that are left then are not passed."""
    memory_mb: Annotated[Int, Field(ge=16, le=65_536)] = 256
    """What the code may hold in memory."""
    max_bytes: Annotated[Int, Field(ge=64, le=10_000_000)] = 1_000_000
    """What the code may print in a test."""
    workers: Annotated[Int, Field(ge=1, le=1_024)] = max(2, os.cpu_count() or 1)
    """How many tests run at once; more wait."""


def last_block(text: str) -> str:
    """The content of a text's last fenced block; the text itself where none is closed. Linear in its length."""
    found, opened_by, start = text, "", 0
    for line in _FENCE.finditer(text):
        mark = line[1] or line[3]
        if not opened_by:
            opened_by, start = mark, line.end() + 1
        elif mark[0] == opened_by[0] and len(mark) >= len(opened_by) and not (line[2] or line[4] or "").strip():
            found, opened_by = text[start : max(line.start(), start)], ""
    return found


@dataclass(frozen=True, slots=True)
class _Tests:
    """A compiled term."""

    spec: TestsSpec
    code: Callable[..., Any]
    around: Callable[..., Any]
    tests: Callable[[RewardContext], Sequence[Test]]
    reads_answer: bool

    async def measure(self, context: RewardContext) -> Measured:
        with bounded_by_itself():  # a row's may have megabytes
            tests = await asyncio.to_thread(self.tests, context)
        if not tests:
            raise RewardError("the task gives no test")
        before, after = (_program(text) for text in self.around(context))
        if context.answer is None and self.reads_answer:
            return NO_ANSWER
        code = str(self.code(context))
        if self.spec.block == "last":
            code = await asyncio.to_thread(last_block, code) if len(code) > _LONG else last_block(code)
        if len(code) > _MAX_CODE:
            return Measured(0.0, f"longer than the {_MAX_CODE} characters that are run")
        try:
            code.encode()
        except UnicodeEncodeError:
            return Measured(0.0, "the code holds a character that no file can hold")
        # On a busy machine, or behind other answers, it may take any time until the code has had its own.
        with bounded_by_itself():
            trials = await context.shared().get(("tests", self.spec.workers), partial(open_trials, self.spec.workers))
            return await self._all(tests, (before, code, after), trials, context.seed)

    async def _all(self, tests: Sequence[Test], sources: Sequence[str], trials: Trials, seed: int) -> Measured:
        passed, spent_s, delayed_s, failures = 0, 0.0, 0.0, list[dict[str, str]]()
        for number, test in enumerate(tests, 1):
            if delayed_s > _QUEUE * max(self.spec.timeout_s, _LEAST_S):
                raise RewardError(f"the tests were kept from the processor for {delayed_s:.0f} s")
            if spent_s >= self.spec.timeout_s:
                verdict = TrialVerdict(False, f"the {self.spec.timeout_s:g} s of all tests were used up")
            else:
                verdict = await self._one(test, sources, trials, seed)
                spent_s += min(verdict.own_s, self.spec.time_s)
                delayed_s += verdict.delayed_s
            passed += verdict.passed
            if not verdict.passed and len(failures) < _KEPT_FAILURES:
                failures.append({"test": test.name or str(number), "why": verdict.why[:_KEPT_CHARS]})
            if not verdict.passed and self.spec.credit == "all":
                break
        share = passed / len(tests)
        evidence = f"{passed} of {len(tests)} tests"
        if failures:
            evidence += f"; first failed: {failures[0]['test']}"
        value = share if self.spec.credit == "share" else float(passed == len(tests))
        return Measured(value, evidence, {"passed": passed, "total": len(tests), "failed": failures})

    async def _one(self, test: Test, sources: Sequence[str], trials: Trials, seed: int) -> TrialVerdict:
        """The verdict of a test; one that the machine failed is tried once more.

        Raises RewardError: it failed again.
        """
        for is_retry in (False, True):
            verdict = await self._tried(test, sources, trials, seed, is_retry)
            if not verdict.is_ours:
                return verdict
        raise RewardError(f"the test '{test.name}' could not be run: {verdict.why}")

    def _tried(
        self, test: Test, sources: Sequence[str], trials: Trials, seed: int, is_retry: bool
    ) -> Awaitable[TrialVerdict]:
        spec = self.spec
        if isinstance(test, Printed):
            return self._printed(test, sources, trials, seed, is_retry)
        message = test.message
        if isinstance(test, Call):
            how = {"by": spec.compare, "tolerance": spec.tolerance, "relative_tolerance": spec.relative_tolerance}
            message = {**message, "compare": how}
        return trials.run_test(sources, message, limits=spec, seed=seed, in_place=spec.in_place, is_retry=is_retry)

    async def _printed(
        self, test: Printed, sources: Sequence[str], trials: Trials, seed: int, is_retry: bool
    ) -> TrialVerdict:
        spec = self.spec
        code = "\n".join(source for source in sources if source)
        output, verdict = await trials.run_program(code, test.given, limits=spec, seed=seed, is_retry=is_retry)
        if not verdict.passed:
            return verdict
        same = partial(same_output, output, test.expected, spec.compare, spec.tolerance, spec.relative_tolerance)
        if await asyncio.to_thread(same) if len(output) > _LONG else same():
            return verdict
        return TrialVerdict(False, f"printed {output[:100]!r}, expected {test.expected[:100]!r}")


def _program(value: Any) -> str:
    return "" if value is None else _lines(value)


def _compile(name: str, spec: TestsSpec, context: TermCompileContext) -> Term:
    forms = [key for key in ("calls", "stdin", "programs") if getattr(spec, key) is not None]
    if len(forms) != 1:
        found = " and ".join(forms) or "nothing"
        raise UsageError(f"expected one form of tests, found {found}", hint="give calls, stdin or programs")
    (form,) = forms
    if (form == "calls") != (spec.entry is not None):
        raise UsageError("it goes with calls", key="entry", hint="name what the tests call, such as add")
    unused = {"setup": "programs", "names": "programs", "in_place": "programs"}
    for key, needed in unused.items():
        if key in spec.model_fields_set and form != needed:
            raise UsageError(f"it goes with {needed}", key=key, hint="leave it out")
    if form == "programs":
        for key in ("compare", "tolerance", "relative_tolerance"):
            if key in spec.model_fields_set:
                raise UsageError("programs compare by themselves", key=key, hint="leave it out")
    if form == "stdin" and spec.compare == "unordered":
        raise UsageError("the order of what a program prints counts", key="compare", hint="write equal or exact")
    check_sandbox()
    fill = partial(compile_for_context, names=_NOT_ANSWER)
    given, entry = fill(getattr(spec, form), where=form), fill(spec.entry or "", where="entry")
    setup, names = fill(spec.setup, where="setup"), fill(spec.names, where="names")

    def tests(found: RewardContext) -> Sequence[Test]:
        if form == "calls":
            return read_calls(given(found), str(entry(found)))
        if form == "stdin":
            return read_printed(given(found))
        return read_programs(given(found), setup=_program(setup(found)), names=names(found))

    term = _Tests(
        spec=spec,
        code=compile_for_context(spec.code, where="code", names=_NOT_ANSWER | {"answer"}),
        around=fill([spec.before, spec.after], where="before and after"),
        tests=tests,
        reads_answer="answer" in spec.code and "{" in spec.code,
    )
    where = where_answer if term.reads_answer else None
    asks_episode = "resources" in str((getattr(spec, form), spec.entry, spec.setup, spec.names))
    check = None if asks_episode else lambda found: (tests(found), None)[1]
    return Term(name=name, spec=spec, measure_async=term.measure, where=where, check_gold=check)


KIND = Kind(TestsSpec, _compile, sandbox, values=(0, 1), reads_answer=True)
