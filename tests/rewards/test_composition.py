"""Ranges, clipping, on_invalid, and terms that compare all answers to one task."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

import rlenv
from rlenv.concurrency.scope import Scope
from rlenv.errors import InvalidReward, RewardError, SpecError, UsageError
from rlenv.language.spec import RewardSpec
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term
from rlenv.rewards.group import relative, score_groups
from rlenv.rewards.measure import RETRIES, shaped
from rlenv.rewards.scorer import Scorer
from rlenv.testing.rewards import reward_context
from rlenv.trajectory import RewardBreakdown, Trajectory


def term(name: str, values: Sequence[Any], *, is_async: bool = False, **keys: Any) -> Term:
    """A term that gives or raises one of `values` after the other."""
    left = iter(values)

    def measure(context: RewardContext) -> Measured:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return Measured(found)

    async def later(context: RewardContext) -> Measured:
        return measure(context)

    spec = RewardSpec(kind="rule", **keys)
    return Term(name=name, spec=spec, measure_async=later) if is_async else Term(name=name, spec=spec, measure=measure)


def score(*terms: Term) -> RewardBreakdown:
    return asyncio.run(Scorer(terms).score(reward_context()))[0]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("value", "keys", "expected"),
    [
        (4.0, {"range": (1.0, 5.0)}, 0.75),
        (7.0, {"range": (1.0, 5.0)}, 1.5),
        (7.0, {"range": (1.0, 5.0), "clip": (0.0, 1.0)}, 1.0),
        (-3.0, {"clip": (-1.0, 1.0)}, -1.0),
    ],
)
def test_a_range_is_mapped_and_then_clipped(is_async: bool, value: float, keys: Any, expected: float) -> None:
    found = score(term("a", [value], is_async=is_async, **keys)).terms["a"]
    assert found.value == expected
    assert found.details["unshaped"] == value


_NUMBERS = [(7, 7.0), (10**400, 1e300), (Fraction(7), 7.0), (numpy.float32(7), 7.0), (numpy.int64(7), 7.0)]


@pytest.mark.parametrize(("value", "same"), _NUMBERS)
@pytest.mark.parametrize(
    "keys", [{}, {"clip": (0.0, 1.0)}, {"range": (0.0, 7.0)}, {"range": (0.0, 7.0), "clip": (0, 1)}]
)
def test_every_number_that_scoring_takes_is_shaped_as_a_float_is(value: Any, same: float, keys: Any) -> None:
    found, expected = (score(term("a", [one], **keys)).total for one in (value, same))
    assert found == expected is not None


def test_clipping_makes_no_number_of_what_is_none() -> None:
    for bad in (float("nan"), float("inf"), True, "1"):
        found = score(term("a", [bad], clip=(0.0, 1.0)))
        assert found.total is None
        assert found.terms["a"].status == "invalid"


def test_a_range_upside_down_is_the_authors_mistake() -> None:
    with pytest.raises(UsageError, match="clip"):
        Scorer([term("a", [], clip=(1.0, 0.0))])


@pytest.mark.parametrize("is_async", [False, True])
def test_retry_measures_again_and_then_masks(is_async: bool) -> None:
    down = RewardError("down")
    assert score(term("a", [down, float("nan"), 0.5], is_async=is_async, on_invalid="retry")).total == 0.5
    assert score(term("a", [down, down, down, 0.5], is_async=is_async, on_invalid="retry")).total is None
    assert score(term("a", [down, 0.5], is_async=is_async)).total is None


@pytest.mark.parametrize("is_async", [False, True])
def test_a_term_of_a_group_is_measured_as_often_as_any_other(is_async: bool) -> None:
    tries: list[int] = []

    def measure(trajectories: Sequence[Trajectory]) -> list[Measured]:
        tries.append(len(tries))
        raise RewardError("down")

    async def ask(trajectories: Sequence[Trajectory], context: GroupContext) -> list[Measured | RewardError]:
        return [*measure(trajectories)]

    spec = RewardSpec(kind="group", on_invalid="retry")
    made = Term(name="a", spec=spec, ask_group=ask) if is_async else Term(name="a", spec=spec, measure_group=measure)
    again = shaped(made)

    async def once() -> None:
        if again.ask_group is not None:
            await again.ask_group([], GroupContext(vars={}, shared=Scope, accounts=[]))
        elif again.measure_group is not None:
            again.measure_group([])

    with pytest.raises(RewardError):
        asyncio.run(once())
    assert len(tries) == 1 + RETRIES


def test_raise_stops_the_run_and_names_the_term() -> None:
    with pytest.raises(InvalidReward, match=r"rewards\.a.*down"):
        score(term("a", [RewardError("down")], on_invalid="raise"))
    assert score(term("a", [1.0], on_invalid="raise")).total == 1.0


def test_values_are_compared_within_their_group() -> None:
    assert relative([1.0, 3.0], by="centred") == [-1.0, 1.0]
    assert relative([1.0, 3.0, 3.0], by="best") == [0.0, 1.0, 1.0]
    assert relative([1.0, 3.0, 3.0], by="rank") == [0.0, 0.75, 0.75]
    assert relative([2.0, 2.0], by="deviation") == [0.0, 0.0]
    assert relative([1.0, 3.0], by="deviation") == pytest.approx([-(2**-0.5), 2**-0.5])


SPEC = """
rlenv: 1
name: groups
tasks: {train: {rows: [{q: a, answer: "yes"}, {q: b, answer: "yes"}]}}
prompt: {user: "{{ task.q }}"}
rewards:
  correct: {kind: rule, rule: exact_match}
  words: {kind: rule, function: "words.py:words", weight: 0}
  short: {kind: group, of: words, by: rank, weight: -0.5, gate: correct >= 1}
  own: {kind: group, function: "words.py:first", weight: 0.25}
"""
FUNCTIONS = """
def words(context):
    return float(len(context.final_text.split()))


def first(group):
    return [float(index == 0) for index, _ in enumerate(group)]


def wrong(group):
    return [1.0]
"""


def play(folder: Path, actions: Sequence[tuple[int, str]], text: str = SPEC) -> tuple[Scorer, list[Trajectory]]:
    (folder / "words.py").write_text(FUNCTIONS)
    (folder / "env.yaml").write_text(text)
    environment = rlenv.load(folder / "env.yaml")

    async def main() -> list[Trajectory]:
        found = []
        for task, action in actions:
            async with environment.start(task=task) as episode:
                await episode.step(action)
                found.append(episode.trajectory)
        return found

    return environment.parts.scorer, asyncio.run(main())


def test_group_terms_wait_for_all_answers_and_then_count(tmp_path: Path) -> None:
    long, short = "well so <answer>yes</answer>", "<answer>yes</answer>"
    scorer, alone = play(tmp_path, [(0, long), (0, short), (0, "<answer>no</answer>"), (1, long)])
    assert [found.reward.terms["short"].status for found in alone] == ["skipped"] * 4
    assert alone[0].reward.total == 1.0
    grouped = score_groups(scorer, alone)
    # Words 3, 1, 1: ranks 1, 0.25, 0.25; the wrong answer's gate is shut; task b was answered once.
    assert [found.reward.terms["short"].value for found in grouped] == [1.0, 0.25, None, None]
    assert [found.reward.total for found in grouped] == [1.0 - 0.5 + 0.25, 1.0 - 0.125, 0.0, 1.25]
    assert [sum(found.reward.turn_rewards) for found in grouped] == [found.reward.total for found in grouped]
    assert list(grouped[0].reward.terms) == ["correct", "words", "short", "own"]


def test_a_group_term_that_goes_wrong_is_invalid_for_all(tmp_path: Path) -> None:
    broken = SPEC.replace("words.py:first", "words.py:wrong")
    scorer, alone = play(tmp_path, [(0, "<answer>yes</answer>"), (0, "<answer>yes</answer>")], broken)
    grouped = score_groups(scorer, alone)
    assert [found.reward.total for found in grouped] == [None, None]
    assert grouped[0].failure is not None
    assert "gave 1 values for 2 answers" in grouped[0].failure.message
    assert grouped[0].truncated
    assert grouped[0].success is None


def test_a_gate_cannot_ask_for_what_only_the_group_knows(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="known only once all answers are"):
        play(tmp_path, [], SPEC.replace("weight: 0}", "weight: 0, gate: short >= 1}"))


def test_a_group_term_over_no_such_term_is_the_authors_mistake(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no term 'wrods' to compare; there are: correct, words"):
        play(tmp_path, [], SPEC.replace("of: words", "of: wrods"))
