"""Text for people: control characters as escapes, numbers as tables show them, and the nearest of several options."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

# What a terminal obeys or reorders by: C0 but tab and newline, DEL, C1 (ECMA-48), the bidirectional controls (Unicode
# UAX #9, section 2) and all other format characters (Cf) that have no glyph of their own: what nobody sees can hide in
# a word. So are the separators that some take for newlines, and lone surrogates, which cannot be written at all.
_ACTING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f\ud800-\udfff]"
)

_THOUGHT: Final = re.compile(r"\A(?:.*?</think>\s*|\s*<think>.*)", re.DOTALL)


def without_thinking(text: str) -> str:
    """What another model says, without thinking that its server has left in the text: a template may have written the
    mark that opens it, and a limit may have cut off the one that closes it."""
    return _THOUGHT.sub("", text)


def visible(text: str) -> str:
    r"""`text` with every character that a terminal would act on as an escape, such as `\x1b`.

    Tabs and newlines stay, and a carriage return before a newline goes. Inside of JSON the result is JSON that means
    the same.
    """
    return text if text.isascii() and text.isprintable() else _ACTING.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_LARGE: Final = 1e6


def figure(value: float | None) -> str:
    """A number with three digits behind the point, a large one with four in all; "–" for none and for no finite one."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3f}" if abs(value) < _LARGE else f"{value:.3e}"


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
    stem = key.rpartition(".")[0]
    for close in difflib.get_close_matches(key, folded, n=5, cutoff=0.6):
        other = close.rpartition(".")[0]  # two files are not near by how their names end
        if not (stem and other) or difflib.SequenceMatcher(None, stem, other).ratio() >= 0.6:
            return folded[close]
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


_MAX_BOX_CHARS: Final = 16_384  # a box that is longer does not close


def braced(text: str, opening: int) -> str | None:
    """The text between the brace at `opening` and the one that closes it; None where none does."""
    depth = 0
    for index in range(opening, min(len(text), opening + _MAX_BOX_CHARS)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : index]
    return None


def last_box(text: str) -> str | None:
    """The content of the last box, in braces or after `\\boxed ` up to the next dollar sign.

    Source: verl 0.9.1 `reward_score/math_reward.py`, which follows `hendrycks_math/utils.py` of the
    lm-evaluation-harness. A box that is no `\\boxed` (`\\fbox`) is found there and then refused, so it is none here.
    """
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    return braced(text, start + len("\\boxed"))


def boxed(text: str) -> str:
    """What the last `\\boxed{…}` of a worked solution holds."""
    found = last_box(text)
    if found is None:
        raise ValueError(f"there is no \\boxed{{…}} in {text[-80:]!r}")
    return found


def shared_length(one: str | list[int], other: str | list[int]) -> int:
    """The length of the common beginning of two texts, or of two lists of ids."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    low, high = 0, size  # of the same length up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle)
    return low


KeyPath = tuple[str | int, ...]
"""The place of a value in a document: the keys and places that lead to it, the outermost first."""


def parts_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The parts of a JSON-like value: a mapping's with their keys, a list's with their places, none of another."""
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def strings_in(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every text under `value`, with its place."""
    if isinstance(value, str):
        yield path, value
    for key, item in parts_of(value):
        yield from strings_in(item, (*path, key))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON-like value with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(item, change) for key, item in value.items()}
    return [with_texts(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def texts_in(value: Any) -> Iterator[str]:
    """Every text of a JSON-like value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from texts_in(pair)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_in(item)


def changed_outside(text: str, spans: Iterable[tuple[int, int]], change: Callable[[str], str]) -> str:
    """A text that is changed but for some spans of it, which stand in order."""
    out: list[str] = []
    at = 0
    for first, last in spans:
        out += [change(text[at:first]), text[first:last]]
        at = last
    return "".join([*out, change(text[at:])])
