"""What counts as the same text and the same number."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

__all__ = ["NORMALISERS", "Normalisation", "ascii_form", "number", "numbers", "qa", "token_f1"]

Normalisation = Literal["none", "case", "qa"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER_CHARS = 256
_FLOAT_DIGITS = 15
# Digits and exponent are bounded, so that no text makes arithmetic on its number slow.
_NUMBER = re.compile(
    r"\s*([-+]?)\s*(\\?[$€£])?\s*([-+]?)([1-9]\d{0,2}(?:,\d{3}){1,20}|\d{1,64})?(\.\d{0,64})?([eE][-+]?\d{1,3})?\s*(\\?%)?\s*",
    re.ASCII,
)


def qa(text: str) -> str:
    """Lower case without ASCII punctuation, articles and extra white space, in the order of the SQuAD script.

    Source: `normalize_answer` of the SQuAD 1.1 evaluation script, used unchanged by Search-R1 and
    verl 0.9.1 `reward_score/search_r1_like_qa_em.py`.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _case(text: str) -> str:
    return " ".join(text.casefold().split())


NORMALISERS: dict[Normalisation, Callable[[str], str]] = {"none": str.strip, "case": _case, "qa": qa}
"""`none`: white space around the text is dropped; `case`: case is folded too, runs of white space are one space;
`qa`: see `qa`."""


def token_f1(answer: str, gold: str) -> float:
    """The token F1 of two texts after `qa`, in [0, 1]; two texts without tokens are equal.

    Source: Rajpurkar et al. 2016, SQuAD evaluation script, `f1_score`.
    """
    mine, theirs = qa(answer).split(), qa(gold).split()
    if not mine or not theirs:
        return float(mine == theirs)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs))


def number(value: Any) -> Decimal | None:
    """The exact number that a value or a text writes, None where it writes none.

    A text is one number: sign, thousands commas, a decimal point, an exponent, and a currency or a percent sign are
    read (the percent sign is dropped, so 45% is 45). Full-width forms and the spaces of typesetting are read as
    their ASCII ones. `nan`, `inf` and booleans are not numbers.
    """
    if isinstance(value, str):
        # A number is far shorter than this, and what is kept for the next time stays small.
        return _written(value) if len(value) <= _NUMBER_CHARS else None
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        # The shortest text that reads back as this float: 0.1 is meant as 0.1 and not as its binary neighbour.
        value = Decimal(repr(value))
    if isinstance(value, (int, Decimal)):
        exact = Decimal(value)
        return exact if exact.is_finite() else None
    return None


def numbers(value: Any) -> tuple[Decimal, ...]:
    """The numbers that a value may mean: one, or none, or two for a float with noise in its last digits.

    `0.1 + 0.2` is 0.30000000000000004 for a computer and 0.3 for whoever reads it.
    """
    exact = number(value)
    if exact is None:
        return ()
    if isinstance(value, float) and len(exact.as_tuple().digits) > _FLOAT_DIGITS:
        return exact, Decimal(f"{value:.{_FLOAT_DIGITS}g}")
    return (exact,)


def ascii_form(text: str) -> str:
    """`text` with full-width forms, minus signs and spaces in ASCII; what is not seen is gone."""
    return "".join(map(_ascii, text))


def _ascii(char: str) -> str:
    if char < "\x80":
        return char
    if char == "\u2212":
        return "-"
    if "\uff01" <= char <= "\uff5e":
        return chr(ord(char) - 0xFEE0)
    kind = unicodedata.category(char)
    return " " if kind == "Zs" else "" if kind == "Cf" else char


@lru_cache(maxsize=4096)
def _written(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text if text.isascii() else ascii_form(text))
    if match is None:
        return None
    outer, currency, inner, whole, fraction, exponent, percent = match.groups("")
    if (outer and inner) or (currency and percent) or not (whole or fraction.strip(".")):
        return None
    sign = "-" if (outer or inner) == "-" else ""
    return Decimal(f"{sign}{whole.replace(',', '')}{fraction}{exponent}")
