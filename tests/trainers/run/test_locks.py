"""The locks of a run's attempts: what they hold, where they are kept, and which rows name them."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.runs.folder import open_run, read_info
from rlenv.runs.locks.lock import Lock, locks_of
from rlenv.runs.schema import Facts
from rlenv_train.keeping import Keeper
from rlenv_verl.run import Run, attempt_locks, changed_lines
from rlenv_verl.run.resume import resume_run, validation_of
from rlenv_verl.run.train import main
from rlenv_verl.settings import compose
from tests.support.kept import episode

pytestmark = pytest.mark.filterwarnings("ignore")

SPECS = ("arithmetic-v0", "lookup-v0")
ROWS = {"train": [{"question": "1 + 1", "answer": "2"}], "test": [{"question": "2 + 2", "answer": "4"}]}


def write_spec(folder: Path) -> Path:
    path = folder / "lookup.yaml"
    text = {
        "rlenv": 1,
        "name": "lookup",
        "version": 0,
        "tasks": {split: {"rows": rows} for split, rows in ROWS.items()},
        "prompt": {"user": "{{ task.question }}"},
        "rewards": {"correct": {"kind": "rule", "rule": "numeric_match", "expect": "{{ task.answer }}"}},
        "success": "correct == 1",
    }
    path.write_text(yaml.safe_dump(text))
    return path


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two specs as a dry run leaves it."""
    folder = tmp_path_factory.mktemp("dry")
    spec = write_spec(folder)
    assert main(["arithmetic", str(spec), "--dry-run", "--steps", "9", "-o", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def run(dry: Path, tmp_path: Path) -> Run:
    """A copy of that run in a folder of its own, which nothing has begun."""
    shutil.copytree(dry, tmp_path / "run")
    return moved(Run.load(tmp_path / "run"), dry)


def moved(run: Run, before: Path) -> Run:
    """The run as it would have been prepared where it lies now."""
    overrides = tuple(item.replace(str(before), str(run.folder)) for item in run.overrides)
    return dataclasses.replace(run, overrides=overrides, model=str(run.folder / "model"))


@functools.cache
def composed(overrides: tuple[str, ...]) -> Mapping[str, Any]:
    return compose(overrides)


def locks(run: Run, *, step: int = 0) -> dict[str, Lock]:
    return attempt_locks(run, composed(run.overrides), from_step=step)


def checkpoint(run: Run, step: int) -> None:
    (run.checkpoints / f"global_step_{step}" / "actor").mkdir(parents=True)
    (run.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))


@pytest.mark.slow
def test_runs_of_equal_settings_have_equal_locks_wherever_they_lie(run: Run, dry: Path) -> None:
    here, there = locks(run), locks(Run.load(dry))
    assert {name: lock.hash12 for name, lock in here.items()} == {name: lock.hash12 for name, lock in there.items()}
    assert list(here) == list(SPECS)
    for lock in here.values():
        hashed = {key: value for key, value in lock.as_dict().items() if key not in ("host", "started")}
        assert str(run.folder) not in json.dumps(hashed)


@pytest.mark.slow
def test_a_lock_says_what_is_trained_and_how(run: Run) -> None:
    lock = locks(run, step=6)["arithmetic-v0"]
    assert set(lock.data) == {"train", "test"}
    assert lock.policy == {"kind": "train", "model": "model", "run": "run", "step": 6}
    assert (lock.play["seed"], lock.play["k"]) == (0, 8)
    trainer: Any = lock.trainer
    assert (trainer["name"], trainer["preset"], trainer["weight"]) == ("verl", "cpu", 1.0)
    assert trainer["overrides"]["data.train_files"] == "RUN/data/train.parquet"
    assert trainer["loop"]["history"] == "grow"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["algorithm.gamma=0.9", "actor_rollout_ref.rollout.temperature=0.5"])
def test_another_configuration_is_another_lock(run: Run, given: str) -> None:
    other = dataclasses.replace(run, overrides=(*run.overrides, given))
    key = given.partition("=")[0]
    before, after = locks(run)["arithmetic-v0"], locks(other)["arithmetic-v0"]
    assert before.trainer["config"] != after.trainer["config"]
    assert after.trainer["overrides"][key] == given.partition("=")[2]


@pytest.mark.slow
def test_weights_count_by_their_content(run: Run) -> None:
    def weights() -> Any:
        return locks(run)["arithmetic-v0"].policy.get("weights")

    assert weights() is None
    Path(run.model).mkdir()
    (Path(run.model) / "model.safetensors").write_bytes(b"one")
    one = weights()
    (Path(run.model) / "model.safetensors").write_bytes(b"two")
    assert one != weights()


@pytest.mark.slow
def test_every_row_names_the_lock_of_its_own_environment(run: Run) -> None:
    made = locks(run)
    run.begin_attempt(0, locks=made)
    assert set(locks_of(run.folder)) == {lock.hash12 for lock in made.values()}
    info = read_info(run.folder)
    assert info is not None
    assert info.attempts[0].lock == made["arithmetic-v0"].hash12
    keeper = Keeper(run.folder)
    for name in SPECS:
        keeper.keep(episode(environment=name), Facts(step=1))
    keeper.close()
    rows = {row["environment"]: row["lock"] for row in open_run(run.folder).rows()}
    assert rows == {name: made[name].hash12 for name in SPECS}


@pytest.mark.slow
def test_a_resumed_attempt_says_what_else_it_goes_on_with(run: Run) -> None:
    begun_run = run.begin_attempt(0, locks=locks(run))
    checkpoint(run, 3)
    again, _ = resume_run(begun_run)
    assert again.attempts[0].lock != again.attempts[1].lock  # of another step
    assert list(changed_lines(again)) == []
    checkpoint(run, 6)
    changed = dataclasses.replace(again, overrides=(*again.overrides, "algorithm.gamma=0.9"))
    third, _ = resume_run(changed)
    first, second = changed_lines(third)
    assert first.startswith("arithmetic-v0 goes on with another trainer.config, trainer.overrides.algorithm.gamma: ")
    assert second.startswith("lookup-v0 goes on with another ")
    (command,) = [part for part in first.split(": ") if part.startswith("rlenv runs lock diff")]
    assert all(Path(file).is_file() for file in command.split()[4:])


@pytest.mark.slow
def test_what_an_attempt_before_had_not_recorded_is_no_difference(run: Run) -> None:
    begun_run = run.begin_attempt(0)
    assert begun_run.attempts[0].lock == ""
    assert list(changed_lines(begun_run.begin_attempt(0, locks=locks(run)))) == []


@pytest.mark.slow
def test_a_validation_has_the_lock_of_what_it_plays(run: Run, tmp_path: Path) -> None:
    checkpoint(run, 3)
    validation, _ = validation_of(run, tmp_path / "validation")
    found = locks_of(validation.folder)
    assert len(found) == len(SPECS)
    assert set(found) == set(validation.attempts[0].locks.values())
    for lock in found.values():
        assert set(lock.data) == {"test"}
        assert (lock.policy["run"], lock.policy["step"]) == ("run", 3)
