"""What holds for every environment that ships, by whatever name."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlenv.audit.run import audit
from rlenv.checks.diagnose import diagnose
from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.episodes.environment import Environment, load
from rlenv.language.loader import load_spec
from rlenv.language.shipped import shipped
from rlenv.testing.environments import check_environment_async
from tests.support.environments import named, shipped_names

_FEW = 8
"""Rows of a split that are looked at in `make test`; the suite slow looks at all."""


every_environment = pytest.mark.parametrize("name", shipped_names())
GAMES = {"kuhn-poker", "tic-tac-toe"}
"""What is earned in these depends on the other player; see `tests/episodes/test_players.py`."""
MACHINES = {name for name, path in shipped().items() if "kind: workspace" in path.read_text("utf-8")}
every_task = pytest.mark.parametrize("name", shipped_names(*GAMES))
quick_environments = pytest.mark.parametrize(
    "name",
    [named(*one) for one in shipped().items() if load_spec(one[1]).spec.user is None and one[0] not in MACHINES],
)
"""Those without a user or a machine, whose long episodes are attacked in the suite slow alone."""


def _load(name: str, rows: int | None = _FEW) -> Environment:
    """The environment with the first rows of its splits; skips the test where this machine lacks what it needs."""
    lacking = [f"{one.what} {one.lacks}" for one in asyncio.run(diagnose(shipped()[name])) if not one.is_met]
    if lacking:
        pytest.skip(f"{name} needs more than is here: {', '.join(lacking)}")
    return load(name, set=_limits(name, rows))


def _limits(name: str, rows: int | None) -> dict[str, Any]:
    splits = load_spec(shipped()[name]).spec.tasks
    return {} if rows is None else {f"tasks.{split}.limit": rows for split in splits}


def _check_oracle(environment: Environment, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    for split in environment.spec.tasks:
        assert_all_earn_maximum(environment, play_oracle(environment, split))


def _check_audit(environment: Environment, *, tasks: int, splits: Sequence[str] | None) -> None:
    async def run() -> None:
        async with environment:
            report = await audit(environment, tasks=tasks, splits=splits)
        assert [(one.code, one.message) for one in report.findings] == []
        # An attack that does the task on its way earns what the task does; the report says so.
        told = {note.split("'")[1] for note in report.notes if "is no finding: it has done the task" in note}
        share = {one.name: one.share for one in report.attacks if one.share is not None and one.name not in told}
        assert {name: one for name, one in share.items() if one >= 0.2} == {}

    asyncio.run(run())


@pytest.mark.slow(but=5)
@every_task
def test_the_oracle_earns_the_maximum(name: str, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    _check_oracle(_load(name), play_oracle, assert_all_earn_maximum)


@pytest.mark.slow  # thousands of episodes
@every_task
def test_the_oracle_earns_the_maximum_on_every_row(
    name: str, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    _check_oracle(_load(name, None), play_oracle, assert_all_earn_maximum)


@pytest.mark.slow(but=3)
@every_task
def test_random_actions_earn_little_and_break_no_episode(name: str, play_random: Callable) -> None:
    environment = _load(name, 4 * _FEW)
    most = sum(max(term.usual_weight, 0) for term in environment.spec.rewards.values())
    for split in environment.spec.tasks:
        trajectories = play_random(environment, split)
        assert [trajectory.failure for trajectory in trajectories if trajectory.failure] == []
        assert sum(trajectory.reward.total for trajectory in trajectories) < 0.2 * most * len(trajectories)
        assert sum(bool(trajectory.success) for trajectory in trajectories) < 0.2 * len(trajectories)


@pytest.mark.slow
@quick_environments
def test_no_attack_of_the_audit_earns_anything_worth_having(name: str) -> None:
    _check_audit(_load(name, 3 * _FEW), tasks=3, splits=["test"])  # by fewer rows a guess is often right


@pytest.mark.slow  # a thousand episodes of each
@pytest.mark.timeout(600)
@every_task
def test_no_attack_of_the_audit_earns_anything_worth_having_on_any_split(name: str) -> None:
    if name in MACHINES:
        _check_audit(_load(name, _FEW), tasks=2, splits=["test"])
    else:
        _check_audit(_load(name, None), tasks=20, splits=None)


@pytest.mark.slow(but=3)
@every_environment
def test_the_laws_of_environments_hold(name: str) -> None:
    asyncio.run(check_environment_async(_load(name), tasks=2))


@pytest.mark.slow(but=3)
@every_environment
def test_validation_finds_neither_faults_nor_oddities(name: str) -> None:
    _load(name)
    report = validate([shipped()[name]], set=_limits(name, _FEW))
    assert [one.message for one in (*report.faults, *report.warnings)] == []


@pytest.mark.slow  # reads every row
@every_environment
def test_validation_finds_neither_faults_nor_oddities_in_any_row(name: str) -> None:
    _load(name)
    report = validate([shipped()[name]])
    assert [one.message for one in (*report.faults, *report.warnings)] == []


@pytest.mark.slow(but=3)
@every_task
def test_no_row_stands_in_two_splits_or_twice_in_one(name: str) -> None:
    environment = _load(name, None)
    rows = [row for split in environment.spec.tasks for row in environment.tasks(split)]
    texts = [json.dumps({key: value for key, value in row.items() if key != "id"}, sort_keys=True) for row in rows]
    assert len(texts) == len(set(texts))


@pytest.mark.slow(but=2)
@every_task
def test_one_may_be_started_from(
    name: str, tmp_path: Path, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    _load(name)
    folder = tmp_path / "mine"
    assert main(["init", str(folder), "--from", name]) == 0
    environment = load(folder / "mine.yaml", set=_limits(name, 1))
    assert environment.spec.name == "mine"
    _check_oracle(environment, play_oracle, assert_all_earn_maximum)


def test_the_overrides_that_the_page_names_are_keys_of_their_environments(root: Path) -> None:
    page = (root / "docs/guides/environments.md").read_text("utf-8")
    sections = [(section.partition("\n")[0].split(), section) for section in page.split("\n## ")]
    overrides = [
        (name, *shlex.split(" ".join(words.split()))[0].split("=", 1))
        for title, section in sections
        for name in shipped()
        if name in title
        for words in re.findall(r"--set\s+('[^']*'|[^\s`]+)", section)
    ]
    assert {name for name, *_ in overrides} >= GAMES
    for name, key, value in overrides:
        load_spec(shipped()[name], set={key: value})


@pytest.mark.slow
def test_the_shipped_data_are_what_the_generator_makes(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "specs/generate.py", "--check"], cwd=root, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_check_names_a_file_that_was_changed(root: Path, tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    (specs / "data" / "gsm8k").mkdir(parents=True)
    (specs / "generate.py").write_text((root / "specs" / "generate.py").read_text())
    (specs / "generators").symlink_to(root / "specs" / "generators")
    run = [sys.executable, "specs/generate.py"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=100)
    changed = specs / "data" / "gsm8k" / "test.jsonl"
    changed.write_text(changed.read_text().replace("#### ", "#### 1", 1))
    (specs / "data" / "nl2sql" / "stray.jsonl").write_text("")
    done = subprocess.run([*run, "--check"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [
        "differs: specs/data/gsm8k/test.jsonl",
        "differs: specs/data/nl2sql/stray.jsonl",
    ]


def test_the_shipped_data_are_small(root: Path) -> None:
    assert sum(path.stat().st_size for path in (root / "specs" / "data").rglob("*") if path.is_file()) < 5_000_000
