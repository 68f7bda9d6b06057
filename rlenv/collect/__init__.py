"""Supervised data out of episodes: played or recorded, rejected by their rewards, as the very tokens that RL trains on.

    DATA/trajectories.jsonl   every episode that was played, as it ended (not where recorded ones were read)
    DATA/rows.jsonl           the rows of those that were kept: ids and masks, and the messages beside them
    DATA/manifest.json        what it was made of, written last: a folder without it is not whole

`collect` makes such a folder, `read_data` reads it for a trainer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import rlenv
from rlenv._base.text import did_you_mean
from rlenv.checks.diagnose import judge_environment
from rlenv.collect import data
from rlenv.collect.data import Data, Identity, Keep, Manifest, identity_of, read_data
from rlenv.collect.encode import Encoded, EncodedRow, Unencodable, encode_episode
from rlenv.dialects.base import Cut
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, gather_all, play
from rlenv.errors import MissingExtra, UsageError
from rlenv.messages import Message
from rlenv.policies.base import Policy
from rlenv.runs import files as record
from rlenv.tokens.bound import cut_of
from rlenv.tokens.encoder import TokenEncoder
from rlenv.trajectory import Trajectory, Turn

__all__ = ["CollectReport", "Data", "EncodedRow", "Identity", "Keep", "Manifest", "Settings", "Unencodable", "collect"]
__all__ += ["encode_episode", "identity_of", "read_data"]

_FIGURES = ("kept", "rows", "tokens", "tokens_trained", "longest", "turns_recorded", "turns_anew", "differences")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a collection. `jobs` are played by a policy, `samples` of them a task; or `records` are read.

    `model` is what the tokens are for, as it was named, and `identity` says which those are; `source` says who played.
    `concurrency` episodes are played at
    once. `set` are the spec's overrides, `template_kwargs` the names that the chat template is given.
    """

    folder: Path
    model: str
    identity: Identity
    source: str
    keep: Keep
    jobs: tuple[Job, ...] = ()
    samples: int = 1
    records: tuple[str, ...] = ()
    split: str | None = None
    per_task: int | None = None
    balance: str | None = None
    seed: int = 0
    concurrency: int = 64
    set: Mapping[str, Any] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The result of a collection: the manifest as it was written."""

    folder: Path
    manifest: Manifest


def collect(
    environment: Environment,
    encoder: TokenEncoder,
    settings: Settings,
    *,
    policy: Callable[[], Policy] | None = None,
    on_episode: Callable[[int], None] = lambda _: None,
) -> CollectReport:
    """Plays or reads episodes, rejects, chooses, and writes rows; equal sources and an equal seed give equal rows.

    The folder is new. Episodes are recorded as they end; rows and manifest appear once they are whole, the manifest
    last. What was played by a run that did not end is kept.

    Args:
        encoder: of the model, bound to the environment.
        policy: makes the policy that plays `settings.jobs`.
        on_episode: called with the number of episodes so far.

    Raises:
        UsageError: the folder holds data already, the chat template cannot hold what the environment plays, a column
            does not exist, or no episode was kept.
    """
    folder = settings.folder
    _check_is_free(folder)
    files = data.files_of(settings.records)
    verdict = judge_environment(environment, encoder)
    if not verdict.will_run:
        raise UsageError(verdict.message)
    folder.mkdir(parents=True, exist_ok=True)
    pool = _Pool(environment, settings)

    def take(trajectory: Trajectory, file: int, at: int) -> None:
        pool.take(trajectory, file, at)
        on_episode(pool.episodes)

    if policy is None:
        for found in data.recorded_episodes(files, environment, split=settings.split):
            take(*found)
    else:
        files = [folder / data.TRAJECTORIES]
        _play(environment, encoder, settings, policy(), files[0], take)
    balances = settings.balance is not None
    chosen = data.choose(pool.candidates, per_task=settings.per_task, balances=balances, seed=settings.seed)
    with _Rows(folder) as rows:
        for candidate, trajectory in _chosen_episodes(chosen, files):
            rows.add(trajectory, environment, encoder, source=_source(settings, files, candidate))
    return CollectReport(folder, _finish_rows(environment, encoder, settings, pool, chosen, rows))


def _play(
    environment: Environment,
    encoder: TokenEncoder,
    settings: Settings,
    policy: Policy,
    path: Path,
    take: Callable[[Trajectory, int, int], None],
) -> None:
    """Plays the jobs of `settings`, records the episodes at `path`, and hands each to `take`."""
    cut = cut_of(environment, encoder) if environment.spec.observation.max_tokens is not None else None
    with EpisodeRecorder(path) as recorder:
        asyncio.run(
            play_jobs(
                environment,
                policy,
                settings.jobs,
                samples=settings.samples,
                concurrency=settings.concurrency,
                cut=cut,
                recorder=recorder,
                on_episode=take,
            )
        )


def _finish_rows(
    environment: Environment, encoder: TokenEncoder, settings: Settings, pool: _Pool, chosen: data.Chosen, rows: _Rows
) -> Manifest:
    """Puts the rows in their place, and the manifest beside them. Raises UsageError: there are none."""
    folder = settings.folder
    rejected = pool.rejected + chosen.left_out + rows.rejected
    if not rows.figures["kept"]:
        (folder / f"{data.ROWS}.part").unlink()
        counts = ", ".join(f"{reason} {count}" for reason, count in rejected.most_common()) or "there were none"
        raise UsageError(f"no episode was kept of {pool.episodes}: {counts}{rows.example()}")
    manifest = Manifest(
        environment=environment.id,
        spec=environment.address or str(environment.loaded.path),
        digest=environment.loaded.digest,
        set={key: str(value) for key, value in settings.set.items()},
        source=settings.source,
        splits=tuple(pool.splits),
        keep=settings.keep.expression.source,
        per_task=settings.per_task,
        balance=settings.balance,
        seed=settings.seed,
        model=settings.model,
        identity=settings.identity,
        history=encoder.history,
        template_kwargs=dict(settings.template_kwargs),
        episodes=pool.episodes,
        rejected=dict(sorted(rejected.items())),
        kinds=dict(sorted(chosen.kinds.items())) if settings.balance is not None else {},
        tasks=len(rows.tasks),
        rows_sha256=rows.sha256,
        versions={"rlenv": rlenv.__version__, "tokenizers": _version("tokenizers")},
        **rows.figures,
    )
    os.replace(folder / f"{data.ROWS}.part", folder / data.ROWS)
    manifest.write(folder)
    return manifest


def _check_is_free(folder: Path) -> None:
    there = [name for name in (data.MANIFEST, data.ROWS, data.TRAJECTORIES) if (folder / name).exists()]
    if there:
        raise UsageError(f"{folder} holds data already ({' and '.join(there)})", hint="name another folder with -o")


class _Pool:
    """The episodes that passed, without their contents."""

    def __init__(self, environment: Environment, settings: Settings) -> None:
        self.candidates: list[data.Candidate] = []
        self.rejected: Counter[str] = Counter()
        self.splits: dict[str, None] = {}
        self.episodes = 0
        self._keep, self._balance = settings.keep, settings.balance
        self._environment = environment

    def take(self, trajectory: Trajectory, file: int, at: int) -> None:
        self.episodes += 1
        self.splits[trajectory.split] = None
        if reason := self._keep.reason_against(trajectory):
            self.rejected[reason] += 1
            return
        kind = "" if self._balance is None else self._kind(self._balance, trajectory)
        self.candidates.append(
            data.Candidate(
                trajectory.split, trajectory.task_index, trajectory.seed, kind, _content_digest(trajectory), file, at
            )
        )

    def _kind(self, column: str, trajectory: Trajectory) -> str:
        if column in trajectory.task:
            return str(trajectory.task[column])
        if column == "task":
            return f"{trajectory.split}/{trajectory.task_index}"
        hint = did_you_mean(
            column, [*trajectory.task, "task"], otherwise=f"there are {', '.join(trajectory.task)}, and task"
        )
        raise UsageError(f"--balance: row {trajectory.task_index} has no column '{column}'", hint=hint)


def _content_digest(trajectory: Trajectory) -> bytes:
    """A digest of what a row holds: two samples of a task may be word for word the same."""
    said = [(turn.action, turn.token_ids, _answers(turn)) for turn in trajectory.turns]
    return hashlib.sha256(repr(([message.content for message in trajectory.messages], said)).encode()).digest()


def _answers(turn: Turn) -> list[str]:
    return [message.content for message in turn.observation.messages] if turn.observation is not None else []


class _Rows:
    """Writes the rows of chosen episodes to a draft beside their place, and counts them in the manifest's `figures`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{data.ROWS}.part"
        self._digest = hashlib.sha256()
        self.rejected: Counter[str] = Counter()
        self._said = ""
        self.tasks: set[tuple[str, int]] = set()
        self.figures = dict.fromkeys(_FIGURES, 0)

    def __enter__(self) -> _Rows:
        self._file: IO[bytes] = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def example(self) -> str:
        return f" (the first: {self._said})" if self._said else ""

    def add(self, trajectory: Trajectory, environment: Environment, encoder: TokenEncoder, *, source: str) -> None:
        try:
            encoded = encode_episode(encoder, environment, trajectory)
        except Unencodable as error:
            self.rejected[error.reason] += 1
            self._said = self._said or str(error)
            return
        self._write(trajectory, encoded, source)

    def _write(self, trajectory: Trajectory, encoded: Encoded, source: str) -> None:
        messages, figures = _conversation(trajectory), self.figures
        for number, row in enumerate(encoded.rows):
            line = {
                "input_ids": row.input_ids,
                "loss_mask": row.loss_mask,
                "task": trajectory.task_index,
                "split": trajectory.split,
                "seed": trajectory.seed,
                "spec": trajectory.environment,
                "reward": trajectory.reward.total,
                "success": trajectory.success,
                "source": source,
                "row": number,
                "messages": messages,
            }
            written = json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"
            self._digest.update(written)
            self._file.write(written)
            figures["tokens"] += len(row.input_ids)
            figures["tokens_trained"] += sum(row.loss_mask)
            figures["longest"] = max(figures["longest"], len(row.input_ids))
        figures["kept"] += 1
        figures["rows"] += len(encoded.rows)
        figures["turns_recorded"] += encoded.recorded
        figures["turns_anew"] += encoded.anew
        figures["differences"] += len(encoded.differences)
        self.tasks.add((trajectory.split, trajectory.task_index))


def _conversation(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The messages for people and for trainers that read text: an action is its whole text, calls in it."""
    messages = [message.as_dict() for message in trajectory.messages]
    for index, turn in enumerate(trajectory.turns):
        messages.append(Message("assistant", turn.action).as_dict())
        if turn.observation is not None and index < len(trajectory.turns) - 1:
            messages += [message.as_dict() for message in turn.observation.messages]
    return messages


def _chosen_episodes(chosen: data.Chosen, files: Sequence[Path]) -> Iterator[tuple[data.Candidate, Trajectory]]:
    sources = [data.EpisodeSource(path) for path in files]
    for candidate in chosen.taken:
        yield candidate, sources[candidate.file].at(candidate.at)


def _source(settings: Settings, files: Sequence[Path], candidate: data.Candidate) -> str:
    return f"{settings.source}:{files[candidate.file].name}" if settings.records else settings.source


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    raise MissingExtra("token-exact rows", extra="tokens")


# Episodes that are played

OnEpisode = Callable[[Trajectory, int, int], None]
"""Called with an episode, the number of its file and the place of its line in it."""


class EpisodeRecorder:
    """Appends episodes to a file of their own, each flushed: what a killed run has played is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = path.open("xb")

    def __enter__(self) -> EpisodeRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, trajectory: Trajectory) -> int:
        """Writes one; the place at which its line begins."""
        at = self._file.tell()
        record.append(self._file, trajectory)
        self._file.flush()
        return at


async def play_jobs(
    environment: Environment,
    policy: Policy,
    jobs: Sequence[Job],
    *,
    samples: int,
    concurrency: int,
    cut: Cut | None,
    recorder: EpisodeRecorder,
    on_episode: OnEpisode,
) -> None:
    """Plays all jobs and records each episode.

    Where a reward term compares the samples of a task, they are recorded together, once all have ended.

    Args:
        samples: how many of the jobs, one behind the other, are samples of one task.
        cut: how results are cut; None: by the spec's characters.
    """
    queue = iter(range(len(jobs)))
    waiting: dict[int, list[Trajectory]] = {}
    scorer = environment.parts.scorer

    async def work() -> None:
        for index in queue:
            ended = [await play(environment, policy, jobs[index], cut=cut)]
            if scorer.has_group_terms:
                group = waiting.setdefault(index // samples, [])
                group += ended
                if len(group) < samples:
                    continue
                ended = await environment.score_groups(waiting.pop(index // samples))
            for trajectory in ended:
                on_episode(trajectory, 0, recorder.append(trajectory))

    async with contextlib.aclosing(policy), environment:
        await gather_all([work() for _ in range(min(concurrency, len(jobs)))])
