"""Runs that are killed and taken up again, with real veRL."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.kept import held_out
from tests.support.waiting import wait_until
from tests.verl_runs.driving import SMALL, lines, make_policy, marked, started, train, trained

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]

STEPS, EVERY = 7, 2


@pytest.fixture(scope="module")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), "arithmetic")


def arguments(out: Path, policy: Path, *more: str) -> list[str]:
    own = ["--model", str(policy), "--steps", str(STEPS), "--save-every", str(EVERY), "-o", str(out)]
    # The second epoch begins in the middle: 5 tasks of 4 prompts a step leave the data loader's order to its state.
    return ["arithmetic", *own, *SMALL, "trainer.test_freq=2", "--set", "tasks.train.limit=13", *more]


def steps_of(out: Path) -> list[int]:
    return [entry["step"] for entry in lines(out / "metrics.jsonl")]


@pytest.mark.parametrize("more", [(), ("--set", "tasks.train.order=task.question")], ids=["drawn", "in an order"])
def test_a_killed_run_goes_on_and_trains_nothing_twice(
    tmp_path: Path, tiny_policy: Path, more: tuple[str, ...]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(arguments(whole, tiny_policy, *more), tmp_path / "whole.log") == 0
    if more:
        asked = [[task for _, task in tasks] for _, tasks in trained(whole)]  # the last row of 13 fills no step
        assert asked == [[4 * (step % 3) + place for place in range(4)] for step in range(STEPS)]

    with started(arguments(cut, tiny_policy, *more), tmp_path / "cut.log") as (driver, mark):
        # Past a checkpoint (4) and into a step that has to be trained anew.
        wait_until(lambda: max(steps_of(cut), default=0) >= 5, what=(tmp_path / "cut.log").read_text())
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        wait_until(lambda: marked(mark) == [], what="the end of the run's processes", seconds=60)
    before = {entry["step"]: entry for entry in lines(cut / "attempts" / "metrics-1.jsonl")}

    assert train(["--resume", str(cut)], tmp_path / "cut.log") == 0
    run = json.loads((cut / "run.json").read_text())
    from_step = run["attempts"][1]["from_step"]
    assert 4 <= from_step < STEPS

    # The same tasks in the same steps as the run that nobody disturbed, each step once.
    assert trained(cut) == trained(whole)
    assert [step for step, _ in trained(cut)] == list(range(1, STEPS + 1))
    assert len({entry["step"] for entry in lines(cut / "trained.jsonl")}) == STEPS
    assert len(lines(cut / "trained.jsonl")) == 4 * STEPS

    # The curve goes on: each step is logged once, and those up to the checkpoint stand as they were.
    logged = [entry["step"] for entry in lines(cut / "metrics.jsonl") if "timing_s/step" in entry["data"]]
    assert logged == [step for step in range(1, STEPS + 1) if step != from_step or from_step in before]
    kept = [entry for entry in lines(cut / "metrics.jsonl") if entry["step"] < from_step]
    assert kept == [before[entry["step"]] for entry in kept]
    summary, undisturbed = (json.loads((out / "summary.json").read_text()) for out in (cut, whole))
    for told in (summary, undisturbed):
        assert [entry["step"] for entry in told["held_out_success"]] == [0, 2, 4, 6, 7]
    for step in (0, 2, 4, 6, 7):
        assert len(held_out(cut, step=step, mode="greedy")) == 4

    # What is finished has nothing left to do.
    assert train(["--resume", str(cut)], tmp_path / "cut.log") == 2
    assert "--steps N" in (tmp_path / "cut.log").read_text().splitlines()[-1]

    # The last checkpoint is validated by itself, in a folder of its own.
    assert train(["--resume", str(cut), "--eval", "-o", str(tmp_path / "eval")], tmp_path / "cut.log") == 0
    told = json.loads((tmp_path / "eval" / "summary.json").read_text())
    assert told["held_out_success"][-1]["greedy"] == summary["held_out_success"][-1]["greedy"]
    assert [entry["step"] for entry in told["held_out_success"]] == [STEPS]
    assert steps_of(cut)[-1] == STEPS


def test_tasks_are_asked_by_what_was_measured_of_them_also_after_a_restart(tmp_path: Path, tiny_policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    order = ("--set", "tasks.train.order=-measured.reward")  # what pays most comes first
    given = arguments(out, tiny_policy, *order)
    given[given.index("--steps") + 1] = "4"
    assert train(given, log) == 0, log.read_text()[-3000:]
    assert train(["--resume", str(out), "--steps", str(STEPS)], log) == 0, log.read_text()[-3000:]

    entries = lines(out / "trained.jsonl")
    assert len(entries) == 4 * STEPS
    asked = [[task for _, task in tasks] for _, tasks in trained(out)]
    assert asked[:3] == [[4 * step + place for place in range(4)] for step in range(3)]  # nothing is measured yet
    assert asked[3:6] != asked[:3]
    for step in range(4, STEPS + 1):  # 4 is the last of the first attempt
        known = [entry for entry in entries if entry["step"] < step]
        sums = {task: [entry for entry in known if entry["task"] == task] for task in range(13)}
        means = {
            task: sum(one["reward"] for one in some) / max(1, sum(one["valid"] for one in some))
            for task, some in sums.items()
        }
        before = {task for tasks in asked[(step - 1) // 3 * 3 : step - 1] for task in tasks}
        wanted = sorted(set(range(13)) - before, key=lambda task: (-means[task], task))[:4]
        assert asked[step - 1] == sorted(wanted)


def test_verls_own_driver_killed_ends_the_run_with_a_way_on(tmp_path: Path, tiny_policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    with started(arguments(out, tiny_policy), log) as (driver, mark):
        wait_until(lambda: bool(steps_of(out)), what="the first validation")
        verl = [
            process for process in psutil.Process(driver.pid).children() if "main_ppo" in " ".join(process.cmdline())
        ]
        os.kill(verl[0].pid, signal.SIGKILL)
        assert driver.wait(timeout=60) == 1
        assert marked(mark) == []
    assert f"rlenv train --resume {out}" in log.read_text()


def test_an_interrupt_leaves_nothing_and_can_be_taken_up(tmp_path: Path, tiny_policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    with started(arguments(out, tiny_policy), log) as (driver, mark):
        wait_until(lambda: max(steps_of(out), default=0) >= 2, what="the second step")
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=60) == 130
        assert marked(mark) == []
    assert "interrupted" in log.read_text()
    assert json.loads((out / "summary.json").read_text())["ending"]["how"] == "interrupted"
