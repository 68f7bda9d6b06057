"""Every key of a dialect is read, or validation says that nothing reads it: held to what reading and writing do.

For each key that is read only under a condition there are two dialects, one in which it is read and one in which it is
not. That the first behaves otherwise with the key than without it, and the second does not, is tried out; that
the check complains about the second alone is asserted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rlenv import dialects
from rlenv.dialects.base import RowFault
from rlenv.dialects.built_in import FAMILIES, row_of
from rlenv.dialects.idle import CALL_RULES, CHAT_RULES, ROW_RULES
from rlenv.dialects.meaning import BODIES, bodies_of
from rlenv.language.dialect import CallSpec, ChatSpec, DialectSpec, ThinkingSpec
from rlenv.messages import MalformedCall, Message, ToolCall

Row = dict[str, Any]
TAGGED: Row = {
    "body": "tagged", "open": "<run ", "name_close": ">", "close": "</run>", "key_open": "<set ",
    "key_close": ">", "value_close": "</set>",
}  # fmt: skip
NESTED: Row = {**TAGGED, "key_open": "<", "value_close": "</{key}>", "nested": True}
JSON: Row = {"open": "<do>", "close": "</do>"}
NAMED: Row = {"body": "name_json", "open": "<do>", "after_name": "<with>", "close": "</do>"}
GEMMA: Row = {"body": "gemma", "open": "<do>", "close": "</do>", "quote": "<q>"}
PYTHON: Row = {"body": "pythonic", "open": "<do>", "close": "</do>"}
SECTION: Row = {"section_open": "<all>", "section_close": "</all>"}
NO_THINKING: Row = {"thinking_marks": {"open": "", "close": ""}}
SAME_TURN: Row = {"same_turn": True, "result": "<got>{content}</got>", "reply": "{content}"}
# What only one form of a mark's writing is read with.
SIGNS = "<also>"

# Where a key stands, its value, a dialect in which something reads it, one in which nothing does, and a text for the
# reader where writing does not show it.
CONDITIONS: list[tuple[str, Any, Row, Row, str]] = [
    ("calls.spellings", [SIGNS], {"calls": JSON, "lenient": ["spellings"]}, {"calls": JSON},
     '<also>{"name": "f", "arguments": {}}</do>'),
    ("calls.key_spellings", [SIGNS], {"calls": TAGGED, "lenient": ["spellings"]}, {"calls": TAGGED},
     "<run f><also>a>1</set></run>"),
    ("calls.starts", "[", {"calls": {**JSON, "open": "CALL"}}, {"calls": JSON},
     'CALL{"name": "f", "arguments": {}}</do> and <do>{"name": "f", "arguments": {}}</do>'),
    ("calls.starts", "[", {"calls": JSON, "section_open": "<do>", "section_close": "</do>"}, {"calls": JSON},
     '<do>{"name": "f", "arguments": {}}</do>'),
    ("calls.starts", "[", {"calls": {**JSON, "open": "CALL"}}, {"calls": {"at_start": True}},
     'CALL{"name": "f", "arguments": {}}</do>'),
    ("calls.close_is_optional", True, {"calls": JSON}, {"calls": {"open": "<do>"}},
     '<do>{"name": "f", "arguments": {}}'),
    ("calls.id_key", "id", {"calls": JSON}, {"calls": {**JSON, "by_name": True}}, ""),
    ("calls.id_first", True, {"calls": {**JSON, "id_key": "id"}}, {"calls": JSON}, ""),
    ("calls.name_key", "tool", {"calls": JSON}, {"calls": {**JSON, "by_name": True}}, ""),
    ("calls.arguments_key", "with", {"calls": JSON}, {"calls": {**JSON, "by_name": True}}, ""),
    ("calls.skipped", "function", {"calls": {**NAMED, "skip_to": "<json>"}}, {"calls": NAMED}, ""),
    ("calls.known", "parameters", {"calls": TAGGED}, {"calls": {**JSON, "known": "tools"}},
     "<run f><set zz>1</set></run>"),
    ("calls.known", "tools", {"calls": NAMED}, {"calls": GEMMA}, "<do>zz<with>{}</do>"),
    ("calls.known", "tools", {"calls": JSON}, {"calls": PYTHON}, '<do>{"name": "zz", "arguments": {}}</do>'),
    ("calls.untyped", "json", {"calls": TAGGED}, {"calls": {**TAGGED, "value_open": {"<v>": "text"}}},
     "<run f><set free>1</set></run>"),
    ("calls.untyped", "json", {"calls": TAGGED}, {"calls": NESTED}, "<run f><set free>1</set></run>"),
    ("calls.values", "scalars", {"calls": TAGGED}, {"calls": GEMMA}, ""),
    ("calls.values", "python", {"calls": TAGGED}, {"calls": NESTED}, ""),
    ("section_close", "</all>", {"calls": JSON, "section_open": "<all>"}, {"calls": JSON}, ""),
    ("section_each", True, {"calls": JSON, **SECTION}, {"calls": JSON}, ""),
    ("section_head", "to {name}:", {"calls": JSON, **SECTION}, {"calls": JSON}, ""),
    ("section_pad", "\n", {"calls": JSON, **SECTION}, {"calls": JSON}, ""),
    ("section_must_close", True, {"calls": JSON, **SECTION}, {"calls": JSON},
     '<all><do>{"name": "f", "arguments": {}}</do>'),
    ("suffixes", [":x"], {"calls": JSON}, {"calls": {"open": "CALL "}, **NO_THINKING}, ""),
    ("thinking", False, {"calls": JSON}, {"calls": JSON, **NO_THINKING}, ""),
    ("thinking_open", True, {"calls": JSON}, {"calls": JSON, "thinking": False}, "so I think"),
    ("thinking_open", True, {"calls": JSON}, {"calls": JSON, **NO_THINKING}, "so I think"),
    ("thinking_marks.written", "<think>{thinking}</think>", {"calls": JSON}, {"calls": JSON, **NO_THINKING}, ""),
    ("tools", "wrapped", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("tools", "wrapped", {"calls": JSON}, {"calls": JSON, "chat": {"tools": ""}}, ""),
    ("chat.tools_role", "user", {"calls": JSON}, {"calls": JSON, "chat": {"tools": ""}}, ""),
    ("chat.tools_role", "user", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.tools", "We have {tools}", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.tools_alone", "We have {tools}", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.result_role", "tool", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.results_joined", "; ", {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.drops_thinking", False, {"calls": JSON}, {"calls": JSON, "chat": SAME_TURN}, ""),
    ("chat.drops_thinking", False, {"calls": JSON}, {"calls": JSON, **NO_THINKING}, ""),
    ("chat.reply", "She says: {content}", {"calls": JSON, "chat": SAME_TURN}, {"calls": JSON}, ""),
    ("chat.turn", "[{role}]{content}[/]", {"calls": JSON},
     {"calls": JSON, "chat": {"turns": dict.fromkeys(("system", "user", "assistant"), "-{content}.")}}, ""),
    ("chat.roles.user", "U", {"calls": JSON}, {"calls": JSON, "chat": {"turns": {"user": "-{content}."}}}, ""),
    ("chat.roles.user", "U", {"calls": JSON}, {"calls": JSON, "chat": {"turn": "-{content}."}}, ""),
    ("chat.roles.tool", "T", {"calls": JSON, "chat": {"result_role": "tool"}}, {"calls": JSON}, ""),
    ("chat.turns.tool", "T:{content}", {"calls": JSON, "chat": {"result_role": "tool"}}, {"calls": JSON}, ""),
    ("chat.turns.assistant", "A:{content}.", {"calls": JSON, "chat": SAME_TURN},
     {"calls": JSON, "chat": {**SAME_TURN, "generation": "A:"}}, ""),
]  # fmt: skip

TOOLS: list[Row] = [
    {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "boolean"}, "free": {}}}},
    {"name": "g", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}},
]  # fmt: skip
CALLS = (ToolCall("f", {"a": "x <y>\n", "b": True}, id="7"), ToolCall("f", {"a": "z"}))
# The second has thinking before the last user's message.
TALKS = (
    [Message("user", " Q ")],
    [Message("system", "S"), Message("user", "Q"), Message("assistant", "<think>hm</think>A", CALLS),
     Message("tool", "R", name="f"), Message("tool", "T", name="f"), Message("user", "more"),
     Message("assistant", "<think>so</think>B")],
)  # fmt: skip


def placed(row: Row, where: str, value: Any) -> Row:
    first, *rest = where.split(".")
    if not rest:
        return {**row, first: value}
    return {**row, first: placed(row.get(first, {}), ".".join(rest), value)}


def behaviour(row: Row, texts: list[str]) -> tuple[Any, ...]:
    """All that a dialect does with conversations and calls, and how it reads texts."""
    dialect: Any = dialects.inline(DialectSpec.model_validate(row))
    observed = [dialect.render_observation(list(turn)) for turn in (TALKS[1][3:5], TALKS[1][5:6])]
    read = [
        (one.content, one.thinking, one.calls, one.is_cut) for one in (dialect.parse(text, TOOLS) for text in texts)
    ]
    return (
        [dialect.render_prompt(list(talk), tools) for talk in TALKS for tools in ((), TOOLS)],
        observed,
        written(row),
        read,
        dialect.same_turn,
    )


def written(row: Row) -> list[str]:
    dialect: Any = dialects.inline(DialectSpec.model_validate(row))
    turns: list[tuple[str, tuple[ToolCall | MalformedCall, ...]]] = [("", CALLS[:1]), ("A", CALLS), ("A", ())]
    broken = dialect.parse("<do>[f(</do>").calls
    turns.append(("", (*broken, *CALLS)))
    return [dialect.render_action(Message("assistant", content, calls)) for content, calls in turns]


def complaints(row: Row, where: str) -> list[RowFault]:
    found = dialects.contradictions(DialectSpec.model_validate(row))
    return [finding for finding in found if ".".join(map(str, finding.path)) == where]


@pytest.mark.parametrize(("where", "value", "reads", "idle", "text"), CONDITIONS)
def test_a_key_that_is_read_under_a_condition_is_a_fault_where_that_does_not_hold(
    where: str, value: Any, reads: Row, idle: Row, text: str
) -> None:
    for row, is_read in ((reads, True), (idle, False)):
        with_key = placed(row, where, value)
        texts = [text, *written(row), *written(with_key)]
        texts += [one[: len(one) // 2] for one in texts]
        assert (behaviour(row, texts) != behaviour(with_key, texts)) == is_read, row
        found = complaints(with_key, where)
        assert bool(found) != is_read, (row, found)
        assert all(finding.hint for finding in found)


def conditional() -> Iterator[str]:
    """The keys that the rules of `rlenv.dialects.idle` name."""
    yield from (f"calls.{key}" for key in CALL_RULES)
    yield from (f"chat.{key}" for key in CHAT_RULES)
    yield from ROW_RULES


def test_every_rule_is_tried() -> None:
    assert set(conditional()) <= {where for where, *_ in CONDITIONS}


# What a key of a form changes where it stands alone, so that it is read whenever its grammar is.
CHANGES: dict[str, Any] = {
    "open": "<new>", "close": "</new>", "name_key": "tool", "arguments_key": "with", "shape": "list", "by_name": True,
    "id_key": "id", "separator": "\n", "before_name": "go ", "after_name": "<then>", "id_mark": "<id>",
    "id_close": "<of>", "skip_to": "<json>", "indexed": True, "before_arguments": "{{", "after_arguments": "}}",
    "plain": True, "name_close": "!", "key_open": "<put ", "key_close": "=", "value_open": {"<v>": "json"},
    "value_close": "</put>", "quote": "<qq>", "tool": "g", "argument": "b", "pad": "\n", "name_pad": "\n",
    "value_pad": "\n", "between": "\n\n", "at_start": True, "nested": True, "trim": "space", "cdata": True,
}  # fmt: skip
WITNESSES = {
    "indexed": "<do>f:3<with>{}</do>", "plain": "<do>g<with>x</do>", "argument": "<do>yes</do>",
    "trim": "<run f><set free> a </set></run>", "nested": "<run f><b><c>1</c></b></run>",
    "id_mark": "<do>f<id>3<with>{}</do>", "at_start": "[f(a=1)]",
}  # fmt: skip
BY_BODY: dict[str, Row] = {
    "json": JSON, "name_json": NAMED, "pythonic": PYTHON, "tagged": TAGGED, "gemma": GEMMA,
    "text": {"body": "text", "open": "<do>", "close": "</do>", "tool": "f", "argument": "a"},
}  # fmt: skip
# These are nothing without another, which `rlenv.dialects.meaning` asks for.
TOGETHER = {"type_open", "type_close", "anywhere"}


@pytest.mark.parametrize("body", BODIES)
def test_a_key_of_a_form_is_read_by_the_grammars_that_its_docstring_names(body: str) -> None:
    row = {"calls": BY_BODY[body]}
    for key in CallSpec.model_fields:
        if key not in CHANGES or (body == "tagged" and key == "nested"):
            continue
        changed = {"calls": {**BY_BODY[body], key: CHANGES[key]}}
        texts = [WITNESSES.get(key, ""), '{"name": "f", "arguments": {}}', *written(row), *written(changed)]
        if body in bodies_of(key):
            assert behaviour(row, texts) != behaviour(changed, texts), key
        else:
            assert complaints(changed, f"calls.{key}"), key


def test_every_key_of_a_form_is_tried_somewhere() -> None:
    conditions = {where.removeprefix("calls.") for where, *_ in CONDITIONS if where.startswith("calls.")}
    assert set(CallSpec.model_fields) - {"body"} == set(CHANGES) | conditions | TOGETHER


@cache
def always_read() -> set[str]:
    """Keys that are read whatever stands beside them."""
    own = {"base", "calls", "section_open", "drop", "headers", "chat", "chat_template", "lenient", "offers"}
    chat = {"begin", "generation", "system", "result", "same_turn", "calls_behind", "content_behind"}
    chat |= {"said", "said_before", "trim", "roles", "turns"}
    return own | {f"chat.{key}" for key in chat} | {f"thinking_marks{key}" for key in ("", ".open", ".close", ".also")}


def test_every_other_key_is_read_always_or_has_a_condition_here() -> None:
    known = {where for where, *_ in CONDITIONS} | always_read()
    keys = set(DialectSpec.model_fields)
    keys |= {f"chat.{key}" for key in ChatSpec.model_fields}
    keys |= {f"thinking_marks.{key}" for key in ThinkingSpec.model_fields}
    assert keys <= known


@pytest.mark.parametrize("key", ["pad", "between", "name_pad", "value_pad", "skipped", "id_first"])
def test_what_only_writing_reads_is_idle_in_a_form_that_is_not_written(key: str) -> None:
    first = {**TAGGED, "skip_to": "<s>"} if key != "id_first" else {**JSON, "id_key": "id"}
    second = {**first, "open": "<other ", key: True if key == "id_first" else "\n"}
    row = {"calls": [first, second]}
    assert complaints(row, f"calls.1.{key}")
    plain = {"calls": [first, {name: value for name, value in second.items() if name != key}]}
    assert behaviour(row, written(row)) == behaviour(plain, written(row))


def test_calls_over_a_base_of_another_grammar_say_which_they_mean() -> None:
    (found,) = dialects.contradictions(DialectSpec(base="search_r1", calls=CallSpec(open="<calc>", close="</calc>")))
    assert found.path == ("calls", "body")
    assert (
        found.message == "'calls' replaces all forms of search_r1, whose body is text; without 'body' this one is json"
    )
    assert found.hint == "write body: text with its other keys, or body: json"
    for given in ({"body": "json"}, {"body": "text", "tool": "calculate"}):
        calls = {"open": "<calc>", "close": "</calc>", **given}
        assert dialects.contradictions(DialectSpec.model_validate({"base": "search_r1", "calls": calls})) == []


def test_a_section_whose_opening_mark_is_taken_away_leaves_nothing_of_the_base() -> None:
    base = next(name for name in FAMILIES if row_of(name).section_open)
    (found,) = dialects.contradictions(DialectSpec(base=base, section_open=""))
    assert found.path == ("section_open",)
    assert f"nothing reads section_close of {base}" in found.message.replace(", ", " of ") or base in found.message


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("repeated_tags", {"calls": TAGGED}),
        ("repeated_tags", {"calls": JSON}),
        ("open_thinking", {"calls": JSON}),
        ("open_thinking", {"calls": JSON, **NO_THINKING, "thinking_open": True}),
        ("schema_over_mark", {"calls": TAGGED}),
    ],
)
def test_a_leniency_that_can_never_apply_is_a_fault(name: str, row: Row) -> None:
    assert complaints({**row, "lenient": [name]}, "lenient.0")


def test_leniencies_that_apply_are_none() -> None:
    for name, row in (
        ("repeated_tags", {"calls": NESTED}),
        ("open_thinking", {"calls": JSON, "thinking_open": True}),
        ("schema_over_mark", {"calls": {**TAGGED, "value_open": {"<v>": "text"}}}),
    ):
        assert not complaints({**row, "lenient": [name]}, "lenient.0")
