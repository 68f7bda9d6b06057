"""The starts of veRL that make up one run, and files that are written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

__all__ = ["Attempt", "attempts_of", "begin_attempt", "merge_metrics", "write_run"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of veRL, with the fields of `rlenv.runs.folder.Attempt`; the first one's `number` is 1.

    `from_step` is the checkpoint's step, 0 without one; `lock` names what it was made of, "" where nothing does, and
    `locks` the same of each of its environments, whose first has that one; `started` is in seconds since the epoch;
    `host` and `pid` are the process that drives it.
    """

    number: int
    from_step: int
    started: float = 0.0
    lock: str = ""
    host: str = ""
    pid: int = 0
    locks: Mapping[str, str] = field(default_factory=dict)

    def metrics(self, folder: Path) -> Path:
        """What veRL itself writes in the run's folder: its file logger begins an empty file at each start."""
        return folder / "attempts" / f"metrics-{self.number}.jsonl"


class _Run(Protocol):
    @property
    def folder(self) -> Path: ...
    @property
    def attempts(self) -> tuple[Attempt, ...]: ...
    def save(self) -> None: ...


_R = TypeVar("_R", bound=_Run)


def attempts_of(entries: Sequence[Mapping[str, Any]]) -> tuple[Attempt, ...]:
    """The attempts that a run.json lists, also one of an older version, whose times are texts."""
    return tuple(Attempt(**{**entry, "started": _seconds(entry.get("started", 0.0))}) for entry in entries)


def _seconds(told: float | str) -> float:
    if not isinstance(told, str):
        return told
    try:
        return datetime.fromisoformat(told).timestamp()
    except ValueError:
        return 0.0


def begin_attempt(run: _R, from_step: int, *, locks: Mapping[str, str] | None = None) -> _R:
    """The run with one more attempt, kept in run.json; `locks` are the hashes of what its environments are made of."""
    locks = locks or {}
    lock = next(iter(locks.values()), "")
    attempt = Attempt(len(run.attempts) + 1, from_step, time.time(), lock, socket.gethostname(), os.getpid(), locks)
    known: Any = run
    begun: _R = dataclasses.replace(known, attempts=(*run.attempts, attempt))
    attempt.metrics(run.folder).parent.mkdir(parents=True, exist_ok=True)
    begun.save()
    return begun


def write_run(run: _Run, fields: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all: the fields without the folder, which may move."""
    kept = {name: value for name, value in fields.items() if name != "folder"}
    _write_whole(run.folder / "run.json", f"{json.dumps(kept, indent=2)}\n".encode())


def merge_metrics(folder: Path, attempts: Sequence[Attempt]) -> None:
    """Write a run's metrics.jsonl from what the attempts logged, without the steps that a later one trained anew."""
    lines: list[bytes] = []
    for index, attempt in enumerate(attempts):
        path = attempt.metrics(folder)
        until = min((later.from_step for later in attempts[index + 1 :]), default=None)
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():  # without one that was cut
            if line.strip() and (until is None or orjson.loads(line)["step"] <= until):
                lines.append(line + b"\n")
    _write_whole(folder / "metrics.jsonl", b"".join(lines))


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)
