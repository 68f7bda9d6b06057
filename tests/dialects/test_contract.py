"""Every built-in dialect keeps the laws of dialects, and reads hostile texts in linear time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rlenv import dialects
from rlenv.dialects.built_in import row_of
from rlenv.dialects.families import ROWS
from rlenv.messages import ToolCall
from rlenv.registry import BUILT_IN
from rlenv.testing.dialects import ARGUMENTS, TOOLS, check_dialect, check_reading, hostile_texts

# These write one text, or have marks that stand for a line break.
SINGLE = {"search_r1": [{"query": "cats"}, {"query": "two words"}]}


def test_every_row_can_be_named() -> None:
    assert set(BUILT_IN["dialects"]) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_built_in_dialect_keeps_the_laws(name: str) -> None:
    check_dialect(dialects.get(name), arguments=SINGLE.get(name, ARGUMENTS))


@pytest.mark.parametrize("name", [name for name in ROWS if row_of(name).offers])
def test_leniencies_keep_the_laws_of_reading(name: str) -> None:
    check_dialect(dialects.get(name, lenient=row_of(name).offers), arguments=SINGLE.get(name, ARGUMENTS), texts=300)


@pytest.mark.parametrize("name", ROWS)
def test_hostile_texts_are_read_without_a_fault(name: str) -> None:
    for lenient in ((), row_of(name).offers):
        dialect = dialects.get(name, lenient=lenient)
        for text in hostile_texts(dialect, 20_000).values():
            check_reading(dialect, text)


def test_a_leniency_is_off_by_default_and_counted_where_it_is_used() -> None:
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}'
    assert not isinstance(dialects.get("hermes").parse(text).calls[0], ToolCall)
    read = dialects.get("hermes", lenient=("open_calls",)).parse(text)
    assert isinstance(read.calls[0], ToolCall)
    assert read.leniencies == ("open_calls",)
    whole = dialects.get("hermes", lenient=("open_calls",)).parse(text + "\n</tool_call>")
    assert whole.leniencies == ()


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("search_r1", "I look. <search> who wrote it </search>", {"query": "who wrote it"}),
        ("react", 'Thought: hm\nAction: search\nAction Input: {"query": "x"}\n', {"query": "x"}),
        ("react", "Thought: hm\nAction: search\nAction Input: who wrote it\nObservation:", {"query": "who wrote it"}),
        ("xml", '<call name="search">\n<arg name="query">a < b</arg><arg name="limit">3</arg>\n</call>',
         {"query": "a < b", "limit": 3}),
        ("xml_json", '<tool>{"name": "search", "args": {"query": "x"}}</tool>', {"query": "x"}),
        ("qwen3_coder", "<tool_call>\n<function=search>\n<parameter=query>\n12\n</parameter>\n<parameter=limit>\n12\n"
         "</parameter>\n</function>\n</tool_call>", {"query": "12", "limit": 12}),
        ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.search:3<|tool_call_argument_begin|>'
         '{"query": "<|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>', {"query": "<|tool_call_end|>"}),
        ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n'
         '{"query": "```"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', {"query": "```"}),
    ],
)  # fmt: skip
def test_families_are_read_as_they_write(name: str, text: str, arguments: Mapping[str, Any]) -> None:
    action = check_reading(dialects.get(name), text, TOOLS)
    assert [(call.name, getattr(call, "arguments", call)) for call in action.calls] == [("search", arguments)]


def test_ids_of_calls_are_kept_where_a_family_has_them() -> None:
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:7<|tool_call_argument_begin|>{}"
    (call,) = dialects.get("kimi_k2").parse(text + "<|tool_call_end|><|tool_calls_section_end|>").calls
    assert isinstance(call, ToolCall)
    assert call.id == "functions.search:7"
    (call,) = dialects.get("mistral").parse('[TOOL_CALLS]search[CALL_ID]abcDEF123[ARGS]{"query": "x"}').calls
    assert isinstance(call, ToolCall)
    assert (call.id, call.arguments) == ("abcDEF123", {"query": "x"})
