"""Many episodes at once while tools fail on purpose and for real; what was injected and what survived.

    python benchmarks/faults/campaign.py [--episodes 1000] [--at-once 256]

The same episodes are played three times in this process: without faults, with faults, and with faults and policies
against them (retries, a limit for each try). Faults: 5 % of calls fail, 5 % are held past their time limit, 1 % are
garbled and 1 % grow to 10 MB (`faults:`), while an MCP server is killed every 2 seconds and the HTTP server drops 3 %
of its connections. Every episode has to end; an episode whose calls had no fault has to earn what it earned without
faults; nothing may be left behind. Exit code 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FAULTS = {"error": 0.05, "delay_s": {"p": 0.05, "range": [6, 9]}, "garble": 0.01, "oversize": 0.01}
POLICIES = {"calls.retries": 4, "calls.attempt_s": 2.0, "calls.timeout_s": 20, "tools.double.idempotent": True}
KILL_EVERY_S = 2.0
DROPS = 0.03
NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Played:
    """One episode: its reward, how it ended, and its results turn by turn."""

    reward: float | None
    reason: str
    failure: str
    results: tuple[Any, ...]

    @property
    def is_clean(self) -> bool:
        """True where every call answered at once and as the tool does."""
        return bool(self.results) and all(
            result.outcome == "ok" and not (result.details or {}).keys() & {"faults", "attempts", "breaker"}
            for result in self.results
        )


@dataclass(frozen=True, slots=True)
class Left:
    """What a process holds: children, threads by name, descriptors, temporary files."""

    children: frozenset[int]
    threads: frozenset[str]
    files: int
    temporary: frozenset[str]


def left(folder: Path) -> Left:
    """What this process holds now."""
    return Left(
        frozenset(children()),
        frozenset(thread.name for thread in threading.enumerate()),
        len(os.listdir("/proc/self/fd")),
        frozenset(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    )


def children() -> list[int]:
    """The processes that this one started and that have not been waited for, theirs included."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    found: list[int] = []
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found += new
    return found


def servers() -> list[int]:
    """The MCP servers that run."""
    found = []
    for pid in children():
        with suppress(OSError):
            if b"server.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@asynccontextmanager
async def http_server(*, drops: bool) -> AsyncIterator[tuple[str, Counter[str]]]:
    """A server on loopback that adds 7, and with `drops` closes some connections instead of answering."""
    counted: Counter[str] = Counter()
    chance = random.Random(7)
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                counted["requests"] += 1
                if drops and chance.random() < DROPS:
                    counted["dropped"] += 1
                    if chance.random() < 0.5:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                    break
                found = re.search(rb"n=(-?\d+)", line)
                body = str(int(found[1]) + 7).encode() if found else b"no number"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body))
                writer.write(body)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/value", counted
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.sleep(0)


async def kill_servers(killed: Counter[str]) -> None:
    """Kills every MCP server that runs, again and again."""
    while True:
        await asyncio.sleep(KILL_EVERY_S)
        for pid in servers():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed["MCP server killed"] += 1


def overrides(url: str, *, faults: bool, policies: bool, has_mcp: bool, has_code: bool) -> dict[str, Any]:
    """What is set over the spec."""
    set_: dict[str, Any] = {"tools.raised.url": url, "calls.concurrency": 256}
    if has_mcp:
        set_["tools.server"] = {"kind": "mcp", "command": [sys.executable, str(HERE / "server.py")], "scope": "process"}
    if has_code:
        set_["tools.run"] = {"kind": "code", "idempotent": True}
    if faults:
        set_["calls.faults"] = FAULTS
    if policies:
        set_.update(POLICIES)
    return set_


def turns(n: int, *, has_mcp: bool, has_code: bool) -> list[list[dict[str, Any]]]:
    """The calls of an episode."""
    table = [
        [
            {"name": "double", "arguments": {"n": n}},
            {"name": "triple", "arguments": {"sql": f"SELECT triple FROM numbers WHERE n = {n}"}},
        ],
        [{"name": "raised", "arguments": {"n": n}}],
    ]
    if has_mcp:
        table.append([{"name": "next", "arguments": {"n": n}}])
    if has_code:
        table.append([{"name": "run", "arguments": {"code": f"print({n} * {n})"}}])
    return table


async def episode(environment: Any, n: int, *, has_mcp: bool, has_code: bool) -> Played:
    """Plays one episode: every tool once, then the sum of the last number of each result."""
    from benchmarks.faults import tools as campaign
    from rlenv.messages import Message, ToolCall

    task = {"n": n, "answer": campaign.answer_of(n, has_mcp=has_mcp, has_code=has_code)}
    results: list[Any] = []
    async with environment.start(task=task, seed=n) as running:
        for calls in turns(n, has_mcp=has_mcp, has_code=has_code):
            action = Message("assistant", "", tuple(ToolCall(call["name"], call["arguments"]) for call in calls))
            step = await running.step(action)
            results += step.observation.results
            if step.is_last:
                break
        else:
            read = [NUMBER.findall(result.text[:20_000]) for result in results]
            total = sum(int(found[-1][:18]) for found in read if found)
            await running.step(f"<answer>{total}</answer>")
        trajectory = running.trajectory
    failure = trajectory.failure.message if trajectory.failure is not None else ""
    return Played(trajectory.reward.total, trajectory.reason, failure, tuple(results))


async def play(
    args: argparse.Namespace, *, faults: bool, policies: bool = False
) -> tuple[list[Played | None], Counter[str], float, float]:
    """All episodes, what happened around them, the seconds they took, and the longest wait of the loop."""
    import rlenv

    around: Counter[str] = Counter()
    played: list[Played | None] = [None] * args.episodes
    options = {"has_mcp": args.has_mcp, "has_code": args.has_code}
    queue = iter(range(args.episodes))
    async with http_server(drops=faults) as (url, counted):
        environment = rlenv.load(HERE / "env.yaml", set=overrides(url, faults=faults, policies=policies, **options))

        async def work() -> None:
            for n in queue:
                played[n] = await asyncio.wait_for(episode(environment, n, **options), 150)

        lag = asyncio.ensure_future(longest_lag())
        killer = asyncio.ensure_future(kill_servers(around)) if faults and args.has_mcp else None
        begun = time.perf_counter()
        async with environment:
            await asyncio.gather(*(work() for _ in range(args.at_once)))
            seconds = time.perf_counter() - begun
            if killer is not None:
                killer.cancel()
        lag.cancel()
        with suppress(asyncio.CancelledError):
            await lag
        around.update({f"HTTP {key}": value for key, value in counted.items()})
    return played, around, seconds, _lag[-1]


_lag: list[float] = []


async def longest_lag() -> None:
    """Notes how late a timer of 5 ms is at most."""
    _lag.append(0.0)
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.005)
        _lag[-1] = max(_lag[-1], time.perf_counter() - begun - 0.005)


def report(args: argparse.Namespace, plain: Sequence[Any], hit: Sequence[Any], around: Counter[str]) -> bool:
    """Prints the table; True where every law holds."""
    injected: Counter[tuple[str, str]] = Counter()
    outcomes: Counter[tuple[str, str]] = Counter()
    for one in hit:
        for result in one.results if one else ():
            outcomes[result.name, result.outcome] += 1
            for kind in (result.details or {}).get("faults", ()):
                injected[result.name, kind] += 1
    kinds = ("error", "delay", "garble", "oversize")
    ends = ("ok", "failed", "timeout")
    print(
        f"{'tool':<10}{'calls':>8}" + "".join(f"{kind:>10}" for kind in kinds) + "".join(f"{end:>10}" for end in ends)
    )
    for name in dict.fromkeys(name for name, _ in outcomes):
        calls = sum(count for (tool, _), count in outcomes.items() if tool == name)
        row = [injected[name, kind] for kind in kinds] + [outcomes[name, end] for end in ends]
        print(f"{name:<10}{calls:>8}" + "".join(f"{value:>10}" for value in row))
    print("  ".join(f"{name}: {count}" for name, count in sorted(around.items())))
    ended = sum(one is not None for one in hit)
    clean = [n for n, one in enumerate(hit) if one is not None and one.is_clean]
    differ = [n for n in clean if hit[n].reward != plain[n].reward]
    texts = [n for n in clean if [r.text for r in hit[n].results] != [r.text for r in plain[n].results]]
    invalid = Counter(one.failure for one in hit if one is not None and one.reward is None)
    print(
        f"episodes ended: {ended} of {args.episodes}   without faults all right: {all(p.reward == 1.0 for p in plain)}"
    )
    print(
        f"episodes whose calls had no fault: {len(clean)}; reward differs: {len(differ)}; a text differs: {len(texts)}"
    )
    print(f"reasons: {dict(Counter(one.reason for one in hit if one))}; rewards: "
          f"{dict(Counter(one.reward for one in hit if one))}")  # fmt: skip
    if invalid:
        print(f"invalid rewards: {dict(invalid)}")
    return ended == args.episodes and not differ and not texts and all(p.reward == 1.0 for p in plain)


async def campaign(args: argparse.Namespace, folder: Path) -> bool:
    """Both runs, the table, and what is left."""
    await play(
        argparse.Namespace(**{**vars(args), "episodes": 4, "at_once": 4}), faults=False
    )  # imports, first threads
    await settled()
    before = left(folder)
    plain, _, seconds, lag = await play(args, faults=False)
    print(f"without faults: {seconds:.1f} s, longest loop lag {lag * 1000:.0f} ms")
    holds = True
    for policies in (False, True):
        hit, around, seconds, lag = await play(args, faults=True, policies=policies)
        name = "with faults and policies" if policies else "with faults"
        print(f"\n{name}: {seconds:.1f} s, longest loop lag {lag * 1000:.0f} ms")
        holds = report(args, plain, hit, around) and holds
    await settled()
    after = left(folder)
    rest: dict[str, Any] = {
        "children": after.children - before.children,
        "threads": after.threads - before.threads,
        "descriptors": after.files - before.files,
        "temporary files": after.temporary - before.temporary,
    }
    print("left behind: " + (", ".join(f"{what}: {value}" for what, value in rest.items() if value) or "nothing"))
    return (
        holds and not any(rest["children"] or rest["threads"] or rest["temporary files"]) and rest["descriptors"] <= 0
    )


async def settled() -> None:
    """Waits, for a bounded time, until threads and sockets that are on their way out are gone."""
    for _ in range(30):
        gc.collect()
        await asyncio.sleep(0.1)
        if not any(thread.name.startswith("rlenv-tool") for thread in threading.enumerate()) and not children():
            break


def main() -> int:
    """Runs the campaign; 0 where every law holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--at-once", type=int, default=256)
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parents[1]))
    from rlenv.language import kinds as registry

    args.has_mcp = "mcp" in registry.names("tools") and importlib.util.find_spec("mcp") is not None
    args.has_code = "code" in registry.names("tools") and importlib.util.find_spec("pydantic_monty") is not None
    missing = [name for name, there in (("mcp", args.has_mcp), ("code", args.has_code)) if not there]
    print(f"{args.episodes} episodes, {args.at_once} at once" + (f"; without {', '.join(missing)}" if missing else ""))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        return 0 if asyncio.run(campaign(args, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main())
