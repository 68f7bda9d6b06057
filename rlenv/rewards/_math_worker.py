"""The process in which expressions are read and compared: one JSON line in, two out.

Started as `python -m rlenv.rewards._math_worker`; see `rlenv.rewards.mathematics`. It runs apart because computer
algebra on what a policy wrote can take any time and memory, and only a process can be ended.

The first line is about the accepted answers, which are the same for every policy, and the second about the answer.
Each has its own share of processor time: at its end the process answers so, or, in the middle of what cannot be
interrupted, is ended by the system with SIGXCPU.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from rlenv.rewards._math_text import about, bare, brackets, holds_one, is_prose, plain_number, sides, split_unit, words

_MEMORY_BYTES = 1 << 30
# Decimals are compared to so many places: one that is right to twelve was computed, not guessed.
_PLACES = 12
_GOLDS_KEPT = 512


class _UsedUp(BaseException):
    """The processor time is used up; no `except Exception` of the library may take it for a fault of its own."""


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raises _UsedUp after `limit_s` seconds of processor time; ends the process where that does not get through."""
    try:
        import resource
        import signal
    except ImportError:  # not on this platform: whoever asks waits for so long at most
        yield
        return

    def stop(signum: int, frame: object) -> None:
        raise _UsedUp

    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = int(used.ru_utime + used.ru_stime + limit_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (hard, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this platform; the time limit still holds
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _parse(text: str) -> list[Any]:
    """What `text` means as one expression, [] where it cannot be read."""
    if "$" in text or "\\boxed" in text:
        return []
    library: Any = importlib.import_module("math_verify")  # it has no types
    found = list(library.parse(f"${text}$", parsing_timeout=None, fallback_mode="no_fallback"))
    if "i" in text:
        sympy: Any = importlib.import_module("sympy")
        found = [_with_unit(one, sympy) if isinstance(one, sympy.Basic) else one for one in found]
    return found


def _with_unit(expression: Any, sympy: Any) -> Any:
    """With the imaginary unit where the name i stands."""
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
    """Whether an accepted answer can be read and compared: a tower of powers can be read alone."""
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
    """Whether an answer equals an accepted one; None where the answer cannot be read."""
    if not mine or is_prose(mine, allowed=words(gold)):
        return None
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
    answer = _parse(mine)
    if not answer:
        return False
    return _verify(_parsed(gold), answer)


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


def _guarded(limit_s: float, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        with _within(limit_s):
            return ask()
    except _UsedUp:
        return {"used_up": True}
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


def main() -> None:
    """Answers until its input ends."""
    _limit_memory()
    logging.disable(logging.CRITICAL)
    out = sys.stdout
    sys.stdout = sys.stderr  # nothing that a library writes can be taken for an answer
    _equal(r"\sqrt{2}x+0.5", [r"x\sqrt{2}+\frac{1}{2}"])  # what is loaded once is no part of a question's time

    def tell(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    tell({"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        golds, mine, limit_s = question["golds"], question["mine"], question["limit_s"]
        about_golds = _guarded(limit_s, partial(_first_unreadable, golds))
        tell(about_golds)
        if not about_golds and mine is not None:
            tell(_guarded(limit_s, partial(_equal, mine, golds)))


if __name__ == "__main__":
    main()
