"""The option that was most likely meant, and how a message offers it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["all_known", "did_you_mean", "nearest"]

# Comparing words takes the product of their lengths, and some of them are a policy's.
_MAX_WORD: Final = 100
_MAX_KNOWN: Final = 5_000  # the programs on a path are over a thousand


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that whoever wrote `word` most likely meant, None where nothing is near.

    Words and lists that are too long to be compared are taken to be near nothing.
    """
    known = list(dict.fromkeys(options))
    if len(word) > _MAX_WORD or len(known) > _MAX_KNOWN:
        return None
    folded = {option.lower().replace("-", "_"): option for option in reversed(known)}
    key = word.lower().replace("-", "_")
    if key in folded:
        return folded[key]
    close = difflib.get_close_matches(key, folded, n=1, cutoff=0.6)
    if close:
        return folded[close[0]]
    starts = [option for name, option in folded.items() if len(key) >= 3 and (name.startswith(key) or key in name)]
    return min(starts, key=len) if starts else None


def did_you_mean(word: str, options: Iterable[str], what: str = "", *, prefix: str = "", otherwise: str = "") -> str:
    """A hint for a name that is not known: `did you mean 'PREFIXnear'?`.

    Where nothing is near it is `otherwise`, and without that a list of all that is known: `WHAT: a, b`.
    """
    known = tuple(options)
    close = nearest(word, known)
    if close is not None:
        return f"did you mean '{prefix}{close}'?"
    return otherwise or (f"{what}: {', '.join(known) or 'none'}" if what else "")


def all_known(word: str, options: Iterable[str], what: str = "there are") -> str:
    """A hint that lists all options behind the one that is near, if one is: `did you mean 'near'? WHAT a, b`."""
    known = tuple(options)
    return " ".join(part for part in (did_you_mean(word, known), f"{what} {', '.join(known)}") if part)
