"""Steps hostile actions through a whole environment and prints what came of them.

    python benchmarks/hostile.py [--count 100000]

Also prints the time to parse growing degenerate texts: ten times the text within about ten times the time is linear.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import platform
import time

import rlenv
from rlenv import dialects
from rlenv.testing.hostile import hostile_actions


async def _campaign(count: int) -> None:
    limits = {"limits.turns": 20, "limits.invalid_actions": 20, "limits.tool_calls": 100_000}
    environment = rlenv.load("arithmetic", set=limits)
    ends: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    slowest, begun, task = 0.0, time.perf_counter(), 0
    episode = environment.start(task=0, split="test")
    await episode.open()
    for action in hostile_actions(count, names=("calculate", "clock")):
        at = time.perf_counter()
        step = await episode.step(action)
        slowest = max(slowest, time.perf_counter() - at)
        outcomes.update(result.outcome for result in step.observation.results)
        if step.is_last:
            ends[step.reason] += 1
            assert step.reward is not None, episode.failure
            await episode.aclose()
            task += 1
            episode = environment.start(task=task % 500, split="test")
            await episode.open()
    await episode.aclose()
    print(
        f"{count} actions in {time.perf_counter() - begun:.1f} s without an exception; slowest {slowest * 1e3:.1f} ms"
    )
    print("  episodes ended by:", dict(ends.most_common()))
    print("  calls:", dict(outcomes.most_common()))


def _linear() -> None:
    dialect = dialects.get("hermes")
    call = '<tool_call>{"name": "a", "arguments": {"x": "y"}}</tool_call>'
    texts = {
        "open tags": "<tool_call>",
        "closing tags": "</tool_call>",
        "calls": call,
        "half calls": call[:40],
        "open thinking": "<think>",
        "brackets in a call": "[",
        "quotes in a call": '"',
    }
    print("parse time in ms for 0.1, 1 and 10 MB (linear: x 10 each)")
    for name, unit in texts.items():
        times = []
        for size in (100_000, 1_000_000, 10_000_000):
            text = unit * (size // len(unit))
            text = f"<tool_call>{text}" if name.endswith("in a call") else text
            at = time.perf_counter()
            dialect.parse(text)
            times.append((time.perf_counter() - at) * 1e3)
        print(f"  {name:20} {times[0]:9.2f} {times[1]:9.2f} {times[2]:9.2f}")


def main() -> None:
    """Runs both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    args = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, rlenv {rlenv.__version__}")
    asyncio.run(_campaign(args.count))
    _linear()


if __name__ == "__main__":
    main()
