"""Calls that come as data keep the guarantees of written ones: from servers, and from any policy's message."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rlenv.endpoints.account import UnreadableAnswer, read_chat
from rlenv.messages import MalformedCall, Message, ToolCall

DEEP = '{"a": ' * 127 + "1" + "}" * 127
REFUSED = {
    '{"a": NaN}': "NaN",
    '{"a": -Infinity}': "number|Infinity",
    '{"a": 1e400}': "out of range",
    '{"a": ' + "7" * 400 + "}": "out of range|digits",
    '{"a": 1, "a": 2}': '"a" stands twice',
    '{"a": 1, "\\u0061": 2}': '"a" stands twice',
    '{"b": [{"a": 1, "a": 2}]}': '"a" stands twice',
    '{"a": "\\ud800"}': "surrogate",
    '{"a": "\ud800"}': "surrogate",
    '{"a": ' * 150 + "1" + "}" * 150: "levels",
    '{"a": "cut': 'closing " of a string',
    '{"a": 1': "expected } to close it",
    "{'a': 1}": "double quotes",
    '{"a": 1,}': "a comma stands behind",
    '{"a": "x\ny"}': "line break",
    "[1]": "the arguments are a list; expected an object",
    "null": "the arguments are null; expected an object",
    '"{}"': "the arguments are a string; expected an object",
}


def read(arguments: Any, name: Any = "add") -> ToolCall | MalformedCall:
    function = {"name": name, "arguments": arguments}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}
    (call,) = read_chat({"choices": [{"message": message}]}).message.tool_calls
    assert call.id == "c"
    return call


@pytest.mark.parametrize("given", REFUSED, ids=lambda text: ascii(text)[:24])
def test_arguments_that_json_cannot_hold_are_malformed_with_the_reason(given: str) -> None:
    call = read(given)
    assert isinstance(call, MalformedCall)
    assert (call.name, call.text) == ("add", given)
    assert re.search(REFUSED[given], call.reason), call.reason


@pytest.mark.parametrize("given", ["", " \n", None, "{}", {}])
def test_no_arguments_are_an_empty_object(given: Any) -> None:
    call = read(given)
    assert isinstance(call, ToolCall)
    assert call.arguments == {}
    (call,) = read_chat({"choices": [{"message": {"tool_calls": [{"function": {"name": "add"}}]}}]}).message.tool_calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {}


@pytest.mark.parametrize("given", ['{"a": 123456789012345678901, "b": [1.5, "\\ud83d\\ude00"]}', DEEP])
def test_other_arguments_are_kept_to_the_digit(given: str) -> None:
    call = read(given)
    assert isinstance(call, ToolCall)
    assert call.arguments == json.loads(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": float("nan")}, "what JSON cannot"),
        ({"a": [float("inf")]}, "what JSON cannot"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": 10**400}, "out of range"),
        (json.loads('{"a": ' * 150 + "1" + "}" * 150), "levels"),
        ([1], "a list; expected an object"),
        (7, "a number; expected an object"),
    ],
    ids=lambda given: ascii(given)[:20],
)
def test_arguments_that_a_server_sends_as_an_object_are_checked_too(given: Any, says: str) -> None:
    call = read(given)
    assert isinstance(call, MalformedCall)
    assert says in call.reason


@pytest.mark.parametrize(
    ("name", "says"), [("", "no name"), (None, "no name"), (3, "no name"), ("a\ud800", "surrogate")]
)
def test_a_call_has_a_name(name: Any, says: str) -> None:
    call = read("{}", name)
    assert isinstance(call, MalformedCall)
    assert says in call.reason


@pytest.mark.parametrize("listed", [{}, "x", 1, [None], [{"id": "c"}], [{"function": "add"}]])
def test_what_is_no_list_of_calls_is_a_fault_of_the_server(listed: Any) -> None:
    with pytest.raises(UnreadableAnswer):
        read_chat({"choices": [{"message": {"content": "5", "tool_calls": listed}}]})


@pytest.mark.parametrize(
    "arguments",
    [{"a": float("nan")}, {"a": [float("-inf")]}, {"a": {"b": "\udfff"}}, {"a": 10**400}, {"a": {1, 2}}, {"a": b"x"}],
    ids=ascii,
)
def test_a_policys_message_is_held_to_the_same(arguments: dict[str, Any], make_environment: Any) -> None:
    environment = make_environment(
        """
rlenv: 1
name: held
tasks: {train: {rows: [{question: q}]}}
prompt: {user: "{{ task.question }}"}
tools: {calculate: {kind: calculator}}
rewards: {any: {kind: rule, rule: turn_count, max: 4}}
"""
    )
    given = (ToolCall("calculate", {"expression": "1"}, "c0"), ToolCall("calculate", arguments, "c1"))
    text, parsed = environment.parse(Message("assistant", "", given))
    whole, broken = parsed.calls
    assert whole == given[0]
    assert isinstance(broken, MalformedCall)
    assert (broken.name, broken.id) == ("calculate", "c1")
    assert text
