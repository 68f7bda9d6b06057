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
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from rlenv.concurrency import served
from rlenv.rewards import _math_text as texts
from rlenv.rewards._math_text import about, bare, brackets, holds_one, is_prose, plain_number, sides, split_unit, words

_MEMORY_BYTES = 1 << 30
# Decimals are compared to so many places: one that is right to twelve was computed, not guessed.
_PLACES = 12
_ZERO = 10**-100  # what is computed of an expression that is zero may be as far from it
_GOLDS_KEPT = 512
_INNER = re.compile(r"\$|\\(?:boxed|fbox)|(?<!\\)\\[(\[]")
"""What the library takes an expression out of, and leaves the rest."""


def _parse(text: str, *, may_be_unit: bool | None = None) -> list[Any]:
    """The meaning of `text` as one expression, [] where it cannot be read.

    The library takes letters at the end for a unit and drops them.
    """
    if _INNER.search(text):
        return []
    library: Any = importlib.import_module("math_verify")  # it has no types
    whole = library.LatexExtractionConfig()  # in its other ways it takes a number out of what it cannot read
    if texts.ends_in_name(text, may_be_unit=may_be_unit):
        whole = replace(whole, normalization_config=replace(whole.normalization_config, units=False))
    found = list(library.parse(f"${text}$", [whole], parsing_timeout=None, fallback_mode="no_fallback"))
    if "i" in text:
        sympy: Any = importlib.import_module("sympy")
        found = [_with_unit(one, sympy) if isinstance(one, sympy.Basic) else one for one in found]
    return found


def _with_unit(expression: Any, sympy: Any) -> Any:
    """With the imaginary unit where the name i stands."""
    if isinstance(expression, sympy.FiniteSet | sympy.Tuple):
        return expression.func(*(_with_unit(one, sympy) for one in expression.args))
    named = {one: sympy.I for one in expression.free_symbols if one.name == "i"}
    if not named:
        return expression
    found = expression.subs(named).doit()
    return found if found.free_symbols else sympy.expand_complex(found)


@lru_cache(maxsize=_GOLDS_KEPT)
def _parsed(text: str) -> tuple[Any, ...]:
    return tuple(_parse(text))


@lru_cache(maxsize=_GOLDS_KEPT)
def _is_readable(gold: str) -> bool:
    """True if an accepted answer can be read and compared: a tower of powers can be read alone."""
    text = bare(gold)
    text = bare(about(text)) or text
    if plain_number(text) is not None:
        return True
    read = _parsed(text)
    if read:
        _verify(read, _parse("1.25"))
    return bool(read)


def _equal(mine: str, golds: list[str]) -> dict[str, Any]:
    text = bare(mine)
    unreadable = True
    for gold in golds:
        expected = bare(gold)
        expected = bare(about(expected)) or expected
        verdict = text == expected or _same(text, expected)
        if text and verdict:
            return {"equal": True}
        unreadable = unreadable and verdict is None
    return {"equal": False, "unreadable": unreadable}


def _same(mine: str, gold: str) -> bool | None:
    """True if an answer equals an accepted one; None where the answer cannot be read."""
    if texts.in_two_units(mine) or texts.in_two_units(gold):
        return texts.unspaced(mine) == texts.unspaced(gold)
    if not mine or is_prose(mine, allowed=words(gold)):
        return None
    if (are_same := texts.same_names(mine, gold)) is not None:
        return are_same
    mine, gold = texts.cased(texts.multiplied(mine), texts.multiplied(gold))
    # A unit may be left out, on either side, but not be another one.
    (number_of_mine, unit_of_mine), (number_of_gold, unit_of_gold) = split_unit(mine), split_unit(gold)
    if unit_of_mine and unit_of_gold and unit_of_mine != unit_of_gold:
        return False
    if unit_of_mine and (unit_of_gold or len(unit_of_mine) > 3):
        mine = number_of_mine
    if unit_of_gold and (unit_of_mine or len(unit_of_gold) > 3):
        gold = number_of_gold
    if "dots" in mine and "dots" not in gold:
        return None  # something is left out
    (name, found), (name_of_gold, wanted) = sides(mine), sides(gold)
    if len(wanted) > 1 or (name_of_gold and not name and len(found) > 1):
        found = (mine,)  # an equation, as a whole
    elif name_of_gold and name and name != name_of_gold:
        return False
    elif name_of_gold:
        (gold,) = wanted
    if len(found) > 8 or not all(found):
        return None
    return all(_same_side(side, gold) for side in found)


def _same_side(mine: str, gold: str) -> bool:
    number, expected = plain_number(mine), plain_number(gold)
    if number is not None and expected is not None:
        return number == expected
    if {mine, gold} == {"E", "e"}:  # the name of something, and Euler's number
        return False
    if about(mine) or holds_one(mine) != holds_one(gold):
        return False
    around_mine, around_gold = brackets(mine), brackets(gold)
    if {around_mine, around_gold} == {"(", "{"}:
        return False  # an order, and none
    if around_mine == "," and around_gold == "(":
        mine = f"({mine})"
    answer, wanted = _parse(mine, may_be_unit=texts.has_unit(gold)), _parsed(gold)
    if not answer or {_extent(mine, answer), _extent(gold, wanted)} == {"points", "range"}:
        return False  # the ends of an interval are not what lies between
    is_list = ("," in mine or ";" in mine) and _extent(mine, answer) == "points"
    if is_list and (expected is not None or (around_gold != "(" and _extent(gold, wanted) != "points")):
        return False  # a list is no number, be it of one number
    return _verify(wanted, answer) and all(not _differ(one, other) for one in wanted for other in answer)


def _extent(text: str, read: Sequence[Any]) -> str:
    """`points` of a finite set, `range` of an interval or an inequality; "" of `(1,2)`, which may be a point."""
    sympy: Any = importlib.import_module("sympy")
    said = [one.rhs if isinstance(one, sympy.Eq) else one for one in read]
    if any(isinstance(one, sympy.FiniteSet) or one is sympy.S.EmptySet for one in said):
        return "points"
    ranges = (sympy.Interval, sympy.And, sympy.StrictGreaterThan, sympy.StrictLessThan, sympy.Ge, sympy.Le)
    return "range" if brackets(text) != "(" and any(isinstance(one, ranges) for one in said) else ""


def _differ(one: Any, other: Any) -> bool:
    """True of two numbers so small that the library takes both for zero."""
    sympy: Any = importlib.import_module("sympy")
    if one == other or not all(isinstance(number, sympy.Expr) and number.is_number for number in (one, other)):
        return False
    with suppress(Exception):  # as the library, which has found them equal
        size, gap = (abs(number.evalf(_PLACES)) for number in (one, one - other))
        return bool(size > _ZERO and gap > size * 10 ** -(_PLACES if gap < 10 ** (2 - 2 * _PLACES) else 3))
    return False


def _verify(gold: tuple[Any, ...], mine: list[Any]) -> bool:
    verify: Callable[..., bool] = importlib.import_module("math_verify").verify
    return verify(
        list(gold),
        mine,
        float_rounding=_PLACES,
        numeric_precision=2 * _PLACES,
        allow_set_relation_comp=True,
        timeout_seconds=None,
    )


def _guarded(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return ask()
    except MemoryError:
        return {"memory": True}
    except RecursionError:
        return {"unreadable": True, "error": "nested too deep"}
    except Exception as error:  # a library of this kind may raise anything on a hostile text
        return {"unreadable": True, "error": f"{type(error).__name__}: {error}"[:200]}


def _first_unreadable(golds: list[str]) -> dict[str, Any]:
    for gold in golds:
        if not _is_readable(gold):
            return {"unreadable": True, "gold": gold[:200]}
    return {}


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
        answer = {"of_gold": within(question, partial(_first_unreadable, golds))}
        if not answer["of_gold"] and mine is not None:
            answer["of_mine"] = within(question, partial(_equal, mine, golds))
        return json.dumps(answer).encode(), None

    served.answer(host, ask)
