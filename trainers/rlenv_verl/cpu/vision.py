"""Generation by a model that sees, on the CPU: one request at a time, for tests and tiny models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rlenv_verl.cpu.decode import Drawing, Generated, Sampling, sample

__all__ = ["generate_seeing"]


@torch.inference_mode()
def generate_seeing(
    model: Any,
    processor: Any,
    prompt: Sequence[int],
    images: Sequence[Any],
    sampling: Sampling,
    *,
    generator: torch.Generator,
    processor_kwargs: dict[str, Any] | None = None,
    is_aborted: Callable[[], bool] = lambda: False,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Generated:
    """What a model of Qwen's vision families writes after a prompt with images.

    Args:
        model: for conditional generation, in eval mode; its `model.get_rope_index` gives the positions.
        processor: the model's own; its image processor makes the pixels.
        prompt: token ids, with as many placeholders for each image as the processor writes.
        images: in the order of their placeholders.
        sampling: as of any request.
        generator: the source of all randomness.
        processor_kwargs: what the image processor is called with, such as `max_pixels`.
        is_aborted: asked before every token.
        decode: see `rlenv_verl.cpu.decode.generate`.

    Raises:
        ValueError: the prompt has another number of placeholders than the images make.
    """
    from verl.utils.tokenizer import get_processor_token_id  # a server of text does without veRL

    ids = torch.tensor([list(prompt)])
    types = (ids == processor.image_token_id).int()
    seen = _seen(processor, images, processor_kwargs or {}, places=int(types.sum()))
    positions, _ = model.model.get_rope_index(
        input_ids=ids,
        mm_token_type_ids=types,
        image_grid_thw=seen.get("image_grid_thw"),
        attention_mask=torch.ones_like(ids),
    )
    # As veRL's vLLM server does: a placeholder without an image would end the training that follows.
    kinds = (get_processor_token_id(processor, kind) for kind in ("image", "video"))
    banned = torch.tensor([token for token in kinds if token is not None])
    row = Drawing(sampling, decode)
    cache: Any = None
    while row.finish is None and not is_aborted():
        output = model(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1, **seen
        )
        cache, seen = output.past_key_values, {}
        logits = output.logits[:, -1].float().index_fill(-1, banned, -torch.inf)
        chosen, logprobs = sample(logits, [sampling], generator)
        row.take(int(chosen[0]), float(logprobs[0]))
        ids, positions = chosen[:, None], positions.amax().expand(3, 1, 1) + 1
    return row.generated


def _seen(processor: Any, images: Sequence[Any], kwargs: Mapping[str, Any], *, places: int) -> dict[str, Any]:
    """The pixels of the images, for a prompt with so many placeholders."""
    seen: dict[str, Any] = {}
    wanted = 0
    if images:
        made = processor.image_processor(list(images), return_tensors="pt", **kwargs)
        seen = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        wanted = int(seen["image_grid_thw"].prod(dim=1).sum()) // processor.image_processor.merge_size**2
    if places != wanted:
        raise ValueError(f"the prompt has {places} placeholders; {len(images)} images make {wanted}")
    return seen
