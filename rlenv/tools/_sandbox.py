"""The sandbox `bubblewrap`: CPython in a pool of sandboxes, each of which forks once for each piece of code."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from rlenv.concurrency.deadline import bounded_by_itself
from rlenv.concurrency.processes import Delays, cause_of, ending_text, only_child, work_of
from rlenv.errors import EpisodeError, ToolFailed, UsageError
from rlenv.tools import _exchange, _matching, _zygote
from rlenv.tools._bubblewrap import NOBODY, Handshake, check_bubblewrap, has_other_user, read_only
from rlenv.tools._cell import CodeLimits, CodeRequest, Outcome, read_result, stop_reason
from rlenv.tools._process import PipeReader, collect_pipe, sealed_file, wait_readable
from rlenv.tools._seccomp import OWN_PID, system_call_filter
from rlenv.tools.base import ToolContext, asked_again

_START_S = 30.0
_GRACE_S = 2.0
_MARGIN_S = 0.25  # so long before the call's end the code is stopped, so that what it did still counts
_MAX_RESULT = 131_072
_FOLDER_BYTES = 64 * 1024 * 1024
_FOLDER_FILES = 10_000
_FILE_BYTES = 16 * 1024 * 1024
# What CPython has mapped before any code runs.
_BASE_BYTES = 64 * 1024 * 1024
# New memory, and files that nobody has read lately: what code is kept waiting for where the machine is at fault.
_PROBE = """
import glob, os
kept = b"x" * (1 << 22)
for path in sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))[:16]:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.read(fd, 4096)
    os.close(fd)
"""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_GONE = "the code's sandbox was gone; try again"


class _Pooled(CodeLimits, Protocol):
    @property
    def workers(self) -> int: ...


def _sandbox_argv(filter_fd: int, setting_fd: int, handshake: Handshake) -> list[str]:
    """A sandbox with the interpreter's files and nothing else: one folder to write, no /proc, no network.

    The one capability that is left is for the process that forks, within its own user namespace; see `_zygote`.
    """
    argv = [check_bubblewrap(), "--unshare-all", *handshake.options, "--die-with-parent", "--new-session", "--as-pid-1"]
    argv += ["--clearenv", "--hostname", "sandbox", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if has_other_user():
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_KILL"]
    for name in ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache"):
        path = Path(name)
        if path.is_symlink():
            argv += ["--symlink", os.readlink(name), name]
        elif path.exists():
            argv += read_only(name)
    if not sys.base_prefix.startswith("/usr/"):
        for parent in reversed(Path(sys.base_prefix).parents[:-1]):  # bwrap would take over who may look into them
            argv += ["--perms", "0755", "--dir", str(parent)]
        argv += read_only(sys.base_prefix)
    for folder in ("/dev", "/etc"):  # bwrap's own would be for the owner alone
        argv += ["--perms", "0755", "--dir", folder]
    for device in _DEVICES:
        argv += ["--dev-bind", device, device]
    for name, module in (("zygote", _zygote), ("matching", _matching), ("exchange", _exchange)):
        argv += ["--ro-bind", str(module.__file__), f"/{name}.py"]
    argv += ["--ro-bind-data", str(filter_fd), "/filter", "--ro-bind-data", str(setting_fd), "/setting"]
    argv += ["--perms", "0755", "--dir", "/tmp", "--remount-ro", "/"]
    for name, value in (("HOME", "/tmp"), ("LANG", "C.UTF-8"), ("PYTHONHASHSEED", "0"), ("TZ", "UTC")):
        argv += ["--setenv", name, value]
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not python.exists():
        python = Path(sysconfig.get_config_var("BINDIR") or "/usr/bin") / python.name
    return [*argv, "--chdir", "/", "--", str(python), "-I", "-S", "-X", "utf8", "/zygote.py"]


def _zygote_setting() -> bytes:
    has_other = has_other_user()
    return json.dumps(
        {
            "uid": NOBODY if has_other else os.geteuid(),
            "gid": NOBODY if has_other else os.getegid(),
            "has_other_user": has_other,
            "own_pid": OWN_PID,
            "devices": _DEVICES,
            "bytes": _FOLDER_BYTES,
            "files": _FOLDER_FILES,
        }
    ).encode()


class _Sandbox:
    """One sandbox; runs one piece of code at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._handshake = Handshake(other_user=has_other_user())
        try:
            with (
                theirs,
                FileIO(sealed_file(system_call_filter("code"))) as filter_file,
                FileIO(sealed_file(_zygote_setting())) as setting_file,
            ):
                fds = filter_file.fileno(), setting_file.fileno()
                self._process = subprocess.Popen(
                    _sandbox_argv(*fds, self._handshake),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(*fds, *self._handshake.pass_fds),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            self._handshake.close()
            raise
        self._handshake.is_given()
        ours.setblocking(False)
        self._socket = ours
        self._pid = 0
        self._pidfd: int | None = None
        self.is_usable = False
        self.is_gone = False

    async def wait_ready(self) -> None:
        """Waits until the interpreter inside is there.

        Raises:
            EpisodeError: it is not.
        """
        try:
            async with asyncio.timeout(_START_S):
                await wait_readable(self._handshake.fileno)
                self._pid = self._handshake.map_users()
                self._pidfd = os.pidfd_open(self._pid)
                said = await self._receive()
        except (TimeoutError, OSError, ValueError) as error:
            raise EpisodeError("the sandbox bubblewrap could not be started", reason="sandbox") from error
        finally:
            self._handshake.close()
        if said != b"ready":
            raise EpisodeError("the sandbox bubblewrap could not be started", reason="sandbox")
        self.is_usable = True

    async def _receive(self) -> bytes:
        await wait_readable(self._socket.fileno())
        try:
            return self._socket.recv(4_096)
        except OSError:
            return b""

    def _has_ended(self) -> bool:
        """True if the process that forks is no more.

        The socket does not say: bwrap holds its other end too, until it has heard of the end and ends itself, and takes
        what is sent in between without anybody there to read it.
        """
        return self._pidfd is None or bool(select.select((self._pidfd,), (), (), 0)[0])

    async def run(self, wanted: CodeRequest, spec: CodeLimits, *, deadline: float, seed: int) -> Outcome:
        self.is_usable = False  # until it has answered that nothing is left
        if self._has_ended():
            self.is_gone = True
            return Outcome(error=_GONE, reason="worker")
        token, begun = secrets.token_hex(16), time.monotonic()
        request = {
            **wanted.message,
            "token": token,
            "time_s": spec.time_s,
            "memory": _BASE_BYTES + spec.memory_mb * 1024 * 1024,
            "file": _FILE_BYTES,
            "seed": seed,
        }
        with FileIO(sealed_file(json.dumps(request).encode())) as given, _result_file() as result_fd:
            async with collect_pipe(spec.max_bytes) as (out_file, out):
                try:
                    socket.send_fds(self._socket, [b"run"], [given.fileno(), out_file.fileno(), result_fd, *wanted.fds])
                    wanted.sent(delays := Delays(self._pid))
                except OSError:
                    self.is_gone = True
                    return Outcome(error=_GONE, reason="worker")
                finally:
                    out_file.close()
                wanted = replace(wanted, beside=(beside := _stopwatch(wanted.beside)))
                answer, judged = await self._await_answer(out, wanted, delays, spec, deadline)
                out.take_rest()
                said = os.pread(result_fd, _MAX_RESULT, 0)
        outcome = _build_outcome(answer, judged, out, said, token, spec)
        spent = answer or {"cpu_s": 0.0, "lived_s": time.monotonic() - begun}
        return replace(outcome, cpu_s=spent["cpu_s"], lived_s=spent["lived_s"], delayed_s=delays() + beside())

    async def _await_answer(
        self, out: PipeReader, wanted: CodeRequest, delays: Delays, spec: CodeLimits, deadline: float
    ) -> tuple[dict[str, Any] | None, str]:
        """The sandbox's last message, None where it says nothing any more; and why the code was stopped, if it was:
        `timeout`, `stalled` or `late` (see `rlenv.errors.WHOSE`).
        """
        out.done.add_done_callback(self._stop_flood(out))
        said = asyncio.ensure_future(self._last_message(delays))
        unasked = asyncio.ensure_future((wanted.unasked or asyncio.Event()).wait())
        begun, time_s = time.monotonic(), max(spec.time_s, wanted.patience_s)
        latest = max(deadline - _MARGIN_S, begun)
        wait_s, judged = time_s, ""
        try:
            while not judged and not unasked.done():
                room_s = min(wait_s, latest - time.monotonic())
                await asyncio.wait((said, unasked), timeout=room_s, return_when=asyncio.FIRST_COMPLETED)
                if said.done():
                    break
                now = time.monotonic()
                work = work_of(only_child(self._pid) or 0)
                judged, wait_s = stop_reason(work, time_s, now - begun, wanted.beside(), is_last=now >= latest)
                delays()
                if judged == "stalled":  # or it has ended at this moment, and that is about to be said
                    await asyncio.wait((said,), timeout=max(min(_GRACE_S, latest - now), _MARGIN_S))
                    if said.done():
                        judged = ""
                        break
            if judged or unasked.done():
                with contextlib.suppress(OSError):
                    self._socket.send(b"k")
                await asyncio.wait((said,), timeout=_GRACE_S)
        finally:
            unasked.cancel()
            if not said.done():
                said.cancel()
        if not said.done() or said.cancelled() or not (line := said.result()):
            return None, judged
        answer: dict[str, Any] = json.loads(line)
        self.is_usable = True  # or gone: a sandbox that cannot be made anew ends itself
        if answer["was_stopped"]:
            judged = "stalled"
        return answer, judged

    async def _last_message(self, delays: Delays) -> bytes:
        """The answer to a request. The code's process has ended before and is still there to be asked about."""
        message = await self._receive()
        if message != b"over":
            return message
        delays()
        with contextlib.suppress(OSError):
            self._socket.send(b"r")
        return await self._receive()

    def _stop_flood(self, out: PipeReader) -> Callable[[object], None]:
        def stop(_: object) -> None:
            if out.is_flood:
                with contextlib.suppress(OSError):
                    self._socket.send(b"k")

        return stop

    def close(self) -> None:
        """Ends the sandbox with everything in it; the process namespace goes with its first process."""
        self._socket.close()
        self._handshake.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        # The whole group: what bwrap forks while it sets up dies with it only later, and not while it is stopped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _stopwatch(seconds: Callable[[], float]) -> Callable[[], float]:
    before = seconds()
    return lambda: seconds() - before


@contextlib.contextmanager
def _result_file() -> Iterator[int]:
    """A file that cannot grow, for what the code's process says of itself."""
    fd = os.memfd_create("result", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, _MAX_RESULT)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        yield fd
    finally:
        os.close(fd)


def _build_outcome(
    answer: dict[str, Any] | None, judged: str, out: PipeReader, said: bytes, token: str, spec: CodeLimits
) -> Outcome:
    output = out.data.decode("utf-8", errors="replace")
    if out.is_flood:
        return Outcome(output, is_cut=True, error="the code printed too much and was stopped", reason="too_large")
    late = _late_text(spec)
    if judged:
        if judged == "timeout":
            return Outcome(output, error=late, reason="timeout")
        why = "it waited for the machine" if judged == "late" else "it was kept from the processor"
        return Outcome(output, error=f"{late}: {why}", reason=judged)
    if answer is None or not answer["has_begun"]:
        return Outcome(output, error=_GONE, reason="worker")
    status, cpu_s = answer["status"], answer["cpu_s"]
    if status in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= spec.time_s:
        return Outcome(output, error=late, reason="timeout")
    if cause_of(status) == "outside" and -status not in _zygote.OWN_SIGNALS:  # no code can do that to itself
        return Outcome(output, error="the code's process was killed from outside; try again", reason="worker")
    found = read_result(said, token) if status == 0 else None
    if found is None:
        return Outcome(output, error=f"the code was stopped: {_exit_text(status)}")
    shown, result, error = found
    is_memory = error is not None and error.startswith("MemoryError")
    return Outcome(output, shown=shown, result=result, error=error, reason="memory" if is_memory else "failed")


def _late_text(spec: CodeLimits) -> str:
    return f"the code did not end within {spec.time_s:g} s"


def _exit_text(status: int) -> str:
    if status == 0:
        return "it ended its process before its last statement"
    return f"it ended its process with {ending_text(status)}" if status > 0 else ending_text(status)


class Sandboxes:
    """At most `limit` sandboxes, started when they are needed and kept while they are clean."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        self._idle: list[_Sandbox] = []
        self._all: set[_Sandbox] = set()

    async def run(self, wanted: CodeRequest, spec: CodeLimits, *, deadline: float, seed: int) -> Outcome:
        """Runs it in a sandbox that is free before the deadline (of `time.monotonic`).

        Code that waits may wait for what it asked for itself, and may be kept waiting: it ends as `late`. Where it is a
        retry it ends so only if a probe, run in its place, is kept waiting too, and as `timeout` otherwise.

        Raises:
            ToolFailed, EpisodeError: none was free, or none could be started.
        """
        # What a reward asks again was lost once by waiting, perhaps: its wait for a place counts for no limit.
        is_patient, begun = bool(asked_again.get()), time.monotonic()
        try:
            async with asyncio.timeout(None if is_patient else deadline - _MARGIN_S - begun):
                with bounded_by_itself() if is_patient else contextlib.nullcontext():
                    await self._places.acquire()
        except TimeoutError as error:
            raise ToolFailed("no sandbox was free in the code's time", reason="busy", retryable=True) from error
        deadline += is_patient * (time.monotonic() - begun)
        try:
            outcome = await self._run_once(wanted, spec, deadline, seed)
            if outcome.reason == "late" and wanted.is_retry:
                probe = await self._run_once(CodeRequest({"mode": "cell", "code": _PROBE}), spec, deadline, seed)
                if probe.error is None:
                    return replace(outcome, error=_late_text(spec), reason="timeout")
            return outcome
        finally:
            self._places.release()

    async def _run_once(self, wanted: CodeRequest, spec: CodeLimits, deadline: float, seed: int) -> Outcome:
        for _ in range(2):
            sandbox = self._idle.pop() if self._idle else await self._start_sandbox(deadline)
            try:
                outcome = await sandbox.run(wanted, spec, deadline=deadline, seed=seed)
            finally:
                if sandbox.is_usable:
                    self._idle.append(sandbox)
                else:
                    self._close_sandbox(sandbox)
            if not sandbox.is_gone:  # one that ended while it was idle has run nothing
                break
        return outcome

    async def _start_sandbox(self, deadline: float) -> _Sandbox:
        sandbox = _Sandbox()
        self._all.add(sandbox)
        try:
            async with asyncio.timeout(deadline - _MARGIN_S - time.monotonic()):
                await sandbox.wait_ready()
        except TimeoutError as error:
            self._close_sandbox(sandbox)
            raise ToolFailed("no sandbox could be started in the code's time", reason="worker") from error
        except BaseException:
            self._close_sandbox(sandbox)
            raise
        return sandbox

    def _close_sandbox(self, sandbox: _Sandbox) -> None:
        self._all.discard(sandbox)
        sandbox.close()

    def close(self) -> None:
        for sandbox in list(self._all):
            self._close_sandbox(sandbox)


def check_sandbox() -> None:
    """Raises UsageError where bwrap is not installed, or does not work here."""
    check_bubblewrap()
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        raise UsageError("the sandbox bubblewrap needs Linux")
    system_call_filter("code")


def sandbox_runner(spec: _Pooled) -> Callable[[str, ToolContext], Awaitable[Outcome]]:
    """Runs code in CPython inside bubblewrap.

    Raises:
        UsageError: bwrap is not installed, or does not work here.
    """
    check_sandbox()
    key = ("bubblewrap", spec.workers)

    @asynccontextmanager
    async def open_sandboxes() -> AsyncIterator[Sandboxes]:
        with contextlib.closing(Sandboxes(spec.workers)) as sandboxes:
            yield sandboxes

    async def run(code: str, call: ToolContext) -> Outcome:
        sandboxes = await call.shared().get(key, open_sandboxes)
        wanted = CodeRequest({"mode": "cell", "code": code})
        if call.deadline - time.monotonic() > 3 * spec.time_s:  # there is time for a retry
            outcome = await sandboxes.run(wanted, spec, deadline=call.deadline, seed=call.seed)
            if outcome.reason != "late":
                return outcome
        return await sandboxes.run(replace(wanted, is_retry=True), spec, deadline=call.deadline, seed=call.seed)

    return run
