"""Reading the Hermes format: strict, total and with reasons that lead to the fix."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv import dialects
from rlenv.dialects.json_text import MAX_DEPTH
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall

HERMES = dialects.get("hermes")
OK = '{"name": "add", "arguments": {"a": 1}}'
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "\n", '"', "\\", "{", "}", "[", "]", ":", ",", " ", OK)
PIECES = (
    *MARKS,
    "\x00",
    "\ud800",
    "\udfff",
    "\\ud800",
    "é",
    "世",
    "NaN",
    "1e999",
    "9" * 400,
    "null",
    "'",
    "```",
    "-",
    "x",
)


def wrap(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def read(text: str) -> ParsedAction:
    """The reading, after checking the laws that hold for every text."""
    action = HERMES.parse(text)
    end = 0
    for call in action.calls:
        assert end <= call.start < call.end <= len(text)
        end = call.end
        assert text.startswith("<tool_call>", call.start)
        if isinstance(call, MalformedCall):
            assert call.text == text[call.start : call.end]
            assert call.reason
        else:
            assert call.name
            json.dumps(dict(call.arguments), ensure_ascii=False).encode()
    return action


def fault(body: str) -> str:
    """The reason why one call, closed properly, cannot be read."""
    (call,) = read(wrap(body)).calls
    assert isinstance(call, MalformedCall)
    return call.reason


def test_calls_come_in_the_order_of_the_text_with_their_places() -> None:
    text = f"First.\n{wrap(OK)}\n" + wrap('{"name": "now", "arguments": {}}') + " Then."
    action = read(text)
    assert [(call.name, call.arguments) for call in action.calls if isinstance(call, ToolCall)] == [
        ("add", {"a": 1}),
        ("now", {}),
    ]
    assert [text[call.start : call.end][:11] + text[call.start : call.end][-12:] for call in action.calls] == [
        "<tool_call></tool_call>"
    ] * 2
    assert action.content == "First.\n\n Then."
    assert not action.is_cut


def test_text_without_calls_is_content() -> None:
    assert read("The answer is 42.") == ParsedAction("The answer is 42.")
    assert read("") == ParsedAction("")


@pytest.mark.parametrize(
    "value",
    ["</tool_call>", "<tool_call>", "a </tool_call> b <tool_call>", "</tool_call>\n<tool_call>\n{}", "</think>"],
)
def test_markers_inside_a_string_do_not_end_a_call(value: str) -> None:
    text = wrap(json.dumps({"name": "say", "arguments": {"text": value, "n": [value, '"']}}))
    action = read(text + text)
    assert [call.arguments["text"] for call in action.calls if isinstance(call, ToolCall)] == [value, value]
    assert action.content == ""


@pytest.mark.parametrize(
    ("text", "calls", "content", "is_cut"),
    [
        (f"<think>{wrap(OK)}</think>done", 0, "done", False),
        (f"<think>I will {wrap(OK)}", 0, "", True),
        (f"<think>a</think>{wrap(OK)}<think>b{wrap(OK)}</think>end", 1, "end", False),
        (f"<think>a</think>so <think>b{wrap(OK)}", 0, "so", True),
        (f"a {wrap(OK)} b</think>final", 0, "final", False),
        (f"{wrap(OK)}<think>x</think>", 1, "", False),
        (f"<tool_call>{OK} </think>{wrap(OK)}", 1, "", False),
        ("<think><think>x</think>y</think>z", 0, "y</think>z", False),
    ],
)
def test_a_call_inside_thinking_is_not_one(text: str, calls: int, content: str, is_cut: bool) -> None:
    action = read(text)
    assert (len(action.calls), action.content, action.is_cut) == (calls, content, is_cut)
    assert action.thinking or calls


@pytest.mark.parametrize("begun", ["<", "<tool", "<tool_call"])
def test_the_beginning_of_a_next_call_that_was_cut_is_no_content(begun: str) -> None:
    action = read(f"So: {wrap(OK)}\n{begun}")
    assert (len(action.calls), action.content, action.is_cut) == (1, "So:", True)


def test_a_generation_prompt_can_have_opened_the_thinking() -> None:
    opened = dialects.get("hermes", thinking_open=True)
    assert opened.parse(f"plan {wrap(OK)}") == ParsedAction("", f"plan {wrap(OK)}", (), True)
    action = opened.parse(f"plan {wrap(OK)}</think>\n\n{wrap(OK)}")
    assert (len(action.calls), action.thinking) == (1, f"plan {wrap(OK)}")
    never = dialects.get("hermes", thinking_open=False)
    assert len(never.parse(f"a {wrap(OK)} b</think>final").calls) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "x", "arguments": {"a": 1}', "the JSON ends too early at character 36; expected } to close it"),
        ('{"name": "x", "arguments": {"a": "b', 'ends too early at character 36; expected the closing " of a string'),
        ("", "the call is empty; expected one JSON object"),
        ("[]", 'the call is a list; expected one object: {"name": …, "arguments": {…}}'),
        ('{"arguments": {}}', '"name" is missing; expected {"name": …, "arguments": {…}}'),
        ('{"name": 3, "arguments": {}}', '"name" is a number; expected the name of a tool as a string'),
        ('{"name": "", "arguments": {}}', '"name" is empty'),
        ('{"name": "x"}', '"arguments" is missing'),
        ('{"name": "x", "arguments": [1]}', '"arguments" is a list; expected an object'),
        ('{"name": "x", "arguments": "{}"}', '"arguments" is a string; expected an object'),
        ('{"name": "x", "arguments": null}', '"arguments" is null'),
        ('{"name": "x", "name": "y", "arguments": {}}', 'the key "name" stands twice'),
        ('{"name": "x", "arguments": {"q": {"b": 1, "b" : 1}}}', 'the key "b" stands twice'),
        ('{"name": "x", "arguments": {"q": "\\":", "q" :1}}', 'the key "q" stands twice'),
        ('{"name": "x", "arguments": {"q": NaN}}', "NaN is not JSON"),
        ('{"name": "x", "arguments": {"q": Infinity}}', "Infinity is not JSON"),
        ('{"name": "x", "arguments": {"q": True}}', "true and false are written in lower case"),
        ("{'name': 'x', 'arguments': {}}", "names and strings stand in double quotes"),
        ('{"name": "x", "arguments": {"a": 1,}}', "a comma stands behind the last item at character 35"),
        ('{"name": "x" "arguments": {}}', "at character 14; expected , or a closing bracket"),
        ('{"name": "x", "arguments": {"a": "b\nc"}}', "a string holds a line break or control character"),
        ('{"name": "x", "arguments": {"a": "\\x"}}', "expected one of"),
        ('{"name": "x", "arguments": {"a": "\\ud800"}}', "half a surrogate pair"),
        ('{"name": "x", "arguments": {"a": "\ud800"}}', "character 36 of the JSON is not valid Unicode"),
        ('{"name": "x", "arguments": {"a": 1e999}}', "the number at character 34 cannot be read"),
        ('{"name": "x", "arguments": {"a": ' + "7" * 5000 + "}}", "the number at character 34 cannot be read"),
        ('{"name": "x", "arguments": {}} and', "after the JSON has ended"),
        ("```json\n{}\n```", "without a code fence"),
        ("add(1, 2)", 'expected one JSON object that starts with "{"'),
    ],
)
def test_a_malformed_call_says_what_is_wrong_and_what_is_expected(body: str, reason: str) -> None:
    assert reason in fault(body)


def test_nesting_is_bounded_and_never_overflows() -> None:
    def nested(levels: int) -> str:
        return '{"name": "x", "arguments": {"a": ' + "[" * levels + "]" * levels + "}}"

    assert isinstance(read(wrap(nested(MAX_DEPTH - 2))).calls[0], ToolCall)
    assert f"nested more than {MAX_DEPTH} levels" in fault(nested(MAX_DEPTH - 1))
    assert fault("[" * 50_000)
    assert fault('{"a":' * 50_000)
    assert fault(nested(50_000))


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**40 + 1, -(10**300) - 7])
def test_integers_keep_every_digit(number: int) -> None:
    (call,) = read(wrap(json.dumps({"name": "x", "arguments": {"n": number, "deep": [[number]]}}))).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"n": number, "deep": [[number]]}


def test_arguments_as_text_are_an_option() -> None:
    lenient = dialects.get("hermes", lenient=("arguments_as_text",))
    (call,) = lenient.parse(wrap('{"name": "x", "arguments": "{\\"a\\": 1}"}')).calls
    assert isinstance(call, ToolCall)
    assert call.arguments == {"a": 1}
    (call,) = lenient.parse(wrap('{"name": "x", "arguments": "{\\"a\\": 1"}')).calls
    assert isinstance(call, MalformedCall)
    assert 'in the text of "arguments": the JSON ends too early' in call.reason


@pytest.mark.parametrize(
    ("text", "kinds", "is_cut"),
    [
        (f"<tool_call>\n{OK}", [MalformedCall], True),
        ('<tool_call>\n{"name": "x", "arg', [MalformedCall], True),
        (f"<tool_call>\n{OK}\n{wrap(OK)}", [MalformedCall, ToolCall], False),
        ('<tool_call>\n{"name": "x\n' + wrap(OK), [MalformedCall, ToolCall], False),
        (wrap('{"name": "x", "arguments": {"a": "b}}') + wrap(OK), [MalformedCall, ToolCall], False),
        ("</tool_call>" + "<tool_call>" * 8000, [MalformedCall, MalformedCall], True),
        ("<tool_call>" * 8000 + "</tool_call>", [MalformedCall, MalformedCall], False),
        ('<tool_call>{"a": "</tool_call>", "b": "c', [MalformedCall], True),
    ],
)
def test_an_open_call_does_not_take_the_next_one_with_it(text: str, kinds: list[type], is_cut: bool) -> None:
    action = read(text)
    assert ([type(call) for call in action.calls], action.is_cut) == (kinds, is_cut)


def test_an_open_call_with_whole_json_asks_for_its_close_only() -> None:
    (call,) = read(f"<tool_call>\n{OK}").calls
    assert isinstance(call, MalformedCall)
    assert call.reason == "the call is not closed; expected </tool_call> after the JSON"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=25).map("".join))
def test_reading_never_raises(text: str) -> None:
    read(text)
    for options in ({"thinking_open": True}, {"thinking_open": False, "lenient": ("arguments_as_text",)}):
        dialects.get("hermes", **options).parse(text)


def test_reading_random_and_hostile_texts_never_raises() -> None:
    rng = random.Random(0)
    for _ in range(5_000):
        read("".join(rng.choices(PIECES, k=rng.randint(1, 30))))
    read("".join(map(chr, range(0x300))) * 3)


STRING = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRING, inner),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(STRING, JSON, max_size=4)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.booleans())
def test_what_is_rendered_reads_back_the_same(arguments: list[dict[str, Any]], is_ascii: bool) -> None:
    calls = tuple(ToolCall("a tool", given) for given in arguments)
    text = HERMES.render_action(Message("assistant", "So.", calls))
    if is_ascii:
        text = "So.\n" + "\n".join(wrap(json.dumps({"name": "a tool", "arguments": given})) for given in arguments)
    action = read(text)
    assert [call.arguments for call in action.calls if isinstance(call, ToolCall)] == arguments
    assert action.content == "So."
