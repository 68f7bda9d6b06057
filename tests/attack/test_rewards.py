"""No action of a policy makes a built-in term invalid, holds the event loop, or is paid for its form."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rlenv.language import kinds as registry
from rlenv.language.spec import AnswerSpec
from rlenv.messages import ParsedAction, ToolCall
from rlenv.rewards.answer import extract
from rlenv.rewards.base import TermCompileContext
from rlenv.rewards.comparators import Comparator, CompareSpec, Side, compile_comparator
from rlenv.testing.rewards import compile_term, reward_context, turn

CHARS = 300_000
"""A text of so many characters is longer than a policy's context."""
LOOP_S = 0.1
"""Processor seconds of the loop's thread that one measurement may take; where nothing else runs a tenth of it."""


def repeated(piece: str) -> str:
    return piece * (CHARS // len(piece))


HOSTILE: dict[str, str] = {
    # What is no text, or not the one that it seems.
    "empty": "", "nul": "\0", "surrogate": "\ud800", "bidi": "\u202e888\u202c", "zero width": repeated("\u200b"),
    "combining": repeated("e\u0301"), "folding": repeated("İ"), "escape": repeated("\\"), "quotes": repeated('"'),
    "full width": repeated("９"), "other digits": "٣" * 200,
    "template": "{{ 7*9 }}{% for x in range(9**9) %}a{% endfor %}",
    # Numbers.
    "nan": "NaN", "infinity": "-Infinity", "1e999": "1e999", "exponent": "1e99999999999", "signs": repeated("-"),
    "digits": repeated("9"), "5000 digits": "9" * 5_000, "commas": repeated("1,"), "groups": "1" + repeated(",000"),
    "points": repeated("1."), "money": repeated("$"), "percents": repeated("%"), "tower": "9^{9^{9^{9}}}",
    # Nesting.
    "brackets": repeated("["), "900 brackets": "[" * 900 + "]" * 900, "objects": '{"a":' * 900 + "1" + "}" * 900,
    "parentheses": repeated("("), "braces": repeated("{"), "boxes": repeated("\\boxed{"),
    "boxed": repeated("\\boxed{8}"),
    "box words": repeated("\\boxed "), "fractions": "\\boxed{" + "\\frac" * 5_000 + "}",
    "roots": "\\boxed{" + "\\sqrt" * 5_000 + "}", "dollars in a box": "\\boxed{" + "$" * 15_000 + "}",
    # Markers.
    "answers": repeated("Answer:\n"), "texts": "Answer: \\text{" * 3_000, "hashes": repeated("#### "),
    "hash digits": "#### " + repeated("1"), "hash commas": "#### " + repeated("1,"),
    "opening tags": repeated("<answer>"), "empty tags": repeated("<answer></answer>"), "thoughts": repeated("<think>"),
    "whole thoughts": repeated("<think>a</think>"), "searches": repeated("<search>"),
    "observations": repeated("</observation>"), "spaces": repeated("</observation>" + " " * 50),
    "solution": "<think></think>" + repeated("</observation>\n<think>") + "<solution>x</solution>",
    # Words and white space.
    "words": repeated("a "), "articles": repeated("the "), "one word": repeated("x"), "blank": repeated(" \n\t"),
    "blanks in a number": f"-{' ' * 120}${' ' * 120}x", "blanks behind a sign": f"-{' ' * 250}x",
    # JSON.
    "twice": '{"a":1,"a":2}', "long list": "[" + repeated("1,") + "1]", "long text": '"' + repeated("x") + '"',
    "too large": "1e400", "300 digits": "1" * 300, "half a pair": '"\\ud800"',
    "many keys": "{" + ",".join(f'"k{index}":1' for index in range(20_000)) + "}",
    # SQL.
    "sum": "SELECT " + "+".join(["1"] * 800), "290 sums": "SELECT " + "+".join(["1"] * 290),
    "ands": "SELECT 1 WHERE " + " AND ".join(["a=1"] * 140),
    "union": "SELECT 1 " + "UNION SELECT 1 " * 900, "cases": "SELECT " + "CASE WHEN 1 THEN " * 140 + "1" + " END" * 140,
    "nots": "SELECT " + "NOT " * 590 + "1", "quoted": "SELECT '" + "\\" * 4_000, "comments": "SELECT " + "/*" * 2_000,
    "names": "SELECT " + "[" * 90 + "]" * 90, "dollars": "SELECT $$" * 400, "with": "WITH " * 500,
}  # fmt: skip

RULES: dict[str, list[dict[str, Any]]] = {
    "exact_match": [{}, {"normalise": "case"}, {"normalise": "qa"}],
    "f1": [{}],
    "contains": [{}, {"normalise": "qa"}, {"normalise": "case", "of": "message"}],
    "numeric_match": [{}, {"tolerance": 0.5, "relative_tolerance": 0.5}],
    "json_match": [{}, {"mode": "subset"}],
    "json_schema": [
        {"schema": {"type": "object", "required": ["z"], "additionalProperties": {"$ref": "#"}}},
        {"schema": {"oneOf": [{"const": 7}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}},
        {"schema": {"type": "array", "uniqueItems": True, "items": {"pattern": "^(a|aa)+!$"}, "minItems": 2}},
    ],
    "regex": [
        {"pattern": pattern, "of": of, "full": full}
        for pattern in ("(a|aa)+!", r"(\w+ ?|\w+-)+~", "(.*)(.*)(.*)~")
        for of in ("answer", "message")
        for full in (True, False)
    ],
    "answered": [{}],
    "length": [
        {"max": 5, "of": of, "unit": unit}
        for of in ("answer", "message", "episode")
        for unit in ("chars", "words")
    ],
    "gsm8k": [{}, {"method": "flexible"}],
    "search_r1": [{"expect": "Paris"}],
    "search_r1_format": [{"expect": "Paris"}, {"expect": "Paris", "retrieval": 0.1}],
    "rl_factory_search": [{"expect": "Paris"}],
    "verl_math": [{}],
    "verl_dapo": [{}],
    "skyrl_aime": [{}],
    "skyrl_gsm8k": [{}],
    "sql_match": [{"expect": "SELECT b FROM t"}, {"expect": "SELECT b FROM t", "partial": True}],
    "valid_calls": [{}],
    "calls_match": [{"expect": [{"name": "f", "arguments": {}}]}],
    "tool_call_count": [{"max": 2}],
    "turn_count": [{"max": 2}],
}  # fmt: skip
ELSEWHERE = {
    "math_equal": "below, in processes of its own",
    "reasoning_gym": "in a process of its own: tests/peers/test_reasoning_gym.py",
    "tool_called": "reads no text: test_reasons.py",
    "skyrl_synsql": "its form is below, its calls in test_reasons.py",
    "python": "a function of the author's",
    "value": "an expression of the author's",
}
# Rules whose value is not for being right.
FORM = {"answered", "length", "valid_calls", "tool_call_count", "turn_count", "search_r1_format", "rl_factory_search"}


def test_every_rule_is_attacked_here() -> None:
    assert set(registry.names("rules")) == RULES.keys() | ELSEWHERE.keys()


def in_time(measure: Callable[[], Any]) -> Any:
    """The result of `measure`, which has to be quick the first time: what is kept of it would be quick the next."""
    gc.disable()  # the collector of the whole test run may come by
    try:
        begun = time.thread_time()
        found = measure()
        assert time.thread_time() - begun < LOOP_S, f"it takes more than {LOOP_S} s of the loop's thread"
        return found
    finally:
        gc.enable()


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_hostile_answer_is_worth_a_number_and_holds_the_loop_for_a_moment(rule: str) -> None:
    pytest.importorskip("sqlglot", reason="the extra `sql` is not installed")
    for keys in RULES[rule]:
        term = compile_term(rule=rule, **keys)
        term_measure = term.measure or (lambda context, term=term: asyncio.run(term.measure_async(context)))  # type: ignore[misc]
        warm = reward_context(answer="x", task={"answer": "7"})
        term_measure(warm)
        for name, text in HOSTILE.items():
            context = reward_context(answer=text, task={"answer": "7"}, turns=[turn(text), turn(text, index=1)])
            found = in_time(lambda measure=term_measure, context=context: measure(context))  # type: ignore[misc]
            assert found.value is None or math.isfinite(found.value), name
            if rule not in FORM and not (rule == "contains" and "7" in text):
                assert not found.value or found.value <= 0, (name, keys)


@given(st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_text_whatever_makes_a_rule_raise(text: str) -> None:
    for rule, variants in RULES.items():
        if rule == "sql_match":
            continue
        for keys in variants[:2]:
            term = _compiled(rule, keys)
            if term.measure is not None:
                term.measure(reward_context(answer=text, task={"answer": "7"}))


_terms: dict[str, Any] = {}


def _compiled(rule: str, keys: dict[str, Any]) -> Any:
    return _terms.setdefault(f"{rule}{keys}", compile_term(rule=rule, **keys))


@given(st.text(alphabet=st.sampled_from("SELECT FROMt()'\"`[]=<>+-*/,;.0$@:\\ \n"), max_size=80))
@settings(max_examples=100, deadline=None)
def test_no_query_whatever_makes_sql_match_raise(text: str) -> None:
    pytest.importorskip("sqlglot", reason="the extra `sql` is not installed")
    term = _compiled("sql_match", {"expect": "SELECT b FROM t"})
    assert term.measure(reward_context(answer=f"SELECT {text}", task={})).value in (0.0, 1.0)


@pytest.mark.parametrize(
    "keys",
    [
        {"from": "tag"},
        {"from": "boxed"},
        {"from": "regex", "pattern": r"#### (-?[0-9.,]+)"},
        {"from": "regex", "pattern": r"(\d+)"},
        {"from": "regex", "pattern": "(.*?)~|(a)"},
        {"from": "last_number"},
        {"from": "final_message"},
    ],
)
def test_reading_the_answer_out_of_a_hostile_message_takes_a_moment(keys: dict[str, Any]) -> None:
    spec = AnswerSpec.model_validate(keys)
    extract(spec, ParsedAction("warm 1"))
    for text in HOSTILE.values():
        in_time(lambda text=text: extract(spec, ParsedAction(text)))  # type: ignore[misc]


def test_an_argument_that_no_json_text_can_hold_is_an_answer_all_the_same() -> None:
    spec = AnswerSpec.model_validate({"from": "tool", "tool": "submit"})
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    for value in (10**30, "\ud800", ["\ud800"], deep, {"a": 10**5_000}, float("nan"), {1: 2}):
        assert extract(spec, ParsedAction("", calls=(ToolCall("submit", {"x": value}),))) is not None


def rows(found: list[Any], *, cut: bool = False) -> dict[str, Any]:
    return {"columns": ["a", "b", "c"], "rows": found, "truncated": cut}


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


GOLD = [[index, f"n{index % 9}", index * 0.1] for index in range(300)]
VALUES: dict[str, Any] = {
    "nothing": None,
    "text": "7",
    "long text": "x" * 100_000,
    "a number": 7,
    "huge": 10**400,
    "nan": float("nan"),
    "inf": float("inf"),
    "deep": deep(50_000),
    "no rows": rows([]),
    "cut": rows([], cut=True),
    "cut and short": rows([[1, "x", 2.0]], cut=True),
    "rows of another width": rows([[1]] * 300),
    "ragged": rows([[1], [1, 2]] * 150),
    "cells of any kind": rows([[10**400, float("nan"), {"a": [1]}]] * 300),
    "lists as cells": rows([[[1, 2], {"x": 1}, b"\xff"]] * 300),
    "sets as cells": rows([[{1, 2}, ([1],), 3]] * 300),
    "long numbers in cells": rows([[[10**5_000], {"a": 10**5_000}, 3]] * 300),
    "deep cells": rows([[deep(5_000), 2, 3]] * 300),
    "long names": {"rows": [*GOLD[:-1], [1, 2, 3]], "columns": [10**5_000] * 3},
    "rows that are none": rows([1, 2, 3]),
    "rows that are text": {"rows": "abc", "truncated": False},
    "truncated by a text": {"rows": GOLD, "truncated": "yes", "columns": 5},
    "all near": rows([[0, "n1", 1 + index * 3e-7] for index in range(300)]),
    "twins": rows([[0, 0, 0]] * 300),
    "an object": {"a": 1, "b": [1, {"c": None}]},
}


def comparators() -> dict[str, tuple[Comparator, Side]]:
    context = TermCompileContext(Path())
    by: dict[str, Any] = {
        "rows": rows(GOLD),
        "equal": {"a": [1, 2.5, "x"]},
        "json": {"a": [1, 2.5, "x"]},
        "number": 8,
        "text": "8",
    }
    made = {
        name: (compile_comparator(name, context), Side("8", value, {"sql": "SELECT 1"})) for name, value in by.items()
    }
    adapter: TypeAdapter[Any] = TypeAdapter(CompareSpec)
    forms: dict[str, dict[str, Any]] = {
        "rows any order": {"by": "rows", "columns": "any_order"},
        "rows always": {"by": "rows", "order": "always"},
        "json subset": {"by": "json", "mode": "subset", "tolerance": 0.1},
        "number near": {"by": "number", "tolerance": 0.1, "relative_tolerance": 0.1},
        "text qa": {"by": "text", "normalise": "qa"},
    }
    for name, keys in forms.items():
        compared = compile_comparator(adapter.validate_python(keys), context)
        made[name] = (compared, Side("8", by[keys["by"]], {"sql": "SELECT a, b FROM t ORDER BY a"}))
    return made


@pytest.mark.parametrize("name", sorted(comparators()))
def test_whatever_a_tool_gives_for_the_policys_call_is_worth_a_number(name: str) -> None:
    compare, gold = comparators()[name]
    for what, value in VALUES.items():
        for text in ("", "\ud800", "1e999", "[" * 900, "NaN"):
            found = in_time(lambda value=value, text=text: compare(Side(text, value), gold))  # type: ignore[misc]
            number = getattr(found, "value", found)
            assert number == 0.0, what


MATHS = [
    *(
        "empty",
        "nul",
        "surrogate",
        "bidi",
        "nan",
        "infinity",
        "1e999",
        "exponent",
        "5000 digits",
        "tower",
        "900 brackets",
    ),
    *("fractions", "roots", "half a pair", "template", "sum", "300 digits", "other digits"),
]


@pytest.mark.slow
def test_a_hostile_expression_is_wrong_and_costs_no_other_comparison() -> None:
    pytest.importorskip("math_verify", reason="the extra `math` is not installed")
    term = compile_term(rule="math_equal", expect="x+8", cpu_s=1.0)
    assert term.measure_async is not None

    async def measured(answer: str) -> float | None:
        found = await term.measure_async(reward_context(answer=answer))  # type: ignore[misc]
        return found.value

    async def all_of_them() -> list[float | None]:
        begun = time.thread_time()
        found = [await measured(HOSTILE[name][:2_000]) for name in MATHS]
        honest = await measured("8+x")
        assert time.thread_time() - begun < LOOP_S * len(MATHS)
        return [*found, honest]

    *hostile, honest = asyncio.run(all_of_them())
    assert hostile == [0.0] * len(MATHS)
    assert honest == 1.0
