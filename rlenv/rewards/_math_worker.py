"""The process in which expressions are read and compared.

Started by `rlenv.rewards.rules.mathematics`. It runs apart because computer algebra on what a policy wrote can take
any time and memory, and only a process can be killed. The accepted answers, which are the same for every policy, are
read first; they and the answer have each their own share of processor time.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import socket
import string
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from rlenv.concurrency import served
from rlenv.rewards import _math_text as texts
from rlenv.rewards._math_text import bare, has_names, is_text, listed, plain_number, sides, split_unit

_MEMORY_BYTES = 1 << 30
# Decimals are compared to so many places: one that is right to twelve was computed, not guessed.
_PLACES = 12
_DIGITS = 400
_GOLDS_KEPT = 512
_POINT = (3, 5, 7, 11, 13, 17, 19, 23)  # whole: there `(-1)^n` is `\\cos n\\pi`
_VALUE = re.compile(r"\d|\\pi(?![A-Za-z])")
_INNER = re.compile(r"\$|\\(?:boxed|fbox)|(?<!\\)\\[(\[]")
"""What the library takes an expression out of, and leaves the rest."""


def _parse(text: str) -> list[Any]:
    """The meaning of `text` as one expression, [] where it cannot be read."""
    if _INNER.search(text):
        return []
    library: Any = importlib.import_module("math_verify")  # it has no types
    text = texts.DECIMAL.sub(_as_fraction, text)
    whole = library.LatexExtractionConfig()  # in its other ways it takes a number out of what it cannot read
    # It would drop letters at the end for a unit.
    whole = replace(whole, normalization_config=replace(whole.normalization_config, units=False))
    found = list(library.parse(f"${text}$", [whole], parsing_timeout=None, fallback_mode="no_fallback"))
    return list(map(_with_unit, found)) if "i" in text else found


def _as_fraction(decimal: re.Match[str]) -> str:
    fraction = rf"\frac{{{decimal[2].replace(',', '')}{decimal[3]}}}{{1{'0' * len(decimal[3])}}}"
    return f"^{{{decimal[1][1:]}{fraction}}}" if decimal[1] else fraction


def _with_unit(expression: Any) -> Any:
    """With the imaginary unit where the name i stands."""
    sympy: Any = importlib.import_module("sympy")
    named = {one: sympy.I for one in getattr(expression, "free_symbols", ()) if one.name == "i"}
    if not named:
        return expression
    found = expression.subs(named).doit()
    return found if found.free_symbols else sympy.expand_complex(found)


def _bare(gold: str) -> str:
    first, *others = texts.NEAR.split(texts.DELIMITERS.sub(" ", texts.unwrapped(gold)))
    is_name = len(sides(f"{first}=")[1]) == 1
    if others and (is_name or _VALUE.search(first) is None):  # what is asked for is the number itself
        first = f"{first}={others[-1]}" if is_name else others[-1]
    return bare(first if others else gold)


@lru_cache(maxsize=_GOLDS_KEPT)
def _parsed(text: str) -> tuple[Any, ...]:
    return tuple(_parse(text))


@lru_cache(maxsize=_GOLDS_KEPT)
def _is_readable(gold: str) -> bool:
    """True if an accepted answer can be read and compared: a tower of powers can be read alone."""
    if texts.is_sentence(gold):
        return False
    kind, parts = listed(gold)
    if kind:
        return all(map(_is_readable, parts))
    name, wanted = sides(gold)
    text = split_unit(wanted[0] if name and len(wanted) == 1 else gold)[0]
    if plain_number(text) is not None or is_text(text):
        return bool(text)
    read = _parsed(text)
    if read:
        _verify(read, _parse("1.25"))
    return bool(read)


def _equal(mine: str, golds: list[str]) -> dict[str, Any]:
    text = bare(mine)
    unreadable = True
    for gold in golds:
        verdict = (_tight(text) == _tight(bare(gold)) or _same(text, _bare(gold))) if text else None
        if verdict:
            return {"equal": True}
        unreadable = unreadable and verdict is None
    return {"equal": False, "unreadable": unreadable}


def _tight(text: str) -> str:
    return re.sub(r"(?<=,)\s*and\b|(?<!\d)\s+|\s+(?!\d)", "", text)


def _same(mine: str, gold: str) -> bool | None:
    """True if an answer equals an accepted one, as what both are; None where the answer cannot be read."""
    if mine == gold:
        return True
    if "dots" in mine and "dots" not in gold:
        return None  # something is left out
    (kind, parts), (kind_of_gold, parts_of_gold) = listed(mine), listed(gold)
    if kind and kind_of_gold:
        return _same_parts({kind, kind_of_gold}, parts, parts_of_gold)
    if kind == "," and plain_number(whole := bare(re.sub(r"\s+and\s+", " ", mine))) is not None:
        mine, kind, parts = whole, "", (whole,)  # `2 and 1/2`
    mine, gold = mine if kind else parts[0], gold if kind_of_gold else parts_of_gold[0]
    (name, found), (name_of_gold, wanted) = sides(mine), sides(gold)
    if len(wanted) > 1 and not any(one.free_symbols for one in _parsed(gold)):  # the library finds all true ones equal
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if len(wanted) > 1 or (name_of_gold and not name and len(found) > 1):
        return _same_side(mine, gold)  # an equation, as a whole
    if len(found) > 8 or (name_of_gold and name and name != name_of_gold):
        return False
    if name or name_of_gold:
        return all(_same(side, wanted[0]) for side in found)
    kinds = kind + kind_of_gold
    if kinds and (kinds in ",{" or texts.RANGE.search(gold if kind else mine) is None):
        return False  # a list is no number, and what is between its ends may be an inequality
    return all(_same_side(side, wanted[0]) for side in found)


def _same_parts(kinds: set[str], mine: Sequence[str], gold: Sequence[str]) -> bool:
    """True if the elements of two lists are the same, in order where there is one."""
    if len(mine) != len(gold) or (len(kinds) == 2 and kinds not in ({",", "("}, {",", "{"}, {"(", "in"})):
        return False
    named = [{sides(part)[0] for part in parts} - {""} for parts in (mine, gold)]
    are_apart = named[0] != named[1] and max(map(len, named)) > 1
    if are_apart or not kinds <= {",", "{"}:
        mine, gold = (_in_order(parts) if are_apart and "" in map("".join, named) else parts for parts in (mine, gold))
        return not (are_apart and "{" in kinds) and all(map(_same, mine, gold))
    left = list(gold)
    for part in mine:
        found = next((index for index, wanted in enumerate(left) if _same(part, wanted)), None)
        if found is None:
            return False
        del left[found]
    return True


def _in_order(parts: Sequence[str]) -> Sequence[str]:
    """The parts of `y=7,x=4` as those of a point, for neighbours in the alphabet; others as they stand."""
    names = "".join(sorted(sides(part)[0] for part in parts))
    return sorted(parts) if len(names) == len(parts) and names in string.ascii_letters else parts


def _same_side(mine: str, gold: str) -> bool | None:
    mine, *rounded = (part.strip() for part in texts.NEAR.split(mine))
    expected, unit_of_gold = split_unit(gold)
    found, unit = split_unit(mine, letters=texts.LETTERS | {unit_of_gold}, beside=True, plain=not has_names(expected))
    if unit and unit_of_gold and unit != unit_of_gold:
        return False
    return _same_value(found, expected) and all(_is_rounded(found, split_unit(one)[0]) for one in rounded)


def _is_rounded(text: str, decimal: str) -> bool:
    """True if a decimal is a number to fewer places, as in `\\frac{2}{3}\\approx 0.67`."""
    number = plain_number(decimal)
    unit = 10 ** len(decimal.partition(".")[2])
    return number is not None and any(one.is_number and abs(one - number) * unit < 1 for one in _parse(text))


def _same_value(mine: str, gold: str) -> bool | None:
    number, expected = plain_number(mine), plain_number(gold)
    if number is not None and expected is not None:
        return number == expected
    if (is_same := texts.same_ratio(mine, gold)) is not None:
        return is_same
    if is_text(mine) or is_text(gold):
        return texts.as_text(mine) == texts.as_text(gold) or (False if is_text(gold) else None)
    is_decimal = any(known is not None and "." in text for known, text in ((number, mine), (expected, gold)))
    mine, gold = texts.cased(mine, gold)
    answer, wanted = _parse(mine), _parsed(gold)
    if not answer:
        return None
    agreed = {_agree(one, other, is_decimal=is_decimal) for one in wanted for other in answer}
    return False not in agreed and (True in agreed or _verify(wanted, answer))


def _agree(one: Any, other: Any, *, is_decimal: bool) -> bool | None:
    """True of equal numbers, False of different ones and of expressions that differ in a point; else None.

    Exact numbers differ by any gap; one with decimals by what is no rounding, and three digits have to be right.
    """
    sympy: Any = importlib.import_module("sympy")
    if not all(isinstance(number, sympy.Expr) for number in (one, other)):
        return None
    if one == other:
        return True
    gap = one - other
    if gap.has(sympy.Integral, sympy.Limit, sympy.Product, sympy.Sum):
        return None
    exactly: dict[str, Any] = {"maxn": _DIGITS, "strict": True}
    point = dict(zip(sorted(one.free_symbols | other.free_symbols, key=str), _POINT, strict=False))
    with suppress(ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
        if gap.free_symbols:
            size, apart = (abs(number.evalf(_PLACES, subs=point)) for number in (one, gap))
            return False if apart.is_finite and apart > (1 + size) * 10**-6 else None
        with suppress(ArithmeticError):
            if not is_decimal:
                return bool(gap.evalf(2, **exactly) == 0)
            size, apart = (abs(number.evalf(_PLACES, **exactly)) for number in (one, gap))
            near = size * 10 ** -(_PLACES if apart < 10 ** (2 - 2 * _PLACES) else 3)
            return bool(apart < 10**-_PLACES and apart <= near)
        # A gap that so many digits do not decide is none, where each term has them: a tower of powers has not.
        size, *terms = (term.evalf(_DIGITS // 2, **exactly) for term in (one.subs(point), *sympy.Add.make_args(gap)))
        return bool(abs(sum(terms)) <= (1 + abs(size)) * sympy.Rational(10) ** -(_DIGITS // 4))
    return None if gap.free_symbols else bool(gap.doit() == 0)


def _verify(gold: tuple[Any, ...], mine: list[Any]) -> bool:
    verify: Callable[..., bool] = importlib.import_module("math_verify").verify
    exactly: Any = {"float_rounding": _PLACES, "numeric_precision": 2 * _PLACES, "timeout_seconds": None}
    return verify(list(gold), mine, allow_set_relation_comp=True, **exactly)


def _guarded(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return ask()
    except MemoryError:
        return {"memory": True}
    except RecursionError:
        return {"unreadable": True, "error": "nested too deep"}
    except Exception as error:  # a library of this kind may raise anything on a hostile text
        return {"unreadable": True, "error": f"{type(error).__name__}: {error}"[:200]}


def serve(host: socket.socket, told: dict[str, Any]) -> None:
    """Answers questions until the socket closes."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    _equal(r"\sqrt{2}x+0.5", [r"x\sqrt{2}+\frac{1}{2}"])  # what is loaded once is no part of a question's time

    def within(question: dict[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        with served.within(cpu_s=question["cpu_s"], wall_s=question["wall_s"], memory=_MEMORY_BYTES):
            return _guarded(work)

    def ask(body: bytes, fd: int | None) -> tuple[bytes, None]:
        question = json.loads(body)
        golds, mine = question["golds"], question["mine"]
        unread = ({"unreadable": True, "gold": gold[:200]} for gold in golds if not _is_readable(_bare(gold)))
        answer = {"of_gold": within(question, partial(next, unread, {}))}
        if not answer["of_gold"] and mine is not None:
            answer["of_mine"] = within(question, partial(_equal, mine, golds))
        return json.dumps(answer).encode(), None

    served.answer(host, ask)
