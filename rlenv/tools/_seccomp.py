"""Filters of system calls by what is allowed: every other number is refused, those that are yet to come too.

The calls and their numbers stand in `_seccomp.toml`. A filter is classic BPF over `struct seccomp_data`
(include/uapi/linux/seccomp.h): the number at 0, the architecture at 4, arguments of eight bytes from 16.
"""

from __future__ import annotations

import platform
import signal
import struct
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

from rlenv.concurrency.processes import SELF_MADE
from rlenv.errors import UsageError
from rlenv.tools._zygote import OWN_SIGNALS

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000  # with the error number in the lower bits
_KILL = 0x80000000
_EPERM, _EINVAL, _ENOTTY, _ENOSYS, _EAFNOSUPPORT = 1, 22, 25, 38, 97

OWN_PID = 0x7E57_0001
"""Stands in the filter for code where the process that loads it writes its own number."""

_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

_CALLS: Mapping[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# From here on numbers are the same on all machines, and libraries know what to do where a kernel lacks them.
_RECENT = 424

_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020080  # namespaces of any kind
_MAP_HUGETLB = 0x00040000
# What a process may send itself: what it may handle, and what it can bring upon itself without sending anything.
_OWN = [0, *OWN_SIGNALS, *(signal.Signals[name] for names in SELF_MADE.values() for name in names)]
_FCNTL = (*range(8), 36, 37, 38, 1030, 1032, 1034)  # neither owners and signals of a descriptor, nor sizes of pipes
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
# TIOCSTI, TIOCLINUX and the flags of an inode.
_IOCTL_REFUSED = (0x5412, 0x541C, 0x40086602, 0x40046602, 0x401C5820)
_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)


def _call_numbers(names: str, place: int) -> dict[str, int]:
    fields = [entry.split(":") for entry in names.split()]
    return {entry[0]: int(entry[place]) for entry in fields if entry[place]}


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    """One instruction (`struct sock_filter`)."""
    return struct.pack("=HBBI", code, jt, jf, k)


def _load(argument: int, *, upper: bool = False) -> bytes:
    return _instruction(0x20, 16 + 8 * argument + 4 * upper)


def _return(action: int) -> bytes:
    return _instruction(0x06, action)


def _if_equal(value: int, then: bytes) -> bytes:
    return _instruction(0x15, value, 0, len(then) // 8) + then


def _if_any(bits: int, then: bytes) -> bytes:
    return _instruction(0x45, bits, 0, len(then) // 8) + then


def _unless_equal(value: int, then: bytes) -> bytes:
    return _instruction(0x15, value, len(then) // 8, 0) + then


def _unless_any(bits: int, then: bytes) -> bytes:
    return _instruction(0x45, bits, len(then) // 8, 0) + then


_ALLOWED, _REFUSED = _return(_ALLOW), _return(_REFUSE | _EPERM)


def _allow_values(argument: int, values: Iterable[int], *, error: int = _EPERM) -> bytes:
    tests = b"".join(_if_equal(value, _ALLOWED) for value in values)
    return _load(argument) + tests + _return(_REFUSE | error)


def _none_of(argument: int, values: Iterable[int], *, error: int = _EPERM) -> bytes:
    tests = b"".join(_if_equal(value, _return(_REFUSE | error)) for value in values)
    return _load(argument) + tests + _ALLOWED


def _own_signal(number: int) -> bytes:
    """The process itself, and nothing that others stop or end it by: how it ended says whose doing that was."""
    return _load(0) + _unless_equal(OWN_PID, _REFUSED) + _allow_values(number, _OWN)


def _allow_null(argument: int) -> bytes:
    halves = (_load(argument), _load(argument, upper=True))
    return b"".join(half + _unless_equal(0, _REFUSED) for half in halves) + _ALLOWED


# Threads, which have all of their process; never a namespace.
_THREAD = _load(0) + _if_any(_CLONE_NEW, _REFUSED) + _unless_any(_CLONE_THREAD, _REFUSED) + _ALLOWED
_FORK = _load(0) + _if_any(_CLONE_NEW, _REFUSED) + _ALLOWED

_FOR_CODE = {
    "mmap": _load(3) + _if_any(_MAP_HUGETLB, _REFUSED) + _ALLOWED,
    "fcntl": _allow_values(1, _FCNTL, error=_EINVAL),
    "ioctl": _allow_values(1, _IOCTL, error=_ENOTTY),
    "prctl": _allow_values(0, (15, 16)),  # the name of a thread
    "kill": _own_signal(1),
    "tgkill": _own_signal(2),
    "clone": _THREAD,
    "prlimit64": _load(0) + _unless_equal(0, _REFUSED) + _allow_null(2),  # reading
    "socketpair": _allow_values(0, (1,), error=_EAFNOSUPPORT),  # AF_UNIX, as event loops use it
    "sendto": _allow_null(4),
}
_FOR_PROGRAMS = {
    "mmap": _ALLOWED,
    "ioctl": _none_of(1, _IOCTL_REFUSED),
    "clone": _FORK,
    "fork": _ALLOWED,
    "vfork": _ALLOWED,
    # AF_INET, AF_INET6 and AF_NETLINK belong to the empty network; a path of AF_UNIX may lead to a server outside.
    "socket": _allow_values(0, (2, 10, 16), error=_EAFNOSUPPORT),
    "socketpair": _allow_values(0, (1,), error=_EAFNOSUPPORT),
    "personality": _allow_values(0, _PERSONALITIES),
}
_WITHOUT_PROCESSES = {"clone": _THREAD, "fork": _REFUSED, "vfork": _REFUSED}


@lru_cache(maxsize=4)
def system_call_filter(purpose: Literal["code", "program", "single"]) -> bytes:
    """A seccomp program (an array of `struct sock_filter`).

    Args:
        purpose: `code` is for an interpreter that runs a piece of code in its own threads, and holds `OWN_PID`;
            `program` for a program that may start others; `single` for one that may start threads only.

    Raises:
        UsageError: the machine's system calls are not known here.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise UsageError(f"no filter of system calls is known for {machine}; expected one of {known}")
    architecture, place = _ARCHITECTURES[machine]
    program = _instruction(0x20, 4) + _unless_equal(architecture, _return(_KILL)) + _instruction(0x20, 0)
    if machine == "x86_64":
        program += _instruction(0x35, 0x40000000, 0, 1) + _return(_REFUSE | _ENOSYS)  # the x32 numbers
    filtered = {**(_FOR_CODE if purpose == "code" else _FOR_PROGRAMS)}
    if purpose == "single":
        filtered.update(_WITHOUT_PROCESSES)
    numbers = _call_numbers(_CALLS["by_argument"], place)
    for name, rule in filtered.items():
        if name in numbers:
            program += _if_equal(numbers[name], rule)
    allowed = _CALLS["common"] if purpose == "code" else f"{_CALLS['common']} {_CALLS['programs']}"
    for name, number in _call_numbers(allowed, place).items():
        if name not in filtered:
            program += _if_equal(number, _ALLOWED)
    return program + _instruction(0x35, _RECENT, 0, 1) + _return(_REFUSE | _ENOSYS) + _REFUSED


def rules_of_system_calls() -> dict[str, object]:
    """What `program` allows in the words of OCI's runtimes, which know calls by name."""
    one_of = {"socket": (2, 10, 16), "socketpair": (1,), "personality": _PERSONALITIES}
    tests = [(name, {"value": one, "op": "SCMP_CMP_EQ"}) for name, values in one_of.items() for one in values]
    tests.append(("clone", {"value": _CLONE_NEW, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}))
    names = {entry.split(":")[0] for entry in " ".join(_CALLS.values()).split()}
    rules: list[dict[str, object]] = [{"names": sorted(names - {*dict(tests)}), "action": "SCMP_ACT_ALLOW"}]
    rules += [{"names": [name], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, **test}]} for name, test in tests]
    rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS})
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": _EPERM, "syscalls": rules}
