"""What is gathered for the workers of a cluster: they have the specs' files, and nothing of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv_train.specs import load_specs, named_files, ship
from rlenv_verl.run.train import main

BASE = """
rlenv: 1
name: shop
vars: {databases: ../dbs}
tasks:
  train: {path: ../rows/train.jsonl}
  test: {function: "rows.py:made"}
prompt: {user: "{{ task.question }}"}
resources:
  db: {kind: sqlite, path: "{{ vars.databases }}/{{ task.db }}.sqlite", access: read_only}
tools:
  look: {kind: python, function: "tools.py:look", run_in: loop}
  query: {kind: sql, resource: db}
limits: {turns: 2}
rewards: {correct: {kind: rule, rule: numeric_match}}
"""
TOP = """
rlenv: 1
extends: base/base.yaml
name: top
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec on another one, with rows, databases by row and programs around it."""
    import sqlite3

    root = tmp_path / "project"
    for folder in ("envs/base", "envs/rows", "envs/dbs"):
        (root / folder).mkdir(parents=True)
    (root / "envs/base/base.yaml").write_text(BASE)
    (root / "envs/top.yaml").write_text(TOP)
    rows = [f'{{"question": "q{i}", "answer": {i}, "db": "{db}"}}\n' for i, db in enumerate("ab")]
    (root / "envs/rows/train.jsonl").write_text("".join(rows))
    (root / "envs/base/rows.py").write_text("def made():\n    return [{'question': 'q', 'answer': 1, 'db': 'a'}]\n")
    (root / "envs/base/tools.py").write_text('def look() -> str:\n    """Look."""\n    return "seen"\n')
    (root / "envs/base/beside.py").write_text("")
    (root / "envs/base/secret.txt").write_text("not named")
    for name in "abc":
        sqlite3.connect(root / f"envs/dbs/{name}.sqlite").execute("create table t (x)").connection.close()
    return root / "envs/top.yaml"


def test_a_spec_is_shipped_with_all_that_it_names_and_no_more(spec: Path) -> None:
    found = {str(path.relative_to(spec.parent)) for path in named_files(load(spec))}
    assert found == {
        "top.yaml",
        "base/base.yaml",
        "rows/train.jsonl",
        "base/rows.py",
        "base/tools.py",
        "base/beside.py",  # programs import what lies beside them
        "dbs/a.sqlite",
        "dbs/b.sqlite",  # and not c, which no row names
    }


def test_files_that_a_pattern_stands_for_are_shipped(spec: Path) -> None:
    (spec.parent / "rows/more.jsonl").write_text('{"question": "q", "answer": 1, "db": "a"}\n')
    base = spec.parent / "base/base.yaml"
    base.write_text(BASE.replace("../rows/train.jsonl", '["../rows/*.jsonl"]'))
    found = {path.name for path in named_files(load(spec)) if path.suffix == ".jsonl"}
    assert found == {"train.jsonl", "more.jsonl"}


PLAY = """
import asyncio, sys
from rlenv.episodes.environment import load
async def play():
    environment = load(sys.argv[1], set=eval(sys.argv[2]))
    for split in ("train", "test"):
        async with environment.start(task=0, split=split) as episode:
            tool = environment.tool_schemas[0]["function"]["name"]
            print(episode.messages[-1].content, len(environment.tasks(split)), tool)
asyncio.run(play())
"""


@pytest.mark.slow
def test_the_shipped_copy_works_alone(spec: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere.jsonl"
    other.write_text('{"question": "other", "answer": 1, "db": "a"}\n')
    (shipped,) = ship(load_specs([str(spec)], set=[f"tasks.train.path={other}"]), tmp_path / "ship")
    spec.parent.parent.rename(tmp_path / "gone")
    other.rename(tmp_path / "gone.jsonl")
    assert not Path(shipped.source).is_absolute()
    done = subprocess.run(
        [sys.executable, "-c", PLAY, shipped.source, repr(shipped.set)],
        cwd=tmp_path / "ship",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == ["other 1 look", "q 1 look"], done.stderr
    assert (tmp_path / "ship/rlenv/episodes/environment.py").exists()
    assert (tmp_path / "ship/rlenv_verl/loop/agent_loop.py").exists()


def test_a_program_finds_the_package_beside_it_where_it_was_shipped_to(spec: Path, tmp_path: Path) -> None:
    (spec.parent / "base/helpers").mkdir()
    (spec.parent / "base/helpers/__init__.py").write_text("from .words import SEEN\n")
    (spec.parent / "base/helpers/words.py").write_text("SEEN = 'seen'\n")
    text = 'def look() -> str:\n    """Look."""\n    import helpers, beside\n    return helpers.SEEN\n'
    (spec.parent / "base/tools.py").write_text(text)
    (shipped,) = ship(load_specs([str(spec)]), tmp_path / "ship")
    spec.parent.parent.rename(tmp_path / "gone")
    environment = load(tmp_path / "ship" / shipped.source)
    look = environment.parts.tools["look"]
    assert look.run({}, None).text == "seen"  # type: ignore[arg-type]


def test_more_than_ray_sends_is_refused_by_its_largest_file(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ships 0 MB at most; the largest is "):
        ship(load_specs([str(spec)]), tmp_path / "ship", limit_bytes=1000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_on_a_cluster_names_its_specs_by_relative_paths(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    argv = [str(spec), "--dry-run", "-o", str(out), "--ray-address", "10.0.0.1:6379", "--set", "limits.turns=1"]
    assert main(argv) == 0
    (loop,) = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert loop["spec"] == "specs/top/top.yaml"
    assert loop["spec_set"] == {"limits.turns": 1}
    ray = yaml.safe_load((out / "config.yaml").read_text())["ray_kwargs"]["ray_init"]
    assert ray["address"] == "10.0.0.1:6379"
    assert not {"num_gpus", "object_store_memory"} & set(ray)
    assert ray["num_cpus"] is None
    command = capsys.readouterr().out
    assert f"+ray_kwargs.ray_init.runtime_env.working_dir={out}/ship" in command
    assert "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM=cpu" in command
