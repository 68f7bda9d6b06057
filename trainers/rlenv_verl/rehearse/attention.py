"""Attention of each token to the last few of its own sequence: linear in the length, for rehearsals alone."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["NAME", "WINDOW", "register", "window_attention"]

NAME = "rlenv_window"
"""What `attn_implementation` calls it."""
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
    shifted = [(_behind(key, by), _behind(value, by)) for by in reach]
    scores = torch.stack([(query * keys).sum(-1) for keys, _ in shifted], dim=-1) * scaling
    seen = position_ids[:, None, :, None] >= torch.arange(len(reach), device=query.device)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    out = sum(weights[..., by, None] * values for by, (_, values) in enumerate(shifted))
    assert isinstance(out, torch.Tensor)
    return out.transpose(1, 2).contiguous(), None


def _behind(part: torch.Tensor, by: int) -> torch.Tensor:
    """`part` moved by so many tokens, zeros before it."""
    return part if by == 0 else torch.nn.functional.pad(part, (0, 0, by, 0))[:, :, : part.shape[2]]


def register() -> None:
    """Makes the name known to transformers in this process."""
    from transformers import AttentionInterface

    interface: Any = AttentionInterface
    interface.register(NAME, window_attention)
