"""New rewards over recorded episodes: no policy acts, verify terms are run again, and the difference is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import rlenv
from rlenv import record
from rlenv.cli.main import main as command
from rlenv.rescore import compare, rescore
from rlenv.trajectory import Failure, Trajectory

SPEC = """
rlenv: 1
name: counted
tasks: {train: {rows: [{question: "How many?", answer: "3", sql: "SELECT count(*) FROM t"}]}}
prompt: {user: "{{ task.question }}"}
resources: {db: {kind: sqlite, path: one.sqlite}}
tools: {query: {kind: sql, resource: db}}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""
VERIFY = """
  rows:
    kind: verify
    tool: query
    arguments: {sql: "{{ answer }}"}
    expect: {arguments: {sql: "{{ task.sql }}"}}
    compare: rows
  calls: {kind: rule, rule: valid_calls, when: turn, weight: 0.5}
"""
CALL = '<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "one.sqlite")) as database:
        database.execute("CREATE TABLE t (a)")
        database.executemany("INSERT INTO t VALUES (?)", [(1,), (2,), (3,)])
        database.commit()
    (tmp_path / "old.yaml").write_text(SPEC)
    (tmp_path / "new.yaml").write_text(SPEC + VERIFY)
    return tmp_path


def play(path: Path, *plays: list[str]) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        found = []
        async with rlenv.load(path) as environment:
            for actions in plays:
                async with environment.start(task=0, seed=5) as episode:
                    for action in actions:
                        await episode.step(action)
                    found.append(episode.trajectory)
        return found

    return asyncio.run(main())


def again(path: Path, trajectories: list[Trajectory]) -> list[Trajectory]:
    async def main() -> list[Trajectory]:
        async with rlenv.load(path) as environment:
            return await rescore(environment, trajectories)

    return asyncio.run(main())


def test_the_same_rewards_give_the_same_scores(folder: Path) -> None:
    before = play(folder / "new.yaml", [CALL, "<answer>SELECT count(*) FROM t</answer>"], [CALL, "no"], [CALL] * 8)
    after = again(folder / "new.yaml", before)
    assert compare(before, after).changes == ()
    for old, new in zip(before, after, strict=True):
        assert (new.turns, new.messages, new.answer, new.reason) == (old.turns, old.messages, old.answer, old.reason)
        assert new.reward.turn_rewards == pytest.approx(old.reward.turn_rewards)
        assert (new.task_index, new.seed, new.split) == (old.task_index, old.seed, old.split)


def test_a_new_verify_term_is_run_on_what_was_recorded(folder: Path) -> None:
    before = play(folder / "old.yaml", [CALL, "<answer>SELECT 3</answer>"], ["<answer>3</answer>"])
    after = again(folder / "new.yaml", before)
    assert [one.reward.terms["rows"].value for one in after] == [1.0, 0.0]
    assert after[0].reward.terms["rows"].details["verified_results"]["expected"] == ["count(*)\n3"]
    assert after[0].reward.terms["calls"].turn_values == (1.0, None)
    found = compare(before, after)
    assert found.reward == (0.5, pytest.approx((1.5 + 1.0) / 2))
    assert [change.terms["rows"] for change in found.changes] == [(None, 1.0), (None, 0.0)]


def test_a_reward_that_could_not_be_measured_can_be_measured_later(folder: Path) -> None:
    broken = SPEC.replace("{{ task.answer }}", "{{ task.gold }}")
    (folder / "broken.yaml").write_text(broken)
    before = play(folder / "broken.yaml", ["<answer>3</answer>"])
    assert before[0].reward.total is None
    after = again(folder / "old.yaml", before)
    assert after[0].reward.total == 1.0
    assert after[0].terminated
    assert compare(before, after).gained == 1


def test_an_episode_that_failed_stays_failed(folder: Path) -> None:
    (played,) = play(folder / "old.yaml", ["<answer>3</answer>"])
    failed = dataclasses.replace(played, failure=Failure("policy", "the endpoint went away"))
    (after,) = again(folder / "old.yaml", [failed])
    assert after.reward.total is None
    assert after.failure == failed.failure


def test_the_command_reads_a_run_and_writes_another(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "run"
    record.write(run / "trajectories.jsonl", play(folder / "old.yaml", ["<answer>SELECT 3</answer>"]))
    arguments = ["rescore", str(run), "--spec", str(folder / "new.yaml")]
    assert command([*arguments, "--json", "-o", str(folder / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["terms"]["rows"] == [None, 1.0]
    (written,) = record.read(folder / "out" / "trajectories.jsonl")
    assert written.reward.terms["rows"].value == 1.0
    assert command(arguments) == 0
    assert "rows" in capsys.readouterr().out
    assert command([*arguments, "-o", str(run)]) == 2
    assert command(["rescore", str(folder / "nothing"), "--spec", str(folder / "new.yaml")]) == 2
