from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rlenv.environment import Environment, load
from rlenv.rollout import Job


def _alternatives(environment: Environment, split: str) -> list[tuple[Job, str]]:
    rows = environment.tasks(split)
    return [(Job(split, index), gold) for index, row in enumerate(rows) for gold in row["gold_sqls"]]


def _wrong(environment: Environment, split: str) -> list[object]:
    """The gold queries that the environment does not accept as answers."""

    async def run() -> list[object]:
        wrong: list[object] = []
        async with environment:
            for job, gold in _alternatives(environment, split):
                async with environment.start(split=split, task=job.task) as episode:
                    await episode.step(f"<answer>{gold}</answer>")
                    if episode.trajectory.reward.terms["correct"].value != 1.0:
                        wrong.append((job.task, gold, episode.trajectory.reward))
        return wrong

    return asyncio.run(run())


@pytest.fixture
def official(public: Callable[[str], Path]) -> Environment:
    changes = {
        "tasks.test.path": str(public("nl2sql/questions.jsonl")),
        "vars.databases": str(public("nl2sql/databases")),
    }
    return load("nl2sql", set=changes)


def test_the_oracle_earns_the_maximum_on_the_official_rows(
    official: Environment, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    trajectories = play_oracle(official, "test")
    assert len(trajectories) == 197
    assert_all_earn_maximum(official, trajectories)


def test_each_official_alternative_is_correct(official: Environment) -> None:
    assert len(_alternatives(official, "test")) > 197
    assert _wrong(official, "test") == []


@pytest.mark.parametrize("split", ["train", "test"])
def test_each_shipped_alternative_is_correct(split: str) -> None:
    environment = load("nl2sql")
    assert len(_alternatives(environment, split)) > len(environment.tasks(split))
    assert _wrong(environment, split) == []


def test_an_answer_to_another_question_over_the_same_database_is_wrong() -> None:
    environment = load("nl2sql")
    rows = environment.tasks("test")

    async def run() -> int:
        right = 0
        for index, row in enumerate(rows):
            other = next(r for r in (*rows[index + 1 :], *rows) if r["db"] == row["db"] and r is not row)
            async with environment.start(split="test", task=index) as episode:
                await episode.step(f"<answer>{other['gold_sqls'][0]}</answer>")
                right += episode.trajectory.success is True
        return right

    assert asyncio.run(run()) <= 1


def test_the_prompt_shows_the_schema_and_the_instructions() -> None:
    async def run(task: int) -> str:
        async with load("nl2sql").start(split="train", task=task) as episode:
            return episode.messages[-1].content

    rows = load("nl2sql").tasks("train")
    task = next(index for index, row in enumerate(rows) if row["instructions"])
    prompt = asyncio.run(run(task))
    assert rows[task]["instructions"] in prompt
    assert "CREATE TABLE" in prompt
    assert not any(gold in prompt for gold in rows[task]["gold_sqls"])


def test_a_query_that_writes_is_refused_and_the_shipped_file_stays_as_it_is(root: Path) -> None:
    files = sorted((root / "specs" / "data" / "nl2sql" / "databases").iterdir())
    before = [path.read_bytes() for path in files]
    call = '<tool_call>\n{"name": "query", "arguments": {"sql": "CREATE TABLE t (x)"}}\n</tool_call>'

    async def run() -> str:
        async with load("nl2sql").start() as episode:
            await episode.step(call)
            await episode.step("I give up.")
            return episode.trajectory.turns[0].results[0].outcome

    assert asyncio.run(run()) != "ok"
    assert sorted((root / "specs" / "data" / "nl2sql" / "databases").iterdir()) == files
    assert [path.read_bytes() for path in files] == before
