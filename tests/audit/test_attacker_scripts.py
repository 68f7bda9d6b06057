"""What an attacking model writes is data: placeholders are filled once, as text, and what does not fit is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.audit.attacker_scripts import (
    PLACEHOLDERS,
    SeenTexts,
    UnreadableStrategies,
    fill_placeholders,
    read_strategies,
)
from rlenv.messages import Message, ToolCall

SEEN = SeenTexts("Be kind.", "Add 3 and -4.5\n\nnow, please", ("first 1", "one\ntwo 22"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{prompt}}", SEEN.prompt),
        ("{{ system }}", "Be kind."),
        ("{{ prompt_line_2 }}", "now, please"),
        ("{{ prompt_number_1 }}{{ prompt_number_-1 }}", "3-4.5"),
        ("{{ prompt_word_2 }}", "3"),
        ("{{ tool_result }}", "one\ntwo 22"),
        ("{{ tool_result_1 }}", "first 1"),
        ("{{ tool_line_-1 }} {{ tool_number_1 }} {{ tool_word_1 }}", "two 22 22 one"),
        ("[{{ prompt_number_9 }}{{ tool_line_0 }}]", "[]"),
        (
            "{{ secret }} {{ 1 + 1 }} {% x %} {{ prompt.__class__ }}",
            "{{ secret }} {{ 1 + 1 }} {% x %} {{ prompt.__class__ }}",
        ),
    ],
)
def test_placeholders_are_filled_with_what_a_policy_sees(text: str, expected: str) -> None:
    assert fill_placeholders(text, SEEN) == expected


def test_each_placeholder_that_is_named_to_a_model_is_filled() -> None:
    for name in PLACEHOLDERS:
        assert "{{" not in str(fill_placeholders(f"{{{{ {name.replace('_N', '_1')} }}}}", SEEN)), name


def test_what_is_put_in_is_not_looked_at_again() -> None:
    assert fill_placeholders("{{ tool_result }}", SeenTexts("", "gold", ("{{ prompt }}",))) == "{{ prompt }}"


def test_a_call_takes_numbers_as_numbers() -> None:
    made = fill_placeholders(
        {"say": "so", "call": {"add": {"a": "{{ prompt_number_1 }}", "b": ["{{ prompt_number_2 }}!"], "c": 7}}}, SEEN
    )
    assert isinstance(made, Message)
    assert made.content == "so"
    (call,) = made.tool_calls
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("add", {"a": 3, "b": ["-4.5!"], "c": 7})


def test_no_text_grows_beyond_its_bound() -> None:
    assert len(str(fill_placeholders("{{ prompt }}" * 5_000, SeenTexts("", "x" * 100_000)))) <= 100_000


def test_a_reply_is_read_out_of_what_stands_around_it() -> None:
    listed = {"strategies": [{"name": "a\x1b[2J\nb", "actions": ["x"]}, {"actions": 3}, {"play": "be bold"}]}
    first, second = read_strategies(f"<think>{{}}</think>Here:\n```json\n{json.dumps(listed)}\n```", most=5)
    assert (first.name, first.actions) == ("a\\x1b[2J b", ("x",))
    assert (second.name, second.play) == ("strategy 2", "be bold")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("x", "no object"),
        ({"actions": []}, "list of 1 to 16"),
        ({"actions": ["x"] * 17}, "list of 1 to 16"),
        ({"actions": [3]}, "neither a text"),
        ({"actions": [{"run": "ls"}]}, "neither a text"),
        ({"actions": [{"say": 3}]}, "no text"),
        ({"actions": [{"call": {}}]}, "1 to 8 tools"),
        ({"actions": [{"call": {"look": "x"}}]}, "no object"),
    ],
)
def test_what_is_no_strategy_is_named(entry: Any, why: str) -> None:
    with pytest.raises(UnreadableStrategies, match=why):
        read_strategies(json.dumps({"strategies": [entry]}), most=5)


@given(st.text())
def test_reading_and_filling_never_raise_anything_else(text: str) -> None:
    assert isinstance(fill_placeholders(text, SEEN), str)
    for reply in (text, json.dumps({"strategies": [text, {"name": text, "actions": [text]}]})):
        try:
            assert read_strategies(reply, most=3)
        except UnreadableStrategies:
            assert reply == text
