"""math_equal and sql_match: what they take for equal, and hostile answers."""

import asyncio

import pytest

from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import Measured
from rlenv.rewards.queries import UnreadableQuery, overlap, structure
from rlenv.testing.rewards import compile_term, measure, reward_context

pytest.importorskip("math_verify", reason="the extra `math` is not installed")
pytest.importorskip("sqlglot", reason="the extra `sql` is not installed")


def equal(answer: str | None, gold: object, **keys: float) -> Measured:
    term = compile_term(rule="math_equal", expect="{{ task.gold }}", **keys)
    assert term.measure_async is not None
    return asyncio.run(term.measure_async(reward_context(answer=answer, task={"gold": gold})))


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("1/2", "0.5", 1.0),
        (r"\frac{1}{2}", "1/2", 1.0),
        ("x=4", "4", 1.0),
        ("(1,2)", "(1, 2)", 1.0),
        (r"\sqrt3", r"\sqrt{3}", 1.0),
        (r"\{1,2\}", r"\{2,1\}", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        ("3,901", 3901, 1.0),
        ("7", ["6", "7"], 1.0),
        ("-1", "1", 0.0),
        ("1, 2, 3, 4", "3", 0.0),  # every number at once is no answer
        ("1 or 3", "3", 0.0),
        ("$1$ or $3$", "3", 0.0),
        (r"\boxed{1} \boxed{3}", "3", 0.0),
        ("((((3", "3", 0.0),
        ("I do not know", "3", 0.0),
        (None, "3", 0.0),
        ("", "3", 0.0),
    ],
)
def test_equality_is_that_of_mathematics(answer: str | None, gold: object, value: float) -> None:
    assert equal(answer, gold).value == value


def test_an_expression_without_end_is_wrong_and_the_next_one_is_measured() -> None:
    hostile = equal("9^{9^{9^{9}}}", "3", limit_s=0.3)
    assert (hostile.value, hostile.details) == (0.0, {"note": "not decided within 0.3 s"})
    assert equal("0.25", "1/4").value == 1.0


def test_a_very_long_answer_is_not_read() -> None:
    assert equal("1+" * 2_000 + "1", "3").value == 0.0


def test_a_gold_value_that_is_no_mathematics_leaves_the_term_invalid() -> None:
    with pytest.raises(RewardError, match="cannot be read as mathematics"):
        equal("3", "((")


GOLD = "SELECT a.name FROM author AS a WHERE a.age > 30 AND a.city IN ('Rome', 'Oslo') ORDER BY a.name"


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("select name from author where city in ('Oslo','Rome') and 30 < age order by name", 1.0),
        ("SELECT x.name AS n FROM author x WHERE (x.age > 30) AND x.city IN ('Rome', 'Oslo') ORDER BY n;", 1.0),
        ("SELECT name FROM author WHERE age > 30 AND city IN ('Rome', 'Oslo')", 0.0),
        ("SELECT name FROM author WHERE age >= 30 AND city IN ('Rome', 'Oslo') ORDER BY name", 0.0),
        ("SELECT name FROM author WHERE age > 30 OR city IN ('Rome', 'Oslo') ORDER BY name", 0.0),
        ("SELECT name FROM author WHERE age > 30 AND city IN ('Rome', 'Oslo') ORDER BY name DESC", 0.0),
        ("SELECT DISTINCT name FROM author WHERE age > 30 AND city IN ('Rome', 'Oslo') ORDER BY name", 0.0),
        (f"{GOLD}; {GOLD}", 0.0),
        ("DROP TABLE author", 0.0),
        ("SELEC name", 0.0),
        ("SELECT " + "(" * 5000 + "1" + ")" * 5000, 0.0),
        (None, 0.0),
    ],
)
def test_a_querys_structure_is_what_counts(answer: str | None, value: float) -> None:
    where = reward_context(answer=answer, task={"gold_sql": GOLD})
    assert measure("sql_match", where).value == value


def test_parts_give_a_share() -> None:
    where = reward_context(answer=GOLD.replace("> 30", "> 40"), task={"gold_sql": [GOLD, "SELECT 1"]})
    found = measure("sql_match", where, partial=True).value
    assert found is not None
    assert 0.5 < found < 1.0
    assert overlap(structure(GOLD, dialect="sqlite"), structure(GOLD, dialect="sqlite")) == 1.0


def test_a_self_join_keeps_who_is_who() -> None:
    one = "SELECT a.x FROM t a JOIN t b ON a.id = b.parent"
    other = "SELECT b.x FROM t a JOIN t b ON a.id = b.parent"
    assert structure(one, dialect="sqlite") != structure(other, dialect="sqlite")


def test_a_gold_query_that_cannot_be_read_leaves_the_term_invalid() -> None:
    with pytest.raises(RewardError, match="gold query"):
        measure("sql_match", reward_context(answer="SELECT 1", task={"gold_sql": "SELEC"}))
    with pytest.raises(UnreadableQuery):
        structure("SELECT 1; SELECT 2", dialect="sqlite")


def test_an_unknown_dialect_is_the_authors_mistake() -> None:
    with pytest.raises(UsageError, match="dialect"):
        compile_term(rule="sql_match", dialect="nosuch")
