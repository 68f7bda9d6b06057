"""The policy's calls against gold calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rlenv.trajectory import TermResult

FUNCTIONS = """
def api(name: str, arguments: dict) -> str:
    return "ok"
"""

SPEC = """
rlenv: 1
name: calls
tasks: {train: {rows: [{n: 0}]}}
prompt: {user: "Do it."}
tools: {api: {kind: python, function: "tools.py:api", schemas: "{{ task.tools }}"}}
limits: {turns: 1}
rewards: {right: {kind: rule, rule: calls_match%s}}
"""

TOOLS = [
    {
        "name": "trip.plan",
        "parameters": {
            "to": {"type": "str"},
            "days": {"type": "int, optional"},
            "with": {"type": "dict, optional"},
        },
    },
    {"name": "pay", "parameters": {"sum": {"type": "float"}, "at": {"type": "list[str], optional"}}},
]  # fmt: skip
BFCL = [{"trip.plan": {"to": ["New York", "NYC"], "days": ["", 3]}}, {"pay": {"sum": [1.5, 2]}}]


NESTED = [{"trip.plan": {"to": ["x"], "with": [{"who": ["ann", "bob"], "how": ["", 1]}]}}]


def measured(make_environment: Any, calls: list[tuple[str, Any]], gold: Any, keys: str = "") -> TermResult:
    environment = make_environment(SPEC % keys, tools=FUNCTIONS)
    written = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    action = "".join(f"<tool_call>\n{one}\n</tool_call>" for one in written)

    async def main() -> TermResult:
        async with environment.start(task={"n": 0, "tools": TOOLS, "answer": gold}) as episode:
            await episode.step(action)
            return episode.trajectory.reward.terms["right"]

    found: TermResult = asyncio.run(main())
    return found


@pytest.mark.parametrize(
    ("calls", "gold", "value"),
    [
        ([("trip_plan", {"to": "new-york."}), ("pay", {"sum": 2})], BFCL, 1),
        ([("pay", {"sum": 1.5}), ("trip_plan", {"to": "NYC", "days": 3})], BFCL, 1),
        ([("trip_plan", {"to": " N*e^w_,./-YORK"}), ("pay", {"sum": 2})], BFCL, 1),
        ([("trip_plan", {"to": "Boston"}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC", "days": 4}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC", "with": {}}), ("pay", {"sum": 2})], BFCL, 0),
        ([("trip_plan", {"to": "NYC"})], BFCL, 0),
        ([("trip_plan", {"to": "NYC"}), ("pay", {"sum": 2}), ("pay", {"sum": 2})], BFCL, 0),
        ([("pay", {"sum": 2}), ("pay", {"sum": 2})], BFCL, 0),
        ([("pay", {"sum": True})], [{"pay": {"sum": [1]}}], 0),
        ([("pay", {})], [{"pay": {"sum": [""]}}], 0),
        ([("trip_plan", {"to": "x", "with": {"who": "Ann"}})], NESTED, 1),
        ([("trip_plan", {"to": "x", "with": {"who": "Cid"}})], NESTED, 0),
        ([("pay", {"sum": 1, "at": ["A B", "c"]})], [{"pay": {"sum": [1], "at": [["ab", "C"]]}}], 1),
        ([("pay", {"sum": 1, "at": ["c", "ab"]})], [{"pay": {"sum": [1], "at": [["ab", "C"]]}}], 0),
        ([("pay", {"sum": 1})], [{"name": "pay", "arguments": {"sum": 1}}], 1),
        ([("pay", {"sum": 1.0})], [{"function": {"name": "pay", "arguments": '{"sum": 1}'}}], 1),
        ([("trip_plan", {"to": "nyc"})], [{"name": "trip.plan", "arguments": {"to": "NYC"}}], 0),
        ([("pay", {"sum": 1, "at": ["a"]})], [{"name": "pay", "arguments": {"sum": 1}}], 0),
        ([], [], 1),
        ([("pay", {"sum": 1})], [], 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_text", [False, True])
def test_the_calls_are_those_of_the_gold_and_no_other(
    make_environment: Any, calls: list[tuple[str, Any]], gold: Any, value: float, as_text: bool
) -> None:
    assert measured(make_environment, calls, json.dumps(gold) if as_text else gold).value == value


def test_in_order_each_is_the_next_one(make_environment: Any) -> None:
    calls = [("pay", {"sum": 2}), ("trip_plan", {"to": "NYC"})]
    assert measured(make_environment, calls, BFCL, ", order: true").value == 0
    assert measured(make_environment, calls[::-1], BFCL, ", order: true").value == 1


@pytest.mark.parametrize(
    "gold",
    [
        "no json",
        7,
        [3],
        [{}],
        [{"pay": 3}],
        None,
        [{"name": "pay", "arguments": None}],
        [{"name": "pay", "arguments": "[]"}],
    ],
)
def test_a_gold_that_is_none_is_invalid_and_no_number(make_environment: Any, gold: Any) -> None:
    result = measured(make_environment, [("pay", {"sum": 1})], gold)
    assert (result.status, result.value) == ("invalid", None)
    assert "is no list of calls" in result.error
