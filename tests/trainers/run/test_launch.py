from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from rlenv_train.guard import RUN_MARK, Segments
from rlenv_train.launch import Ending, run_to_end
from tests.support.waiting import wait_until

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
        stop=tmp_path / "stop",
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


@pytest.mark.slow
def test_a_run_is_stopped_at_its_limit_with_its_daemons(tmp_path: Path) -> None:
    def until_it_is_up(seconds: float) -> None:
        wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", what="it is up")

    ending, daemon = run(tmp_path, "time.sleep(600)", limit=0.0, on_poll=until_it_is_up)
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


@pytest.mark.slow
def test_a_file_stops_a_run_like_an_interrupt(tmp_path: Path) -> None:
    def ask(seconds: float) -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            (tmp_path / "stop").touch()

    ending, daemon = run(tmp_path, "time.sleep(600)", on_poll=ask)
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


KILLED = """
import os, pathlib, sys
sys.path[:0] = {paths!r}
from rlenv_train.guard import RUN_MARK, Segments
from rlenv_train.launch import run_to_end
folder = pathlib.Path(sys.argv[1])
run_to_end(
    [sys.executable, "-c", {driver!r}, str(folder / "pid"), "{{ray_dir}}"],
    log=folder / "log", environment=os.environ, time_limit_s=300, on_poll=lambda seconds: None,
)
"""

# The daemon has an environment of its own, as a tool's sandbox has, and Ray's folder is told to the test.
OWN_ENVIRONMENT = """
import pathlib, subprocess, sys, time
code = "import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
pathlib.Path(sys.argv[1]).with_name("ray").write_text(sys.argv[2])
pathlib.Path(sys.argv[1] + ".new").write_text(f"{child.pid} {__import__('os').getpid()}")
pathlib.Path(sys.argv[1] + ".new").rename(sys.argv[1])
time.sleep(600)
"""


@pytest.mark.slow
def test_a_killed_driver_takes_the_whole_run_along(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    script = KILLED.format(paths=[str(root), str(root / "trainers")], driver=OWN_ENVIRONMENT)
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    try:
        wait_until((tmp_path / "pid").exists, what="it is up")
        below = psutil.Process(driver.pid).children(recursive=True)  # veRL, its daemon and the guard
    finally:
        driver.kill()
        driver.wait()
    daemon, verl = map(int, (tmp_path / "pid").read_text().split())
    assert {daemon, verl} < {process.pid for process in below}
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []
    wait_until(lambda: not Path((tmp_path / "ray").read_text()).exists(), what="Ray's folder is removed")


def test_verl_killed_is_a_failed_run_that_leaves_nothing(tmp_path: Path) -> None:
    ending, daemon = run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (ending.how, ending.code) == ("failed", -signal.SIGKILL)
    assert is_gone(daemon)


def test_the_guard_goes_when_the_run_is_over(tmp_path: Path) -> None:
    before = {process.pid for process in psutil.Process().children()}
    run(tmp_path, "sys.exit(0)")
    assert {process.pid for process in psutil.Process().children()} <= before


# As Ray's workers do: it makes shared memory and ends without a chance to remove it.
SEGMENT = """
import os, pathlib, sys, time
from multiprocessing import resource_tracker, shared_memory
made = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(made._name, "shared_memory")
pathlib.Path(sys.argv[1]).write_text(made.name)
# Until it has been seen, as each is that lives a moment.
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
{then}
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
@pytest.mark.parametrize("then", ["os._exit(0)", "os.kill(os.getpid(), 9)", "time.sleep(600)"])
def test_shared_memory_of_a_run_is_gone_with_it_and_that_of_others_is_not(tmp_path: Path, then: str) -> None:
    name, seen = tmp_path / "name", tmp_path / "seen"
    others = shared_memory.SharedMemory(create=True, size=4096)
    looks = []

    def poll(seconds: float) -> None:
        # Looked for before each poll: at the second one after the name stood there, it was surely seen.
        looks.extend([seconds] * name.exists())
        if len(looks) >= 2:
            seen.touch()
            if "sleep" in then:
                raise KeyboardInterrupt  # the run is stopped while the driver lives

    try:
        run_to_end(
            [sys.executable, "-c", SEGMENT.format(then=then), str(name), str(seen)],
            log=tmp_path / "log",
            environment=os.environ,
            time_limit_s=600.0,
            on_poll=poll,
        )
        assert not (Path("/dev/shm") / name.read_text()).exists()
        assert (Path("/dev/shm") / others.name).exists()
    finally:
        others.close()
        others.unlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
def test_shared_memory_that_a_living_process_has_is_not_removed(tmp_path: Path) -> None:
    name, seen = tmp_path / "name", tmp_path / "seen"
    held: list[shared_memory.SharedMemory] = []

    def poll(seconds: float) -> None:
        if name.exists() and name.read_text() and not held:
            held.append(shared_memory.SharedMemory(name.read_text()))
        elif held:
            seen.touch()

    script = SEGMENT.format(then="os._exit(0)")
    command = [sys.executable, "-c", script, str(name), str(seen)]
    run_to_end(command, log=tmp_path / "log", environment=os.environ, time_limit_s=600.0, on_poll=poll)
    try:
        assert (Path("/dev/shm") / held[0].name).exists()
    finally:
        held[0].close()
        held[0].unlink()


MAPPING = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="address spaces cannot be read here")
def test_shared_memory_that_is_gone_before_it_was_asked_for_hides_no_other(tmp_path: Path) -> None:
    segment = tmp_path / "psm_of_the_run"
    segment.write_bytes(bytes(4096))
    # Where it leads to nothing, its owner cannot be asked for: as of a file that is removed after the folder was read.
    (tmp_path / "psm_gone").symlink_to(tmp_path / "nothing")
    mark = "a mark of this test"
    command = [sys.executable, "-c", MAPPING, str(segment)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, RUN_MARK: mark}) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            segments = Segments(mark, folder=str(tmp_path))
            segments.look()
        finally:
            process.kill()
    segments.remove()
    assert not segment.exists()
