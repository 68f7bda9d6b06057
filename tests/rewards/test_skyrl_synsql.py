"""skyrl_synsql on the recorded queries, run by the real sql tool."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.episodes.environment import Environment
from rlenv.errors import RewardError
from rlenv.messages import ToolResult
from rlenv.testing.rewards import measure, reward_context, turn
from rlenv.tools.base import Tool
from tests.support import data

SPEC = """
rlenv: 1
name: synsql
tasks: {train: {rows: [{db: x, gold_sql: SELECT 1}]}}
prompt: {user: "Write SQL."}
resources: {db: {kind: sqlite, path: "{{ vars.databases }}/{{ task.db }}.sqlite", access: read_only}}
tools: {query: {kind: sql, resource: db}}
answer: {from: tag, tag: solution}
rewards: {score: {kind: rule, rule: skyrl_synsql, tool: query}}
vars: {databases: nowhere}
"""


def load(folder: Path, databases: Path) -> Environment:
    (folder / "env.yaml").write_text(SPEC)
    return rlenv.load(folder / "env.yaml", set={"vars.databases": str(databases)})


async def scores(environment: Environment, actions: list[tuple[dict[str, Any], list[str]]]) -> list[float | None]:
    found = []
    async with environment:
        for task, steps in actions:
            async with environment.start(task=task) as episode:
                for action in steps:
                    step = await episode.step(action)
                    if step.is_last:
                        break
                found.append(episode.trajectory.reward.total)
    return found


@pytest.mark.shared_data
def test_it_scores_as_skyrl_recorded(tmp_path: Path) -> None:
    records = [json.loads(line) for line in data.find("oracles/sql.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(records) == 300
    environment = load(tmp_path, data.find("nl2sql/databases"))
    plays = [({"db": record["db"], "gold_sql": record["reference"]}, [record["text"]]) for record in records]
    found = asyncio.run(scores(environment, plays))
    assert [(r["kind"], r["skyrl"], mine) for r, mine in zip(records, found, strict=True) if mine != r["skyrl"]] == []


@pytest.mark.slow
def test_thinking_is_wanted_after_what_a_tool_answered(tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(tmp_path / "one.sqlite")) as database:
        database.execute("CREATE TABLE t (a)")
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (2,)])
        database.commit()
    environment = load(tmp_path, tmp_path)
    task = {"db": "one", "gold_sql": "SELECT a FROM t"}
    call = '<think>t</think><tool_call>{"name": "query", "arguments": {"sql": "SELECT 1"}}</tool_call>'
    plays = [
        (task, [call, "<think>u</think><solution>SELECT DISTINCT a FROM t</solution>"]),
        (task, [call, "<solution>SELECT a FROM t</solution>"]),
        (task, ["<think>t</think><solution>SELECT a FROM t WHERE a = 1</solution>"]),
        (task, ["<think>t</think><solution>DROP TABLE t</solution>"]),
    ]
    assert asyncio.run(scores(environment, plays)) == [1.0, -1.0, 0.0, 0.0]


def table(*rows: tuple[Any, ...], is_cut: bool = False) -> ToolResult:
    return ToolResult("query", "", value={"columns": ["a", "b"], "rows": rows, "truncated": is_cut})


FAILED = ToolResult("query", "no such table", "failed", whose="policy")


@pytest.mark.parametrize(
    ("mine", "gold", "value"),
    [
        (table((1, 2), (3, 4)), table((3, 4), (1, 2), (1, 2)), 1.0),
        (table((1, 2)), table((1, 3)), 0.0),
        (table((1, 2)), table((1, 2), (3, 4)), 0.0),
        (table(), table(), 1.0),
        (table((1, 2), is_cut=True), table((1, 2)), 0.0),
        (FAILED, table((1, 2)), 0.0),
        (ToolResult("query", "", value="text"), table((1, 2)), 0.0),
        (table((1, {2})), table((1, 2)), 0.0),
        (table((1, 2)), table((1, 2), is_cut=True), "the rows of the gold query are not all there"),
        (table((1, 2)), ToolResult("query", "", value="text"), "the rows of the gold query are not all there"),
        (table((1, 2)), FAILED, "the gold query ended as failed"),
    ],
)
def test_rows_are_those_of_the_gold_query_as_a_set(mine: ToolResult, gold: ToolResult, value: float | str) -> None:
    async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return {"SELECT mine": mine, "SELECT gold": gold}[arguments["sql"]]

    tool = Tool(name="query", description="", parameters={"type": "object"}, run=lambda *_: None, mode="inline")
    said = turn("<think>hm</think><solution>SELECT mine</solution>")
    context = reward_context(call=call, turns=[said], task={"gold_sql": "SELECT gold"})
    if isinstance(value, str):
        with pytest.raises(RewardError, match=value):
            measure("skyrl_synsql", context, tools={"query": tool}, tool="query")
    else:
        assert measure("skyrl_synsql", context, tools={"query": tool}, tool="query").value == value
