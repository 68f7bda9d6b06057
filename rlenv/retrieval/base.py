"""The seam between the retrieval server and what finds the documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Found", "Retriever"]


@dataclass(frozen=True, slots=True)
class Found:
    """One document that was found: what the server answers as `document`, with the `score` of the retriever.

    Higher scores are better; they compare within one query only.
    """

    document: Mapping[str, Any]
    score: float


class Retriever(Protocol):
    """Finds documents; used by one thread at a time.

    `name` says how it searches, `documents` how many there are.
    """

    @property
    def name(self) -> str: ...

    @property
    def documents(self) -> int: ...

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Found]]:
        """For each query at most `top_k` documents, best first; `len(result) == len(queries)`."""
        ...
