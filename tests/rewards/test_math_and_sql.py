"""math_equal and sql_match: what they take for equal, and hostile answers."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import Measured
from rlenv.rewards.rules.mathematics import Equality, MathWorkers
from rlenv.rewards.rules.queries import UnreadableQuery, overlap, structure
from rlenv.testing.rewards import compile_term, measure, reward_context

pytest.importorskip("math_verify", reason="the extra `math` is not installed")
pytest.importorskip("sqlglot", reason="the extra `sql` is not installed")


def equal(answer: str | None, gold: object, **keys: Any) -> Measured:
    return measure("math_equal", reward_context(answer=answer, task={"gold": gold}), expect="{{ task.gold }}", **keys)


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


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        # A capital beside its small letter is another name.
        ("0", r"\pi(R^2-r^2)", 0.0),
        ("1", r"\frac{M}{m}", 0.0),
        ("R+r", "2r", 0.0),
        ("r-R", "R-r", 0.0),
        ("(R-r)(R+r)", "R^2-r^2", 1.0),
        (r"\frac{M}{m}", "M/m", 1.0),
        ("2r", "2R", 0.0),
        (r"\Omega t", r"\omega t", 0.0),
        ("none", "None", 1.0),
        # A ratio of three is no division, and the names of points no product.
        ("3:5:4", "3:4:5", 0.0),
        ("3/20", "3:4:5", 0.0),
        ("6:8:10", "3 : 4 : 5", 1.0),
        ("2:1", "4:2", 1.0),
        ("BDAC", "ABCD", 0.0),
        ("bca", "abc", 1.0),
        # Millions are no unit.
        ("5", r"5\text{ million}", 0.0),
        ("5,000,000", r"5\text{ million}", 1.0),
        ("2.5 million", "2500 thousand", 1.0),
    ],
)
def test_what_the_library_reads_as_a_product_a_division_or_a_unit_is_compared_as_what_it_is(
    answer: str, gold: str, value: float
) -> None:
    assert equal(answer, gold).value == value


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        # Numbers are exactly what they say.
        ("0.0000002", "0.0000001", 0.0),
        ("0.3333333", "1/3", 0.0),
        ("1000000000001", "10^{12}", 0.0),
        ("6.28", r"2\pi", 0.0),
        ("6.28318530717959", r"2\pi", 1.0),
        # However they are written, and however small they are.
        (r"1.6\times 10^{-19}", "1.6e-19", 1.0),
        ("1.6e-19", r"1.6 \cdot 10^{-19}", 1.0),
        ("1.6 × 10⁻¹⁹", r"1.6\times 10^{-19}", 1.0),
        (r"4.5\times 10^{-3}", r"\frac{9}{2000}", 1.0),
        ("10^{-99}", r"6.62\times 10^{-34}", 0.0),
        (r"6.63\times 10^{-34}", r"6.62\times 10^{-34}", 0.0),
        ("2^{-100}", "2^{-101}", 0.0),
        ("e^{-100}", "e^{-101}", 0.0),
        (r"\frac{1}{e^{100}}", "e^{-100}", 1.0),
        (r"\sin(\pi)", r"\sin(2\pi)", 1.0),
        ("0.000000014142", r"\sqrt{2}\times 10^{-8}", 1.0),
        # A percentage is its hundredth.
        (r"50\%", "0.5", 1.0),
        ("1/2", "50%", 1.0),
        (r"50\%", "50", 0.0),
        # A unit may be left out and not be another one.
        ("10", "10 cm", 1.0),
        ("10 centimeters", r"10\text{ cm}", 1.0),
        ("10 m", "10 cm", 0.0),
        ("10 cm", "10 cm^2", 0.0),
        # The whole text is the expression.
        ("The answer is not 7", "7", 0.0),
        (r"\text{not } 7", "7", 0.0),
        ("7 is wrong", "7", 0.0),
        # Every side of a chain of equations has to hold.
        ("8=7", "7", 0.0),
        ("2x=7", "7", 0.0),
        ("x=41=42", "42", 0.0),
        ("x=3+4=7", "7", 1.0),
        ("f(x)=7", "7", 1.0),
        ("x=41=42", "x=42", 0.0),
        ("y=42", "x=42", 0.0),
        ("42", "x=42", 1.0),
        ("42 = x", "x=42", 1.0),
        ("y = 1 + 2x", "y = 2x + 1", 1.0),
        ("x + y = 3", "y + x = 3", 1.0),
        ("2x + 2y = 6", "x + y = 3", 1.0),
        (r"\sum_{i=1}^{42} 1", "42", 1.0),
        (r"1, \dots, 42", "42", 0.0),
        (r"\dots 42", "42", 0.0),
        # Tuples have an order and sets have none; a name is not Euler's number.
        (r"\{1,2\}", "(1,2)", 0.0),
        ("(1,2)", r"\{1,2\}", 0.0),
        ("2,1", "(1,2)", 0.0),
        ("1,2", "(1,2)", 1.0),
        # Nor are the ends of an interval what lies between.
        ("1<x<3", r"\{1,3\}", 0.0),
        ("1<x<3", "1,3", 0.0),
        (r"\{1,3\}", "1<x<3", 0.0),
        ("1,3", r"x\in(1,3)", 0.0),
        ("x>1", r"\{1,\infty\}", 0.0),
        ("(1,3)", "1<x<3", 1.0),
        (r"x\in\{1,3\}", r"\{1,3\}", 1.0),
        (r"\begin{pmatrix}1\\0.5\end{pmatrix}", r"\begin{pmatrix}1\\ \frac{1}{2}\end{pmatrix}", 1.0),
        (r"\begin{pmatrix}1\\0.5\end{pmatrix}", r"\begin{pmatrix}1\\ \frac{1}{3}\end{pmatrix}", 0.0),
        ("e", "E", 0.0),
        (r"\varnothing", r"\emptyset", 1.0),
        (r"\{ \}", "∅", 1.0),
        (r"\{0\}", r"\emptyset", 0.0),
        ("5<6", r"\emptyset", 0.0),
        ("6<5", r"\emptyset", 0.0),
        ("x<x", r"\emptyset", 0.0),
        # The same thing in other clothes.
        (r"1\,000", "1000", 1.0),
        ("3 1/2", "3.5", 1.0),
        ("-3 1/2", "-3.5", 1.0),
        (r"\frac 1 2", "0.5", 1.0),
        # Numbers side by side are neither a sum nor a product.
        ("821 589", "1410", 0.0),
        (r"821\quad 589", "1410", 0.0),
        ("821 589 cm", "1410 cm", 0.0),
        ("x = 821 589", "1410", 0.0),
        ("821 1178/2", "1410", 0.0),
        ("2 3x", "6x", 0.0),
        ("1.5e3", "1500", 1.0),
        (r"\boxed{7}", "7", 1.0),
        (r"\[7\]", "7", 1.0),
        ("**7**", "7", 1.0),
        ("42", "42", 1.0),
        ("４２", "42", 1.0),
        ("18.90", r"\$18.90", 1.0),
        ("$5", r"\$5", 1.0),
        (r"$\$32,\!348$", "32348", 1.0),
        ("pi/2", r"\frac{\pi}{2}", 1.0),
        ("sqrt(2)/2", r"\frac{\sqrt{2}}{2}", 1.0),
        ("1<x<2", "(1,2)", 1.0),
        ("Blue", r"\text{blue}", 1.0),
        (r"3 \text{ or } 5", r"3 \text{ or } 5", 1.0),
    ],
)
def test_what_is_the_same_and_what_is_not(answer: str, gold: str, value: float) -> None:
    assert equal(answer, gold).value == value


@pytest.mark.slow
def test_an_expression_without_end_is_wrong_and_the_next_one_is_measured() -> None:
    hostile = equal("9^{9^{9^{9}}}", "3", cpu_s=0.3)
    assert (hostile.value, hostile.details) == (0.0, {"note": "takes more than 0.3 s of processor time"})
    assert equal("0.25", "1/4").value == 1.0


def test_a_very_long_answer_is_not_read() -> None:
    assert equal("1+" * 2_000 + "1", "3").value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "1e9999%",
        "-1e-9999%",
        "9" * 1_990 + "e9999",
        "9" * 990 + "/" + "9" * 990 + "%",
        # Read in as many ways as the runs can be split, these take the loop minutes.
        *("sin^{}2{}(1^{}x".format(*(space * 490,) * 2, space * 980) for space in (" ", "\u3000")),
    ],
)
def test_a_plain_number_is_compared_with_any_text_at_once(answer: str) -> None:
    assert equal(answer, "7").value == 0.0


@pytest.mark.parametrize(
    ("gold", "message"),
    [
        ("((", "cannot be read as mathematics"),
        ("C++", "cannot be read as mathematics"),
        pytest.param("(" * 900 + ")" * 900, "gold value", marks=pytest.mark.slow),
        pytest.param("9^{9^{9^{9}}}", "takes more than 0.3 s", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("answer", ["3x", pytest.param("the gold itself", marks=pytest.mark.slow)])
def test_a_gold_value_that_cannot_be_compared_with_leaves_the_term_invalid_for_everybody(
    gold: str, message: str, answer: str
) -> None:
    with pytest.raises(RewardError, match=message):
        equal(gold if answer == "the gold itself" else answer, gold, cpu_s=0.3)


def compared(pool: MathWorkers, mine: str, gold: str, *, limit_s: float = 5) -> Equality:
    return asyncio.run(pool.compare(mine, [gold], limit_s=limit_s))


@pytest.mark.slow
def test_a_process_that_is_stopped_says_nothing_about_the_answer() -> None:
    pool = MathWorkers(size=1, stall_s=0.1)
    assert compared(pool, "x", "x").is_equal
    (stopped,) = pool.pool.processes
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(RewardError, match="stopped or starved"):
        compared(pool, "0.25+0.25", r"\frac{1}{2}", limit_s=0.01)
    assert stopped not in pool.pool.processes
    pool.pool.close()


@pytest.mark.slow
def test_a_process_that_somebody_ends_costs_no_comparison() -> None:
    pool = MathWorkers(size=1)
    assert compared(pool, "x", "x").is_equal
    os.kill(pool.pool.processes[0], signal.SIGKILL)
    assert compared(pool, "0.25+0.25", "1/2").is_equal
    pool.pool.close()


ENDS = """
import json, os
from rlenv.concurrency import served

def serve(host, told):
    def ask(body, fd):
        if json.loads(body)["mine"] is None:
            return b"{}", None
        with open(__file__.replace("ends.py", "left"), "r+") as file:
            number, left = map(int, file.read().split())
            file.seek(0)
            file.write(f"{number} {left - 1} ")
        if left > 0:
            os.kill(os.getpid(), number)
        return b'{"of_mine": {"equal": true}}', None
    served.answer(host, ask)
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("number", "times", "is_equal"),
    [
        (signal.SIGSEGV, 1, True),
        (signal.SIGSEGV, 9, False),
        (signal.SIGBUS, 9, False),
        (signal.SIGPROF, 1, False),
        (signal.SIGKILL, 1, True),
        (signal.SIGKILL, 9, None),
        (signal.SIGTERM, 9, None),
        (signal.SIGXCPU, 9, None),
    ],
)
def test_an_answer_that_brings_its_process_down_is_wrong_and_one_that_somebody_ends_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, times: int, is_equal: bool | None
) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    (tmp_path / "left").write_text(f"{number:d} {times}")
    monkeypatch.syspath_prepend(tmp_path)
    pool = MathWorkers(size=1, program="ends:serve")
    try:
        if is_equal is None:
            with pytest.raises(RewardError, match="from outside"):
                compared(pool, "x+1", "x+1")
        else:
            assert compared(pool, "x+1", "x+1").is_equal == is_equal
    finally:
        pool.pool.close()


def test_validation_reads_the_gold_values_and_shows_the_row(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text(
        "rlenv: 1\nname: golds\ntasks: {train: {rows: [{q: a, answer: '1/2'}, {q: b, answer: '(('}]}}\n"
        "prompt: {user: '{{ task.q }}'}\nrewards: {correct: {kind: rule, rule: math_equal}}\n"
    )
    (fault,) = validate([tmp_path / "env.yaml"]).faults
    assert "row 2 of split 'train' cannot be scored" in fault.message
    assert "cannot be read as mathematics" in fault.message


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


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("partial", [False, True])
def test_any_accepted_query_will_do(place: int, partial: bool) -> None:
    golds = ["SELECT a FROM t", "SELECT b FROM u", "SELECT c FROM v"]
    where = reward_context(answer=golds[place], task={"gold_sql": golds})
    assert measure("sql_match", where, partial=partial).value == 1.0
    other = reward_context(answer="SELECT d FROM w", task={"gold_sql": golds})
    assert measure("sql_match", other).value == 0.0


def test_an_unknown_dialect_is_the_authors_mistake() -> None:
    with pytest.raises(UsageError, match="dialect"):
        compile_term(rule="sql_match", dialect="nosuch")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT (NOT a) = b FROM t", "SELECT NOT a = b FROM t"),
        ("SELECT (a+b)*c FROM t", "SELECT a+b*c FROM t"),
        ("SELECT a-(b-c) FROM t", "SELECT a-b-c FROM t"),
        ("SELECT -(a+b) FROM t", "SELECT -a+b FROM t"),
        ("SELECT 1=(2=3)", "SELECT (1=2)=3"),
        ("SELECT (NOT a) IS NULL FROM t", "SELECT NOT a IS NULL FROM t"),
        ("SELECT x||y FROM t", "SELECT y||x FROM t"),
        ("SELECT a < b FROM t", "SELECT b < a FROM t"),
    ],
)
def test_parentheses_count_where_they_change_the_meaning(one: str, other: str) -> None:
    assert structure(one, dialect="sqlite") != structure(other, dialect="sqlite")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "SELECT (a) FROM t WHERE ((a > 1)) AND (b = 2 OR (c = 3))",
            "SELECT a FROM t WHERE (3 = c OR 2 = b) AND 1 < a",
        ),
        (
            "SELECT COUNT(*) n, g FROM t GROUP BY g HAVING n > 1 ORDER BY n DESC",
            "SELECT COUNT(*), g FROM t GROUP BY g HAVING COUNT(*) > 1 ORDER BY COUNT(*) DESC",
        ),
        (
            "SELECT x.a FROM t x WHERE EXISTS (SELECT 1 FROM u WHERE u.i = x.i)",
            "SELECT t.a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE t.i = u.i)",
        ),
    ],
)
def test_spelling_does_not_count(one: str, other: str) -> None:
    assert structure(one, dialect="sqlite") == structure(other, dialect="sqlite")


HOSTILE_QUERIES = [
    *("SELECT " + "+".join(["1"] * n) for n in (140, 290, 2_000)),
    *("SELECT " + "=".join(["a"] * n) for n in (140, 290, 2_000)),
    "SELECT 1 WHERE " + " OR ".join(["a AND b"] * 140),
    "SELECT a FROM (" * 55 + "SELECT a FROM t" + ") x" * 55,
    "SELECT " + "NOT " * 590 + "1",
    "SELECT " + "CASE WHEN 1 THEN " * 100 + "1" + " END" * 100,
    "SELECT " + "+".join(["a"] * 120) + " AS x FROM t ORDER BY " + ",".join(["x"] * 120),
    " UNION ".join(["SELECT a"] * 190),
    "SELECT " + "[" * 4_000,
    "SELECT " + "/*" * 2_000,
    "SELECT 1" + ",1" * 290,
    "SELECT '" + "\\" * 4_000,
    "SELECT \x00\ud800",
]


@pytest.mark.parametrize("query", HOSTILE_QUERIES)
def test_a_query_made_to_take_long_is_wrong_at_once(query: str) -> None:
    begun = time.thread_time()
    assert measure("sql_match", reward_context(answer=query, task={"gold_sql": GOLD})).value == 0.0
    assert time.thread_time() - begun < 1.0  # a few ms where nothing else runs; the old one took seconds
