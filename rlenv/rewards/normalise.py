"""Normal forms of answers: of texts, as question answering compares them, and of LaTeX, as graders of maths do.

Also the equality of values that tools return: plain, JSON (whole numbers keep all digits), numbers and texts. Rows of
a query are in `rows`.
"""

from __future__ import annotations

import json
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import orjson

from rlenv._base.strict_json import DuplicateKey, count_keys, has_keys, unique
from rlenv._base.text import braced

__all__ = ["MAX_JSON", "NORMALISERS", "DuplicateKey", "Normalisation", "ascii_form", "boxed_in_braces"]
__all__ += ["hendrycks_equal", "holds", "is_number", "loads", "minerva", "near", "number", "numbers"]
__all__ += ["best_f1", "qa", "same_json"]

Normalisation = Literal["none", "case", "qa"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NUMBER_CHARS = 256
_FLOAT_DIGITS = 15
# Digits and exponent are bounded, so that no text makes arithmetic on its number slow.
_NUMBER = re.compile(
    r"(?a)\s*+([-+]?)\s*+(\\?[$€£])?\s*+([-+]?)([1-9]\d{0,2}(?:,\d{3}){1,20}|\d{1,64})?(\.\d{0,64})?"
    r"([eE][-+]?\d{1,3})?\s*+(\\?%)?\s*"
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


def best_f1(answer: str, golds: Iterable[str]) -> float:
    """The best token F1 of a text with one of the golds after `qa`, in [0, 1]; two texts without tokens are equal.

    The text, which may be long, is looked at once. Source: `f1_score` of the SQuAD evaluation script (Rajpurkar 2016).
    """
    mine = Counter(qa(answer).split())
    size, best = mine.total(), 0.0
    for gold in golds:
        theirs = Counter(qa(gold).split())
        if not size or not theirs:
            best = max(best, float(mine == theirs))
            continue
        common = sum(min(count, mine[token]) for token, count in theirs.items())
        best = max(best, 2 * common / (size + theirs.total()))
    return best


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


def boxed_in_braces(text: str) -> str | None:
    """The content of the last `\\boxed{…}`, None where there is none or its braces do not close.

    Source: `last_boxed_only_string` and `remove_boxed` of verl 0.9.1 `reward_score/math_dapo.py`.
    """
    start = text.rfind("\\boxed{")
    return None if start < 0 else braced(text, start + len("\\boxed"))


def hendrycks_equal(mine: str, gold: str) -> bool:
    """True if two answers are the same text after normalisation; as they stand where one cannot be normalised.

    Source: `is_equiv` of verl 0.9.1 `reward_score/math_reward.py`.
    """
    try:
        return _hendrycks(mine) == _hendrycks(gold)
    except (IndexError, ValueError):
        return mine == gold


_DROPPED = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")


def _hendrycks(text: str) -> str:
    text = text.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    for word in _DROPPED:
        text = text.replace(word, "")
    text = _without_units(text)
    text = text.replace("\\\\%", "").replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if not text:
        return text
    if text[0] == ".":
        text = "0" + text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    if text == "0.5":
        text = "\\frac{1}{2}"
    return _slash_as_fraction(text)


def _without_units(text: str) -> str:
    if "\\text{ " not in text:
        return text
    before, _after = text.split("\\text{ ")  # more than one unit is a ValueError, there as here
    return before


def _braced_roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    for part in rest:
        first += "\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}")
    return first


def _braced_fractions(text: str) -> str:
    made, *rest = text.split("\\frac")
    for part in rest:
        made += "\\frac"
        if part[0] == "{":
            made += part
        elif len(part) < 2:
            return text
        elif part[1] == "{":
            made += f"{{{part[0]}}}{part[1:]}"
        else:
            made += f"{{{part[0]}}}{{{part[1]}}}{part[2:]}"
    return made


def _slash_as_fraction(text: str) -> str:
    sides = text.split("/")
    if len(sides) != 2:
        return text
    try:
        above, below = int(sides[0]), int(sides[1])
    except ValueError:
        return text
    # Written otherwise than Python writes the numbers (`+1/2`, `01/2`), it is left as it is.
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text


_REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3"),
    *("\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_REWRITTEN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),
)


def minerva(text: str) -> str:
    """An answer after the normalisation of Lewkowycz et al. 2022 (Minerva, arXiv:2206.14858, appendix D.1).

    Source of the exact steps: `normalize_final_answer` of verl 0.9.1 `reward_score/math_dapo.py`, the same in
    skyrl-gym 0.4.0 `envs/aime/utils.py`.
    """
    text = text.rsplit("=", 1)[-1]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for word in _REMOVED:
        text = text.replace(word, "")
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    text = text.replace("$", "")
    if text.replace(",", "").isdigit():
        text = text.replace(",", "")
    return text.strip()


_NOISE = 1e-9
_MAX_NOISE = 0.01
_FLOAT_WHOLE = 2.0**53


def is_number(value: Any) -> bool:
    """True if a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def near(mine: float, gold: float, *, relative: float, absolute: float) -> bool:
    """True if two numbers are the same, up to a difference that only fractions may have.

    Whole numbers are equal or not: identifiers, counts and years are no measurements. A fraction that is a whole
    number but for the noise of floating point is that number; two fractions may differ by `relative` of the larger
    one, or by `absolute`.
    """
    if mine == gold:
        return True
    if not (relative or absolute):
        return False
    try:
        if _is_whole(mine) and _is_whole(gold):
            # Beyond that a float holds whole numbers alone, and sums of fractions end on one.
            is_float = isinstance(mine, float) and isinstance(gold, float) and abs(mine) >= _FLOAT_WHOLE
            return is_float and math.isclose(mine, gold, rel_tol=_NOISE)
        if _is_whole(mine) or _is_whole(gold):
            return abs(mine - gold) < _MAX_NOISE and math.isclose(mine, gold, rel_tol=_NOISE, abs_tol=_NOISE)
        return math.isclose(mine, gold, rel_tol=relative, abs_tol=absolute)
    except OverflowError:  # an integer that no float holds, and another
        return False


def _is_whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()


def same_json(mine: Any, gold: Any, *, tolerance: float = 0.0) -> bool:
    """True if two JSON values are equal: 1 is 1.0, true is not 1, keys have no order, lists have one.

    Args:
        tolerance: numbers may differ by this share of the larger one, or by this much near zero; whole numbers may
            not.
    """
    return _same(mine, gold, tolerance, subset=False)


def holds(mine: Any, gold: Any, *, tolerance: float = 0.0) -> bool:
    """True if `mine` equals `gold` where objects of `mine` may have more keys."""
    return _same(mine, gold, tolerance, subset=True)


def _same(mine: Any, gold: Any, tolerance: float, *, subset: bool) -> bool:
    # An explicit stack: a policy may nest its JSON deeper than Python's recursion goes.
    pairs = [(mine, gold)]
    while pairs:
        a, b = pairs.pop()
        if is_number(a) and is_number(b):
            if not near(a, b, relative=tolerance, absolute=tolerance):
                return False
        elif isinstance(a, Mapping) and isinstance(b, Mapping):
            if (len(a) != len(b) and not subset) or any(key not in a for key in b):
                return False
            pairs.extend((a[key], b[key]) for key in b)
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif type(a) is not type(b) or a != b:
            return False
    return True


MAX_JSON = 131_072
"""What a policy wrote is read as JSON up to this length, which takes some milliseconds on the event loop."""

# A float holds 15 to 17 digits; a run of fewer is read the same by everybody.
_LONG = re.compile(r"\d{16}")


def loads(text: str) -> Any:
    """The value of a JSON text, strictly read: no NaN, nothing beyond a float, nothing nested past 1,000 levels.

    Raises:
        ValueError: it is not JSON, or too deep; DuplicateKey where an object has a key twice.
    """
    value = orjson.loads(text)
    keys = count_keys(value, 1_000) if isinstance(value, (dict, list)) else 0
    if has_keys(text, keys) and _LONG.search(text) is None:
        return value
    try:  # what the strict reader took, where it makes floats of integers beyond 64 bit and keeps the last of two keys
        return json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        return value
