"""State never crosses episodes: 64 of them write at once, in any order of steps."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlenv.episodes.environment import Environment, load

FUNCTIONS = '''
from collections.abc import Iterator
from pathlib import Path


def notes() -> Iterator[list]:
    yield []


def note(word: str, pad: list, folder) -> list:
    """Writes a word down, in memory and in a file."""
    pad.append(word)
    file = Path(folder) / "words"
    file.write_text((file.read_text() if file.exists() else "") + word + "\\n")
    return [*pad, file.read_text().split()]
'''

SPEC = """
rlenv: 1
name: writers
tasks: {train: {rows: [{question: a}]}}
prompt: {user: "{{ task.question }}"}
resources:
  deserialized: {kind: sqlite, path: "words.sqlite", access: copy}
  kept: {kind: sqlite, path: "words.sqlite", access: copy, isolation: savepoint}
  pad: {kind: python, function: "tools.py:notes"}
  folder: {kind: tempdir}
tools:
  deserialized: {kind: sql, resource: deserialized}
  kept: {kind: sql, resource: kept}
  note: {kind: python, function: "tools.py:note", inject: [pad, folder], mutates: true}
limits: {turns: 100, tool_calls: 1000}
rewards: {answered: {kind: rule, rule: answered}}
"""

EPISODES = 64
STATE = "SELECT group_concat(word, ' '), count(*), last_insert_rowid() FROM (SELECT word FROM said ORDER BY rowid)"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("writers")
    with closing(sqlite3.connect(folder / "words.sqlite")) as raw:
        raw.executescript("CREATE TABLE said (word TEXT); INSERT INTO said VALUES ('start')")
    (folder / "tools.py").write_text(FUNCTIONS, encoding="utf-8")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    return load(folder / "spec.yaml")


def calls(*pairs: tuple[str, dict[str, Any]]) -> str:
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>\n"
        for name, arguments in pairs
    )


async def writer(environment: Environment, number: int, rng: random.Random) -> None:
    """One episode that writes its own words and must see nothing else."""
    words: list[str] = []
    async with environment.start(seed=number) as episode:
        for turn in range(rng.randint(1, 4)):
            word = f"w{number}t{turn}"
            insert = {"sql": f"INSERT INTO said VALUES ('{word}')"}
            written = await episode.step(calls(("deserialized", insert), ("kept", insert), ("note", {"word": word})))
            words.append(word)
            results = written.observation.results
            assert [result.outcome for result in results] == ["ok"] * 3, results
            assert results[2].value == [*words, words]
            if rng.random() < 0.3:  # something that is rolled back with the rest
                await episode.step(calls(("kept", {"sql": f"CREATE TABLE t{number} (a)"})))
            seen = await episode.step(calls(("deserialized", {"sql": STATE}), ("kept", {"sql": STATE})))
            for result in seen.observation.results:
                assert result.value["rows"] == [[" ".join(["start", *words]), len(words) + 1, len(words) + 1]]
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
        if rng.random() < 0.2:
            return  # left in the middle, as by a trainer that gives up
        await episode.step("<answer>done</answer>")


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_interleaved_episodes_that_write_never_see_each_others_state(environment: Environment, seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with environment, asyncio.timeout(100), asyncio.TaskGroup() as group:
            for number in range(EPISODES):
                group.create_task(writer(environment, number, random.Random(rng.random())))

    asyncio.run(main())


IN_A_WORKER = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 9) SELECT sum(x) FROM c"


def held() -> set[str]:
    """What this process has open of files and folders, and what lies in its memory as a file."""
    found = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {path for path in found if "words" in path or "rlenv-" in path}


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are read from /proc")
@pytest.mark.parametrize("access", ["access: read_only", "access: copy", "access: copy, isolation: savepoint"])
@pytest.mark.parametrize("is_open", [False, True])
def test_an_environment_that_is_closed_keeps_nothing_open_and_can_be_used_again(
    tmp_path: Path, access: str, is_open: bool
) -> None:
    async def main() -> None:
        used = load(tmp_path / "spec.yaml")
        for _ in range(2):
            async with used.start(seed=1) as episode:
                for sql in ("SELECT word FROM said", IN_A_WORKER):
                    found = await episode.step(calls(("db", {"sql": sql})))
                    assert [result.outcome for result in found.observation.results] == ["ok"]
                    if is_open:  # closed under an episode, whose database stays as it is
                        await used.aclose()
                await episode.step("<answer>done</answer>")
            await used.aclose()
            assert held() == before

    text = SPEC.partition("resources:")[0] + "resources:\n  db: {kind: sqlite, path: words.sqlite, ACCESS}\n"
    text += "tools: {db: {kind: sql, resource: db}}\nrewards: {answered: {kind: rule, rule: answered}}\n"
    (tmp_path / "spec.yaml").write_text(text.replace("ACCESS", access), encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "words.sqlite")) as raw:
        raw.executescript("CREATE TABLE said (word TEXT); INSERT INTO said VALUES ('start')")
    before = held()
    asyncio.run(main())


def test_the_file_behind_the_copies_is_as_it_was(environment: Environment) -> None:
    file: Path = environment.loaded.base_of("resources") / "words.sqlite"
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("SELECT word FROM said").fetchall() == [("start",)]


@pytest.mark.parametrize("fails", ["first", "second"])
def test_what_forgetting_raises_reaches_who_closes_and_keeps_nothing_else_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    text = SPEC.partition("resources:")[0]
    text += "resources: {first: {kind: sqlite, path: a.sqlite}, second: {kind: sqlite, path: a.sqlite}}\n"
    text += "rewards: {answered: {kind: rule, rule: answered}}\n"
    (tmp_path / "spec.yaml").write_text(text, encoding="utf-8")
    sqlite3.connect(tmp_path / "a.sqlite").close()
    used, log = load(tmp_path / "spec.yaml"), list[str]()

    async def main() -> None:
        for name, resource in used.parts.resources.items():
            failing = partial(log.index, name) if name == fails else partial(log.append, name)
            monkeypatch.setattr(resource, "forget", failing)
        used._stack.callback(log.append, "the rest")
        monkeypatch.setattr(used.executor, "close", partial(log.append, "calls"))
        with pytest.raises(ValueError, match=fails):
            await used.aclose()

    asyncio.run(main())
    assert sorted(log) == sorted({"first", "second", "the rest", "calls"} - {fails})
