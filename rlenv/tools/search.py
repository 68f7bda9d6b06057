"""The `search` tool: BM25 over a corpus of one JSON object a line.

The text shows the best documents, best first, with a blank line between them:

    [1] Title
    text

    [2] Another title
    text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.bounded import cut_end
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, Spec, Text, ToolSpec
from rlenv.tools._bm25 import load_index
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

__all__ = ["KIND", "SearchFields", "SearchSpec"]

_INLINE_DOCUMENTS = 10_000
_MAX_QUERY = 2_000


class SearchFields(Spec):
    """Which keys of a line hold what."""

    id: Text = "id"
    """The document's name in values; the line's number where it is missing."""
    title: Text = "title"
    """The title, shown and searched; none where it is missing."""
    text: Text = "text"
    """The text."""


class SearchSpec(ToolSpec):
    """Searches a corpus by words (BM25)."""

    kind: Literal["search"]
    corpus: Text
    """A .jsonl file, relative to the spec: one document a line."""
    top_k: Annotated[Int, Field(ge=1, le=100)] = 3
    """How many documents a search gives."""
    fields: SearchFields = SearchFields()
    """The names of the keys in the corpus."""
    max_chars: Annotated[Int, Field(ge=16)] = 2_000
    """A document's text is cut to this many characters where it is shown."""
    index: Text | None = None
    """A folder for the index, relative to the spec; the user's cache folder otherwise."""


def compile_search(name: str, spec: SearchSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `query`; its value is a list of `{id, title, text, score}`.

    The index is built here, or read from the cache.

    Raises:
        MissingExtra: bm25s is not installed.
        UsageError: the corpus cannot be read.
    """
    index = load_index(
        context.path("corpus", spec.corpus),
        fields=spec.fields.model_dump(),
        cache=context.path("index", spec.index) if spec.index is not None else None,
    )
    top_k, max_chars = spec.top_k, spec.max_chars

    def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        found = index.search(arguments["query"][:_MAX_QUERY], top_k=top_k)
        if not found:
            return ToolOutput("no documents match", [])
        shown = []
        for number, (document, _) in enumerate(found, start=1):
            text = cut_end(document.text, max_chars)
            shown.append(f"[{number}] {document.title}\n{text}" if document.title else f"[{number}] {text}")
        value = [
            {"id": document.id, "title": document.title, "text": document.text, "score": score}
            for document, score in found
        ]
        return ToolOutput("\n\n".join(shown), value)

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "Words to look for."}},
        "required": ["query"],
    }
    return (
        Tool(
            name=name,
            description=spec.description or "Search documents by words; the best matches are shown.",
            parameters=parameters,
            run=run,
            mode="inline" if len(index.documents) <= _INLINE_DOCUMENTS else "thread",
            depends_on="arguments",
            identity=index.digest,
            **common(spec, idempotent=True),
        ),
    )


KIND = Kind(SearchSpec, compile_search, is_local=True)
