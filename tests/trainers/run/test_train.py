from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import yaml

from rlenv.runs.folder import open_run, read_info
from rlenv_verl.run.train import main
from tests.support.kept import everything, held_out, keep

NAME = "trainer.experiment_name=same"
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dry_run_writes_all_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["arithmetic", "--dry-run", "--seed", "7", "-o", str(out), "trainer.test_freq=3"]) == 0
    (loop,) = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert (loop["_target_"], loop["seed"]) == ("rlenv_verl.loop.agent_loop.RlenvAgentLoop", 7)
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["trainer"]["test_freq"] == 3
    assert config["algorithm"]["adv_estimator"] == "rlenv_grpo"
    assert (out / "data" / "train.parquet").exists()
    assert not (out / "verl.log").exists()
    told = capsys.readouterr().out
    assert str(out) in told
    assert "-m verl.trainer.main_ppo" in told
    assert "VERL_PLATFORM=cpu" in told
    assert (out / "command.sh").read_text() in told


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_printed_command_is_one_that_a_shell_reads(tmp_path: Path) -> None:
    out = tmp_path / "it's a run"
    assert main(["arithmetic", "--dry-run", "--eval", "-o", str(out)]) == 0
    words = shlex.split((out / "command.sh").read_text().replace("\\\n", ""))
    assert words[:4] == ["cd", os.getcwd(), "&&", "env"]
    overrides = words[words.index("verl.trainer.main_ppo") + 1 :]
    assert overrides == (out / "overrides.txt").read_text().splitlines()
    assert {"trainer.val_only=true", "trainer.val_before_train=true"} <= set(overrides)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_control_differs_in_its_advantages_alone(tmp_path: Path) -> None:
    configs = []
    for name, flags in (("plain", []), ("control", ["--shuffle-rewards"])):
        assert main(["arithmetic", "--dry-run", "-o", str(tmp_path / name), *flags, NAME]) == 0
        configs.append((tmp_path / name / "config.yaml").read_text().replace(f"/{name}", "/run"))
    plain, control = (yaml.safe_load(text) for text in configs)
    assert control["algorithm"].pop("adv_estimator") == "rlenv_grpo_shuffled"
    assert plain["algorithm"].pop("adv_estimator") == "rlenv_grpo"
    assert control == plain


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["arithmetic", "trainer.test_frequenzy=3"], "test_frequenzy"),
        (["arithmetic", "trainer.logger=[console]"], "has to keep 'file'"),
        (["arithmetic", "--set", "limits.turns"], "KEY=VALUE"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main([*argv, "--dry-run", "-o", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err.replace("\n", "")


def test_a_trainer_that_there_is_not_gives_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["arithmetic", "--trainer", "other", "--dry-run"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'other'" in said
    assert "choose from 'verl', 'trl'" in said


@pytest.mark.parametrize("what", ["figures", "episodes"])
def test_a_folder_that_holds_a_run_is_left_alone(tmp_path: Path, what: str) -> None:
    if what == "figures":
        (tmp_path / "metrics.jsonl").write_text("")
    else:
        keep(tmp_path, 1)
    assert main(["arithmetic", "--dry-run", "-o", str(tmp_path)]) == 2


@pytest.mark.parametrize("more", [["arithmetic"], ["arithmetic", "--rehearse"], ["--resume", "RUN", "--eval"]])
def test_no_run_is_begun_among_anothers_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    keep(tmp_path, 1)
    before = everything(tmp_path)
    assert main([*more, "--dry-run", "-o", str(tmp_path / "tape" / "new")]) == 2
    assert "is among the run's own files" in capsys.readouterr().err
    assert everything(tmp_path) == before


@pytest.mark.slow
@pytest.mark.timeout(560)
def test_verl_trains_two_steps_and_leaves_nothing_running(tiny_folder: Path, tmp_path: Path) -> None:
    """Unmodified veRL with Ray, FSDP and the rollout server, on the shipped environment."""
    out, mark = tmp_path / "run", uuid4().hex
    arguments = ["--preset", "cpu", "--model", str(tiny_folder), "--steps", "2", "--validation-tasks", "4"]
    arguments += ["--time-limit", "420", "-o", str(out), "trainer.test_freq=2", "data.train_batch_size=4"]
    arguments += ["actor_rollout_ref.actor.ppo_mini_batch_size=4", "actor_rollout_ref.rollout.n=4"]
    done = subprocess.run(
        [sys.executable, "-m", "rlenv_verl.run.train", "arithmetic", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "trainers")]),
            "PYTHONWARNINGS": "default",
            "RLENV_TEST_MARK": mark,
        },
        capture_output=True,
        text=True,
        timeout=520,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RLENV_TEST_MARK") == mark:
                left.append(process.name())
        except psutil.Error:
            continue
    assert left == []

    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in steps] == [0, 1, 2]
    # The rollout's log-probabilities are the trainer's: the two run the same weights on the same tokens.
    assert all(entry["data"]["actor/ppo_kl"] == pytest.approx(0.0, abs=1e-3) for entry in steps[1:])
    assert steps[2]["data"]["actor/grad_norm"] >= 0.0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ending"]["how"] == "finished"
    assert summary["failed_episodes"] == 0
    assert [entry["step"] for entry in summary["held_out_success"]] == [0, 2]
    assert len(held_out(out, step=2, mode="greedy")) == 4
    trained = [row for row in open_run(out).table.to_pylist() if row["mode"] == "train"]
    assert [sum(row["step"] == step for row in trained) for step in (1, 2)] == [16, 16]
    assert all(row["fate"] == "trained" and row["advantage"] is not None for row in trained)
    info = read_info(out)
    assert info is not None
    assert (info.kind, info.state) == ("train", "ended")
    assert (out / "curve.png").exists()
    assert (Path(summary["trained"]) / "model.safetensors").read_bytes() != (
        tiny_folder / "model.safetensors"
    ).read_bytes()
