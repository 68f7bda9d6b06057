"""What starts machines: the same promises by each program, a machine's memory as a whole, and nothing that is left."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.requirements import Requirement
from rlenv.resources.base import ResourceContext
from rlenv.tools.workspace.machine import MachineFailed
from rlenv.tools.workspace.resource import KIND, Workspace, WorkspaceSpec
from rlenv.tools.workspace.starters import OUTSIDE_ROOT, check_sandbox, list_cgroups, needs, sweep_folders
from tests.support.machines import assert_leaves_nothing, below, children, reachable  # noqa: F401 - a fixture

SANDBOXES = ("bubblewrap", "runc", "runsc")
Work = Callable[[Workspace], Awaitable[None]]


def opened(folder: Path, sandbox: str, work: Work, *, memory_mb: int = 512) -> None:
    if sandbox != "bubblewrap" and (shutil.which(sandbox) is None or os.geteuid() != 0):
        pytest.skip(f"needs {sandbox}, as root")

    async def main() -> None:
        spec = WorkspaceSpec.model_validate({"kind": "workspace", "sandbox": sandbox, "memory_mb": memory_mb})
        async with KIND.factory("machine", spec, CompileContext(base=folder)).open(ResourceContext()) as workspace:
            await work(workspace)

    asyncio.run(main())
    assert (children(), list_cgroups(f"rlenv-machine-{os.getpid()}-*")) == ([], [])


async def said(workspace: Workspace, command: str) -> str:
    ran = await workspace.run(command, 60)
    return ran.output.decode() + ran.why


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_shell_keeps_its_state_and_the_layer_takes_what_changes(reachable: Path, sandbox: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        assert await said(workspace, "cd /tmp; A=5; echo new > /app/file; chmod 4755 /app/file") == ""
        assert await said(workspace, "echo $PWD $A $UID") == "/tmp 5 0\n"
        assert await said(workspace, "exit 3") == "ended"
        assert await said(workspace, "cat file; echo [$A]") == "new\n[]\n"
        assert not workspace.is_cut
        status = (workspace.layer / "app" / "file").stat()
        assert status.st_uid == (OUTSIDE_ROOT if os.geteuid() == 0 else os.geteuid())

    opened(reachable, sandbox, work)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_one_more_machine_starts_however_many_files_are_open(reachable: Path, sandbox: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        held = [os.open("/dev/null", os.O_RDONLY)]
        try:
            for most in range(246, 258):  # runsc takes 256 to 258 for itself
                while held[-1] < most:
                    held.append(os.open("/dev/null", os.O_RDONLY))
                assert await said(workspace, "echo here; exit") == "here\nended"
                assert not workspace.is_cut
        finally:
            for fd in held:
                os.close(fd)

    opened(reachable, sandbox, work)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_nothing_is_mounted_made_or_asked_of_the_kernel_inside(reachable: Path, sandbox: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        for command in ("mount -t tmpfs x /mnt", "echo x > /usr/bin/x", "echo h > /proc/sys/kernel/core_pattern"):
            assert (await workspace.run(command, 60)).code != 0
        assert await said(workspace, "cat /proc/net/dev | grep -vc 'lo:\\|Inter\\|face'") == "0\n"
        assert "rlenv" not in await said(workspace, "cat /proc/self/cgroup")

    opened(reachable, sandbox, work)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_one_that_is_killed_in_a_command_lost_it_and_says_so(reachable: Path, sandbox: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("echo kept > file", 60)
        running = asyncio.ensure_future(workspace.run("sleep 1000", 60))
        await asyncio.sleep(0)
        os.kill(children()[0], signal.SIGKILL)
        with pytest.raises(MachineFailed):
            await running
        assert workspace.is_cut
        assert await said(workspace, "cat file") == "kept\n"

    opened(reachable, sandbox, work)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("act", ["kill -9 $$", "kill -9 -1", "kill -9 1; kill -9 $$", "exec >&-; exit"])
def test_no_policy_makes_its_own_end_look_like_the_hosts(reachable: Path, sandbox: str, act: str) -> None:  # noqa: F811
    async def work(workspace: Workspace) -> None:
        await workspace.run("echo kept > file", 60)
        await workspace.run(act, 2)
        assert await said(workspace, "cat file") == "kept\n"
        assert not workspace.is_cut

    opened(reachable, sandbox, work)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", ["bubblewrap", "runc"])
def test_memory_that_no_process_holds_does_not_make_it_so_either(reachable: Path, sandbox: str) -> None:  # noqa: F811
    if os.geteuid() != 0:
        pytest.skip("needs cgroups that can be written")
    fill = "echo x > /dev/shm/a; for i in 1 2 3 4 5 6 7 8 9; do exec dd if=/dev/zero of=/dev/shm/a bs=4k; done"

    async def work(workspace: Workspace) -> None:
        for _ in range(6):
            await workspace.run(fill, 60)
        assert not workspace.is_cut

    opened(reachable, sandbox, work, memory_mb=16)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_memory_is_that_of_all_processes_together(reachable: Path, sandbox: str) -> None:  # noqa: F811
    if os.geteuid() != 0:
        pytest.skip("needs cgroups that can be written")
    take = "python3 -c 'import time; x = bytearray(90_000_000); time.sleep(1000)' &"

    async def work(workspace: Workspace) -> None:
        await workspace.run("echo kept > file", 60)
        ran = await workspace.run(f"for i in 1 2 3 4 5; do {take} done; wait -n; echo over", 60)
        assert ran.output.endswith(b"over\n") or ran.why == "ended", ran
        assert "kept\n" in await said(workspace, "jobs -p | xargs -r kill -9; cat file")
        assert not workspace.is_cut

    opened(reachable, sandbox, work, memory_mb=300)


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_all_processes_of_a_machine_have_one_share_of_the_processor(reachable: Path, sandbox: str) -> None:  # noqa: F811
    if os.geteuid() != 0:
        pytest.skip("needs cgroups that can be written")

    def shares() -> list[str]:
        lines = [Path(f"/proc/{pid}/cgroup").read_text("utf-8") for one in children() for pid in below(one)]
        return [found[0] for text in lines if (found := re.search(r"^\d+:cpu[:,].*|\A0::.*", text, re.MULTILINE))]

    async def work(workspace: Workspace) -> None:
        await workspace.run("(setsid sleep 1000 > /dev/null 2>&1 &)", 60)
        assert all(workspace.folder.name in line for line in shares()), shares()

    opened(reachable, sandbox, work)


DRIVER = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from rlenv.language.kinds import CompileContext
from rlenv.language.requirements import Requirement
from rlenv.resources.base import ResourceContext
from rlenv.tools.workspace.resource import KIND, WorkspaceSpec

async def main():
    spec = WorkspaceSpec.model_validate({"kind": "workspace", "sandbox": sys.argv[1]})
    async with KIND.factory("machine", spec, CompileContext(base=Path("."))).open(ResourceContext()) as workspace:
        await workspace.run("true", 60)
        print(workspace.folder, flush=True)
        await workspace.run("(setsid sleep 1000 &) ; sleep 1000", 2000)

asyncio.run(main())
"""


@pytest.mark.sandbox
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_nothing_is_left_where_rlenv_is_killed(reachable: Path, sandbox: str) -> None:  # noqa: F811
    if sandbox != "bubblewrap" and (shutil.which(sandbox) is None or os.geteuid() != 0):
        pytest.skip(f"needs {sandbox}, as root")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, sandbox], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        folder = Path(driver.stdout.readline().strip())
    assert_leaves_nothing(driver, folder)


def test_several_processes_may_sweep_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = os.stat("/proc/self/ns/pid").st_ino
    for number in range(20):
        (tmp_path / f"rlenv-machine-{2**22 + 1}-0-{here}-{number}").mkdir()
    with ThreadPoolExecutor(4) as threads:
        for sweep in [threads.submit(sweep_folders) for _ in range(4)]:
            sweep.result()
    assert list(tmp_path.iterdir()) == []


async def probed(one: Requirement) -> str:
    return await one.probe()


def test_what_is_missing_is_said_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    for sandbox, package in (("runsc", "runsc"), ("runc", "runc"), ("bubblewrap", "bubblewrap")):
        if sandbox != "bubblewrap":  # that it works is found out once
            with pytest.raises(UsageError) as failed:
                check_sandbox(sandbox)
            assert f"apt-get install {package}" in str(failed.value)
        (one,) = needs(WorkspaceSpec.model_validate({"kind": "workspace", "sandbox": sandbox}), Path())
        assert f"apt-get install {package}" in asyncio.run(probed(one))
