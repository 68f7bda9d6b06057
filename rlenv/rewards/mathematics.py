"""Mathematical equality in processes that can be ended."""

from __future__ import annotations

import atexit
import importlib.util
import json
import selectors
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
_MAX_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer equals an accepted one, and why not where that is not a matter of mathematics."""

    is_equal: bool
    note: str = ""


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
        """The next line as JSON, None after `limit_s` seconds; EOFError where the process has ended."""
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
                    raise EOFError
                self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return json.loads(line)

    def ask(self, question: bytes, limit_s: float) -> Any:
        stream = self.process.stdin
        assert stream is not None
        try:
            stream.write(question)
        except BrokenPipeError as error:
            raise EOFError from error
        return self.read(limit_s)

    def end(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


class Workers:
    """A few processes that compare expressions; started when needed, ended with the interpreter or by `close`.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, *, size: int = _MAX_WORKERS) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("the rule math_equal", extra="math")
        self.threads = ThreadPoolExecutor(size, thread_name_prefix="rlenv-math")
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        atexit.register(self.close)

    def compare(self, mine: str, golds: Sequence[str], *, limit_s: float) -> Verdict:
        """Compares in a process; blocks for at most `limit_s` seconds once a process is there.

        An answer that cannot be read, or that takes longer than the limit or more memory than a worker has, is not
        equal: the accepted ones are read first and the same for every policy.

        Raises:
            RewardError: an accepted answer cannot be read, or the process does not start or ends.
        """
        question = json.dumps({"mine": mine, "golds": list(golds)}).encode() + b"\n"
        worker = self._take()
        try:
            answer = worker.ask(question, limit_s)
        except EOFError as error:
            worker.end()
            raise RewardError("the process that compares expressions ended by itself") from error
        if answer is None:
            worker.end()
            return Verdict(False, f"not decided within {limit_s:g} s")
        with self._lock:
            self._idle.append(worker)
        if "bad_gold" in answer:
            raise RewardError(f"expect: the gold value {answer['bad_gold']!r:.80} cannot be read as mathematics")
        note = answer.get("error") or ("cannot be read as one expression" if answer.get("unreadable") else "")
        return Verdict(bool(answer["equal"]), note)

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        worker = _Worker()
        try:
            started = worker.read(_START_S)
        except EOFError:
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
