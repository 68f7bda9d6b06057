"""How long the prompts of a run are, by the tokenizer of its model and the processor that shows it images."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError

__all__ = ["measure_prompts", "seeing"]


def measure_prompts(
    environment: Environment,
    model: str,
    *,
    splits: Sequence[str],
    template_kwargs: Mapping[str, Any],
    sample: int = 256,
) -> int:
    """Tokens of the longest prompt among the first `sample` tasks of each split, and a quarter more.

    Raises:
        UsageError: the model's tokenizer, or where prompts show images its processor, cannot be loaded here.
    """
    from transformers import AutoTokenizer

    from rlenv.tokens import TokenEncoder

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the tokenizer of {model} cannot be loaded to measure prompts ({str(error).splitlines()[0]})",
            hint="set run.max_prompt_length=N",
        ) from error
    shown = seeing(model) if environment.spec.prompt.images else {}
    encoder = TokenEncoder(tokenizer, template_kwargs=template_kwargs, same_turn=environment.same_turn, **shown)

    async def longest() -> int:
        lengths = []
        for split in splits:
            for task in range(min(sample, len(environment.tasks(split)))):
                async with environment.start(task=task, split=split) as episode:
                    tokens = encoder.start(episode.messages, tools=environment.tool_schemas)
                    lengths.append(len(tokens.prompt_ids))
        return max(lengths)

    return -(-asyncio.run(longest()) * 5 // 4)


def seeing(model: str) -> dict[str, Any]:
    """What a `TokenEncoder` needs to show images to a model; nothing for one that reads text alone."""
    from transformers import AutoProcessor

    from rlenv.tokens import ProcessorImages

    auto: Any = AutoProcessor  # it has no types
    try:
        processor = auto.from_pretrained(model)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"the prompts show images, and the processor of {model} cannot be loaded to measure them"
            f" ({str(error).splitlines()[0]})",
            hint="set run.max_prompt_length=N",
        ) from error
    if not getattr(processor, "image_token", None):
        return {}
    return {"chat_template": processor.chat_template, "images": ProcessorImages(processor)}
