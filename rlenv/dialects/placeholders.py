"""Which text of a row takes which places, and the texts that hold others or lack one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from rlenv._base.nearest import nearest
from rlenv.dialects.findings import Path, RowFault, calls_of, place_of_form
from rlenv.dialects.json_body import marks_of
from rlenv.language.dialect import CallSpec, DialectSpec

__all__ = ["placeholder_findings"]

_PLACE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")
_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "begin": (),
    "turn": ("content", "role"),
    "generation": (),
    "result": ("content", "name", "id"),
    "reply": ("content",),
    "tools": ("tools", "example"),
    "tools_alone": ("tools", "example"),
    "results_joined": (),
    "calls_behind": (),
    "said": ("content",),
    "said_before": ("content",),
}
"""The places of the texts of `chat`."""
_PROSE: Final = ("tools", "tools_alone")
"""These explain in words, so that other braces in them are likely meant: only near misses are faults."""
_NEEDS: Final[Mapping[str, tuple[str, str]]] = {
    "turn": ("content", "so that no message is ever shown"),
    "result": ("content", "so that the model sees no result"),
    "reply": ("content", "so that the model sees no reply"),
    "said": ("content", "so that no answer is ever shown"),
    "said_before": ("content", "so that no words in front of a call are shown"),
    "tools": ("tools", "so that the model sees no tool"),
    "tools_alone": ("tools", "so that the model sees no tool"),
}
_OF_CALLS: Final = ("name", "arguments", "content", "key", "value", "id", "args", "tool", "thinking", "role", "type")
"""Words that somebody would write in the marks of calls who took them for forms."""


def placeholder_findings(row: DialectSpec) -> Iterator[RowFault]:
    """The faults of all texts of a whole row that have places, and of marks that look as if they had."""
    for key in ("begin", "turn", "generation", "result", "reply", "tools", "tools_alone", "said", "said_before"):
        text = getattr(row.chat, key)
        if isinstance(text, str):
            yield from _text(("chat", key), text, _TAKES[key], needs=_NEEDS.get(key), is_prose=key in _PROSE)
    for role, text in row.chat.turns.items():
        needs = ("content", f"so that no message of '{role}' is ever shown")
        yield from _text(("chat", "turns", role), text, _TAKES["turn"], needs=needs)
    marks = row.thinking_marks
    if marks.open:
        needs = ("thinking", "so that the model's thinking is lost")
        yield from _text(("thinking_marks", "written"), marks.written, ("thinking",), needs=needs)
    yield from _text(("section_head",), row.section_head, ("name",))
    for index, form in enumerate(calls_of(row)):
        yield from _marks(place_of_form(row, index), form)


def _text(
    path: Path, text: str, takes: tuple[str, ...], *, needs: tuple[str, str] | None = None, is_prose: bool = False
) -> Iterator[RowFault]:
    found = list(dict.fromkeys(_PLACE.findall(text)))
    strange = [name for name in found if name not in takes]
    for name in strange:
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
    if needs is not None and needs[0] not in found and not (is_prose and not text.strip()):
        yield RowFault(path, f"the text lacks '{{{needs[0]}}}', {needs[1]}", f"put {{{needs[0]}}} where it belongs")


def _marks(path: Path, form: CallSpec) -> Iterator[RowFault]:
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
