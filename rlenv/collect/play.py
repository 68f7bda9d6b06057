"""Sources of episodes: played by a policy and recorded as they end, or read from records."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from rlenv._base.paths import names_in
from rlenv._base.text import nearest
from rlenv.dialects.base import Cut
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, play, together
from rlenv.errors import UsageError
from rlenv.policies.base import Policy
from rlenv.runs import files as record
from rlenv.runs.folder import is_run, open_run
from rlenv.runs.reader import RunReader
from rlenv.runs.recorded import in_order, recorded_in
from rlenv.trajectory import Trajectory

__all__ = ["EpisodeRecorder", "EpisodeSource", "files_of", "play_jobs", "recorded"]

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

    try:
        async with environment:
            await together([work() for _ in range(min(concurrency, len(jobs)))])
    finally:
        await policy.aclose()


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


def recorded(
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
        lines = [at for at, line in _lines(file) if line.strip()]
    yield from zip(lines, record.read(path), strict=False)


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
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
            self._run = (reader, in_order(reader))

    def at(self, place: int) -> Trajectory:
        """The episode at a place that `recorded` gave."""
        if self._run is not None:
            reader, ids = self._run
            return reader.body(ids[place]).trajectory()
        with self._path.open("rb") as file:
            file.seek(place, os.SEEK_SET)
            return record.parse(file.readline())
