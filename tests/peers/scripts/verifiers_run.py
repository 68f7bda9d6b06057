"""A command of verifiers against a scripted model; prints the traces, the results or the fault.

    verifiers_run.py ANSWERS COMMAND [OPTIONS]

ANSWERS is JSON: the model's texts in order, an integer as the status of a refusal; null answers examples/first.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint, Reply

WORK = {"eggs": "24 * 17", "left": "1000 - 3 * 215", "seconds": "(2 * 60 + 5) * 60"}
ALWAYS = ["--no-rich", "--output-dir", "out"]
EVAL = ["--no-push", "-m", "m", "--env.agent.runtime.type", "subprocess", "--client.api-key-var", "KEY"]


def work(body: Mapping[str, Any]) -> str | Message:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"<answer>{last['content']}</answer>"
    asked = next(sum_ for word, sum_ in WORK.items() if word in last["content"])
    return Message("assistant", "", (ToolCall("calculate", {"expression": asked}, id="c1"),))


def found(value: Any) -> list[dict[str, Any]]:
    """The traces in a line of a file."""
    if isinstance(value, list):
        return [trace for one in value for trace in found(one)]
    if not isinstance(value, dict):
        return []
    return [value] if "rewards" in value and "task" in value else found(list(value.values()))


def written() -> list[Any]:
    return [json.loads(line) for path in sorted(Path("out").rglob("*.jsonl")) for line in path.read_text().splitlines()]


def told(trace: dict[str, Any]) -> dict[str, Any]:
    errors = [error["type"] for error in trace.get("errors") or ()]
    told = {name: trace.get(name) for name in ("ok", "rewards", "metrics", "stop_condition")}
    return told | {"errors": errors, "key": trace["task"].get("key"), "end": (trace.get("info") or {}).get("rlenv")}


async def main(answers: Any, command: str, options: list[str]) -> dict[str, Any]:
    replies = [Reply(one, "no") if isinstance(one, int) else one for one in answers or ()]
    async with FakeEndpoint(replies or work) as server:
        of_model = [*EVAL, "--client.base-url", server.base_url] if command == "vf-eval" else []
        whole = [str(Path(sys.executable).parent / command), *options, *ALWAYS, *of_model]
        process = await asyncio.create_subprocess_exec(
            *whole, env=os.environ | {"KEY": "k"}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out = (await process.communicate())[0].decode()
        asked = server.requests
    rows = written()
    traces = [told(trace) for row in rows for trace in found(row)]
    results = [{"valid": row["valid"], "noop": row["noop"].get("rewards")} for row in rows if "noop" in row]
    said = [[each["role"] for each in body["messages"]] for body in asked]
    return {"rc": process.returncode, "out": out[-4000:], "traces": traces, "results": results, "asked": said}


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]))))
