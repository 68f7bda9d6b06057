"""Results to the text that the model sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from rlenv.messages import ToolResult
from rlenv.spec import ObservationSpec
from rlenv.templates import Template, TemplateError

__all__ = ["Cut", "Show", "cut_chars", "shower"]

Cut = Callable[[str], str]
"""Shortens a result's content; structure around it is added afterwards and never cut."""

Show = Callable[[ToolResult, Mapping[str, Any], int], str]
"""(result, task, turn) to the content of the tool message."""

CHARS_PER_TOKEN = 4  # stands in for a tokenizer where none is bound; English text has about 4 characters a token


def cut_chars(spec: ObservationSpec) -> Cut:
    """Cuts by characters: `max_chars`, and `max_tokens` at 4 characters a token."""
    limit = spec.max_chars if spec.max_tokens is None else min(spec.max_chars, spec.max_tokens * CHARS_PER_TOKEN)
    keep = spec.keep

    def cut(text: str) -> str:
        if len(text) <= limit:
            return text
        mark = f"\n… {len(text) - limit} characters left out …\n"
        room = max(limit - len(mark), 0)
        if keep == "head":
            return text[:room] + mark.rstrip()
        if keep == "tail":
            return mark.lstrip() + text[len(text) - room :]
        head = (room + 1) // 2
        return text[:head] + mark + text[len(text) - (room - head) :]

    return cut


def shower(spec: ObservationSpec, template: Template | None, constants: Mapping[str, Any]) -> Show:
    """How results become content, as `observation` says."""
    if spec.format == "json":

        def as_json(result: ToolResult, task: Mapping[str, Any], turn: int) -> str:
            if result.is_error:
                return orjson.dumps({"error": result.text}).decode()
            value = result.value if result.value is not None else result.text
            try:
                return orjson.dumps({"result": value}).decode()
            except TypeError:  # a value that JSON cannot hold: its text says the same
                return orjson.dumps({"result": result.text}).decode()

        return as_json
    if template is not None:

        def by_template(result: ToolResult, task: Mapping[str, Any], turn: int) -> str:
            try:
                return template.text(
                    result=result.text,
                    tool=result.name,
                    is_error=result.is_error,
                    task=task,
                    turn=turn,
                    vars=constants,
                )
            except TemplateError:  # a result that the author did not think of: the policy chose it, and must not fail
                return result.text

        return by_template
    return lambda result, task, turn: result.text
