"""A question over a database with the queries that answer it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Question"]


@dataclass(frozen=True, slots=True, init=False)
class Question:
    """`golds` are queries of which any one is right; `instructions` say what the question leaves open."""

    text: str
    golds: tuple[str, ...]
    instructions: str

    def __init__(self, text: str, *golds: str, instructions: str = "") -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "golds", golds)
        object.__setattr__(self, "instructions", instructions)
