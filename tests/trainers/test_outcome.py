"""What an episode hands to veRL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv_verl.outcome import token_rewards


def test_rewards_of_turns_stand_on_the_last_sampled_token_of_their_turn() -> None:
    placed = token_rewards((0.1, 0.0, 1.0), [(0, 3), (5, 6), (8, 10)], tokens=11, total=1.1)
    assert placed == (0, 0, 0.1, 0, 0, 0.0, 0, 0, 0, 1.0, 0)


def test_what_no_turn_accounts_for_stands_on_the_last_sampled_token() -> None:
    assert token_rewards((0.5,), [(0, 2), (4, 6)], tokens=6, total=2.0) == (0, 0, 0, 0, 0, 2.0)
    assert token_rewards((0.5, 0.5), [(0, 2), (4, 4)], tokens=5, total=1.0) == (0, 1.0, 0, 0, 0)
    assert token_rewards((), [], tokens=3, total=0.0) == ()


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.floats(-2, 2)), min_size=1, max_size=6))
def test_token_rewards_sum_to_the_episodes_reward(turns: list[tuple[int, int, float]]) -> None:
    spans, at = [], 0
    for sampled, observed, _ in turns:
        spans.append((at, at + sampled))
        at += sampled + observed
    rewards = [reward for _, _, reward in turns]
    placed = token_rewards(rewards, spans, tokens=at, total=sum(rewards))
    assert len(placed) == at
    assert sum(placed) == pytest.approx(sum(rewards), abs=1e-9)
