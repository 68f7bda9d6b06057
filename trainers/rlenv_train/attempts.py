"""The starts of a trainer that make up one run, the end of each, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from rlenv.runs.folder import STOP, RunInfo, State, write_info

__all__ = ["Attempt", "attempts_of", "begin_attempt", "driving", "merge_metrics", "write_run"]


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


@contextlib.contextmanager
def driving(folder: Path, unprepared: RunInfo | None = None, *, attempts: int | None = None) -> Iterator[None]:
    """For as long as this process drives a run in `folder`, which it has locked.

    A wish to stop that is there before the block begins was for somebody else and is forgotten. However the block ends,
    run.json then says what has become of the run, unless it was refused as it was: an attempt that was begun meanwhile,
    and that nobody has said the end of, was stopped by an interrupt, and has failed by anything else.

    Args:
        unprepared: what run.json says of a new run that ends before all is known that starts it again.
        attempts: how many came before; as many as run.json has otherwise.
    """
    (folder / STOP).unlink(missing_ok=True)
    if unprepared is not None:  # what a dry run has left here is prepared again
        (folder / "run.json").unlink(missing_ok=True)
    before = len(_fields(folder).get("attempts", ())) if attempts is None else attempts
    state: State = "failed"
    try:
        yield
    except KeyboardInterrupt:
        state = "stopped"
        raise
    finally:
        with contextlib.suppress(OSError):  # a full disk: whatever ended the block is what has to be told
            fields, ended = _fields(folder), time.time()
            is_new = len(fields.get("attempts", ())) > before and fields["state"] == "running"
            if unprepared is not None and not fields:
                write_info(folder, dataclasses.replace(unprepared, state=state, ended=ended))
            elif is_new or (unprepared is not None and not fields["attempts"]):
                fields |= {"state": state, "ended": ended}
                _write_whole(folder / "run.json", f"{json.dumps(fields, indent=2)}\n".encode())


def _fields(folder: Path) -> dict[str, Any]:
    """What run.json holds; nothing without one."""
    path = folder / "run.json"
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return fields


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
