"""Which recorded or played episodes become data: what is kept, what is chosen among them, and rows of it."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv.collect.encode import EncodedRow
from rlenv.collect.manifest import ROWS, Identity, Manifest
from rlenv.errors import UsageError
from rlenv.language.expressions import Expression, compile_expression
from rlenv.trajectory import Trajectory

__all__ = ["FIGURES", "FLAGS", "Candidate", "Chosen", "Data", "Keep", "choose", "read_data", "rows_of"]


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


FLAGS: Final = ("success", "invalid", "terminated", "truncated", "cut", "answered")
"""Figures that are 1 or 0; an expression may name them alone."""

FIGURES: Final = (*FLAGS, "reward", "turns", "calls", "calls_failed", "calls_malformed", "chars")


@dataclass(frozen=True, slots=True)
class Keep:
    """Decides over episodes; `of` makes one."""

    expression: Expression
    keeps_invalid: bool
    keeps_cut: bool

    @classmethod
    def of(cls, source: str, *, terms: Collection[str], keeps_invalid: bool = False, keeps_cut: bool = False) -> Keep:
        """Reads an expression such as `success and turns <= 3` over `FIGURES` and the spec's reward terms.

        Raises:
            ExpressionError: it cannot be read, or names what there is not; the message has the nearest name.
            UsageError: it names a term that is called as a figure is.
        """
        expression = compile_expression(source, names=tuple(dict.fromkeys((*FIGURES, *terms))), flags=FLAGS)
        for name in expression.names:
            if name in FIGURES and name in terms:
                raise UsageError(
                    f"--keep: '{name}' is a figure of every episode and a reward term of this spec",
                    hint="rename the term",
                )
        return cls(expression, keeps_invalid, keeps_cut)

    def reason_against(self, trajectory: Trajectory) -> str:
        """Why an episode is rejected, as a word for counting; "" where it is kept."""
        if trajectory.reward.total is None and not self.keeps_invalid:
            return "invalid reward"
        if _is_cut(trajectory) and not self.keeps_cut:
            return "cut turn"
        decided = self.expression(_figures(trajectory))
        if decided is None:
            return "keep: unknown"
        return "" if decided else "keep: false"


def _is_cut(trajectory: Trajectory) -> bool:
    """Whether a limit ended one of the policy's turns in the middle."""
    return trajectory.reason == "turn_tokens" or any(turn.was_cut or turn.parsed.is_cut for turn in trajectory.turns)


def _figures(trajectory: Trajectory) -> Mapping[str, float | None]:
    results = [result for turn in trajectory.turns for result in turn.results]
    own: dict[str, float | None] = {
        "success": None if trajectory.success is None else float(trajectory.success),
        "invalid": float(trajectory.reward.total is None),
        "terminated": float(trajectory.terminated),
        "truncated": float(trajectory.truncated),
        "cut": float(_is_cut(trajectory)),
        "answered": float(trajectory.answer is not None),
        "reward": trajectory.reward.total,
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.calls),
        "calls_failed": float(sum(result.is_error for result in results)),
        "calls_malformed": float(sum(turn.calls_malformed for turn in trajectory.turns)),
        "chars": float(sum(len(turn.action) for turn in trajectory.turns)),
    }
    return {**{name: term.value for name, term in trajectory.reward.terms.items()}, **own}


@dataclass(frozen=True, slots=True)
class Data:
    """A folder of rows that is whole."""

    folder: Path
    manifest: Manifest

    @property
    def file(self) -> Path:
        """The rows."""
        return self.folder / ROWS


def read_data(folder: str | Path, *, identity: Identity | None = None) -> Data:
    """The data in a folder, once its rows are those that its manifest speaks of.

    Args:
        identity: the tokenizer and the template of the model that shall train on it; None asks for none.

    Raises:
        UsageError: the folder is not whole, its rows were changed, or they are another model's tokens.
    """
    path = Path(folder)
    manifest = Manifest.load(path)
    data = Data(path, manifest)
    if not data.file.is_file() or _sha256(data.file) != manifest.rows_sha256:
        raise UsageError(f"{data.file} is not what its manifest speaks of", hint="collect the data anew")
    if identity is not None and identity.tokenizer != manifest.identity.tokenizer:
        raise UsageError(
            f"{folder} holds the token ids of another tokenizer, that of {manifest.model}",
            hint="train that model, or collect again for this one: rlenv collect SPEC --from RECORDS --model MODEL",
        )
    if identity is not None and identity.template != manifest.identity.template:
        raise UsageError(
            f"{folder} was written in another chat template than this model's",
            hint="give the one it was collected with (--chat-template, --kwarg), or collect it again with this model's",
        )
    return data


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rows_of(files: Sequence[str | Path]) -> Iterator[EncodedRow]:
    """The rows of some files in order.

    Raises:
        UsageError: a line is no row: ids and mask of one length, the mask of ones and zeros, the first id not trained,
            and some id trained.
    """
    for name in files:
        with Path(name).open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield _row(json.loads(line))
                except (ValueError, TypeError, KeyError) as error:
                    raise UsageError(f"{name}:{number}: no row of supervised data: {error}") from error


def _row(read: Any) -> EncodedRow:
    ids, mask = read["input_ids"], read["loss_mask"]
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        raise ValueError("input_ids and loss_mask have to be lists of one length")
    if any(type(number) is not int or number < 0 for number in ids) or any(one not in (0, 1) for one in mask):
        raise ValueError("input_ids are ids, and loss_mask is 0 or 1 for each")
    if not any(mask) or mask[0]:
        raise ValueError("some id has to be trained, and not the first")
    return EncodedRow(tuple(ids), tuple(mask))
