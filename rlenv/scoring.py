"""Turns the terms of a spec into one reward: R = Σ wᵢ·rᵢ over the valid terms of an episode.

A term is valid (a number), invalid (it could not be measured) or skipped (its gate was shut, or there was nothing to
measure). Nothing that goes wrong here becomes a number: where a required term is invalid, so is the reward.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from numbers import Real
from typing import Any

from rlenv._bounded import cut_middle
from rlenv.errors import EpisodeError, InvalidReward, RewardError, UsageError
from rlenv.expressions import Expression, ExpressionError, compile_expression
from rlenv.functions import failure as failure_of
from rlenv.rewards.base import Measured, RewardContext, Term
from rlenv.rewards.shaping import shaped
from rlenv.secrets import redact, redact_value
from rlenv.trajectory import Failure, RewardBreakdown, TermResult, Trajectory

__all__ = ["EVIDENCE_CHARS", "Reading", "Scorer", "TurnReadings", "clean"]

EVIDENCE_CHARS = 1024
"""Evidence and error in a TermResult are cut to this many characters."""

_CANCEL_GRACE_S = 1.0
_WAITS = "it is measured once all answers to the task are there"
_clock = time.perf_counter


@dataclass(slots=True)
class Reading:
    """One measurement of one term: a value, or None with the reason in `error` ("" where nothing was to measure)."""

    value: float | None
    error: str = ""
    evidence: str = ""
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


TurnReadings = Mapping[str, Reading]
"""What one turn gave: a reading for each term with `when: turn`, by name."""

_NO_READINGS: TurnReadings = {}


@dataclass(frozen=True, slots=True)
class _Plan:
    """A term with what is known about it before any episode."""

    term: Term
    name: str
    weight: float
    per_turn: bool
    gate: Expression | None
    required: bool
    is_mean: bool


class Scorer:
    """The terms of one environment, shared by all its episodes.

    Args:
        terms: the compiled terms in the order of the spec; the keys of every breakdown.
        success: the comparison that says what counts as success; None for the default, every required term with a
            positive weight at 1 or more.

    Raises:
        UsageError: a gate or `success` cannot be read, gates form a circle, two terms share a name, or a weight is
            not finite; the message names the term.
    """

    def __init__(self, terms: Sequence[Term], *, success: str | None = None) -> None:
        names = [term.name for term in terms]
        if len(set(names)) < len(names):
            raise UsageError(f"two reward terms share a name: {', '.join(names)}")
        plans: dict[str, _Plan] = {}
        for unshaped in terms:
            term = shaped(unshaped)
            spec = term.spec
            measures = (term.measure, term.measure_async, term.measure_group)
            if sum(measure is not None for measure in measures) != 1:
                raise UsageError("exactly one of its measures must be set", key=f"rewards.{term.name}")
            if term.measure_group is not None and spec.when == "turn":
                raise UsageError("a term over all answers to a task is measured once", key=f"rewards.{term.name}.when")
            if not isfinite(spec.weight):
                raise UsageError(f"{spec.weight} is not a finite number", key=f"rewards.{term.name}.weight")
            gate = None
            if spec.gate is not None:
                try:
                    gate = compile_expression(spec.gate, names=[name for name in names if name != term.name])
                except ExpressionError as error:
                    raise UsageError(error.message, key=f"rewards.{term.name}.gate", hint=error.hint) from error
            # What earns nothing decides nothing, unless the spec says that it has to be there.
            required = spec.required and (spec.weight != 0 or "required" in spec.model_fields_set)
            plans[term.name] = _Plan(
                term, term.name, float(spec.weight), spec.when == "turn", gate, required, spec.over_turns == "mean"
            )
        try:
            self._success = None if success is None else compile_expression(success, names=names)
        except ExpressionError as error:
            raise UsageError(error.message, key="success", hint=error.hint) from error
        self.names: tuple[str, ...] = tuple(names)
        self._ordered = _by_dependency(plans)
        self._turn_plans = tuple(plan for plan in plans.values() if plan.per_turn)
        self._groups = tuple(plan for plan in plans.values() if plan.term.measure_group is not None)
        grouped = {plan.name for plan in self._groups}
        for plan in self._groups:
            if unknown := [name for name in plan.term.reads if name not in plans or name in grouped]:
                known = ", ".join(name for name in plans if name not in grouped)
                raise UsageError(
                    f"no term '{unknown[0]}' to compare", key=f"rewards.{plan.name}.of", hint=f"there are: {known}"
                )
        for plan in plans.values():
            if plan.gate is not None and (late := sorted(grouped.intersection(plan.gate.names))):
                raise UsageError(
                    f"'{late[0]}' is known only once all answers are", key=f"rewards.{plan.name}.gate", hint="drop it"
                )
        self._raising = tuple(plan.name for plan in plans.values() if plan.term.spec.on_invalid == "raise")
        self._episode_async = any(plan.term.measure_async and not plan.per_turn for plan in plans.values())
        self._has_gates = any(plan.gate is not None for plan in plans.values())
        self._in_spec_order = self._ordered == tuple(plans.values())
        self.has_group_terms: bool = bool(self._groups)
        self._waited_for: dict[object, tuple[str, float]] = {}
        """Whether `score_group` measures anything."""
        self.has_turn_terms: bool = bool(self._turn_plans)
        """Whether `score_turn` measures anything."""

    async def score_turn(self, context: RewardContext, *, limit_s: float | None = None) -> TurnReadings:
        """Measures the terms with `when: turn` on the last turn of `context`; never raises for what a term does.

        Gates are not looked at here, since they ask for values of the whole episode: `score` drops a turn term
        whose gate is shut. Terms that take longer than `limit_s` seconds are invalid.
        """
        if not self._turn_plans:
            return _NO_READINGS
        readings: dict[str, Reading] = {}
        tasks: dict[str, asyncio.Task[Reading]] = {}
        for plan in self._turn_plans:
            if plan.term.measure is not None:
                readings[plan.name] = _measure(plan.term, context)
            else:
                tasks[plan.name] = asyncio.ensure_future(self._measure_async(plan.term, context))
        if tasks:
            try:
                await asyncio.wait(tasks.values(), timeout=limit_s)
                for name, task in tasks.items():
                    readings[name] = _outcome(task) if task.done() else Reading(None, _too_slow(limit_s))
            finally:
                await _cancel([task for task in tasks.values() if not task.done()])
        return readings

    def paid_at_once(self, readings: TurnReadings) -> float:
        """The share of the reward that a turn's readings settle before the episode ends.

        Only ungated terms with `over_turns: sum` are settled by their own turn; a mean waits for the number of
        turns, a gate for the other terms.
        """
        paid = 0.0
        for plan in self._turn_plans:
            if plan.gate is None and not plan.is_mean:
                reading = readings.get(plan.name)
                if reading is not None and reading.value is not None:
                    paid += plan.weight * reading.value
        return paid

    async def score(
        self, context: RewardContext, turn_values: Sequence[TurnReadings] = (), *, limit_s: float | None = None
    ) -> tuple[RewardBreakdown, bool | None]:
        """The breakdown of a finished episode and whether it was a success (None where that cannot be said).

        Quick terms run inline in the order of their gates; the others run at once, each as soon as the terms of its
        gate are known, and are cancelled and invalid after `limit_s` seconds in all. A gate over a skipped term is
        shut, a gate over an invalid one makes its own term invalid, unless the other comparisons decide it.

        Args:
            context: the whole episode.
            turn_values: what `score_turn` gave for each turn of `context.turns`, in order.
            limit_s: seconds for all terms that are not quick; None for no limit.

        Raises:
            UsageError: there are turn terms and `turn_values` does not fit the turns.
        """
        if self._turn_plans and len(turn_values) != len(context.turns):
            raise UsageError(
                f"{len(context.turns)} turns but readings for {len(turn_values)}", hint="call score_turn on each"
            )
        results: dict[str, TermResult] = {}
        if self._episode_async:
            await self._score_concurrently(context, turn_values, results, limit_s)
        else:
            values: dict[str, float | None] = {}
            for plan in self._ordered:
                result = None if plan.gate is None else self._gate(plan, plan.gate, values, results)
                if result is None:
                    result = _over_turns(plan, turn_values) if plan.per_turn else _quick(plan, context)
                results[plan.name] = result
                if self._has_gates:
                    values[plan.name] = result.value
        self._raise_for(results)
        return self._breakdown(results, len(context.turns))

    def score_group(self, trajectories: Sequence[Trajectory]) -> list[tuple[RewardBreakdown, bool | None]]:
        """The breakdowns of all answers to one task with the group terms filled in, and whether each was a success.

        A trajectory with a failure is left out of what the terms see and keeps its breakdown. Where a term raises or
        gives another number of values, it is invalid for all.

        Args:
            trajectories: all answers to one task.

        Returns:
            One pair a trajectory, in order.
        """
        found = [(trajectory.reward, trajectory.success) for trajectory in trajectories]
        places = [index for index, trajectory in enumerate(trajectories) if trajectory.failure is None]
        seen = [trajectories[index] for index in places]
        if not seen or not self._groups:
            return found
        results = [dict(trajectory.reward.terms) for trajectory in seen]
        for plan in self._groups:
            for index, reading in enumerate(_measure_group(plan.term, seen)):
                values = {name: term.value for name, term in results[index].items()}
                shut = None if plan.gate is None else self._gate(plan, plan.gate, values, results[index])
                results[index][plan.name] = shut or _as_result(plan, reading)
        for place, trajectory, terms in zip(places, seen, results, strict=True):
            self._raise_for(terms)
            found[place] = self._breakdown(terms, len(trajectory.turns))
        return found

    def waited_for(self) -> dict[str, list[float]]:
        """The measurements that somebody waits for: when each began (`time.monotonic`), by term; from any thread."""
        begun: dict[str, list[float]] = {}
        for name, since in list(self._waited_for.values()):
            begun.setdefault(name, []).append(since)
        return begun

    async def _measure_async(self, term: Term, context: RewardContext) -> Reading:
        begun = _clock()
        waiting = object()
        self._waited_for[waiting] = (term.name, time.monotonic())
        try:
            return _read(await term.measure_async(context), begun)  # type: ignore[misc]
        except Exception as error:  # an author's function may raise anything; the term is invalid and says so
            return _raised(error, begun)
        finally:
            del self._waited_for[waiting]

    def _raise_for(self, results: Mapping[str, TermResult]) -> None:
        for name in self._raising:
            if results[name].status == "invalid":
                raise InvalidReward(
                    f"rewards.{name} could not be measured and says on_invalid: raise: {results[name].error}"
                )

    def failed(self, failure: Failure, *, turns: int = 0) -> RewardBreakdown:
        """The breakdown of an episode that failed: no total, and every term invalid with the failure as its error."""
        error = f"{failure.reason}: {failure.message}"
        terms = {
            plan.name: TermResult(plan.name, "invalid", None, plan.weight, error=error)
            for plan in sorted(self._ordered, key=lambda plan: self.names.index(plan.name))
        }
        return RewardBreakdown(None, terms, (0.0,) * turns)

    async def _score_concurrently(
        self,
        context: RewardContext,
        turn_values: Sequence[TurnReadings],
        results: dict[str, TermResult],
        limit_s: float | None,
    ) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        values: dict[str, float | None] = {}
        waiting = list(self._ordered)
        running: dict[asyncio.Task[Reading], _Plan] = {}
        try:
            while waiting or running:
                held: list[_Plan] = []
                for plan in waiting:
                    if plan.gate is not None and any(name not in results for name in plan.gate.names):
                        held.append(plan)
                        continue
                    result = None if plan.gate is None else self._gate(plan, plan.gate, values, results)
                    if result is None:
                        if plan.per_turn:
                            result = _over_turns(plan, turn_values)
                        elif plan.term.measure_async is None:
                            result = _quick(plan, context)
                        else:
                            running[asyncio.ensure_future(self._measure_async(plan.term, context))] = plan
                            continue
                    results[plan.name] = result
                    values[plan.name] = result.value
                waiting = held
                if not running:
                    continue
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    slow = list(running)
                    for task in slow:
                        plan = running.pop(task)
                        results[plan.name] = _as_result(plan, Reading(None, _too_slow(limit_s)))
                        values[plan.name] = None
                    await _cancel(slow)
                for task in done:
                    plan = running.pop(task)
                    results[plan.name] = result = _as_result(plan, _outcome(task))
                    values[plan.name] = result.value
        finally:
            await _cancel(list(running))

    def _gate(
        self, plan: _Plan, gate: Expression, values: Mapping[str, float | None], results: Mapping[str, TermResult]
    ) -> TermResult | None:
        is_open = gate(values)
        if is_open:
            return None
        if is_open is None:
            for name in gate.names:
                if results[name].status == "invalid":
                    error = f"its gate '{gate.source}' reads '{name}', which is invalid"
                    return TermResult(plan.name, "invalid", None, plan.weight, error=error)
        return TermResult(plan.name, "skipped", None, plan.weight, error=f"its gate '{gate.source}' is shut")

    def _breakdown(self, results: dict[str, TermResult], turns: int) -> tuple[RewardBreakdown, bool | None]:
        total = at_end = 0.0
        turn_rewards = [0.0] * turns if self._turn_plans else []
        for plan in self._ordered:
            result = results[plan.name]
            value = result.value
            if value is None:
                if result.status == "invalid" and plan.required:
                    return RewardBreakdown(None, self._sorted(results), (0.0,) * turns), None
                continue
            share = plan.weight * value
            total += share
            if not plan.per_turn:
                at_end += share
                continue
            factor = plan.weight
            if plan.is_mean:
                factor /= sum(part is not None for part in result.turn_values)
            for index, part in enumerate(result.turn_values):
                if part is not None:
                    turn_rewards[index] += factor * part
        if not isfinite(total):
            # Finite terms can add up to more than a float holds; such a reward is as unusable as a missing one.
            return RewardBreakdown(None, self._sorted(results), (0.0,) * turns), None
        if turn_rewards:
            turn_rewards[-1] += at_end
            placed = tuple(turn_rewards)
        else:
            placed = (0.0,) * (turns - 1) + (at_end,) if turns else ()
        return RewardBreakdown(total, self._sorted(results), placed), self._is_success(results)

    def _is_success(self, results: Mapping[str, TermResult]) -> bool | None:
        if self._success is not None:
            holds = self._success({name: results[name].value for name in self._success.names})
            if holds is None and all(results[name].status != "invalid" for name in self._success.names):
                return False
            return holds
        measured = False
        for plan in self._ordered:
            if plan.weight > 0 and plan.required:
                value = results[plan.name].value
                if value is not None:
                    if value < 1:
                        return False
                    measured = True
        return measured

    def _sorted(self, results: dict[str, TermResult]) -> dict[str, TermResult]:
        if self._in_spec_order and not self._episode_async:
            return results
        return {name: results[name] for name in self.names}


def _by_dependency(plans: Mapping[str, _Plan]) -> tuple[_Plan, ...]:
    ordered: dict[str, _Plan] = {}
    left = dict(plans)
    while left:
        ready = [
            plan for plan in left.values() if plan.gate is None or all(name in ordered for name in plan.gate.names)
        ]
        if not ready:
            raise UsageError(f"the gates of these rewards wait for each other: {', '.join(left)}")
        # One at a time, so that the order stays as near to the spec's as the gates allow.
        ordered[ready[0].name] = left.pop(ready[0].name)
    return tuple(ordered.values())


def _quick(plan: _Plan, context: RewardContext) -> TermResult:
    """As `_as_result(plan, _measure(plan.term, context))`, without a Reading where all is well."""
    if plan.term.measure_group is not None:
        return TermResult(plan.name, "skipped", None, plan.weight, error=_WAITS)
    begun = _clock()
    try:
        measured = plan.term.measure(context)  # type: ignore[misc]
        value, evidence = measured.value, measured.evidence
        if type(value) is float and isfinite(value * plan.weight) and len(evidence) <= EVIDENCE_CHARS:
            return TermResult(
                plan.name, "valid", value, plan.weight, evidence, "", _clock() - begun, (), measured.details
            )
        reading = _read(measured, begun)
    except Exception as error:  # an author's function may raise anything; the term is invalid and says so
        reading = _raised(error, begun)
    return _as_result(plan, reading)


def _measure(term: Term, context: RewardContext) -> Reading:
    begun = _clock()
    try:
        return _read(term.measure(context), begun)  # type: ignore[misc]
    except Exception as error:  # an author's function may raise anything; the term is invalid and says so
        return _raised(error, begun)


def _measure_group(term: Term, trajectories: Sequence[Trajectory]) -> list[Reading]:
    begun = _clock()
    try:
        measured = list(term.measure_group(trajectories))  # type: ignore[misc]
        if len(measured) != len(trajectories):
            raise RewardError(f"gave {len(measured)} values for {len(trajectories)} answers")
        return [_read(one, begun) for one in measured]
    except Exception as error:  # an author's function may raise anything; the term is invalid and says so
        return [_raised(error, begun)] * len(trajectories)


def _outcome(task: asyncio.Task[Reading]) -> Reading:
    # A term that cancels itself must not look like the cancellation of the whole episode.
    return Reading(None, "was cancelled from inside") if task.cancelled() else task.result()


def _raised(error: Exception, begun: float) -> Reading:
    if isinstance(error, EpisodeError) and (text := str(error)):
        return Reading(None, cut_middle(text, EVIDENCE_CHARS), "", _clock() - begun)
    return Reading(None, failure_of(error), "", _clock() - begun)


def _too_slow(limit_s: float | None) -> str:
    return f"not measured within {limit_s} s"


def _read(measured: Measured, begun: float) -> Reading:
    value = measured.value
    seconds = _clock() - begun
    error = ""
    if value is not None and (type(value) is not float or not isfinite(value)):
        value, error = _checked(value)
    evidence = measured.evidence
    if len(evidence) > EVIDENCE_CHARS:
        evidence = evidence[: EVIDENCE_CHARS - 1] + "…"
    return Reading(value, error, evidence, seconds, measured.details)


def _checked(value: Any) -> tuple[float | None, str]:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None, f"gave {value!r:.80}, a {type(value).__name__}; a number was expected, such as 1.0 or 0.0"
    try:
        number = float(value)
    except OverflowError:
        return None, "gave a number too large for a float"
    return (number, "") if isfinite(number) else (None, f"gave {number}, which is not a finite number")


def _as_result(plan: _Plan, reading: Reading) -> TermResult:
    value, error = reading.value, reading.error
    if value is not None:
        if not isfinite(value * plan.weight):
            value, error = None, f"gave {value}, which times the weight {plan.weight} is not a finite number"
        else:
            return TermResult(
                plan.name, "valid", value, plan.weight, reading.evidence, "", reading.seconds, (), reading.details
            )
    return TermResult(
        plan.name,
        "invalid" if error else "skipped",
        None,
        plan.weight,
        reading.evidence,
        error or "there was nothing to measure",
        reading.seconds,
        (),
        reading.details,
    )


def _over_turns(plan: _Plan, turn_values: Sequence[TurnReadings]) -> TermResult:
    missing = Reading(None, "was not measured")
    readings = [turn.get(plan.name, missing) for turn in turn_values]
    values = tuple(reading.value for reading in readings)
    seconds = sum(reading.seconds for reading in readings)
    last = readings[-1] if readings else Reading(None)
    for index, reading in enumerate(readings):
        if reading.error:
            error = f"turn {index}: {reading.error}"
            return TermResult(plan.name, "invalid", None, plan.weight, reading.evidence, error, seconds, values)
    measured = [value for value in values if value is not None]
    if not measured:
        error = "there was nothing to measure in any turn"
        return TermResult(plan.name, "skipped", None, plan.weight, last.evidence, error, seconds, values)
    value = sum(measured)
    if plan.is_mean:
        value /= len(measured)
    result = _as_result(plan, Reading(value, "", last.evidence, seconds, last.details))
    return TermResult(
        plan.name,
        result.status,
        result.value,
        plan.weight,
        result.evidence,
        result.error,
        seconds,
        values,
        result.details,
    )


async def _cancel(tasks: Sequence[asyncio.Task[Reading]]) -> None:
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    # Bounded: a term that will not be cancelled costs its own breakdown a moment and not the episode its end.
    await asyncio.wait(tasks, timeout=_CANCEL_GRACE_S)


def clean(breakdown: RewardBreakdown) -> RewardBreakdown:
    """The breakdown without secrets: a term may quote what an endpoint or a tool answered it."""
    terms = {name: _clean_term(term) for name, term in breakdown.terms.items()}
    if all(terms[name] is term for name, term in breakdown.terms.items()):
        return breakdown
    return replace(breakdown, terms=terms)


def _clean_term(term: TermResult) -> TermResult:
    evidence, error, details = redact(term.evidence), redact(term.error), redact_value(term.details)
    if evidence is term.evidence and error is term.error and details is term.details:
        return term
    return replace(term, evidence=evidence, error=error, details=details)
