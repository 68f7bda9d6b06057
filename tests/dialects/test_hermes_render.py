"""The raw text of a conversation is what Qwen3's own chat template writes."""

from __future__ import annotations

from typing import Any

import pytest

from rlenv import dialects
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.tokens.vocabulary import ChatTemplate
from tests.support import real

HERMES = dialects.get("hermes")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "description": "é <b> {x}", "parameters": {"type": "object"}}},
    {"name": "bare", "parameters": {"type": "object", "properties": {}}},
]
CALL = ToolCall("look", {"x": 'é "q"\n', "n": [1, 2.5, None]})
CONVERSATIONS = {
    "question": [Message("user", "Q {not a slot}")],
    "system": [Message("system", "S {tools}"), Message("user", "Q")],
    "results": [
        Message("user", "Q"),
        Message("assistant", "Let me look.", (CALL, CALL)),
        Message("tool", "{one}"),
        Message("tool", "two\n"),
        Message("assistant", "", (CALL,)),
        Message("tool", ""),
    ],
    "thinking kept after the last question": [
        Message("user", "Q"),
        Message("assistant", "<think>\nhm\n</think>\n\nI look.", (CALL,)),
        Message("tool", "R"),
    ],
    "thinking dropped before it": [
        Message("user", "Q"),
        Message("assistant", "<think>\nhm\n</think>\n\nhello"),
        Message("user", "and?"),
    ],
}


def rendered(messages: list[Message], tools: list[dict[str, Any]], **values: Any) -> str:
    template = ChatTemplate(real.template("qwen3"), name="qwen3", values=values)
    return template.render([message.as_dict() for message in messages], tools=tools)


@pytest.mark.shared_data
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("thinking", [True, False])
def test_prompts_are_the_templates_text(name: str, tools: list[dict[str, Any]], thinking: bool) -> None:
    dialect = dialects.get("hermes", thinking=thinking)
    expected = rendered(CONVERSATIONS[name], tools, enable_thinking=thinking)
    assert dialect.render_prompt(CONVERSATIONS[name], tools) == expected


@pytest.mark.shared_data
@pytest.mark.parametrize(
    "messages",
    [
        (Message("tool", "R"),),
        (Message("tool", "R1\n"), Message("tool", "")),
        (Message("user", "next {x}"),),
        (Message("tool", "R"), Message("user", "next")),
    ],
)
def test_observations_continue_the_templates_text(messages: tuple[Message, ...]) -> None:
    start = [Message("user", "Q"), Message("assistant", "I look.", (CALL,))]
    said = HERMES.render_prompt(start[:1], TOOLS) + HERMES.render_action(start[1])
    assert said + HERMES.render_observation(messages) == rendered([*start, *messages], TOOLS)


def test_the_end_of_a_turn_belongs_to_the_observation() -> None:
    assert HERMES.render_observation([Message("tool", "R1"), Message("tool", "R2")]) == (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nR1\n</tool_response>\n<tool_response>\nR2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_an_open_thinking_block_ends_the_generation_prompt() -> None:
    dialect = dialects.get("hermes", thinking_open=True)
    assert dialect.render_prompt([Message("user", "Q")], ()).endswith("<|im_start|>assistant\n<think>\n")


def test_tools_are_listed_in_the_form_that_is_asked_for() -> None:
    user = [Message("user", "Q")]
    wrapped = dialects.get("hermes", tools="wrapped").render_prompt(user, TOOLS)
    bare = dialects.get("hermes", tools="bare").render_prompt(user, TOOLS)
    assert wrapped.count('{"type": "function", "function": {"name"') == 2
    assert '{"type": "function"' not in bare
    assert '\n{"name": "look", "description"' in bare


def test_a_structured_call_that_could_not_be_read_stays_malformed() -> None:
    text = HERMES.render_action(Message("assistant", "", (MalformedCall('{"a": ', "broken", name="add"),)))
    assert text == '<tool_call>\n{"name": "add", "arguments": {"a": }\n</tool_call>'
    assert isinstance(HERMES.parse(text).calls[0], MalformedCall)


def test_an_unknown_dialect_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nonesuch"):
        dialects.get("nonesuch")
