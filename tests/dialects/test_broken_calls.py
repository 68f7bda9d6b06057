"""A call that is broken inside is malformed, says what is wrong, and is written so that it reads as malformed again."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from rlenv.dialects.built_in import row_of
from rlenv.messages import MalformedCall, Message, ToolCall
from tests.dialects.written import CONTENT, NAMES, TOOLS, dialect, written

JSON = [name for name in NAMES if dialect(name).writer.row.body in ("json", "name_json")]
PYTHON = [name for name in NAMES if dialect(name).writer.row.body == "pythonic"]
ARGUMENTS = {"query": "QUERY", "n": 123456, "b": True}
# What is done to a JSON call, and what the reason has to say.
IN_JSON = {
    "a raw line break": ('"QUERY"', '"QU\nERY"', r"line break or control character"),
    "a raw line break and marks": ('"QUERY"', '"QU\n<answer>5</answer>ERY"', r"line break or control character"),
    "a NUL": ('"QUERY"', '"QU\0ERY"', r"line break or control character"),
    "a control character": ('"QUERY"', '"QU\x1bERY"', r"line break or control character"),
    "a tab": ('"QUERY"', '"QU\tERY"', r"line break or control character"),
    "a comma too many": ('"b": true', '"b": true,', r"a comma stands behind the last item"),
    "a comma too few": (', "b"', ' "b"', r"expected , or a closing bracket"),
    "single quotes": ('"QUERY"', "'QUERY'", r"double quotes"),
    "a key without quotes": ('"n":', "n:", r"found|unexpected"),
    "no value": ('"n": 123456', '"n": ', r"expected a value|unexpected"),
    "True": ("true", "True", r"lower case"),
    "a comment": ('"n":', '/* n */ "n":', r"unexpected"),
    "an escape that is none": ("QUERY", "QU\\qERY", r"a string holds"),
    "quotes inside": ("QUERY", 'QU"E"RY', r"expected , or a closing bracket"),
}
IN_PYTHON = {
    "a raw line break": ('"QUERY"', '"QU\nERY"', r"raw line break"),
    "a NUL": ('"QUERY"', '"QU\0ERY"', r"control character"),
    "no comma": (", b=", " b=", r"expected , or \)"),
    "no value": ("n=123456", "n=", r"expected a value"),
    "a colon": ("n=123456", "n:123456", r"by name"),
    "no name": ("n=123456", "123456", r"by name"),
    "a word": ("n=123456", "n=much", r"expected a value"),
}


def written_call(name: str) -> str:
    return dialect(name).render_action(Message("assistant", "", (ToolCall("search", ARGUMENTS, "search:0"),)))


@pytest.mark.parametrize("name", JSON)
def test_the_reason_names_what_is_wrong_in_json(name: str) -> None:
    for old, new, says in IN_JSON.values():
        check_fault(name, old, new, says)


@pytest.mark.parametrize("name", PYTHON)
def test_the_reason_names_what_is_wrong_in_python(name: str) -> None:
    for old, new, says in IN_PYTHON.values():
        check_fault(name, old, new, says)


def check_fault(name: str, old: str, new: str, says: str) -> None:
    text = written_call(name)
    assert text.count(old) == 1
    action = dialect(name).parse(text.replace(old, new), TOOLS)
    (call,) = action.calls
    assert isinstance(call, MalformedCall), (old, new)
    assert re.search(says, call.reason), (new, call.reason)
    assert not action.is_cut, call.reason
    # What stands behind the call and between its marks is not said.
    assert "<answer>" not in action.content


@pytest.mark.parametrize("name", JSON)
def test_a_missing_bracket_is_named_at_the_end_of_the_call(name: str) -> None:
    text = written_call(name)
    place = text.rindex("true") + 4
    (call,) = dialect(name).parse(text[:place] + text[place + 1 :], TOOLS).calls
    assert isinstance(call, MalformedCall)
    assert re.search(r"ends too early|expected , or a closing bracket|unexpected", call.reason), call.reason


def broken_texts(name: str, count: int) -> list[str]:
    """Calls with a character put in, taken out or changed, or cut."""
    rng = random.Random(name)
    texts = [one.text for one in written(name)]
    found = []
    for _ in range(count):
        text = rng.choice(texts)
        at = rng.randrange(len(text))
        put = rng.choice(("", "", '"', "'", "\n", "{", "}", "]", ",", "\\", "<", ">", "x", "\0", "NaN", "=", ":"))
        found.append(rng.choice((text[:at] + put + text[at + 1 :], text[:at] + put + text[at:], text[:at])))
    return found


def kinds(calls: Any) -> list[tuple[type, Any]]:
    return [(type(call), getattr(call, "arguments", None)) for call in calls]


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", NAMES)
def test_malformed_calls_are_written_so_that_they_read_as_malformed_calls(name: str) -> None:
    reader = dialect(name)
    seen = 0
    for text in broken_texts(name, 120):
        action = reader.parse(text, TOOLS)
        broken = [call for call in action.calls if isinstance(call, MalformedCall)]
        for call in broken:
            seen += 1
            again = reader.parse(reader.render_action(Message("assistant", "", (call,))), TOOLS)
            assert [type(found) for found in again.calls] == [MalformedCall], (text, call, again)
        if broken and len(action.calls) > 1:  # beside others, whole ones too
            again = reader.parse(reader.render_action(Message("assistant", "", action.calls)), TOOLS)
            assert kinds(again.calls) == kinds(action.calls), (text, action, again)
    assert seen > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_call_that_came_as_data_is_written_as_one(name: str) -> None:
    reader = dialect(name)
    for given in ('{"query": "cats', "", "cats", "search(query=", "null", "[]"):
        broken = MalformedCall(given, "no JSON", name="search", id="functions.search:0")
        again = reader.parse(reader.render_action(Message("assistant", "", (broken,))), TOOLS)
        assert [type(found) for found in again.calls] == [MalformedCall], (given, again)


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("name", [name for name in NAMES if row_of(name).offers])
def test_what_only_a_leniency_reads_names_it(name: str) -> None:
    strict, lenient = dialect(name), dialect(name, lenient=row_of(name).offers)
    for text in (*broken_texts(name, 300), *(one.text for one in written(name))):
        plain, loose = strict.parse(text, TOOLS), lenient.parse(text, TOOLS)
        read = [call for call in loose.calls if isinstance(call, ToolCall)]
        if kinds(read) != kinds([call for call in plain.calls if isinstance(call, ToolCall)]) and read:
            assert loose.leniencies, (text, loose)
        if not any(isinstance(call, MalformedCall) for call in plain.calls) and plain.calls == loose.calls:
            assert not loose.leniencies, (text, loose)


def test_content_beside_a_broken_call_stays_content() -> None:
    text = f"{CONTENT}\n<tool_call>\n{{}}\n</tool_call>\n{CONTENT}"
    assert dialect("hermes").parse(text).content == f"{CONTENT}\n\n{CONTENT}"
