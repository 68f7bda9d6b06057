"""The loss of supervised rows without veRL: what the tiny policy's warm start trains with, and what proves the other.

Both mean the same: the sum of the trained tokens' negative log-likelihoods, in nats, over a number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlenv.collect.encode import EncodedRow

__all__ = ["Batch", "batch_of", "loss_sum", "take_step", "token_losses"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded on the right: `ids` int64 and `is_trained` bool, shape (rows, longest).

    Causal attention makes a mask of the padding needless: no token reads what stands behind it.
    """

    ids: torch.Tensor
    is_trained: torch.Tensor

    @property
    def trained(self) -> int:
        """The trained tokens."""
        return int(self.is_trained.sum())


def batch_of(rows: Sequence[EncodedRow], *, pad_id: int) -> Batch:
    """The rows as one batch."""
    return Batch(_padded([row.input_ids for row in rows], pad_id), _padded([row.loss_mask for row in rows], 0) == 1)


def token_losses(model: Any, batch: Batch) -> torch.Tensor:
    """The loss of each trained token, float, in the order of rows and places.

    Args:
        model: a causal language model of transformers; its output layer is applied to the trained tokens alone.
    """
    targets = batch.is_trained[:, 1:]
    states = model.base_model(input_ids=batch.ids).last_hidden_state[:, :-1]
    # Three quarters of the tokens are prompts and results: their logits would cost as much as a layer.
    logits = model.get_output_embeddings()(states[targets])
    return torch.nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][targets], reduction="none")


def loss_sum(model: Any, batch: Batch) -> torch.Tensor:
    """The sum of `token_losses`."""
    return token_losses(model, batch).sum()


def take_step(
    model: Any, optimiser: torch.optim.Optimizer, batches: Sequence[Batch], *, tokens: float, clip: float = 1.0
) -> tuple[float, float]:
    """One step of the optimiser over the sum of all batches' losses, divided by `tokens`.

    Args:
        batches: micro-batches of one step.
        tokens: what the sum is divided by: the step's trained tokens for a mean over tokens, or a constant.
        clip: the largest norm of the gradient.

    Returns:
        The mean loss of a trained token before the step, and the gradient's norm before it was clipped.
    """
    total = 0.0
    for batch in batches:
        loss = loss_sum(model, batch)
        torch.autograd.backward(loss / tokens)
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimiser.step()
    optimiser.zero_grad()
    return total / max(1, sum(batch.trained for batch in batches)), float(norm)


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
