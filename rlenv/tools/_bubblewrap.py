"""bubblewrap: whether it works here, and how a program is run inside it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from pathlib import Path

from rlenv.errors import UsageError
from rlenv.tools._seccomp import system_call_filter

NOBODY = 65_534
"""Who runs inside where rlenv runs as root: a user who owns nothing.

Root owns the machine's devices and files, may change their modes, and is exempt from limits on processes, all without
any capability.
"""
_HIDDEN = (
    *("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv"),
    *("/var/lib", "/var/log", "/var/cache", "/var/spool", "/var/mail", "/var/backups"),
)
UNSEEN = {str(Path(__file__).resolve().parents[1])}
"""Folders that nothing of a policy's sees among the host's programs: rlenv's own, and those of specs with machines."""
# What any program may write to, in memory; of each no more than this.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
_SHARED_BYTES = 64 * 1024 * 1024
_MOST_WORDS = 8_000  # bwrap takes 9,000, its own options among them
_PROCESSES = 256  # processes and threads of one program at once: beyond that the kernel refuses to start one
# The letter is bash's, or that of other shells.
_BOUNDED = f'ulimit -u {_PROCESSES} 2>/dev/null || ulimit -p {_PROCESSES} 2>/dev/null; exec "$@"'


def is_hidden(path: Path) -> bool:
    """True where a sandbox does not show what lies at `path`, links followed."""
    return any(path.resolve().is_relative_to(folder) for folder in _HIDDEN)


def bwrap_path() -> str:
    """The path of bwrap.

    Raises:
        UsageError: it is not installed; the message names the fix.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise UsageError(
            "the sandbox bubblewrap needs the program bwrap", hint="install it: apt-get install bubblewrap"
        )
    return found


def hidden_below(folder: str) -> list[str]:
    """What of a folder of this machine's is not to be seen inside."""
    return [one for one in sorted(UNSEEN) if folder in map(str, Path(one).parents) and Path(one).is_dir()]


def read_only(folder: str) -> list[str]:
    """bwrap's options for a folder of this machine's, but for what is not to be seen of it."""
    return ["--ro-bind", folder, folder, *(word for one in hidden_below(folder) for word in ("--tmpfs", one))]


class Handshake:
    """The handshake of a new sandbox: its process id, and that its users are mapped.

    Args:
        other_user: there is a second user beside the one who starts it; only root can do that.
    """

    def __init__(self, *, other_user: bool) -> None:
        self._other_user = other_user
        self._told, self._tell = os.pipe()
        self._fds = {self._told, self._tell}
        try:
            self._wait, self._go = os.pipe()
        except OSError:  # this process has no more descriptors, and needs these
            self.close()
            raise
        self._fds |= {self._wait, self._go}

    @property
    def options(self) -> list[str]:
        """For bwrap."""
        options = ["--unshare-user", "--info-fd", str(self._tell)]
        return [*options, "--userns-block-fd", str(self._wait)] if self._other_user else options

    @property
    def pass_fds(self) -> tuple[int, ...]:
        return (self._tell, self._wait) if self._other_user else (self._tell,)

    @property
    def fileno(self) -> int:
        """Can be read once bwrap has started its sandbox, or has ended; `map_users` does not wait then."""
        return self._told

    @property
    def is_open(self) -> bool:
        """False once it is closed."""
        return bool(self._fds)

    def is_given(self) -> None:
        """Closes this side's copies of what was passed on."""
        self._close(self._tell, self._wait)

    def map_users(self) -> int:
        """Maps the users and lets the sandbox go on; its first process.

        Raises:
            OSError, ValueError: there is no sandbox, or its users cannot be mapped.
        """
        told = b""
        while not told.endswith(b"}\n"):  # comes in pieces; bwrap ends where nobody reads them all
            piece = os.read(self._told, 4_096)
            if not piece:
                raise ValueError("bwrap has started no sandbox")
            told += piece
        pid = int(json.loads(told)["child-pid"])
        if self._other_user:
            for name in ("gid_map", "uid_map"):
                Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n", encoding="ascii")
            os.write(self._go, b"1")
        return pid

    def close(self) -> None:
        """Closes everything; a sandbox that still waits ends."""
        self._close(*self._fds)

    def _close(self, *fds: int) -> None:
        for fd in fds:
            if fd in self._fds:
                self._fds.discard(fd)
                os.close(fd)


def _try_sandbox(*, other_user: bool) -> str:
    """The output of a sandbox that should write nothing."""
    handshake = Handshake(other_user=other_user)
    argv = [bwrap_path(), "--unshare-all", *handshake.options, "--die-with-parent", "--ro-bind", "/", "/"]
    argv += ["--dev", "/dev", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    try:
        process = subprocess.Popen(
            [*argv, "/bin/sh", "-c", "exit 0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=handshake.pass_fds,
        )
        with process:
            handshake.is_given()
            with contextlib.suppress(OSError, ValueError):
                handshake.map_users()
            handshake.close()
            _, said = process.communicate(timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        handshake.close()
    if not process.returncode:
        return ""
    return said.decode("utf-8", errors="replace").strip()[:200] or f"status {process.returncode}"


@lru_cache(maxsize=1)
def has_other_user() -> bool:
    """True if what runs inside is another user than root, because rlenv is root and may say so."""
    return os.geteuid() == 0 and shutil.which("setpriv") is not None and not _try_sandbox(other_user=True)


@lru_cache(maxsize=1)
def check_bubblewrap() -> str:
    """The path of bwrap, after it has made a sandbox once.

    Raises:
        UsageError: it is not installed, or the kernel does not let it make a sandbox; the message names the fix.
    """
    path = bwrap_path()
    if not has_other_user() and (said := _try_sandbox(other_user=False)):
        raise UsageError(
            f"the sandbox bubblewrap does not work here ({said})",
            hint="the kernel or the container must allow user namespaces",
        )
    return path


@dataclass(slots=True)
class Confined:
    """The start of a program: `argv`, and the descriptors that it has to be given. `has_sandbox` tells afterwards
    whether its sandbox came about, and `has_run` whether the program ended in it; one that has none has all it needs.
    """

    argv: tuple[str, ...]
    pass_fds: tuple[int, ...] = ()
    has_sandbox: bool = True
    has_run: bool = True


def _bind_options(path: str, *, may_write: bool) -> list[str]:
    options: list[str] = []
    for parent in reversed(Path(path).parents):
        if any(parent.is_relative_to(hidden) for hidden in _HIDDEN):  # bwrap's own would be for the owner alone
            options += ["--perms", "0755", "--dir", str(parent)]
    return [*options, "--bind" if may_write else "--ro-bind", path, path]


def _mount_options(program: str, folders: Mapping[str, bool]) -> list[str]:
    """The mounts of a sandbox: the machine's files, but for those that are hidden, the program's and `folders`."""
    options = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    hidden = [path for path in _HIDDEN if Path(path).is_dir() and not Path(path).is_symlink()]
    for path in (*hidden, "/dev/shm"):
        options += ["--perms", "1777" if path in _SHARED else "0755", "--size", str(_SHARED_BYTES), "--tmpfs", path]
    options += _bind_options(program, may_write=False)
    for folder, may_write in folders.items():
        options += _bind_options(folder, may_write=may_write)
        if may_write and has_other_user():
            os.chown(folder, NOBODY, NOBODY)
    for path in (*hidden, "/dev"):
        if path not in _SHARED:
            options += ["--remount-ro", path]
    return options


def _counts_by_sandbox() -> bool:
    """True if a limit on processes counts those of one sandbox: before Linux 5.14 it counts all of a user's."""
    major, minor = (int("".join(filter(str.isdigit, part)) or 0) for part in os.uname().release.split(".")[:2])
    return (major, minor) >= (5, 14)


def _user_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The capabilities that starting `argv` as its user takes, and the program that does."""
    capabilities = ["--cap-drop", "ALL"]
    if _counts_by_sandbox():
        argv = ["/bin/sh", "-c", _BOUNDED, "sh", *argv]
    if not has_other_user():
        return capabilities, list(argv)
    # The last is for entering the folder where it starts; all are gone before the program begins.
    for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_DAC_READ_SEARCH"):
        capabilities += ["--cap-add", capability]
    identity = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return capabilities, [
        str(shutil.which("setpriv")), *identity, "--inh-caps=-all", "--bounding-set=-all", "--", *argv
    ]  # fmt: skip


@contextmanager
def confine(
    argv: Sequence[str], *, folders: Mapping[str, bool], cwd: str, processes: bool = True
) -> Iterator[Confined]:
    """`argv` in a sandbox; on an event loop, which has to run on until the program has ended.

    Inside, the machine's files are read-only and personal ones are not there; there is no network, no other process
    and no capability. System calls are refused but for those that ordinary programs make: no mounts, no namespaces, no
    tracing, no keys, no sockets that lead out of the sandbox. Where rlenv is root the program is `NOBODY`, and reads
    what everybody may.

    Args:
        argv: the program, with its path, and its arguments.
        folders: what is there beside, at the same place, whatever is hidden around it; true where it may be written.
        cwd: where the program starts.

    Raises:
        UsageError: bubblewrap does not work here.
        OSError: more arguments than bwrap takes, as of a program that is given more than the kernel takes.
    """
    if len(argv) > _MOST_WORDS:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    sandbox = [check_bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session"]
    capabilities, program = _user_command(argv)
    sandbox += [*_mount_options(argv[0], folders), "--chdir", cwd, *capabilities]
    with (
        closing(Handshake(other_user=has_other_user())) as handshake,
        _open_pipe() as (told, status),  # no file, to which bwrap may not write where `disk_mb` is 0
        os.fdopen(os.memfd_create("filter"), "wb", 0) as filter_file,
    ):
        os.pwrite(filter_file.fileno(), system_call_filter("program" if processes else "single"), 0)
        fds = (filter_file.fileno(), status.fileno())
        options = [*handshake.options, "--seccomp", str(fds[0]), "--json-status-fd", str(fds[1])]
        found = Confined((*sandbox, *options, "--", *program), (*handshake.pass_fds, *fds), has_sandbox=False)
        loop = asyncio.get_running_loop()

        def map_users() -> None:
            loop.remove_reader(handshake.fileno)
            with contextlib.suppress(OSError, ValueError):  # bwrap ends, and says why
                handshake.map_users()
                found.has_sandbox = True
            handshake.close()

        loop.add_reader(handshake.fileno, map_users)
        try:
            yield found
        finally:
            if handshake.is_open:  # its number is another's by now, perhaps one of a call that waits for its own
                loop.remove_reader(handshake.fileno)
            status.write(b"\n")  # there is something to read, whoever holds the other end
            found.has_run = b"exit-code" in (told.read(4_096) or b"")  # none of a program that bwrap could not start


@contextmanager
def _open_pipe() -> Iterator[tuple[FileIO, FileIO]]:
    out, into = os.pipe()
    with FileIO(out) as told, FileIO(into, "w") as tell:
        yield told, tell
