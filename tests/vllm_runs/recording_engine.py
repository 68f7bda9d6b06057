"""Writes down what vLLM was asked and what it sampled, and the weights that the trainer sends to it.

Named by `actor_rollout_ref.model.external_lib`, so imported in the trainer's worker and in vLLM's server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import verl.workers.rollout.vllm_rollout.vllm_rollout as adapters
from checksums import add, write
from verl.workers.rollout.utils import ensure_async_iterator
from vllm.v1.engine.async_llm import AsyncLLM

import rlenv_verl.cpu.registries  # noqa: F401 (the name that this one stands in for)

_generate: Any = AsyncLLM.generate
_adapter: Any = adapters.ServerAdapter
_update = _adapter.update_weights


async def generate(self: Any, prompt: Any, sampling_params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
    last = None
    async for output in _generate(self, prompt, sampling_params, request_id, **more):
        last = output
        yield output
    if last is None:
        return
    chosen = last.outputs[0] if last.outputs else None
    logprobs = None
    if chosen is not None and chosen.logprobs is not None:
        logprobs = [found[token].logprob for token, found in zip(chosen.token_ids, chosen.logprobs, strict=True)]
    entry = {
        "request": request_id,
        "prompt": list(last.prompt_token_ids),
        "ids": [] if chosen is None else list(chosen.token_ids),
        "logprobs": logprobs,
        "finish": None if chosen is None else chosen.finish_reason,
        "stop": None if chosen is None else chosen.stop_reason,
        "cached": last.num_cached_tokens,
        "greedy": sampling_params.temperature == 0.0,
        "lora": None if more.get("lora_request") is None else more["lora_request"].lora_int_id,
    }
    write("sampled.jsonl", entry)


async def update_weights(self: Any, weights: Any, global_steps: int | None = None, **more: Any) -> None:
    sums: dict[str, Any] = {}

    async def each() -> AsyncIterator[tuple[str, Any]]:
        async for name, tensor in ensure_async_iterator(weights):
            add(sums, name, tensor)
            yield name, tensor

    await _update(self, each(), global_steps=global_steps, **more)
    found = {name: one.hexdigest() for name, one in sums.items()}
    is_adapter = bool(more.get("peft_config") and more.get("base_sync_done"))
    write("trainer.jsonl", {"step": global_steps, "adapter": is_adapter, "tensors": found})


AsyncLLM.generate = generate
_adapter.update_weights = update_weights
