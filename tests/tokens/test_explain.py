"""A recorded trajectory shown by who wrote its tokens: what is not known is not shown as sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from rlenv import dialects
from rlenv.messages import Message, Observation, ParsedAction, ToolCall
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.check import Explained, explain
from rlenv.trajectory import RewardBreakdown, Trajectory, Turn
from tests.support.templates import FORGETS

KEEP = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, history="keep")
TOOL = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
CALL = ParsedAction("", calls=(ToolCall("look", {"x": "a"}),))
RESULT = Observation((Message("tool", "found", name="look"),))
END = KEEP.stop_id


@dataclass(frozen=True)
class Sampled:
    """A turn whose record holds what its sampler said of it."""

    index: int
    action: str
    parsed: ParsedAction
    observation: Observation | None = None
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    results: tuple[Any, ...] = field(default=())


def record(*turns: Any, truncated: bool = False) -> Trajectory:
    prompt = (Message("system", "S"), Message("user", "Q"))
    reward = RewardBreakdown(None, {})
    reason = "response_tokens" if truncated else "answer"
    return Trajectory("e-v0", "s", 0, 0, {}, prompt, turns, None, not truncated, truncated, reason, reward, None)


def said(explained: Explained, encoder: TokenEncoder = KEEP) -> list[tuple[str, str]]:
    return [(piece.kind, encoder.decode(piece.ids)) for piece in explained.pieces]


def test_the_prompt_shows_the_tools() -> None:
    explained = explain(KEEP, record(Turn(0, "Bye.", ParsedAction("Bye."))), tools=[TOOL])
    prompt = KEEP.encode_prompt([Message("system", "S"), Message("user", "Q")], tools=[TOOL])
    assert explained.pieces[0].ids == tuple(prompt)


def test_ids_of_the_record_are_shown_as_they_were_sampled() -> None:
    odd = [number for sign in "the fox" for number in KEEP.encode_content(sign)] + [END]
    assert odd != [*KEEP.encode_content("the fox"), END]  # what the text encodes to
    explained = explain(KEEP, record(Sampled(0, "the fox", ParsedAction("the fox"), token_ids=tuple(odd))))
    assert explained.pieces[1].kind == "sampled"
    assert list(explained.pieces[1].ids) == odd
    assert explained.anew == explained.others == ()
    assert explained.count("sampled", "assumed") == len(odd)


def test_ids_of_another_tokenizer_are_told() -> None:
    ids = (*KEEP.encode_content("something else"), END)
    assert explain(KEEP, record(Sampled(0, "Bye.", ParsedAction("Bye."), token_ids=ids))).others == (0,)


def test_an_end_token_that_is_not_recorded_is_assumed_and_never_shown_as_sampled() -> None:
    explained = explain(KEEP, record(Turn(0, "Bye.", ParsedAction("Bye."))))
    assert said(explained)[1:] == [("sampled", "Bye."), ("assumed", "<|im_end|>")]
    assert explained.anew == (0,)
    stopped = explain(KEEP, record(Sampled(0, "Bye.", ParsedAction("Bye."), finish_reason="stop")))
    assert said(stopped)[1:] == [("sampled", "Bye.<|im_end|>")]


@pytest.mark.parametrize(
    "turn",
    [
        Sampled(0, "I look", CALL, RESULT, finish_reason="length"),
        Turn(0, "I look", replace(CALL, is_cut=True), observation=RESULT),
        Sampled(0, "I look", CALL, RESULT, token_ids=tuple(KEEP.encode_content("I look")), finish_reason="length"),
    ],
)
def test_a_cut_turn_is_closed_by_the_environment(turn: Any) -> None:
    explained = explain(KEEP, record(turn, Turn(1, "Bye.", ParsedAction("Bye."))))
    kinds = said(explained)
    assert kinds[1] == ("sampled", "I look")
    assert kinds[2][0] == "observed"
    assert kinds[2][1].startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


def test_the_last_turn_of_a_truncated_episode_has_no_end() -> None:
    explained = explain(KEEP, record(Turn(0, "I loo", ParsedAction("I loo")), truncated=True))
    assert said(explained)[1:] == [("sampled", "I loo")]


def test_a_dialect_that_goes_on_in_one_turn_is_shown_as_it_was_played() -> None:
    search = dialects.get("search_r1")
    encoder = TokenEncoder(
        small_tokenizer(), chat_template=CHAT_TEMPLATE, same_turn=getattr(search, "same_turn", None), history="keep"
    )
    turns = (
        Turn(0, "<search>a</search>", CALL, observation=Observation((Message("tool", "Doc"),))),
        Turn(1, "<answer>b</answer>", ParsedAction("b")),
    )
    shown = said(explain(encoder, record(*turns), tools=[TOOL]), encoder)
    assert shown[1:] == [
        ("sampled", "<search>a</search>"),
        ("observed", "\n\n<information>Doc</information>\n\n"),
        ("sampled", "<answer>b</answer>"),
    ]
    assert "look" not in shown[0][1]  # the dialect itself explains its calls


def _dialogue() -> Sequence[Turn]:
    reply = Observation((Message("user", "And?"),))
    first = ParsedAction("Hi.", thinking="hm")
    return Turn(0, "<think>hm</think>Hi.", first, observation=reply), Turn(1, "Bye.", ParsedAction("Bye."))


def test_what_the_template_would_write_otherwise_is_told_or_stands_in_a_row_of_its_own() -> None:
    kept = explain(TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="keep"), record(*_dialogue()))
    assert len(kept.differences) == 1
    rows = TokenEncoder(small_tokenizer(), chat_template=FORGETS, history="rows")
    explained = explain(rows, record(*_dialogue()))
    assert explained.differences == ()
    assert [(piece.kind, piece.row, piece.turn) for piece in explained.pieces if piece.kind != "assumed"] == [
        ("prompt", 0, -1),
        ("sampled", 0, 0),
        ("prompt", 1, -1),
        ("sampled", 1, 1),
    ]
    assert "hm" not in rows.decode(next(p for p in explained.pieces if p.row == 1).ids)
