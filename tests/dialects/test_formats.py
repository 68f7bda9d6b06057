"""What a family writes is read back strictly, whatever a call holds: what its row writes, and its format said apart."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlenv import dialects
from rlenv.dialects.built_in import row_of
from rlenv.dialects.engine import TextDialect
from rlenv.messages import MalformedCall, Message, ToolCall
from rlenv.testing.dialects import check_reading
from tests.dialects.formats import FORMATS, Format
from tests.support.arguments import KEYS, PLAIN, TOOLS, value

CASES = [(name, number) for name, formats in FORMATS.items() for number in range(len(formats))]


def marks(name: str) -> tuple[str, ...]:
    """Every mark of a family that a text could hold by chance or by malice."""
    row = row_of(name)
    calls = row.calls if isinstance(row.calls, tuple) else (row.calls,)
    found = [mark for call in calls for mark in (call.open, call.close, call.after_name)]
    flat = [mark for one in found for mark in ((one,) if isinstance(one, str) else one)]
    return tuple(mark for mark in (*flat, row.section_open, row.section_close, *row.drop) if len(mark) > 1)


def calls_of(rng: random.Random, name: str, form: Format) -> list[tuple[str, dict[str, Any]]]:
    texts = PLAIN + marks(name) if form.escapes else PLAIN
    return [
        (rng.choice(list(TOOLS)), {key: value(rng, key, texts) for key in rng.sample(KEYS, rng.randint(0, 4))})
        for _ in range(rng.randint(1, form.most))
    ]


def dialect(name: str) -> TextDialect:
    found = dialects.get(name)
    assert isinstance(found, TextDialect)
    return found


def read(name: str, text: str) -> tuple[list[Any], str]:
    action = check_reading(dialects.get(name), text, TOOLS)
    calls = [(call.name, dict(call.arguments)) if isinstance(call, ToolCall) else call.reason for call in action.calls]
    assert not action.is_cut, text
    assert action.leniencies == ()
    return calls, action.content


@pytest.mark.slow(but=15)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_calls_in_a_familys_format_are_read_strictly(name: str, number: int) -> None:
    form = FORMATS[name][number]
    closing = dialect(name).writer.closing  # of the thinking that the prompt has opened
    rng = random.Random(f"{name} {number}")
    for _ in range(40):
        calls = calls_of(rng, name, form)
        text = form.write(rng, calls)
        assert read(name, closing + text) == (calls, ""), text
        if form.content:
            said = rng.choice(["I look.", "Two\nlines, {x} [y] (z) é", 'He said "no".'])
            both = f"{said}{text}" if form.content == "before" else f"{text}{said}"
            assert read(name, closing + both) == (calls, said), both


@pytest.mark.slow(but=10)
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_row_writes_is_read_strictly(name: str) -> None:
    form, dialect = FORMATS[name][0], dialects.get(name)
    rng = random.Random(name)
    for _ in range(40):
        calls = calls_of(rng, name, form)
        said = rng.choice(["", "", "I look.", "Two\nlines, {x} [y] (z) é"])
        message = Message("assistant", said, tuple(ToolCall(tool, given) for tool, given in calls))
        text = dialect.render_action(message)
        assert read(name, text) == (calls, said), text
    assert read(name, dialect.render_action(Message("assistant", "The end."))) == ([], "The end.")


@pytest.mark.parametrize("name", FORMATS)
def test_a_broken_call_is_written_as_it_stood_and_stays_broken(name: str) -> None:
    form, reader = FORMATS[name][0], dialect(name)
    good = form.write(random.Random(0), [("look", {"text": "a", "count": 1})])
    rng = random.Random(name)
    seen = 0
    for _ in range(60):
        at = rng.randrange(len(good))
        broken = good[:at] + rng.choice(["", "\x01", '"', "}", "=", "<"]) + good[at + rng.randint(0, 3) :]
        read = reader.parse(reader.writer.closing + broken, TOOLS)
        if not any(isinstance(call, MalformedCall) for call in read.calls):
            continue
        seen += 1
        written = reader.render_action(Message("assistant", "", read.calls))
        again = reader.parse(written, TOOLS)
        assert [type(call) for call in again.calls] == [type(call) for call in read.calls], (broken, written)
        assert [call.name for call in again.calls] == [call.name for call in read.calls], (broken, written)
    assert seen


def test_ids_are_read_and_written_where_a_family_has_them() -> None:
    for name, text in (
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abcdefgh1"}]'),
        ("mistral_v3", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefgh1"}]'),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{}"),
        ("apriel_1_5", '<tool_calls>[{"name": "f", "arguments": {}, "id": "abcdefgh1"}]</tool_calls>'),
        ("solar_open", "<|tool_calls|><|tool_call:begin|>abcdefgh1<|tool_call:name|>f<|tool_call:args|>{}"
         "<|tool_call:end|><|calls|>"),
        ("cohere_command3", '<|START_ACTION|>[{"tool_call_id": "abcdefgh1", "tool_name": "f", "parameters": {}}]'
         "<|END_ACTION|>"),
    ):  # fmt: skip
        (call,) = dialects.get(name).parse(text).calls
        assert isinstance(call, ToolCall)
        assert call.id == "abcdefgh1", name
    written = dialects.get("mistral_v3").render_action(Message("assistant", "", (ToolCall("f", {}, "abcdefgh1"),)))
    assert written == '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefgh1"}]'
    two = (ToolCall("f", {}), ToolCall("g", {}))
    assert '"tool_call_id": "1", "tool_name": "g"' in dialects.get("cohere_command3").render_action(
        Message("assistant", "", two)
    )
    assert "functions.g:1" in dialects.get("kimi_k2").render_action(Message("assistant", "", two))


def test_objects_with_a_name_that_are_no_calls_are_content() -> None:
    for text in (
        '{"name": "Bob", "age": 5}',
        'It is {"name": "Bob", "age": 5}.',
        'The set {"x": 1} and {"name": "f", "parameter": {}} stay.',
        'As [1](https://example.org), see [f(x)] or {"names": []}.',
    ):
        for name in ("llama3_json", "llama4_json", "llama4_pythonic"):
            assert read(name, text) == ([], text), name


@pytest.mark.parametrize(
    "text",
    [
        'So. {"name": "look", "parameters": {"text": "a',
        'So. {"name": "look", "param',
        '{"name": "look", "parameters": {"a": b}}',
    ],
)
def test_a_call_in_text_that_is_cut_or_broken_is_malformed(text: str) -> None:
    action = check_reading(dialects.get("llama3_json"), text, TOOLS)
    assert [type(call) for call in action.calls] == [MalformedCall]
    assert action.content == ("So." if text.startswith("So.") else "")
    assert action.is_cut is not text.endswith("}")


def test_channels_of_gpt_oss_are_thinking_text_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>I call {f}.<|end|><|start|>assistant<|channel|>commentary<|message|>One moment."
        '<|end|><|start|>assistant to=functions.look<|channel|>commentary json<|message|>{"text": "<|call|>"}<|call|>'
    )
    action = dialects.get("gpt_oss").parse(text)
    assert (action.thinking, action.content) == ("I call {f}.", "One moment.")
    assert [(call.name, getattr(call, "arguments", None)) for call in action.calls] == [("look", {"text": "<|call|>"})]
    final = dialects.get("gpt_oss").parse(
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>42"
    )
    assert (final.thinking, final.content, final.calls) == ("a", "42", ())


def test_headers_of_muse_are_neither_content_nor_calls() -> None:
    text = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>It is 4.<|eot|>"
    action = dialects.get("muse").parse(text)
    assert (action.thinking, action.content, action.calls) == ("Hm.", "It is 4.", ())
    assert dialects.get("muse").parse("set x to=5 now").content == "set x to=5 now"
