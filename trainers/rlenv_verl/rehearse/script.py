"""What a rehearsal's policy writes: episodes of several kinds, padded to the lengths that a preset allows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["KINDS", "SCRIPT_KEY", "Filler", "Kind", "kind_of", "padded"]

SCRIPT_KEY = "rlenv_rehearsal"
"""The sampling parameter that carries an answer to the rehearsal's server."""

Kind = Literal["full", "limit", "turns", "malformed", "short", "aborted"]

KINDS: dict[Kind, str] = {
    "full": "the oracle's actions behind filler, the last ending at the limit of the response",
    "limit": "one action without an end, cut at the limit of the response",
    "turns": "the oracle's actions behind filler, each as long as a turn may be",
    "malformed": "a call that breaks off, then as `full`",
    "short": "the oracle's actions as they are",
    "aborted": "a generation that the server aborts; the sample is masked",
}

_RARE: tuple[Kind, ...] = ("short", "aborted", "turns", "malformed")


def kind_of(session: int, *, group: int, task: int, step: int) -> Kind:
    """The kind of one of a prompt's `group` samples.

    Of a group of n, the first n - n // 5 (at least one less than n) are `full` and `limit` by turns, so that each
    group has episodes that succeed and that do not, nearly all as long as they may be. The rest go round the rare
    kinds, by task and step. Single samples go round all kinds.
    """
    rare = max(1, group // 5)
    if group == 1:
        return ("full", "limit", "full", "limit", *_RARE)[(task + step) % (4 + len(_RARE))]
    if session < group - rare:
        return "full" if session % 2 == 0 else "limit"
    return _RARE[(task + step + session) % len(_RARE)]


@dataclass(frozen=True, slots=True)
class Filler:
    """Draws tokens that stand for what a policy would think: any of `ids`, whose text is letters alone."""

    ids: Sequence[int]

    def drawn(self, count: int, rng: random.Random) -> list[int]:
        """So many of them."""
        return rng.choices(self.ids, k=count) if count > 0 else []


def padded(
    action: Sequence[int], kind: Kind, *, most: int, is_last: bool, filler: Filler, rng: random.Random
) -> list[int]:
    """An action behind as much filler as its kind wants; never longer than `most` tokens.

    Args:
        action: the ids of the action, its end mark included; cut at `most` where it is longer.
        most: what the request allows.
        is_last: no action follows it.
    """
    if kind == "limit":
        return filler.drawn(most, rng)
    if kind in ("short", "aborted"):
        return list(action[:most])
    # What is left has to hold the result and the actions that follow.
    wanted = most if is_last or kind == "turns" else most // 2
    return [*filler.drawn(wanted - len(action), rng), *action][:most]
