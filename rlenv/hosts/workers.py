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
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from rlenv.errors import UsageError
from rlenv.hosts.http_sessions import HttpSessions
from rlenv.hosts.serve import Server, close_silent

_LOGGER: Final = logging.getLogger("rlenv.hosts.serve")
_BACKLOG: Final = 1_024
_QUICK_S, _MOST_QUICK = 5.0, 3
"""A worker that ends so soon after its start, so often, will never serve."""
_POLL_S: Final = 0.2
PARENT: Final = "RLENV_SERVE_PARENT"
"""Set for a worker: it ends with its standard input, which its parent holds."""


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A socket bound to an address; other processes may bind it too where it is shared.

    Raises:
        UsageError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        hint = "choose another, or 0 for a free one"
        raise UsageError(f"--port {port}: cannot listen at {host}: {error.strerror}", hint=hint) from error
    return bound


def raise_file_limit() -> None:
    """Lets the process open as many sockets as the system allows: the usual 1,024 are fewer than its sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(
    server: Server, bound: socket.socket, *, on_ready: Callable[[], None], stopped: asyncio.Event | None = None
) -> None:
    """Serves until SIGINT or SIGTERM comes or `stopped` is set, then drains."""
    stopped = stopped or asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError, RuntimeError):  # not in the main thread: whoever runs it sets `stopped`
            loop.add_signal_handler(name, stopped.set)
    if os.environ.get(PARENT):
        loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(sys.stdin.fileno(), 1) else stopped.set())
    runner = web.AppRunner(
        server.application(HttpSessions(server)), access_log=None, shutdown_timeout=1.0, handle_signals=False
    )
    await runner.setup()
    sweeping = loop.create_task(close_silent(runner))
    try:
        await web.SockSite(runner, bound, backlog=_BACKLOG).start()
        on_ready()
        await stopped.wait()
        await server.drain()
    finally:
        sweeping.cancel()
        await runner.cleanup()


def supervise(command: Sequence[str], workers: int, *, drain_s: float) -> int:
    """Runs a command as so many processes until SIGINT or SIGTERM comes; one that dies is started again.

    Returns:
        0, or 2 where a worker ends again and again as soon as it was started.
    """
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)
    running = {number: _started(command) for number in range(workers)}
    begun = dict.fromkeys(running, time.monotonic())
    quick, code = dict.fromkeys(running, 0), 0
    while not is_stopped and not code:
        time.sleep(_POLL_S)
        for number, process in running.items():
            if is_stopped or process.poll() is None:
                continue
            quick[number] = quick[number] + 1 if time.monotonic() - begun[number] < _QUICK_S else 0
            if quick[number] >= _MOST_QUICK:
                code = 2
                break
            _LOGGER.warning("worker %d ended with status %s; it is started again", number, process.returncode)
            running[number], begun[number] = _started(command), time.monotonic()
    _stop(list(running.values()), drain_s)
    return code


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, PARENT: "1"}, start_new_session=True)


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
