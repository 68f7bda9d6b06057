"""Machines: the cost of a boot, a command and an episode, many at once, what a killed rlenv leaves, what acts earn.

    python benchmarks/workspaces.py [--sandbox bubblewrap|runc|runsc] [--episodes 64] [--machines 200]

Processor time is that of this process and of what it has waited for, so that most of a boot's counts with its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import Job, rollout
from rlenv.language.kinds import CompileContext
from rlenv.resources.base import ResourceContext
from rlenv.tools.workspace.resource import KIND, WorkspaceResource, WorkspaceSpec
from rlenv.tools.workspace.starters import list_cgroups, sweep_folders

BARS: Mapping[str, float] = {"boot+end": 25.0, "command": 0.3, "episode": 120.0, "memory": 1.0}
"""Milliseconds of processor time, and MB a machine; for bubblewrap."""
SUM = "python3 -c 'import sys; print(sum(map(int, open(sys.argv[1]))))'"
TEST = f"""
[ "$(cat /app/sum 2>/dev/null)" = "$(printf '3\\n4\\n' > /tmp/n; {SUM} /tmp/n)" ] && worth=1 || worth=0
echo $worth > /logs/verifier/reward.txt
"""
SOLVE = "echo $((3 + 4)) > /app/sum"
FORGE = "echo 1 > /logs/verifier/reward.txt"
ACTS: Mapping[str, tuple[Sequence[str], float]] = {
    "nothing is done": ((), 0.0),
    "solved": ((SOLVE,), 1.0),
    "rewards planted": (
        (f"mkdir -p /logs/verifier; {FORGE}; cp /logs/verifier/reward.txt /logs/verifier/reward.json",),
        0,
    ),
    "tests planted": ((f"mkdir -p /tests; echo '{FORGE}' > /tests/test.sh",), 0.0),
    "a job that plants on": ((f"(while :; do sleep 0.02; {FORGE}; done) > /dev/null 2>&1 &",), 0.0),
    "rewards lead elsewhere": (
        ("rm -rf /logs; mkdir -p verifier; echo 1 > verifier/reward.txt; ln -s /app /logs",),
        0.0,
    ),
    "words of the shell changed": ((f"cat() {{ {FORGE}; echo 7; }}; export -f cat; alias cat=false",), 0.0),
    "a module of the tests' planted": (("echo 'print(7)' > /app/sys.py; echo 8 > sum",), 0.0),
    "the answer is a link": (("ln -s /tests/test.sh sum",), 0.0),
    "too slow, then solved": (("sleep 600", SOLVE), 1.0),
    "shell killed, then solved": (("kill -9 $$", SOLVE), 1.0),
    "solved, then all killed": ((SOLVE, "kill -9 -1; kill -9 1; kill -9 $$"), 1.0),
    "a flood, then solved": (("head -c 50000000 /dev/zero | tr '\\0' y", SOLVE), 1.0),
    "forks, then solved": (("for i in $(seq 400); do sleep 600 & done 2>/dev/null", SOLVE), 1.0),
    "disk filled, then solved": (("head -c 20000000 /dev/zero > big; rm -f big", SOLVE), 1.0),
    "memory taken, then solved": (("python3 -c 'x = bytearray(900_000_000)'", SOLVE), 1.0),
}


def spent() -> float:
    """Milliseconds of processor time."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1_000 * sum(one.ru_utime + one.ru_stime for one in used)


def compiled(sandbox: str) -> WorkspaceResource:
    spec = WorkspaceSpec.model_validate({"kind": "workspace", "sandbox": sandbox, "memory_mb": 512})
    found = KIND.factory("machine", spec, CompileContext(base=Path(tempfile.gettempdir())))
    assert isinstance(found, WorkspaceResource)
    return found


async def parts(machine: WorkspaceResource) -> dict[str, float]:
    """Milliseconds of a boot with its end, and of a command beyond what a bare shell takes: the medians of ten."""
    found: dict[str, list[float]] = {"boot+end": [], "command": []}
    for _ in range(10):
        async with machine.open(ResourceContext()) as workspace:
            began = spent()
            await workspace.run("true", 60)
            booted = spent()
            for _ in range(20):
                await workspace.run("true", 60)
            ran = spent()
            await workspace.freeze()
            found["boot+end"].append(booted - began + spent() - ran)
            found["command"].append((ran - booted) / 20 - await bare(20))
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()}


async def bare(count: int) -> float:
    """Milliseconds of a command in a shell beside no machine."""
    shell = await asyncio.create_subprocess_exec(
        "bash", "--noprofile", "--norc", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    began = spent()
    for _ in range(count):
        shell.stdin.write(b"eval true </dev/null 2>&1; printf '%s %d\\n' mark $?\n")
        await shell.stdout.readline()
    cost = (spent() - began) / count
    shell.kill()
    await shell.wait()
    return cost


def environment(folder: Path, sandbox: str) -> Environment:
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "test.sh").write_text(TEST, encoding="utf-8")
    spec: dict[str, Any] = {
        "rlenv": 1,
        "name": "sum",
        "tasks": {"test": {"rows": [{"id": "a"}]}},
        "prompt": {"user": "Write the sum of 3 and 4 to /app/sum."},
        "resources": {
            "machine": {"kind": "workspace", "sandbox": sandbox, "disk_mb": 8, "memory_mb": 512, "processes": 64}
        },
        "tools": {"bash": {"kind": "bash", "resource": "machine", "timeout_s": 3}},
        "limits": {"turns": 12},
        "rewards": {"solved": {"kind": "workspace", "resource": "machine", "tests": "tests", "time_s": 60}},
        "oracle": [{"call": {"bash": {"command": SOLVE}}}, {"say": "Done."}],
    }
    (folder / "env.json").write_text(json.dumps(spec), encoding="utf-8")
    return load(folder / "env.json")


async def many(played: Environment, count: int) -> tuple[float, int]:
    """Milliseconds an episode of the oracle's, 32 at once, and how many did not earn 1.0."""
    async with played:
        began = spent()
        found = await rollout(played, played.oracle(), [Job("test", 0, n) for n in range(count)], concurrency=32)
    return (spent() - began) / count, sum(one.reward.total != 1.0 for one in found)


async def worth(played: Environment, acts: Sequence[str]) -> float | None:
    async with played, played.start(task=0, split="test", seed=1) as episode:
        for act in acts:
            call = json.dumps({"name": "bash", "arguments": {"command": act}})
            await episode.step(f"<tool_call>\n{call}\n</tool_call>")
        await episode.step("Done.")
        return episode.trajectory.reward.total


async def together(machine: WorkspaceResource, count: int) -> float:
    """MB a machine of `count` that are up at once, each process's share of what it shares."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(machine.open(ResourceContext())) for _ in range(count)]
        for one in opened:
            assert (await one.run("true", 60)).code == 0
        return sum(map(share, below(os.getpid()))) / 1_024 / count


def share(pid: int) -> int:
    """KB of a process, with its part of what several share."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").split("\n")
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in rollup if line.startswith("Pss:")), 0)


def below(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            found += map(int, task.read_text(encoding="ascii").split())
    return found + [deep for one in found for deep in below(one)]


async def held(sandbox: str) -> None:
    """What is killed from outside: a machine with a command that does not end."""
    async with compiled(sandbox).open(ResourceContext()) as workspace:
        await workspace.run("true", 60)
        print(workspace.folder, flush=True)
        await workspace.run("(setsid sleep 1000 &); sleep 1000", 2_000)


def left_by(sandbox: str) -> str:
    """What is there a while after a kill of rlenv: processes, mounts, and after the next start folders and cgroups."""
    driver = subprocess.Popen([sys.executable, __file__, "--held", sandbox], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        folder = Path(driver.stdout.readline().strip())
    running = below(driver.pid)
    driver.kill()
    driver.wait()
    end = time.monotonic() + 30
    while time.monotonic() < end and any(Path(f"/proc/{pid}/status").exists() for pid in running):
        time.sleep(0.05)
    alive = sum(Path(f"/proc/{pid}/status").exists() for pid in running)
    mounts = Path("/proc/mounts").read_text(encoding="utf-8").count(str(folder))
    sweep_folders()
    rest = f"{int(folder.exists())} folders, {len(list_cgroups(f'{folder.name}*'))} cgroups"
    return f"{alive} of {len(running)} processes, {mounts} mounts; after the next start {rest}"


def shown(what: str, value: float, unit: str) -> None:
    bar = f"  (bar {BARS[what]:g})" if what in BARS else ""
    print(f"{what:10} {value:8.2f} {unit}{bar}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sandbox", default="bubblewrap", choices=("bubblewrap", "runc", "runsc"))
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--held", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.held:
        asyncio.run(held(given.held))
        return
    program = shutil.which({"bubblewrap": "bwrap"}.get(given.sandbox, given.sandbox)) or given.sandbox
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]
    print(f"{version}, Linux {platform.release()}, {os.cpu_count()} cores, user {os.geteuid()}")
    machine = compiled(given.sandbox)
    for name, value in asyncio.run(parts(machine)).items():
        shown(name, value, "ms")
    shown("memory", asyncio.run(together(machine, given.machines)), f"MB, {given.machines} machines at once")
    print(f"left       {left_by(given.sandbox)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cost, wrong = asyncio.run(many(environment(Path(folder), given.sandbox), given.episodes))
        shown("episode", cost, f"ms, {given.episodes} of them, {wrong} not at 1.0")
        odd = 0
        for name, (acts, expected) in ACTS.items():
            found = asyncio.run(worth(environment(Path(folder), given.sandbox), acts))
            odd += found != expected
            print(f"  {'ok   ' if found == expected else 'WRONG'} {name:32} {found}", flush=True)
        print(f"{len(ACTS) - odd} of {len(ACTS)} acts are worth what they should be")


if __name__ == "__main__":
    main()
