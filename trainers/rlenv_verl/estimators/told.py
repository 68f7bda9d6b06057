"""What an estimator gives each episode of a batch, for whoever keeps the episodes.

An estimator is a function that veRL calls with tensors, and the replay buffer, which knows the ids that the episodes
are kept under, has returned by then. Both run in the trainer's process, so that one object of it joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch

from rlenv_verl.estimators.episode_rows import Episodes

__all__ = ["ADVANTAGES", "Advantages"]


@dataclass(slots=True, eq=False)
class Advantages:
    """Hands over the advantages of the episodes that somebody asks for."""

    _asked: dict[tuple[str, str], str] = field(default_factory=dict)
    _write: Callable[[str, float], None] | None = None

    def ask(self, ids: Mapping[tuple[str, str], str], write: Callable[[str, float], None]) -> None:
        """Calls `write` with the id and the advantage of each episode of the next batch, once.

        Args:
            ids: by a prompt's uid and an episode's session (`RowLabel`); what an earlier call asked is forgotten.
        """
        self._asked, self._write = dict(ids), write

    def tell(self, episodes: Episodes, advantages: torch.Tensor, response_mask: torch.Tensor) -> None:
        """The mean advantage over the trained tokens of each episode that has any; costs nothing where nobody asks.

        Args:
            episodes: of the batch.
            advantages: float, shape (rows, response tokens).
            response_mask: same shape.
        """
        write = self._write
        if write is None:
            return
        mask = response_mask.to(advantages.dtype)
        count = torch.zeros(len(episodes.rows), dtype=advantages.dtype, device=advantages.device)
        total = count.index_add(0, episodes.of_row, (advantages * mask).sum(dim=-1))
        count = count.index_add(0, episodes.of_row, mask.sum(dim=-1))
        means = (total / count.clamp_min(1)).tolist()
        for key, value, is_valid in zip(episodes.keys, means, episodes.is_valid.tolist(), strict=True):
            id = self._asked.pop(key, "")
            if id and is_valid:
                write(id, value)


ADVANTAGES: Final = Advantages()
"""What the estimators and the replay buffer of a process share."""
