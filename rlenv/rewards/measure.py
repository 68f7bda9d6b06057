"""Weights of terms over training, the order in which they are measured, and the results of measuring them.

Whatever a term does, a result is made of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from numbers import Real
from typing import Any

from rlenv.concurrency.deadline import Countdown, running_under
from rlenv.errors import CassetteError, EpisodeError, RewardError, UsageError
from rlenv.language.expressions import Expression, compile_expression, flaws
from rlenv.language.functions import failure as failure_of
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term, checked
from rlenv.rewards.rule import UnfitAnswer, UnfitGold, worst_of
from rlenv.secrets import redact_within
from rlenv.trajectory import Measurement, TermResult, Trajectory, Where, term_result

RETRIES = 2
"""How often a term with `on_invalid: retry` is measured again."""


def shaped(term: Term) -> Term:
    """The term with its spec's `range`, `clip` and `on_invalid: retry` around its measure."""
    spec = term.spec
    shape = _shaper(spec)
    retries = RETRIES if spec.on_invalid == "retry" else 0
    if shape is None and not retries:
        return term
    finish: Callable[[Measured], Measured] = shape or (lambda measured: measured)
    measure, measure_async = term.measure, term.measure_async
    if measure is not None:

        def retry(context: RewardContext) -> Measured:
            for _ in range(retries):
                with suppress(Exception):  # whatever an author's function raises; the last try may raise it
                    if _is_usable(measured := measure(context)):
                        return finish(measured)
            return finish(measure(context))

        return replace(term, measure=retry)
    if measure_async is not None:

        async def retry_async(context: RewardContext) -> Measured:
            for _ in range(retries):
                with suppress(Exception):  # as above
                    if _is_usable(measured := await measure_async(context)):
                        return finish(measured)
            return finish(await measure_async(context))

        return replace(term, measure_async=retry_async)
    return _shape_group(term, finish, retries)


def _shape_group(term: Term, finish: Callable[[Measured], Measured], retries: int) -> Term:
    measure_group, ask_group = term.measure_group, term.ask_group

    def finish_all(found: Sequence[Measured | RewardError]) -> list[Measured | RewardError]:
        return [finish(one) if isinstance(one, Measured) else one for one in found]

    def is_whole(found: Sequence[Measured | RewardError]) -> bool:
        return all(isinstance(one, Measured) and _is_usable(one) for one in found)

    if measure_group is not None:

        def retry(trajectories: Sequence[Trajectory]) -> list[Measured]:
            for _ in range(retries):
                with suppress(Exception):  # as above
                    if is_whole(found := measure_group(trajectories)):
                        return [finish(one) for one in found]
            return [finish(one) for one in measure_group(trajectories)]

        return replace(term, measure_group=retry)
    if ask_group is not None:

        async def reask(trajectories: Sequence[Trajectory], context: GroupContext) -> list[Measured | RewardError]:
            for _ in range(retries):
                with suppress(Exception):  # as above
                    if is_whole(found := await ask_group(trajectories, context)):
                        return finish_all(found)
            return finish_all(await ask_group(trajectories, context))

        return replace(term, ask_group=reask)
    return term


def _is_usable(measured: Measured) -> bool:
    return measured.value is None or isfinite(_as_float(measured.value)[0])


def _shaper(spec: RewardSpec) -> Callable[[Measured], Measured] | None:
    if spec.range is None and spec.clip is None:
        return None
    low, high = spec.range or (0.0, 1.0)
    least, most = spec.clip or (float("-inf"), float("inf"))

    def shape(measured: Measured) -> Measured:
        if measured.value is None or not _is_usable(measured):
            return measured  # nothing to measure, or what scoring will refuse
        # The raw value stays in the trajectory, so that a change of range can be told from a change of behaviour.
        value = max(-_LARGEST, min(_as_float(measured.value)[0], _LARGEST))
        found = min(most, max(least, (value - low) / (high - low)))
        return replace(measured, value=found, details={**measured.details, "unshaped": value})

    return shape


@dataclass(frozen=True, slots=True)
class Planned:
    """One term. `is_mean`: its turns count by their mean, else by their sum."""

    term: Term
    name: str
    weight: float
    gate: Expression | None
    is_per_turn: bool
    is_mean: bool
    is_required: bool


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """All terms: in the order of the spec, in one in which each stands behind those that its gate reads, by kind."""

    terms: tuple[Planned, ...]
    ordered: tuple[Planned, ...]
    per_turn: tuple[Planned, ...]
    group: tuple[Planned, ...]
    raising: tuple[str, ...]
    success: Expression | None


def plan(terms: Sequence[Term], *, success: str | None) -> ScoringPlan:
    """The plan for scoring `terms`, in the order of the spec.

    Raises:
        UsageError: two terms share a name, what one measures does not fit how, or their keys have one of the `flaws`
            (rlenv.language.expressions); it names the key.
    """
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise UsageError(f"two reward terms share a name: {', '.join(names)}")
    for flaw in flaws({term.name: term.spec for term in terms}, success):
        raise UsageError(flaw.message, key=flaw.path, hint=flaw.hint)
    planned = tuple(_plan_term(shaped(term)) for term in terms)
    ordered = _order_by_gates(planned)
    _check_group_terms(planned)
    return ScoringPlan(
        terms=planned,
        ordered=ordered,
        per_turn=tuple(one for one in planned if one.is_per_turn),
        group=tuple(one for one in planned if one.term.is_of_group),
        raising=tuple(one.name for one in planned if one.term.spec.on_invalid == "raise"),
        success=None if success is None else compile_expression(success),
    )


def _plan_term(term: Term) -> Planned:
    spec, where = term.spec, f"rewards.{term.name}"
    measures = (term.measure, term.measure_async, term.measure_group, term.ask_group)
    if sum(measure is not None for measure in measures) != 1:
        raise UsageError("exactly one of its measures must be set", key=where)
    if term.is_of_group and spec.when == "turn":
        raise UsageError("a term over all answers to a task is measured once", key=f"{where}.when")
    return Planned(
        term,
        term.name,
        float(spec.usual_weight),
        None if spec.gate is None else compile_expression(spec.gate, by_row=True),
        is_per_turn=spec.when == "turn",
        is_mean=spec.over_turns == "mean",
        # What earns nothing decides nothing, unless the spec says that it has to be there.
        is_required=spec.required and (spec.usual_weight != 0 or "required" in spec.model_fields_set),
    )


def _order_by_gates(planned: Sequence[Planned]) -> tuple[Planned, ...]:
    ordered: dict[str, Planned] = {}
    left = {one.name: one for one in planned}
    while left:
        # One at a time, so that the order stays as near to the spec's as the gates allow. They form no circle.
        first = next(one for one in left.values() if one.gate is None or ordered.keys() >= set(one.gate.names))
        ordered[first.name] = left.pop(first.name)
    return tuple(ordered.values())


def _check_group_terms(planned: Sequence[Planned]) -> None:
    grouped = {one.name for one in planned if one.term.is_of_group}
    known = [one.name for one in planned if one.name not in grouped]
    for one in planned:
        if one.name in grouped and (unknown := [name for name in one.term.reads if name not in known]):
            there = ", ".join(known)
            message = f"no term '{unknown[0]}' to compare"
            raise UsageError(message, key=f"rewards.{one.name}.of", hint=f"there are: {there}")
    for one in planned:
        if one.gate is not None and (late := sorted(grouped.intersection(one.gate.names))):
            message = f"'{late[0]}' is known only once all answers are"
            raise UsageError(message, key=f"rewards.{one.name}.gate", hint="drop it")


_CANCEL_GRACE_S = 1.0
_SHOWN_CHARS = 80
_MOST_PLACES = 64
_WAITS = "it is measured once all answers to the task are there"
_LARGEST = 1e30
"""Trainers add up what a group has earned, in numbers that hold some 3e38: one value must not be the end of all."""
_clock = time.perf_counter

TurnResults = Mapping[str, TermResult]
"""What one turn gave: a result for each term with `when: turn`, by name."""


def measure(planned: Planned, context: RewardContext) -> TermResult:
    """The result of a term that need not be awaited; a group's is skipped until the group is there."""
    if planned.term.measure is None:
        return TermResult.skipped(planned.name, why=_WAITS, weight=planned.weight)
    begun = _clock()
    try:
        return of_value(planned, planned.term.measure(context), begun, context)
    except Exception as error:  # an author's function may raise anything; the term is invalid and says so
        return of_error(planned, error, begun)


async def measure_async(planned: Planned, context: RewardContext) -> TermResult:
    """The result of a term that has to be awaited.

    Raises:
        CassetteError: the tape of a replayed episode has no answer to what it asks.
    """
    assert planned.term.measure_async is not None
    begun = _clock()
    try:
        return of_value(planned, await planned.term.measure_async(context), begun, context)
    except CassetteError:
        raise  # of the whole episode, which is not what was recorded
    except Exception as error:  # as above
        return of_error(planned, error, begun)


def measure_group(planned: Planned, trajectories: Sequence[Trajectory]) -> list[TermResult]:
    """The results of a term over all answers to one task: one for each, all invalid where it fails."""
    assert planned.term.measure_group is not None
    begun = _clock()
    try:
        return _group_results(planned, planned.term.measure_group(trajectories), trajectories, begun)
    except Exception as error:  # as above
        return [of_error(planned, error, begun)] * len(trajectories)


async def ask_group(
    planned: Planned, trajectories: Sequence[Trajectory], context: GroupContext, *, limit_s: float | None
) -> list[TermResult]:
    """As `measure_group`, of a term that has to be awaited; all are invalid after `limit_s` seconds."""
    assert planned.term.ask_group is not None
    begun = _clock()
    try:
        async with asyncio.timeout(limit_s) as limit:
            with running_under(Countdown(limit_s)):
                measured = await planned.term.ask_group(trajectories, context)
        return _group_results(planned, measured, trajectories, begun)
    except Exception as error:  # as above
        late = RewardError(f"not measured within {limit_s} s") if limit.expired() else error
        return [of_error(planned, late, begun)] * len(trajectories)


def _group_results(
    planned: Planned, given: Sequence[Measured | RewardError], trajectories: Sequence[Trajectory], begun: float
) -> list[TermResult]:
    measured = list(given)
    if len(measured) != len(trajectories):
        raise RewardError(f"gave {len(measured)} values for {len(trajectories)} answers")
    return [
        of_error(planned, one, begun) if isinstance(one, RewardError) else of_value(planned, one, begun, trajectory)
        for one, trajectory in zip(measured, trajectories, strict=True)
    ]


def of_error(planned: Planned, error: Exception, begun: float) -> TermResult:
    """The result of a term that raised: what the package's own errors say, the author's with their class."""
    message = str(error) if isinstance(error, EpisodeError) else ""
    seconds = _clock() - begun
    is_left = isinstance(error, UnfitGold) and error.is_left(planned.term.spec.model_dump(include={"expect"}))
    if is_left or isinstance(error, UnfitAnswer):
        if isinstance(error, UnfitAnswer):
            error.tell(planned.name)
        value = worst_of(planned.term.spec)
        return TermResult.valid(planned.name, value=value, weight=planned.weight, evidence=message, seconds=seconds)
    return TermResult.invalid(planned.name, error=message or failure_of(error), weight=planned.weight, seconds=seconds)


def of_value(planned: Planned, measured: Measured, begun: float, of: RewardContext | Trajectory) -> TermResult:
    """The result of a term that returned, measured on `of`.

    Raises:
        RewardError: the evidence is no text, or stands at what is no place.
    """
    value, evidence = measured.value, measured.evidence
    if not isinstance(evidence, str):
        raise RewardError(f"gave evidence that is no text but a {type(evidence).__name__}")
    where: Where | Callable[[], Where] = measured.where
    if where:
        where = checked(measured.where, of.messages, of.turns)[:_MOST_PLACES]
    elif planned.term.where is not None and evidence and isinstance(of, RewardContext):
        # Nothing of an episode that has ended changes any more, and few places are ever looked at.
        where = partial(planned.term.where, of) if of.reason else planned.term.where(of)
    name, weight, seconds = planned.name, planned.weight, _clock() - begun
    if type(value) is float and -_LARGEST <= value <= _LARGEST and isfinite(value * weight):  # nearly every term
        return term_result(name, "valid", value, weight, "", evidence, seconds, (), measured.details, where)
    measurement: Measurement = {"evidence": evidence, "seconds": seconds, "details": measured.details, "where": where}
    if value is None:
        return TermResult.skipped(name, why="there was nothing to measure", weight=weight, **measurement)
    return _result_of(planned, value, measurement)


def _result_of(planned: Planned, value: Any, measurement: Measurement) -> TermResult:
    """Valid where `value`, and what it is worth, is a finite number; one beyond the largest counts as that."""
    number, error = (value, "") if type(value) is float else _as_float(value)
    number = max(-_LARGEST, min(number, _LARGEST)) if isfinite(number) else number
    if not isfinite(number * planned.weight) and not error:
        worth = f"which times the weight {planned.weight} is not" if isfinite(number) else "which is not"
        error = f"gave {number}, {worth} a finite number"
    if error:
        return TermResult.invalid(planned.name, error=error, weight=planned.weight, **measurement)
    return TermResult.valid(planned.name, value=number, weight=planned.weight, **measurement)


def reweighed(planned: Planned, result: TermResult) -> TermResult:
    """A result with the weight that its term has now; invalid where its value times that is no finite number."""
    if result.value is None:
        return replace(result, weight=planned.weight)
    kept: Measurement = {
        "evidence": result.evidence,
        "seconds": result.seconds,
        "turn_values": result.turn_values,
        "details": result.details,
        "where": result.where,
    }
    return _result_of(planned, result.value, kept)


def _as_float(value: Any) -> tuple[float, str]:
    """A number of another type, or what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, Real):
        shown = redact_within(repr(value), _SHOWN_CHARS)
        return nan, f"gave {shown}, a {type(value).__name__}; a number was expected, such as 1.0 or 0.0"
    try:
        return float(value), ""
    except OverflowError:
        return (_LARGEST if abs(value) == value else -_LARGEST), ""


def over_turns(planned: Planned, turns: Sequence[TurnResults]) -> TermResult:
    """The result of a term with `when: turn` for the whole episode: of the turns that gave something to measure."""
    results = [turn[planned.name] for turn in turns]
    values = tuple(result.value for result in results)
    measurement: Measurement = {"seconds": sum(result.seconds for result in results), "turn_values": values}
    for index, result in enumerate(results):
        if result.status == "invalid":
            measurement["evidence"], measurement["where"] = result.evidence, result.where
            error = f"in turn {index + 1}: {result.error}"
            return TermResult.invalid(planned.name, error=error, weight=planned.weight, **measurement)
    if results:
        last = results[-1]
        measurement["evidence"], measurement["details"] = last.evidence, last.details
        measurement["where"] = last.where
    measured = [value for value in values if value is not None]
    if not measured:
        why = "there was nothing to measure in any turn"
        return TermResult.skipped(planned.name, why=why, weight=planned.weight, **measurement)
    return _result_of(planned, sum(measured) / (len(measured) if planned.is_mean else 1), measurement)


class Running:
    """Measurements that are awaited together under one limit of time; those left on exit are cancelled.

    The limit stands still while one of them is `bounded_by_itself`: what other answers ask of the machine must not make
    this one's reward invalid.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._countdown = Countdown(limit_s)
        self._tasks: dict[asyncio.Task[TermResult], Planned] = {}

    async def __aenter__(self) -> Running:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await _cancel(list(self._tasks))

    @property
    def is_waiting(self) -> bool:
        """True if a measurement has not ended."""
        return bool(self._tasks)

    def start(self, planned: Planned, measuring: Coroutine[Any, Any, TermResult]) -> None:
        """Measures a term beside the others."""
        with running_under(self._countdown):
            self._tasks[asyncio.ensure_future(measuring)] = planned

    async def ended(self) -> dict[str, TermResult]:
        """The results of those that end next; once the time is over, of all: they are invalid and cancelled."""
        done: set[asyncio.Task[TermResult]] = set()
        while not done:
            look_s = self._countdown.look_s
            done, _ = await asyncio.wait(self._tasks, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
            if not done and self._countdown.is_over:
                break
        if done:
            ended = [(self._tasks.pop(task), task) for task in done]
            return {planned.name: _task_result(planned, task) for planned, task in ended}
        slow, self._tasks = self._tasks, {}
        await _cancel(list(slow))
        late = f"not measured within {self._limit_s} s"
        return {one.name: TermResult.invalid(one.name, error=late, weight=one.weight) for one in slow.values()}


def _task_result(planned: Planned, task: asyncio.Task[TermResult]) -> TermResult:
    if not task.cancelled():
        return task.result()
    # A term that cancels itself must not look like the cancellation of the whole episode.
    return TermResult.invalid(planned.name, error="was cancelled from inside", weight=planned.weight)


async def _cancel(tasks: Sequence[asyncio.Task[TermResult]]) -> None:
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    # Bounded: a term that will not be cancelled costs its own breakdown a moment and not the episode its end.
    await asyncio.wait(tasks, timeout=_CANCEL_GRACE_S)
