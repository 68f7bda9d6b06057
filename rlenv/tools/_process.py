"""One program, run to its end within limits and gone afterwards, with everything that it started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from rlenv._base.paths import remove
from rlenv.concurrency.processes import await_end
from rlenv.errors import ToolFailed
from rlenv.tools._bubblewrap import Confined

_PIECE = 65_536


def is_disk_full(folder: str | Path) -> bool:
    """True if there is no room for another file where a program worked, its own folder gone or not."""
    try:
        disk = os.statvfs(folder if os.path.isdir(folder) else os.path.dirname(folder))
    except OSError:
        return False
    if disk.f_blocks == 0 or disk.f_flag & os.ST_RDONLY:  # nobody ever writes there
        return False
    return disk.f_bavail * disk.f_frsize < _PIECE or (disk.f_files > 0 and disk.f_favail == 0)


class PipeReader:
    """The bytes of a pipe so far, at most `limit`; `done` is set at its end or beyond the limit."""

    def __init__(self, fd: int, limit: int) -> None:
        self._fd = fd
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self.is_flood = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read(self) -> None:
        """Takes one piece; called when there is something to read."""
        try:
            piece = os.read(self._fd, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if piece and not self.is_flood:
            self._pieces.append(piece)
            self._size += len(piece)
            self.is_flood = self._size > self._limit
        if (self.is_flood or not piece) and not self.done.done():
            # Nothing more is read: whoever goes on writing waits until it is ended.
            self.done.get_loop().remove_reader(self._fd)
            self.done.set_result(None)

    def take_rest(self) -> None:
        """Takes what lies in the pipe once its writers are gone."""
        while not self.done.done():
            before = self._size
            self.read()
            if self._size == before:
                return

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)[: self._limit]


@asynccontextmanager
async def collect_pipe(limit: int) -> AsyncIterator[tuple[FileIO, PipeReader]]:
    """A pipe's writing end, to be given away and closed, and what comes out of the other."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    found = PipeReader(out, limit)
    loop = asyncio.get_running_loop()
    loop.add_reader(out, found.read)
    try:
        with FileIO(into, "w") as given:
            yield given, found
    finally:
        loop.remove_reader(out)
        os.close(out)
        if not found.done.done():
            found.done.cancel()


async def wait_readable(fd: int) -> None:
    """Waits until there is something to read, or the end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        loop.remove_reader(fd)
        if not done.done():
            done.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await done
    finally:
        if done.cancelled():  # else it is removed, and its number may be another's by now
            loop.remove_reader(fd)


def sealed_file(content: bytes) -> int:
    """The descriptor of a new file that holds `content` and that nobody can change (Linux). To be closed."""
    fd = os.memfd_create("rlenv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, content, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


MARK = "RLENV_CALL"
"""The variable that marks a process and all that it starts."""
# A constant script: what the model wrote only ever reaches it as parameters. A limit that cannot be set is one that the
# user's own hard limit undercuts already. The soft limit of CPU time comes first, so that its signal tells.
_SCRIPT = (
    '{ ulimit -c 0; ulimit -t "$2"; ulimit -S -t "$1"; ulimit -v "$3"; ulimit -f "$4"; } 2>/dev/null; '
    'shift 4; exec "$@"'
)


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """The limits of a program; rlimits, so each of its processes may use as much."""

    cpu_s: int
    memory_mb: int
    file_mb: int
    max_bytes: int
    """Of output and of errors, each; a program that writes more is killed."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program: `code` is negative for a signal; `is_flood` where it was killed for writing too much.
    `has_sandbox` is false where it was to have one and was never begun.
    """

    code: int
    output: bytes
    errors: bytes
    is_flood: bool
    has_sandbox: bool = True


def _limit_argv(argv: Sequence[str], limits: ProgramLimits) -> list[str]:
    # POSIX counts -f in blocks of 512 bytes and -v in kilobytes.
    numbers = (limits.cpu_s, limits.cpu_s + 1, limits.memory_mb * 1024, limits.file_mb * 2048)
    return ["/bin/sh", "-c", _SCRIPT, "sh", *map(str, numbers), *argv]


@asynccontextmanager
async def _working_folder(folder: Path | None) -> AsyncIterator[str]:
    """`folder`, or an empty one that is removed with whatever is in it."""
    if folder is not None:
        yield str(folder)
        return
    made = tempfile.mkdtemp(prefix="rlenv-")
    try:
        yield made
    finally:
        try:
            os.rmdir(made)
        except OSError:
            await asyncio.to_thread(remove, made)


async def run_program(
    program: Callable[[str], AbstractContextManager[Confined]],
    *,
    stdin: bytes,
    cwd: Path | None,
    env: Mapping[str, str],
    limits: ProgramLimits,
) -> tuple[ProgramEnd, str]:
    """Runs `program(folder)` in a session of its own and gives how it ended, and the folder in which it ran.

    Whatever happens, cancellation included, its process group is killed, and on Linux every other process that it
    started and that kept its environment.

    Raises:
        ToolFailed: the arguments are too long, or hold what none can.
    """
    mark = secrets.token_hex(16)
    async with (
        _working_folder(cwd) as folder,
        collect_pipe(limits.max_bytes) as (output_file, output),
        collect_pipe(limits.max_bytes) as (errors_file, errors),
    ):
        with ExitStack() as sandbox:
            with _start_errors(), output_file, errors_file, _stdin_file(stdin) as given:
                confined = sandbox.enter_context(program(folder))
                # About a millisecond; asyncio's own processes would wait for pipes that a daemon holds.
                process = subprocess.Popen(  # noqa: ASYNC220
                    _limit_argv(confined.argv, limits),
                    stdin=given,
                    stdout=output_file,
                    stderr=errors_file,
                    cwd=folder,
                    env={**env, MARK: mark},
                    start_new_session=True,
                    pass_fds=confined.pass_fds,
                )
            code = await _reap(process, mark, (output, errors), sandbox)
        output.take_rest()
        errors.take_rest()
        # bwrap too ends with 1 where it fails, as over a mount of this machine's that goes at that moment.
        has_sandbox = confined.has_sandbox and (confined.has_run or code != 1)
        return ProgramEnd(code, output.data, errors.data, output.is_flood or errors.is_flood, has_sandbox), folder


async def _reap(process: subprocess.Popen[bytes], mark: str, pipes: Sequence[PipeReader], sandbox: ExitStack) -> int:
    """The program's exit status, once nothing is left of it; it is killed where a pipe has given too much."""
    ending = asyncio.ensure_future(await_end(process))
    floods = [asyncio.ensure_future(_wait_flood(pipe)) for pipe in pipes]
    try:
        await asyncio.wait([ending, *floods], return_when=asyncio.FIRST_COMPLETED)
    finally:
        sandbox.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for flood in floods:
            flood.cancel()
        await asyncio.shield(asyncio.ensure_future(_sweep_after(ending, mark)))
    return ending.result()


def _stdin_file(stdin: bytes) -> IO[bytes]:
    """The file that a program reads; one that it cannot write to, where the system has such files."""
    if hasattr(os, "memfd_create"):
        return FileIO(sealed_file(stdin))
    file: IO[bytes] = TemporaryFile()  # noqa: SIM115
    file.write(stdin)
    file.seek(0)
    return file


@contextmanager
def _start_errors() -> Iterator[None]:
    """Raises what it means for the policy where a program could not be started."""
    try:
        yield
    except ValueError as error:  # a null character, or text that no file system encodes
        text = "an argument holds a character that no program takes"
        raise ToolFailed(text, reason="bad_arguments") from error
    except OSError as error:
        if error.errno != errno.E2BIG:
            raise
        raise ToolFailed("the arguments are too long", reason="bad_arguments") from error


async def _wait_flood(pipe: PipeReader) -> None:
    """Ends once the pipe has given too much; a program may close its pipes early and go on."""
    await pipe.done
    if not pipe.is_flood:
        await asyncio.get_running_loop().create_future()


async def _sweep_after(ending: asyncio.Future[int], mark: str) -> None:
    await ending
    await asyncio.to_thread(sweep, mark)


_LOOKS, _LOOK_S = 10, 0.001
_bare: Final[set[int]] = set()
"""Processes that have shown no environment all the time."""


def sweep(mark: str) -> None:
    """Kills what left the process group (a daemon): it is known by the mark in the environment it was started with."""
    wanted = f"{MARK}={mark}".encode()
    for again in range(100):  # what is killed may have started another meanwhile
        read = {pid: _read_environment(pid) for pid in _own_processes()}
        found = [pid for pid, environment in read.items() if wanted in environment.split(b"\0")]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            # One that becomes another program shows none for a moment; so do, for good, some that are not the call's.
            bare = {pid for pid, environment in read.items() if not environment and os.path.exists(f"/proc/{pid}/exe")}
            if again >= _LOOKS or bare <= _bare:
                _bare.update(bare)
                return
            time.sleep(_LOOK_S)


def _own_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _read_environment(pid: int) -> bytes:
    """What a process was started with; empty for one of another user too."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(1_000_000)
    except OSError:
        return b""
