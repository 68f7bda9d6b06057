"""SQL in whole episodes: what a policy's statements do to its own reward, and to those of others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.episodes.environment import Environment
from rlenv.resources.sql import resource
from rlenv.resources.sql.sqlite import workers

SPEC = """
rlenv: 1
name: toys
tasks: {train: {rows: [{question: "How much", gold: "SELECT sum(a) FROM t"}]}}
prompt: {user: "{{ task.question }}"}
resources: {db: {kind: sqlite, path: t.sqlite, ACCESS}}
tools: {query: {kind: sql, resource: db, timeout_s: 60}}
calls: {breaker: {failures: 1, reset_s: 1000}}
limits: {turns: 20, tool_calls: 100}
rewards: REWARDS
"""
VERIFY = """
  rows: {kind: verify, tool: query, arguments: {sql: "{{ answer }}"}, expect: {arguments: {sql: "{{ task.gold }}"}},
         compare: rows}
"""
ANSWERED = " {right: {kind: rule, rule: exact_match}}"
SLOW = "SELECT instr(zeroblob(9000000), cast(zeroblob(4500000) || x'01' AS blob))"


def environment(
    folder: Path, *, access: str = "access: read_only", rewards: str = VERIFY, seconds: float = 4
) -> Environment:
    with closing(sqlite3.connect(folder / "t.sqlite")) as raw:
        raw.executescript("CREATE TABLE t (a PRIMARY KEY, b); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z');")
    text = SPEC.replace("ACCESS", access).replace("REWARDS", rewards).replace("timeout_s: 60", f"timeout_s: {seconds}")
    if rewards is ANSWERED:
        text = text.replace("gold:", "answer: right, gold:")
    (folder / "env.yaml").write_text(text)
    return rlenv.load(folder / "env.yaml")


def call(sql: str) -> str:
    return "<tool_call>\n" + json.dumps({"name": "query", "arguments": {"sql": sql}}) + "\n</tool_call>"


async def play(env: Environment, *actions: str) -> Any:
    async with env.start(task=0, seed=1) as episode:
        for action in actions:
            await episode.step(action)
        return episode.trajectory


@pytest.mark.slow
def test_slow_statements_never_open_the_breaker_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "_CPU_SHARE", 0.01)

    async def main() -> None:
        async with environment(tmp_path, seconds=60) as env:
            slow = await play(env, call(SLOW), call(SLOW), "<answer>wrong</answer>")
            assert [turn.results[0].reason for turn in slow.turns[:2]] == ["timeout", "timeout"]
            honest = await play(env, "<answer>SELECT sum(a) FROM t</answer>")
            assert honest.reward.total == 1.0
            late = await play(env, f"<answer>{SLOW}</answer>")
            assert late.reward.total == 0.0

    asyncio.run(asyncio.wait_for(main(), 110))


@pytest.mark.parametrize("isolation", ["savepoint", "deserialize"])
@pytest.mark.parametrize(
    "statements",
    [
        ["INSERT OR ROLLBACK INTO t VALUES (1, 1)"],
        ["CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'no'); END", "INSERT INTO t VALUES (5, 5)"],
        ["CREATE TABLE u AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT zeroblob(n) FROM r"],
        ["DROP TABLE t", "SELECT * FROM t"],
        ["SELECT randomblob(1000000000)"],
        ["SELECT 'a\0b'"],
    ],
)
def test_no_statement_makes_the_reward_of_its_episode_invalid(
    tmp_path: Path, isolation: str, statements: list[str]
) -> None:
    async def main() -> None:
        access = f"access: copy, isolation: {isolation}"
        async with environment(tmp_path, access=access, rewards=ANSWERED, seconds=40) as env:
            played = await play(env, *map(call, statements), "<answer>wrong</answer>")
            assert (played.reward.total, played.failure) == (0.0, None)

    asyncio.run(asyncio.wait_for(main(), 110))


def test_a_large_result_keeps_a_value_within_what_a_trajectory_keeps(tmp_path: Path) -> None:
    numbers = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 9000)"
    many = f"{numbers} SELECT n, hex(n), char(1, n) FROM r"

    async def main() -> None:
        async with environment(tmp_path, seconds=60) as env:
            played = await play(env, call(many), call("SELECT zeroblob(9000000)"), "<answer>x</answer>")
            first, second = played.turns[0].results[0], played.turns[1].results[0]
            assert first.value["truncated"]
            assert len(first.value["rows"]) > 100
            assert second.value == {"columns": ["zeroblob(9000000)"], "rows": [], "truncated": True}
            for result in (first, second):
                assert "left_out" not in (result.details or {})

    asyncio.run(asyncio.wait_for(main(), 110))


@pytest.mark.slow
def test_a_process_that_is_stopped_under_a_rewards_statement_makes_no_wrong_number(tmp_path: Path) -> None:
    answer = "WITH r AS (SELECT a FROM t) SELECT sum(a) FROM r"

    async def main() -> None:
        async with environment(tmp_path, seconds=3) as env:
            await play(env, call("SELECT 1 LIKE 1"), "<answer>x</answer>")  # so that there is a process
            stopped = workers.pool.processes
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            played = await play(env, f"<answer>{answer}</answer>")
            assert played.reward.total in (1.0, None)  # asked again, of a process that was started meanwhile
            workers.pool.close()  # with those that are stopped and were not asked
            again = await play(env, f"<answer>{answer}</answer>")
            assert again.reward.total in (1.0, None)  # the breaker may have opened: never a wrong number
            assert not set(stopped) & set(workers.pool.processes)

    asyncio.run(asyncio.wait_for(main(), 110))
