"""The comparisons of gates and success."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.language.expressions import ExpressionError, RowLimits, compile_expression
from rlenv.language.spec import LimitsSpec

VALUES = {"a": 1.0, "b": 0.5, "zero": 0.0, "none": None}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a >= 1", True),
        ("a > 1", False),
        ("1 <= a", True),
        ("b<a", True),
        ("b == .5", True),
        ("b != 5e-1", False),
        ("zero > -1", True),
        ("a >= 1 and b > 0.5", False),
        ("a >= 1 or b > 0.5", True),
        ("not a >= 1", False),
        ("not not a >= 1", True),
        ("a > 1 or a >= 1 and b > 0", True),
        ("(a > 1 or a >= 1) and b > 1", False),
        ("not (a > 1 or b > 1)", True),
        ("none >= 1", None),
        ("not none >= 1", None),
        ("none >= 1 or a >= 1", True),
        ("none >= 1 and a > 1", False),
        ("none >= 1 and a >= 1", None),
        ("none >= 1 or a > 1", None),
        ("missing >= 1", None),
    ],
)
def test_an_expression_is_true_false_or_open(source: str, expected: bool | None) -> None:
    assert compile_expression(source)(VALUES) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('task.kind == "proof"', True),
        ("task.kind != 'proof'", False),
        ("a >= 1 and task.level > 2", True),
        ("task.level <= 2", False),
        ("task.meta.deep == 7", True),
        ("task.hard", True),
        ("not task.easy", True),
        ("task.lost", None),
        ("task.lost == 1 or a >= 1", True),
        ("task.kind > 3", None),
        ("task.level == a", False),
    ],
)
def test_a_gate_reads_columns_of_the_row(source: str, expected: bool | None) -> None:
    row = {"kind": "proof", "level": 3, "hard": True, "easy": 0, "meta": {"deep": 7}}
    assert compile_expression(source, by_row=True)(VALUES, row) is expected


def test_what_is_no_gate_reads_terms_alone() -> None:
    with pytest.raises(ExpressionError, match="columns are read in gates alone"):
        compile_expression("task.hard and a >= 1")


def test_the_names_that_are_read_are_known() -> None:
    assert compile_expression("b > 0 and (a > b or not c == 1)").names == ("b", "a", "c")


@pytest.mark.parametrize(
    ("source", "message", "position"),
    [
        ("", "expected a number or the name of a term, found the end", 0),
        ("a", "expected a comparison such as >= 1, found the end", 1),
        ("a >=", "found the end", 4),
        ("a = 1", "cannot read '='.*; write ==", 2),
        ("a >= 1 && b >= 1", "cannot read '&&'.*; write and", 7),
        ("a >= 1 b", "expected 'and', 'or' or the end, found 'b'", 7),
        ("(a >= 1", r"expected '\)', found the end", 7),
        ("a >= 1)", r"found '\)'", 6),
        ("a < b < c", "found '<'", 6),
        ("and > 1", "found 'and'", 0),
        ("a.b > 1", r"cannot read '\.'", 1),
        ("__import__('os') > 1", "no term is called '__import__'", None),
        ("colour > 1", "no term is called 'colour'.*; did you mean 'color'", 0),
        ("zzz > 1", "there are: a, b, c, color", 0),
        ("(" * 100 + "a > 1" + ")" * 100, "levels deep", None),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(source: str, message: str, position: Any) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        compile_expression(source, names=["a", "b", "c", "color"])
    if position is not None:
        assert caught.value.position == position


@given(st.text(alphabet=st.sampled_from("ab01.<>=!() andornot")))
def test_any_text_is_compiled_or_refused(source: str) -> None:
    refused: ExpressionError | None = None
    try:
        found = compile_expression(source)(VALUES)
    except ExpressionError as error:
        refused = error
    if refused is None:
        assert found in (True, False, None)
    else:
        assert 0 <= refused.position <= len(source)


def test_the_widest_limit_of_rows_is_none_where_one_row_has_none() -> None:
    limits = RowLimits(LimitsSpec(turns="{{ task.turns }}", response_tokens="{{ task.room }}"), {})
    row = dict[str, Any]
    rows = [row(turns=2, room=100), row(turns=5, room=None), row(turns=9), row(turns=3, room=50)]
    widest = [limits.widest(some) for some in (rows[::3], rows)]  # the third gives no room, and is left out
    assert [(one.turns, one.response_tokens) for one in widest] == [(3, 100), (5, None)]
