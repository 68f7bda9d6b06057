"""A run's folder: what the run is, who is writing it, and the episodes that it keeps.

    RUN/run.json      what made the run and what has become of it; replaced whole, by whoever runs it
    RUN/summary.json  its figures, once it has ended
    RUN/locks/        what made its episodes; see `rlenv.runs.locks.lock`

and beside them what `rlenv.runs.journal` and `rlenv.runs.parts` describe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from rlenv._base.bounded import encodable
from rlenv._base.paths import draft_of
from rlenv.errors import RunStopped, UsageError, disk_told
from rlenv.runs.journal import Claim, clear_blobs, is_running, object_at
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts, ending_of
from rlenv.runs.writer import KeepPolicy, RunWriter
from rlenv.secrets import logger, redact_value
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.runs.locks.lock import Lock  # whose module knows environments; readers of runs need none

__all__ = ["STOP", "Attempt", "KeptRun", "Kind", "RunInfo", "State", "check_out", "clear_run", "is_run", "open_run"]
__all__ += ["read_info", "write_info"]

Kind = Literal["eval", "train", "play", "replay", "rescore", "sft"]
"""The kinds of runs; `sft` alone plays no episodes, so that readers of episodes take its folder for no run."""
State = Literal["running", "ended", "stopped", "failed", "lost"]

STOP: Final = "stop"
"""The file that asks whoever plays a run to end it as Ctrl-C does; whoever makes it need not know where that is."""
_FORMAT: Final = 1
_OLD: Final = ("trajectories.jsonl",)
"""What older versions wrote into the folder of a run; never over it either."""
_INFO: Final = {"kind": str, "spec": str, "environment": str, "policy": str, "model": str, "state": str, "ended": float}
_ATTEMPT: Final = {"number": int, "from_step": int, "lock": str, "started": float, "host": str, "pid": int}
_LAST: Final = 1e11
"""The year 5138, in seconds since the epoch: no clock that is set is behind it, and calendars still know it."""
_MOST_BYTES: Final = 64_000_000
_FOLDERS: Final = ("journal", "episodes", "bodies", "late", "locks", "tape")
_WRITTEN: Final = re.compile(
    r"(?:P-[0-9a-f]+|.*-\d{5})\.(?:parquet|parquet\.tmp|bodies|rows\.jsonl|late\.jsonl)|[0-9a-f]+\.json(?:\..+\.tmp)?"
)
"""The names of what a run writes into these folders: a folder `episodes` may well be somebody's own."""
_OWN: Final = (*_FOLDERS, "blobs", "run.json", "summary.json", STOP, *_OLD)
_RESUMED: Final = ("eval", "train")
"""Kinds whose commands go on with a run."""
_STILL: Final = "stop it first, or name another folder"
_STOPS: Final = (RunStopped, asyncio.CancelledError, KeyboardInterrupt, SystemExit, BrokenPipeError)
_log = logger("rlenv.runs.folder")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a run. `from_step` is the step that it goes on from; `started` is in seconds since the epoch.

    `lock` is what made its episodes; where it plays several environments that of the first, and `locks` those of each,
    by their names in the episodes.
    """

    number: int = 0
    from_step: int = 0
    lock: str = ""
    started: float = 0.0
    host: str = ""
    pid: int = 0
    locks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, number: int, from_step: int, *, lock: str = "", locks: Mapping[str, str] | None = None) -> Attempt:
        """The one that this process begins now; without `lock`, that of the first of `locks` is its own."""
        lock = lock or next(iter((locks or {}).values()), "")
        return cls(number, from_step, lock, time.time(), socket.gethostname(), os.getpid(), locks or {})


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The contents of a run's `run.json`.

    `state` is `lost` where it is written as running and its process is gone from this host. `model` is the model that
    the policy asks or trains, as it was named ("" for a policy without one). `facts` are what its kind adds: split,
    tasks, samples.
    """

    kind: Kind
    command: tuple[str, ...] = ()
    spec: str = ""
    environment: str = ""
    policy: str = ""
    model: str = ""
    state: State = "running"
    ended: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lock(self) -> str:
        """The hash of what the last attempt was made with, "" where it is not known."""
        return self.attempts[-1].lock if self.attempts else ""

    @property
    def from_steps(self) -> dict[int, int]:
        """By attempt, the step that it went on from: what earlier ones did behind it is done again.

        Of training alone: an evaluation that goes on plays what is missing, and nothing again.
        """
        return {} if self.kind != "train" else {attempt.number: attempt.from_step for attempt in self.attempts}


def is_run(folder: str | Path) -> bool:
    """True if a folder holds kept episodes."""
    folder = Path(folder)
    return any((folder / name).is_dir() for name in ("journal", "episodes"))


def read_info(folder: str | Path) -> RunInfo | None:
    """The contents of the run's `run.json`; None where it has none that can be read.

    Of keys that are not known nothing is taken, as a trainer keeps its own beside these, nor of values of another type
    than their field's: whoever handed a run on may have written anything.
    """
    held = object_at(Path(folder) / "run.json", most=_MOST_BYTES)
    if held is None:
        return None
    attempts = tuple(
        Attempt(**{"number": number, **_fitting_fields(one, _ATTEMPT)}, locks=_text_mapping(one.get("locks")))
        for number, one in enumerate(_list_field(held, "attempts"))
        if isinstance(one, Mapping)
    )
    facts = held.get("facts")
    info = RunInfo(
        **{"kind": "train", **_fitting_fields(held, _INFO)},
        command=tuple(encodable(word) for word in _list_field(held, "command") if isinstance(word, str)),
        attempts=attempts,
        facts=facts if isinstance(facts, Mapping) else {},
    )
    info = replace(info, model=_model_of(info))
    return replace(info, state="lost") if info.state == "running" and _is_gone(info) else info


def _model_of(info: RunInfo) -> str:
    """The model as the command names it, before the copy of it that a trainer keeps."""
    words = [*info.command, ""]
    for word, following in pairwise(words):
        name, _, value = word.partition("=")
        if name == "--model" and (value or following):
            return value or following
    return info.policy.removeprefix("hf:") if info.policy.startswith("hf:") else info.model


def _list_field(held: Mapping[str, Any], name: str) -> list[Any]:
    value = held.get(name)
    return value if isinstance(value, list) else []


def _text_mapping(value: Any) -> dict[str, str]:
    """A mapping of texts to texts, without what is none."""
    held = value if isinstance(value, Mapping) else {}
    return {encodable(name): encodable(word) for name, word in held.items() if isinstance(word, str)}


def _fitting_fields(held: Mapping[str, Any], fields: Mapping[str, type]) -> dict[str, Any]:
    """The values that fit their fields."""
    found: dict[str, Any] = {}
    for name, kind in fields.items():
        value: Any = held.get(name)
        if kind is str and isinstance(value, str):
            found[name] = encodable(value)
        elif type(value) in (int, kind) and kind is not str and 0 <= value < (_LAST if kind is float else 2**31):
            found[name] = value
    return found


def _is_gone(info: RunInfo) -> bool:
    last = info.attempts[-1] if info.attempts else None
    return last is not None and last.pid > 0 and last.host == socket.gethostname() and not is_running(last.pid)


def write_info(folder: Path, info: RunInfo) -> None:
    """Replaces `run.json`, whole; its command without what looks like a secret.

    Raises:
        OSError: it cannot be written.
    """
    from rlenv.runs.locks.files import kept_command  # by what locks are kept by, which knows environments

    info = replace(info, command=kept_command(info.command))
    with draft_of(folder / "run.json") as draft:
        draft.write_text(json.dumps({"format": _FORMAT, **redact_value(asdict(info))}, indent=2) + "\n")


def open_run(folder: str | Path) -> RunReader:
    """The episodes of a run.

    Raises:
        UsageError: there is none.
    """
    info = read_info(folder)
    return RunReader(folder, from_steps=info.from_steps if info else None)


def clear_run(folder: Path) -> None:
    """Removes a run from its folder, and nothing else that is in it.

    Raises:
        OSError: something of it cannot be removed.
    """
    clear_blobs(folder)
    for name in _FOLDERS:
        path = folder / name
        if path.is_symlink() or path.is_file():  # what a link leads to is not the run's alone
            path.unlink()
        elif name == "tape" and path.exists():
            shutil.rmtree(path)
        elif path.exists():
            for inside in [*path.iterdir()]:
                if _WRITTEN.fullmatch(inside.name) and not inside.is_dir():
                    inside.unlink()
            with contextlib.suppress(OSError):  # what else is in it stays
                path.rmdir()
    for name in ("summary.json", STOP, *_OLD, "run.json"):
        (folder / name).unlink(missing_ok=True)


def check_out(path: str | Path) -> None:
    """Refuses what `-o` names where that is a run's own file, or lies among its own files.

    Raises:
        UsageError: it does.
    """
    place = Path(os.path.abspath(path)).parent.resolve() / Path(path).name
    for folder in place.parents:
        first = place.relative_to(folder).parts[0]
        if first in _OWN and (is_run(folder) or read_info(folder) is not None):
            raise UsageError(f"{path} is among the run's own files in {folder}", hint="name another file or folder")


class KeptRun:
    """The run that a command keeps: begun, written to as episodes end, and closed with what has become of it.

    A disk that is full does not end the run: what cannot be written is counted in `lost`, told once, and the next
    episode is tried again.

    Args:
        lock: what makes its episodes: kept in the folder, and its hash in every row and in the attempt.
        resume: go on with the run that is in the folder, as a new attempt from `from_step`.
        overwrite: remove the run that is in the folder.

    Raises:
        UsageError: the folder holds a run already, or one that is still written, or none and one was to be resumed, or
            one of other rows or rewards (`rlenv.runs.locks.lock`); or it cannot be written; or `resume` and
            `overwrite` are both asked for.
    """

    def __init__(
        self,
        folder: str | Path,
        info: RunInfo,
        *,
        lock: Lock | None = None,
        resume: bool = False,
        overwrite: bool = False,
        from_step: int = 0,
        keep: KeepPolicy | None = None,
    ) -> None:
        if resume and overwrite:
            raise UsageError("a run is either gone on with or replaced", hint="leave out resume or overwrite")
        self.path = Path(folder)
        self.lost = 0
        try:
            if not resume:
                self.path.mkdir(parents=True, exist_ok=True)
            self._claim = Claim(self.path) if self.path.is_dir() else None
        except BlockingIOError as error:
            raise UsageError(f"the run in {folder} is still running", hint=_STILL) from error
        except OSError as error:
            raise UsageError(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
        try:
            # Read under the claim: of two that begin in the same instant, the second sees the first one's attempt.
            before = read_info(self.path)
            self._check(before, info, lock, resume=resume, overwrite=overwrite)
            attempts = before.attempts if before is not None and resume else ()
            hash12 = lock.hash12 if lock is not None else ""
            attempt = Attempt.begin(len(attempts), from_step, lock=hash12)
            self.info = replace(info, attempts=(*attempts, attempt), state="running")
            with disk_told(self.path, "written"):
                if overwrite and self._has_run():
                    clear_run(self.path)
                (self.path / STOP).unlink(missing_ok=True)  # a wish to stop an earlier attempt
                if lock is not None:
                    lock.write(self.path)
                write_info(self.path, self.info)
                self.writer = RunWriter(self.path, attempt=attempt.number, lock=hash12, keep=keep)
        except BaseException:
            self._release_claim()
            raise

    def _check(
        self, before: RunInfo | None, info: RunInfo, lock: Lock | None, *, resume: bool, overwrite: bool
    ) -> None:
        folder, has_run = self.path, self._has_run()
        if not has_run and before is not None:  # of supervised training, say: what is in the folder is not ours
            raise UsageError(f"{folder} holds what another command wrote", hint="name another folder")
        if before is not None and before.state == "running" and (overwrite or (resume and self._may_be_live(before))):
            raise UsageError(f"the run in {folder} is still running", hint=_STILL)
        if resume and before is not None and before.kind != info.kind:
            goes_on = before.kind in _RESUMED
            hint = f"`rlenv {before.kind}` goes on with it" if goes_on else "name another folder, or add --overwrite"
            raise UsageError(f"{folder} holds a run of kind {before.kind}", hint=hint)
        if has_run and not (resume or overwrite):
            hint = "name another folder, go on with it (--resume), or add --overwrite"
            raise UsageError(f"{folder} holds a run already", hint=hint)
        if resume and not (has_run and before is not None):
            raise UsageError(f"{folder} holds no run that could go on", hint="leave --resume out to begin one")
        if resume and before is not None and lock is not None:
            from rlenv.runs.locks.lock import check_resumed  # which knows environments

            check_resumed(folder, before.lock, lock)

    def _has_run(self) -> bool:
        return is_run(self.path) or any((self.path / name).exists() for name in _OLD)

    def _may_be_live(self, before: RunInfo) -> bool:
        """True if another attempt may be writing. Whoever has a claim that is sure knows that none is, whatever number
        its process had: a container gives the same ones again.
        """
        is_here = bool(before.attempts) and before.attempts[-1].host == socket.gethostname()
        return is_here and not (self._claim is not None and self._claim.is_sure)

    def _release_claim(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def __enter__(self) -> KeptRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            state: State = "ended"
        else:
            state = "stopped" if isinstance(error, _STOPS) else "failed"
        self.close(state)

    def append(self, trajectory: Trajectory, facts: Facts) -> str:
        """Keeps an episode and returns its id, "" where it cannot be written."""
        try:
            return self.writer.append(trajectory, facts)
        except OSError as error:
            self._note_failure(error)
            return ""

    def keep_endings(self, ids: Sequence[str], trajectories: Sequence[Trajectory]) -> None:
        """Keeps what episodes have ended as where that became known after they were kept, as a group's terms do."""
        for id, trajectory in zip(ids, trajectories, strict=True):
            if id:
                self.append_late(id, ending_of(trajectory))

    def append_late(self, id: str, facts: Mapping[str, Any]) -> None:
        """Keeps what became known of an episode later, or under the id "" what the run asked beside its episodes."""
        try:
            self.writer.append_late(id, facts)
        except OSError as error:
            self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
        if not self.lost:
            _log.warning("%s: episodes are not kept: %s", self.path, error.strerror or error)
        self.lost += 1

    def write_summary(self, text: str) -> None:
        """The figures, as JSON text; what could not be kept until now belongs into them."""
        try:
            (self.path / "summary.json").write_text(text, encoding="utf-8")
        except OSError as error:
            self._note_failure(error)

    def close(self, state: State = "ended") -> None:
        """Seals what is open and says what has become of the run."""
        from rlenv.runs.pack import seal_abandoned  # which knows pyarrow

        self.writer.close()
        seal_abandoned(self.path)
        self.info = replace(self.info, state=state, ended=time.time())
        try:
            write_info(self.path, self.info)
        except OSError as error:
            self._note_failure(error)
        self._release_claim()
