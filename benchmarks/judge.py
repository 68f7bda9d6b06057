"""Judgements a second with 1,000 in flight, against a server on this machine that answers after a fixed delay.

The delay is what a model would take; with enough in flight a perfect client gets `in flight / delay`. The server runs
in the same process and costs its share.

    python benchmarks/judge.py
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Endpoint
from rlenv.rewards.base import TermCompileContext
from rlenv.rewards.judge import KIND
from rlenv.testing.endpoint import FakeEndpoint
from rlenv.testing.rewards import reward_context, turn


async def measure(count: int, in_flight: int, delay_s: float) -> dict[str, Any]:
    """Asks `count` different questions, `in_flight` at once."""

    async def answer(body: Mapping[str, Any]) -> str:
        await asyncio.sleep(delay_s)
        return json.dumps({"reasoning": "as asked", "score": 4})

    async with FakeEndpoint(answer) as server:
        endpoint = Endpoint(name="writer", base_url=server.base_url, model="m", concurrency=in_flight, retries=0)
        spec = KIND.spec.model_validate({"kind": "judge", "endpoint": "writer", "prompt": "Good? {{ message }}"})
        term = KIND.factory("j", spec, TermCompileContext(base=Path(), endpoints={"writer": endpoint}))
        scope = Scope()
        places = asyncio.Semaphore(in_flight)
        waits: list[float] = []

        async def one(index: int) -> float:
            made = reward_context(turns=[turn(f"Answer {index}. " + "word " * 200)])
            async with places:
                begun = time.perf_counter()
                found = await term.measure_async(dataclasses.replace(made, shared=lambda: scope))
                waits.append(time.perf_counter() - begun)
            return float(found.value)

        begun = time.perf_counter()
        values = await asyncio.gather(*(one(index) for index in range(count)))
        seconds = time.perf_counter() - begun
        await scope.aclose()
        assert set(values) == {0.75}
        most = server.most_at_once
    waits.sort()
    return {
        "judgements": count,
        "in_flight": in_flight,
        "most_at_once": most,
        "delay_s": delay_s,
        "seconds": round(seconds, 3),
        "per_s": round(count / seconds, 1),
        "p50_s": round(statistics.median(waits), 3),
        "p99_s": round(waits[int(len(waits) * 0.99)], 3),
    }


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--delay", type=float, default=0.5)
    args = parser.parse_args()
    found = asyncio.run(measure(args.count, args.in_flight, args.delay))
    print(json.dumps({**found, "python": platform.python_version(), "machine": platform.machine()}))


if __name__ == "__main__":
    main()
