from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest

from rlenv_verl.launch import Ending, run_to_end

# A driver that starts a daemon in a session of its own, as Ray does, and names it in a file.
DRIVER = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
print("driver is up", flush=True)
{then}
"""


def run(tmp_path: Path, then: str, *, limit: float = 60.0, on_poll: object = None) -> tuple[Ending, int]:
    pid_file = tmp_path / "pid"
    ending = run_to_end(
        [sys.executable, "-c", DRIVER.format(then=then), str(pid_file)],
        log=tmp_path / "log",
        environment=os.environ,
        time_limit_s=limit,
        on_poll=on_poll if callable(on_poll) else lambda seconds: None,
    )
    return ending, int(pid_file.read_text())


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("then", "how"), [("sys.exit(0)", "finished"), ("sys.exit(3)", "failed")])
def test_daemons_end_with_their_driver(tmp_path: Path, then: str, how: str) -> None:
    ending, daemon = run(tmp_path, then)
    assert ending.how == how
    assert is_gone(daemon)
    assert "driver is up" in (tmp_path / "log").read_text()


def test_a_run_is_stopped_at_its_limit_with_its_daemons(tmp_path: Path) -> None:
    ending, daemon = run(tmp_path, "time.sleep(600)", limit=1.5)
    assert ending.how == "time_limit"
    assert is_gone(daemon)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, sign: signal.Signals) -> None:
    def interrupt(seconds: float) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            os.kill(os.getpid(), sign)

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals reach the main thread only")
    # A shell without job control starts what it puts in the background with SIGINT ignored, and Python keeps that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ending, daemon = run(tmp_path, "time.sleep(600)", on_poll=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ending.how == "interrupted"
    assert is_gone(daemon)


def test_rays_folder_is_given_and_removed(tmp_path: Path) -> None:
    script = "import pathlib, sys; p = pathlib.Path(sys.argv[1]); assert p.is_dir(); print(p)"
    ending = run_to_end(
        [sys.executable, "-c", script, "{ray_dir}"],
        log=tmp_path / "log",
        environment=os.environ,
        time_limit_s=60,
        on_poll=lambda seconds: None,
    )
    assert ending.code == 0
    assert not Path((tmp_path / "log").read_text().strip()).exists()
