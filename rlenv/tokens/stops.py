"""The marks that end an assistant's turn, as a set: what the model's files name and what the chat template writes."""

from __future__ import annotations

from collections.abc import Sequence

from rlenv.dialects.base import SameTurn
from rlenv.tokens.growth import Growth

__all__ = ["end_marks"]


def end_marks(
    growth: Growth, named: Sequence[str], written: Sequence[str], same_turn: SameTurn | None
) -> tuple[frozenset[str], tuple[str, ...], frozenset[str]]:
    """All marks that end a turn, what is odd about them, in words, and the marks that begin an assistant's turn.

    A mark that the template writes behind a turn and inside one (gpt-oss ends each channel with `<|end|>`) ends none.

    Args:
        named: the marks that were given and the tokenizer's end token.
        written: the marks that the template writes behind turns.
    """
    given = frozenset(mark for mark in named if mark)
    if same_turn is not None:
        return given | frozenset(written), (), frozenset()
    begins, inside = growth.marks_of_turns()
    remarks = [f"the template writes {text!r} behind a turn, and no token is in it" for text in growth.untold_end()]
    for mark in sorted(given):
        if mark in growth.reader.header or mark in begins:
            remarks.append(
                f"{mark} ends a turn by the tokenizer's word, and begins the assistant's turn in the template"
            )
        elif mark in inside:
            remarks.append(f"{mark} ends a turn by the tokenizer's word, and stands inside turns in the template")
    found = frozenset(written) - inside
    # Generation would end before a turn's first word.
    kept = given - begins if found - begins else given
    return kept | found, tuple(remarks), frozenset(begins | {mark for mark in given if mark in growth.reader.header})
