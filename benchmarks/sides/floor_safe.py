"""The floor: a hand-written loop that finds, parses, calls, times out and appends, and does nothing else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import re
from typing import Any

from benchmarks import workload

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""
    function = workload.tool(mode)
    names = {"calculator": function}
    loop = asyncio.get_running_loop()
    pool = concurrent.futures.ThreadPoolExecutor(512)

    async def call(request: Any) -> str:
        try:
            chosen = names[request["name"]]
            if mode in ("async50", "hang"):
                async with asyncio.timeout(workload.TIMEOUT_S):
                    return str(await chosen(**request["arguments"]))
            if mode == "fast":
                return str(chosen(**request["arguments"]))
            async with asyncio.timeout(workload.TIMEOUT_S):
                return str(await loop.run_in_executor(pool, lambda: chosen(**request["arguments"])))
        except Exception as error:
            return f"Error: {error!r}"

    async def episode(index: int) -> float:
        messages = [
            {"role": "system", "content": workload.SYSTEM},
            {"role": "user", "content": workload.question(index)},
        ]
        for turn in range(10):
            await asyncio.sleep(0)
            text = workload.TEXTS[index % workload.VARIANTS][turn]
            messages.append({"role": "assistant", "content": text})
            calls = []
            for found in _CALL.findall(text):
                try:
                    calls.append(json.loads(found))
                except ValueError:
                    calls.append(None)
            if not calls:
                return 1.0 if f"<answer>{workload.answer(index)}</answer>" in text else 0.0
            results = [await call(calls[0])] if len(calls) == 1 else await asyncio.gather(*map(call, calls))
            messages.extend({"role": "tool", "content": result} for result in results)
        return 0.0

    return episode
