"""`separate_async` killed in the middle and taken up again: prompts under way and episodes ahead are part of a run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.verl_runs.driving import SMALL, lines, marked, started, train, trained

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]

STEPS, EVERY, BATCH = 7, 2, 4
STALENESS = "training/off_policy/trajectory_staleness"
SPANS = "training/off_policy/trajectory_spans"


def arguments(out: Path, policy: Path, *, steps: int) -> list[str]:
    own = ["--model", str(policy), "--steps", str(steps), "--save-every", str(EVERY), "-o", str(out)]
    # More tasks than the run takes: each that is trained twice was fetched twice.
    return ["arithmetic", *own, *SMALL, "trainer.test_freq=-1", "trainer.val_before_train=false",
            "--set", "tasks.train.limit=64"]  # fmt: skip


def steps_of(out: Path) -> list[int]:
    return [entry["step"] for entry in lines(out / "metrics.jsonl")]


def test_a_killed_run_goes_on_with_what_was_under_way(tmp_path: Path, policy: Path) -> None:
    # The order of the data, which all modes share: a batch a step, and the one that this mode is ahead.
    order = tmp_path / "order"
    log = tmp_path / "log"
    assert train(arguments(order, policy, steps=STEPS + 1), log) == 0, log.read_text()[-3000:]
    fetched = {task for _, tasks in trained(order) for task in tasks}
    assert len(fetched) == BATCH * (STEPS + 1)

    cut = tmp_path / "cut"
    with started([*arguments(cut, policy, steps=STEPS), "--mode", "separate_async"], log) as (driver, mark):
        # Past a checkpoint (4) and into a step that has to be trained anew.
        wait_until(lambda: max(steps_of(cut), default=0) >= 5, what=log.read_text())
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        wait_until(lambda: marked(mark) == [], what="the end of the run's processes", seconds=60)
    assert train(["--resume", str(cut)], log) == 0, log.read_text()[-3000:]
    from_step = json.loads((cut / "run.json").read_text())["attempts"][1]["from_step"]
    assert 4 <= from_step < STEPS

    # Each step once, no task twice, none left out: what was fetched before the checkpoint and not yet trained comes
    # next, and the data goes on behind it.
    assert [step for step, _ in trained(cut)] == list(range(1, STEPS + 1))
    tasks = [task for _, tasks in trained(cut) for task in tasks]
    assert len(tasks) == len(set(tasks)) == BATCH * STEPS
    assert set(tasks) <= fetched

    figures = {entry["step"]: entry["data"] for entry in lines(cut / "metrics.jsonl")}
    assert sorted(step for step in figures if step > 0) == list(range(1, STEPS + 1))
    for step in range(from_step + 1, STEPS + 1):
        data = figures[step]
        assert data["rlenv/arithmetic/episodes"] == 16
        # Episodes that were finished before the kill are as old as they were; none is from a version to come.
        assert 0 <= data[f"{STALENESS}/min"] <= data[f"{STALENESS}/max"] <= 3
        assert 1 <= data[f"{SPANS}/min"] <= data[f"{SPANS}/max"] <= 4
    summary = json.loads((cut / "summary.json").read_text())
    assert summary["ending"]["how"] == "finished"
    assert summary["failed_episodes"] == 0
