"""One process for SQL, as the process that started it sees it: asked over a socket, measured, killed."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import orjson

from rlenv.errors import ToolFailed
from rlenv.resources.sql._serve import READY

__all__ = ["Answer", "EngineRaised", "Gone", "Worker"]

_PACKAGE: Final = Path(__file__).resolve().parents[2]
# The package without its __init__, which brings in more than the engine needs.
_PROGRAM: Final = (
    "import json, sys, types; told = json.load(sys.stdin); sys.path[:] = told['path']; "
    "package = types.ModuleType('rlenv'); package.__path__ = [told['package']]; sys.modules['rlenv'] = package; "
    "from rlenv.resources.sql._serve import serve; serve(told)"
)
_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "TMPDIR")
_START_S: Final = 60.0
_MAX_FRAME: Final = 96_000_000


@dataclass(slots=True)
class Answer:
    """What a worker says, and the image of a copy that the statement changed, as a descriptor to be closed."""

    told: dict[str, Any]
    fd: int | None = None


class Gone(Exception):
    """The process ended, or broke its socket."""


class EngineRaised(Exception):
    """An engine could not be loaded, or met a bug; the message is its traceback, for the author's log."""


class Worker:
    """A process that runs the engine of one module.

    Raises:
        ToolFailed: the system starts none.
    """

    def __init__(self, engine: str) -> None:
        ours, theirs = socket.socketpair()
        try:
            with TemporaryFile() as given:
                told = {
                    "engine": engine,
                    "fd": theirs.fileno(),
                    "package": str(_PACKAGE),
                    "path": [str(entry) for entry in sys.path],
                }
                given.write(json.dumps(told).encode())
                given.seek(0)
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM],
                    stdin=given,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise ToolFailed(
                f"no process for SQL can be started: {error.strerror}", reason="worker", retryable=True
            ) from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self.socket = ours
        self.is_ready = False
        self.is_busy = False
        """It owes an answer."""
        self.holds = ""
        """The key of the private copy whose image it has."""
        self._received = bytearray()
        self._fd: int | None = None

    async def ready(self, started: float) -> None:
        """Waits until the process answers.

        Raises:
            Gone: it ended first.
            EngineRaised: the engine cannot be loaded.
            ToolFailed: it takes too long.
        """
        if self.is_ready:
            return
        try:
            async with asyncio.timeout(max(started + _START_S - time.monotonic(), 0)):
                said = await self._frame()
        except TimeoutError as error:
            raise ToolFailed("a process for SQL did not start", reason="worker", retryable=True) from error
        if said != READY:
            raise EngineRaised(orjson.loads(said)["raised"])
        self.is_ready = True

    async def ask(self, asked: Mapping[str, Any], fd: int | None) -> Answer:
        """What the process answers.

        Raises:
            Gone: it ended first.
        """
        body = orjson.dumps(asked)
        frame = len(body).to_bytes(8, "big") + body
        try:
            if fd is not None:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
                sent = self.socket.sendmsg([frame], ancillary)
            else:
                sent = self.socket.send(frame)
            if sent < len(frame):
                await asyncio.get_running_loop().sock_sendall(self.socket, frame[sent:])
        except OSError as error:
            raise Gone from error
        body = await self._frame()
        fd, self._fd = self._fd, None
        try:
            told = orjson.loads(body)
            told["holds"]
            return Answer(told, fd)
        except (ValueError, TypeError, KeyError) as error:
            if fd is not None:
                os.close(fd)
            raise Gone from error

    async def _frame(self) -> bytes:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bytes] = loop.create_future()

        def read() -> None:
            try:
                piece, fds, _, _ = socket.recv_fds(self.socket, 262_144, 1)
            except BlockingIOError:
                return
            except OSError:
                piece, fds = b"", []
            if fds:
                self._fd = fds[0]
            self._received += piece
            size = int.from_bytes(self._received[:8], "big") if len(self._received) >= 8 else None
            if done.done():
                return
            if not piece or (size is not None and size > _MAX_FRAME):
                done.set_exception(Gone())
            elif size is not None and len(self._received) >= 8 + size:
                frame = bytes(memoryview(self._received)[8 : 8 + size])
                self._received = bytearray()  # nothing follows an answer
                done.set_result(frame)

        loop.add_reader(self.socket, read)
        try:
            return await done
        finally:
            loop.remove_reader(self.socket)

    def cpu_s(self) -> float | None:
        """Processor seconds that the process has used; None where nobody counts them or it is gone."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | 2)
        except (OSError, AttributeError):
            return None

    @property
    def state(self) -> str:
        """The letter by which Linux says what the process does: R runs, S sleeps, T is stopped, D waits for a disk."""
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0].decode()
        except (OSError, IndexError):
            return "?"

    def kill(self) -> None:
        """Ends the process and what it started, and does not wait for it."""
        self.socket.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
