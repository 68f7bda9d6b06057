"""What runs inside the bubblewrap sandbox: a CPython that forks once for each piece of code. Started as a script.

It is process 1 of its own process namespace, so nothing inside can kill it, and it can kill everything inside. It reads
requests from a socket (descriptor 0), each with three descriptors: a file with the request, the pipe for what the code
prints, the pipe for its result. It answers with one JSON line once no process of the request is left. This file imports
nothing of rlenv. What it imports and does not use is there for the code.
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
import itertools  # noqa: F401
import json
import math  # noqa: F401
import os
import random
import re  # noqa: F401
import resource
import select
import shutil
import signal
import socket
import statistics  # noqa: F401
import string  # noqa: F401
import sys

FOLDER = "/tmp"
MAX_ENTRIES = 1_000
MAX_SHOWN = 10_000


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]  # struct sock_fprog


def serve() -> None:
    """Answers requests until the other end of the socket is closed."""
    host = socket.socket(fileno=0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no process of the same user may look into this one
    with open("/filter", "rb") as file:
        program = file.read()
    rules = Filter(len(program) // 8, program)
    null = os.open("/dev/null", os.O_RDWR)
    for _ in range(20):  # the interpreter adapts to what it runs; done here, no child has to copy those pages
        execute("1 + 1", json.loads('{"error": null}'))
        json.dumps({"shown": "2"})
    gc.collect()
    gc.freeze()
    host.send(b"ready\n")
    while True:
        message, descriptors, _, _ = socket.recv_fds(host, 64, 3)  # the seconds that the code may take
        if not message:
            return
        if len(descriptors) != 3:
            continue  # a request to stop that came too late
        request, printed, result = descriptors
        child = os.fork()
        if child == 0:
            try:
                run(request, printed, result, null, libc, rules)
            finally:
                os._exit(121)
        for descriptor in descriptors:
            os.close(descriptor)
        answer = attend(child, host, float(message))
        answer["is_clean"] = clean()
        host.send(json.dumps(answer).encode() + b"\n")


def attend(child: int, host: socket.socket, limit: float) -> dict[str, object]:
    """Waits for the code, for its time or for a request to stop; then nothing but this process is left."""
    handle = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.register(host, select.POLLIN)
    ready = dict(waiting.poll(limit * 1000))
    is_late = not ready
    os.close(handle)
    if host.fileno() in ready and not host.recv(16):
        os._exit(0)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    status = 0
    while True:
        try:
            pid, found = os.waitpid(-1, 0)
        except ChildProcessError:
            return {"status": os.waitstatus_to_exitcode(status), "is_late": is_late}
        if pid == child:
            status = found


def clean() -> bool:
    """Empties the one folder that can be written; False where that is not quickly done."""
    if os.stat(FOLDER).st_mode & 0o777 != 0o755:
        return False
    entries = os.listdir(FOLDER)
    count = 0
    for _, folders, files in os.walk(FOLDER):
        count += len(folders) + len(files)
        if count > MAX_ENTRIES:
            return False
    for entry in entries:
        path = os.path.join(FOLDER, entry)
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except OSError:
            return False
    return not entries or not os.listdir(FOLDER)


def run(request: int, printed: int, result: int, null: int, libc: ctypes.CDLL, rules: Filter) -> None:
    """In the child: limits, the filter, the code; never returns."""
    wanted = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    os.dup2(null, 0)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.dup2(result, 3)
    os.closerange(4, 256)
    os.chdir(FOLDER)
    limits = {
        resource.RLIMIT_AS: wanted["memory"],
        resource.RLIMIT_CPU: int(wanted["time_s"]) + 1,
        resource.RLIMIT_FSIZE: wanted["file"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 64,
    }
    for kind, limit in limits.items():
        resource.setrlimit(kind, (limit, limit))
    random.seed(wanted["seed"])
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(rules), 0, 0):  # no new privileges; seccomp
        os._exit(120)
    answer: dict[str, object] = {"error": None, "shown": None, "result": None}
    try:
        execute(wanted["code"], answer)
    except SystemExit as error:
        if error.code not in (None, 0):
            answer["error"] = f"SystemExit: {error.code}"[:1_000]
    except BaseException as error:
        answer["error"] = described(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(3, json.dumps(answer).encode())
    finally:
        os._exit(0)


def execute(code: str, answer: dict[str, object]) -> None:
    tree = ast.parse(code, "<code>")
    names = {"__name__": "__main__", "__builtins__": __builtins__, "exit": sys.exit, "quit": sys.exit}
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
        exec(compile(tree, "<code>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
        if value is not None:
            answer["shown"] = repr(value)[:MAX_SHOWN]
            is_small = type(value) in (int, float, bool) or (type(value) is str and len(value) < MAX_SHOWN)
            answer["result"] = value if is_small else answer["shown"]
    else:
        exec(compile(tree, "<code>", "exec"), names)


def described(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero (line 3)`: the first line of the code that led to it."""
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    step = error.__traceback__
    while line is None and step is not None:
        if step.tb_frame.f_code.co_filename == "<code>":
            line = step.tb_lineno
        step = step.tb_next
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    name = type(error).__name__
    return (f"{name}: {text}" if text else name)[:1_000] + (f" (line {line})" if line is not None else "")


if __name__ == "__main__":
    serve()
