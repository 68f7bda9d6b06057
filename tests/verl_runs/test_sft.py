"""`rlenv collect` and `rlenv sft` as a user starts them: a policy that goes on, adapters, kills and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.verl_runs.driving import MARK, ROOT, lines, make_policy, marked

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(900)]

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "trainers"))), "PYTHONWARNINGS": "default"}


def rlenv(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlenv", *arguments], env=ENV, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(out: Path) -> list[float]:
    return [line["data"]["train/loss"] for line in lines(out / "metrics.jsonl") if "train/loss" in line["data"]]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy") / "policy", "arithmetic")


@pytest.fixture(scope="module")
def data(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "rows"
    rlenv("collect", "arithmetic", "--model", str(policy), "--split", "train", "-n", "64", "-o", str(folder))
    return folder


@pytest.fixture(scope="module")
def whole(policy: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seven steps that nobody disturbs; four are an epoch."""
    out = tmp_path_factory.mktemp("whole") / "out"
    told = rlenv("sft", str(data), "--model", str(policy), "-o", str(out), *STEPS, "--val", str(data), "--lr", "1e-3")
    assert f"trained policy: {out / 'trained'}" in told
    return out


STEPS = ("--steps", "7", "--batch", "16", "--seed", "3")


def test_a_run_lowers_the_loss_and_leaves_a_policy_that_rlenv_takes(whole: Path, data: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["how"] == "finished"
    assert summary["trained_step"] == summary["steps_done"] == 7
    assert losses(whole)[-1] < losses(whole)[0]
    assert summary["val_loss"] == pytest.approx(losses(whole)[-1], abs=0.5)
    assert not (whole / "checkpoints").exists()
    assert (whole / "curve.png").stat().st_size > 1000
    provenance = json.loads((whole / "trained" / "rlenv_export.json").read_text())
    assert provenance["data"][0]["environment"] == "rlenv/arithmetic-v0"
    # Its tokens are the same ones, so that data made for the start is data for what came of it.
    told = json.loads(
        rlenv("eval", "arithmetic", "--policy", f"hf:{whole / 'trained'}", "--split", "train", "-n", "4", "--json")
    )
    assert told["episodes"] == 4


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(
    policy: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    out, mark = tmp_path / "cut", "sft-killed"
    start = [sys.executable, "-m", "rlenv", "sft", str(data), "--model", str(policy), "-o", str(out), *STEPS]
    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(
            [*start, "--lr", "1e-3", "--save-every", "2"], env={**ENV, MARK: mark}, stdout=log, stderr=log
        )
        path = out / "checkpoints" / "latest_checkpointed_iteration.txt"
        wait_until(lambda: path.exists() and path.read_text() >= "2", what=(tmp_path / "log").read_text(), seconds=300)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_until(lambda: marked(mark) == [], what="the end of the run's processes", seconds=60)

    rlenv("sft", "--resume", str(out))
    run = json.loads((out / "run.json").read_text())
    assert 2 <= run["attempts"][1]["from_step"] <= 7
    assert losses(out) == pytest.approx(losses(whole), abs=1e-6)

    rlenv("sft", "--resume", str(out), "--steps", "8")
    assert len(losses(out)) == 8


def test_ctrl_c_leaves_no_process(policy: Path, data: Path, tmp_path: Path) -> None:
    mark = "sft-interrupted"
    start = [sys.executable, "-m", "rlenv", "sft", str(data), "--model", str(policy), "-o", str(tmp_path / "out")]
    driver = subprocess.Popen([*start, "--steps", "10000"], env={**ENV, MARK: mark}, stdout=subprocess.PIPE)
    metrics = tmp_path / "out" / "attempts" / "metrics-1.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 0, what="the first step", seconds=300)
    os.kill(driver.pid, signal.SIGINT)
    told, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert b"all processes of the run were ended" in told
    wait_until(lambda: marked(mark) == [], what="the end of the run's processes", seconds=60)


def test_an_adapter_is_trained_alone_and_merged(policy: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "lora"
    rlenv("sft", str(data), "--model", str(policy), "-o", str(out), *STEPS, "--lora", "8", "--lr", "1e-2")
    assert losses(out)[-1] < losses(out)[0]
    before, after = weights(policy), weights(out / "trained")
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert not any("embed" in name or "norm" in name for name in changed)


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def test_the_time_limit_ends_a_run_and_what_it_saved_is_kept(policy: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "limited"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "rlenv", "sft", str(data), "--model", str(policy), "-o", str(out), "--steps", "100000",
         "--save-every", "1", "--time-limit", "60"],
        env=ENV, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "stopped at the time limit" in done.stdout
    assert time.monotonic() - began < 250
    if any((out / "checkpoints").glob("global_step_*")):
        assert json.loads((out / "summary.json").read_text())["trained_step"] >= 1
