"""What an episode hands to veRL."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv_train.fate import Row, place_rewards


def row(spans: Sequence[tuple[int, int]], *, tokens: int) -> Row:
    mask = [0] * tokens
    for start, end in spans:
        mask[start:end] = [1] * (end - start)
    return Row((7,), tuple(range(tokens)), mask, (0.0,) * tokens, list(spans))


def placed(
    rewards: Sequence[float], spans: Sequence[tuple[int, int]], *, tokens: int, total: float
) -> tuple[float, ...]:
    (found,) = place_rewards([row(spans, tokens=tokens)], rewards, total=total)
    assert found.carried == 0.0
    return found.token_rewards


def test_rewards_of_turns_stand_on_the_last_sampled_token_of_their_turn() -> None:
    assert placed((0.1, 0.0, 1.0), [(0, 3), (5, 6), (8, 10)], tokens=11, total=1.1) == (
        0, 0, 0.1, 0, 0, 0.0, 0, 0, 0, 1.0, 0,
    )  # fmt: skip


def test_what_no_turn_accounts_for_stands_on_the_last_sampled_token() -> None:
    assert placed((0.5,), [(0, 2), (4, 6)], tokens=6, total=2.0) == (0, 0, 0, 0, 0, 2.0)
    assert placed((0.5, 0.5), [(0, 2), (4, 4)], tokens=5, total=1.0) == (0, 1.0, 0, 0, 0)
    assert placed((), [], tokens=3, total=0.0) == ()


def test_an_outcomes_reward_is_the_sum_of_every_row() -> None:
    rows = [row([(0, 2), (3, 4)], tokens=5), row([(0, 1)], tokens=1), row([(0, 3)], tokens=3)]
    found = place_rewards(rows, (0.0, 0.0, 0.0, 0.5), total=0.5)
    assert [one.token_rewards for one in found] == [(0, 0, 0, 0.5, 0), (0.5,), (0, 0, 0.5)]
    assert [one.carried for one in found] == [0.5, 0.5, 0.0]


def test_a_rows_sum_is_what_is_earned_from_its_start_on() -> None:
    rows = [row([(0, 1), (2, 3)], tokens=3), row([(0, 2)], tokens=2)]
    found = place_rewards(rows, (0.25, 0.5, 1.0), total=1.75)
    assert [one.token_rewards for one in found] == [(0.25, 0.0, 0.5 + 1.0), (0.0, 1.0)]
    assert [one.carried for one in found] == [1.0, 0.0]


TURNS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.floats(-2, 2), st.booleans()), min_size=1, max_size=6
)


@given(TURNS)
def test_however_an_episode_falls_into_rows_its_first_row_has_its_reward(
    turns: list[tuple[int, int, float, bool]],
) -> None:
    rows: list[Row] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for sampled, observed, _, is_last_of_row in turns:
        spans.append((at, at + sampled))
        at += sampled + observed
        if is_last_of_row:
            rows.append(row(spans, tokens=at))
            spans, at = [], 0
    if spans:
        rows.append(row(spans, tokens=at))
    rewards = [reward for _, _, reward, _ in turns]
    found = place_rewards(rows, rewards, total=sum(rewards))
    sampled_rows = [one for one in found if any(one.mask)]
    if not sampled_rows:
        return
    assert sum(sampled_rows[0].token_rewards) == pytest.approx(sum(rewards), abs=1e-9)
    own = [sum(one.token_rewards) - one.carried for one in sampled_rows]
    assert sum(own) == pytest.approx(sum(rewards), abs=1e-9)
    for place, one in enumerate(sampled_rows):
        assert len(one.token_rewards) == len(one.response_ids)
        assert one.carried == pytest.approx(sum(own[place + 1 :]), abs=1e-9)
        # A reward elsewhere would be in no return.
        assert not any(value for value, sampled in zip(one.token_rewards, one.mask, strict=True) if not sampled)
