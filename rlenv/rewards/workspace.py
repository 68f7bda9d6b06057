"""The reward `workspace`: tests over what an episode left in its machine, run in a machine of their own.

A number is given wherever the tests can be run. Where they write none over what the episode left, they are run over
the image alone: if they write one there, what the policy left is what broke them, and it earns 0; if not, the task or
the machine is at fault, and the term is invalid. So a failure is found by a run, and never guessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from xml.parsers import expat

from rlenv._base.bounded import drop_oldest
from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.errors import RewardError, UsageError, told_as
from rlenv.language.expressions import expected_of
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float, Text
from rlenv.language.templates import TemplateError, template_of
from rlenv.language.type_faults import describe
from rlenv.rewards import steps
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import compile_for_context
from rlenv.tools.workspace.images import digest_of
from rlenv.tools.workspace.machine import MachineFailed, Names, RowTests, Verified
from rlenv.tools.workspace.resource import RESULTS, Workspace

_MOST_LOST, _MOST_REPORTS, _MOST_VALUES, _KEPT_CHARS, _LONGEST_NAME, _DEEPEST = 4, 10, 500_000, 500, 4_096, 100
_MOST_FOUND: Final = 300_000  # names of tests: beyond, a table of them is moved in one go, for which all threads wait
_LONGEST_TAG: Final = 262_144  # bytes: its attributes are read in one go, too
_MOST_AT_FIRST: Final = 4_096  # rows whose number over an untouched machine is kept
_MOST_LOG, _KEPT_BYTES, _MOST_AT_ONCE = 16_000_000, 65_536, 65_536  # bytes of a log, and of what is read of it at once
_BY_ROW: Final = ("command", "collect", "patch", "last", "tests", "keep", "exclude", "time_s")
_LISTS: Final = ("log.fail_to_pass", "log.pass_to_pass")


class WorkspaceTestsSpec(steps.SteppedSpec):
    """The number that tests give in a machine of their own, over what the episode left in its machine.

    They write it to `/logs/verifier/reward.json` (a number, or an object whose `reward` it is and whose other numbers
    are kept beside it) or `/logs/verifier/reward.txt`.
    """

    kind: Literal["workspace"]
    command: Text = "bash /tests/test.sh"
    """The command, as a template over `task` and `vars`; it starts in the machine's `cwd`."""
    collect: Text | None = None
    """A command that runs first, over what the episode left and in a machine without the tests; they see what it leaves
    in `keep`, without links that lead elsewhere. The place to run programs of the policy's: none is there when the
    tests run."""
    patch: Text | None = None
    """A diff over `cwd` as the machine has it at first, such as the row's test files: they stand as it makes them,
    whatever the episode left in their place. A template over `task` and `vars`."""
    by: Literal["file", "status"] = "file"
    """`status`: the command's exit status is the number: 1.0 for 0, else 0.0; 126 and 127 say that it was not run."""
    weights: Mapping[str, Float] | None = None
    """The number is the sum of these keys of `reward.json`, each times its weight; all of them have to be there."""
    log: steps.TestLogSpec | None = None
    """The number is read from what the tests say of each test by name, in the place of `by`."""


def passed_in(text: str, format: str, *, trusts: bool = False) -> tuple[dict[str, bool | str], float]:
    """The tests that a log names, each with whether it passed wherever it is named, and how many its summaries count.

    So no printed line makes a test pass of which its framework says else, nor one of a file or class that it says is
    broken, nor any where it says this of the run, nor, unless it `trusts` all that ran, one behind which no summary is.

    Raises:
        ValueError: a report is none of its format, or names too many.
    """
    told, passing, failing, broken, expected = (set[str]() for _ in range(5))
    counted = inf if trusts else 0.0
    for name, passed in _READERS[format](text):
        if isinstance(name, str):
            expected |= {name} if passed == steps.EXPECTED else set()
            {True: told, steps.EXPECTED: told, False: failing, None: broken}[passed].add(name)
        else:
            counted += name
            passing |= told if passed or trusts else set()
            told = told if passed is False else set()
        if max(map(len, (told, passing, failing, broken))) > _MOST_FOUND:
            raise ValueError(f"a log names at most {_MOST_FOUND:,} tests")
    passing |= told if trusts else set()
    held = {one for one in passing - failing if broken.isdisjoint(_parts_of(one))}
    return {one: one in held and (one not in expected or steps.EXPECTED) for one in passing | failing | told}, counted


def _parts_of(name: str) -> tuple[str, ...]:
    told = "" if _HEAD.fullmatch(name) or " " not in name else "_FailedTest"
    files = name.partition("::")[0], name.partition("[")[0].rpartition("::")[0]
    return "\n", told, *files, (place := name.rpartition(".")[0]), place.rpartition(".")[0], *name.split(".")


_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_Named = Iterator[tuple[str | float, bool | str | None]]
"""Of a test; None: a file or class, or "\n" (the run). Or so many, of a summary: what was told holds; None: nothing."""


def _pieces(text: str, end: str) -> Iterator[str]:
    """A text without colours, up to an `end` each time, and so little at once that no other thread waits for it."""
    start = 0
    while start < len(text):
        at = text.rfind(end, start, start + _MOST_AT_ONCE) + 1 or start + _MOST_AT_ONCE
        yield _COLOUR.sub("", text[start:at])
        start = at


def _lines(text: str) -> Iterator[str]:
    last = ""  # of a line that is longer than a piece, whose parts overlap by more than a name
    for piece in _pieces(text, "\n"):
        *lines, last = f"{last[-_LONGEST_NAME:]}{piece}".split("\n")
        yield from filter(None, (*lines, last))


def _of_run(line: str, format: str) -> _Named:
    if said := re.match(_BROKEN[format], line):
        yield from ((one, None) for one in list(filter(None, said.groups())) or ["\n"])
    if said := re.match(_SUMS[format], line):
        count = inf if format in ("go", "jest") else sum(map(float, re.findall(_COUNTED, line)))
        yield count, None if said.lastindex else not line.startswith("Ran ")


_SUMS: Final = {  # as jest are read vitest, mocha, ava, node and karma
    "pytest": r"(?:=+ )?(?:\d+ [a-z-]+(?: [a-z]+)?,? )+in [\d.]+ ?s| +\d+ (?:passed|xfailed)\s*$",  # of pytest-sugar
    "unittest": r"Ran \d+ tests? in |(?:OK|FAILED)(?: \(|\s*$)",
    "jest": r"Tests:? +\d|\d+ (?:passing|tests? passed)\b|[ℹ#] pass \d|Executed \d+ of ",
    "cargo": r"test result: |(Running .*/deps/|Doc-tests )",  # what runs the tests' programs says it also where
    "go": r"(?!=== ).*(?:PASS|FAIL)$|((?:ok  |FAIL)\t)",  # one just ended
}
_COUNTED: Final = r"\b(\d{1,9}) (?:passed|xfailed|tests? in)\b"
_BROKEN: Final = {
    "pytest": r"ERROR ((?:(?! - ).)+)(?: - |$)|_+ ERROR collecting (.+?) _+$|!+ (?:Keyboard|_pytest\.outcomes\.Exit"
    r"|Interrupted: (?!stop))|INTERNALERROR>|mainloop caused unexpected SystemExit|ImportError while loading conftest",
    "unittest": r"ERROR: (?:(?:\w+\.)*(\w+) \(unittest\.loader\.(_Fail\w+)|setUp\w+ \((?:[\w<>]+\.)*(\w+)\))"
    r"|([\w.]+) \(unittest\.loader\.Mod|setUp\w+ \(([\w.<>]+)\) \.\.\. skip",
    "jest": "● Test suite failed to run",
    "cargo": r"error: (?:could not compile|failed to run custom build)|.*\(signal: \d+, SIG",
    "go": r"exit status (?!1$)\d+$|signal: ",  # 1: a test failed; what is recovered shows a trace of a goroutine, too
}


def _pytest(text: str) -> _Named:
    for line in _lines(text):
        yield from _of_run(line, "pytest")
        for found in list(_OF_PYTEST.finditer(line))[:2]:  # one may stand in the test's parameters
            before, passed = line[: found.start()], found[1] == "PASSED" or (found[1] == "XFAIL" and steps.EXPECTED)
            passed = not ("::" in before and _ENDS_OTHERWISE.search(line, found.end())) and passed
            behind = line[line.rfind(" ", found.end(), line.find("::", found.end())) + 1 :].rstrip()
            for name in (before, "" if before and passed else behind):
                if "::" in name:  # a reason may follow it; published lists name what has spaces by its first word
                    yield from ((one, passed) for one in {name, name.partition(" - ")[0], name.partition(" ")[0]})


# "PASSED a.py::b", "a.py::b PASSED [ 50%]", "[gw0] [ 50%] PASSED a.py::b", "SUBFAILED(i=1) a.py::b", which may pass.
_OF_PYTEST: Final = re.compile(r"(?:^(?:\[gw\d+\] \[ *\d+%\] )?| )(PASSED|XFAIL|XPASS|(?:SUB)?(?:FAIL|ERROR|SKIP))")
_ENDS_OTHERWISE: Final = re.compile(r"(?:FAILED|ERROR|SKIPPED|XPASS)(?: *\[ *\d+%\] *$| *$| \()")  # behind prints


def _unittest(text: str) -> _Named:
    name, shown, place, is_ok = "", "", "", False
    for line in (lines := _lines(text)):
        yield from _of_run(line, "unittest")
        before, is_said, said = line.rpartition(" ... ")
        # "test_a (test_x.TestA.test_a) … ok", behind what code printed too, or "FAIL: test_a (…)" of the summary.
        if found := _HEAD.match(line) or _GLUED.search(before[-1_300:]):
            name, shown, place, is_ok = steps.dotted(found[2]), "", found[2].partition("(")[2][:-1], False
            if found[1]:
                yield from ((name, False), (next(lines, ""), False))  # its docstring, or dashes
                name = ""
        if is_said and name:
            shown = before  # a test with a docstring is told by it
        status = re.sub("^skipped .*", "skipped", (said if is_said else line).strip())
        if is_ok and any(f"skipped {mark}" in line and line.endswith(mark) for mark in "'\""):
            status = "skipped"  # behind what code printed
        if name and status in _OF_UNITTEST:
            is_ok |= bool(_OF_UNITTEST[status])
            named = (name, shown, place) if status == "skipped" else (name, shown)  # code prints before a name alone
            yield from ((one, _OF_UNITTEST[status]) for one in named)


_HEAD: Final = re.compile(r"((?:FAIL|ERROR): )?(\w{1,300} \([\w.<>]{1,900}\))")
_GLUED: Final = re.compile(r"\b()(\w{1,300} \([\w.<>]{1,900}\))$")
_OF_UNITTEST: dict[str, bool | str] = dict.fromkeys(("FAIL", "ERROR", "skipped", "unexpected success"), False)
_OF_UNITTEST |= {"ok": True, "expected failure": steps.EXPECTED}


def _by_line(format: str, pattern: str, passing: str, begins: str) -> Callable[[str], _Named]:
    """Reads logs of a line a test, in which the pattern finds a `name` and a `status`, one of the `passing` or not.

    The last one in a line that is not counts too, wherever it `begins`: what code prints without an end stands before.
    """

    def named(text: str) -> _Named:
        for line in map(str.strip, _lines(text)):
            yield from _of_run(line, format)
            for at in {0, max(line.rfind(begins), 0)}:
                found = re.match(pattern, line[at:])
                if found is not None and not (at and found["status"] in passing.split()):
                    yield found["name"], found["status"] in passing.split()

    return named


def _go(text: str) -> _Named:
    told, ended = list[tuple[str, str, bool]](), set[str]()
    for event in (steps.read_value(line) or {} for line in _lines(text) if line.startswith("{")):  # of -json
        of, test = str(event.get("Package")), event.get("Test")
        if event.get("Action") in ("pass", "fail", "skip") and test:
            told.append((of, str(test), event["Action"] == "pass"))
        elif str(event.get("Output")).endswith(("PASS\n", "FAIL\n")):
            ended.add(of)
    for of, test, passed in told:
        yield from ((name, passed and of in ended) for name in (test, f"{of}.{test}"))
    yield inf, True
    yield from _by_line("go", r"--- (?P<status>PASS|FAIL|SKIP): (?P<name>\S+) \(", "PASS", "--- ")(text)


def _jest(text: str) -> _Named:
    named = list[tuple[str | float, bool | None]]()
    is_report, tries = '"numTotalTestSuites":' in text or '"assertionResults":' in text, 0  # of --json
    begin = len(text) - len(text.lstrip())
    begin = begin if text.startswith("{", begin) else _next_report(text, 0)
    while begin >= 0:
        at, tries = begin + 1, tries + 1
        if tries > _MOST_REPORTS or text.count(",", at) > _MOST_VALUES:  # one is read in one go
            raise ValueError(f"a log has at most {_MOST_REPORTS} reports, and they {_MOST_VALUES:,} values")
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError, AttributeError):
            report, at = json.JSONDecoder().raw_decode(text, begin)
            named = []  # jest's own is the last
            for one in (test for file in report["testResults"] for test in file["assertionResults"]):
                named += [(str(one.get(key)), one.get("status") == "passed") for key in ("title", "fullName")]
        begin = _next_report(text, at)
    if not is_report:
        pattern = r"(?P<status>[✓✔√✕✗×]|\d+\)|○(?: skipped)?|✎(?: todo)?) (?P<name>.*?)(?: \([\d.]+ m?s\))?$"
        yield from _by_line("jest", pattern, "✓ ✔ √", "✕ ")(text)
    yield from [*named, (inf, True)] if is_report else ()


def _next_report(text: str, at: int) -> int:
    """Where the next report of jest begins, -1 for none: a pattern that begins with letters holds others shortly."""
    while found := re.compile('"num(?:Failed|Total)TestSuites"').search(text, at):
        key = found.start()
        begin, at = text.rfind("{", max(at, key - 100), key), found.end()
        if begin >= 0 and not text[begin + 1 : key].strip():
            return begin
    return -1


def _junit(text: str) -> _Named:
    tests: list[tuple[str, bool | str]] = []
    within: list[str] = []

    def start(tag: str, given: Mapping[str, str]) -> None:
        within.append(tag)
        if len(within) > _DEEPEST:  # of each the parser holds some hundred bytes
            raise ValueError(f"a report has no {_DEEPEST} elements within each other")
        if tag == "testcase":
            is_run = given.get("status") not in ("notrun", "disabled")  # so GoogleTest and ctest leave one out
            tests.append((steps.dotted(f"{given.get('classname')}::{given.get('name')}"), is_run))
        elif tests and tag in ("failure", "error", "skipped"):
            tests[-1] = (tests[-1][0], given.get("type") == "pytest.xfail" and tests[-1][1] and steps.EXPECTED)

    def refuse(*_: object) -> None:
        raise ValueError("a report declares no entities")

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.StartDoctypeDeclHandler = start, refuse
    parser.EndElementHandler = lambda _: within.pop()
    if hasattr(parser, "SetReparseDeferralEnabled"):  # expat 2.6 looks at what is unfinished ever more seldom
        parser.SetReparseDeferralEnabled(False)
    read = 0
    with told_as(ValueError, "", expat.ExpatError):
        for piece in (one.encode(errors="replace") for one in _pieces(text, ">")):
            parser.Parse(piece, False)
            read += len(piece)
            if read - parser.CurrentByteIndex > _LONGEST_TAG:  # an element that is open is not read yet
                raise ValueError(f"a tag has at most {_LONGEST_TAG:,} bytes")
        parser.Parse("", True)
    yield from ((one, passed) for name, passed in tests for one in {name, name.partition(" ")[0]})
    yield inf, True


def _cargo(text: str) -> _Named:
    reads = _by_line("cargo", r"test (?P<name>.*?)(?: - should panic)? \.\.\. (?P<status>.*)", "ok", "test ")
    for name, passed in reads(text):
        yield name, passed
        if passed and str(name).endswith(".rs"):  # a file that a test compiles, which no summary counts
            yield 1.0, False
    is_listed = False
    for line in _lines(text):  # at the end of each program
        if line.startswith(("failures:", "successes:", "test result:")):
            is_listed = line == "failures:"
        elif is_listed and line.startswith("    "):
            yield line.strip(), False


_READERS = {"pytest": _pytest, "unittest": _unittest, "go": _go, "jest": _jest, "cargo": _cargo, "junit": _junit}


def _by_name(
    verified: Verified, log: steps.TestLogSpec, names: Names, trusts: bool
) -> tuple[float | None, Mapping[str, float], str]:
    """The number of tests by name, None where the log names none; the shares that passed; and which did not."""
    text = verified.ran.output if log.file is None else verified.files.get(log.file, b"")
    found: dict[str, bool | str] = {}
    # What was not said may be what failed.
    if verified.ran.why in ("", "out of memory") and not (log.file is None and verified.ran.dropped):
        with contextlib.suppress(ValueError):
            found, counted = passed_in(text.decode(errors="replace"), log.format, trusts=trusts)
    if not found:
        return None, {}, ""
    return steps.value_by_name(found, counted, log.credit, names)


_Number = tuple[float | None, Mapping[str, float], str, str]
"""A number, None for none, those beside it, what the tests said, and how they ended, "" where that was by itself."""


@dataclass(frozen=True, slots=True)
class _Tests:
    """A compiled term."""

    spec: WorkspaceTestsSpec
    tests: Callable[[RewardContext], RowTests]
    at_first: dict[str, _Number] = field(default_factory=dict)
    """The numbers of tests over machines in which no command was run: they are asked for once."""

    async def measure(self, context: RewardContext) -> Measured:
        workspace: Workspace = context.resources[self.spec.resource]
        tests = self._filled_in(context)
        with bounded_by_itself():  # what it takes is the episode's doing
            if tests.last:
                await steps.ran_in_shell(workspace, tests.last, tests.time_s)
            changed = await workspace.list_changes(self.spec.resource)
            if workspace.is_put_back and workspace.copies:
                raise RewardError("what the episode had left running lived on beside its tests, and was not recorded")
            is_fresh = not (workspace.commands or workspace.is_put_back)
            key = await self._digest(tests, workspace.source, workspace.at_first) if is_fresh else ""
            value, beside, said, end = self.at_first.get(key) or await self._number(workspace, tests)
            if is_fresh and not end:
                self.at_first[key] = value, beside, said, ""
                drop_oldest(self.at_first, most=_MOST_AT_FIRST)
            if value is None or end == "out of memory":  # each time: what could be run an hour ago may not be now
                known, shares, why, end = await self._number(workspace, tests, over_layer=False)
                # Where tests have passed all along, one of them shows that they can be run.
                if known is None or end == "out of memory" or (tests.names[1] and not shares["pass_to_pass"]):
                    raise RewardError(f"the tests give no number, not even over the untouched image: {why}")
            if value is None:  # again, beside a run that went well: this computer may have been too slow for the first
                value, beside, said, _ = await self._number(workspace, tests)
        if value is None:
            value, said = 0.0, f"the tests give no number over what the episode left: {said}"
        details: dict[str, Any] = {"commands": workspace.commands, "boots": workspace.boots, "numbers": beside}
        return Measured(value, said, {**details, "changed": changed})

    def _filled_in(self, context: RewardContext) -> RowTests:
        with told_as(RewardError, "the row does not fill the tests in:", TemplateError, ValueError, TypeError):
            tests = self.tests(context)
        if tests.folder is not None and not tests.folder.is_dir():
            raise RewardError(f"there is no folder of tests '{tests.folder.name}'")
        return tests

    async def by(self, context: RewardContext) -> str:
        """A digest of all that the number rests on beside the machine's files."""
        return await self._digest(self._filled_in(context))

    async def _digest(self, tests: RowTests, source: Path | None = None, at_first: object = None) -> str:
        folders = [await asyncio.to_thread(digest_of, one) for one in (tests.folder, source) if one is not None]
        held = tests._replace(folder=None), folders, at_first, self.spec.by, self.spec.weights, self.spec.log
        return hashlib.sha256(repr(held).encode(errors="replace")).hexdigest()

    async def _number(self, workspace: Workspace, tests: RowTests, *, over_layer: bool = True) -> _Number:
        """The number and what the tests said; over the image alone asked twice where there is none.

        Raises RewardError: their machine was ended from outside, again and again, or a command of the episode was.
        """
        lost, asked, said, log = 0, 0, "", self.spec.log
        files = RESULTS if log is None else [log.file] if log.file else []
        most = _KEPT_BYTES if log is None or log.file else _MOST_LOG
        while asked < 2 - over_layer:
            try:
                tested = await workspace.run_tests(tests, over_layer=over_layer, files=files, most=most)
            except MachineFailed as error:
                lost, asked, said = lost + error.is_cut, asked + (not error.is_cut), str(error)
                if lost == _MOST_LOST:
                    raise RewardError(f"the tests could not be run: {error}") from error
                continue
            asked += 1
            if workspace.is_cut:
                raise RewardError("a command of the episode was ended from outside or had no room: what it did is lost")
            said = tested.ran.output[-4 * _KEPT_CHARS :].decode(errors="replace").strip()[-_KEPT_CHARS:]
            if log is None:
                value, beside = steps.value_of(tested, self.spec.by, self.spec.weights)
            else:
                value, beside, told = await asyncio.to_thread(_by_name, tested, log, tests.names, not over_layer)
                if value is None and not over_layer and not tested.ran.why and tested.ran.code not in steps.NOT_RUN:
                    value, beside = 0.0, {"pass_to_pass": 0.0}  # they ended: what they need may be what is missing
                said = told or said
            if tested.ran.why:
                said = f"their command did not end by itself ({tested.ran.why}) {said}".strip()
            if value is not None:
                return value, beside, said, tested.ran.why
        return None, {}, said, "none"


def _compile(name: str, spec: WorkspaceTestsSpec, context: TermCompileContext) -> Term:
    keep = () if isinstance(spec.keep, str) else tuple(spec.keep or ())
    for index, path in enumerate(keep):
        if not path.startswith("/") or ".." in path.split("/"):
            raise UsageError(f"'{path}' is no absolute path", key=f"keep.{index}", hint=f"write /{path.strip('./')}")
    if spec.collect and "/" in (one.rstrip("/") or "/" for one in keep):
        raise UsageError("what is collected is a part of the files", key="keep", hint="name the paths `command` reads")
    if other := sorted({"by", "weights"} & spec.model_fields_set) if spec.log else []:
        raise UsageError("the number is read from the log", key=other[0], hint=f"remove {other[0]}, or log")
    if spec.weights is not None and spec.by != "file":
        raise UsageError("weights are of the keys of reward.json", key="weights", hint="remove by: status")
    held = {key: getattr(spec, key) or "" for key in _BY_ROW}
    held |= {key: getattr(spec.log, key[4:]) for key in _LISTS if spec.log}
    may = frozenset(("task", "vars"))
    given = {key: compile_for_context(value, where=key, names=may) for key, value in held.items()}
    where = template_of(spec.tests or "", key="tests", names=may)

    def tests_of(one: RewardContext) -> RowTests:
        row = {key: value(one) for key, value in given.items()}
        folder = context.finder("tests", where, vars=one.vars)(str(row["tests"])) if row["tests"] else None
        base = PurePosixPath(one.resources[spec.resource].workdir)
        kept = tuple(str(base / path) for path in steps.read_names("keep", row["keep"] or ()))
        mend, stay = (steps.read_names(key, row[key]) if spec.log else () for key in _LISTS)
        if spec.log and not (mend or stay):
            raise RewardError("log: the row names no test")
        rest: dict[str, Any] = {key: str(row[key]) for key in _BY_ROW[:4]}
        if expected := expected_of("time_s", time_s := row["time_s"]):
            raise RewardError(f"time_s: the row gives {describe(time_s)}; expected {expected}")
        rest |= {"exclude": steps.read_names("exclude", row["exclude"] or ())}
        rest |= {"time_s": float(time_s)} if time_s else {}
        return RowTests(folder=folder, keep=kept, names=(mend, stay), **rest)

    tests = _Tests(spec, tests_of)
    return steps.stepped(Term(name=name, spec=spec, measure_async=tests.measure), tests.by, spec, context)


KIND = Kind(WorkspaceTestsSpec, _compile)
