"""A run on a Ray cluster of two nodes, whose workers have nothing but what was shipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import yaml

from tests.support.waiting import wait_until
from tests.verl_runs.driving import MARK, ROOT, SMALL, lines, make_policy, marked, started

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(1200)]


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of two Ray nodes; exactly what was started for them is ended."""
    mark = uuid4().hex
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("cluster_of_two.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            MARK: mark,
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        address = ""
        while ":" not in address:  # Ray says other things first
            address = program.stdout.readline()
            assert address, "the cluster did not start"
        yield address.strip()
    finally:
        program.stdin.close()
        try:
            program.wait(timeout=30)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
        program.stdout.close()
        for left in marked(mark):
            try:
                left.kill()
            except psutil.Error:
                continue


def spec_elsewhere(folder: Path) -> Path:
    """The arithmetic environment in a folder of its own, on top of a base file."""
    folder.mkdir()
    shutil.copy(ROOT / "specs/arithmetic.yaml", folder / "base.yaml")
    shutil.copy(ROOT / "specs/arithmetic_tools.py", folder)
    shutil.copytree(ROOT / "specs/data/arithmetic", folder / "data/arithmetic")
    (folder / "own.yaml").write_text("rlenv: 1\nextends: base.yaml\nname: own\n")
    return folder / "own.yaml"


def test_a_run_joins_a_cluster_and_its_workers_use_what_was_shipped(cluster: str, tmp_path: Path) -> None:
    policy = make_policy(tmp_path / "policy", "arithmetic")
    spec = spec_elsewhere(tmp_path / "original")
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = [str(spec), "--model", str(policy), "--steps", "2", "-o", str(out), "--ray-address", cluster]
    with started([*arguments, *SMALL, "trainer.test_freq=2"], log) as (driver, mark):
        wait_until((out / "verl.log").exists, what="the start of veRL")
        spec.parent.rename(tmp_path / "moved")
        assert driver.wait(timeout=500) == 0, log.read_text()[-3000:]
        assert marked(mark) == []
    (loop,) = yaml.safe_load((out / "agent_loop.yaml").read_text())
    assert loop["spec"] == "specs/own/own.yaml"
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["steps"], summary["failed_episodes"]) == (2, 0)
    assert [entry["step"] for entry in summary["held_out_success"]] == [0, 2]

    # The cluster is still there for another run; that one's driver is killed, and its workers end with it.
    (tmp_path / "moved").rename(spec.parent)
    second = tmp_path / "second"
    arguments[arguments.index(str(out))] = str(second)
    with started([*arguments, *SMALL, "trainer.test_freq=2"], log) as (driver, mark):
        wait_until(lambda: (second / "metrics.jsonl").exists() and workers_of(second) != [], what="the workers")
        wait_until(lambda: bool(lines(second / "metrics.jsonl")), what="the first validation")
        driver.kill()
        driver.wait()
        wait_until(lambda: marked(mark) == [], what="the end of the driver's processes", seconds=60)
        wait_until(lambda: workers_of(second) == [], what="the end of the cluster's workers", seconds=60)


def workers_of(run: Path) -> list[int]:
    """The processes on the cluster that work for a run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("VERL_FILE_LOGGER_PATH", "").startswith(f"{run}/"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
