"""verifiers 0.1.14's ToolEnv over a scripted in-process client; needs a Python that has it."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import verifiers as vf
from datasets import Dataset
from openai.types.chat import ChatCompletion
from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient

from benchmarks import workload

logging.disable(logging.WARNING)


class _Scripted(OpenAIChatCompletionsClient):
    def __init__(self) -> None:
        super().__init__(object())

    async def close(self) -> None:
        pass

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
    ) -> ChatCompletion:
        await asyncio.sleep(0)
        content = next(message for message in prompt if message["role"] == "user")["content"]
        content = content if isinstance(content, str) else content[0]["text"]
        index = int(content.split("number ")[1].split(":")[0])
        turn = sum(1 for message in prompt if message["role"] == "assistant")
        calls = workload.STRUCTURED[index % workload.VARIANTS][turn] if turn < len(workload.CALLS) else []
        text = workload.TEXTS[index % workload.VARIANTS][turn].split("<tool_call>")[0]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"c{turn}{number}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
                }
                for number, call in enumerate(calls)
            ]
        choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
        return ChatCompletion.model_validate({**body, "usage": usage})


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""

    async def reward(completion: Any, answer: str, **_: Any) -> float:
        found = f"<answer>{workload.answer(int(answer))}</answer>" in (completion[-1].content or "")
        return 1.0 if found else 0.0

    rows = Dataset.from_list([{"question": workload.question(i), "answer": str(i)} for i in range(2)])
    rubric = vf.Rubric(funcs=[reward])
    made = vf.ToolEnv(
        tools=[workload.tool(mode)], max_turns=10, dataset=rows, rubric=rubric, system_prompt=workload.SYSTEM
    )
    client = _Scripted()

    async def episode(index: int) -> float:
        prompt = [
            {"role": "system", "content": workload.SYSTEM},
            {"role": "user", "content": workload.question(index)},
        ]
        state = await made.run_rollout(
            {"prompt": prompt, "answer": str(index), "example_id": index}, client, "scripted", {}
        )
        return float(state["reward"])

    return episode
