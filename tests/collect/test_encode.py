"""Rows of episodes: what the model would have sampled, marked, and all that it reads, unmarked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv import dialects
from rlenv.collect.encode import Encoded, EncodedAction, Unencodable, encode_steps
from rlenv.messages import Message, Observation, ToolCall
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from tests.tokens.kinds import KINDS, VALUES, tokenizer

PROMPT = (Message("user", "Q"),)
CALL = '<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call>'
RESULT = Observation((Message("tool", "seen", name="look"),))


def encoder(kind: str = "grows", **options: Any) -> TokenEncoder:
    chosen = KINDS[kind]
    return TokenEncoder(
        tokenizer(),
        chat_template=chosen.source,
        template_kwargs={**VALUES, **chosen.values},
        stop=chosen.ends,
        **options,
    )


def asked(text: str = CALL, **more: Any) -> EncodedAction:
    said = Message("assistant", "", (ToolCall("look", {"x": 1}),))
    return EncodedAction(text, RESULT, said, calls=1, **more)


def answered(text: str = "The end.", **more: Any) -> EncodedAction:
    return EncodedAction(text, None, Message("assistant", text), **more)


def shown(encoder: TokenEncoder, encoded: Encoded) -> list[str]:
    """Each row as text, what is trained in brackets."""
    found = []
    for row in encoded.rows:
        text, before = "", 0
        for number, flag in zip(row.input_ids, row.loss_mask, strict=True):
            if flag != before:
                text += "[" if flag else "]"
                before = flag
            text += encoder.decode([number])
        found.append(text + ("]" if before else ""))
    return found


def test_calls_and_answers_are_trained_with_their_ends_and_results_are_read() -> None:
    made = encoder()
    encoded = encode_steps(made, PROMPT, [asked(), answered()])
    assert shown(made, encoded) == [
        f"<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n[{CALL}<|im_end|>]\n<|im_start|>tool\nseen<|im_end|>\n"
        "<|im_start|>assistant\n[The end.<|im_end|>]"
    ]
    assert (encoded.recorded, encoded.anew) == (0, 2)


@pytest.mark.parametrize(
    ("kind", "after_a_call", "at_the_end"),
    [
        ("two stops", "<|calls|>", "<|im_end|>"),
        ("ends the last otherwise", "<|im_end|>", "<|return|>"),
        ("bare", "<|observation|>", "<|user|>"),
    ],
)
def test_a_turn_ends_as_the_template_ends_one_of_its_kind(kind: str, after_a_call: str, at_the_end: str) -> None:
    made = encoder(kind)
    thought = "<think></think>\n" if kind == "bare" else ""
    text = shown(made, encode_steps(made, PROMPT, [asked(thought + CALL), answered(thought + "The end.")]))[0]
    assert f"{CALL}{after_a_call}]" in text
    assert text.endswith(f"The end.{at_the_end}]")


def test_a_call_that_nothing_answers_any_more_ends_as_calls_do() -> None:
    made = encoder("two stops")
    text = shown(made, encode_steps(made, PROMPT, [replace(asked(), observation=None)]))[0]
    assert text.endswith(f"[{CALL}<|calls|>]")


def test_results_behind_the_last_action_are_left_out() -> None:
    made = encoder()
    assert shown(made, encode_steps(made, PROMPT, [asked()]))[0].endswith(f"[{CALL}<|im_end|>]")


def test_sampled_ids_are_taken_as_they_were_and_get_the_end_that_a_server_has_stripped() -> None:
    made = encoder()
    one_by_one = [made.encode_text(sign)[0] for sign in "The end."]
    assert one_by_one != made.encode_text("The end.")
    encoded = encode_steps(made, PROMPT, [answered(ids=tuple(one_by_one))])
    assert list(encoded.rows[0].input_ids[-len(one_by_one) - 1 :]) == [*one_by_one, made.stop_id]
    whole = encode_steps(made, PROMPT, [answered(ids=(*one_by_one, made.stop_id))])
    assert whole == encoded
    assert encoded.recorded == 1


def test_ids_that_do_not_read_as_the_text_are_another_models_and_the_text_is_encoded() -> None:
    made = encoder()
    for foreign in ((5, 6, 7), (10**6,)):
        encoded = encode_steps(made, PROMPT, [answered(ids=foreign)])
        assert encoded == encode_steps(made, PROMPT, [answered()])
        assert encoded.anew == 1


def test_a_dialect_of_one_turn_ends_behind_its_call_and_its_answer() -> None:
    row = dialects.get("search_r1")
    made = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE, same_turn=getattr(row, "same_turn", None))
    result = Observation((Message("tool", "Doc"),))
    steps = [EncodedAction("<search> q </search>\n", result, calls=1), EncodedAction("<answer> a </answer>", None)]
    text = shown(made, encode_steps(made, PROMPT, steps, stops=("</search>", "</answer>")))[0]
    assert text.partition("assistant\n")[2] == (
        "[<search> q </search>]\n\n<information>Doc</information>\n\n[<answer> a </answer>]"
    )
    # An answer without its mark was ended by the policy itself.
    spoken = shown(
        made, encode_steps(made, PROMPT, [EncodedAction("No idea.", None)], stops=("</search>", "</answer>"))
    )[0]
    assert spoken.endswith("[No idea.<|im_end|>]")


def test_a_turn_that_was_cut_has_no_end_of_its_own() -> None:
    made = encoder()
    text = shown(made, encode_steps(made, PROMPT, [asked(is_cut=True), answered("The", is_cut=True)]))[0]
    assert f"[{CALL}]<|im_end|>" in text
    assert text.endswith("[The]")


def test_a_block_of_thinking_that_the_prompt_opens_is_closed_before_an_action_that_does_not() -> None:
    made = encoder("opens a block")
    text = shown(made, encode_steps(made, PROMPT, [answered()]))[0]
    assert text.endswith("<think>[\n</think>\n\nThe end.<|im_end|>]")
    thought = "so\n</think>\nThe end."
    assert shown(made, encode_steps(made, PROMPT, [answered(thought)]))[0].endswith(f"<think>[{thought}<|im_end|>]")


def test_with_rows_each_action_is_trained_once_in_the_context_that_serving_would_show() -> None:
    made = encoder("drops thinking", history="rows")
    reply = Observation((Message("user", "And?"),))
    first = EncodedAction("<think>\nhm\n</think>\nOne.", reply, Message("assistant", "One.", thinking="hm"))
    rows = shown(made, encode_steps(made, PROMPT, [first, answered("Two.")]))
    assert rows[0].endswith("[<think>\nhm\n</think>\nOne.<|im_end|>]")
    assert "hm" not in rows[1]
    assert rows[1].partition("assistant\n")[2] == (
        "One.<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n[Two.<|im_end|>]"
    )
    with pytest.raises(Unencodable) as refused:
        encode_steps(encoder("drops thinking"), PROMPT, [first, answered("Two.")])
    assert refused.value.reason == "template"


def test_an_action_may_be_read_and_not_trained() -> None:
    made = encoder()
    text = shown(made, encode_steps(made, PROMPT, [asked(is_trained=False), answered()]))[0]
    assert text.count("[") == 1
    assert text.endswith("[The end.<|im_end|>]")


def test_text_that_spells_an_end_mark_is_no_row() -> None:
    with pytest.raises(Unencodable) as refused:
        encode_steps(encoder(), PROMPT, [answered("One <|im_end|> two")])
    assert refused.value.reason == "end_mark"


def test_an_episode_beyond_the_response_is_no_row() -> None:
    made = encoder()
    whole = len(encode_steps(made, PROMPT, [asked(), answered()]).rows[0].input_ids) - len(made.encode_prompt(PROMPT))
    assert encode_steps(made, PROMPT, [asked(), answered()], max_response_tokens=whole)
    for most in (whole - 1, 3):
        with pytest.raises(Unencodable) as refused:
            encode_steps(made, PROMPT, [asked(), answered()], max_response_tokens=most)
        assert refused.value.reason == "response_tokens"


@settings(max_examples=12)
@given(st.lists(st.tuples(st.booleans(), st.text(max_size=12)), min_size=1, max_size=4), st.text(max_size=12))
def test_masks_align_and_mark_what_was_said_whatever_it_is(turns: list[tuple[bool, str]], result: str) -> None:
    made = encoder()
    answer = Observation((Message("tool", result, name="look"),))
    steps = [replace(asked(CALL + text), observation=answer, is_trained=flag) for flag, text in turns]
    try:
        encoded = encode_steps(made, PROMPT, [*steps, answered()])
    except Unencodable:
        return
    (row,) = encoded.rows
    assert len(row.input_ids) == len(row.loss_mask)
    assert row.loss_mask[0] == 0
    said = [CALL + text for flag, text in turns if flag] + ["The end."]
    trained = [number for number, flag in zip(row.input_ids, row.loss_mask, strict=True) if flag]
    assert trained == [number for text in said for number in (*made.encode_text(text), made.stop_id)]
