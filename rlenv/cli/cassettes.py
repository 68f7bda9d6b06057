"""The tapes of a command: what it records, and what it is answered from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from rlenv.cli.terminal import write_error
from rlenv.concurrency.lanes import Lane, entered, here, offline
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv.runs.folder import KeptRun
from rlenv.runs.locks.lock import Lock
from rlenv.runs.tapes.cassettes import Player, Recorder
from rlenv.runs.tapes.reel import Reel
from rlenv.runs.tapes.since import changed_since
from rlenv.secrets import leave_open

__all__ = ["Tapes", "add_record", "add_tape"]


def add_record(parser: argparse.ArgumentParser) -> None:
    """The option that keeps what is asked of the outside."""
    parser.add_argument("--record", action="store_true", help="keep what tools and models answer, for rlenv replay")


def add_tape(parser: argparse.ArgumentParser) -> None:
    """The option that answers from what another run has kept."""
    parser.add_argument(
        "--tape",
        metavar="RUN",
        help="answer tools and models, but not the policy, from a recorded run; with --record ask for what it lacks",
    )


class Tapes:
    """The tape of a command, if it has one: a recorder, a player of another run's tape, or both.

    Raises:
        UsageError: what is recorded has no place, or the run that is named has no tape.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        tape = getattr(args, "tape", None)
        if args.record and not args.out and not tape:
            raise UsageError("--record needs a folder to keep the run in", hint="add -o DIR")
        self._tape = Path(tape or "")
        self._out = Path(args.out or tape or "")
        self._recorder = Recorder() if args.record else None
        self._player: Player | None = None
        if tape:
            reel = Reel.of(tape)
            self._player = Player(reel, by_content=True, recorder=self._recorder, copies=bool(args.out))

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Where servers are asked for their tools. Where all is answered by the tape, no key is needed."""
        tape = self._player or self._recorder
        with entered(None if tape is None else Lane(tape, "")), self._without_keys():
            yield

    def _without_keys(self) -> AbstractContextManager[object]:
        return leave_open() if self._player is not None and self._player.is_offline else nullcontext()

    @property
    def lane(self) -> Callable[[int], Lane] | None:
        """Gives each episode its lane."""
        tape = self._player or self._recorder
        return None if tape is None else lambda index: tape.lane()

    def ended(self, id: str) -> None:
        """Says which kept episode the lane of this task was."""
        lane = here()
        if self._recorder is not None and lane is not None:
            self._recorder.bind(lane, id)

    @contextmanager
    def running(self, out: KeptRun | None, lock: Lock | None, environment: Environment) -> Iterator[None]:
        """Records into the run, and lets nothing out that the tape is to answer. What was missed or lost is told."""
        with ExitStack() as stack:
            if self._recorder is not None:
                folder = out.path if out is not None else self._out
                try:
                    self._recorder.open(folder, lock=lock.hash12 if lock is not None else "")
                    if lock is not None:
                        lock.write(folder)
                except OSError as error:
                    raise UsageError(f"{error.filename or self._out} cannot be written: {error.strerror}") from error
                stack.callback(self._close, self._recorder)
            if self._player is not None and self._player.is_offline:
                stack.enter_context(offline())
                stack.enter_context(self._without_keys())
            yield
        for hash12 in dict.fromkeys(self._player.missed_locks.values() if self._player is not None else ()):
            if said := changed_since(self._tape, hash12, environment):
                write_error(f"{self._tape} lacks what is asked: {said}\n")

    def _close(self, recorder: Recorder) -> None:
        recorder.close()
        if recorder.lost:
            write_error(f"{recorder.lost} entries of the tape could not be written: a replay of them will miss\n")
