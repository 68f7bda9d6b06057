"""CPU time per call of the executor, by mode, and the wall time of many episodes with a 50 ms tool.

    python benchmarks/executor.py

`direct` calls the tool's function with no executor; `floor` is a careful hand-written call (asyncio.timeout around
the coroutine, run_in_executor around the blocking function). Compare ratios within one run only.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlenv.calls.executor import Executor
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall
from rlenv.tools.base import Mode, Tool, ToolContext, ToolOutput

PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}, "op": {"enum": ["add", "sub", "mul"]}},
    "required": ["a", "b"],
}
ARGUMENTS = {"a": 3, "b": 4, "op": "add"}
ROUNDS = 5


def quick(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    return ToolOutput(str(arguments["a"] + arguments["b"]))


async def quick_async(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    return ToolOutput(str(arguments["a"] + arguments["b"]))


async def suspends(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    await asyncio.sleep(0)
    return ToolOutput("x")


async def async50(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    await asyncio.sleep(0.05)
    return ToolOutput("x")


def sync50(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    time.sleep(0.05)
    return ToolOutput("x")


def tool(name: str, run: Callable[..., Any], mode: Mode) -> Tool:
    return Tool(name=name, description="", parameters=PARAMETERS, run=run, mode=mode)


TOOLS = {
    one.name: one
    for one in (
        tool("inline", quick, "inline"),
        tool("async, ends at once", quick_async, "async"),
        tool("async, suspends", suspends, "async"),
        tool("thread", quick, "thread"),
        tool("async50", async50, "async"),
        tool("sync50", sync50, "thread"),
    )
}


async def episodes(turn: Callable[[], Awaitable[Any]], *, at_once: int, turns: int) -> tuple[float, float]:
    """CPU seconds and wall seconds of `at_once` episodes that each take `turns` turns."""

    async def episode() -> None:
        for _ in range(turns):
            await turn()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*[episode() for _ in range(at_once)])
    return time.process_time() - cpu, time.perf_counter() - wall


async def measure() -> None:
    executor = Executor(TOOLS, calls=CallsSpec())
    context = ToolContext({}, {}, time.monotonic() + 3_600)
    pool = ThreadPoolExecutor(256)
    loop = asyncio.get_running_loop()

    def through(name: str, count: int = 1) -> Callable[[], Awaitable[Any]]:
        calls = [ToolCall(name, ARGUMENTS)] * count
        return lambda: executor.run(calls, context)

    async def direct() -> Any:
        return quick(ARGUMENTS, context)

    async def floor_async() -> Any:
        async with asyncio.timeout(10):
            return await suspends(ARGUMENTS, context)

    async def floor_thread() -> Any:
        async with asyncio.timeout(10):
            return await loop.run_in_executor(pool, quick, ARGUMENTS, context)

    table: list[tuple[str, Callable[[], Awaitable[Any]], int, int]] = [
        ("direct", direct, 1, 400),
        ("inline", through("inline"), 1, 400),
        ("inline, 4 in a turn", through("inline", 4), 4, 100),
        ("async, ends at once", through("async, ends at once"), 1, 400),
        ("async, suspends", through("async, suspends"), 1, 200),
        ("async, suspends, 4 in a turn", through("async, suspends", 4), 4, 50),
        ("floor: asyncio.timeout", floor_async, 1, 200),
        ("thread", through("thread"), 1, 20),
        ("thread, 4 in a turn", through("thread", 4), 4, 5),
        ("floor: timeout + run_in_executor", floor_thread, 1, 20),
    ]
    found: dict[str, list[float]] = {name: [] for name, *_ in table}
    for _ in range(ROUNDS):  # interleaved, so that a change of the machine's speed meets all alike
        for name, turn, count, turns in table:
            cpu, _ = await episodes(turn, at_once=64, turns=turns)
            found[name].append(cpu / (64 * turns * count) * 1e6)
    print(f"{'CPU µs a call, 64 episodes at once':<40}{'median':>9}{'min':>9}{'max':>9}")
    for name, values in found.items():
        print(f"{name:<40}{statistics.median(values):>9.2f}{min(values):>9.2f}{max(values):>9.2f}")
    print()
    print(f"{'256 episodes x 4 x 50 ms (ideal 0.20 s)':<40}{'wall s':>9}{'x ideal':>9}")
    for name in ("async50", "sync50"):
        walls = [(await episodes(through(name), at_once=256, turns=4))[1] for _ in range(3)]
        print(f"{name:<40}{statistics.median(walls):>9.3f}{statistics.median(walls) / 0.2:>9.2f}")
    pool.shutdown()


if __name__ == "__main__":
    versions = {name: importlib.metadata.version(name) for name in ("jsonschema-rs", "pydantic")}
    print(f"Python {sys.version.split()[0]}, {versions}, {platform.system()} {platform.machine()}")
    asyncio.run(measure())
