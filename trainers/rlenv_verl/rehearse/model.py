"""The policy of a rehearsal: a network of some thousand parameters, and a vocabulary small enough for its logits.

A micro-batch of 16,384 tokens over 151,936 tokens of vocabulary is 10 GB of logits; over 320 it is 21 MB. So the
rehearsal has a vocabulary of its own, under the chat template and the control tokens of the model that will be trained
where its tokenizer is at hand, and the tiny policy's otherwise. What depends on the model's own ids (lengths,
exactness) is `rlenv train --preflight`'s part.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError, UsageError, told_as
from rlenv.preflight import known_model
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import load_tokenizer
from rlenv_verl.run.model import longest_prompt
from rlenv_verl.run.preflight import is_at_hand

NAME = "rlenv_window"
"""The name that `attn_implementation` has for it."""
WINDOW = 2
"""Tokens that a token sees, itself included."""


def window_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    position_ids: torch.Tensor | None = None,
    **_other: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention over `WINDOW` tokens, as an attention function of transformers.

    Sequences that are packed into one row do not see each other: a token at position p has p tokens before it.

    Args:
        module: the layer; `num_key_value_groups` query heads share a head of keys.
        query: [rows, heads, tokens, size].
        key: [rows, key-value heads, tokens, size].
        value: as `key`.
        attention_mask: not needed; transformers makes none for an attention that it does not know.
        scaling: what scores are multiplied by.
        position_ids: [rows, tokens], counted from 0 in each packed sequence; None for one sequence a row.

    Returns:
        [rows, tokens, heads, size].
    """
    tokens = query.shape[2]
    if position_ids is None:
        position_ids = torch.arange(tokens, device=query.device)[None]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    reach = range(min(WINDOW, tokens))
    shifted = [(_shift_by(key, by), _shift_by(value, by)) for by in reach]
    scores = torch.stack([(query * keys).sum(-1) for keys, _ in shifted], dim=-1) * scaling
    seen = position_ids[:, None, :, None] >= torch.arange(len(reach), device=query.device)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out = sum(weights[..., by, None] * values for by, (_, values) in enumerate(shifted))
    assert isinstance(out, torch.Tensor)
    return out.transpose(1, 2).contiguous(), None


def _shift_by(part: torch.Tensor, by: int) -> torch.Tensor:
    """`part` moved by so many tokens, zeros before it."""
    return part if by == 0 else torch.nn.functional.pad(part, (0, 0, by, 0))[:, :, : part.shape[2]]


def register() -> None:
    """Makes the name known to transformers in this process."""
    from transformers import AttentionInterface

    interface: Any = AttentionInterface
    interface.register(NAME, window_attention)


_VOCABULARY = 320
_TASKS = 64  # of each split, whose prompts are measured
_FILL = "<|rlenv_fill|>"


@dataclass(frozen=True, slots=True)
class RehearsalModel:
    """A folder's network and tokenizer, and the tokens of prompts.

    `template` says whose chat template it has. `longest` is the longest prompt that was measured, `filler` how many
    tokens stand before each prompt so that the longest one is at the limit.
    """

    parameters: int
    vocabulary: int
    template: str
    longest: int
    filler: int


@dataclass(frozen=True, slots=True)
class _Source:
    """The template and the tokens that it needs; `name` says whose they are."""

    name: str
    template: str
    tokens: tuple[str, ...]
    end: str
    pad: str


def make_model(
    environments: Sequence[Environment],
    folder: Path,
    *,
    model: str | None,
    splits: Sequence[str],
    prompt_tokens: int | None,
    most_tokens: int,
    template_kwargs: Mapping[str, Any],
    seed: int,
) -> RehearsalModel:
    """Writes the policy to `folder`, loadable by `from_pretrained`; equal arguments give equal weights.

    Args:
        model: the folder or the name of the model that will be trained; None for the tiny policy's template.
        prompt_tokens: the limit of a prompt; None adds no filler.
        most_tokens: the longest sequence, prompt and response together.

    Raises:
        UsageError: the model's tokenizer cannot be loaded, or a prompt does not fit the limit in this vocabulary.
    """
    import torch

    from rlenv_verl.tiny import save_model

    source = _source_of(model)
    texts = [text for environment in environments for text in asyncio.run(_prompt_texts(environment, splits))]
    tokenizer = _train_tokenizer(source, texts, folder, filler=0)

    def encoder(environment: Environment) -> TokenEncoder:
        kwargs = dict(template_kwargs)
        return TokenEncoder(tokenizer, template_kwargs=kwargs, same_turn=environment.same_turn, history="keep")

    with told_as(UsageError, "--rehearse:", RlenvError):
        longest = max(asyncio.run(longest_prompt(one, encoder(one), splits, some=_some_tasks)) for one in environments)
    filler = 0
    if prompt_tokens is not None:
        if longest > prompt_tokens:
            raise UsageError(
                f"--rehearse: a prompt has {longest:,} tokens in the rehearsal's vocabulary of {_VOCABULARY} and the"
                f" limit is {prompt_tokens:,}",
                hint=f"set run.max_prompt_length={-(-longest // 64) * 64}",
            )
        filler = prompt_tokens - longest
        tokenizer = _train_tokenizer(source, texts, folder, filler=filler)
    torch.manual_seed(seed)
    network = _make_network(tokenizer, most_tokens)
    save_model(network, tokenizer, folder)
    return RehearsalModel(
        sum(parameter.numel() for parameter in network.parameters()), len(tokenizer), source.name, longest, filler
    )


def _make_network(tokenizer: Any, positions: int) -> Any:
    from rlenv_verl.tiny import new_model

    network = new_model(tokenizer, hidden=8, layers=2, heads=1)
    network.config.max_position_embeddings = positions
    return network


def _source_of(model: str | None) -> _Source:
    """The model's own template where it is at hand; of a model that is known by name it need not be."""
    if model is None:
        return _tiny_source()
    return _tiny_source() if known_model(model) is not None and not is_at_hand(model) else _model_source(model)


def _tiny_source() -> _Source:
    from rlenv_verl.tiny import CONTROL_TOKENS, MARKER_TOKENS, chat_template

    tokens = (*CONTROL_TOKENS, *MARKER_TOKENS)
    return _Source("the tiny policy's", chat_template(), tokens, end="<|im_end|>", pad="<|endoftext|>")


def _model_source(model: str) -> _Source:
    """The chat template and the control tokens of a model, and of its other added tokens those that it writes."""
    loaded = load_tokenizer(model)
    template = loaded.chat_template
    if template is None:
        raise UsageError(f"--rehearse: the tokenizer of {model} has no chat template")
    texts = [token.content for token in loaded.backend_tokenizer.get_added_tokens_decoder().values()]
    end = loaded.eos_token or ""
    pad = str(loaded.special_tokens_map.get("pad_token") or end)
    special = {end, pad, str(loaded.special_tokens_map.get("bos_token") or "")} - {""}
    tokens = tuple(text for text in texts if text in template or text in special)
    return _Source(f"{model}'s", template, tokens, end=end, pad=pad)


def _train_tokenizer(source: _Source, texts: Sequence[str], folder: Path, *, filler: int) -> Any:
    """A byte-level tokenizer over `texts`, whose chat template writes `filler` tokens before each prompt."""
    from tokenizers import pre_tokenizers  # type: ignore[import-untyped]

    from rlenv_verl.tiny import train_tokenizer

    control = tuple(dict.fromkeys((source.pad, source.end, _FILL)))
    others = [token for token in dict.fromkeys(source.tokens) if token not in control]
    before = "{{- '" + _FILL + "' * " + str(filler) + " -}}\n" if filler else ""
    return train_tokenizer(
        texts,
        folder,
        split=pre_tokenizers.ByteLevel(add_prefix_space=False),
        control=control,
        others=others,
        template=before + source.template,
        end=source.end,
        pad=source.pad,
        # Bytes, control tokens and what is left of it for merges; a model with many marks has a few more.
        vocab_size=max(_VOCABULARY - len(others), 256 + len(control)),
        length=10**6,
    )


def _some_tasks(size: int) -> list[int]:
    return [index * size // _TASKS for index in range(_TASKS)] if size > _TASKS else list(range(size))


async def _prompt_texts(environment: Environment, splits: Sequence[str]) -> list[str]:
    """The texts that the vocabulary is made for: prompts, and the tools that they show."""
    texts = [json.dumps(schema) for schema in environment.tool_schemas]
    async with environment:
        for split in splits:
            for task in _some_tasks(len(environment.tasks(split))):
                async with environment.start(task=task, split=split, opening=environment.unasked_opening) as episode:
                    texts += [message.content for message in episode.messages]
    return texts
