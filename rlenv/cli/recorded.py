"""Files of recorded episodes that commands take."""

from __future__ import annotations

from pathlib import Path

from rlenv._base.nearest import nearest
from rlenv._base.paths import names_in
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.runs import files as record
from rlenv.trajectory import Trajectory

__all__ = ["environment_of", "read_recorded", "recorded_file"]


def recorded_file(name: str) -> Path:
    """A file of trajectories, or trajectories.jsonl in a folder.

    Raises:
        UsageError: there is no such file.
    """
    path = Path(name)
    if path.is_dir() and not (path / "trajectories.jsonl").is_file():
        inside = sorted(str(item.relative_to(path)) for item in path.glob("**/*.jsonl"))
        hint = f"name one of its files, such as {path / inside[0]}" if inside else ""
        raise UsageError(f"{path} has no trajectories.jsonl", hint=hint)
    path = path / "trajectories.jsonl" if path.is_dir() else path
    if not path.is_file():
        close = nearest(path.name, [name for name in names_in(path.parent) if name.endswith(".jsonl")])
        hint = f"did you mean {path.parent / close}?" if close else ""
        raise UsageError(f"there are no recorded trajectories at {path}", hint=hint)
    return path


def read_recorded(name: str) -> list[Trajectory]:
    """The trajectories of a file, or of trajectories.jsonl in a folder.

    Raises:
        UsageError: there is no such file, it is empty, or a line of it is no trajectory.
    """
    path = recorded_file(name)
    found = list(record.read(path))
    if not found:
        raise UsageError(f"{path} holds no trajectory")
    return found


def environment_of(trajectories: list[Trajectory], *, spec: str | None, set: dict[str, str]) -> Environment:
    """The environment that recorded the trajectories: `spec`, or the shipped one of their name.

    Raises:
        UsageError: the name is no shipped one's and no spec is given.
    """
    names = sorted({one.environment for one in trajectories})
    if spec is None:
        from rlenv.language.shipped import shipped

        short = names[0].removeprefix("rlenv/").rpartition("-v")[0]
        if len(names) > 1 or short not in shipped():
            raise UsageError(f"recorded in {', '.join(names)}", hint="name the spec with --spec FILE")
        spec = short
    return load(spec, set=set or None)
