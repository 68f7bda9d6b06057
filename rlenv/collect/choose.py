"""Which of the episodes that pass are taken: so many a task, and as many of each kind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "Chosen", "choose"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An episode that passed, without its content. `at` is where its line begins in the file `file`.

    `kind` is what is balanced over ("" where nothing is). `content` tells equal episodes of a task.
    """

    split: str
    task: int
    seed: int
    kind: str
    content: bytes
    file: int
    at: int

    @property
    def of_task(self) -> tuple[str, int]:
        """What is one task."""
        return self.split, self.task


@dataclass(frozen=True, slots=True)
class Chosen:
    """The taken ones in the order of tasks and seeds, and how many were left out by which rule."""

    taken: tuple[Candidate, ...]
    left_out: Counter[str]
    kinds: Counter[str]


def choose(candidates: Sequence[Candidate], *, per_task: int | None, balances: bool, seed: int) -> Chosen:
    """Of equal episodes of a task one; at most `per_task` of each; then of each kind as many as the rarest has.

    What is taken is drawn by the seed: equal candidates and an equal seed give equal choices, in whatever order they
    come.
    """
    rng = random.Random(seed)
    ordered = sorted(candidates, key=lambda one: (one.split, one.task, one.seed, one.file, one.at))
    first = {(one.of_task, one.content): one for one in reversed(ordered)}
    left_out: Counter[str] = Counter({"duplicate": len(ordered) - len(first)})
    ordered = [one for one in ordered if first[one.of_task, one.content] is one]
    if per_task is not None:
        groups: dict[tuple[str, int], list[Candidate]] = {}
        for one in ordered:
            groups.setdefault(one.of_task, []).append(one)
        drawn = [set(rng.sample(range(len(group)), min(per_task, len(group)))) for group in groups.values()]
        kept = [
            one
            for group, places in zip(groups.values(), drawn, strict=True)
            for place, one in enumerate(group)
            if place in places
        ]
        left_out["per task"] = len(ordered) - len(kept)
        ordered = kept
    if balances and ordered:
        kinds: dict[str, list[int]] = {}
        for place, one in enumerate(ordered):
            kinds.setdefault(one.kind, []).append(place)
        least = min(map(len, kinds.values()))
        places = {place for kind in sorted(kinds) for place in rng.sample(kinds[kind], least)}
        left_out["balance"] = len(ordered) - len(places)
        ordered = [one for place, one in enumerate(ordered) if place in places]
    return Chosen(tuple(ordered), +left_out, Counter(one.kind for one in ordered))
