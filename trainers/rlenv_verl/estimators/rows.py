"""The rows of a batch by episode, and the advantages of the episodes for whoever keeps them.

With `run.history: rows` an episode is several rows of veRL's batch, and an estimator is handed rewards, mask and one
label a row (`index`, the field `uid`), no more. So rlenv's replay buffer puts a `RowLabel` in the place of the prompt's
uid, and rlenv's estimators read the rows of an episode together: each episode is in its group's statistics once, with
its whole reward, and every sampled token of it gets its advantage.

Rewards of rows are what is earned from the row's start on, so that each row is complete by itself for estimators that
know no episodes (veRL's `gae`): the rewards of its own turns on their own tokens, and on its last sampled token what
the later rows earn. That part is `carried`; without it the rows of an episode sum to its reward.

An estimator is a function that veRL calls with tensors, and the replay buffer, which knows the ids that the episodes
are kept under, has returned by then. Both run in the trainer's process, so that one object of it joins them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import torch

_PREFIX: Final = "rlenv|"


@dataclass(frozen=True, slots=True)
class RowLabel:
    """One row of a batch: the prompt's `uid`, the episode of that prompt, and the row's place in it from 0 on.

    `carried` is the part of the row's reward that its episode earns in later rows; it stands on the row's last sampled
    token.
    """

    uid: str
    session: str
    index: int
    carried: float = 0.0

    @property
    def text(self) -> str:
        """The label as it stands in the field `uid`; floats come back as they were."""
        return f"{_PREFIX}{self.uid}|{self.session}|{self.index}|{self.carried!r}"

    @classmethod
    def of(cls, text: str, *, row: int) -> RowLabel:
        """The label that a text is; any other text is the uid of a prompt, and its row an episode of its own."""
        if not text.startswith(_PREFIX):
            return cls(text, f"row {row}", 0)
        uid, session, index, carried = text.removeprefix(_PREFIX).rsplit("|", 3)
        return cls(uid, session, int(index), float(carried))


@dataclass(frozen=True, slots=True)
class Episodes:
    """A batch by episode.

    Attributes:
        rows: the rows of each episode, in the order in which they were played.
        of_row: int64, shape (rows,): the episode of each row.
        keys: the prompt's uid and the session of each episode.
        rewards: float, shape (episodes,): what each earned in all its rows, penalties on their tokens included.
        own: float, shape (rows, response tokens): the rewards of each row without what is carried.
        is_valid: bool, shape (episodes,): some token of it was sampled and is trained on.
    """

    rows: tuple[tuple[int, ...], ...]
    of_row: torch.Tensor
    keys: tuple[tuple[str, str], ...]
    rewards: torch.Tensor
    own: torch.Tensor
    is_valid: torch.Tensor

    @property
    def groups(self) -> tuple[str, ...]:
        """The prompt's uid of each episode."""
        return tuple(uid for uid, _ in self.keys)

    @property
    def last_rows(self) -> torch.Tensor:
        """int64, shape (episodes,): the last row of each episode."""
        return torch.tensor([rows[-1] for rows in self.rows], device=self.own.device)

    def to_rows(self, values: torch.Tensor) -> torch.Tensor:
        """One value a row from one value an episode."""
        return values[self.of_row]


def episodes_of(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Sequence[Any]) -> Episodes:
    """The episodes of a batch.

    Args:
        token_level_rewards: shape (rows, response tokens).
        response_mask: same shape; rows of zeros are episodes that failed, or padding.
        index: one label a row: a `RowLabel`'s text, or the prompt's uid.
    """
    labels = [RowLabel.of(str(label), row=row) for row, label in enumerate(index)]
    members: dict[tuple[str, str], list[int]] = {}
    for row, label in enumerate(labels):
        members.setdefault((label.uid, label.session), []).append(row)
    rows = tuple(tuple(sorted(found, key=lambda row: labels[row].index)) for found in members.values())
    of_row = torch.zeros(len(labels), dtype=torch.int64)
    for episode, found in enumerate(rows):
        of_row[list(found)] = episode
    of_row = of_row.to(token_level_rewards.device)
    own = token_level_rewards
    rewards = token_level_rewards.sum(dim=-1)
    carried = torch.tensor([label.carried for label in labels], dtype=own.dtype, device=own.device)
    if bool(carried.any()):
        own = token_level_rewards.clone()
        own[torch.arange(len(own)), last_sampled(response_mask)] -= carried
    # The first row has the whole reward already. A later one adds what it does not have of it: a penalty on its tokens.
    # In this order the sum is exact where there is none, so that equal rewards stay equal.
    totals = rewards[[found[0] for found in rows]]
    for episode, found in enumerate(rows):
        for before, row in pairwise(found):
            totals[episode] += rewards[row] - carried[before]
    is_sampled = (response_mask.sum(dim=-1) > 0).to(torch.int64)
    count = torch.zeros(len(rows), dtype=torch.int64, device=own.device)
    return Episodes(
        rows=rows,
        of_row=of_row,
        keys=tuple(members),
        rewards=totals,
        own=own,
        is_valid=count.index_add(0, of_row, is_sampled) > 0,
    )


def last_sampled(response_mask: torch.Tensor) -> torch.Tensor:
    """int64, shape (rows,): the place of each row's last one, the row's last place where there is none."""
    return response_mask.shape[1] - 1 - response_mask.flip(-1).argmax(dim=-1)


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
