"""The sandbox `bubblewrap`: CPython in a pool of sandboxes, each of which forks once for each piece of code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlenv.errors import EpisodeError, ToolFailed, UsageError
from rlenv.tools import _zygote
from rlenv.tools._bubblewrap import check_bubblewrap, system_call_filter
from rlenv.tools._cell import Outcome
from rlenv.tools._pipes import Collected, collected
from rlenv.tools.base import ToolContext

if TYPE_CHECKING:
    from rlenv.tools.code import CodeSpec

__all__ = ["sandbox_runner"]

_START_S = 30.0
_GRACE_S = 2.0
_MAX_RESULT = 262_144
_FOLDER_BYTES = 64 * 1024 * 1024
_FILE_BYTES = 16 * 1024 * 1024
# What CPython has mapped before any code runs.
_BASE_BYTES = 64 * 1024 * 1024


def _argv(filter_fd: int) -> list[str]:
    """A sandbox with the interpreter's files and nothing else: one folder to write, no /proc, no network."""
    argv = [check_bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    for name in ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache"):
        path = Path(name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(name), name]
        elif path.exists():
            argv += ["--ro-bind", name, name]
    if not sys.base_prefix.startswith("/usr/"):
        argv += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    for device in ("null", "zero", "random", "urandom"):
        argv += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    argv += ["--ro-bind", _zygote.__file__, "/zygote.py", "--ro-bind-data", str(filter_fd), "/filter"]
    argv += ["--perms", "0755", "--size", str(_FOLDER_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/"]
    for name, value in (("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONHASHSEED", "0"), ("TZ", "UTC")):
        argv += ["--setenv", name, value]
    python = (
        Path(sysconfig.get_config_var("BINDIR") or sys.base_prefix + "/bin")
        / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )
    return [*argv, "--chdir", "/", "--", str(python), "-I", "-S", "-X", "utf8", "/zygote.py"]


class _Sandbox:
    """One sandbox; runs one piece of code at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        filter_fd = os.memfd_create("filter")
        try:
            os.write(filter_fd, system_call_filter(only_children=False))
            os.lseek(filter_fd, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                _argv(filter_fd),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(filter_fd,),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(filter_fd)
        ours.setblocking(False)
        self._socket = ours
        self.is_usable = False

    async def ready(self) -> None:
        """Waits until the interpreter inside is there.

        Raises:
            EpisodeError: it is not.
        """
        try:
            async with asyncio.timeout(_START_S):
                line = await self._line()
        except TimeoutError:
            line = b""
        if line != b"ready\n":
            raise EpisodeError("the sandbox bubblewrap could not be started", reason="sandbox")
        self.is_usable = True

    async def _line(self) -> bytes:
        loop = asyncio.get_running_loop()
        line = b""
        while not line.endswith(b"\n"):
            piece = await loop.sock_recv(self._socket, 4_096)
            if not piece:
                return b""
            line += piece
        return line

    async def run(self, code: str, spec: CodeSpec, *, seconds: float, seed: int) -> Outcome:
        self.is_usable = False  # until it has answered that nothing is left
        request = {
            "code": code,
            "time_s": seconds,
            "memory": _BASE_BYTES + spec.memory_mb * 1024 * 1024,
            "file": _FILE_BYTES,
            "seed": seed,
        }
        async with collected(spec.max_bytes) as (out_fd, out), collected(_MAX_RESULT) as (result_fd, result):
            given = os.memfd_create("request")
            try:
                with os.fdopen(os.dup(given), "wb") as file:
                    file.write(json.dumps(request).encode())
                os.lseek(given, 0, os.SEEK_SET)
                try:
                    socket.send_fds(self._socket, [str(seconds).encode()], [given, out_fd, result_fd])
                except OSError:
                    return Outcome(error="the code's sandbox was gone; try again")
            finally:
                for fd in (given, out_fd, result_fd):
                    os.close(fd)
            answer = await self._answer(out, seconds)
            out.take_rest()
            result.take_rest()
            return _outcome(answer, out, result.data, seconds)

    async def _answer(self, out: Collected, seconds: float) -> dict[str, Any] | None:
        """What the sandbox says at the end; None where it says nothing in time, so that it has to go."""
        out.done.add_done_callback(self._stop_flood(out))
        try:
            async with asyncio.timeout(seconds + _GRACE_S):
                line = await self._line()
        except (TimeoutError, OSError):
            return None
        if not line:
            return None
        answer: dict[str, Any] = json.loads(line)
        self.is_usable = bool(answer["is_clean"]) and not out.is_flood
        return answer

    def _stop_flood(self, out: Collected) -> Callable[[object], None]:
        def stop(_: object) -> None:
            if out.is_flood:
                try:
                    self._socket.send(b"k")
                except OSError:
                    return

        return stop

    def close(self) -> None:
        """Ends the sandbox with everything in it; the process namespace goes with its first process."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _outcome(answer: dict[str, Any] | None, out: Collected, result: bytes, seconds: float) -> Outcome:
    output = out.data.decode("utf-8", errors="replace")
    if out.is_flood:
        return Outcome(output, is_cut=True, error="the code printed too much and was stopped")
    if answer is None:
        return Outcome(output, error="the code broke its sandbox and was stopped")
    if answer["is_late"]:
        return Outcome(output, error=f"the code did not end within {seconds:g} s", is_late=True)
    try:
        told = json.loads(result)
        return Outcome(output, shown=told["shown"], result=told["result"], error=told["error"])
    except (ValueError, KeyError, TypeError):
        return Outcome(output, error=f"the code was stopped: {_how(answer['status'])}")


def _how(status: int) -> str:
    if status == -signal.SIGKILL:
        return "it used up its time or its memory"
    if status < 0 and -status in set(signal.Signals):
        return signal.Signals(-status).name
    return f"it ended its process with status {status}"


class _Sandboxes:
    """At most `limit` sandboxes, started when they are needed and kept while they are clean."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._idle: list[_Sandbox] = []
        self._all: set[_Sandbox] = set()

    async def run(self, code: str, spec: CodeSpec, *, seconds: float, seed: int) -> Outcome:
        async with self._places:
            sandbox = self._idle.pop() if self._idle else await self._started()
            try:
                return await sandbox.run(code, spec, seconds=seconds, seed=seed)
            finally:
                if sandbox.is_usable:
                    self._idle.append(sandbox)
                else:
                    self._close(sandbox)

    async def _started(self) -> _Sandbox:
        sandbox = _Sandbox()
        self._all.add(sandbox)
        try:
            await sandbox.ready()
        except BaseException:
            self._close(sandbox)
            raise
        return sandbox

    def _close(self, sandbox: _Sandbox) -> None:
        self._all.discard(sandbox)
        sandbox.close()

    def close(self) -> None:
        for sandbox in list(self._all):
            self._close(sandbox)


def sandbox_runner(spec: CodeSpec) -> Callable[[str, ToolContext], Awaitable[Outcome]]:
    """Runs code in CPython inside bubblewrap.

    Raises:
        UsageError: bwrap is not installed, or does not work here.
    """
    check_bubblewrap()
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise UsageError("the sandbox bubblewrap needs Linux")
    system_call_filter(only_children=False)
    key = ("bubblewrap", spec.workers)

    @asynccontextmanager
    async def opened() -> AsyncIterator[_Sandboxes]:
        sandboxes = _Sandboxes(spec.workers)
        try:
            yield sandboxes
        finally:
            sandboxes.close()

    async def run(code: str, call: ToolContext) -> Outcome:
        sandboxes = await call.shared().get(key, opened)
        seconds = min(spec.time_s, call.deadline - time.monotonic())
        if seconds <= 0:
            raise ToolFailed("the code's time is up", reason="timeout")
        return await sandboxes.run(code, spec, seconds=spec.time_s, seed=call.seed)

    return run
