"""Token ids of templated messages: fixed ids for structure, one encoding pass for each run of text with contents."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlenv.tokens.layouts import Slot, TextSlot
from rlenv.tokens.vocabulary import Vocabulary

__all__ = ["Program", "Run"]

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Run:
    """Text and slots that are encoded together."""

    parts: tuple[str | Slot, ...]

    def text(self, values: Callable[[Slot], str]) -> str:
        """The text with every slot filled."""
        return "".join([part if isinstance(part, str) else values(part) for part in self.parts])


@dataclass(frozen=True, slots=True)
class Program:
    """Ids that are always the same, and runs of text and slots in between that are encoded each in one pass.

    One pass a run keeps the merges at the edge of content what they are in the whole text.
    """

    pieces: tuple[array[int] | Run, ...]

    @staticmethod
    def of(parts: Sequence[str | Slot | TextSlot], vocabulary: Vocabulary, encode: Encode) -> Program:
        """The program of literal texts and slots; `encode` is used for constant runs.

        Added tokens are looked for in literal texts alone, each by itself: none is found across a slot.
        """
        pieces: list[array[int] | Run] = []
        ids: list[int] = []
        run: list[str | Slot] = []

        def end_run() -> None:
            nonlocal ids
            if any(isinstance(part, Slot) for part in run):
                if ids:
                    pieces.append(array("q", ids))
                ids = []
                pieces.append(Run(tuple(run)))
            elif run:
                ids += encode("".join(part for part in run if isinstance(part, str)))
            run.clear()

        for part in parts:
            if isinstance(part, Slot):
                run.append(part)
                continue
            if isinstance(part, TextSlot):
                run.append(part.text)
                continue
            for place, text in enumerate(vocabulary.split(part)):
                if place % 2:
                    end_run()
                    ids.append(vocabulary.added[text])
                elif text:
                    run.append(text)
        end_run()
        if ids:
            pieces.append(array("q", ids))
        return Program(tuple(pieces))

    def encode(self, values: Callable[[Slot], str], encode: Encode) -> array[int]:
        """The ids with every slot filled, as an array of type q."""
        out = array("q")
        for piece in self.pieces:
            if isinstance(piece, Run):
                out.fromlist(encode(piece.text(values)))
            else:
                out.extend(piece)
        return out
