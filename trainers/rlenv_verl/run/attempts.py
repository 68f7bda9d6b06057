"""The starts of veRL that make up one run, and files that are written whole or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

__all__ = ["Attempt", "merge_metrics", "write_whole"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of veRL. `from_step` is the checkpoint's step, 0 without one; `started` is local time, ISO 8601."""

    number: int
    from_step: int
    started: str = ""

    @classmethod
    def next(cls, earlier: Sequence[Attempt], from_step: int) -> Attempt:
        """The one that starts now, behind those before it."""
        return cls(len(earlier) + 1, from_step, time.strftime("%Y-%m-%dT%H:%M:%S%z"))

    def metrics(self, folder: Path) -> Path:
        """What veRL itself writes in the run's folder: its file logger begins an empty file at each start."""
        return folder / "attempts" / f"metrics-{self.number}.jsonl"


def merge_metrics(folder: Path, attempts: Sequence[Attempt]) -> None:
    """Write a run's metrics.jsonl from what the attempts logged, without the steps that a later one trained anew."""
    lines: list[bytes] = []
    for index, attempt in enumerate(attempts):
        path = attempt.metrics(folder)
        until = min((later.from_step for later in attempts[index + 1 :]), default=None)
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():  # without one that was cut
            if line.strip() and (until is None or orjson.loads(line)["step"] <= until):
                lines.append(line + b"\n")
    write_whole(folder / "metrics.jsonl", b"".join(lines))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, or leave it as it was."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)
