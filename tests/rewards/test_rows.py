"""When two query results are the same, and when a query orders its rows."""

import math
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.rewards.rows import Table, order_keys, orders_rows, read_table, same_rows


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t ORDER BY a",
        "select a from t order\n  by a desc limit 3",
        "SELECT a FROM t ORDER /* why */ BY a",
        "SELECT a FROM t ORDER -- why\n BY a",
        "SELECT (SELECT 1 ORDER BY 1) FROM t ORDER BY a",
        "WITH c AS (SELECT 1) SELECT * FROM c ORDER BY 1",
        "SELECT a FROM t WHERE b = 'it''s (' ORDER BY a",
        'SELECT "a(" FROM t ORDER BY a',
        "SELECT [a(] FROM t ORDER BY a",
        "SELECT a FROM t) ORDER BY a",
    ],
)
def test_a_query_with_an_order_by_of_its_own_orders_rows(query: str) -> None:
    assert orders_rows(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t",
        "SELECT * FROM (SELECT a FROM t ORDER BY a)",
        "SELECT rank() OVER (ORDER BY a) FROM t",
        "SELECT 'order by' FROM t",
        "SELECT a FROM t -- ORDER BY a",
        "SELECT a FROM t /* ORDER BY a",
        "SELECT a FROM `order by`",
        'SELECT a AS "order" , by FROM t',
        "SELECT reorder by FROM t",
        "SELECT a FROM t WHERE b = 'unclosed ORDER BY a",
        "SELECT order, by FROM t",
        "",
    ],
)
def test_one_inside_something_else_does_not(query: str) -> None:
    assert not orders_rows(query)


@given(st.text(alphabet=st.sampled_from("'\"`[]()-/*\n order by")))
def test_scanning_a_query_never_raises(query: str) -> None:
    orders_rows(query)


def test_rows_are_a_multiset_unless_ordered() -> None:
    assert same_rows([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], ordered=False)
    assert not same_rows([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], ordered=True)
    assert not same_rows([(1,), (1,), (2,)], [(1,), (2,), (2,)], ordered=False)
    assert not same_rows([(1,)], [(1,), (1,)], ordered=False)
    assert same_rows([], [], ordered=True)


@pytest.mark.parametrize("ordered", [True, False])
def test_numbers_are_near_nulls_equal_and_texts_exact(ordered: bool) -> None:
    assert same_rows([(1,)], [(1.0,)], ordered=ordered)
    assert same_rows([(0.1 + 0.2,)], [(0.3,)], ordered=ordered)
    assert same_rows([(None,)], [(None,)], ordered=ordered)
    assert same_rows([(float("nan"),)], [(None,)], ordered=ordered)
    assert not same_rows([(None,)], [(0,)], ordered=ordered)
    assert not same_rows([("1",)], [(1,)], ordered=ordered)
    assert not same_rows([("a",)], [("A",)], ordered=ordered)
    assert not same_rows([(0.31,)], [(0.3,)], ordered=ordered)
    assert not same_rows([(0.1 + 0.2,)], [(0.3,)], ordered=ordered, tolerance=0.0)
    assert not same_rows([(1, 2)], [(1,)], ordered=ordered)
    assert not same_rows([(1, 2)], [(2, 1)], ordered=ordered)


def test_columns_may_be_permuted_only_where_asked_and_all_rows_alike() -> None:
    mine, gold = [(1, "a", 5), (2, "b", 5)], [("a", 5, 1), ("b", 5, 2)]
    assert not same_rows(mine, gold, ordered=True)
    assert same_rows(mine, gold, ordered=True, any_column_order=True)
    assert not same_rows([(1, 2), (2, 1)], [(1, 2), (1, 2)], ordered=False, any_column_order=True)


def test_a_wide_result_with_equal_columns_is_compared_in_bounded_time() -> None:
    mine = [(0,) * 30 + (1,), (0,) * 30 + (2,)]
    gold = [(0,) * 30 + (2,), (0,) * 30 + (3,)]
    assert not same_rows(mine, gold, ordered=False, any_column_order=True)
    assert not same_rows([(0.0,)] * 4000, [(1.0,)] * 4000, ordered=False)


cells = st.one_of(st.none(), st.integers(-5, 5), st.floats(-5, 5), st.text(max_size=2))
tables = st.lists(st.tuples(cells, cells), max_size=6)


@given(tables, st.randoms(use_true_random=False))
def test_a_shuffled_result_equals_itself_as_a_multiset(rows: list[tuple[object, object]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert same_rows(shuffled, rows, ordered=False)
    assert same_rows([row[::-1] for row in shuffled], rows, ordered=False, any_column_order=True)


def test_a_table_is_read_from_a_mapping_an_object_or_a_list_of_rows() -> None:
    assert read_table({"columns": ["a"], "rows": [[1]], "truncated": True}) == Table(((1,),), True, ("a",))
    assert read_table([[1, 2]]) == Table(((1, 2),))
    assert read_table([{"a": 1, "b": 2}]) == Table(((1, 2),), columns=("a", "b"))
    assert read_table(Table(((1,),))) == Table(((1,),))
    assert read_table([]) == Table(())
    assert read_table("a | b") is None
    assert read_table([1, 2]) is None
    assert read_table(None) is None


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("mine", "gold", "same"),
    [
        (8_000_000, 8_000_007, False),
        (8_000_000.0, 8_000_007, False),  # a cast opens no tolerance
        (8_000_000.0, 8_000_007.0, False),
        (1_000_000_000, 1_000_000_999, False),
        (9_007_199_254_740_993, 9_007_199_254_740_992, False),
        (9_007_199_254_740_993, 9_007_199_254_740_992.0, False),
        (10**400, 1.0, False),
        (10**400, 10**400 + 1, False),
        (1e-7, 9e-7, False),
        (0.0, 5e-7, False),
        (0, 5e-7, False),
        (0.0, 1e-13, True),
        (1e17, 1e17 + 16, True),  # sums of fractions
        (5, 4.999999999999999, True),
        (5.0, 5, True),
        (3.3333333, 3.33333333333, True),
        (3.33, 3.3333333, False),
        (True, 1, True),  # as SQLite stores it
        (float("inf"), 1.0, False),
    ],
)
def test_whole_numbers_are_equal_or_not_and_only_fractions_have_a_tolerance(
    mine: float, gold: float, same: bool, ordered: bool
) -> None:
    assert same_rows([(mine,)], [(gold,)], ordered=ordered) is same


@pytest.mark.parametrize("count", [150, 300, 5_000])
def test_noise_in_many_rows_does_not_hide_that_they_are_the_same(count: int) -> None:
    gold = [(0.3, index, "x") for index in range(count)]
    mine = [(0.3 + (-1) ** index * index * 1e-12, index, "x") for index in range(count)]
    random.Random(0).shuffle(mine)
    assert same_rows(mine, gold, ordered=False)
    mine[0] = (0.4, *mine[0][1:])
    assert not same_rows(mine, gold, ordered=False)


def test_rows_made_to_take_long_do_not() -> None:
    step = 9e-7
    gold = [(1 + step * (index % 97), index * 0.1) for index in range(10_000)]
    mine = [(a + step / 3, b) for a, b in reversed(gold)]
    begun = time.thread_time()
    same_rows(mine, gold, ordered=False)
    assert time.thread_time() - begun < 2.0  # without a bound: ten thousand squared


@pytest.mark.parametrize(
    ("query", "columns", "keys"),
    [
        ("SELECT name, n FROM t ORDER BY n DESC", ("name", "n"), (1,)),
        ("SELECT name, n FROM t ORDER BY 2, 1 DESC NULLS LAST LIMIT 3", ("name", "n"), (1, 0)),
        ("SELECT t.name, count(*) FROM t GROUP BY 1 ORDER BY COUNT( * ) desc;", ("name", "count(*)"), (1,)),
        ('SELECT a AS "x" FROM t ORDER BY "X"', ("x",), (0,)),
        ("SELECT name FROM t ORDER BY t.name", ("name",), (0,)),
        ("SELECT name FROM t ORDER BY n", ("name",), ()),
        ("SELECT name, n FROM t ORDER BY n, other", ("name", "n"), ()),
        ("SELECT a, b FROM t ORDER BY 3", ("a", "b"), ()),
        ("SELECT n, n FROM t ORDER BY n", ("n", "n"), ()),
        ("SELECT a FROM t", ("a",), ()),
        ("SELECT a FROM t ORDER BY", ("a",), ()),
        ("SELECT a FROM t ORDER BY (", ("a",), ()),
    ],
)
def test_what_a_query_orders_by_is_found_in_its_result(
    query: str, columns: tuple[str, ...], keys: tuple[int, ...]
) -> None:
    assert order_keys(query, columns) == keys


@given(st.text(alphabet=st.sampled_from("'\"`[](),;-/*\n orderby1")), st.lists(st.text()))
def test_looking_for_the_keys_never_raises(text: str, columns: list[str]) -> None:
    order_keys("SELECT a ORDER BY " + text, columns)


def test_rows_that_are_tied_have_no_order_among_themselves() -> None:
    gold = [("a", 2), ("b", 1), ("c", 1)]
    for mine, same in (
        ([("a", 2), ("c", 1), ("b", 1)], True),
        ([("c", 1), ("a", 2), ("b", 1)], False),
        ([("a", 2), ("b", 1), ("b", 1)], False),
        ([("b", 1), ("c", 1), ("a", 2)], False),
    ):
        assert same_rows(mine, gold, ordered=True, order_keys=(1,)) is same
    assert not same_rows([("a", 2), ("c", 1), ("b", 1)], gold, ordered=True)
    swapped = [(2, "a"), (1, "c"), (1, "b")]
    assert same_rows(swapped, gold, ordered=True, order_keys=(1,), any_column_order=True)


@pytest.mark.parametrize(
    ("mine", "gold", "tolerance", "are_same"),
    [
        (1.5, 1.5 + 1e-6, 1e-6, True),
        (1.5, 1.5 + 3e-6, 1e-6, False),
        (1.5, 1.5 + 1e-7, 0.0, False),
        (1000.5, 1000.501, 1e-6, True),
        (1000.5, 1000.502, 1e-6, False),
        (1.0, 1.0 + 1e-7, 1e-6, False),
        (0.0, 9e-10, 1e-6, True),
        (0.0, 2e-9, 1e-6, False),
        (10**18, 10**18 + 1, 1e-6, False),
        (1, 1.0, 0.0, True),
        (True, 1, 0.0, True),
        ("1", 1, 1e-6, False),
        (None, None, 1e-6, True),
        (math.nan, None, 0.0, True),
        (None, 0, 1e-6, False),
        (b"a", b"a", 0.0, True),
        (b"a", "a", 1e-6, False),
        ([1, 2], [1, 2], 0.0, True),
        (math.inf, math.inf, 1e-6, True),
    ],
)
@pytest.mark.parametrize("ordered", [True, False])
def test_cells_are_near_by_a_share_and_whole_numbers_and_texts_equal(
    mine: Any, gold: Any, tolerance: float, are_same: bool, ordered: bool
) -> None:
    assert same_rows([(mine,)], [(gold,)], ordered=ordered, tolerance=tolerance) is are_same


@pytest.mark.parametrize(
    ("mine", "gold", "keys", "are_same"),
    [
        ([(1, "a"), (1, "b"), (2, "c")], [(1, "b"), (1, "a"), (2, "c")], (0,), True),
        ([(1, "a"), (2, "c"), (1, "b")], [(1, "b"), (1, "a"), (2, "c")], (0,), False),
        ([(1, "a"), (1, "c"), (2, "b")], [(1, "a"), (1, "b"), (2, "c")], (0,), False),
        ([(1, "a"), (2, "c"), (2, "b")], [(1, "a"), (2, "b"), (2, "c")], (0,), True),
        ([(1, "a"), (1, "b")], [(1, "b"), (1, "a")], (), False),
        ([(1, "a"), (1, "b")], [(1, "b"), (1, "a")], (0, 1), False),
    ],
)
def test_rows_keep_the_order_of_their_keys_up_to_the_last_one(
    mine: list[Any], gold: list[Any], keys: tuple[int, ...], are_same: bool
) -> None:
    assert same_rows(mine, gold, ordered=True, order_keys=keys) is are_same
    assert same_rows(mine, gold, ordered=False) is (sorted(mine) == sorted(gold))


@pytest.mark.parametrize(
    ("mine", "gold", "are_same"),
    [
        ([], [], True),
        ([(1,)], [], False),
        ([], [(1,)], False),
        ([(1,), (1,)], [(1,)], False),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False),
        ([(1, 2)], [(1,)], False),
        ([(1,), (2, 3)], [(1,), (2,)], False),
        ([(1, "a"), (2, "b")], [("a", 1), ("b", 2)], False),
    ],
)
def test_rows_are_as_many_and_as_wide(mine: list[Any], gold: list[Any], are_same: bool) -> None:
    assert same_rows(mine, gold, ordered=False) is are_same


@pytest.mark.parametrize(
    ("mine", "gold", "are_same"),
    [
        ([(1, "a"), (2, "b")], [("a", 1), ("b", 2)], True),
        ([(1, 2), (2, 1)], [(2, 1), (1, 2)], True),
        ([(1, 1, 2), (3, 3, 4)], [(1, 2, 1), (3, 4, 3)], True),
        ([(1, 2), (3, 4)], [(2, 1), (3, 4)], False),
        ([(0.1, "a")], [("a", 0.1 + 1e-9)], True),
        ([(1, 2)], [(1, 3)], False),
    ],
)
def test_some_one_order_of_the_columns_fits_all_rows(mine: list[Any], gold: list[Any], are_same: bool) -> None:
    assert same_rows(mine, gold, ordered=False, any_column_order=True) is are_same


@pytest.mark.parametrize(
    ("value", "table"),
    [
        ({"rows": [[1]], "truncated": True, "columns": ["a"]}, Table(((1,),), True, ("a",))),
        ({"rows": []}, Table(())),
        ([{"a": 1, "b": 2}], Table(((1, 2),), False, ("a", "b"))),
        (({"a": 1}, (2,)), Table(((1,), (2,)), False, ("a",))),
        ({"rows": [{"a": 1}], "columns": ["x"]}, Table(((1,),), False, ("x",))),
        ({"rows": [[1]], "columns": "ab"}, Table(((1,),))),
        ("rows", None),
        (b"rows", None),
        (3, None),
        ([3], None),
        ({"a": 1}, None),
    ],
)
def test_a_tools_value_is_a_table_or_none(value: Any, table: Table | None) -> None:
    assert read_table(value) == table


@pytest.mark.parametrize(
    ("mine", "gold", "are_same"),
    [
        ([1.01, 1.17], [1.09, 1.1], True),
        ([1.17, 1.01], [1.1, 1.09], True),
        ([1.01, 1.09, 1.17], [1.1, 1.18, 1.02], True),
        ([1.01, 1.17], [1.02, 1.3], False),
        ([1.01, 1.01], [1.02, 1.3], False),
    ],
)
def test_rows_that_are_near_in_a_chain_find_their_partners(
    mine: list[float], gold: list[float], are_same: bool
) -> None:
    for more in ((), ("a",)):
        one, other = ([(*more, value) for value in side] for side in (mine, gold))
        assert same_rows(one, other, ordered=False, tolerance=0.1) is are_same
