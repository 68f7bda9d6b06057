"""How the tests of a task are written: the forms of the usual data sets."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from rlenv.errors import RewardError
from rlenv.rewards.rules.numbers import is_near
from rlenv.tools.trials import encoded

__all__ = ["Call", "Printed", "Program", "Test", "read_calls", "read_printed", "read_programs", "same_output"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call with the value that it is to give; `told` is for the tests' sandbox."""

    name: str
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that asserts."""

    name: str
    told: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Printed:
    """What a program is given to read, and what it is to print."""

    name: str
    given: str
    expected: str


Test = Call | Program | Printed


def read_calls(value: Any, entry: str) -> Sequence[Test]:
    """The calls of a task: a list of `{args, kwargs, expected}` (or `input`, `output` as LiveCodeBench names them), or
    `{inputs, outputs}` as APPS has it; also as JSON text.

    Arguments may stand as text: of JSON with one value a line (LiveCodeBench).

    Raises:
        RewardError: they are something else, or `entry` is no name.
    """
    try:
        ast.parse(entry, mode="eval")
    except (SyntaxError, ValueError):
        raise RewardError(f"entry: '{entry:.80}' names nothing that can be called") from None
    tests: list[Test] = []
    for number, row in enumerate(_rows(value, "calls"), 1):
        given, expected = (
            _field(row, "calls", number, "args", "input"),
            _field(row, "calls", number, "expected", "output"),
        )
        if isinstance(given, str):  # LiveCodeBench: one JSON value a line
            given, expected = [_json(line) for line in given.splitlines()], _json(expected)
        if not isinstance(given, (list, tuple)):
            raise RewardError(f"calls: test {number} gives {given!r:.80} as args; expected a list")
        values = {"args": list(given), "kwargs": dict(row.get("kwargs") or {}), "expected": expected}
        told = {"entry": entry, **{key: encoded(one) for key, one in values.items()}}
        tests.append(Call(str(row.get("name") or number), told))
    return tests


def read_printed(value: Any) -> Sequence[Test]:
    """The inputs and outputs of a task: a list of `{input, output}`, or APPS's `{inputs, outputs}`; also as JSON text.

    Raises:
        RewardError: they are something else.
    """
    tests: list[Test] = []
    for number, row in enumerate(_rows(value, "stdin"), 1):
        given, expected = _lines(_field(row, "stdin", number, "input")), _lines(_field(row, "stdin", number, "output"))
        tests.append(Printed(str(row.get("name") or number), given, expected))
    return tests


def read_programs(value: Any, *, setup: str, names: Any) -> Sequence[Test]:
    """The programs of a task: one, or a list of which each is a test.

    Raises:
        RewardError: one is no text, or cannot be read as Python.
    """
    programs = [value] if isinstance(value, str) else value
    names = [names] if isinstance(names, str) else names
    if not isinstance(programs, (list, tuple)) or not isinstance(names, (list, tuple)):
        raise RewardError(f"programs: found {value!r:.80} with names {names!r:.80}; expected text, or a list of it")
    for text in (setup, *programs):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, TypeError, RecursionError) as error:
            raise RewardError(f"programs: {text!r:.80} is no program: {error}") from None
    return [
        Program(str(number), {"setup": setup, "program": text, "names": [name for name in names if name]})
        for number, text in enumerate(programs, 1)
    ]


def _rows(value: Any, key: str) -> list[Mapping[str, Any]]:
    found = _json(value) if isinstance(value, str) else value
    if isinstance(found, Mapping) and "inputs" in found and "outputs" in found:
        inputs, outputs = found["inputs"], found["outputs"]
        if len(inputs) != len(outputs):
            raise RewardError(f"{key}: there are {len(inputs)} inputs and {len(outputs)} outputs")
        return [{"input": given, "output": one} for given, one in zip(inputs, outputs, strict=True)]
    if not isinstance(found, (list, tuple)) or not all(isinstance(row, Mapping) for row in found):
        raise RewardError(f"{key}: found {value!r:.80}; expected a list of tests, or inputs and outputs")
    return list(found)


def _field(row: Mapping[str, Any], key: str, number: int, *names: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    raise RewardError(f"{key}: test {number} has no '{names[0]}'; it has: {', '.join(row)}")


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise RewardError(f"{text!r:.80} is no JSON") from None


def _lines(value: Any) -> str:
    """APPS writes some inputs and outputs as lists of lines."""
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def same_output(found: str, expected: str, by: str, tolerance: float, relative: float) -> bool:
    """Whether a program printed what it was to print. Linear in the length of both.

    `exact` counts every character. Otherwise white space at the ends of lines and empty lines at the end do not count;
    where a tolerance is given, lines are compared word by word, and two numbers may be apart by `tolerance`, or by
    `relative` times the expected one.
    """
    if by == "exact":
        return found == expected
    near = partial(_near, tolerance=Decimal(repr(tolerance)), relative=Decimal(repr(relative)))
    mine, gold = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (found, expected))
    if mine == gold:
        return True
    if not (tolerance or relative) or len(mine) != len(gold):
        return False
    for ours, theirs in zip(mine, gold, strict=True):
        words, wanted = ours.split(), theirs.split()
        if len(words) != len(wanted):
            return False
        for word, want in zip(words, wanted, strict=True):
            if word != want and not near(word, want):
                return False
    return True


def _near(word: str, wanted: str, tolerance: Decimal, relative: Decimal) -> bool:
    try:
        mine, gold = Decimal(word), Decimal(wanted)
        return mine.is_finite() and gold.is_finite() and is_near(mine, gold, tolerance=tolerance, relative=relative)
    except ArithmeticError:  # no number, or one beyond all exponents
        return False
