"""rlenv on tokens: what the trainer's adapter does in one process."""

from __future__ import annotations

import asyncio

from benchmarks import workload
from benchmarks.sides.rlenv_text import environment
from benchmarks.sides.tokenizer import TEMPLATE, tokenizer
from rlenv.dialects.base import cut_chars
from rlenv.tokens import TokenEncoder


async def setup(mode: str, tools: int) -> workload.Episode:
    """Ready to play."""
    made = environment(mode, tools)
    raw = tokenizer()
    encoder = TokenEncoder(raw, chat_template=TEMPLATE)
    end = raw.token_to_id("<|im_end|>")
    by_chars = cut_chars(made.spec.observation)

    def cut(text: str) -> str:
        return by_chars(text)  # as the adapter does: a cut of its own says that a tokenizer is bound

    sampled = [[[*raw.encode(text, add_special_tokens=False).ids, end] for text in texts] for texts in workload.TEXTS]

    async def episode(index: int) -> float:
        scripts = sampled[index % workload.VARIANTS]
        async with made.start(task=index % workload.VARIANTS, cut=cut) as running:
            tokens = encoder.start(
                running.messages, tools=made.tool_schemas, max_prompt_tokens=8192, max_response_tokens=8192
            )
            for ids in scripts:
                await asyncio.sleep(0)
                text = tokens.add_sampled(ids)
                step = await running.step(text)
                if step.is_last:
                    break
                assert tokens.add_observation(step.observation)
            assert len(tokens.mask) == len(tokens.response_ids)
            total = running.trajectory.reward.total
            return -1.0 if total is None else total

    return episode
