"""Plays the samples of one prompt through the agent loop as veRL does: all tasks created at once, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trainers.conftest import quiet

Script = Sequence[str | Exception | Callable[[], Awaitable[str]]]
"""What one sample's policy says, turn by turn: a text, a fault of the server, or something to wait for."""


async def hangs() -> str:
    """A generation that never ends."""
    await asyncio.Event().wait()
    return ""


@dataclass
class Server:
    """veRL's client of the rollout servers, for one sample."""

    tokenizer: Any
    script: list[Any]
    requests: list[list[int]] = field(default_factory=list)
    is_cancelled: bool = False

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.requests.append(list(prompt_ids))
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        if not isinstance(said, str):
            try:
                said = await said()
            except asyncio.CancelledError:
                self.is_cancelled = True
                raise
        ids = [*self.tokenizer(said, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        return TokenOutput(
            token_ids=ids[: sampling_params["max_tokens"]],
            log_probs=[-0.5] * len(ids[: sampling_params["max_tokens"]]),
            stop_reason="completed",
            extra_fields={"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4},
        )


def play_group(
    folder: Path,
    tokenizer: Any,
    scripts: Sequence[Script],
    *,
    spec: str,
    files: dict[str, str] | None = None,
    validation: bool = False,
    servers: list[Server] | None = None,
    on_start: Callable[[list[asyncio.Task[Any]]], Awaitable[None]] | None = None,
    **keys: Any,
) -> list[Any]:
    """One output, or the exception that veRL would see, for each script.

    Args:
        folder: where the spec and its files are written, and records below it.
        tokenizer: the policy's.
        scripts: one a sample.
        spec: the environment's YAML.
        files: further files beside it.
        validation: play validation rows.
        servers: filled with the server of each sample.
        on_start: awaited once all samples run.
        keys: of the agent loop's entry.
    """
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from rlenv_verl.agent_loop import RlenvAgentLoop

    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    rollout = {"response_length": 160, "prompt_length": 512, "calculate_log_probs": True, "n": len(scripts)}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    where = {"index": 0, "split": "train", "task": 0, "greedy": False, "is_validation": validation}

    async def sample(server: Server) -> Any:
        with quiet():
            loop = RlenvAgentLoop(
                trainer_config=DictConfigWrap(config),
                server_manager=server,
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=RLHFDataset,
                data_config=DictConfigWrap(config.data),
                hf_model_type="qwen3",
                tools=ToolListWrap([]),
                spec=str(folder / "spec.yaml"),
                record_dir=str(folder / "records"),
                **keys,
            )
        return await loop.run({"temperature": 1.0}, extra_info=where, global_steps=5, raw_prompt=[], uid="u1")

    async def group() -> list[Any]:
        made = [Server(tokenizer, list(script)) for script in scripts]
        if servers is not None:
            servers.extend(made)
        tasks = [asyncio.create_task(sample(server)) for server in made]
        if on_start is not None:
            await on_start(tasks)
        async with asyncio.timeout(30):
            return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(group())


def info(output: Any) -> dict[str, Any]:
    """The figures of a sample that veRL sees."""
    found: dict[str, Any] = output.extra_fields["reward_extra_info"]
    return found


def figures(output: Any) -> dict[str, Any]:
    """The figures of a sample that the sampler counts."""
    found: dict[str, Any] = output.extra_fields["rlenv"]
    return found
