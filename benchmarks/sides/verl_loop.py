"""veRL 0.9.1's own ToolAgentLoop over a scripted in-process server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import io
import os
from typing import Any

os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")

import torch
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.rollout.replica import TokenOutput

from benchmarks import workload
from benchmarks.sides.tokenizer import TEMPLATE, path


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""
    torch.set_num_threads(1)
    made = PreTrainedTokenizerFast(tokenizer_file=str(path()), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = TEMPLATE
    function = workload.tool(mode)

    class Calculator(BaseTool):
        async def execute(self, instance_id: str, parameters: dict[str, Any], **_: Any) -> Any:
            result = function(**parameters)
            return ToolResponse(text=await result if asyncio.iscoroutine(result) else result), 0.0, {}

    with contextlib.redirect_stdout(io.StringIO()):
        entries = []
        for number in range(tools):
            schema: dict[str, Any] = copy.deepcopy(workload.SCHEMA)
            schema["function"]["name"] = "calculator" if number == 0 else f"tool_{number}"
            entries.append(Calculator({}, OpenAIFunctionToolSchema.model_validate(schema)))
    turns = {
        "max_user_turns": 10,
        "max_assistant_turns": 10,
        "max_parallel_calls": 4,
        "max_tool_response_length": 2048,
        "tool_response_truncate_side": "middle",
        "format": "hermes",
    }
    rollout = {"prompt_length": 8192, "response_length": 8192, "full_determinism": False, "multi_turn": turns}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {"apply_chat_template_kwargs": {}}})
    sampled = [
        [[*made(text, add_special_tokens=False).input_ids, made.eos_token_id] for text in texts]
        for texts in workload.TEXTS
    ]

    class Server:
        def __init__(self) -> None:
            self.turns: dict[str, int] = {}

        async def generate(self, request_id: str, **kwargs: Any) -> Any:
            turn = self.turns.get(request_id, 0)
            self.turns[request_id] = turn + 1
            await asyncio.sleep(0)
            index = kwargs["sampling_params"]["i"]
            return TokenOutput(token_ids=list(sampled[index % workload.VARIANTS][turn]), num_preempted=0)

    parts: dict[str, Any] = {
        "trainer_config": DictConfigWrap(config),
        "server_manager": Server(),
        "tokenizer": made,
        "processor": None,
        "dataset_cls": RLHFDataset,
        "data_config": DictConfigWrap(config.data),
        "hf_model_type": "qwen3",
        "tools": ToolListWrap(entries),
    }

    async def episode(index: int) -> float:
        prompt = [
            {"role": "system", "content": workload.SYSTEM},
            {"role": "user", "content": workload.question(index)},
        ]
        output = await ToolAgentLoop(**parts).run({"i": index}, raw_prompt=prompt)
        assert len(output.response_mask) == len(output.response_ids)
        text = made.decode(output.response_ids[-40:])
        return 1.0 if f"<answer>{workload.answer(index)}</answer>" in text else 0.0

    return episode
