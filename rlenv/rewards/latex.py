"""What published rewards count as the same LaTeX answer: normalisation of text, without any algebra.

Each function follows one upstream file step by step, oddities included, since scores are to be the same. For equality
in the mathematical sense see the rule `math_equal`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["boxed_in_braces", "hendrycks_box", "hendrycks_equal", "minerva"]


_MAX_BOX_CHARS = 16_384  # a box that is longer does not close


def boxed_in_braces(text: str) -> str | None:
    """What the last `\\boxed{…}` holds, None where there is none or its braces do not close.

    Source: `last_boxed_only_string` and `remove_boxed` of verl 0.9.1 `reward_score/math_dapo.py`.
    """
    start = text.rfind("\\boxed{")
    return None if start < 0 else _braced(text, start + len("\\boxed"))


def _braced(text: str, opening: int) -> str | None:
    depth = 0
    for index in range(opening, min(len(text), opening + _MAX_BOX_CHARS)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : index]
    return None


def hendrycks_box(text: str) -> str | None:
    """What the last box holds, in braces or after `\\boxed ` up to the next dollar sign.

    Source: verl 0.9.1 `reward_score/math_reward.py`, which follows `hendrycks_math/utils.py` of the
    lm-evaluation-harness. A box that is no `\\boxed` (`\\fbox`) is found there and then refused, so it is none here.
    """
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    return _braced(text, start + len("\\boxed"))


def hendrycks_equal(mine: str, gold: str) -> bool:
    """Whether two answers are the same text after normalisation; as they stand where one cannot be normalised.

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
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
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
