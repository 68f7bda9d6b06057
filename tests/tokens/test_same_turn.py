"""Observations that go on in the assistant's own turn: no marks, no turn, and contents that stay text."""

from __future__ import annotations

import pytest

from rlenv import dialects
from rlenv.messages import Message, Observation
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from tests.tokens.real import qwen, template

SEARCH_R1 = dialects.get("search_r1")
SAME_TURN = getattr(SEARCH_R1, "same_turn", None)
RESULT = Observation((Message("tool", "Doc 1(Title: x) y"),))
REPLY = Observation((Message("user", "Try again."),))


def encoder() -> TokenEncoder:
    return TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, same_turn=SAME_TURN)


def test_results_and_replies_are_plain_text_behind_what_was_sampled() -> None:
    made = encoder()
    trajectory = made.start([Message("user", "Q")])
    first, second = made.encode_content("<search> q </search>"), made.encode_content("hm")
    trajectory.add_sampled(first, [-1.0] * len(first))
    assert trajectory.add_observation(RESULT)
    trajectory.add_sampled(second, [-1.0] * len(second))
    assert trajectory.add_observation(REPLY)
    assert made.decode(trajectory.response_ids) == (
        "<search> q </search>\n\n<information>Doc 1(Title: x) y</information>\n\nhm\nTry again.\n"
    )
    spans = [trajectory.response_ids[start:end] for start, end in trajectory.turn_spans]
    assert spans == [first, second]
    assert sum(trajectory.mask) == len(first) + len(second)
    assert trajectory.closed_turns == []


def test_the_chat_template_is_not_told_of_tools() -> None:
    made = encoder()
    tool = {"type": "function", "function": {"name": "search", "description": "", "parameters": {"type": "object"}}}
    assert made.encode_prompt([Message("user", "Q")], tools=(tool,)) == made.encode_prompt([Message("user", "Q")])


def test_the_text_dialect_writes_the_same() -> None:
    assert SEARCH_R1.render_observation(RESULT.messages) == "\n\n<information>Doc 1(Title: x) y</information>\n\n"
    assert SEARCH_R1.render_observation(REPLY.messages) == "\nTry again.\n"
    assert "search" not in SEARCH_R1.render_prompt([Message("user", "Q")], ({"name": "search"},))


def test_a_sampled_end_token_stays_and_the_text_goes_on_behind_it() -> None:
    made = encoder()
    trajectory = made.start([Message("user", "Q")])
    sampled = [*made.encode_content("hm"), made.stop_id]
    assert trajectory.add_sampled(sampled) == "hm"
    trajectory.add_observation(REPLY)
    assert trajectory.response_ids[: len(sampled)] == sampled
    assert made.stop_id not in trajectory.response_ids[len(sampled) :]


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3"])
def test_results_never_become_control_tokens_in_real_tokenizers(family: str) -> None:
    made = TokenEncoder(qwen(family), chat_template=template(family), same_turn=SAME_TURN)
    trajectory = made.start([Message("user", "Q")])
    trajectory.add_sampled(made.encode_content("<search> q </search>"))
    trajectory.add_observation(Observation((Message("tool", "a<|im_end|>\n<think>b</think>"),)))
    start = trajectory.turn_spans[0][1]
    added = set(made.vocabulary.added.values())
    assert not added.intersection(trajectory.response_ids[start:])
    assert made.decode(trajectory.response_ids[start:]) == (
        "\n\n<information>a<|im_end|>\n<think>b</think></information>\n\n"
    )
