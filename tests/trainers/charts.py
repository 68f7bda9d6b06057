"""Plays samples whose prompts and results show images through the agent loop, as veRL runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import PIL.Image
import torch

from tests.trainers.conftest import quiet
from tests.trainers.loops import build, configuration, own_process, sample

MODELS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
TYPES = {"Qwen2VLProcessor": "qwen2_vl", "Qwen2_5_VLProcessor": "qwen2_5_vl", "Qwen3VLProcessor": "qwen3_vl"}
CALL = '<tool_call>\n{"name": "zoom", "arguments": {"times": %d}}\n</tool_call>'
ANSWER = "<answer>12</answer>"
SPEC = """
rlenv: 1
name: chart
tasks:
  train:
    rows: [{question: "How many?", file: chart.png, answer: 12}]
prompt:
  user: "{{ task.question }}"
  images: ["{{ task.file }}"]
tools:
  zoom: {kind: python, function: "tools.py:zoom", run_in: loop}
limits: {turns: 4}
rewards:
  correct: {kind: rule, rule: numeric_match}
"""
TOOLS = """
import io
import PIL.Image
from rlenv.messages import Image
from rlenv.tools.base import ToolOutput

def zoom(times: int):
    \"\"\"Shows the chart larger.\"\"\"
    if times == 7:
        return "<|vision_start|><|image_pad|><|vision_end|> <|video_pad|>"
    if times == 9:
        return ToolOutput("broken", images=(Image.of(b"no image"),))
    file = io.BytesIO()
    PIL.Image.new("RGB", (40 * times, 60), "blue").save(file, "PNG")
    return ToolOutput(f"{times} times", images=(Image.of(file.getvalue()),) * (2 if times == 2 else 1))
"""


class Server:
    """Stands in for veRL's client of the rollout servers, with the signature of `LLMServerClient.generate`."""

    def __init__(self, made: Any, actions: Sequence[str | list[int]]) -> None:
        self.made, self.actions = made, list(actions)
        self.requests: list[dict[str, Any]] = []

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append({"prompt_ids": prompt_ids, "images": image_data, "kwargs": mm_processor_kwargs})
        action = self.actions.pop(0)
        ids = self.made.tokenizer(action, add_special_tokens=False)["input_ids"] if isinstance(action, str) else action
        ids = [*ids, self.made.tokenizer.eos_token_id][: sampling_params["max_tokens"]]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"global_steps": 1})


def run(
    tmp_path: Path,
    made: Any,
    actions: Sequence[str | list[int]],
    *,
    spec: str = SPEC,
    response: int = 512,
    kwargs: dict[str, Any] | None = None,
    with_processor: bool = True,
    family: str = "Qwen2VLProcessor",
) -> tuple[Any, Server]:
    """One sample through the loop, built as veRL builds it."""
    (tmp_path / "env.yaml").write_text(spec)
    (tmp_path / "tools.py").write_text(TOOLS)
    if not (tmp_path / "chart.png").exists():
        PIL.Image.new("RGB", (100, 70), "red").save(tmp_path / "chart.png")
    config = configuration(response=response, data={"mm_processor_kwargs": kwargs} if kwargs else None)
    server = Server(made, actions)
    keys: dict[str, Any] = {
        "model": TYPES[family] if with_processor else "qwen2",
        "processor": made if with_processor else None,
    }
    keys |= {"spec": str(tmp_path / "env.yaml"), "record_dir": str(tmp_path / "records"), "process": own_process()}

    async def played() -> Any:
        return await sample(build(config, server, made.tokenizer, **keys), step=1)

    return asyncio.run(played()), server


def as_verl_computes(made: Any, output: Any, kwargs: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """What veRL's agent loop worker makes of an output (trainer/ppo/v1/agent_loop_tq.py, `_agent_loop_postprocess`)."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    worker: Any = SimpleNamespace(processor=made, tokenizer=made.tokenizer, mm_processor_kwargs=kwargs or {})
    worker._get_mm_processor_kwargs = lambda audio=None: AgentLoopWorker._get_mm_processor_kwargs(worker, audio)
    input_ids = torch.tensor([*output.prompt_ids, *output.response_ids])
    with quiet():
        inputs = AgentLoopWorker._compute_multi_modal_inputs(worker, output, input_ids)
        positions = AgentLoopWorker._compute_position_ids(
            worker, input_ids.unsqueeze(0), torch.ones(1, len(input_ids), dtype=torch.int64), inputs
        )
    inputs.pop("images_seqlens", None)
    return {"input_ids": input_ids.unsqueeze(0), "position_ids": positions.transpose(0, 1), **inputs}
