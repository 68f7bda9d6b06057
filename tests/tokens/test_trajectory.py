"""The laws of a trajectory: it only grows, its arrays align, and what was sampled stays as it was."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder, TokenTrajectory

ENCODER = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
SIZE = small_tokenizer().get_vocab_size()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
RESULTS = st.lists(TEXT, min_size=1, max_size=3)
TURN = st.tuples(st.lists(st.integers(0, SIZE - 1), max_size=20), st.booleans(), RESULTS)


def start(**limits: Any) -> TokenTrajectory:
    return ENCODER.start([Message("user", "Q")], **limits)


def tools(*contents: str) -> Observation:
    return Observation(tuple(Message("tool", content) for content in contents))


def state(trajectory: TokenTrajectory) -> tuple[Any, ...]:
    return (
        trajectory.context_ids,
        trajectory.mask,
        [repr(value) for value in trajectory.logprobs],
        list(trajectory.turn_spans),
        list(trajectory.closed_turns),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(TURN, max_size=4), st.none() | st.integers(0, 120), st.none() | st.integers(1, 20))
def test_whatever_is_sampled_stays_and_everything_aligns(
    turns: list[tuple[list[int], bool, list[str]]], room: int | None, limit: int | None
) -> None:
    trajectory = start(max_response_tokens=room, max_observation_tokens=limit)
    sampled: list[list[int]] = []
    for ids, is_known, contents in turns:
        before = state(trajectory)
        trajectory.add_sampled(ids, [-0.25] * len(ids) if is_known else None)
        sampled.append(ids)
        middle = state(trajectory)
        fits = trajectory.add_observation(tools(*contents))
        after = state(trajectory)
        assert middle[0][: len(before[0])] == before[0]
        assert after[0][: len(middle[0])] == middle[0]
        assert fits or after == middle
        assert fits == (not trajectory.reason)
        assert len(trajectory.response_ids) == len(trajectory.mask) == len(trajectory.logprobs) == len(trajectory)
        if fits and room is not None:
            assert len(trajectory) <= room
    response = trajectory.response_ids
    assert [response[start:end] for start, end in trajectory.turn_spans] == sampled
    inside = {place for start, end in trajectory.turn_spans for place in range(start, end)}
    assert trajectory.mask == [int(place in inside) for place in range(len(response))]
    assert trajectory.has_logprobs == all(is_known for _, is_known, _ in turns)
    assert trajectory.prompt_ids == start().prompt_ids


@settings(max_examples=30, deadline=None)
@given(st.lists(TURN, min_size=1, max_size=4))
def test_every_prefix_of_a_trajectory_is_the_trajectory_of_the_prefix(
    turns: list[tuple[list[int], bool, list[str]]],
) -> None:
    whole = start()
    stages = []
    for ids, _, contents in turns:
        whole.add_sampled(ids)
        whole.add_observation(tools(*contents))
        stages.append(state(whole))
    for count in range(1, len(turns) + 1):
        part = start()
        for ids, _, contents in turns[:count]:
            part.add_sampled(ids)
            part.add_observation(tools(*contents))
        assert state(part) == stages[count - 1]


def test_the_end_token_is_sampled_and_not_in_the_text() -> None:
    trajectory = start()
    ids = ENCODER.encode_text("the answer<|im_end|>")
    assert trajectory.add_sampled(ids) == "the answer"
    assert trajectory.mask == [1] * len(ids)
    assert trajectory.response_ids == ids


def test_ids_behind_a_stop_mark_stay_and_show() -> None:
    trajectory = start()
    ids = ENCODER.encode_text("one<|im_end|>two")
    assert trajectory.add_sampled(ids) == "one<|im_end|>two"
    assert trajectory.add_observation(tools("R"))
    assert trajectory.response_ids[: len(ids)] == ids
    assert trajectory.closed_turns == [0]


def test_a_turn_that_stopped_by_length_is_closed_with_mask_zero() -> None:
    cut, whole = start(), start()
    ids = ENCODER.encode_text("the lazy dog")
    cut.add_sampled(ids)
    whole.add_sampled([*ids, ENCODER.stop_id])
    assert cut.add_observation(tools("R"))
    assert whole.add_observation(tools("R"))
    assert cut.context_ids == whole.context_ids
    assert (cut.closed_turns, whole.closed_turns) == ([0], [])
    assert sum(cut.mask) == len(ids)


def test_an_empty_turn_is_closed_even_after_a_stop_mark() -> None:
    trajectory = start()
    trajectory.add_sampled([])
    assert trajectory.add_observation(tools("R"))
    assert trajectory.closed_turns == [0]


def test_unknown_log_probabilities_are_no_numbers() -> None:
    trajectory = start()
    trajectory.add_sampled([5, 6])
    trajectory.add_observation(tools("R"))
    assert all(math.isnan(value) for value in trajectory.logprobs[:2])
    assert set(trajectory.logprobs[2:]) == {0.0}
    assert not trajectory.has_logprobs


def test_an_observation_that_does_not_fit_is_left_out_whole() -> None:
    trajectory = start(max_response_tokens=12)
    trajectory.add_sampled([5, ENCODER.stop_id])
    before = state(trajectory)
    assert not trajectory.add_observation(tools("a long result " * 10))
    assert "10 of 12 response tokens" in trajectory.reason
    assert state(trajectory) == before
    assert trajectory.remaining == 10


def test_content_is_cut_and_its_structure_stands() -> None:
    trajectory = start(max_observation_tokens=60)
    trajectory.add_sampled([ENCODER.stop_id])
    assert trajectory.add_observation(tools("世界 " * 500, "short"))
    text = ENCODER.decode(trajectory.response_ids[1:])
    assert "characters left out" in text
    assert "\ufffd" not in text
    assert text.count("</tool_response>") == 2
    assert text.endswith("\n<tool_response>\nshort\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_one_observation_can_have_a_limit_of_its_own() -> None:
    trajectory = start()
    trajectory.add_sampled([ENCODER.stop_id])
    assert trajectory.add_observation(tools("the quick brown fox " * 50), max_tokens=25)
    assert len(trajectory) < 60


def test_a_prompt_that_is_too_long_is_a_failure_with_its_reason() -> None:
    with pytest.raises(EpisodeError, match="expected at most 3") as caught:
        start(max_prompt_tokens=3)
    assert caught.value.reason == "prompt_tokens"


def test_misuse_says_what_was_expected() -> None:
    trajectory = start()
    with pytest.raises(UsageError, match="call add_sampled first"):
        trajectory.add_observation(tools("R"))
    with pytest.raises(UsageError, match="1 log-probabilities for 2 ids"):
        trajectory.add_sampled([5, 6], [0.0])
    with pytest.raises(UsageError, match="negative"):
        trajectory.add_sampled([-1])
    for number in (SIZE, 10**6, 2**40):
        with pytest.raises(UsageError, match=f"{number} is no id of the tokenizer"):
            trajectory.add_sampled([5, number])
    assert len(trajectory) == 0
    trajectory.add_sampled([5])
    with pytest.raises(UsageError, match="no messages"):
        trajectory.add_observation(Observation())


def test_long_contents_are_encoded_beside_the_event_loop() -> None:
    content = "the quick brown fox\n" * 2000

    async def observe() -> TokenTrajectory:
        trajectory = start()
        trajectory.add_sampled([ENCODER.stop_id])
        assert await trajectory.add_observation_async(tools(content))
        return trajectory

    expected = start()
    expected.add_sampled([ENCODER.stop_id])
    expected.add_observation(tools(content))
    assert asyncio.run(observe()).context_ids == expected.context_ids


def test_ids_of_padded_embeddings_are_a_policys_to_sample() -> None:
    padded = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, vocab_size=SIZE + 10)
    trajectory = padded.start([Message("user", "Q")])
    assert trajectory.add_sampled([SIZE + 9]) == ""
    with pytest.raises(UsageError, match="is no id"):
        trajectory.add_sampled([SIZE + 10])
    assert trajectory.response_ids == [SIZE + 9]


PROMPT = len(start().prompt_ids)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_prompt_tokens": PROMPT}, ""),
        ({"max_prompt_tokens": PROMPT - 1}, "prompt_tokens"),
        ({"max_total_tokens": PROMPT + 1}, ""),
        ({"max_total_tokens": PROMPT}, "total_tokens"),
        ({"max_prompt_tokens": PROMPT - 1, "max_total_tokens": PROMPT}, "prompt_tokens"),
    ],
)
def test_a_prompt_may_use_up_its_own_limit_and_leaves_a_token_of_the_whole(limits: dict[str, int], reason: str) -> None:
    if not reason:
        assert start(**limits).prompt_ids == start().prompt_ids
        return
    with pytest.raises(EpisodeError) as caught:
        start(**limits)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("limits", "remaining", "named"),
    [
        ({}, None, ""),
        ({"max_response_tokens": 5}, 5, "response"),
        ({"max_total_tokens": PROMPT + 5}, 5, "total"),
        ({"max_response_tokens": 5, "max_total_tokens": PROMPT + 5}, 5, "response"),
        ({"max_response_tokens": 5, "max_total_tokens": PROMPT + 4}, 4, "total"),
        ({"max_response_tokens": 3, "max_total_tokens": PROMPT + 5}, 3, "response"),
        ({"max_response_tokens": 0}, 0, "response"),
    ],
)
def test_the_smaller_room_holds_and_is_named(limits: dict[str, int], remaining: int | None, named: str) -> None:
    trajectory = start(**limits)
    assert trajectory.remaining == remaining
    trajectory.add_sampled([5])
    assert trajectory.remaining == (None if remaining is None else max(remaining - 1, 0))
    fits = trajectory.add_observation(tools("a long result " * 20))
    assert fits is (remaining is None)
    assert f"{named} tokens are left" in trajectory.reason or fits


@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_an_observation_may_use_up_what_is_left(spare: int) -> None:
    free = start()
    free.add_sampled([ENCODER.stop_id])
    assert free.add_observation(tools("R"))
    trajectory = start(max_response_tokens=len(free) + spare)
    trajectory.add_sampled([ENCODER.stop_id])
    assert trajectory.add_observation(tools("R")) is (spare >= 0)
    assert trajectory.remaining == (spare if spare >= 0 else len(free) - 2)
    assert (trajectory.reason == "") is (spare >= 0)


def test_what_is_known_of_log_probabilities_is_of_all_turns() -> None:
    trajectory = start()
    assert trajectory.has_logprobs
    for ids, logprobs, known in (([5], [-0.5], True), ([6], None, False), ([7], [-0.25], False)):
        trajectory.add_sampled(ids, logprobs)
        assert trajectory.has_logprobs is known
    assert [repr(one) for one in trajectory.logprobs] == ["-0.5", "nan", "-0.25"]
    assert trajectory.turn_spans == [(0, 1), (1, 2), (2, 3)]


def test_a_turn_that_nobody_sampled_ends_as_the_template_ends_it() -> None:
    trajectory = start()
    with pytest.raises(UsageError):
        trajectory.end_turn()
    trajectory.add_sampled([5], [-0.5])
    assert trajectory.end_turn() == ENCODER.stop_id
    assert (trajectory.response_ids, trajectory.mask) == ([5, ENCODER.stop_id], [1, 1])
    assert (trajectory.turn_spans, trajectory.has_logprobs) == ([(0, 2)], False)
    assert trajectory.end_turn() is None
    assert len(trajectory) == 2
