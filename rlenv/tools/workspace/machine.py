"""One boot of a machine: processes over an image and a layer, and one shell in it.

An image is a folder that nothing changes, a layer one that takes all changes (overlayfs), a boot the processes over
them. Three nested starts make one: a user namespace whose root is a user without rights outside; a process namespace
whose first process is bubblewrap; and what bubblewrap starts, in a process namespace of its own, in which nothing can
see the other two. Bubblewrap says when that has ended. So a shell that ends is told from a machine that somebody
outside has killed: no signal from inside reaches bubblewrap, and silence is not the policy's doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rlenv._base.paths import run_on
from rlenv.concurrency.processes import await_end, child_pids, work_of
from rlenv.errors import ResourceError
from rlenv.tools._process import sealed_file
from rlenv.tools._seccomp import system_call_filter
from rlenv.tools.workspace import starters

_KEPT: Final = 65_536  # bytes of a command's output that are kept, half of them of its beginning and half of its end
_ROOM: Final = 65_536  # bytes that come at once, at most
_ENDED: Final = b'"exit-code":'
"""A part of what bubblewrap writes when what it started has ended. What ends bubblewrap itself keeps it silent."""
_KILLED: Final = (-signal.SIGKILL, 128 + signal.SIGKILL, 1)
"""The statuses of what starts a machine, where that was killed, or one of its mounts; the last is that of `unshare`
whose child was killed, or which this machine refuses a namespace."""
_BOOT_S: Final = 30.0
_NS_GET_USERNS: Final = 0xB701  # of ioctl_ns(2)
_GRACE_S: Final = 2.0  # seconds that what was interrupted may take to end
WATCH_S, _MOST_WATCH_S, _SHARE = 1.0, 30.0, 10
"""Seconds between two looks at the layer's size while a command or what it has started runs; see `pause_s`."""


def pause_s(took_s: float) -> float:
    """Seconds until the next look after one that took so long: looks at many files take a tenth of the time at most."""
    return min(max(WATCH_S, _SHARE * took_s), _MOST_WATCH_S)


class MachineFailed(ResourceError):
    """A machine did not come up, or was ended from outside (`is_cut`)."""

    def __init__(self, message: str, *, is_cut: bool = False) -> None:
        super().__init__(message)
        self.is_cut = is_cut


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """The end of a command. `code` is None where it gave none: it did not end in time, or the shell ended.

    `dropped` bytes of the middle of the output were not kept. `why` says how a command without a status ended: "late"
    where it was stopped and the shell goes on, otherwise the machine has to be booted again; "out of memory" is of
    tests, processes of which were ended at the machine's own limit.
    """

    code: int | None
    output: bytes
    dropped: int = 0
    why: Literal["", "late", "ended", "cut", "full", "broken", "out of memory"] = ""


@dataclass(slots=True)
class _Output:
    """What is kept of a command's output while it comes: its beginning and its end, joined where `dropped` is not 0."""

    most: int
    data: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, piece: bytes) -> None:
        self.data += piece
        if len(self.data) > 3 * self.most + _ROOM:  # seldom: all behind it moves
            self._cut_middle(2 * self.most)

    def _cut_middle(self, most: int) -> None:
        if (over := len(self.data) - most) > 0:
            self.dropped += over
            del self.data[self.most // 2 : self.most // 2 + over]

    def cut_at(self, mark: bytes) -> bytes | None:
        """What follows the mark, once a whole line of it is there; it is taken out with the mark."""
        at = self.data.rfind(mark, max(len(self.data) - 2 * _ROOM, 0))  # what came before has been looked at
        if at < 0 or b"\n" not in (rest := bytes(self.data[at + len(mark) :])):
            return None
        del self.data[at:]
        return rest

    def ran(self, code: int | None, why: Literal["", "late", "ended", "cut", "full"] = "") -> CommandEnd:
        self._cut_middle(self.most)
        return CommandEnd(code, bytes(self.data), self.dropped, why)


Names = tuple[tuple[str, ...], tuple[str, ...]]
"""The tests that have to pass: those that failed before the change, and those that did not."""


class RowTests(NamedTuple):
    """The tests of a row, and what goes before them; `folder` is what stands in `/tests`."""

    command: str
    folder: Path | None = None
    keep: tuple[str, ...] = ()
    """Absolute paths of the layer, `cwd` where there is none; all others are as at first. `/` keeps all."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths that are not kept all the same."""
    time_s: float = 600.0
    names: Names = ((), ())
    collect: str = ""
    """A command that is run before, in another machine without the tests; they see what it left there."""
    patch: str = ""
    """A diff over `cwd` as it was at first: its files stand over what the episode left."""
    last: str = ""
    """A command that the episode's own shell runs before all of it."""


class Verified(NamedTuple):
    """The end of tests: how their command ended, and those of the files asked for that they left."""

    ran: CommandEnd
    files: Mapping[str, bytes]


class Machine:
    """One boot. `boot()`, any number of `run()`, one at a time, and `end()`, whatever happened.

    Args:
        is_full: tells whether it has written more than it may; asked while a command runs, and at its end.
    """

    def __init__(self, start: starters.Start, is_full: Callable[[], Awaitable[bool]]) -> None:
        self.start = start
        self._is_full = is_full
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = asyncio.StreamReader(limit=1 << 20)
        self._output: asyncio.BaseTransport | None = None
        self._input: asyncio.WriteTransport | None = None
        self._status, self._words = -1, b""
        self._began = 0.0
        self._counts: list[int] = []
        self._held: list[int] = []
        self._killed = (0, 0)
        self._rest = b""
        self._of_boot: list[int] = []

    async def boot(self) -> None:
        """Starts it, until its shell answers.

        Raises:
            MachineFailed: it does not come up; the message has the reason.
            UsageError: a program that starts machines is missing.
        """
        try:
            await self._start()
            async with asyncio.timeout(_BOOT_S):
                if (line := await self._reader.readline()) != b"ready\n":
                    raise MachineFailed((line + await self._reader.read(400)).decode(errors="replace").strip())
                starters.map_users(self.pid, self.start.sandbox)
                self._counts = starters.join_cgroup(self.pid, self.start.group, self.start.limits)
                self._write(b"go\n")
            ran = await self.run("true", _BOOT_S)
            self._of_boot = _descendants(self.pid)
            if ran.code != 0:
                raise MachineFailed(ran.output.decode(errors="replace").strip()[-300:])
        except (OSError, TimeoutError, MachineFailed) as error:
            # A fault of this machine's is nobody's doing in there.
            is_cut = getattr(error, "errno", None) in starters.OF_THIS_MACHINE or await self.is_killed()
            await self.end()
            why = str(error) or ("it was ended from outside" if is_cut else "it took too long")
            raise MachineFailed(f"it did not come up: {why}", is_cut=is_cut) from error
        except BaseException:
            await self.end()
            raise

    async def _start(self) -> None:
        for made in ("work", "root", "pts"):
            (self.start.folder / made).mkdir()
            starters.chown(self.start.folder / made)
        fds = [sealed_file(system_call_filter("program"))]
        try:
            for _ in range(3):
                fds += os.pipe()
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        filter_fd, given, into, out, output, self._status, status = fds
        try:
            argv, env = starters.start_of(self.start, filter_fd, status)
            errors, passed = (output, (filter_fd, status)) if self.start.sandbox == "bubblewrap" else (status, ())
            # About a millisecond; the pipe's end says what asyncio's own processes would.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                argv, stdin=given, stdout=output, stderr=errors, env=env, pass_fds=passed, start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in (filter_fd, given, output, status):
                os.close(fd)
            os.set_blocking(self._status, False)
            loop = asyncio.get_running_loop()
            protocol = asyncio.StreamReaderProtocol(self._reader)
            with contextlib.ExitStack() as unless_connected:  # who is cancelled here leaves nobody who waits for a line
                unless_connected.callback((given_to := os.fdopen(into, "wb", 0)).close)
                self._output, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(out, "rb", 0))
                self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, given_to)
                unless_connected.pop_all()

    async def is_killed(self) -> bool:
        """True if what starts it was killed, and not by what it started: that is told, or ran out of memory."""
        if self._process is None or (self._of_boot and {*self._of_boot} <= {*_descendants(self.pid)}):
            return False
        with contextlib.suppress(TimeoutError):  # where it has failed it has ended, or is about to
            await asyncio.wait_for(await_end(self._process), _GRACE_S)
        is_silent = _ENDED not in self._read_status() and self.starved_by != "limit"
        return is_silent and self._process is not None and self._process.poll() in _KILLED

    def _write(self, data: bytes) -> None:
        """Writes a whole line, without waiting; what the shell does not take is seen by its silence."""
        if self._input is not None:
            self._input.write(data)

    @property
    def pid(self) -> int:
        """The process outside that all of it descends from; 0 where there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def has_ended(self) -> bool:
        """True where it was ended between two commands: no command lost anything."""
        return self._process is None or self._process.poll() is not None or self._reader.at_eof()

    async def run(self, command: str, timeout_s: float, *, most: int = _KEPT) -> CommandEnd:
        """A command in the shell, whose folder, variables and background jobs stay. `most` bytes of output are kept.

        One that does not end in time is interrupted; where the shell does not answer then either, the machine has to
        be ended (`why` is "cut"), as where the shell ended ("ended").

        Raises:
            MachineFailed: it was ended from outside.
        """
        mark = secrets.token_hex(16)
        word = "'" + command.replace("\0", "").replace("'", "'\\''") + "'"
        line = f"eval {word} </dev/null 2>&1; printf '\\n%s %d\\n' {mark} $?\n".encode(errors="replace")
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._killed = starters.out_of_memory(self._counts)
        found = _Output(most)
        found.add(self._rest)
        self._rest = b""
        self._write(line)
        for seconds, number in ((timeout_s, signal.SIGINT), (_GRACE_S, signal.SIGKILL), (_GRACE_S, None)):
            try:
                code = await self._await_answer(found, f"\n{mark} ".encode(), seconds)
            except TimeoutError:
                if number is not None and self.start.sandbox != "runsc":  # whose processes are not those inside
                    await asyncio.to_thread(self.signal_since, number, since=self._began)
                continue
            is_full = await self._is_full()
            if code is None or is_full:
                return found.ran(code, "full" if is_full else "ended")
            return found.ran(code) if number is signal.SIGINT else found.ran(None, "late")
        return found.ran(None, "full" if await self._is_full() else "cut")

    async def _await_answer(self, found: _Output, mark: bytes, seconds: float) -> int | None:
        """The answer within that time; None too where it writes beyond its limit meanwhile."""
        end, next_s = time.monotonic() + seconds, WATCH_S
        while True:
            left_s = end - time.monotonic()
            try:
                async with asyncio.timeout(min(left_s, next_s)):
                    return await self._read_answer(found, mark)
            except TimeoutError:
                began = time.monotonic()
                if await self._is_full():
                    return None
                if left_s <= next_s:
                    raise
                next_s = pause_s(time.monotonic() - began)

    async def _read_answer(self, found: _Output, mark: bytes) -> int | None:
        """The status that follows the mark; None where the shell has ended."""
        while True:
            if (rest := found.cut_at(mark)) is not None:
                digits, _, self._rest = rest.partition(b"\n")  # what background jobs wrote since
                return int(digits) if digits.isdigit() and len(digits) < 4 else 1
            piece = await self._reader.read(_ROOM)
            if not piece:
                # Where nothing in it is large, what holds the machine is ended: all the same it is the command's doing.
                if _ENDED not in self._read_status() and self.starved_by != "limit":
                    said = bytes(found.data[-300:]).decode(errors="replace").strip()
                    raise MachineFailed(f"the machine was ended from outside ({said})", is_cut=True)
                return None
            found.add(piece)

    @property
    def starved_by(self) -> Literal["", "limit", "host"]:
        """What ended a process of the last command for want of memory, the machine's own limit or this computer."""
        now = starters.out_of_memory(self._counts)
        is_at_limit, is_killed = (after > before for after, before in zip(now, self._killed, strict=True))
        return "limit" if is_killed and is_at_limit else "host" if is_killed else ""

    def _read_status(self) -> bytes:
        """What bubblewrap has said: that what it started has ended."""
        with contextlib.suppress(OSError):
            self._words += os.read(self._status, 1 << 16)
        return self._words

    def signal_since(self, number: signal.Signals, *, since: float) -> None:
        """A signal to all that runs beside the shell and has begun since then, in seconds since the system did."""
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since + 0.02  # it is told in ticks
        for pid in {*_descendants(self.pid)} - {*self._of_boot}:
            if (work := work_of(pid)) is not None and work.age_s <= age_s:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)

    def signal_all(self, name: str) -> bool:
        """A signal to all that runs inside, the shell too, and to what they start at that moment: the kernel sends it
        to a namespace at once. False where it could not. Blocks."""
        at = self.nsenter_options("pid")
        return bool(at) and run_on("nsenter", *at, "sh", "-c", f"kill -{name} -1").returncode == 0

    def nsenter_options(self, kind: Literal["net", "pid"]) -> list[str]:
        """Options of `nsenter` for a namespace of what runs in it, until its end; none where that is no own one."""
        at, own = f"/proc/{os.getpid()}/fd", os.stat(f"/proc/self/ns/{kind}").st_ino
        for pid in (one for one in _descendants(self.pid) if one not in self._of_boot[:-1]):
            with contextlib.suppress(OSError):
                self._held.append(space := os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY))
                if os.fstat(space).st_ino != own and pid in _descendants(self.pid):  # no other one by the same number
                    self._held.append(users := fcntl.ioctl(space, _NS_GET_USERNS))
                    by_user = [f"--user={at}/{users}", "--preserve-credentials"] if os.geteuid() else []
                    return [f"--{kind}={at}/{space}", *by_user]
        return []

    def has_jobs(self) -> bool:
        """True while processes run beside the shell."""
        return not self.has_ended and not {*_descendants(self.pid)} <= {*self._of_boot}

    async def end(self) -> None:
        """Ends all of its processes, and returns once they are gone. Its layer stays."""
        process, self._process = self._process, None
        given, self._input = self._input, None
        if given is not None and not given.is_closing():
            given.abort()
        held, self._status, self._counts, self._held = [self._status, *self._counts, *self._held], -1, [], []
        for fd in held:
            if fd >= 0:
                os.close(fd)
        if process is not None:
            for pid in child_pids(process.pid):  # the namespace's first: its end is the end of all in it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                await asyncio.wait_for(asyncio.shield(await_end(process)), _BOOT_S)
            except TimeoutError:
                process.kill()
            await starters.remove_cgroups(self.start.group)
        if self._output is not None:
            self._output.close()


def _descendants(pid: int) -> list[int]:
    """All processes that descend from one."""
    found, rest = [], child_pids(pid)
    while rest:
        found.append(one := rest.pop())
        rest += child_pids(one)
    return found
