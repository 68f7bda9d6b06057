"""What `--resume` makes of a run's folder; the runs themselves are in tests/verl_runs."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from rlenv.errors import UsageError
from rlenv.runs.folder import open_run, read_info
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts, Mode
from rlenv_train.keeping import Keeper
from rlenv_verl.export import last_checkpoint
from rlenv_verl.run import Run, forget_after, lock_folder
from rlenv_verl.run.figures import MetricsFile, by_step
from rlenv_verl.run.resume import resume_run, validation_of
from rlenv_verl.run.train import main
from tests.support.kept import episode, everything

pytestmark = pytest.mark.filterwarnings("ignore")


def checkpoint(run: Path, step: int, *, is_named: bool = True) -> Path:
    folder = run / "checkpoints" / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    if is_named:
        (run / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    return folder


def log(run: Run, number: int, steps: dict[int, float], *, validated: tuple[int, ...] = ()) -> None:
    path = run.metrics_of(run.attempts[number - 1])
    with path.open("ab") as file:
        for step, reward in steps.items():
            data = {"critic/score/mean": reward, "timing_s/step": 1.0} if step else {}
            if step in validated:
                source = run.sources["greedy"]
                data |= {f"val-core/{source}/reward/mean@1": reward, f"val-aux/{source}/success/mean@1": reward}
            file.write(orjson.dumps({"step": step, "data": data}) + b"\n")


def keep(folder: Path, played: Sequence[tuple[int, Mode]]) -> None:
    """Episodes of steps and modes, as a process of the run keeps them."""
    keeper = Keeper(folder)
    for step, mode in played:
        keeper.keep(episode(), Facts(step=step, mode=mode))
    keeper.close()


def counted(reader: RunReader) -> list[tuple[int, int, str]]:
    """Attempt, step and mode of the episodes that count."""
    return sorted((row["attempt"], row["step"], row["mode"]) for row in reader.table.to_pylist())


@pytest.fixture
def prepared(tmp_path: Path) -> Run:
    """A run of 9 steps as a dry run leaves it, with its first attempt begun."""
    arguments = ["--steps", "9", "--save-every", "3", "--set", "limits.turns=2", "trainer.test_freq=3"]
    assert main(["arithmetic", "--dry-run", "-o", str(tmp_path / "run"), *arguments]) == 0
    return Run.load(tmp_path / "run").begin_attempt(0)


@pytest.mark.slow
def test_run_json_gives_the_run_back(prepared: Run) -> None:
    assert Run.load(prepared.folder) == prepared
    assert dict(prepared.specs[0].set) == {"limits.turns": 2}
    assert "trainer.save_freq=3" in prepared.overrides


@pytest.mark.slow
def test_run_json_says_what_any_runs_does(prepared: Run) -> None:
    info = read_info(prepared.folder)
    assert info is not None
    assert (info.kind, info.state, info.spec) == ("train", "running", "arithmetic")
    assert (info.environment, info.policy) == (prepared.specs[0].id, prepared.model)
    assert info.command[:3] == ("rlenv", "train", "arithmetic")
    (attempt,) = info.attempts
    assert (attempt.number, attempt.from_step, attempt.pid) == (1, 0, os.getpid())
    assert attempt.started > 0


def test_a_run_that_an_older_version_wrote_is_refused_with_the_way_out(prepared: Run) -> None:
    path = prepared.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    with pytest.raises(UsageError, match=r"was written by another version of rlenv; start a new run"):
        Run.load(prepared.folder)


@pytest.mark.slow
def test_episodes_of_what_is_done_anew_stay_and_do_not_count(prepared: Run) -> None:
    checkpoint(prepared.folder, 3)
    played: list[tuple[int, Mode]] = [(1, "train"), (3, "train"), (3, "greedy"), (4, "train"), (6, "greedy")]
    keep(prepared.folder, played)
    run, _ = resume_run(prepared)
    reader = open_run(run.folder)
    assert counted(reader) == [(1, 1, "train"), (1, 3, "greedy"), (1, 3, "train")]
    keep(run.folder, [(3, "greedy"), (4, "train")])  # step 3 is validated again
    reader.refresh()
    assert counted(reader) == [(1, 1, "train"), (1, 3, "train"), (2, 3, "greedy"), (2, 4, "train")]
    every = list(reader.rows())
    assert len(every) == 7
    assert sorted(row["id"] for row in every if reader.is_counted(row)) == sorted(reader.table["id"].to_pylist())


@pytest.mark.slow
def test_a_run_goes_on_from_its_last_whole_checkpoint(prepared: Run) -> None:
    log(prepared, 1, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.5}, validated=(0, 3))
    third = checkpoint(prepared.folder, 3)
    cut = checkpoint(prepared.folder, 6, is_named=False)
    run, more = resume_run(prepared)
    assert [attempt.from_step for attempt in run.attempts] == [0, 3]
    assert f"trainer.resume_from_path={third}" in more
    assert "trainer.val_before_train=false" in more  # step 3's validation is known
    assert not cut.exists()
    assert Run.load(prepared.folder) == run


@pytest.mark.slow
def test_a_validation_that_was_never_logged_is_done_again(prepared: Run) -> None:
    log(prepared, 1, {0: 0.1, 1: 0.2, 2: 0.3}, validated=(0,))
    checkpoint(prepared.folder, 3)
    assert "trainer.val_before_train=true" in resume_run(prepared, dry_run=True)[1]


@pytest.mark.slow
def test_without_a_checkpoint_the_run_begins_again(prepared: Run) -> None:
    log(prepared, 1, {0: 0.1, 1: 0.2}, validated=(0,))
    run, more = resume_run(prepared)
    assert run.attempts[1].from_step == 0
    assert {"trainer.resume_mode=disable", "trainer.val_before_train=false"} <= set(more)


@pytest.mark.slow
def test_a_finished_run_says_how_to_go_further(prepared: Run) -> None:
    checkpoint(prepared.folder, 9)
    with pytest.raises(UsageError, match="--steps N"):
        resume_run(prepared)
    run, _ = resume_run(prepared, steps=12)
    assert run.overrides[-1] == "trainer.total_training_steps=12"


@pytest.mark.slow
def test_steps_that_are_trained_anew_are_counted_once(prepared: Run) -> None:
    log(prepared, 1, {0: 0.0, 1: 0.1, 2: 0.2, 3: 0.3, 4: 9.0, 5: 9.0}, validated=(0, 3))
    run = prepared.begin_attempt(3)
    log(run, 2, {4: 0.4, 5: 0.5, 6: 8.0})
    run = run.begin_attempt(5)
    log(run, 3, {6: 0.6})
    run.merge_metrics()
    steps = by_step(list(MetricsFile(run.metrics, run.sources).new()))
    assert [entry.reward for entry in steps] == [None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert [entry.step for entry in steps if entry.success] == [0, 3]


@pytest.mark.slow
def test_a_repeated_validation_keeps_the_figures_of_training(prepared: Run) -> None:
    log(prepared, 1, {3: 0.3})
    run = prepared.begin_attempt(3)
    source = run.sources["greedy"]
    entry = {"step": 3, "data": {f"val-aux/{source}/success/mean@1": 0.75}}
    run.metrics_of(run.attempts[1]).write_bytes(orjson.dumps(entry) + b"\n")
    run.merge_metrics()
    (step,) = by_step(list(MetricsFile(run.metrics, run.sources).new()))
    assert (step.reward, step.success) == (0.3, {"greedy": 0.75})


@pytest.mark.slow
def test_a_line_that_was_cut_is_no_step(prepared: Run) -> None:
    log(prepared, 1, {1: 0.1})
    with prepared.metrics_of(prepared.attempts[0]).open("ab") as file:
        file.write(b'{"step": 2, "da')
    prepared.merge_metrics()
    assert prepared.metrics.read_bytes().count(b"\n") == 1


@pytest.mark.slow
def test_the_list_of_trained_tasks_ends_where_a_run_goes_on(prepared: Run) -> None:
    prepared.trained.write_bytes(b"".join(orjson.dumps({"step": step}) + b"\n" for step in (1, 2, 3, 3, 4)))
    forget_after(prepared, 3)
    assert prepared.trained.read_bytes().count(b"\n") == 4


@pytest.mark.parametrize(("named", "expected"), [("4", 4), ("9", 6), ("", 4), (None, None)])
def test_a_checkpoint_counts_once_all_of_it_is_written(tmp_path: Path, named: str | None, expected: int | None) -> None:
    for step in (2, 4, 6):
        checkpoint(tmp_path, step, is_named=False)
    if named is not None:
        (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(named)
    found = last_checkpoint(tmp_path / "checkpoints")
    assert (found and int(found.name.removeprefix("global_step_"))) == expected


def test_a_checkpoint_whose_actor_was_removed_is_passed_over(tmp_path: Path) -> None:
    checkpoint(tmp_path, 2)
    (checkpoint(tmp_path, 4) / "actor").rmdir()
    found = last_checkpoint(tmp_path / "checkpoints")
    assert found is not None
    assert found.name == "global_step_2"


def test_a_folder_is_trained_in_by_one_process(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, wait_s=0),
        pytest.raises(UsageError, match="another process trains"),
        lock_folder(tmp_path, wait_s=0),
    ):
        pass
    with lock_folder(tmp_path, wait_s=0):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--seed", "3"], "leave out --seed"),
        (["arithmetic"], "leave out arithmetic"),
        (["--set", "a=b"], "leave out --set"),
        (["--preset", "cpu", "--shuffle-rewards"], "leave out --preset, --shuffle-rewards"),
        (["run.turn_tokens=3"], "leave out run.turn_tokens=3"),
        (["--validation-tasks", "3"], "with --eval"),
        (["-o", "elsewhere"], "does not take --output"),
        (["--eval", "--steps", "3", "--save-every", "1"], "does not take --steps, --save-every"),
        (["--ray-address", "h:1"], "cluster of its own"),
        (["trainer.test_frequenzy=3"], "test_frequenzy"),
    ],
)
def test_what_would_make_it_another_run_is_refused(
    prepared: Run, capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    checkpoint(prepared.folder, 3)
    assert main(["--resume", str(prepared.folder), *extra]) == 2
    assert message in capsys.readouterr().err.replace("\n", "")
    assert Run.load(prepared.folder) == prepared


@pytest.mark.slow
def test_a_folder_without_a_run_names_the_run_in_it(prepared: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", str(prepared.folder.parent)]) == 2
    assert f"did you mean {prepared.folder}" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.slow
def test_a_dry_resume_prints_the_command_and_changes_nothing(prepared: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint(prepared.folder, 3)
    assert main(["--resume", str(prepared.folder), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"trainer.resume_from_path={path}" in said
    assert "goes on from step 3 of 9" in said
    assert Run.load(prepared.folder) == prepared


@pytest.mark.slow
def test_a_dry_run_writes_nothing_into_a_run(prepared: Run, tmp_path: Path) -> None:
    """Whatever is asked for beside it, taken or refused."""
    log(prepared, 1, {0: 0.1, 4: 0.2})
    checkpoint(prepared.folder, 3)
    checkpoint(prepared.folder, 6, is_named=False)
    prepared.stop.touch()
    before = everything(tmp_path)
    out = str(tmp_path / "out")
    options = (["--eval"], ["-o", out], ["--steps", "12"], ["--validation-tasks", "3"])
    for chosen in itertools.product((False, True), repeat=len(options)):
        given = [word for is_given, words in zip(chosen, options, strict=True) if is_given for word in words]
        code = main(["--resume", str(prepared.folder), "--dry-run", *given])
        refuses = ("-o", "--validation-tasks") if "--eval" not in given else ("--steps",)
        assert code == (2 if any(word in given for word in refuses) else 0), given
        assert everything(tmp_path) == before, given


@pytest.mark.slow
def test_a_dry_run_takes_no_lock(prepared: Run) -> None:
    checkpoint(prepared.folder, 3)
    with lock_folder(prepared.folder, wait_s=0):
        assert main(["--resume", str(prepared.folder), "--dry-run"]) == 0


@pytest.mark.slow
def test_validation_of_a_checkpoint_leaves_the_run_alone(
    prepared: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoint(prepared.folder, 6)
    out = tmp_path / "eval"
    before = (prepared.folder / "run.json").read_bytes()
    argv = ["--resume", str(prepared.folder), "--eval", "--dry-run", "--validation-tasks", "3", "-o", str(out)]
    assert main(argv) == 0
    command = capsys.readouterr().out
    assert "validates step 6" in command
    for part in (f"trainer.resume_from_path={path}", "trainer.val_only=true", f"data.val_files={out}/data"):
        assert part in command
    validation, _ = validation_of(prepared, out, tasks=3)
    assert (prepared.folder / "run.json").read_bytes() == before
    assert (out / "data" / "validation.parquet").exists()
    assert Run.load(out) == validation
    assert validation.validation_tasks == 3


@pytest.mark.slow
def test_a_validation_is_written_over_no_run(prepared: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(prepared.folder, 6)
    (tmp_path / "kept").mkdir()
    keep(tmp_path / "kept", [(6, "greedy")])
    for out in (prepared.folder, tmp_path / "kept"):
        assert main(["--resume", str(prepared.folder), "--eval", "--dry-run", "-o", str(out)]) == 2
        assert "holds a run already" in capsys.readouterr().err.replace("\n", " ")
    assert Run.load(prepared.folder) == prepared
    assert not (tmp_path / "kept" / "run.json").exists()


@pytest.mark.slow
def test_a_validation_has_one_attempt_whose_episodes_all_count(prepared: Run, tmp_path: Path) -> None:
    """It cannot be resumed, so that no attempt throws away what one before it did: no step is left out."""
    checkpoint(prepared.folder, 6)
    validation, _ = validation_of(prepared, tmp_path / "eval")
    keep(validation.folder, [(6, "greedy"), (6, "sampled")])
    info = read_info(validation.folder)
    assert info is not None
    assert (info.kind, info.from_steps) == ("eval", {})
    assert [(one.number, one.from_step) for one in info.attempts] == [(1, 6)]
    assert [row[1:] for row in counted(open_run(validation.folder))] == [(6, "greedy"), (6, "sampled")]
    with pytest.raises(UsageError, match="nothing to go on with"):
        resume_run(Run.load(validation.folder))
