"""bubblewrap: whether it works here, how it is called, and a filter of system calls for what runs inside."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from rlenv.errors import UsageError

__all__ = ["around", "bubblewrap", "check_bubblewrap", "no_children", "system_call_filter"]

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with the error number in the lower bits
_KILL = 0x80000000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x00010000

# What code in the sandbox has no use for and what could reach the process that serves the next call: tracing, other
# processes' memory and limits, kernel objects that outlive a process, namespaces and mounts, sockets, io_uring.
# From arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12.
_NUMBERS: dict[str, tuple[int, dict[str, int], str]] = {
    "x86_64": (
        0xC000003E,
        {"clone": 56, "clone3": 435, "fork": 57, "vfork": 58, "prlimit64": 302},
        "29 30 31 41 64 65 66 68 69 70 71 101 141 142 144 155 161 165 166 175 203 220 240 246 248 249 250 251 256 272 "
        "279 298 304 308 310 311 312 313 314 319 321 323",
    ),
    "aarch64": (
        0xC00000B7,
        {"clone": 220, "clone3": 435, "prlimit64": 261},
        "30 39 40 41 51 97 104 105 117 118 119 122 140 180 186 187 188 189 190 191 192 193 194 195 196 198 217 218 219 "
        "238 239 241 265 268 270 271 272 273 274 279 280 282",
    ),
}
_NEW_NUMBERS = "424 425 426 427 428 429 430 431 432 433 434 438 440 442 448"  # the same on all machines


def _step(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    """One instruction of classic BPF (`struct sock_filter`)."""
    return struct.pack("=HBBI", code, jt, jf, k)


def _load(offset: int) -> bytes:
    return _step(0x20, offset)


def _refuse_if(number: int, error: int) -> bytes:
    return _step(0x15, number, 0, 1) + _step(0x06, _REFUSE | error)


@lru_cache(maxsize=2)
def system_call_filter(*, only_children: bool) -> bytes:
    """A seccomp program (an array of `struct sock_filter`) under which a process may start threads but no processes.

    Args:
        only_children: refuse nothing else; otherwise also what could disturb whoever runs in the sandbox next.

    Raises:
        UsageError: the machine's system calls are not known here.
    """
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise UsageError(f"no filter of system calls is known for {machine}; expected one of {', '.join(_NUMBERS)}")
    arch, named, refused = _NUMBERS[machine]
    # struct seccomp_data: nr at 0, arch at 4, the first argument at 16 (its lower half first).
    program = _load(4) + _step(0x15, arch, 1, 0) + _step(0x06, _KILL) + _load(0)
    if machine == "x86_64":
        program += _step(0x35, 0x40000000, 0, 1) + _step(0x06, _REFUSE | _ENOSYS)  # the x32 numbers
    # The flags of clone3 lie in memory, which no filter reads; libc falls back to clone.
    program += _refuse_if(named["clone3"], _ENOSYS)
    for name in ("fork", "vfork"):
        if name in named:
            program += _refuse_if(named[name], _EPERM)
    program += _step(0x15, named["clone"], 0, 4) + _load(16)
    program += _step(0x45, _CLONE_THREAD, 0, 1) + _step(0x06, _ALLOW) + _step(0x06, _REFUSE | _EPERM)
    if not only_children:
        program += _step(0x15, named["prlimit64"], 0, 4) + _load(16)
        program += _step(0x15, 0, 0, 1) + _step(0x06, _ALLOW) + _step(0x06, _REFUSE | _EPERM)
        for number in (*refused.split(), *_NEW_NUMBERS.split()):
            program += _refuse_if(int(number), _EPERM)
    return program + _step(0x06, _ALLOW)


@contextmanager
def no_children(*, applies: bool) -> Iterator[int | None]:
    """A file descriptor with the filter for `bwrap --seccomp`; None where it does not apply."""
    if not applies:
        yield None
        return
    fd = os.memfd_create("filter")
    try:
        os.write(fd, system_call_filter(only_children=True))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def bubblewrap() -> str:
    """Where bwrap is.

    Raises:
        UsageError: it is not installed, or the kernel does not let it make a sandbox; the message names the fix.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise UsageError("the sandbox bubblewrap needs the program bwrap; install it: apt-get install bubblewrap")
    return found


@lru_cache(maxsize=1)
def check_bubblewrap() -> str:
    """Where bwrap is, after it has made a sandbox once.

    Raises:
        UsageError: see `bubblewrap`.
    """
    path = bubblewrap()
    trial = [
        path,
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "/bin/sh",
        "-c",
        "exit 0",
    ]
    try:
        done = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the sandbox bubblewrap does not work here: {error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", errors="replace").strip()[:200]
        raise UsageError(
            f"the sandbox bubblewrap does not work here ({said}); "
            "the kernel or the container must allow user namespaces"
        )
    return path


def around(argv: Sequence[str], *, folder: str, may_write: bool, filter_fd: int | None) -> list[str]:
    """`argv` inside a sandbox: the machine's files read-only, personal ones and the network gone, `folder` in place."""
    sandbox = [bubblewrap(), "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/", "/"]
    for hidden in ("/home", "/root", "/run", "/tmp", "/var/tmp", "/mnt", "/media", "/srv"):
        if Path(hidden).is_dir() and not Path(hidden).is_symlink():
            sandbox += ["--tmpfs", hidden]
    sandbox += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", argv[0], argv[0]]
    sandbox += ["--bind" if may_write else "--ro-bind", folder, folder, "--chdir", folder]
    if filter_fd is not None:
        sandbox += ["--seccomp", str(filter_fd)]
    return [*sandbox, "--", *argv]
