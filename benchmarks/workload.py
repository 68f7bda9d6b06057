"""One workload for all sides: 4 tool turns with 1, 2, 1, 2 calculator calls, then an answer turn.

A side is a module in `benchmarks/sides` with `async def setup(mode, tools) -> episode`, where `await episode(i)` plays
episode i with the scripted policy below and returns its reward. `measure` runs one side in this process and prints
one line of JSON; `benchmarks/turns.py` runs the sides interleaved, each in a process of its own, and prints the table.

Modes: fast (no latency) · async50 (each call awaits 50 ms) · sync50 (each call blocks 50 ms) · hang and hangsync (one
call of episode 0 never returns).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

CALLS = (1, 2, 1, 2)
TURNS = len(CALLS) + 1
VARIANTS = 64
SYSTEM = "You can use a calculator. Think step by step, call tools where needed, then answer."
DELAY_S = 0.05
TIMEOUT_S = 1.0

Episode = Callable[[int], Awaitable[float]]


def calculator(a: float, b: float, op: str = "add") -> str:
    """Calculate a op b.

    Args:
        a: left operand
        b: right operand
        op: one of add, sub, mul
    """
    if op == "add":
        return str(a + b)
    if op == "sub":
        return str(a - b)
    if op == "mul":
        return str(a * b)
    raise ValueError(f"op is add, sub or mul, not {op}")


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "number", "description": "left operand"},
        "b": {"type": "number", "description": "right operand"},
        "op": {"type": "string", "enum": ["add", "sub", "mul"]},
    },
    "required": ["a", "b"],
}
SCHEMA = {
    "type": "function",
    "function": {"name": "calculator", "description": "Calculate a op b.", "parameters": PARAMETERS},
}

_never = threading.Event()
_hung = False


def question(index: int) -> str:
    """The task of an episode."""
    return f"Compute chain number {index}: start at {index}, then add, multiply and subtract as told. The result?"


def answer(index: int) -> str:
    """The answer of an episode."""
    return str(index % VARIANTS * 7 + 3)


def _calls(index: int, turn: int) -> list[dict[str, Any]]:
    ops = ("add", "mul", "sub")
    return [
        {"name": "calculator", "arguments": {"a": index + turn, "b": k + 2, "op": ops[(turn + k) % 3]}}
        for k in range(CALLS[turn])
    ]


def _text(index: int, turn: int) -> str:
    if turn == len(CALLS):
        return f"The final result is <answer>{answer(index)}</answer>"
    calls = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in _calls(index, turn))
    return f"I will now work on step {turn} of the problem, using the calculator to be exact.\n{calls}"


# Written beforehand, so that the policy costs next to nothing.
TEXTS = [[_text(index, turn) for turn in range(TURNS)] for index in range(VARIANTS)]
STRUCTURED = [[_calls(index, turn) for turn in range(len(CALLS))] for index in range(VARIANTS)]


def hangs_now(a: float) -> bool:
    """True once, for a call of episode 0."""
    global _hung
    if a == 0 and not _hung:
        _hung = True
        return True
    return False


def tool(mode: str) -> Callable[..., Any]:
    """The calculator as the mode wants it."""
    if mode in ("async50", "hang"):

        async def calculate(a: float, b: float, op: str = "add") -> str:
            if mode == "async50":
                await asyncio.sleep(DELAY_S)
            elif hangs_now(a):
                await asyncio.Event().wait()
            return calculator(a, b, op)
    else:

        def calculate(a: float, b: float, op: str = "add") -> str:  # type: ignore[misc]
            if mode == "sync50":
                time.sleep(DELAY_S)
            elif mode == "hangsync" and hangs_now(a):
                _never.wait(20)
            return calculator(a, b, op)

    calculate.__doc__ = calculator.__doc__
    calculate.__name__ = calculate.__qualname__ = "calculator"
    return calculate


async def drive(episode: Episode, count: int, concurrency: int) -> list[float]:
    """Plays `count` episodes, `concurrency` at once."""
    rewards = [0.0] * count
    queue = iter(range(count))

    async def work() -> None:
        for index in queue:
            rewards[index] = await episode(index)

    await asyncio.gather(*(work() for _ in range(min(concurrency, count))))
    return rewards


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


async def _measure(args: argparse.Namespace) -> dict[str, Any]:
    side = importlib.import_module(f"benchmarks.sides.{args.side}")
    episode: Episode = await side.setup(args.mode, args.tools)
    if args.mode in ("hang", "hangsync"):
        begun = time.perf_counter()
        tasks = [asyncio.ensure_future(episode(index)) for index in range(args.episodes)]
        done, pending = await asyncio.wait(tasks, timeout=10)
        wall = time.perf_counter() - begun
        right = sum(1 for task in done if task.exception() is None and task.result() == 1.0)
        return {"wall_s": wall, "ended": len(done), "pending": len(pending), "right": right}
    await drive(episode, min(args.concurrency, 64), args.concurrency)
    gc.collect()
    base = _resident_mb()
    cpu, wall = time.process_time(), time.perf_counter()
    rewards = await drive(episode, args.episodes, args.concurrency)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    wrong = sum(reward != 1.0 for reward in rewards)
    assert not wrong, f"{wrong} of {len(rewards)} episodes were not rewarded"
    return {
        "wall_s": wall,
        "cpu_us_a_turn": cpu / (args.episodes * TURNS) * 1e6,
        "kb_an_episode": max(0.0, _peak_mb() - base) * 1000 / min(args.concurrency, args.episodes),
    }


def main() -> None:
    """Measures one side and prints one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side")
    parser.add_argument("--mode", default="fast")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--tools", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    if args.profile:
        import cProfile
        import pstats

        profiler = cProfile.Profile()
        profiler.enable()
        result = asyncio.run(_measure(args))
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
    else:
        result = asyncio.run(_measure(args))
    print("RESULT " + json.dumps(result), flush=True)
    os._exit(0)  # a hanging thread of a side must not hold the process


if __name__ == "__main__":
    sys.modules["benchmarks.workload"] = sys.modules["__main__"]
    main()
