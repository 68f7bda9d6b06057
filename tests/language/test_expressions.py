"""The comparisons of gates and success."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import EpisodeError
from rlenv.language.expressions import (
    ExpressionError,
    RowLimits,
    compile_expression,
    expected_of,
    flaws,
    number_of,
    open_on,
)
from rlenv.language.spec import LimitsSpec, RewardSpec

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


@pytest.mark.parametrize(
    ("key", "given", "is_taken"),
    [
        ("turns", 1, True),
        ("turns", 0, False),
        ("turns", 1.0, False),
        ("turns", True, False),
        ("turns", "1", False),
        ("turns", None, False),
        ("tool_calls", 1, True),
        ("tool_calls", 0, False),
        ("response_tokens", None, True),
        ("response_tokens", 0, False),
        ("turns_per_reply", None, True),
        ("turn_s", None, True),
        ("turn_s", 0.001, True),
        ("turn_s", 0, False),
        ("episode_s", 1, True),
        ("episode_s", 0.0, False),
        ("episode_s", None, False),
        ("reward_s", math.inf, False),
        ("reward_s", math.nan, False),
        ("weight", 0, True),
        ("weight", 0.0, True),
        ("weight", -0.1, False),
        ("weight", math.inf, False),
        ("weight", True, False),
        ("weight", None, False),
    ],
)
def test_a_number_of_a_row_is_in_its_keys_range(key: str, given: Any, is_taken: bool) -> None:
    assert (expected_of(key, given) == "") is is_taken
    number = number_of("{{ task.n }}", key, {})
    with nullcontext() if is_taken else pytest.raises(EpisodeError, match=f"{key}: the row gives") as failed:
        assert number({"n": given}) is given or number({"n": given}) == given
    if failed is not None:
        assert failed.value.reason == "task"
    with pytest.raises(EpisodeError, match=f"{key} cannot be filled from this row"):
        number({})


def test_limits_are_those_of_the_spec_where_rows_give_none() -> None:
    whole = RowLimits(LimitsSpec(turns=3), {})
    assert whole.of({}) is whole.usual
    assert whole.widest([{}]) == whole.usual
    some = RowLimits(LimitsSpec(turns="{{ task.turns * vars.by }}", tool_calls=7), {"by": 2})
    assert (some.usual.turns, some.usual.tool_calls) == (LimitsSpec().turns, 7)
    assert (some.of({"turns": 3}).turns, some.of({"turns": 3}).tool_calls) == (6, 7)
    assert some.widest([]) == some.widest([{}, {"turns": "x"}]) == some.usual


@pytest.mark.parametrize(
    ("gate", "row", "is_open"),
    [
        (None, {}, True),
        ("a >= 1", {"level": 0}, True),
        ("task.level > 2", {"level": 3}, True),
        ("task.level > 2", {"level": 2}, False),
        ("task.level > 2 and a >= 1", {"level": 3}, True),
        ("task.level > 2 and a >= 1", {"level": 2}, False),
        ("task.level > 2 or a >= 1", {"level": 2}, True),
        ("task.level > 2", {}, True),
        ("task.level >", {"level": 2}, True),
    ],
)
def test_a_gate_is_open_on_a_row_unless_the_row_alone_shuts_it(gate: str | None, row: Any, is_open: bool) -> None:
    assert open_on(gate)(row) is is_open


def test_a_flag_stands_without_a_comparison_and_another_name_does_not() -> None:
    found = compile_expression(
        "success and not cut and turns <= 3", names=("success", "cut", "turns"), flags=("success", "cut")
    )
    assert [found({"success": won, "cut": 0.0, "turns": 3.0}) for won in (1.0, 0.0, None)] == [True, False, None]
    with pytest.raises(ExpressionError, match="expected a comparison"):
        compile_expression("turns", names=("turns",), flags=("success",))
    assert compile_expression("success == 1", names=("success",), flags=("success",))({"success": 1.0}) is True


@pytest.mark.parametrize(("depth", "is_read"), [(64, True), (65, False)])
def test_an_expression_is_read_up_to_a_depth_and_a_length(depth: int, is_read: bool) -> None:
    with nullcontext() if is_read else pytest.raises(ExpressionError, match="64 levels deep"):
        compile_expression("(" * depth + "a > 1" + ")" * depth)
    text = "a > 1".ljust(4_000 if is_read else 4_001)
    with nullcontext() if is_read else pytest.raises(ExpressionError, match="more than 4000 characters"):
        compile_expression(text)


def faults(success: str | None = None, lost: frozenset[str] = frozenset(), **rewards: Any) -> list[tuple[str, str]]:
    specs = {name: RewardSpec(kind="rule", **keys) for name, keys in rewards.items()}
    return [(flaw.path, flaw.hint) for flaw in flaws(specs, success, lost=lost)]


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"range": (0, 1)}, None),
        ({"range": (1, 0)}, "write [0, 1]"),
        ({"range": (2, 2)}, "write [0, 1]"),
        ({"range": (5, 3)}, "write [3, 5]"),
        ({"clip": (-1, 1)}, None),
        ({"clip": (0, math.inf)}, "write [0, inf]"),
        ({"clip": (1, 1)}, "write [0, 1]"),
    ],
)
def test_bounds_are_a_lower_and_a_higher_number(keys: dict[str, Any], hint: str | None) -> None:
    assert [one for _, one in faults(a=keys)] == ([] if hint is None else [hint])


def test_every_flaw_of_gates_and_success_is_told_once_and_none_of_what_was_lost() -> None:
    assert faults("a >= 1 and c >= 1", a={}, c={"gate": "a >= 1"}) == []
    assert [path for path, _ in faults("b >= 1", a={"gate": "b >= 1 or d >= 1"})] == ["rewards.a.gate"] * 2 + [
        "success"
    ]
    assert faults("b >= 1", frozenset({"rewards.b"}), a={"gate": "b >= 1"}) == []
    assert [
        path for path, _ in faults(a={"gate": "b > 0"}, b={"gate": "c > 0"}, c={"gate": "a > 0"}, d={"gate": "a > 0"})
    ] == ["rewards.a.gate"]
    assert [path for path, _ in faults(a={"gate": "a > 0"}, b={"gate": "a > 0"})] == ["rewards.a.gate"]
    assert [path for path, _ in faults("a >", a={"weight": math.inf, "gate": "b >"})] == [
        "rewards.a.weight",
        "rewards.a.gate",
        "success",
    ]
