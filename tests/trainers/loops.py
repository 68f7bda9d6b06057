"""Plays samples through the agent loop, built and run as veRL does for each, with a server that is scripted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from rlenv.runs.folder import open_run
from rlenv.trajectory import Trajectory
from rlenv_verl.loop.process import ProcessState
from tests.trainers.conftest import quiet

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>'
SPEC = """
rlenv: 1
name: toy
tasks:
  train:
    rows: [{question: "What is 6 * 7?", answer: 42}]
prompt:
  user: "{{ task.question }}"
tools:
  calculate: {kind: calculator}
limits: {turns: 3}
rewards:
  correct: {kind: rule, rule: numeric_match}
"""
Script = Sequence[str | Exception | Callable[[], Awaitable[str]]]
"""What one sample's policy says, turn by turn: a text, a fault of the server, or something to wait for."""


async def hangs() -> str:
    """A generation that never ends."""
    await asyncio.Event().wait()
    return ""


class Server:
    """Stands in for veRL's client of the rollout servers, for one sample: says what the test scripted."""

    def __init__(
        self,
        tokenizer: Any,
        actions: Script,
        *,
        stop_reason: str = "completed",
        ends: bool = True,
        before: Sequence[int] = (),
    ) -> None:
        """`before` are ids that each action begins with."""
        self.tokenizer, self.actions, self.stop_reason = tokenizer, list(actions), stop_reason
        self.before, self.end_ids = list(before), [tokenizer.eos_token_id] if ends else []
        self.requests: list[dict[str, Any]] = []
        self.is_cancelled = False

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append({"prompt_ids": list(prompt_ids), **sampling_params})
        action = self.actions.pop(0)
        if isinstance(action, Exception):
            raise action
        if not isinstance(action, str):
            try:
                action = await action()
            except asyncio.CancelledError:
                self.is_cancelled = True
                raise
        ids = [*self.before, *self.tokenizer(action, add_special_tokens=False)["input_ids"], *self.end_ids]
        ids = ids[: sampling_params["max_tokens"]]
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.5] * len(ids),
            stop_reason=self.stop_reason,
            extra_fields={"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4},
        )


_ENCODERS: dict[tuple[Any, ...], Any] = {}


def own_process(**parts: Any) -> ProcessState:
    """The state of a process of its own, but for the encoders: they hold what was found of a template alone."""
    return ProcessState(_encoders=_ENCODERS, **parts)


def configuration(*, response: int = 96, prompt: int = 512, data: Any = None, **rollout: Any) -> Any:
    """The part of veRL's configuration that the loop reads."""
    from omegaconf import OmegaConf

    lengths = {"response_length": response, "prompt_length": prompt, "calculate_log_probs": True}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": {**lengths, **rollout}}, "data": data or {}})


def build(
    config: Any,
    server: Any,
    tokenizer: Any,
    *,
    kind: Any = None,
    model: str = "qwen3",
    processor: Any = None,
    **options: Any,
) -> Any:
    """A loop object, with its parts wrapped anew as veRL wraps them for each; `kind` is its class."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from rlenv_verl.loop.agent_loop import RlenvAgentLoop

    with quiet():
        return (kind or RlenvAgentLoop)(
            trainer_config=DictConfigWrap(config),
            server_manager=server,
            tokenizer=tokenizer,
            processor=processor,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            hf_model_type=model,
            tools=ToolListWrap([]),
            **options,
        )


async def sample(loop: Any, *, step: int = 5, validation: bool = False, greedy: bool = False, **row: Any) -> Any:
    """What veRL is handed of one sample, played by a loop of its own."""
    where = {"index": 0, "split": "train", "task": 0, "greedy": greedy, "is_validation": validation}
    return await loop.run({"temperature": 1.0}, extra_info=where, global_steps=step, raw_prompt=[], **row)


def check_alignment(output: Any) -> None:
    """The laws of an output's lists."""
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs) >= 1
    assert all(math.isfinite(value) for value in output.response_logprobs)


def kept(folder: Path) -> list[tuple[dict[str, Any], Trajectory]]:
    """The episodes that loops have kept in a folder: row, with what came later, and record."""
    reader = open_run(folder)
    return [(row, reader.body(row["id"]).trajectory()) for row in reader.table.to_pylist()]
