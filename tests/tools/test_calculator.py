"""Arithmetic as people write it."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.errors import ToolFailed
from rlenv.language.kinds import CompileContext
from rlenv.testing.tools import check_tool, context
from rlenv.tools._arithmetic import CannotCalculate, calculate, format_number
from rlenv.tools.base import Tool
from rlenv.tools.calculator import KIND, CalculatorSpec
from tests.support import data


def compiled() -> Tool:
    (tool,) = KIND.factory("calculate", CalculatorSpec(kind="calculator"), CompileContext(base=Path()))
    assert isinstance(tool, Tool)
    return tool


def answer(expression: str) -> str:
    return format_number(calculate(expression))


def test_the_calculator_keeps_the_laws_of_tools() -> None:
    check_tool(
        compiled(),
        good=[{"expression": "1 + 1"}, {"expression": "1/3"}, {"expression": "sqrt(2)"}, {"expression": "9**1000 % 7"}],
        bad=[{"expression": 3}, {}, {"expr": "1"}],
        failing=[{"expression": "1/0"}, {"expression": "9**9**9"}, {"expression": "foo"}, {"expression": ""}],
    )


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0.1+0.2", "0.3"),
        ("3900 + 1", "3901"),
        ("10/4", "2.5"),
        ("1/3", "0.333333333333"),
        ("1/3*3", "1"),
        ("2/3", "0.666666666667"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("-2**2", "-4"),
        ("2**-1", "0.5"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("3 × 4 ÷ 2 − 1", "5"),
        ("3 x 4", "12"),
        ("2(3+4)", "14"),
        ("(1+2)(3+4)", "21"),
        ("$1,200.50 + 3", "1203.5"),
        ("1,000,000 / 4", "250000"),
        ("15% of 80", "12"),
        ("20% * 50", "10"),
        ("100 - 10%", "99.9"),
        ("(5+5)%", "0.1"),
        ("17 % 5", "2"),
        ("17 % (2+3)", "2"),
        ("2 + 2 =", "4"),
        ("sqrt(16)", "4"),
        ("sqrt(2)**2", "2"),
        ("4**0.5", "2"),
        ("round(2.5)", "3"),
        ("round(-2.5)", "-3"),
        ("round(2.675, 2)", "2.68"),
        ("round(1234, -2)", "1200"),
        ("floor(-1.5) + ceil(-1.5)", "-3"),
        ("max(1, 2, 3) - min(1, 2)", "2"),
        ("max(1000, 2000)", "2000"),
        ("log(100, 10)", "2"),
        ("log10(1000)", "3"),
        ("factorial(20)", "2432902008176640000"),
        ("1e-15", "1e-15"),
        ("0.1**5", "0.00001"),
        ("12345678901234.5", "12345678901234.5"),
        ("2**200", str(2**200)),
        ("ABS(-3)", "3"),
        ("pi", "3.14159265359"),
    ],
)
def test_it_answers_as_people_write(expression: str, expected: str) -> None:
    assert answer(expression) == expected


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("5 // 0", "division by zero"),
        ("9**9**9", "too large"),
        ("10**5000", "too large"),
        ("factorial(1000)", "too large"),
        ("factorial(10**9)", "from 0 to 1,000"),
        ("exp(100000)", "too large"),
        ("1e999999999", "exponent"),
        ("sqrt(-1)", "not a real number"),
        ("(-8)**(1/3)", "not a real number"),
        ("log(0)", "above 0"),
        ("asin(2)", "not defined"),
        ("", "is empty"),
        ("()", "expected a number"),
        ("1 +", "ends where a number is expected"),
        ("(1", "ends where ')' is expected"),
        ("1)", "found ')' at character 2"),
        ("5 5", "found '5' at character 3"),
        ("1,2", "thousands"),
        ("max(1,000)", "without thousands commas"),
        ("sqroot(4)", "did you mean 'sqrt'?"),
        ("__import__('os')", "cannot read"),
        ("x = 3", "cannot read '='"),
        ("3 < 4", "cannot read '<'"),
        ("sqrt()", "expected a number"),
        ("sqrt(1, 2)", "takes 1 argument, found 2"),
        ("gcd(1.5, 2)", "whole numbers"),
        ("(" * 200 + "1" + ")" * 200, "nested"),
        ("2**" * 200 + "1", "powers"),
        ("1+" * 10_000 + "1", "20,001 characters"),
    ],
)
def test_it_says_what_is_wrong(expression: str, says: str) -> None:
    with pytest.raises(ToolFailed) as failed:
        compiled().run({"expression": expression}, context())
    assert says in failed.value.text
    assert failed.value.text.startswith("cannot calculate: ")


_LEAVES = st.one_of(
    st.integers(0, 10**6).map(str), st.decimals(0, 1000, places=3, allow_nan=False).map(lambda value: f"{value:f}")
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda one: f"(-{one})"),
        st.tuples(inner, st.integers(0, 4)).map(lambda t: f"({t[0]} ** {t[1]})"),
    ),
    max_leaves=8,
)


def _exact(expression: str) -> Fraction:
    """Python's own arithmetic over fractions, for expressions that this file generates."""
    return Fraction(
        eval(re.sub(r"(?<!\*\* )\b\d+(?:\.\d+)?", r"Fraction('\g<0>')", expression), {"Fraction": Fraction})
    )


@settings(max_examples=300, deadline=None)
@given(_TREES)
def test_it_equals_exact_arithmetic(expression: str) -> None:
    try:
        expected = _exact(expression)
    except ZeroDivisionError:
        with pytest.raises(CannotCalculate, match="division by zero"):
            calculate(expression)
        return
    found = calculate(expression)
    if isinstance(found, float):  # the exact value is larger than what is kept
        assert found == pytest.approx(float(expected))
    else:
        assert found == expected
        if found == int(found):
            assert format_number(found) == str(int(found)) or isinstance(found, Fraction)


_WORDS = ["1", "2.5", "(", ")", "+", "-", "*", "/", "//", "**", "%", ",", "max(", "sqrt(", "of", "x", "1e9", "99999"]


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(alphabet="0123456789.+-*/%()^, exπ$=√×÷", max_size=60),
        st.lists(st.sampled_from(_WORDS), max_size=40).map(" ".join),
    )
)
def test_it_never_raises_anything_but_a_failure_for_the_model(expression: str) -> None:
    try:
        text, limit = compiled().run({"expression": expression}, context()).text, 1_300
    except ToolFailed as failed:
        text, limit = failed.text, 600
    assert 0 < len(text) < limit


def test_a_sum_of_many_is_what_adding_them_one_after_another_is() -> None:
    """No step on the way is larger than what is kept exact."""
    near_tenth, near_fifth = "2^2100/(10*2^2100+1)", "3^1300/(5*3^1300+1)"
    added = calculate(f"{near_tenth}+{near_fifth}-{near_tenth}-{near_fifth}")
    assert calculate(f"sum({near_tenth},{near_fifth},-{near_tenth},-{near_fifth})") == added != 0


@pytest.mark.shared_data
def test_the_annotations_of_gsm8k_have_the_values_that_they_claim() -> None:
    annotations = [
        pair
        for path in sorted(data.find("gsm8k").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
        for pair in json.loads(line)["calc"]
    ]
    wrong = [
        (expression, value, answer(expression))
        for expression, value in annotations
        if abs(Fraction(answer(expression)) - Fraction(value)) > Fraction(1, 10**9)
    ]
    assert len(annotations) > 2_000
    assert wrong == []
