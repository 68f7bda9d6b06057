"""Where the peers are, and scripts that are played in them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent / "scripts"


def peer(name: str) -> Path:
    """The Python of a peer's environment; a test without it is skipped, and fails where CI is set. Where `RLENV_PEER`
    names one, tests of the others are skipped."""
    if (only := os.environ.get("RLENV_PEER")) and name != only:
        pytest.skip(f"only the peer {only} is played")
    python = Path(os.environ.get("RLENV_PEERS", ROOT / ".peers")) / name / "bin" / "python"
    if not python.is_file():
        why = f"the peer {name} is not installed; run: make peers PEER={name}"
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    return python


def run(
    name: str, command: list[str], folder: Path, *, limit_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command of the peer, `python` or one in its `bin`, in a folder; what has not ended at the limit is."""
    bin = peer(name).parent
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'trainers'}", "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}
    hubs = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [str(bin / command[0]), *command[1:]]
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | hubs | path | environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=limit_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def play(name: str, script: str, folder: Path, *arguments: str, limit_s: float = 100, **environment: str) -> Any:
    """What tests/peers/scripts/SCRIPT says in the last line that it prints, which is JSON; the test fails with it."""
    done = run(name, ["python", str(SCRIPTS / script), *arguments], folder, limit_s=limit_s, **environment)
    assert done.returncode == 0, f"{script} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])
