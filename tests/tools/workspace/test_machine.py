"""One boot of a machine: what stays between commands, how each ends, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlenv.tools.workspace.images import prepare_image
from rlenv.tools.workspace.machine import WATCH_S, CommandEnd, Machine, MachineFailed, pause_s
from rlenv.tools.workspace.starters import MachineLimits, Start, chown
from tests.support.machines import reachable  # noqa: F401 - a fixture

pytestmark = pytest.mark.sandbox
Work = Callable[[Machine], Awaitable[None]]


async def never() -> bool:
    return False


def booted(folder: Path, work: Work, *, limits: MachineLimits | None = None) -> Path:
    """Plays `work` on a machine; the folder of what it changed."""
    layer, boot = folder / "layer", folder / "boot"
    for made in (layer, boot):
        made.mkdir()
        chown(made)

    async def main() -> None:
        image = prepare_image(None)
        limited = limits or MachineLimits()
        machine = Machine(Start(boot, [image.folder], layer, "/app", image.binds, {"WORD": "a b"}, limited), never)
        try:
            await machine.boot()
            await work(machine)
        finally:
            await machine.end()

    asyncio.run(main())
    return layer


async def said(machine: Machine, command: str, timeout_s: float = 30) -> str:
    ran = await machine.run(command, timeout_s)
    assert ran.why == ""
    return ran.output.decode()


def test_the_shell_keeps_its_folder_variables_and_jobs(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        assert await said(machine, "pwd; echo $WORD") == "/app\na b\n"
        await machine.run("cd /tmp; A=5; f() { echo f$A; }; sleep 1000 &", 30)
        assert await said(machine, 'pwd; f; kill -0 %1 && echo "it\'s there"') == "/tmp\nf5\nit's there\n"

    booted(reachable, work)


def test_a_command_is_read_as_it_was_written(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        assert await said(machine, "cat <<'END'\n'\"$x`\\\nEND\necho é") == "'\"$x`\\\né\n"
        assert (await machine.run("echo 'open", 30)).code not in (0, None)
        assert await said(machine, 'read line; echo "[$line]"') == "[]\n"
        assert await said(machine, f"echo {'x' * 100_000} | wc -c") == "100001\n"
        assert (await machine.run("exit_with() { return 3; }; exit_with", 30)).code == 3

    booted(reachable, work)


def test_of_a_long_output_the_ends_are_kept(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        ran = await machine.run("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last", 30)
        assert (ran.output[:6], ran.output[-6:]) == (b"first\n", b"\nlast\n")
        assert (len(ran.output), len(ran.output) + ran.dropped) == (65_536, 3_000_012)
        for size in (32_766, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537):
            ran = await machine.run(f"head -c {size} /dev/zero | tr '\\0' y", 30)
            assert (ran.code, len(ran.output) + ran.dropped, set(ran.output)) == (0, size, {ord("y")})
        assert await said(machine, "echo here") == "here\n"

    booted(reachable, work)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("sleep 1000", CommandEnd(None, b"", 0, "late")),
        ("echo a; sleep 1000 & wait", CommandEnd(None, b"a\n", 0, "late")),
        ("python3 -c 'while 1: pass'", CommandEnd(None, b"", 0, "late")),
        ("sh -c \"trap '' INT; while :; do sleep 1; done\"", CommandEnd(None, b"", 0, "late")),
        ("exit 3", CommandEnd(None, b"", 0, "ended")),
        ("kill -9 $$", CommandEnd(None, b"", 0, "ended")),
        ("exec true", CommandEnd(None, b"", 0, "ended")),
        ("exec >&-", CommandEnd(None, b"", 0, "cut")),
        ("trap '' INT; while :; do :; done", CommandEnd(None, b"", 0, "cut")),
    ],
)  # fmt: skip
def test_a_command_that_gives_no_status_says_why(reachable: Path, command: str, found: CommandEnd) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        ran = await machine.run(command, 1)
        if ran.why == "late":  # a shell may write that something was killed
            assert (ran.code, ran.output.startswith(found.output)) == (None, True)
            assert await said(machine, "echo $((1 + 1))") == "2\n"
        assert (ran.code, ran.why) == (found.code, found.why)

    booted(reachable, work)


def test_one_that_is_killed_from_outside_is_told_from_one_that_ends(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        running = asyncio.ensure_future(machine.run("echo here; sleep 1000", 30))
        await asyncio.sleep(0)
        first = _first_in(machine)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(MachineFailed) as failed:
            await running
        assert failed.value.is_cut
        assert machine.has_ended

    booted(reachable, work)


def _first_in(machine: Machine) -> int:
    """The process of bubblewrap, which what is inside cannot see."""
    found = subprocess.run(["pgrep", "-x", "bwrap"], capture_output=True, text=True, check=False).stdout.split()
    mine = [int(one) for one in found if f" {machine.pid} " in f" {' '.join(_parents(int(one)))} "]
    return mine[0] if mine else 0


def _parents(pid: int) -> list[str]:
    found: list[str] = []
    while pid > 1:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            break
        pid = int(fields[1])
        found.append(str(pid))
    return found


def test_nothing_inside_reaches_what_is_outside(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        assert await said(machine, "ls /proc | grep -c '^[0-9]'") in ("4\n", "5\n")
        assert (await machine.run("mount -t tmpfs none /mnt", 30)).code != 0
        assert (await machine.run("unshare --user true", 30)).code != 0
        assert (await machine.run("echo x > /usr/bin/x", 30)).code != 0
        assert (await machine.run("echo x > /proc/sys/kernel/core_pattern", 30)).code != 0
        assert await said(machine, "ls /sys/class/net 2>/dev/null | grep -v lo; cat /etc/shadow 2>&1 | wc -l") == "1\n"
        assert await said(machine, "ls -l /proc/self/fd | grep -vc 'pipe\\|null\\|/proc/\\|total'") == "0\n"

    booted(reachable, work)


def test_processes_and_files_are_bounded(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        many = "import subprocess; [subprocess.Popen(['sleep', '100']) for _ in range(50)]"
        ran = await machine.run(f'python3 -c "{many}"', 30)
        assert (ran.code, b"BlockingIOError" in ran.output) == (1, True)
        ran = await machine.run("pkill sleep; head -c 3000000 /dev/zero > /app/file; stat -c %s /app/file", 30)
        assert ran.output.endswith(b"\n2097152\n")

    booted(reachable, work, limits=MachineLimits(processes=24, disk_mb=2))


def test_the_layer_holds_what_changed_and_nothing_runs_afterwards(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        await machine.run("echo new > /app/file; mkdir -p /srv/x; (setsid sleep 7654321 &)", 30)

    layer = booted(reachable, work)
    assert (layer / "app" / "file").read_text() == "new\n"
    assert (layer / "srv" / "x").is_dir()
    assert not subprocess.run(["pgrep", "-f", "sleep 765432[1]"], capture_output=True, check=False).stdout
    assert str(reachable) not in Path("/proc/mounts").read_text(encoding="utf-8")


def test_it_comes_up_in_a_folder_of_any_name(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        await said(machine, "echo x > file")

    folder = reachable / "a b,c:d\\e\tf\n#\u2003é" / "machine"
    folder.mkdir(parents=True)
    assert (booted(folder, work) / "app" / "file").read_text() == "x\n"


def test_a_machine_without_its_image_does_not_come_up(reachable: Path) -> None:  # noqa: F811
    async def main() -> None:
        for name in ("layer", "boot"):
            (reachable / name).mkdir()
            chown(reachable / name)
        machine = Machine(Start(reachable / "boot", [reachable / "none"], reachable / "layer", "/app"), never)
        with pytest.raises(MachineFailed, match="did not come up") as failed:
            await machine.boot()
        assert not failed.value.is_cut

    asyncio.run(main())


def test_a_machine_that_lacks_open_files_outside_is_nobodys_doing_inside(reachable: Path) -> None:  # noqa: F811
    async def work(machine: Machine) -> None:
        (reachable / "other").mkdir()
        other = Machine(replace(machine.start, folder=reachable / "other"), never)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = os.listdir("/proc/self/fd")
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(held) + 4, hard))
        try:
            with pytest.raises(MachineFailed, match="Too many open files") as failed:
                await other.boot()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert failed.value.is_cut
        assert os.listdir("/proc/self/fd") == held

    booted(reachable, work)


def test_looks_at_its_files_take_a_tenth_of_the_time_however_many_there_are() -> None:
    assert [pause_s(took_s) for took_s in (0.0, 2.0, 1_000.0)] == [WATCH_S, 20.0, 30.0]
