"""Tests of machines by row, and of tasks of several steps: tests at the end of each, then the next instruction."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import Field

from rlenv._base.strict_json import read_json
from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.errors import RewardError, UsageError
from rlenv.language.dialect import ByRow, Float, Text
from rlenv.language.spec import RewardSpec, Spec
from rlenv.language.templates import template_of
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.tools.workspace.images import pack
from rlenv.tools.workspace.machine import MachineFailed, Verified
from rlenv.tools.workspace.resource import RESULTS, Workspace, WorkspaceResource
from rlenv.tools.workspace.starters import ROOT

_MOST_S: Final = 600.0
_MOST_NAMED, _MOST_JSON = 5, 16_000_000  # tests that did not pass, in a message; bytes
_NAMES: Final = ("task", "vars")
EXPECTED: Final = "failed as expected"
NOT_RUN: Final = (126, 127, 137)  # statuses of a command that is not there, cannot be run, or was killed
Measure = Callable[[RewardContext], Awaitable[Measured]]
By = Callable[[RewardContext], Awaitable[str]]
"""Gives a digest of all that a number rests on beside the machine's files."""


class TestLogSpec(Spec):
    """Tests by name, as what runs them tells of each."""

    __test__ = False  # no test of pytest's

    format: Literal["pytest", "unittest", "go", "jest", "cargo", "junit"]
    """The program whose output it is; `junit`: the XML that most can write, `pytest --junitxml=FILE` among them."""
    file: Annotated[Text, Field(pattern=r"^[^/]+$")] | None = None
    """The file below `/logs/verifier` that it is written to; by default it is what the command prints."""
    fail_to_pass: Any = "{{ task.FAIL_TO_PASS }}"
    """The names of tests that have to pass, and fail before the change: a list, also as JSON text; a template."""
    pass_to_pass: Any = "{{ task.PASS_TO_PASS }}"
    """Those that passed before it and have to pass still."""
    credit: Literal["all", "share"] = "all"
    """`all`: 1 where all of both pass, else 0; `share`: the share of `fail_to_pass`, or 0 where another fails."""


class SteppedSpec(RewardSpec):
    """The keys of tests that rows may fill in, and of tasks of several steps."""

    resource: Text
    """The machine: the name of a resource of kind workspace."""
    keep: Annotated[tuple[Text, ...], Field(min_length=1)] | ByRow | None = None
    """Paths that the tests see as the episode left them; all else is the image's. By default `cwd`; `/` for all,
    where programs that the policy has changed take part in the verdict."""
    exclude: tuple[Text, ...] | ByRow = ()
    """Paths below those that are not kept, as patterns in which `*` stands for anything, `/` too."""
    time_s: Annotated[Float, Field(gt=0, le=86_400)] | ByRow = 600.0
    """Seconds that the tests may take."""
    tests: Text | None = None
    """A folder whose content stands in `/tests` while they run, relative to the spec; a template over `task` and
    `vars`. The episode never sees it."""
    last: Text | None = None
    """A command that the episode's own shell runs before the tests, with its processes alive; a template."""
    steps: ByRow | None = None
    """A template that gives the steps of a task: mappings of columns that take the place of the row's, with
    `instruction` and, where it is one, the `min_reward` by key without which the task ends. See `next_step`."""
    combine: Text = "mean"
    """`mean` over the steps, or the `final` one; a template. A step that was not reached is worth 0."""


def value_of(
    verified: Verified, by: str, weights: Mapping[str, float] | None = None
) -> tuple[float | None, Mapping[str, float]]:
    """The number that tests gave, None for none, and the numbers beside it."""
    if by == "status":
        code = verified.ran.code
        return None if code is None or code in NOT_RUN else float(code == 0), {}
    name, data = next(((name, verified.files[name]) for name in RESULTS if name in verified.files), ("", b""))
    try:
        found: Any = float(data[:100]) if name.endswith(".txt") else read_json(data, max_bytes=1_000_000)
    except ValueError:
        return None, {}
    numbers = {str(key): one for key, one in found.items()} if isinstance(found, dict) else {"reward": found}
    wanted = {"reward": 1.0} if weights is None else weights
    is_finite = all(type(one) in (int, float) and math.isfinite(one) for one in numbers.values())
    if not is_finite or not wanted.keys() <= numbers.keys():
        return None, {}
    value = sum(weight * numbers[key] for key, weight in wanted.items())
    return float(value), {key: float(one) for key, one in numbers.items() if key != "reward"}


def value_by_name(
    found: Mapping[str, bool | str], counted: float, credit: str, names: Sequence[Sequence[str]]
) -> tuple[float, Mapping[str, float], str]:
    """The number of tests to pass, in two lists; the shares that passed; and which did not.

    None passed where more did by their names than a log's summaries have `counted`. One that failed as is expected of
    it passes in the second list alone: in the first it would by a call of `pytest.xfail` in the code that it tests.
    """
    if (passed := sum(is_passed(one, found) for one in {*names[0], *names[1]})) > counted:
        found = {}
    failed = [[one for one in names[0] if not is_passed(one, found, as_expected=False)]]
    failed += [[one for one in names[1] if not is_passed(one, found)]]
    shares = [1.0 - len(some) / len(wanted) if wanted else 1.0 for some, wanted in zip(failed, names, strict=True)]
    value = float(not any(failed)) if credit == "all" else shares[0] * (not failed[1])
    short = [one for some in failed for one in some]
    more = f" and {len(short) - _MOST_NAMED} more" if len(short) > _MOST_NAMED else ""
    told = f" (by name {passed} passed, and by a summary {counted:g})" if passed > counted or not counted else ""
    said = f"not passed: {', '.join(short[:_MOST_NAMED])}{more}{told}" if short else "all passed"
    return value, {"fail_to_pass": shares[0], "pass_to_pass": shares[1]}, said


def is_passed(name: str, found: Mapping[str, bool | str], *, as_expected: bool = True) -> bool:
    """True if a test passed, or failed `as_expected`, by what a log names, by its name or by another spelling of it."""
    ways = {name, (other := dotted(name)), f"{other}.{other}"} & found.keys()  # of ctest the name is the class too
    return bool(ways) and all(found[one] and (as_expected or found[one] != EXPECTED) for one in ways)


def dotted(name: str) -> str:
    """`test_a (test_x.TestA)`, with the test's name behind it or not, and `tests/test_x.py::TestA::test_a[1]` alike."""
    test, is_placed, place = name.partition(" (")
    if is_placed and place.endswith(")") and " " not in place:
        return f"{place[:-1].removesuffix(f'.{test}')}.{test}"
    plain, bracket, rest = name.partition("[")
    return plain.replace(".py::", "::").replace("/", ".").replace("::", ".") + bracket + rest


def read_names(key: str, value: Any) -> tuple[str, ...]:
    """Names of tests: a list, or JSON text of one, as published rows have it."""
    found = read_value(value) if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise RewardError(f"{key}: found {value!r:.80}; expected a list of names, or JSON text of one")
    return tuple(found)


def read_value(text: str) -> Any:
    """The JSON value in a text; None where there is none."""
    with contextlib.suppress(ValueError):
        return read_json(text.encode(errors="replace"), max_bytes=_MOST_JSON)


def stepped(first: Term, by: By, spec: SteppedSpec, context: TermCompileContext) -> Term:
    """A term that is measured at the end of each step, out of one that is at the episode's."""
    origin = context.resource(spec.resource, WorkspaceResource, "workspace")
    steps, combine = (template_of(getattr(spec, key) or "", key=key, names=_NAMES) for key in ("steps", "combine"))
    if spec.steps is None:
        return first
    origin.terms[first.name] = first.measure_async, by
    return replace(first, measure_async=partial(_over_steps, first.name, spec, steps.value, combine.value))


async def _over_steps(
    name: str, spec: SteppedSpec, steps_of: Callable[..., Any], combine: Callable[..., Any], context: RewardContext
) -> Measured:
    workspace: Workspace = context.resources[spec.resource]
    values = {"task": context.task, "vars": context.vars}
    steps: Any = steps_of(**values)
    measure, by = term = workspace.origin.terms[name]
    if not steps:
        found: Measured = await measure(context)
        return found
    noted, done = workspace.notes, list[Mapping[str, Any]](workspace.notes.get(name, ()))
    heard = [turn.observation.messages for turn in context.turns if turn.observation is not None]
    if len(done) < sum(any(one.role == "user" for one in messages) for messages in heard):
        raise RewardError("what the earlier steps were worth was not recorded; `eval --record` keeps it")
    for number, (one, step) in enumerate(zip(done, steps, strict=False), 1):
        if not one["error"] and one["by"] != await by(replace(context, task={**context.task, **step})):
            raise RewardError(f"other tests measured step {number}, and what it left then is not there any more")
    if not noted.get("ended"):
        done.append(await _noted(term, replace(context, task={**context.task, **steps[len(done)]})))
    elif not workspace.is_put_back:
        workspace.changed = None  # what is kept of the machine is to have what the last step was worth
        with bounded_by_itself():
            await workspace.list_changes(spec.resource)
    if failed := next((one["error"] for one in done if one["error"]), ""):
        raise RewardError(failed)
    worth = [one["value"] or 0.0 for one in done]
    count = len(worth) if noted.get("ended") == "below" else len(steps)
    parts = [one["details"].get("numbers", {}) for one in done]
    numbers = {key: sum(part.get(key, 0.0) for part in parts) / count for part in parts for key in part}
    value = sum(worth) / count
    if combine(**values) == "final":
        value, numbers = worth[-1] * (len(worth) == count), parts[-1]
    return Measured(value, done[-1]["evidence"], {**done[-1]["details"], "numbers": numbers, "steps": worth})


async def _noted(term: tuple[Measure, By], context: RewardContext) -> Mapping[str, Any]:
    """The worth of a step, as JSON: it is kept with the machine's files."""
    note: dict[str, Any] = {"value": None, "evidence": "", "details": {}, "error": "", "by": ""}
    try:
        found, by = await term[0](context), await term[1](context)
    except (RewardError, MachineFailed) as error:  # told by the term, at the end
        return {**note, "error": str(error)}
    return {**note, "value": found.value, "evidence": found.evidence, "details": found.details, "by": by}


async def next_step(task: Mapping[str, Any], vars: Mapping[str, Any], resources: Mapping[str, Any]) -> str | None:
    """The user of tasks of several steps, which stand under `steps` in the row.

    Once a step is done its tests are run. Then the next one's files and set-up are made, and its instruction is said.
    None, the end, where there is no other, where the step is below its `min_reward`, or where the next one cannot be
    set up over what the episode has left. In a recorded machine, which is as the whole episode has left it, nothing is
    made or measured: what was said is said again.

    Raises:
        MachineFailed: the machine was ended from outside.
    """
    workspace = next((one for one in resources.values() if isinstance(one, Workspace)), None)
    if workspace is None:
        return None
    noted, terms, steps = workspace.notes, workspace.origin.terms, task.get("steps") or ()
    index = max((len(noted.get(name, ())) for name in terms), default=0)
    if "again" in noted:
        noted["again"] += 1
        if noted["again"] > index - bool(noted.get("ended")):
            return None
        after = {**task, **steps[noted["again"]]}
        _, workspace.tests_image = await asyncio.to_thread(workspace.origin.images, after, vars)
        return str(after["instruction"])
    if index + 1 >= len(steps):
        return None
    now, after = ({**task, **one} for one in steps[index : index + 2])
    context, least = RewardContext(now, (), (), None, resources, vars, _no_call), now.get("min_reward") or {}
    for name, term in terms.items():
        note = await _noted(term, context)
        noted.setdefault(name, []).append(note)
        numbers = {"reward": note["value"], **note["details"].get("numbers", {})}
        if note["error"] or any(key not in numbers or numbers[key] < most for key, most in least.items()):
            noted["ended"] = "below"
    if not noted.get("ended") and not await _begun(workspace, after, vars):
        noted["ended"] = "unready"
    return None if noted.get("ended") else str(after["instruction"])


async def _begun(workspace: Workspace, task: Mapping[str, Any], vars: Mapping[str, Any]) -> bool:
    """Makes a step's files in the machine, and runs its set-up; False where what the episode left stands in its way."""
    _, workspace.tests_image = await asyncio.to_thread(workspace.origin.images, task, vars)
    entry, files = workspace.origin.fill_row(task, vars), workspace.origin.source("path", task, vars)
    workspace.entry = entry
    place, user = shlex.quote(workspace.workdir), workspace.origin.user_of(workspace.image, entry)
    put = f"mkdir -p {place} && echo {pack(files)} | base64 -d | tar -xz --no-same-owner -C {place}" if files else ""
    for command, who in ((put, ROOT), (f"cd {place}\n{entry.setup}" if entry.setup else "", user)):
        if (command or who is user) and tuple(who) != tuple(workspace.user):
            await workspace.freeze()
            workspace.user = who
        with bounded_by_itself():  # what it takes is the episode's doing
            if command and await ran_in_shell(workspace, command, min(task.get("agent_s", _MOST_S), _MOST_S)) != 0:
                return False
    return True


async def ran_in_shell(workspace: Workspace, command: str, most_s: float) -> int | None:
    """The status of a command in the episode's own shell. Raises MachineFailed."""
    return (await workspace.run(f"(\n{command}\n)", most_s)).code


async def _no_call(name: str, arguments: Mapping[str, Any]) -> NoReturn:
    raise UsageError("tests of a machine call no tool")
