"""BM25 over a corpus in the format of Search-R1, with the index of the tool `search`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlenv.retrieval.base import Found
from rlenv.tools.search import Index, load_index

__all__ = ["Bm25Retriever"]

_OFFICIAL: Final = {"id": "id", "title": "", "text": "contents"}


class Bm25Retriever:
    """Searches by words. Documents that share no word with a query are not found.

    Args:
        corpus: one JSON object a line: `{"id": …, "contents": "Title\\ntext"}`, as Search-R1's corpora are written, or
            `{"id": …, "title": …, "text": …}`, as those of the tool `search` are.
        index: the folder that keeps the index; the user's cache folder otherwise.

    Raises:
        MissingExtra: bm25s is not installed.
        UsageError: the corpus cannot be read; the message names the line.
    """

    def __init__(self, corpus: Path, *, index: Path | None = None) -> None:
        self._index: Index = load_index(corpus, fields=fields_of(corpus), cache=index)

    @property
    def name(self) -> str:
        """The name of the search method."""
        return "bm25"

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self._index.documents)

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Found]]:
        """For each query at most `top_k` documents, best first."""
        return [
            [
                Found({"id": one.id, "contents": f"{one.title}\n{one.text}" if one.title else one.text}, score)
                for one, score in self._index.search(query, top_k=top_k)
            ]
            for query in queries
        ]


def fields_of(corpus: Path) -> dict[str, str]:
    """The columns of a corpus, told by its first line: `contents`, or `title` and `text`."""
    try:
        with corpus.open("rb") as file:
            head = file.readline(1 << 20)
    except OSError:
        return dict(_OFFICIAL)  # whoever loads it says what is wrong with the file
    if b'"contents"' not in head and b'"text"' in head:
        return {"id": "id", "title": "title", "text": "text"}
    return dict(_OFFICIAL)
