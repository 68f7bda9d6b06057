"""The folder that a run of episodes is written to: never over another run, and whole as far as the run came."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from rlenv.errors import UsageError
from rlenv.runs import files as record
from rlenv.trajectory import Trajectory

__all__ = ["RunFolder", "add_overwrite"]

_FILES = ("trajectories.jsonl", "summary.json")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """The option that lets a run take the place of another."""
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder of -o")


class RunFolder:
    """Writes trajectories as they end, each flushed, so that a run that is killed keeps what it had.

    Raises:
        UsageError: the folder holds a run and may not be overwritten, or cannot be written.
    """

    def __init__(self, folder: str, *, overwrite: bool) -> None:
        self.path = Path(folder)
        there = [name for name in _FILES if (self.path / name).exists()]
        if there and not overwrite:
            raise UsageError(
                f"{folder} holds a run already ({' and '.join(there)})", hint="name another folder, or add --overwrite"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "summary.json").unlink(missing_ok=True)  # of the run before; it would outlive its episodes
            self._file: IO[bytes] = (self.path / "trajectories.jsonl").open("wb" if overwrite else "xb")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, trajectory: Trajectory) -> None:
        """One more episode."""
        try:
            record.append(self._file, trajectory)
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def finish(self, trajectories: Sequence[Trajectory]) -> None:
        """All episodes, in this order, in the place of what was written as they ended; all of them or no change."""
        whole = self.path / "trajectories.jsonl"
        part = whole.with_name("trajectories.jsonl.part")
        try:
            record.write(part, trajectories)
            os.replace(part, whole)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def write_summary(self, text: str) -> None:
        """The figures, as JSON text."""
        try:
            (self.path / "summary.json").write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{error.filename or path} cannot be written: {error.strerror or error}")
