"""What JSON cannot hold is in no call that is read, by any grammar, and the reason names it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from rlenv.dialects.built_in import row_of
from rlenv.dialects.engine import TextDialect
from rlenv.messages import MalformedCall, Message, ToolCall
from tests.dialects.written import NAMES, TOOLS, dialect

DIGITS = "7" * 400
DEEP = "[" * 200 + "]" * 200
# Each is put in the place of a value that was written, with what the reason has to say.
NUMBERS = {
    "NaN": "NaN|finite",
    "Infinity": "Infinity|finite|not JSON",
    "-Infinity": "Infinity|finite|number",
    "1e400": "out of range",
    "-1e400": "out of range",
    DIGITS: "out of range",
    DIGITS + ".5": "out of range",
}
OBJECTS = {
    '{"a": 1, "a": 2}': "twice",
    '{"a": 1, "\\u0061": 2}': "twice",
    '{"k": {"b": [], "b": []}}': "twice",
    '{"k": [NaN]}': "NaN|finite",
    '{"k": -Infinity}': "Infinity|finite|number",
    '{"k": 1e400}': "out of range",
    '{"k": "\\ud800"}': "surrogate",
    '{"\\udc00": 1}': "surrogate",
    '{"k": "\ud800"}': "surrogate",
    '{"k": ' + DEEP + "}": "nested|levels",
}
LISTS = {"[NaN]": "NaN|finite", "[1e999]": "out of range", DEEP: "nested|levels", '[[{"a": 1, "a": 2}]]': "twice"}
CASES = [("n", value, says) for value, says in NUMBERS.items()]
CASES += [("i", DIGITS, "out of range")]
CASES += [("o", value, says) for value, says in OBJECTS.items()]
CASES += [("l", value, says) for value, says in LISTS.items()]
PLACES: dict[str, Any] = {"n": 123456, "i": 123456, "o": {"zz": 123456}, "l": [123456]}


def in_its_grammar(reader: TextDialect, text: str) -> str:
    """A value of JSON as the dialect writes objects and lists."""
    row = reader.writer.row
    if row.body == "gemma":
        return re.sub(r'"((?:[^"\\]|\\.)*)":', r"\1:", text).replace('"', row.quote)
    return text


def put(reader: TextDialect, key: str, value: str) -> str | None:
    """A call with `value` where the dialect wrote a value of the same type; None where it cannot write one."""
    given = PLACES[key]
    text = reader.render_action(Message("assistant", "", (ToolCall("search", {"query": "x", key: given}, "search:0"),)))
    for shown in (json.dumps(given), repr(given), in_its_grammar(reader, json.dumps(given, separators=(",", ":")))):
        for spelt in (shown, json.dumps(given, separators=(",", ":"))):
            if text.count(spelt) == 1:
                return text.replace(spelt, in_its_grammar(reader, value))
    return None


def is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    return all(map(is_json, value)) if isinstance(value, list) else True


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("search_r1",)])
def test_a_value_that_json_cannot_hold_makes_the_call_malformed(name: str) -> None:
    for lenient in {(), row_of(name).offers}:
        reader = dialect(name, lenient=lenient)
        tried = 0
        for key, value, says in CASES:
            text = put(reader, key, value)
            if text is None or (reader.writer.row.body == "gemma" and "\\u" in value):
                continue  # no escapes there: the backslash is a character like others
            tried += 1
            action = reader.parse(text, TOOLS)
            assert [type(call) for call in action.calls] == [MalformedCall], (text[:200], action.calls)
            (call,) = action.calls
            assert isinstance(call, MalformedCall)
            if reader.writer.row.body == "pythonic" and value.startswith("-I"):
                continue
            assert re.search(says, call.reason), (name, text[:200], call.reason)
            assert not action.content
        assert tried > 7, (name, tried)


@pytest.mark.slow(but=70)
@pytest.mark.parametrize("value", ["NaN", "1e400", DIGITS, '{"a": 1, "a": 2}', "[1e400]"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_words_are_texts_where_a_text_is_asked_for(name: str, value: str) -> None:
    reader = dialect(name)
    text = reader.render_action(Message("assistant", "", (ToolCall("search", {"query": value}, "search:0"),)))
    (call,) = reader.parse(text, TOOLS).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"query": value}


@pytest.mark.parametrize("value", ["1e400", DIGITS, '{"a": 1, "a": 2}', "[1, NaN]"])
def test_a_text_tool_refuses_them_for_a_parameter_that_is_no_text(value: str) -> None:
    tools = {
        "search": {"name": "search", "parameters": {"properties": {"query": {"type": ["number", "object", "array"]}}}}
    }
    (call,) = dialect("search_r1").parse(f"<search>{value}</search>", tools).calls
    assert isinstance(call, MalformedCall)
    (call,) = dialect("react").parse(f"Action: search\nAction Input: {value}", tools).calls
    assert isinstance(call, MalformedCall)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("search_r1",)])
def test_an_argument_that_is_given_twice_makes_the_call_malformed(name: str) -> None:
    for lenient in {(), row_of(name).offers}:
        # Where a list may be written as a tag that is repeated, that is a leniency with a name.
        reader = dialect(name, lenient=[one for one in lenient if one != "repeated_tags"])
        one, two = (
            reader.render_action(Message("assistant", "", (ToolCall("search", given, "search:0"),)))
            for given in ({"query": "x"}, {"query": "x", "n": 5})
        )
        same = next(at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
        piece = two[same : same + len(two) - len(one)]
        assert reader.parse(one[:same] + piece + one[same:], TOOLS).calls[0].name == "search"
        action = reader.parse(one[:same] + piece + piece + one[same:], TOOLS)
        (call,) = action.calls
        if "repeated_tags" not in action.leniencies:  # which is there to make a list of them
            assert isinstance(call, MalformedCall)
            assert "twice" in call.reason
