"""When two query results are the same, and when a query orders its rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.rewards.rows import Table, orders_rows, read_table, same_rows


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
    assert read_table({"columns": ["a"], "rows": [[1]], "truncated": True}) == Table(((1,),), is_cut=True)
    assert read_table([[1, 2]]) == Table(((1, 2),))
    assert read_table([{"a": 1, "b": 2}]) == Table(((1, 2),))
    assert read_table(Table(((1,),))) == Table(((1,),))
    assert read_table([]) == Table(())
    assert read_table("a | b") is None
    assert read_table([1, 2]) is None
    assert read_table(None) is None
