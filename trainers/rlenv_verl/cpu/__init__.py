"""The parts that veRL needs to run on CPUs: for tests and first runs. A GPU needs none of them.

Everything here goes through veRL's registries where it has one; each workaround says what was expected, what happens
instead in veRL 0.9.1, where, and when it can be removed.

Here: generation by transformers on the CPU, batches of text, and single requests with images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

# Rows that have ended stay in the batch until this share of it is live: copying the cache costs about one step.
_COMPACT_BELOW = 0.75


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling of one request.

    `temperature` 0 is greedy. `top_k` below 1 and `top_p` of 1 keep everything. `max_tokens` is at least 1.
    `stop_ids` end the generation; the stop id itself is part of what was generated. So do `stop_texts`, for which
    `generate` has to be given `decode`: the tokens up to the one that completes such a text stay.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    stop_texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; at least 1 is needed")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it cannot be negative")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Generated:
    """The tokens of one request. `len(logprobs) == len(token_ids)`.

    A log-probability is that of the distribution the token was drawn from (after temperature, top_k and top_p); for a
    greedy row, that of the model's own distribution.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length", "aborted"]


@dataclass(slots=True, eq=False)
class Drawing:
    """The tokens of one request so far. `finish` is None while it goes on."""

    sampling: Sampling
    decode: Callable[[Sequence[int]], str] | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Literal["stop", "length"] | None = None

    def take(self, token: int, logprob: float) -> None:
        """One more token, which may be the last."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_ids or completes_stop(self.tokens, self.sampling, self.decode):
            self.finish = "stop"
        elif len(self.tokens) >= self.sampling.max_tokens:
            self.finish = "length"

    @property
    def to_generated(self) -> Generated:
        """The whole sample; `aborted` where it was still going on."""
        return Generated(tuple(self.tokens), tuple(self.logprobs), self.finish or "aborted")


@torch.inference_mode()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    pad_id: int,
    generator: torch.Generator,
    is_aborted: Callable[[], bool] = lambda: False,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> list[Generated]:
    """Generate for all prompts at once.

    Args:
        prompts: token ids, one non-empty list a request.
        pad_id: fills short prompts on the left; masked, so any id does.
        generator: the source of all randomness; equal state and equal requests give equal tokens.
        decode: makes text of a row's last tokens, special ones included; needed for stop texts.
        is_aborted: asked before every token; once True, all unfinished rows return what they have as `aborted`.

    Returns:
        One entry a prompt, in their order.
    """
    ids, mask = _pad_left(prompts, pad_id)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rows = [Drawing(sampling, decode) for sampling in samplings]
    live = list(rows)
    cache: Any = None
    while live and not is_aborted():
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        chosen, logprobs = sample(output.logits[:, -1].float(), [row.sampling for row in live], generator)
        for row, token, logprob in zip(live, chosen.tolist(), logprobs.tolist(), strict=True):
            if row.finish is None:
                row.take(token, logprob)
        ids = chosen[:, None]
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones((len(live), 1), dtype=torch.int64)], dim=1)
        keep = [place for place, row in enumerate(live) if row.finish is None]
        if len(keep) <= _COMPACT_BELOW * len(live):
            live = [live[place] for place in keep]
            if live:
                kept = torch.tensor(keep)
                ids, positions, mask = ids[kept], positions[kept], mask[kept]
                cache.batch_select_indices(kept)
    return [row.to_generated for row in rows]


def _pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts filled on the left, and the mask of what is theirs."""
    rows = [torch.tensor(prompt) for prompt in prompts]
    filled = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")
    return filled(rows, padding_value=pad_id), filled([torch.ones_like(row) for row in rows])


def completes_stop(tokens: Sequence[int], sampling: Sampling, decode: Callable[[Sequence[int]], str] | None) -> bool:
    """True if the last token completes a stop text."""
    if not sampling.stop_texts:
        return False
    if decode is None:
        raise ValueError("stop texts need a tokenizer's decode")
    # A token is at least one byte, so no more of them can have written the text.
    longest = max(len(text.encode()) for text in sampling.stop_texts)
    tail = decode(tokens[-longest:])
    return any(text in tail for text in sampling.stop_texts)


def sample(
    logits: torch.Tensor, samplings: Sequence[Sampling], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row and its log-probability. `logits` is float32 of shape (rows, vocabulary)."""
    temperature = torch.tensor([sampling.temperature for sampling in samplings])
    is_greedy = temperature == 0
    scaled = logits / torch.where(is_greedy, torch.ones_like(temperature), temperature)[:, None]
    if any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in samplings):
        scaled = _filter_logits(scaled, samplings)
    distribution = scaled.log_softmax(-1)
    drawn = torch.multinomial(distribution.exp(), 1, generator=generator)[:, 0]
    chosen = torch.where(is_greedy, logits.argmax(-1), drawn)
    return chosen, distribution.gather(1, chosen[:, None])[:, 0]


def _filter_logits(scaled: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """`scaled` with what top_k and then top_p exclude at minus infinity; greedy rows are left alone.

    As in vLLM: top_k keeps ties with the k-th value; top_p keeps the smallest set whose mass reaches p, and always
    the most likely token.
    """
    vocabulary = scaled.shape[-1]
    plain = [sampling.temperature == 0 for sampling in samplings]
    k = torch.tensor(
        [
            vocabulary if skip or s.top_k < 1 else min(s.top_k, vocabulary)
            for s, skip in zip(samplings, plain, strict=True)
        ]
    )
    p = torch.tensor([1.0 if skip else s.top_p for s, skip in zip(samplings, plain, strict=True)])
    values, order = scaled.sort(dim=-1, descending=True)
    floor = values.gather(1, (k - 1)[:, None])
    values = values.masked_fill(values < floor, -torch.inf)
    before = values.softmax(-1).cumsum(-1) - values.softmax(-1)
    # The first column has nothing before it, so the most likely token always stays; p = 1 keeps all, despite rounding.
    values = values.masked_fill((before >= p[:, None]) & (p < 1)[:, None], -torch.inf)
    return torch.empty_like(scaled).scatter_(1, order, values)


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
    """The text of a model of Qwen's vision families after a prompt with images.

    Args:
        model: for conditional generation, in eval mode; its `model.get_rope_index` gives the positions.
        processor: the model's own; its image processor makes the pixels.
        prompt: token ids, with as many placeholders for each image as the processor writes.
        images: in the order of their placeholders.
        processor_kwargs: what the image processor is called with, such as `max_pixels`.

    Raises:
        ValueError: the prompt has another number of placeholders than the images make.
    """
    from verl.utils.tokenizer import get_processor_token_id  # a server of text does without veRL

    ids = torch.tensor([list(prompt)])
    types = (ids == processor.image_token_id).int()
    seen = _encode_images(processor, images, processor_kwargs or {}, places=int(types.sum()))
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
    return row.to_generated


def _encode_images(processor: Any, images: Sequence[Any], kwargs: Mapping[str, Any], *, places: int) -> dict[str, Any]:
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
