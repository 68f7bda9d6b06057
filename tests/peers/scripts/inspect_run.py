"""A spec in Inspect; prints what its log holds.

    inspect_run.py mockllm SPEC ANSWERS         # by inspect_ai.eval and Inspect's own mock
    inspect_run.py cli SPEC ANSWERS [OPTIONS]   # by the command, against an endpoint on loopback

ANSWERS is JSON: the model's texts in order, an integer as the status of a refusal; null answers examples/first. By the
command `["hangs"]` gives no answer, and `["writes on"]` the first tokens of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import eval
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint, Reply, never

WORK = {"eggs": "24 * 17", "left": "1000 - 3 * 215", "seconds": "(2 * 60 + 5) * 60"}


def work(role: str, text: str) -> str | dict[str, str]:
    """The answer, or the arguments of the call."""
    if role == "tool":
        return f"<answer>{text}</answer>"
    return {"expression": next(sum_ for word, sum_ in WORK.items() if word in text)}


def mocked(spec: str, answers: list[str] | None) -> tuple[EvalLog, list[tuple[str, list[str]]]]:
    """The log, and the first message and the tools that the model was shown at each request."""
    from rlenv_inspect import run

    left, shown = list(answers or ()), list[tuple[str, list[str]]]()

    def output(input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
        shown.append((input[0].text, [tool.name for tool in tools]))
        said = left.pop(0) if left else work(input[-1].role, input[-1].text)
        made = (
            ModelOutput.from_content("mockllm", said)
            if isinstance(said, str)
            else ModelOutput.for_tool_call("mockllm", "calculate", said)
        )
        # Without it the mock counts tokens by a file that it would download.
        return made.model_copy(update={"usage": ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)})

    model = get_model("mockllm/model", custom_outputs=output)
    return eval(run(spec), model=model, epochs=1 if answers else 2, log_dir="logs", display="none")[0], shown


def asked(body: Mapping[str, Any]) -> str | Message:
    said = work(body["messages"][-1]["role"], body["messages"][-1]["content"])
    return said if isinstance(said, str) else Message("assistant", "", (ToolCall("calculate", said, id="c1"),))


async def out_of_time(body: Mapping[str, Any], is_well: bool) -> str:
    """What has no end, and of a server that is well its first tokens."""
    is_short = any(body.get(name) == 16 for name in ("max_tokens", "max_completion_tokens"))
    return "Yes" if is_well and is_short else str(await never())


async def by_command(spec: str, answers: list[Any] | None, options: list[str]) -> tuple[int | None, str, list[Any]]:
    replies = [Reply(one, "no") if isinstance(one, int) else one for one in answers or ()]
    late = partial(out_of_time, is_well=answers == ["writes on"])
    async with FakeEndpoint(late if answers in (["writes on"], ["hangs"]) else replies or asked) as server:
        command = [str(Path(sys.executable).parent / "inspect"), "eval", "rlenv/run", "-T", f"spec={spec}"]
        command += ["--model", "openai-api/fake/m", "--log-dir", "logs", "--display", "plain", "--max-retries", "0"]
        process = await asyncio.create_subprocess_exec(
            *command, *options, env=os.environ | {"FAKE_API_KEY": "k", "FAKE_BASE_URL": server.base_url},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out = (await process.communicate())[0].decode()
        return process.returncode, out[-4000:], server.requests


def told(log: EvalLog) -> dict[str, Any]:
    scores = {one.name: one for one in (log.results.scores if log.results else ())}
    samples = [
        {
            "error": sample.error.message if sample.error else None,
            "scores": {name: None if score.value != score.value else score.value for name, score in scored.items()},
            "why": {name: score.explanation for name, score in scored.items()},
            "roles": [message.role for message in sample.messages],
        }
        for sample in log.samples or ()
        for scored in [sample.scores or {}]
    ]
    means = {name: one.metrics["mean"].value for name, one in scores.items()}
    unscored = {name: one.unscored_samples for name, one in scores.items()}
    fault = log.error.message if log.error else None
    return {"status": log.status, "task": log.eval.task, "error": fault, "samples": samples} | {
        "means": {name: None if mean != mean else mean for name, mean in means.items()},
        "unscored": unscored,
    }


def main(way: str, spec: str, answers: Any, options: list[str]) -> dict[str, Any]:
    if way == "mockllm":
        log, shown = mocked(spec, answers)
        return {**told(log), "shown": shown}
    rc, out, requests = asyncio.run(by_command(spec, answers, options))
    logs = sorted(Path("logs").glob("*.eval")) if Path("logs").is_dir() else []
    tools = requests[0].get("tools") if requests else None
    return {"rc": rc, "out": out, "tools": tools} | (told(read_eval_log(str(logs[-1]))) if logs else {})


print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])))
