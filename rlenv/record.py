"""Trajectories as files: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rlenv._plain import plain
from rlenv.errors import UsageError
from rlenv.messages import ToolResult
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["append", "dump", "nested", "parse", "plain", "read", "write"]


@cache
def _adapter() -> TypeAdapter[Trajectory]:
    from pydantic import TypeAdapter  # built on first use: an import of rlenv need not pay for it

    return TypeAdapter(Trajectory)


def dump(trajectory: Trajectory) -> bytes:
    """One line of JSON in ASCII, without its newline.

    ASCII, so that text which UTF-8 cannot hold (the lone surrogates that a policy may write) survives as escapes.
    """
    return json.dumps(plain(trajectory), separators=(",", ":")).encode("ascii")


def parse(line: bytes | str) -> Trajectory:
    """The trajectory of one line.

    Raises:
        UsageError: the line is not a trajectory.
    """
    try:
        return _adapter().validate_python(json.loads(line))
    except ValueError as error:
        raise UsageError(f"not a recorded trajectory: {error}") from error


def nested(result: ToolResult) -> Trajectory | None:
    """The trajectory of the episode that an agent played inside a call.

    None where the call was no agent's, or the trajectory was too long to be kept whole.

    Raises:
        UsageError: what is kept in its place is not a trajectory.
    """
    details = result.details or {}
    kept = details.get("trajectory")
    if kept is None or "left_out" in details:
        return None
    try:
        return _adapter().validate_python(kept)
    except ValueError as error:
        raise UsageError(f"not a recorded trajectory: {error}") from error


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Writes a .jsonl file; the folder is made where it is missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for trajectory in trajectories:
            append(file, trajectory)


def append(file: IO[bytes], trajectory: Trajectory) -> None:
    """Writes one trajectory to an open file."""
    file.write(dump(trajectory) + b"\n")


def read(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a .jsonl file, one by one.

    Raises:
        UsageError: a line is not a trajectory; the message names it.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield parse(line)
                except UsageError as error:
                    raise UsageError(f"{path}:{number}: {error}") from error
