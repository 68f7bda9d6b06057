"""Starts `rlenv train` as a user does, and looks for what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "RLENV_TEST_MARK"
STAND_INS = (Path(__file__).parent, ROOT / "tests" / "vllm_runs")

SMALL = (
    "--validation-tasks",
    "4",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
)


def _heed_interrupts() -> None:
    # A shell's background jobs ignore SIGINT, and what they start inherits that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def started(arguments: Sequence[str], log: Path, *, knows: str = "") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`rlenv train` with `arguments`, and the mark of all its processes; nothing of it is left after the block.

    `knows` is a module that its own process imports first, as a plug-in would be.
    """
    mark = uuid4().hex
    command = ["-m", "rlenv_verl.run.train"]
    if knows:
        command = ["-c", f"import sys, {knows}; from rlenv_verl.run.train import main; sys.exit(main(sys.argv[1:]))"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *command, *arguments],
            env={
                **os.environ,
                # These folders too: a run's processes import stand-ins from them, by names that no package has.
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "trainers", *STAND_INS))),
                "PYTHONWARNINGS": "default",
                MARK: mark,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        try:
            yield process, mark
        finally:
            for left in [process, *marked(mark)]:
                try:
                    left.kill()
                    left.wait(timeout=10)
                except (psutil.Error, ProcessLookupError):
                    continue


def train(arguments: Sequence[str], log: Path, *, seconds: float = 400.0, knows: str = "") -> int:
    """Runs `rlenv train` to its end and checks that no process is left; the exit status."""
    with started(arguments, log, knows=knows) as (process, mark):
        code = process.wait(timeout=seconds)
        assert marked(mark) == [], "processes were left behind"
    return code


def make_policy(folder: Path, *specs: str) -> Path:
    """A tiny policy that has hardly learned anything: its format is what these runs need."""
    from rlenv.episodes.environment import load
    from rlenv_verl.tiny.make import WarmupSettings, make_tiny_policy

    settings = WarmupSettings(steps=12, golds=40, clean=60, mixed=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_tiny_policy([load(spec) for spec in specs], folder, seed=0, settings=settings)
    return folder


def marked(mark: str) -> list[psutil.Process]:
    """The processes of one start, dead ones left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a .jsonl file, without a last line that was cut; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def trained(run: Path) -> list[tuple[int, list[tuple[str, int]]]]:
    """The tasks of each step, in the order of steps."""
    steps: dict[int, list[tuple[str, int]]] = {}
    for entry in lines(run / "trained.jsonl"):
        steps.setdefault(entry["step"], []).append((entry["spec"], entry["task"]))
    return [(step, sorted(tasks)) for step, tasks in sorted(steps.items())]
