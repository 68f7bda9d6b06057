"""A server that runs until it is told to end, and several of them at one address: a worker a core."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from rlenv.errors import UsageError
from rlenv.hosts.http import close_silent
from rlenv.hosts.serve import UP, Board

_LOGGER: Final = logging.getLogger("rlenv.hosts.serve")
_EXACT_S: Final = 3_600.0
_BACKLOG: Final = 1_024
_QUICK_S, _MOST_QUICK = 5.0, 3
"""A worker that ends so soon after its start, so often, will never serve."""
_POLL_S: Final = 0.1
_WORKER: Final = "RLENV_SERVE_WORKER"
"""Set for a worker: its number, how many there are, and the file of their counts."""


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket bound to an address; other processes may bind it too where it is shared.

    Raises:
        UsageError: the port is taken, or the address is not this machine's.
    """
    bound = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        if bound is not None:
            bound.close()
        hint = "choose another, or 0 for a free one"
        raise UsageError(f"--port {port}: cannot listen at {host}: {error.strerror}", hint=hint) from error
    return bound


def board_of_worker() -> Board | None:
    """The counts that a worker shares with the others; None in a process that nobody supervises.

    What says so is taken out of the environment: programs that this process starts are no workers.
    """
    given = os.environ.pop(_WORKER, "")
    if not given:
        return None
    number, workers, file = map(int, given.split())
    try:
        return Board(file, number=number, workers=workers)
    finally:
        os.close(file)


def raise_file_limit() -> None:
    """Lets the process open as many sockets as the system allows: the usual 1,024 are fewer than its sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def address_of(bound: socket.socket) -> str:
    """The address of what listens at a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: web.Application,
    bound: socket.socket,
    *,
    on_ready: Callable[[], None],
    stopped: asyncio.Event | None = None,
    drain: Callable[[], Awaitable[None]] | None = None,
    is_worker: bool = False,
    grace_s: float = 1.0,
) -> None:
    """Serves until SIGINT or SIGTERM comes or `stopped` is set, then until `drain` has ended; a worker also ends with
    its standard input, which its parent holds. Requests that run then may go on for `grace_s` seconds."""
    stopped = stopped or asyncio.Event()
    loop = asyncio.get_running_loop()
    stop_by_signal(stopped)
    if is_worker:
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1) else stopped.set())
    # By default aiohttp rounds up to whole seconds, at which all sessions that are due would be pinged at once.
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=grace_s, handle_signals=False, timeout_ceil_threshold=_EXACT_S
    )
    await runner.setup()
    sweeping = loop.create_task(close_silent(runner))
    try:
        await web.SockSite(runner, bound, backlog=_BACKLOG).start()
        on_ready()
        await stopped.wait()
        if drain is not None:
            await drain()
    finally:
        sweeping.cancel()
        await runner.cleanup()


def stop_by_signal(stopped: asyncio.Event) -> None:
    """Sets the event once SIGINT or SIGTERM comes; outside of the main thread whoever runs it does."""
    for name in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(name, stopped.set)


def supervise(command: Sequence[str], workers: int, *, drain_s: float, on_ready: Callable[[], None]) -> int:
    """Runs a command as so many processes until SIGINT or SIGTERM comes; one that dies is started again.

    Args:
        on_ready: is called once all of them take requests.

    Returns:
        0, or 2 where a worker ends again and again as soon as it was started.
    """
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)
    crew, code = _Crew(command, workers), 0
    while not is_stopped and not code:
        time.sleep(_POLL_S)
        code = crew.replace_ended()
        if not crew.is_told and crew.board.total(UP) == workers:
            crew.is_told = True
            on_ready()
    _stop(list(crew.running.values()), drain_s)
    return code


class _Crew:
    """The processes of one command, and the counts that they share."""

    def __init__(self, command: Sequence[str], workers: int) -> None:
        self._command, self._file = command, tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._file.truncate(Board.size_of(workers))
        self.board = Board(self._file.fileno(), workers=workers)
        self.is_told = False
        self.running = {number: self._start_worker(number) for number in range(workers)}
        self._begun = dict.fromkeys(self.running, time.monotonic())
        self._quick = dict.fromkeys(self.running, 0)

    def replace_ended(self) -> int:
        """Starts again what has ended; 2 where a process did so too often."""
        for number, process in self.running.items():
            if process.poll() is None:
                continue
            is_quick = time.monotonic() - self._begun[number] < _QUICK_S
            self._quick[number] = self._quick[number] + 1 if is_quick else 0
            if self._quick[number] >= _MOST_QUICK:
                return 2
            _LOGGER.warning("worker %d ended with status %s; it is started again", number, process.returncode)
            self.board.clear(number)
            self.running[number], self._begun[number] = self._start_worker(number), time.monotonic()
        return 0

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        file = self._file.fileno()
        environment = {**os.environ, _WORKER: f"{number} {self.board.workers} {file}"}
        return subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env=environment, pass_fds=(file,), start_new_session=True
        )


def _stop(processes: Sequence[subprocess.Popen[bytes]], drain_s: float) -> None:
    for process in processes:
        process.terminate()
    until = time.monotonic() + drain_s + 10.0
    for process in processes:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
