"""The template that a dialect's file names as its source writes what the dialect reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlenv import dialects
from rlenv.dialects.built_in import FAMILIES, family_text, row_of
from rlenv.messages import ToolCall
from rlenv.tokens.vocabulary import ChatTemplate
from tests.real.shelf import templates
from tests.support.arguments import TOOLS, written

pytestmark = pytest.mark.real_data
NAMED = re.compile(r"# Source: (?P<file>\S+)\.jinja of (?P<package>\S+) ")
# The template of Command R+ asks schemas for more than ours say.
SOURCES = {name: match for name in FAMILIES if name != "command_r_plus" and (match := NAMED.match(family_text(name)))}
CALLS: list[tuple[str, dict[str, Any]]] = [("look", {"text": "Bern", "count": 3})]


@pytest.mark.parametrize("name", SOURCES)
def test_a_dialect_reads_what_its_source_writes(name: str) -> None:
    named = SOURCES[name]
    path = dict(templates()).get(f"{named['package'].lower()}/{named['file']}")
    if path is None:
        pytest.skip(f"needs {named['package']}: the folder of RLENV_REAL lacks it")
    values = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(path.read_text("utf-8"), name=name, values=values)
    text = written(template, CALLS, "") or ""
    # The prompt may have closed the thinking, or opened it, and share a mark's beginning with the turn.
    dialect = dialects.get(name)
    begun = {mark[:size] for mark in getattr(dialect, "marks", ()) for size in range(len(mark))} | {""}
    read = [
        [(call.name, dict(call.arguments)) for call in action.calls if isinstance(call, ToolCall)]
        for closed in ("", row_of(name).thinking_marks.close)
        for action in (dialect.parse(closed + start + text, TOOLS) for start in begun)
    ]
    assert CALLS in read, text
