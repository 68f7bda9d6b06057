"""The part that the trainers of this package share: a player of whatever specs a data set names, once a process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rlenv.episodes.environment import Environment, load
from rlenv_train.player import Player

__all__ = ["Hosted", "environment_of", "placeholder"]


@cache
def environment_of(spec: str) -> Environment:
    """The environment of a spec, by path or by the name of one that ships; one a process.

    Raises:
        SpecError: the spec's own faults.
    """
    return load(spec)


class Hosted(Player):
    """A player whose addresses name specs by path, or by the name of one that ships; they are loaded as they come."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__((), tokenizer, **options)

    def environment(self, name: str) -> Environment:
        """The environment of that path or name.

        Raises:
            SpecError: the spec's own faults.
        """
        return environment_of(name)


def placeholder(rewards: Mapping[int, float | None]) -> float:
    """The number for a masked sample where a trainer wants one and averages over its group: the others' mean.

    So the group's mean is the one that the others have by themselves. 0.0 where there are no others.

    Args:
        rewards: of the group, by whatever tells its samples apart; None for a masked one.
    """
    known = [reward for reward in rewards.values() if reward is not None]
    return sum(known) / len(known) if known else 0.0
