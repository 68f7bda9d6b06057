"""Turns the terms of a spec into one reward: R = Σ wᵢ·rᵢ over the valid terms of an episode.

A term is valid (a number), invalid (it could not be measured) or skipped (its gate was shut, or there was nothing to
measure). Nothing that goes wrong here becomes a number. How a failure is attributed, and where:

- What a term raises makes that term invalid, in the words of an `EpisodeError` and as an author's exception otherwise
  (`measure.of_error`). Nothing that a term raises leaves here but the cancellation of the whole episode.
- What a term gives makes it invalid where it is no finite number, or none times its weight (`measure.of_value`).
- A term that is not measured within the limit, or cancels itself, is invalid (`measure.Running`).
- A term with `when: turn` is invalid where one of its turns is, and names it (`measure.over_turns`).
- A group's function that fails makes its term invalid for all answers of the group (`measure.measure_group`).
- A gate over an invalid term makes its own term invalid, unless its other comparisons decide it (`Scorer.score`).
- An invalid term that is required makes the reward invalid, and the episode fails (`rlenv.trajectory`); one with
  `on_invalid: raise` stops the run (`InvalidReward`).
- An episode that failed before it was scored has every term invalid, each with the episode's failure (`Scorer.failed`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from rlenv._base.bounded import quick
from rlenv.concurrency.lanes import entered
from rlenv.endpoints.account import asks
from rlenv.errors import InvalidReward, UsageError
from rlenv.language.expressions import Expression
from rlenv.rewards.base import GroupContext, RewardContext, Term, weighing
from rlenv.rewards.measure import (
    Planned,
    Running,
    TurnResults,
    ask_group,
    measure,
    measure_async,
    measure_group,
    over_turns,
    plan,
    reweighed,
)
from rlenv.trajectory import Failure, RewardBreakdown, TermResult, Trajectory

_NO_RESULTS: TurnResults = {}
_new_breakdown = quick(RewardBreakdown)
_MOST_KEPT: Final = 1_024
_LONG_S: Final = 0.002


class Scorer:
    """The terms of one environment, shared by all its episodes.

    Args:
        terms: the compiled terms in the order of the spec; the keys of every breakdown.
        success: the comparison that says what counts as success; None for the default, every required term with a
            positive weight at 1 or more.

    Raises:
        UsageError: as `rlenv.rewards.measure.plan` does.
    """

    def __init__(self, terms: Sequence[Term], *, success: str | None = None) -> None:
        self._plan = plan(terms, success=success)
        self._terms, self._success = terms, success
        self._by_row = {term.name: term.row_weight for term in terms if isinstance(term.spec.weight, str)}
        self._scorers: dict[tuple[float, ...], Scorer] = {}
        self._waited_for: dict[object, tuple[str, float]] = {}
        self.weights: Mapping[str, float] = {one.name: one.weight for one in self._plan.terms}
        """By term, in the order of the spec; 1.0 where rows give it, until `of` says whose."""
        self.names: tuple[str, ...] = tuple(self.weights)
        self.has_group_terms: bool = bool(self._plan.group)
        """Whether `score_group` or `ask_group` measures anything."""
        self.group_names: tuple[str, ...] = tuple(one.name for one in self._plan.group)
        """The terms that `score_group` and `ask_group` measure."""
        self.asked_names: tuple[str, ...] = tuple(one.name for one in self._plan.group if one.term.ask_group)
        """Those of them that `ask_group` alone measures."""
        self.has_turn_terms: bool = bool(self._plan.per_turn)
        """Whether `score_turn` measures anything."""

    def of(self, task: Mapping[str, Any]) -> Scorer:
        """This scorer with the weights that a row gives; itself where rows give none.

        Raises:
            EpisodeError: the row does not give one (`task`).
        """
        if not self._by_row:
            return self
        weights = {name: number(task) for name, number in self._by_row.items() if number is not None}
        key = tuple(weights.values())
        if (found := self._scorers.get(key)) is None:
            found = Scorer([weighing(one, weights.get(one.name)) for one in self._terms], success=self._success)
            found._waited_for = self._waited_for
            if len(self._scorers) >= _MOST_KEPT:
                self._scorers.clear()
            self._scorers[key] = found
        return found

    async def score_turn(self, context: RewardContext, *, limit_s: float | None = None) -> TurnResults:
        """Measures the terms with `when: turn` on the last turn of `context`; never raises for what a term does.

        Gates are not looked at here, since they ask for values of the whole episode: `score` drops a turn term
        whose gate is shut. Terms that take longer than `limit_s` seconds are invalid.
        """
        if not self._plan.per_turn:
            return _NO_RESULTS
        if self._by_row:
            return await self.of(context.task).score_turn(context, limit_s=limit_s)
        results: dict[str, TermResult] = {}
        slow: list[Planned] = []
        for planned in self._plan.per_turn:
            if planned.term.measure_async is None:
                results[planned.name] = await _measure_at_once(planned, context)
            else:
                slow.append(planned)
        if slow:
            async with Running(limit_s) as running:
                for planned in slow:
                    running.start(planned, self._measure_async(planned, context))
                while running.is_waiting:
                    results.update(await running.ended())
        return results

    def paid_at_once(self, results: TurnResults) -> float:
        """The share of the reward that a turn's results settle before the episode ends.

        Only ungated terms with `over_turns: sum` are settled by their own turn; a mean waits for the number of
        turns, a gate for the other terms.
        """
        paid = 0.0
        for planned in self._plan.per_turn:
            if planned.gate is None and not planned.is_mean:
                result = results[planned.name]
                if result.value is not None:
                    paid += result.weight * result.value
        return paid

    async def score(
        self, context: RewardContext, turns: Sequence[TurnResults] = (), *, limit_s: float | None = None
    ) -> tuple[RewardBreakdown, bool | None]:
        """The breakdown of a finished episode and whether it was a success (None where that cannot be said).

        Quick terms run inline in the order of their gates, and let others have a turn of the event loop after each that
        took long; the rest run at once, each as soon as the terms of its gate are known, and are invalid after
        `limit_s` seconds in all. A gate over a skipped term is shut, a gate over an invalid one makes its own term
        invalid, unless the other comparisons decide it.

        Args:
            turns: what `score_turn` gave for each turn of `context.turns`, in order.
            limit_s: seconds for all terms that are not quick; None for no limit.

        Raises:
            UsageError: there are turn terms and `turns` does not fit those of `context`.
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        if self._plan.per_turn and len(turns) != len(context.turns):
            raise UsageError(f"{len(context.turns)} turns but results for {len(turns)}", hint="call score_turn on each")
        if self._by_row:
            return await self.of(context.task).score(context, turns, limit_s=limit_s)
        results: dict[str, TermResult] = {}
        held, slow = await self._measure_next(self._plan.ordered, context, turns, results)
        if slow:
            async with Running(limit_s) as running:
                while slow or running.is_waiting:
                    for planned in slow:
                        running.start(planned, self._measure_async(planned, context))
                    results.update(await running.ended())
                    held, slow = await self._measure_next(held, context, turns, results)
        return self._breakdown(results, len(context.turns))

    def has_to_ask(self, trajectories: Sequence[Trajectory]) -> bool:
        """True if `ask_group` would ask about an answer that has no value of the term yet."""
        return any(
            trajectories[place].reward.terms[planned.name].value is None
            for planned in self._plan.group
            if planned.term.ask_group is not None
            for place in _open_places(planned, trajectories)
        )

    def score_group(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """All answers to one task, with its weights and the group terms filled in, in order.

        One that failed is left out of what the terms see, and stays as it is. Where a term raises or gives another
        number of values, it is invalid for all. Terms that have to be awaited stay as they are.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        return self.of(trajectories[0].task if trajectories else {})._fill_group_terms(trajectories, {})

    async def ask_group(
        self, trajectories: Sequence[Trajectory], context: GroupContext, *, limit_s: float | None = None
    ) -> list[Trajectory]:
        """As `score_group`, with the terms that have to be awaited, each within `limit_s` seconds.

        These see the answers alone whose gate is open: about the others nobody is asked.

        Args:
            context: with an account for each of the trajectories.
            limit_s: None for no limit.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        if self._by_row and trajectories:
            return await self.of(trajectories[0].task).ask_group(trajectories, context, limit_s=limit_s)
        results_by_term: dict[str, dict[int, TermResult]] = {}
        for planned in self._plan.group:
            if planned.term.ask_group is None:
                continue
            places = _open_places(planned, trajectories)
            if not places:
                continue
            subset = replace(context, accounts=[context.accounts[place] for place in places])
            waiting = object()
            self._waited_for[waiting] = (planned.name, time.monotonic())
            try:
                results = await ask_group(planned, [trajectories[place] for place in places], subset, limit_s=limit_s)
            finally:
                del self._waited_for[waiting]
            results_by_term[planned.name] = dict(zip(places, results, strict=True))
        return self._fill_group_terms(trajectories, results_by_term)

    def _fill_group_terms(
        self, trajectories: Sequence[Trajectory], asked: Mapping[str, Mapping[int, TermResult]]
    ) -> list[Trajectory]:
        found = list(trajectories)
        places = [index for index, trajectory in enumerate(trajectories) if trajectory.failure is None]
        answers = [trajectories[index] for index in places]
        if not answers:
            return found
        results = [dict(trajectory.reward.terms) for trajectory in answers]
        for planned in self._plan.group:
            if planned.term.measure_group is None:
                own = asked.get(planned.name, {})
                fresh = [own.get(place, terms[planned.name]) for place, terms in zip(places, results, strict=True)]
            else:
                fresh = measure_group(planned, answers)
            for one, terms, result in zip(answers, results, fresh, strict=True):
                terms[planned.name] = _shut_result(planned, terms, one.task) or result
        for place, trajectory, terms in zip(places, answers, results, strict=True):
            self._raise_for(terms)
            found[place] = trajectory.rescored(*self._breakdown(terms, len(trajectory.turns)))
        return found

    def weighed(self, results: Mapping[str, TermResult], *, turns: int) -> tuple[RewardBreakdown, bool | None]:
        """The breakdown, and success, of terms that were measured before, with the weights that they have here.

        `results` hold every term, as this scorer's own gates left them, and are of an episode of so many turns.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        found = {one.name: reweighed(one, results[one.name]) for one in self._plan.terms}
        self._raise_for(found)
        return self._breakdown(found, turns)

    def failed(self, failure: Failure, *, turns: int = 0) -> RewardBreakdown:
        """The breakdown of an episode that failed: no total, and every term invalid with the failure as its error."""
        error = f"{failure.reason}: {failure.message}"
        terms = {one.name: TermResult.invalid(one.name, error=error, weight=one.weight) for one in self._plan.terms}
        return RewardBreakdown.invalid(terms, turns=turns)

    def waited_for(self) -> dict[str, list[float]]:
        """The measurements that somebody waits for: when each began (`time.monotonic`), by term; from any thread."""
        begun: dict[str, list[float]] = {}
        for name, since in list(self._waited_for.values()):
            begun.setdefault(name, []).append(since)
        return begun

    async def _measure_async(self, planned: Planned, context: RewardContext) -> TermResult:
        waiting = object()
        self._waited_for[waiting] = (planned.name, time.monotonic())
        place = f"turn {len(context.turns) - 1} term" if planned.is_per_turn else "term"
        try:
            role = f"{'judge' if planned.term.spec.kind == 'judge' else 'term'} {planned.name}"
            with entered(f"{place} {planned.name}"), asks(role):
                return await measure_async(planned, context)
        finally:
            del self._waited_for[waiting]

    async def _measure_next(
        self,
        waiting: Sequence[Planned],
        context: RewardContext,
        turns: Sequence[TurnResults],
        results: dict[str, TermResult],
    ) -> tuple[list[Planned], list[Planned]]:
        """Adds what can be said now to `results`; gives the terms whose gates are held, and those to be awaited."""
        held: list[Planned] = []
        slow: list[Planned] = []
        for planned in waiting:
            if planned.gate is not None:
                if any(name not in results for name in planned.gate.names):
                    held.append(planned)
                    continue
                if (shut := _shut_result(planned, results, context.task)) is not None:
                    results[planned.name] = shut
                    continue
            if planned.is_per_turn:
                results[planned.name] = over_turns(planned, turns)
            elif planned.term.measure_async is None:
                results[planned.name] = await _measure_at_once(planned, context)
            else:
                slow.append(planned)
        return held, slow

    def _raise_for(self, results: Mapping[str, TermResult]) -> None:
        for name in self._plan.raising:
            if results[name].status == "invalid":
                raise InvalidReward(
                    f"rewards.{name} could not be measured and says on_invalid: raise: {results[name].error}"
                )

    def _breakdown(self, results: Mapping[str, TermResult], turns: int) -> tuple[RewardBreakdown, bool | None]:
        if self._plan.raising:
            self._raise_for(results)
        terms = {name: results[name] for name in self.names}
        total = at_end = 0.0
        by_turn = [0.0] * turns
        for planned in self._plan.ordered:
            result = terms[planned.name]
            if result.value is None:
                if result.status == "invalid" and planned.is_required:
                    return RewardBreakdown.invalid(terms, turns=turns), None
                continue
            share = planned.weight * result.value
            total += share
            if planned.is_per_turn:
                _place_shares(planned, result, by_turn)
            else:
                at_end += share
        if not isfinite(total):
            # Finite terms can add up to more than a float holds; such a reward is as unusable as a missing one.
            return RewardBreakdown.invalid(terms, turns=turns), None
        if by_turn:
            by_turn[-1] += at_end
        return _new_breakdown(total, terms, tuple(by_turn)), self._is_success(terms)

    def _is_success(self, results: Mapping[str, TermResult]) -> bool | None:
        success = self._plan.success
        if success is not None:
            holds = _evaluate(success, results)
            if holds is None and all(results[name].status != "invalid" for name in success.names):
                return False
            return holds
        has_measured = False
        for planned in self._plan.terms:
            if planned.weight > 0 and planned.is_required and (value := results[planned.name].value) is not None:
                if value < 1:
                    return False
                has_measured = True
        return has_measured


async def _measure_at_once(planned: Planned, context: RewardContext) -> TermResult:
    result = measure(planned, context)
    if result.seconds > _LONG_S:  # the others of this episode may take as long
        await asyncio.sleep(0)
    return result


def _evaluate(
    expression: Expression, results: Mapping[str, TermResult], task: Mapping[str, Any] | None = None
) -> bool | None:
    return expression({name: results[name].value for name in expression.names}, task)


def _open_places(planned: Planned, trajectories: Sequence[Trajectory]) -> list[int]:
    """The places of the answers that a group term measures: they have not failed, and its gate is open."""
    return [
        place
        for place, one in enumerate(trajectories)
        if one.failure is None and _shut_result(planned, one.reward.terms, one.task) is None
    ]


def _shut_result(planned: Planned, results: Mapping[str, TermResult], task: Mapping[str, Any]) -> TermResult | None:
    """The result of a term that its gate keeps from counting; None where the gate is open, or there is none."""
    gate = planned.gate
    if gate is None or (is_open := _evaluate(gate, results, task)):
        return None
    bad = next((name for name in gate.names if results[name].status == "invalid"), None)
    if is_open is None and bad is not None:
        error = f"its gate '{gate.source}' reads '{bad}', which is invalid"
        return TermResult.invalid(planned.name, error=error, weight=planned.weight)
    return TermResult.skipped(planned.name, why=f"its gate '{gate.source}' is shut", weight=planned.weight)


def _place_shares(planned: Planned, result: TermResult, by_turn: list[float]) -> None:
    """Adds a turn term's shares to the rewards of its turns."""
    factor = planned.weight
    if planned.is_mean:
        factor /= sum(part is not None for part in result.turn_values)
    for index, part in enumerate(result.turn_values):
        if part is not None:
            by_turn[index] += factor * part
