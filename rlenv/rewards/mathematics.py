"""Mathematical equality in processes that can be ended.

What goes wrong is told apart by whose it is. An answer that uses up its processor time or memory, or that brings
its process down, is a wrong one. An accepted answer that does so is a fault of the data. A process that has no
processor (stopped, starved) or that somebody ends says nothing about the answer: the comparison is made again in
another process, and where that does not go either, nothing is known.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlenv.errors import MissingExtra, RewardError

__all__ = ["Verdict", "Workers", "shared_workers"]

_START_S = 60.0
_TRIES = 3
# How long a process may be without an answer beside the processor time that it may use: the machine is busy.
_STALL_S = 30.0
_STALL_FACTOR = 8.0
_BY_SELF = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer equals an accepted one, and why not where that is not a matter of mathematics."""

    is_equal: bool
    note: str = ""


class _Ended(Exception):
    """The process ended in the middle; `is_used_up` where the system ended it for its processor time."""

    def __init__(self, code: int | None) -> None:
        self.is_used_up = code == -getattr(signal, "SIGXCPU", 0)
        self.is_of_its_own = code is not None and (code >= 0 or -code in _BY_SELF)
        super().__init__(f"it ended with {code}")


class _Worker:
    """One process and what it has written."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "rlenv.rewards._math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.buffer = b""

    def read(self, limit_s: float) -> Any:
        """The next line as JSON, None after `limit_s` seconds of any time.

        Raises:
            _Ended: the process has ended.
        """
        stream = self.process.stdout
        assert stream is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self.buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                part = stream.read(65_536)
                if not part:
                    raise _Ended(self._code())
                self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def write(self, question: bytes) -> None:
        """Raises _Ended where the process has ended."""
        stream = self.process.stdin
        assert stream is not None
        try:
            stream.write(question)
        except OSError as error:
            raise _Ended(self._code()) from error

    def _code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(5)
        return None

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


class Workers:
    """A few processes that compare expressions; started when needed, ended with the interpreter or by `close`.

    Args:
        size: how many at once; by default half of the processors, at least 2 and at most 16.
        stall_s: how many seconds a process may give no answer beside the processor time that it may use.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, *, size: int | None = None, stall_s: float = _STALL_S) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("the rule math_equal", extra="math")
        size = size or max(2, min(16, (os.cpu_count() or 2) // 2))
        self.threads = ThreadPoolExecutor(size, thread_name_prefix="rlenv-math")
        self._stall_s = stall_s
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compare(self, mine: str, golds: Sequence[str], *, limit_s: float) -> Verdict:
        """Compares in a process; blocks until it is known, or until the machine gives no processor for it.

        An answer that cannot be read, or that takes more than `limit_s` seconds of processor time or more memory than
        a process has, is not equal.

        Raises:
            RewardError: an accepted answer cannot be read within the same limits, or nothing became known because
                the process was stopped, starved or ended from outside.
        """
        ended: _Ended | None = None
        for _ in range(_TRIES):
            try:
                about_golds, answer = self._ask(mine, golds, limit_s)
            except _Ended as error:
                if error.is_used_up:
                    return Verdict(False, _used_up(limit_s))
                # Once may be anything; what ends its process each time does so itself.
                if ended is not None and ended.is_of_its_own and error.is_of_its_own:
                    return Verdict(False, "it brings down the process that reads it")
                ended = error
                continue
            _refuse(about_golds, golds, limit_s)
            if answer.get("used_up"):
                return Verdict(False, _used_up(limit_s))
            if answer.get("memory"):
                return Verdict(False, "it takes more memory than there is to compare")
            note = answer.get("error") or ("cannot be read as one expression" if answer.get("unreadable") else "")
            return Verdict(bool(answer.get("equal")), note)
        raise RewardError(f"the process that compares expressions was ended from outside: {ended}")

    def check(self, golds: Sequence[str], *, limit_s: float) -> None:
        """Reads accepted answers.

        Raises:
            RewardError: one of them cannot be read within `limit_s` seconds of processor time.
        """
        about_golds, _ = self._ask(None, golds, limit_s)
        _refuse(about_golds, golds, limit_s)

    def _ask(self, mine: str | None, golds: Sequence[str], limit_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the process says of the accepted answers and of the answer; in a fresh one where memory ran out.

        Raises:
            RewardError: the process did not answer, or ended over the accepted answers.
            _Ended: the process ended over the answer.
        """
        question = json.dumps({"mine": mine, "golds": list(golds), "limit_s": limit_s}).encode() + b"\n"
        for is_fresh in (False, True):
            worker = self._take(is_fresh)
            is_well = False
            about_golds: Any = None
            answer: Any = {}
            try:
                worker.write(question)
                about_golds = worker.read(self._patience(limit_s))
                if about_golds == {} and mine is not None:
                    answer = worker.read(self._patience(limit_s))
                is_well = about_golds is not None and answer is not None
            except _Ended as error:
                if about_golds is None and error.is_used_up:
                    about_golds = {"used_up": True}
                elif about_golds is None and is_fresh:
                    raise RewardError(f"the process that reads the accepted answers ended: {error}") from error
                elif about_golds is None:
                    continue  # it may have ended while it was idle
                else:
                    raise
            finally:
                if not is_well:
                    worker.end()
            if about_golds is None or answer is None:
                raise RewardError(
                    f"the process that compares expressions gave no answer for {self._patience(limit_s):g} s and had "
                    "not used up its processor time: the machine stopped or starved it"
                )
            if is_well and (about_golds.get("memory") or answer.get("memory")):
                worker.end()  # what others asked before may have filled it
                if not is_fresh:
                    continue
            elif is_well:
                with self._lock:
                    self._idle.append(worker)
            return about_golds, answer
        raise AssertionError("the second try returns or raises")

    def _patience(self, limit_s: float) -> float:
        return self._stall_s + _STALL_FACTOR * limit_s

    def _take(self, is_fresh: bool) -> _Worker:
        with self._lock:
            if self._idle and not is_fresh:
                return self._idle.pop()
        worker = _Worker()
        try:
            started = worker.read(_START_S)
        except _Ended:
            started = None
        if started is None:
            worker.end()
            raise RewardError(f"the process that compares expressions did not start within {_START_S:g} s")
        return worker

    def close(self) -> None:
        """Ends the idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.end()


def _used_up(limit_s: float) -> str:
    return f"not decided within {limit_s:g} s of processor time"


def _refuse(about_golds: dict[str, Any], golds: Sequence[str], limit_s: float) -> None:
    if about_golds.get("used_up"):
        raise RewardError(f"expect: reading the gold value {golds[0]!r:.80} takes more than {limit_s:g} s")
    if about_golds.get("memory"):
        raise RewardError(f"expect: reading the gold value {golds[0]!r:.80} takes more memory than there is")
    if about_golds.get("unreadable"):
        gold = about_golds.get("gold", golds[0])
        raise RewardError(f"expect: the gold value {gold!r:.80} cannot be read as mathematics")


_shared: Workers | None = None


def shared_workers() -> Workers:
    """The workers of this process.

    Raises:
        MissingExtra: the library is not installed.
    """
    global _shared
    if _shared is None:
        _shared = Workers()
    return _shared
