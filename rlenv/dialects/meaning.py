"""Rows that cannot mean what they say: keys that nothing reads, marks that are missing or end nothing.

These faults follow from the keys alone. Whether what a row writes reads back is tried out in `roundtrip`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final, get_args

from rlenv._base.text import KeyPath, did_you_mean
from rlenv.dialects.base import RowFault, calls_of, listed, place_of_form
from rlenv.dialects.idle import WORDS, idle_findings, placeholder_findings
from rlenv.dialects.json_body import marks_of
from rlenv.language.dialect import CallSpec, ChatSpec, DialectSpec, Leniency

BODIES: Final[tuple[str, ...]] = get_args(CallSpec.model_fields["body"].annotation)
_WITH: Final = re.compile(r"(?:^|[.;]\s+)[Ww]ith ((?:`\w+`|, | and | or )+)")
_LIKELY: Final[Mapping[str, str]] = WORDS["likely"]
_NOT_IN_ONE_TURN: Final = (
    "tools", "tools_alone", "tools_role", "result_role", "results_joined", "drops_thinking",
)  # fmt: skip
_WITH_TEMPLATE: Final = ("calls_behind", "content_behind", "said", "said_before")
"""The keys of `chat` that are read beside a chat template, since calls are still written by the row."""
_ROLES: Final = ("system", "user", "assistant", "tool")


@cache
def bodies_of(key: str) -> tuple[str, ...]:
    """The bodies that read a key of `CallSpec`, as its docstring says; all of them where it names none."""
    text = CallSpec.model_fields[key].description or ""
    named = [name for match in _WITH.finditer(text) for name in re.findall(r"`(\w+)`", match[1])]
    return tuple(dict.fromkeys(name for name in named if name in BODIES)) or BODIES


def meaning_findings(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    """The contradictions within a row."""
    yield from placeholder_findings(row)
    for index, form in enumerate(calls_of(row)):
        path = place_of_form(row, index)
        if "calls" in given.model_fields_set:
            yield from _keys_of_other_bodies(path, form)
        yield from _check_marks(path, form)
    yield from _dead_forms(row)
    yield from _check_section(given, row)
    yield from _check_thinking(given, row)
    yield from _check_roles(given, row)
    yield from _check_turn(given, row)
    yield from _beside_a_template(given)
    yield from idle_findings(given, row)
    yield from _check_leniencies(given, row)


def _keys_of_other_bodies(path: KeyPath, form: CallSpec) -> Iterator[RowFault]:
    strange: dict[tuple[str, ...], list[str]] = {}
    for key in type(form).model_fields:
        if key in form.model_fields_set and form.body not in bodies_of(key):
            strange.setdefault(bodies_of(key), []).append(key)
    for bodies, keys in strange.items():
        wanted = " or ".join(bodies)
        if "body" not in form.model_fields_set:
            message = f"{_quote(keys)} {_are(keys)} read only with body: {wanted}; the form has none, which is json"
            hint = f"add body: {bodies[0]}"
        else:
            message = f"{_quote(keys)} {_are(keys)} read only with body: {wanted}; found body: {form.body}"
            hint = f"remove {_quote(keys)}, or write body: {wanted}"
        yield RowFault((*path, keys[0]), message, hint, "key")


def _quote(keys: list[str]) -> str:
    return listed([f"'{key}'" for key in keys])


def _are(keys: list[str]) -> str:
    return "are" if len(keys) > 1 else "is"


def _check_marks(path: KeyPath, form: CallSpec) -> Iterator[RowFault]:
    opens, closes = marks_of(form.open), marks_of(form.close)
    if not opens and not form.at_start:
        more = ", or at_start: true where the message starts with the call" if "at_start" in _read_by(form) else ""
        message = "a call has no opening mark, so that none is ever found"
        yield RowFault((*path, "open"), message, f"add open: {_LIKELY['open']}{more}", "key")
    if opens and form.at_start:
        message = "a call with 'at_start' has no marks, and this form has an opening one"
        yield RowFault((*path, "at_start"), message, "make it two forms: one with 'open', one with 'at_start'", "key")
    for key, else_ in WORDS["needed"].get(form.body, {}).items():
        if not marks_of(getattr(form, key)):
            message = f"body: {form.body} needs '{key}': without it {else_}"
            yield RowFault((*path, key), message, f"add {key}: {_LIKELY[key]}", "key")
    if set(opens) == set(closes) and opens and not form.starts:
        message = "a call closes as it opens, so that its end is never found"
        yield RowFault((*path, "close"), message, "write another text, such as </call>")
    for key, other in (("anywhere", "at_start"), ("id_first", "id_key"), ("skipped", "skip_to")):
        if getattr(form, key) and not getattr(form, other):
            message = f"'{key}' is read only with '{other}', and there is none"
            value = "true" if other == "at_start" else "…"
            yield RowFault((*path, key), message, f"add {other}: {value}, or remove '{key}'", "key")
    if form.close_is_optional and not closes:
        message = "there is no closing mark that could be left out"
        yield RowFault(
            (*path, "close_is_optional"), message, "add close: </call>, or remove 'close_is_optional'", "key"
        )
    if bool(form.type_open) != bool(form.type_close):
        lacking, other = ("type_open", "type_close") if form.type_close else ("type_close", "type_open")
        message = f"'{other}' is given without '{lacking}', so that no type is ever read"
        yield RowFault((*path, other), message, f"add '{lacking}', or remove '{other}'", "key")
    if form.body == "json" and not form.by_name and form.name_key in marks_of(form.arguments_key):
        message = "name and arguments of a call stand at one key"
        yield RowFault((*path, "name_key"), message, "write another key, such as name_key: name")
    if form.by_name and form.model_fields_set & {"name_key", "arguments_key"}:
        key = next(key for key in ("name_key", "arguments_key") if key in form.model_fields_set)
        message = f"'{key}' is not read with by_name: true, where the tool's name is itself the key"
        yield RowFault((*path, key), message, f"remove '{key}', or 'by_name'", "key")
    if form.body == "pythonic" and form.separator not in ("", "\n"):
        message = "with body: pythonic calls stand in a list, or one a line"
        yield RowFault((*path, "separator"), message, 'remove it for a list, or write separator: "\\n"')


def _read_by(form: CallSpec) -> set[str]:
    return {key for key in type(form).model_fields if form.body in bodies_of(key)}


def _dead_forms(row: DialectSpec) -> Iterator[RowFault]:
    """Forms that no text reaches, because another one takes every call with their mark."""
    forms = calls_of(row)
    for index, form in enumerate(forms):
        if not marks_of(form.open):
            continue
        for earlier in range(index):
            other = forms[earlier]
            taken = set(marks_of(form.open)) <= set(marks_of(other.open))
            if taken and (not other.starts or (form.starts and set(form.starts) <= set(other.starts))):
                mark = marks_of(form.open)[0]
                message = f"form {earlier + 1} opens with {mark} too and takes every call, so that this one reads none"
                hint = "put this one first" if form.starts else f"put this one first, with starts: {_start_of(form)}"
                if "starts" not in _read_by(form):
                    hint = "give one of them another opening mark"
                yield RowFault((*place_of_form(row, index), "open"), message, hint)
                break


def _start_of(form: CallSpec) -> str:
    first = "[" if form.shape == "list" or form.body == "pythonic" else "{"
    return f'"{first}"'


def _check_section(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    if row.section_open and not row.section_close:
        message = "the part of the message that holds calls is opened and never closed"
        yield RowFault(("section_open",), message, "add section_close: </calls>", "key")
    if row.section_open and row.section_open == row.section_close:
        message = "the section closes as it opens, so that its end is never found"
        yield RowFault(("section_close",), message, "write another text, such as </calls>")
    if not row.section_open:
        for key in ("section_close", "section_each", "section_head", "section_must_close", "section_pad"):
            if key in given.model_fields_set and getattr(given, key):
                message = f"'{key}' is read only with 'section_open', and there is none"
                yield RowFault((key,), message, f"add section_open: <calls>, or remove '{key}'", "key")


def _check_thinking(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    marks = row.thinking_marks
    if marks.open and not marks.close:
        message = "thinking is opened and never closed, so that all behind it is thinking"
        yield RowFault(("thinking_marks", "close"), message, "add close: </think>", "key")
    if marks.close and not marks.open:
        message = "'close' is read only with 'open', and there is none"
        yield RowFault(("thinking_marks", "close"), message, 'add open: <think>, or write close: ""', "key")
    if marks.open and marks.open == marks.close:
        message = "thinking closes as it opens, so that its end is never found"
        yield RowFault(("thinking_marks", "close"), message, "write another text, such as </think>")
    if marks.open:
        for index, form in enumerate(calls_of(row)):
            same = {marks.open, marks.close} & set(marks_of(form.open))
            if same:
                message = f"a call opens with {same.pop()}, which is a mark of thinking: it is never read as a call"
                hint = 'write another mark, or thinking_marks: {open: "", close: ""} for a family without thinking'
                yield RowFault((*place_of_form(row, index), "open"), message, hint)
        return
    for key, value in (("thinking", False), ("thinking_open", True)):
        if key in given.model_fields_set and getattr(given, key) is value:
            message = f"'{key}' says something of thinking, for which this dialect has no marks"
            yield RowFault((key,), message, f"add thinking_marks: {{open: …, close: …}}, or remove '{key}'", "key")


def _check_roles(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    chat = row.chat
    known = dict.fromkeys((*_ROLES, chat.result_role))
    for key in ("roles", "turns"):
        if "chat" not in given.model_fields_set or key not in given.chat.model_fields_set:
            continue
        for role in getattr(given.chat, key):
            if role not in known:
                hint = did_you_mean(role, known, otherwise=f"roles: {', '.join(known)}")
                yield RowFault(("chat", key, role), f"no message has the role '{role}'", hint, "key")
            elif role == "tool" and chat.result_role != "tool":
                message = f"results stand in turns of '{chat.result_role}' (result_role), so that this is not read"
                yield RowFault(("chat", key, role), message, "write result_role: tool, or remove it", "key")


def _check_turn(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    asked = given.chat.model_fields_set if "chat" in given.model_fields_set else set()
    if not row.chat.same_turn:
        if "reply" in asked:
            message = "'reply' is read only with same_turn: true"
            yield RowFault(("chat", "reply"), message, "add same_turn: true, or remove 'reply'", "key")
        return
    for key in _NOT_IN_ONE_TURN:
        if key in asked:
            message = f"'{key}' is not read with same_turn: true, where all goes on in the assistant's turn"
            yield RowFault(("chat", key), message, f"remove '{key}', or 'same_turn'", "key")
    for index, form in enumerate(calls_of(row)):
        if not marks_of(form.close):
            message = "with same_turn: true generation has to end behind a call, and this one has no closing mark"
            yield RowFault((*place_of_form(row, index), "close"), message, "add close: </call>", "key")
        elif form.close_is_optional:
            message = "with same_turn: true generation ends at the closing mark, which may not be optional"
            yield RowFault((*place_of_form(row, index), "close_is_optional"), message, "remove it", "key")


def _beside_a_template(given: DialectSpec) -> Iterator[RowFault]:
    """Keys that a chat template makes idle."""
    if given.chat_template is None:
        return
    for key in ChatSpec.model_fields if "chat" in given.model_fields_set else ():
        if key in given.chat.model_fields_set and key not in _WITH_TEMPLATE:
            message = f"'{key}' is not read beside a chat template, which writes the conversation"
            yield RowFault(("chat", key), message, f"remove '{key}', or 'chat_template'", "key")
    for key, hint in (
        ("thinking", "remove it; for Qwen3 write chat_template: {file: …, vars: {enable_thinking: false}}"),
        ("tools", "remove it: the template lists the tools in its own way"),
    ):
        if key in given.model_fields_set:
            yield RowFault((key,), f"'{key}' is not read beside a chat template, which writes the prompt", hint, "key")


def _check_leniencies(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    for key in ("lenient", "offers"):
        if key not in given.model_fields_set:
            continue
        for index, name in enumerate(getattr(given, key)):
            why = _idle_reason(name, row)
            if why:
                message = f"the leniency '{name}' can never apply: {why}"
                fitting = [one for one in row.offers if not _idle_reason(one, row) and one not in getattr(given, key)]
                hint = f"remove it; those of the base are: {', '.join(fitting)}" if fitting else "remove it"
                yield RowFault((key, index), message, hint)


def _idle_reason(name: Leniency, row: DialectSpec) -> str:
    """The reason why a leniency changes nothing in a row, "" where it may."""
    forms = calls_of(row)
    bodies = WORDS["leniencies"].get(name)
    if bodies is not None and not any(form.body in bodies for form in forms):
        return f"it is read only with body: {' or '.join(bodies)}"
    if name == "bare_calls" and not row.section_open:
        return "calls have no section that they could stand outside of"
    if name == "open_calls" and not any(marks_of(form.close) for form in forms):
        return "calls have no closing mark that the text's end could leave out"
    if name == "open_tags" and not any(form.name_close for form in forms):
        return "it is read only with 'name_close'"
    if name == "repeated_tags" and not any(form.nested for form in forms):
        return "it is read only with nested: true"
    if name == "open_thinking" and not (row.thinking_open and row.thinking and row.thinking_marks.open):
        return "the prompt opens no thinking (thinking_open)"
    if name == "schema_over_mark" and not any("text" in form.value_open.values() for form in forms):
        return "no mark of 'value_open' says that its value is a text"
    if name == "extra_parameters" and not any(form.known == "parameters" for form in forms):
        return "it is read only with known: parameters"
    if name == "spellings" and not any(form.spellings or form.key_spellings or form.body == "gemma" for form in forms):
        return "there are no 'spellings' and no 'key_spellings'"
    return ""
