"""A run whose environment is a server's, which is killed in the middle and started again: masked samples alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.verl_runs.driving import SMALL, lines, marked, started

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1500)]


@contextmanager
def served(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`rlenv serve arithmetic`, and its port."""
    command = [sys.executable, "-m", "rlenv", "serve", "arithmetic", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(re.findall("http://[0-9.]+:([0-9]+)", process.stdout.readline())[0])
        finally:
            process.kill()


def episodes(port: int) -> int:
    """How many episodes the server has opened."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        return int(json.loads(answer.read())["episodes"])


def test_a_server_that_is_killed_and_started_again_costs_masked_samples(tmp_path: Path, policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    with served() as (server, port):
        remote = f"run.remote=http://127.0.0.1:{port}"
        own = ["arithmetic", "--model", str(policy), "--steps", "3", "-o", str(out), remote]
        with started([*own, *SMALL, "trainer.test_freq=-1", "trainer.val_before_train=false"], log) as (driver, mark):
            wait_until(lambda: lines(out / "metrics.jsonl") != [], what="a step", seconds=900)
            opened = episodes(port)
            while episodes(port) == opened and driver.poll() is None:  # the next step: one has just begun
                time.sleep(0.01)
            server.kill()
            server.wait()
            with served(port):
                assert driver.wait(timeout=600) == 0, log.read_text()[-4000:]
            assert marked(mark) == []
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["ending"]["how"], summary["steps"], summary["lost_episodes"]) == ("finished", 3, 0)
    assert 1 <= summary["failed_episodes"] <= 16  # those that were open, of one step
    assert {reason.partition(":")[0] for reason in summary["failure_reasons"]} == {"remote"}
    assert summary["kept_episodes"] == 3 * 16
    command = [
        sys.executable,
        "-m",
        "rlenv",
        "rescore",
        str(out),
        "--spec",
        "arithmetic",
        "--max-invalid",
        "1",
        "--json",
    ]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert told["invalid"] == [summary["failed_episodes"]] * 2
    assert told["changes"] == []
    assert "masked, remote" in json.dumps(summary["training"])
