"""Keys of a row that nothing reads, given the others: of the spec itself or of its base.

Keys that a grammar (`body`) does not know follow from the docstrings of `CallSpec` (`rlenv.dialects.meaning`). Here are
the others: each rule says for a key under what condition nothing reads it. `tests/dialects/test_idle_keys.py` holds the
table to what reading and writing do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import KeyPath, nearest
from rlenv.dialects.base import RowFault, calls_of, place_of_form
from rlenv.dialects.json_body import marks_of
from rlenv.language.dialect import CallSpec, DialectSpec

_PLACE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
WORDS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("meaning.toml").read_text(encoding="utf-8"))
"""What the keys of a row need, take and are likely to be."""
_OF_CALLS: Final = ("name", "arguments", "content", "key", "value", "id", "args", "tool", "thinking", "role", "type")
"""Words that somebody would write in the marks of calls who took them for forms."""


def placeholder_findings(row: DialectSpec) -> Iterator[RowFault]:
    """The faults of all texts of a whole row that have places, and of marks that look as if they had."""
    for key, rules in WORDS["texts"].items():
        if isinstance(text := getattr(row.chat, key), str):
            yield from _text_findings(("chat", key), text, **rules)
    for role, text in row.chat.turns.items():
        needs = ("content", f"so that no message of '{role}' is ever shown")
        yield from _text_findings(("chat", "turns", role), text, WORDS["texts"]["turn"]["takes"], needs=needs)
    marks = row.thinking_marks
    if marks.open:
        needs = ("thinking", "so that the model's thinking is lost")
        yield from _text_findings(("thinking_marks", "written"), marks.written, ("thinking",), needs=needs)
    yield from _text_findings(("section_head",), row.section_head, ("name",))
    for index, form in enumerate(calls_of(row)):
        yield from _mark_findings(place_of_form(row, index), form)


def _text_findings(
    path: KeyPath, text: str, takes: Sequence[str], *, needs: Sequence[str] | None = None, is_prose: bool = False
) -> Iterator[RowFault]:
    places = list(dict.fromkeys(_PLACE.findall(text)))
    unknown = [name for name in places if name not in takes]
    for name in unknown:
        # {contents} and {Content} are meant for {content}; another word is close to none.
        close = nearest(name, takes) or nearest(name.lower(), takes)
        if close is not None:
            hint = f"did you mean '{{{close}}}'?"
        elif is_prose:
            continue
        elif takes:
            hint = f"it takes {' and '.join('{' + one + '}' for one in takes)}"
        else:
            hint = "it takes no places: write the text itself"
        yield RowFault(path, f"'{{{name}}}' is not filled here", hint, find=f"{{{name}}}")
        if needs is not None and close == needs[0]:
            return
    if needs is not None and needs[0] not in places and not (is_prose and not text.strip()):
        yield RowFault(path, f"the text lacks '{{{needs[0]}}}', {needs[1]}", f"put {{{needs[0]}}} where it belongs")


def _mark_findings(path: KeyPath, form: CallSpec) -> Iterator[RowFault]:
    for key in type(form).model_fields:
        value = getattr(form, key)
        if isinstance(value, Mapping):
            value = tuple(value)
        if not isinstance(value, (str, tuple)) or key in ("body", "tool", "argument", "name_key", "arguments_key"):
            continue
        for mark in marks_of(value):
            for name in _PLACE.findall(mark):
                if name in _OF_CALLS and not (name == "key" and key == "value_close"):
                    hint = "give the text before it and the text behind it as marks of their own"
                    message = f"'{{{name}}}' is not filled here: marks are read and written as they stand"
                    yield RowFault((*path, key), message, hint, find=f"{{{name}}}")


Why = tuple[str, str]
"""What is wrong with a key, and the nearest fix; `("", "")` where something reads it."""
_READ: Final[Why] = ("", "")
_WRITTEN_ALONE: Final = ("pad", "between", "name_pad", "value_pad", "skipped", "id_first")
_TAG: Final = re.compile(r"</?\w+>")
_ROLES: Final = ("system", "user", "assistant")


def idle_findings(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    """The keys that `given` has, that say something, and that nothing reads in the whole row `row`."""
    if "calls" in given.model_fields_set:
        yield from _grammar_findings(given)
        for index, form in enumerate(calls_of(row)):
            for key in type(form).model_fields:
                if key in form.model_fields_set and _says_something(form, key):
                    yield from _finding((*place_of_form(row, index), key), _call_reason(key, form, index, given, row))
    if "chat" in given.model_fields_set:
        for key in type(given.chat).model_fields:
            if key not in given.chat.model_fields_set:
                continue
            if key in ("roles", "turns"):
                for role in getattr(given.chat, key):
                    yield from _finding(("chat", key, role), _role_reason(key, role, row))
            elif key in CHAT_RULES:
                yield from _finding(("chat", key), CHAT_RULES[key](given, row))
    for key, rule in ROW_RULES.items():
        first, *rest = key.split(".")
        if first in given.model_fields_set:
            yield from _finding((first, *rest), rule(given, row))
    yield from _section_findings(given, row)


def _finding(path: KeyPath, why: Why) -> Iterator[RowFault]:
    message, hint = why
    if message:
        yield RowFault(path, message, hint, "key")


def _says_something(form: CallSpec, key: str) -> bool:
    """True if a key has another value than the one that it has where nobody writes it."""
    return bool(getattr(form, key) != type(form).model_fields[key].get_default(call_default_factory=True))


def _grammar_findings(given: DialectSpec) -> Iterator[RowFault]:
    """`calls` replaces the forms of the base as a whole; without `body` it is JSON, which the base may not be."""
    from rlenv.dialects.built_in import row_of

    if "base" not in given.model_fields_set or given.base is None:
        return
    bodies = dict.fromkeys(form.body for form in calls_of(row_of(given.base)))
    if "json" in bodies:
        return
    for index, form in enumerate(calls_of(given)):
        if "body" not in form.model_fields_set:
            message = f"'calls' replaces all forms of {given.base}, whose body is {next(iter(bodies))}; without 'body' "
            message += "this one is json"
            hint = f"write body: {next(iter(bodies))} with its other keys, or body: json"
            yield RowFault((*place_of_form(given, index), "body"), message, hint, "key")


def _call_reason(key: str, form: CallSpec, index: int, given: DialectSpec, row: DialectSpec) -> Why:
    if index and key in _WRITTEN_ALONE:
        return f"'{key}' is read in writing alone, and only the first form is written", f"remove '{key}'"
    rule = CALL_RULES.get(key)
    return _READ if rule is None else rule(form, given, row)


def _leniency_rule(key: str) -> Callable[[CallSpec, DialectSpec, DialectSpec], Why]:
    def rule(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
        if "spellings" in (*row.lenient, *(given.offers if "offers" in given.model_fields_set else ())):
            return _READ
        return f"'{key}' is read only with the leniency 'spellings', which is off", "add lenient: [spellings]"

    return rule


def _exclusion_rule(key: str, is_idle: Callable[[CallSpec], bool], other: str, hint: str) -> Callable[..., Why]:
    """A rule: `key` is not read beside `other`."""

    def rule(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
        return (f"'{key}' is not read with {other}", hint) if is_idle(form) else _READ

    return rule


def _nested_rule(key: str) -> Callable[..., Why]:
    hint = f"remove '{key}', or 'nested'"
    return _exclusion_rule(key, lambda form: form.nested, "nested: true, where values are tags and texts", hint)


def _untyped_reason(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
    if form.nested:
        return _nested_rule("untyped")(form, given, row)
    if form.value_open and "schema" not in form.value_open.values():
        return "'untyped' is not read where every mark of 'value_open' says how its value is read", "remove 'untyped'"
    return _READ


def _values_reason(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
    if form.body == "gemma" and form.values == "scalars":
        return "values: scalars is read only with body: tagged", "remove it, or write values: python"
    return _nested_rule("values")(form, given, row)


def _known_reason(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
    if form.known == "parameters" and form.body in ("json", "name_json"):
        return f"with body: {form.body} the tool alone is looked up, not its parameters", "write known: tools"
    return _READ


def _starts_reason(form: CallSpec, given: DialectSpec, row: DialectSpec) -> Why:
    if form.at_start:
        return (
            "'starts' is not read with at_start: true, where a call without marks begins by itself",
            "remove 'starts'",
        )
    opens = marks_of(form.open)
    shared = {mark for other in calls_of(row) if other is not form for mark in marks_of(other.open)}
    if not opens or shared & set(opens) or set(opens) & set(marks_of(form.close)):
        return _READ
    # As the engine has it: no text holds these by chance, and they are nothing else.
    others = {row.section_open, row.section_close, *row.drop}
    if any(mark[-1] not in ">]" or mark in others for mark in opens):
        return _READ
    message = f"'starts' is not read: {opens[0]} opens a call whatever follows, and no other form opens with it"
    return message, "remove 'starts'"


CALL_RULES: Final[Mapping[str, Callable[[CallSpec, DialectSpec, DialectSpec], Why]]] = {
    "spellings": _leniency_rule("spellings"),
    "key_spellings": _leniency_rule("key_spellings"),
    "starts": _starts_reason,
    "id_key": _exclusion_rule(
        "id_key",
        lambda form: form.by_name,
        "by_name: true, whose calls hold one key, the tool's name",
        "remove 'id_key'",
    ),
    "known": _known_reason,
    "untyped": _untyped_reason,
    "values": _values_reason,
}
"""For a key of a form: why nothing reads it in that form."""


def _tools_role_reason(given: DialectSpec, row: DialectSpec) -> Why:
    if row.chat.tools == "" and not row.chat.tools_alone:
        return "'tools_role' says who shows the tools, and 'tools' is empty: nobody does", "remove it, or write 'tools'"
    return _READ


def _drops_thinking_reason(given: DialectSpec, row: DialectSpec) -> Why:
    if row.thinking_marks.close:
        return _READ
    return "'drops_thinking' says something of thinking, for which this dialect has no marks", "remove it"


def _turn_reason(given: DialectSpec, row: DialectSpec) -> Why:
    used = {*_ROLES} if row.chat.same_turn else {*_ROLES, row.chat.result_role}
    if used <= set(row.chat.turns):
        return "'turn' is not read: 'turns' says how each role's is written", "remove it, or one of 'turns'"
    return _READ


CHAT_RULES: Final[Mapping[str, Callable[[DialectSpec, DialectSpec], Why]]] = {
    "tools_role": _tools_role_reason,
    "drops_thinking": _drops_thinking_reason,
    "turn": _turn_reason,
}
"""For a key of `chat`: why nothing reads it in the whole row."""


def _role_reason(key: str, role: str, row: DialectSpec) -> Why:
    chat = row.chat
    if role == "assistant" and chat.same_turn and chat.generation is not None:
        message = "the assistant's turn is not read with same_turn: true beside 'generation', which begins it"
        return message, f"remove it from '{key}', or remove 'generation'"
    form = chat.turns.get(role, chat.turn)
    if key == "roles" and "{role}" not in form:
        where = f"turns.{role}" if role in chat.turns else "turn"
        return (
            f"the name of '{role}' is not read: '{where}' has no {{role}}",
            f"remove it, or write {{role}} in {where}",
        )
    return _READ


def _written_reason(given: DialectSpec, row: DialectSpec) -> Why:
    marks = row.thinking_marks
    if marks.written and not marks.open:
        return "'written' is read only with 'open', and there is none", "add open: <think>, or remove 'written'"
    own = type(marks).model_validate({"open": marks.open, "close": marks.close}).written
    if given.chat_template is not None and not row.thinking_open and marks.written != own:
        return "'written' is not read beside a chat template, which writes the conversation", "remove 'written'"
    return _READ


def _thinking_open_reason(given: DialectSpec, row: DialectSpec) -> Why:
    if row.thinking_marks.open and given.thinking_open and not given.thinking:
        return "'thinking_open' is not read with thinking: false, which closes the block", "remove one of the two"
    return _READ


def _suffixes_reason(given: DialectSpec, row: DialectSpec) -> Why:
    if not any(row.suffixes):
        return _READ
    marks = [row.section_open, row.section_close, *row.drop, row.thinking_marks.open, row.thinking_marks.close]
    for form in calls_of(row):
        marks += [*marks_of(form.open), *marks_of(form.close), *marks_of(form.key_open), form.value_close]
    if any(_TAG.search(mark) for mark in marks):
        return _READ
    return "'suffixes' stand behind the names of tags, and no mark is a tag such as <call>", "remove 'suffixes'"


def _tools_reason(given: DialectSpec, row: DialectSpec) -> Why:
    if row.chat.same_turn:
        return "'tools' is not read with same_turn: true, where the prompt says what tools there are", "remove it"
    if row.chat.tools == "" and not row.chat.tools_alone:
        return "'tools' says how tools are shown, and 'chat.tools' is empty: they are not", "remove it"
    return _READ


ROW_RULES: Final[Mapping[str, Callable[[DialectSpec, DialectSpec], Why]]] = {
    "thinking_marks.written": _written_reason,
    "thinking_open": _thinking_open_reason,
    "suffixes": _suffixes_reason,
    "tools": _tools_reason,
}
"""For a key of the row: why nothing reads it in the whole row."""


def _section_findings(given: DialectSpec, row: DialectSpec) -> Iterator[RowFault]:
    """A section whose opening mark is taken away, and whose other keys the base still has."""
    if row.section_open or "section_open" not in given.model_fields_set:
        return
    left = [key for key in ("section_close", "section_head", "section_pad", "section_each", "section_must_close")
            if getattr(row, key) and key not in given.model_fields_set]  # fmt: skip
    if left:
        empty = ", ".join(f"{key}: {_empty_value(getattr(row, key))}" for key in left)
        message = f"without 'section_open' nothing reads {', '.join(left)} of {given.base}"
        yield RowFault(("section_open",), message, f"write {empty} beside it")


def _empty_value(value: object) -> str:
    return "false" if isinstance(value, bool) else '""'
