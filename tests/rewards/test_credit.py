"""Returns and turn-level advantages against numbers worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.rewards.credit import discounted_returns, gigpo, group_relative, mt_grpo, process_grpo

ROOT2 = math.sqrt(2)


def near(found: list[list[float]], expected: list[list[float]]) -> bool:
    return [len(row) for row in found] == [len(row) for row in expected] and all(
        a == pytest.approx(b, abs=1e-5)
        for row, other in zip(found, expected, strict=True)
        for a, b in zip(row, other)  # noqa: B905
    )


def test_a_return_discounts_what_comes_later() -> None:
    # 1 + 0.5 · (2 + 0.5 · 4), 2 + 0.5 · 4, 4
    assert discounted_returns([1.0, 2.0, 4.0], discount=0.5) == [3.0, 4.0, 4.0]
    assert discounted_returns([1.0, 2.0, 4.0]) == [7.0, 6.0, 4.0]
    assert discounted_returns([]) == []


def test_a_group_is_compared_with_itself_and_invalid_rewards_are_left_out() -> None:
    # a: mean 0.5, sample deviation 1/√2, so ±0.5·√2; the failed sample moves nothing; b is alone.
    found = group_relative([1.0, 0.0, None, 5.0], ["a", "a", "a", "b"])
    assert found == pytest.approx([ROOT2 / 2, -ROOT2 / 2, 0.0, 0.0], abs=1e-5)
    assert group_relative([1.0, 0.0], ["a", "a"], by_std=False) == [0.5, -0.5]


def test_mt_grpo_gives_the_first_turn_both_advantages_and_the_second_the_outcomes() -> None:
    # Two turns as in the paper. Turn rewards 1, 0 give ±√2/2; outcomes 0, 1 give ∓√2/2.
    found = mt_grpo([[1.0, 0.0], [0.0, 1.0]], ["q", "q"], turn_weight=0.5)
    assert near(found, [[-ROOT2 / 2 + 0.5 * ROOT2 / 2, -ROOT2 / 2], [ROOT2 / 2 - 0.5 * ROOT2 / 2, ROOT2 / 2]])


def test_mt_grpo_compares_a_turn_only_with_turns_that_are_not_the_last() -> None:
    # The third trajectory answers at once: it has an outcome and no earlier turn. Outcomes 1, 0, 1: mean 2/3,
    # deviation √(1/3); turn rewards 1, 0 of the other two.
    outcome = [(1 - 2 / 3) * math.sqrt(3), (0 - 2 / 3) * math.sqrt(3), (1 - 2 / 3) * math.sqrt(3)]
    found = mt_grpo([[1.0, 1.0], [0.0, 0.0], [1.0]], ["q"] * 3)
    assert near(found, [[outcome[0] + ROOT2 / 2, outcome[0]], [outcome[1] - ROOT2 / 2, outcome[1]], [outcome[2]]])


def test_process_grpo_sums_the_normalised_rewards_that_follow() -> None:
    # Rewards 1, 1, 0, 0 over two trajectories: mean 0.5, deviation √(1/3), so r̃ = ±√3/2.
    half = math.sqrt(3) / 2
    found = process_grpo([[1.0, 1.0], [0.0, 0.0]], ["q", "q"])
    assert near(found, [[2 * half, half], [-2 * half, -half]])


def test_gigpo_adds_the_advantage_within_the_same_state() -> None:
    # Totals 1, 0: A^E = ±√2/2. Both begin in s0 with returns 0.5·1 and 0: A^S = ±√2/2. The second turns began in
    # different states, so nothing is compared there.
    found = gigpo([[0.0, 1.0], [0.0, 0.0]], ["q", "q"], [["s0", "x"], ["s0", "y"]], discount=0.5, step_weight=2.0)
    assert near(found, [[3 * ROOT2 / 2, ROOT2 / 2], [-3 * ROOT2 / 2, -ROOT2 / 2]])


def test_gigpo_meets_the_same_state_at_different_turns_but_not_in_another_task() -> None:
    found = gigpo([[0.0, 1.0], [0.0]], ["q", "q"], [["s0", "s1"], ["s1"]], discount=1.0)
    # A^E: totals 1, 0. A^S of s1: returns 1 (second turn of the first) and 0 (first turn of the second).
    assert near(found, [[ROOT2 / 2, ROOT2], [-ROOT2]])
    assert near(gigpo([[1.0], [0.0]], ["q", "p"], [["s"], ["s"]]), [[0.0], [0.0]])


def test_gigpo_discounts_and_weighs_steps_as_the_paper_does_unless_it_is_told_otherwise() -> None:
    played = [[0.0, 1.0], [1.0], [0.0]], ["q"] * 3, [["s", "x"], ["s"], ["s"]]
    assert gigpo(*played) == gigpo(*played, discount=0.95, step_weight=1.0)
    assert gigpo(*played) != gigpo(*played, discount=1.0)


def test_an_invalid_trajectory_gets_nothing_and_changes_nothing() -> None:
    with_failure = mt_grpo([[1.0, 0.0], None, [0.0, 1.0]], ["q"] * 3)
    assert with_failure[1] == []
    assert [with_failure[0], with_failure[2]] == mt_grpo([[1.0, 0.0], [0.0, 1.0]], ["q"] * 2)
    assert gigpo([None], ["q"], [["s"]]) == [[]]
    assert process_grpo([None], ["q"]) == [[]]


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=5))
def test_advantages_keep_the_shape_and_the_outcome_part_sums_to_nothing(rewards: list[list[float]]) -> None:
    groups = ["q"] * len(rewards)
    for found in (mt_grpo(rewards, groups), process_grpo(rewards, groups)):
        assert [len(row) for row in found] == [len(row) for row in rewards]
        assert all(math.isfinite(value) for row in found for value in row)
    assert math.fsum(row[-1] for row in mt_grpo(rewards, groups)) == pytest.approx(0.0, abs=1e-6)
