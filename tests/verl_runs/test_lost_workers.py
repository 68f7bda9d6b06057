"""Processes of a run that are killed, as Ray's memory monitor and the kernel do: the run ends and says which."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.verl_runs.driving import SMALL, lines, make_policy, marked, started

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), "arithmetic")


@pytest.mark.parametrize(
    ("title", "said"),
    [
        ("ray::AgentLoopWorkerTQ", "the agent loop worker 0 died"),
        ("ray::CpuServerActor", "rlenv_transformers_cpu_0"),
        ("ray::SimpleStorageUnit", "the queue's storage"),
        ("ray::TransferQueueController", "the controller of the queue of episodes died"),
        ("ray::WorkerDict", "The actor is dead"),
    ],
)
def test_a_run_ends_with_the_reason_where_one_of_its_workers_is_killed(
    tmp_path: Path, tiny_policy: Path, title: str, said: str
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    own = ["arithmetic", "--model", str(tiny_policy), "--steps", "2000", "-o", str(out)]
    with started([*own, *SMALL, "trainer.test_freq=-1", "trainer.val_before_train=false"], log) as (driver, mark):
        wait_until(lambda: len(lines(out / "metrics.jsonl")) >= 2, what="two steps", seconds=900)
        (worker,) = [one for one in marked(mark) if one.cmdline() and one.cmdline()[0].startswith(title)]
        os.kill(worker.pid, signal.SIGKILL)
        assert driver.wait(timeout=600) == 1
        assert marked(mark) == []
    assert json.loads((out / "summary.json").read_text())["ending"]["how"] == "failed"
    # In what the user sees, not only in veRL's log.
    assert said in log.read_text()
