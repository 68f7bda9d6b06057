"""Episodes in machines while a random process of theirs is killed each second.

    python benchmarks/faults/machines.py [--episodes 1000] [--every 1.0] [--inside] [--seed 0]

A third each of the episodes of `shell` is played by the oracle, by a policy that does the task wrongly, and by one that
does nothing. SIGKILL meets a process that starts and holds machines; with `--inside` one of the machine's own, which
nothing tells from the policy's doing, so that a right answer may be lost there. Numbers are held against those of a
quiet run: 1 for the oracle, 0 for the others. Exit code 1 where another number was given from outside, a reward is
invalid and does not say that a machine was ended, or something is left: a process, a mount, a folder, a cgroup.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlenv
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import Message, ToolCall
from rlenv.policies.scripted import FunctionPolicy
from rlenv.trajectory import Trajectory

DOES = "echo nothing > answer; echo 'echo no' > run.sh"


def below(pid: int) -> list[int]:
    """All processes that descend from one."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text("ascii").split():
                found += [int(child), *below(int(child))]
    except OSError:
        pass
    return found


def depth(pid: int) -> int:
    """In how many namespaces of processes it is: 3 are those of what runs inside a machine."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return 0
    return next((len(line.split()) - 1 for line in lines if line.startswith("NSpid:")), 0)


def left() -> dict[str, int]:
    """What is there of machines of this process."""
    mine = f"rlenv-machine-{os.getpid()}-"
    return {
        "processes": len(below(os.getpid())),
        "mounts": Path("/proc/self/mountinfo").read_text("utf-8").count(mine),
        "folders": len(list(Path(tempfile.gettempdir()).glob(f"{mine}*"))),
        "cgroups": sum(1 for path in Path("/sys/fs/cgroup").rglob("*rlenv*") if str(os.getpid()) in path.name),
    }


def _ended(pid: int) -> str:
    """The name of a process, which is killed."""
    name = Path(f"/proc/{pid}/comm").read_text("utf-8", errors="replace").strip()
    os.kill(pid, signal.SIGKILL)
    return name


async def kill(every: float, *, inside: bool, rng: random.Random, killed: Counter[str]) -> None:
    """Kills a process each so many seconds, until it is cancelled."""
    own = depth(os.getpid())
    while True:
        await asyncio.sleep(every)
        victims = [one for one in below(os.getpid()) if (depth(one) - own >= 2) == inside and depth(one)]
        if victims:
            with contextlib.suppress(OSError):
                killed[_ended(rng.choice(victims))] += 1


def told(found: Sequence[Trajectory], worth: float) -> Counter[str]:
    """How many episodes have the number of a quiet run, another one, or none and why."""
    counts: Counter[str] = Counter()
    for one in found:
        if one.reward.total is None:
            why = one.failure.message if one.failure is not None else "unsaid"
            counts["invalid, said" if "ended from outside" in why or "not there" in why else f"invalid: {why}"] += 1
        else:
            counts["same" if one.reward.total == worth else "other"] += 1
    return counts


async def campaign(
    episodes: int, every: float, *, inside: bool, seed: int
) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """The counts of each policy, and what was killed."""
    killed: Counter[str] = Counter()
    async with rlenv.load("shell") as environment:
        wrong = Message("assistant", "", (ToolCall("bash", {"command": DOES}),))
        said = environment.parts.dialect.render_action(wrong)

        async def does(messages: Sequence[Message]) -> str:
            return said if messages[-1].role == "user" else "Done."

        async def ends(messages: Sequence[Message]) -> str:
            return "Done."

        policies: dict[str, tuple[Any, float]] = {
            "oracle": (environment.oracle(), 1.0),
            "wrong": (FunctionPolicy(does), 0.0),
            "nothing": (FunctionPolicy(ends), 0.0),
        }
        size = len(environment.tasks("train"))
        jobs = [Job("train", index % size, seed=index) for index in range(-(-episodes // 3))]
        killer = asyncio.create_task(kill(every, inside=inside, rng=random.Random(seed), killed=killed))
        try:
            played = await asyncio.gather(
                *(rollout(environment, policy, jobs, concurrency=3) for policy, _ in policies.values())
            )
        finally:
            killer.cancel()
        return {name: told(found, policies[name][1]) for name, found in zip(policies, played, strict=True)}, killed


def main() -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    began = time.process_time()
    counts, killed = asyncio.run(campaign(chosen.episodes, chosen.every, inside=chosen.inside, seed=chosen.seed))
    rest = left()
    print(json.dumps({**counts, "killed": killed, "left": rest, "cpu_s": round(time.process_time() - began, 1)}))
    other = sum(one["other"] for one in counts.values()) if not chosen.inside else counts["wrong"]["other"]
    unsaid = [why for one in counts.values() for why in one if why.startswith("invalid:")]
    return 1 if other or unsaid or any(rest.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
