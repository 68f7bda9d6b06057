"""Supervised data: which episodes become rows of it, the rows of a folder, and the manifest that says of what."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from rlenv._base.bounded import grouped
from rlenv._base.paths import draft_of, names_in
from rlenv._base.text import nearest
from rlenv.collect.encode import EncodedRow
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError, told_as
from rlenv.language.expressions import Expression, compile_expression
from rlenv.runs import files as record
from rlenv.runs.folder import is_run, open_run
from rlenv.runs.locks.files import file_sha256
from rlenv.runs.reader import RunReader
from rlenv.runs.recorded import ordered_ids, recorded_in
from rlenv.trajectory import Trajectory

MANIFEST: Final = "manifest.json"
ROWS: Final = "rows.jsonl"
TRAJECTORIES: Final = "trajectories.jsonl"
_FORMAT: Final = 1

_PROBE: Final = (
    'Hello, wörld!  12,345 + 67 = 12412\n\n\t{"name": "search", "arguments": {"q": ["a\\"b"]}}',
    "<think>\n</think>\n<tool_call>\n</tool_call><answer> 42 </answer>\u2028 \u00e9e\u0301 \u4f60\u597d \U0001f642",
    "    def f(x):\n        return x ** 2  # don't I'll WE'RE  \r\n",
)


@dataclass(frozen=True, slots=True)
class Identity:
    """A tokenizer and a chat template by what they do: SHA-256, hexadecimal.

    `tokenizer` is over its tokens with their ids and over the ids of a probe, so that the same one saved anew by
    another library is the same. `template` is over the template's text and the names that it is given.
    """

    tokenizer: str
    template: str


def identity_of(tokenizer: Any, *, template_kwargs: Mapping[str, Any]) -> Identity:
    """The identity of a tokenizer and its chat template, and of the names that the template is given.

    Args:
        tokenizer: of `rlenv.tokens.bound`, or a fast one of transformers.
    """
    backend = tokenizer.backend_tokenizer
    tokens = sorted(backend.get_vocab(with_added_tokens=True).items())
    probed = [backend.encode(text, add_special_tokens=False).ids for text in _PROBE]
    named = sorted(template_kwargs.items())
    return Identity(_digest([tokens, probed]), _digest([tokenizer.chat_template, named]))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one folder. `kept` and `rejected` count episodes, the latter by reason.

    `turns_recorded` and `turns_anew` count the turns of all rows whose ids were the record's, and those encoded from
    text. `rows_sha256` is that of `rows.jsonl`. `versions` are those of what made it.
    """

    environment: str
    spec: str
    digest: str
    set: Mapping[str, Any]
    source: str
    splits: tuple[str, ...]
    keep: str
    per_task: int | None
    balance: str | None
    seed: int
    model: str
    identity: Identity
    history: str
    template_kwargs: Mapping[str, Any]
    episodes: int
    kept: int
    rejected: Mapping[str, int]
    kinds: Mapping[str, int]
    tasks: int
    rows: int
    tokens: int
    tokens_trained: int
    longest: int
    turns_recorded: int
    turns_anew: int
    differences: int
    rows_sha256: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Writes manifest.json, whole or not at all."""
        fields = {"format": _FORMAT, **dataclasses.asdict(self)}
        with draft_of(folder / MANIFEST) as draft:
            draft.write_text(json.dumps(fields, indent=2) + "\n", encoding="ascii")

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest in a folder.

        Raises:
            UsageError: there is none, or one that another version wrote.
        """
        path = folder / MANIFEST
        if not path.is_file():
            if (folder / TRAJECTORIES).is_file():
                raise UsageError(
                    f"{folder} is not whole: its `rlenv collect` was ended before it wrote {MANIFEST}. What it played "
                    "is kept",
                    hint=f"go on with: rlenv collect SPEC --from {folder / TRAJECTORIES} -o ANOTHER",
                )
            message = f"{folder} holds no supervised data (there is no {MANIFEST})"
            raise UsageError(message, hint="`rlenv collect -o` makes it")
        caught = (ValueError, TypeError, KeyError, AttributeError)
        with told_as(UsageError, f"{path} is no manifest of `rlenv collect`:", *caught):
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields.pop("format", None) != _FORMAT:
                raise UsageError(f"{path} was written by another version of rlenv", hint="collect the data anew")
            fields["identity"] = Identity(**fields["identity"])
            fields["splits"] = tuple(fields["splits"])
            return cls(**fields)


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
        """The identity of a task."""
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
        groups = grouped((one.of_task, one) for one in ordered)
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
        kinds = grouped((one.kind, place) for place, one in enumerate(ordered))
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
        """The reason against an episode, as a word for counting; "" where it is kept."""
        if trajectory.reward.total is None and not self.keeps_invalid:
            return "invalid reward"
        if _is_cut(trajectory) and not self.keeps_cut:
            return "cut turn"
        decided = self.expression(_episode_figures(trajectory))
        if decided is None:
            return "keep: unknown"
        return "" if decided else "keep: false"


def _is_cut(trajectory: Trajectory) -> bool:
    """True where a limit ended one of the policy's turns in the middle."""
    return trajectory.reason == "turn_tokens" or any(turn.was_cut or turn.parsed.is_cut for turn in trajectory.turns)


def _episode_figures(trajectory: Trajectory) -> Mapping[str, float | None]:
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
    if file_sha256(data.file) != manifest.rows_sha256:
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


def rows_of(files: Sequence[str | Path]) -> Iterator[EncodedRow]:
    """The rows of some files in order.

    Raises:
        UsageError: a line is no row: ids and mask of one length, the mask of ones and zeros, the first id not trained,
            and some id trained.
    """
    for name in files:
        with Path(name).open("rb") as file:
            for number, line in enumerate(file, 1):
                with told_as(
                    UsageError, f"{name}:{number}: no row of supervised data:", ValueError, TypeError, KeyError
                ):
                    row = _read_row(json.loads(line))
                yield row


def _read_row(read: Any) -> EncodedRow:
    ids, mask = read["input_ids"], read["loss_mask"]
    if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask):
        raise ValueError("input_ids and loss_mask have to be lists of one length")
    if any(type(number) is not int or number < 0 for number in ids) or any(one not in (0, 1) for one in mask):
        raise ValueError("input_ids are ids, and loss_mask is 0 or 1 for each")
    if not any(mask) or mask[0]:
        raise ValueError("some id has to be trained, and not the first")
    return EncodedRow(tuple(ids), tuple(mask))


# Episodes that were recorded


def files_of(names: Sequence[str]) -> list[Path]:
    """The records that were named: each a file, a run, or a folder of `rlenv collect`.

    Raises:
        UsageError: there is none in it.
    """
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_file() or is_run(path):
            found.append(path)
        elif (path / "trajectories.jsonl").is_file():
            found.append(path / "trajectories.jsonl")
        elif inside := sorted((path / "trajectories").glob("step-*.jsonl")):
            found += inside  # the validations of `rlenv train`
        else:
            close = nearest(path.name, names_in(path.parent))
            hint = f"did you mean {path.parent / close}?" if close else ""
            raise UsageError(f"there are no recorded episodes at {path}", hint=hint)
    return found


def recorded_episodes(
    files: Sequence[Path], environment: Environment, *, split: str | None
) -> Iterator[tuple[Trajectory, int, int]]:
    """The episodes in files of records, each with the number of its file and the place of its line.

    A line that was cut off in the middle is left out, as `rlenv.runs.files.read` leaves it out.

    Raises:
        UsageError: a line is no trajectory, or one of another environment.
    """
    for number, path in enumerate(files):
        for at, trajectory in _places(path):
            if trajectory.environment.removeprefix("rlenv/") != environment.id.removeprefix("rlenv/"):
                raise UsageError(
                    f"{path} holds episodes of {trajectory.environment}, and the spec is {environment.id}",
                    hint="give theirs",
                )
            if split is None or trajectory.split == split:
                yield trajectory, number, at


def _places(path: Path) -> Iterator[tuple[int, Trajectory]]:
    """The episodes of a file with the place of their lines, or those of a run with their place in its order."""
    if is_run(path):
        yield from enumerate(recorded_in(path))
        return
    with path.open("rb") as file:
        lines = [at for at, line in _lines_with_places(file) if line.strip()]
    yield from zip(lines, record.read(path), strict=False)


def _lines_with_places(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    at = 0
    for line in file:
        yield at, line
        at += len(line)


class EpisodeSource:
    """Gives episodes of a file or a run back by their place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._run: tuple[RunReader, list[str]] | None = None
        if is_run(path):
            reader = open_run(path)
            self._run = (reader, ordered_ids(reader))

    def at(self, place: int) -> Trajectory:
        """The episode at a place that `recorded` gave."""
        if self._run is not None:
            reader, ids = self._run
            return reader.body(ids[place]).trajectory()
        with self._path.open("rb") as file:
            file.seek(place, os.SEEK_SET)
            return record.parse(file.readline())
