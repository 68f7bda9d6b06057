"""The process inside the bubblewrap sandbox: a CPython that forks once for each piece of code. Started as a script.

It is process 1 of its own process namespace, so nothing inside can kill it, and it can kill everything inside. It reads
requests from a socket (descriptor 0), each with three descriptors: a file with the request, the pipe for what the code
prints, the file for its result; and with two more where the code reads an input or is tested (see `_exchange`): its
input, and its end of the socket to whoever tests it. It answers with one JSON object once no process of the request is
left. It keeps no time: whoever asks looks at the clock and at the processor, and says when to stop. Before the process
of the code is let go it says `over` and waits, so that whoever asks can look once more.

Within its own user namespace it may mount, and does two things with that: the devices become read-only for good, and
every piece of code finds a new file system on /tmp. The code has none of that: before it runs, its process gives up
the identity (where there is another), all capabilities and every system call that is not on a list.

This file imports nothing of rlenv. What it imports and does not use is there for the code.
"""

import ast
import collections  # noqa: F401
import contextlib
import ctypes
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import importlib.util
import itertools  # noqa: F401
import json
import math
import os
import random
import re  # noqa: F401
import resource
import select
import signal
import socket
import statistics  # noqa: F401
import string  # noqa: F401
import struct
import sys
import time
from typing import Any

FOLDER = b"/tmp"
MAX_SHOWN = 10_000
MAX_DEPTH = 20
MAX_PARTS = 2_000
RESULT = 63  # the last descriptor that the limit leaves
CHANNEL = 62
OWN_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)  # code may handle them, and send them to itself

NOSUID, NODEV, NOEXEC, READ_ONLY, REMOUNT, BIND, DETACH = 2, 4, 8, 1, 32, 4_096, 2
LIBC = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]  # struct sock_fprog


def check_status(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve() -> None:
    """Answers requests until the other end of the socket is closed."""
    host = socket.socket(fileno=0)
    # Process 1 gets no signal that it has no handler for, and code is ended by one: Python's own is for SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in OWN_SIGNALS:  # batch systems warn all processes of a job by these, which ends no code here
        signal.signal(number, signal.SIG_IGN)
    LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no process of the same user may look into this one
    with open("/setting", "rb") as file:
        setting = json.loads(file.read())
    with open("/filter", "rb") as file:
        program = file.read()
    for device in setting["devices"]:
        # A device may be written to on a read-only mount, but its mode, times and lists of access stay as they are.
        flags = REMOUNT | BIND | READ_ONLY | NOSUID | NOEXEC
        check_status(LIBC.mount(None, device.encode(), None, ctypes.c_ulong(flags), None))
    null = os.open("/dev/null", os.O_RDWR)
    load_module("/matching.py", "rlenv.tools._matching")
    exchange = load_module("/exchange.py", "rlenv.tools._exchange")
    for _ in range(20):  # the interpreter adapts to what it runs; done here, no child has to copy those pages
        run_cell("1 + 1", json.loads('{"error": null}'))
        json.dumps({"shown": "2"})
    mount_folder(setting)
    gc.collect()
    gc.freeze()
    host.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(host, 64, 5)
        if not message:
            return
        if len(descriptors) not in (3, 5):
            continue  # a request to stop that came too late
        began, begin = os.pipe()
        since = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                run(descriptors, begin, null, program, setting, exchange)
            finally:
                os._exit(121)
        os.close(begin)
        for descriptor in descriptors:
            os.close(descriptor)
        answer = await_child(child, host, since)
        answer["has_begun"] = os.read(began, 1) == b"b"
        os.close(began)
        # Nothing of the code runs any more. The kernel takes a while to let a mount go, in which the answer is read;
        # where it does not, this process ends, and with it the sandbox: no code finds what another left.
        host.send(json.dumps(answer).encode())
        if not renew_folder(setting):
            os._exit(0)


def load_module(path: str, name: str) -> Any:
    """The module in a file, to be imported by its name from now on."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    return module


def await_child(child: int, host: socket.socket, since: float) -> dict[str, object]:
    """Waits for the code or for a request to stop; then nothing but this process is left."""
    handle = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.register(host, select.POLLIN)
    ready = dict(waiting.poll())
    lived_s = time.monotonic() - since
    os.close(handle)
    was_stopped = False
    if host.fileno() in ready:
        if not host.recv(16):
            os._exit(0)
        # No code can stop itself or go on after that: whoever did so stands outside.
        look = os.WSTOPPED | os.WCONTINUED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            was_stopped = os.waitid(os.P_PID, child, look) is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    host.send(b"over")
    if not host.recv(16):
        os._exit(0)
    status, cpu_s = 0, 0.0
    while True:
        try:
            pid, found, usage = os.wait4(-1, 0)
        except ChildProcessError:
            status = os.waitstatus_to_exitcode(status)
            return {"status": status, "cpu_s": cpu_s, "lived_s": lived_s, "was_stopped": was_stopped}
        if pid == child:
            status, cpu_s = found, usage.ru_utime + usage.ru_stime


def mount_folder(setting: dict[str, Any]) -> None:
    """A new file system on the one folder that can be written."""
    owner = f"uid={setting['uid']},gid={setting['gid']}"
    options = f"size={setting['bytes']},nr_inodes={setting['files']},mode=0755,{owner}".encode()
    check_status(LIBC.mount(b"tmpfs", FOLDER, b"tmpfs", ctypes.c_ulong(NOSUID | NODEV | NOEXEC), options))


def renew_folder(setting: dict[str, Any]) -> bool:
    """Throws the folder away with all that it holds; False where that cannot be done."""
    try:
        check_status(LIBC.umount2(FOLDER, DETACH))
        mount_folder(setting)
    except OSError:
        return False
    return True


def run(descriptors: list[int], begin: int, null: int, program: bytes, setting: dict[str, Any], exchange: Any) -> None:
    """In the child: descriptors, limits, identity, the filter, the code; never returns."""
    request, printed, result, *more = descriptors
    wanted = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    given, channel = more or (null, null)
    os.dup2(given, 0)
    os.dup2(printed, 1)
    os.dup2(null if wanted["mode"] == "program" else printed, 2)
    begin = os.dup2(begin, 64)
    os.dup2(result, RESULT)
    os.dup2(channel, CHANNEL)
    os.closerange(3, CHANNEL)
    os.closerange(65, 256)
    os.chdir(FOLDER)
    limits = {
        resource.RLIMIT_AS: (wanted["memory"],) * 2,
        # A second belt: who asked looks first.
        resource.RLIMIT_CPU: (math.ceil(wanted["time_s"]) + 1, math.ceil(wanted["time_s"]) + 2),
        resource.RLIMIT_FSIZE: (wanted["file"],) * 2,
        resource.RLIMIT_NOFILE: (RESULT + 1,) * 2,
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_NPROC: (64, 64),
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, limit)
    drop_rights(program, setting)
    random.seed(wanted["seed"])
    os.write(begin, b"b")
    os.close(begin)
    token = wanted.pop("token")
    answer: dict[str, object] = {"error": None, "shown": None, "result": None}
    printed_by_code = sys.stdout, sys.stderr
    try:
        match wanted["mode"]:
            case "cell":
                run_cell(wanted.pop("code"), answer)
            case "program":
                exchange.run_program(wanted)
            case "serve":
                exchange.serve_calls(wanted, CHANNEL)
            case "judge":
                answer["result"] = exchange.judge_test(wanted, CHANNEL)
        said = json.dumps(answer)
    except BaseException as error:
        said = json.dumps({"error": describe_error(error), "shown": None, "result": None})
    for stream in printed_by_code:
        with contextlib.suppress(BaseException):
            stream.flush()
    os.pwrite(RESULT, (token + said + "\n").encode(), 0)
    os._exit(0)


def drop_rights(program: bytes, setting: dict[str, Any]) -> None:
    """Gives up what the code must not have; the process ends where one of it is refused."""
    if setting["has_other_user"]:
        os.setgroups([])
        os.setresgid(*(setting["gid"],) * 3)
        os.setresuid(*(setting["uid"],) * 3)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # version 3; effective, permitted, inheritable
    check_status(LIBC.capset(header, nothing))
    program = program.replace(struct.pack("=I", setting["own_pid"]), struct.pack("=I", os.getpid()))
    check_status(LIBC.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    check_status(LIBC.prctl(22, 2, ctypes.byref(Filter(len(program) // 8, program)), 0, 0))  # PR_SET_SECCOMP


def run_cell(code: str, answer: dict[str, object]) -> None:
    tree = ast.parse(code, "<code>")
    names = {"__name__": "__main__", "__builtins__": __builtins__, "exit": sys.exit, "quit": sys.exit}
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        exec(compile(tree, "<code>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            answer["shown"] = repr(value)[:MAX_SHOWN]
            answer["result"] = value if is_plain(value) else answer["shown"]
    else:
        exec(compile(tree, "<code>", "exec"), names)


def is_plain(value: object) -> bool:
    """True if `value` is JSON of exactly the built-in types, and not much of it."""
    rest, parts, size = [(value, 0)], 0, 0
    while rest:
        item, depth = rest.pop()
        kind = type(item)
        parts += 1
        if kind is str:
            size += len(item)  # type: ignore[arg-type]
        elif kind is float:
            if not math.isfinite(item):  # type: ignore[arg-type]
                return False
        elif kind is int:
            size += item.bit_length() // 3  # type: ignore[attr-defined]
        elif kind is list or kind is dict:
            if depth >= MAX_DEPTH or len(item) > MAX_PARTS:  # type: ignore[arg-type]
                return False
            if kind is dict:
                if any(type(key) is not str for key in item):  # type: ignore[attr-defined]
                    return False
                size += sum(map(len, item))  # type: ignore[call-overload]
                rest.extend((one, depth + 1) for one in item.values())  # type: ignore[attr-defined]
            else:
                rest.extend((one, depth + 1) for one in item)  # type: ignore[attr-defined]
        elif kind is not bool and item is not None:
            return False
        if parts > MAX_PARTS or size > MAX_SHOWN:
            return False
    return True


def describe_error(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero (line 3)`: the first line of the code that led to it."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    step = error.__traceback__
    while line is None and step is not None:
        if step.tb_frame.f_code.co_filename == "<code>":
            line = step.tb_lineno
        step = step.tb_next
    name = type(error).__name__
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # the code's own class
        text = ""
    return (f"{name}: {text}" if text else name)[:1_000] + (f" (line {line})" if line is not None else "")


if __name__ == "__main__":
    serve()
