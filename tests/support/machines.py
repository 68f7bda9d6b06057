"""Machines of this computer's own programs, and episodes that are played in one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlenv.concurrency.processes import only_child
from rlenv.episodes.environment import load
from rlenv.language.kinds import CompileContext
from rlenv.resources.base import ResourceContext
from rlenv.tools.workspace.resource import KIND, WorkspaceResource, WorkspaceSpec
from rlenv.tools.workspace.starters import list_cgroups, sweep_folders
from rlenv.trajectory import Trajectory
from tests.support.waiting import wait_until

TEST = """
right=0
[ "$(printf '1\\n2\\n3\\n' | python3 /app/total.py)" = 6 ] && right=$((right + 1))
[ "$(printf -- '-5\\n12\\n' | python3 /app/total.py)" = 7 ] && right=$((right + 1))
python3 -I -c "print($right / 2)" > /logs/verifier/reward.txt
"""
SOLVE = "printf 'import sys\\nprint(sum(map(int, sys.stdin)))\\n' > /app/total.py"


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new folder that other users can reach: who is root inside is somebody else outside."""
    folder = Path(tempfile.mkdtemp(prefix="rlenv-test-"))
    folder.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def written(folder: Path, timeout_s: float = 60, **keys: Any) -> Path:
    """A spec whose task is to write a program that sums numbers; `keys` are the reward's.

    `timeout_s` is a command's: none that ends by itself meets it on a slow machine.
    """
    (folder / "tests").mkdir()
    (folder / "tests" / "test.sh").write_text(TEST, encoding="utf-8")
    reward = {"kind": "workspace", "resource": "machine", "tests": "tests", "time_s": 20, **keys}
    spec = {
        "rlenv": 1,
        "name": "sum",
        "tasks": {"test": {"rows": [{"id": "a"}]}},
        "prompt": {"user": "Write /app/total.py, which prints the sum of the numbers that it reads."},
        "resources": {"machine": {"kind": "workspace", "disk_mb": 8}},
        "tools": {"bash": {"kind": "bash", "resource": "machine", "timeout_s": timeout_s}},
        "limits": {"turns": 12},
        "rewards": {"solved": reward},
    }
    (folder / "env.yaml").write_text(json.dumps(spec), encoding="utf-8")
    return folder / "env.yaml"


def played(spec: Path, acts: Sequence[str | Callable[[Any], Awaitable[None]]]) -> tuple[Trajectory, list[str]]:
    """An episode of commands, and what each showed; a function is called with the episode's resources instead."""

    async def play() -> tuple[Trajectory, list[str]]:
        async with load(spec) as environment, environment.start(task=0, split="test", seed=1) as episode:
            for act in acts:
                if not isinstance(act, str):
                    await act(episode.resources["machine"])
                    continue
                call = json.dumps({"name": "bash", "arguments": {"command": act}})
                await episode.step(f"<tool_call>\n{call}\n</tool_call>")
            await episode.step("Done.")
            turns = episode.trajectory.turns
            return episode.trajectory, [result.text for turn in turns for result in turn.results]

    return asyncio.run(play())


def killed_at_first(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str, times: int = 1) -> None:
    """Programs of these names that are killed at their first calls, as by somebody outside."""
    programs, marks = folder / "programs", folder / "marks"
    programs.mkdir()
    marks.mkdir()
    marks.chmod(0o777)
    for name in names:
        dies = "".join(f"mkdir {marks}/{name}{time} 2>/dev/null && kill -9 $$\n" for time in range(times))
        text = f'#!/bin/sh\n{dies}exec {shutil.which(name)} "$@"\n'
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")


async def killed_at(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: int, times: int) -> None:
    """At the first calls of a program that starts machines, the process that is killed from outside.

    `place` counts from the outermost (0) to the program itself (2).
    """
    programs, marks = folder / "programs", folder / "marks"
    programs.mkdir()
    marks.mkdir()
    marks.chmod(0o777)
    waits = "".join(f"mkdir {marks}/{time} 2>/dev/null && exec sleep 1000\n" for time in range(times))
    (programs / name).write_text(f'#!/bin/sh\n{waits}exec {shutil.which(name)} "$@"\n', encoding="utf-8")
    (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for time in range(times):
        while not (marks / str(time)).exists():  # noqa: ASYNC110 - told by files alone
            await asyncio.sleep(0.01)
        pid = children()[0]
        for _ in range(place):
            pid = only_child(pid) or 0
        assert pid
        os.kill(pid, signal.SIGKILL)


def below(pid: int) -> list[int]:
    """All processes that descend from one."""
    found = [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    return found + [deep for one in found for deep in below(one)]


WAITS = b"sleep\x001234\x00"
"""The command line of `sleep 1234`."""


def inside(word: bytes) -> list[int]:
    """The processes in all machines in whose command lines a word stands."""
    found = []
    for pid in (pid for one in children() for pid in below(one)):
        with contextlib.suppress(OSError):  # it has ended
            found += [pid] * (word in Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def children() -> list[int]:
    """The processes that this one has started for machines, the outermost of each."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text(encoding="ascii").split()]
    words = (b"--json-status-fd", b"--bundle")
    return [pid for pid in pids if any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in words)]


def compiled(base: Path, **keys: Any) -> WorkspaceResource:
    spec = WorkspaceSpec.model_validate({"kind": "workspace", **keys})
    resource = KIND.factory("machine", spec, CompileContext(base=base))
    assert isinstance(resource, WorkspaceResource)
    return resource


def opened(base: Path, work: Any, *, task: dict[str, Any] | None = None, **keys: Any) -> Path:
    """Plays `work` on a workspace; its folder, which is gone."""

    async def main() -> Path:
        async with compiled(base, **keys).open(ResourceContext(task=task or {})) as workspace:
            await work(workspace)
            folder: Path = workspace.folder
        return folder

    folder = asyncio.run(main())
    assert not folder.exists()
    return folder


def assert_leaves_nothing(driver: subprocess.Popen[Any], folder: Path) -> None:
    """Kills a process that has machines in a folder: no process, mount, folder or cgroup of theirs is left."""
    running = below(driver.pid)
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}/status").exists() for pid in running), what="its processes' end")
    assert str(folder) not in Path("/proc/mounts").read_text(encoding="utf-8")
    sweep_folders()
    assert (folder.exists(), list_cgroups(f"{folder.name}*")) == (False, [])
