"""Rows whose marks have a suffix that differs from one checkpoint of a family to the next: <tool_call:opensource>."""

from __future__ import annotations

import re
from typing import Any, Final

from rlenv.language.dialect import CallSpec, DialectSpec, ThinkingSpec

__all__ = ["suffixed"]

_TAG: Final = re.compile(r"(</?\w+)>")


def suffixed(spec: DialectSpec, suffix: str) -> DialectSpec:
    """The row with `suffix` behind the name in each of its marks."""

    def marked(value: Any) -> Any:
        if isinstance(value, str):
            return _TAG.sub(lambda match: f"{match[1]}{suffix}>", value)
        if isinstance(value, dict):
            return {marked(key): item for key, item in value.items()}
        return tuple(map(marked, value)) if isinstance(value, (list, tuple)) else value

    def renamed(row: CallSpec) -> CallSpec:
        return row.model_copy(update={key: marked(getattr(row, key)) for key in type(row).model_fields})

    calls = renamed(spec.calls) if isinstance(spec.calls, CallSpec) else tuple(map(renamed, spec.calls))
    marks = spec.thinking_marks
    thinking = ThinkingSpec(open=marked(marks.open), close=marked(marks.close), written=marked(marks.written))
    section = {key: marked(getattr(spec, key)) for key in ("section_open", "section_close", "drop")}
    return spec.model_copy(update={"calls": calls, "thinking_marks": thinking, "suffixes": (), **section})
