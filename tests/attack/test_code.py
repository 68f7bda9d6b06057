"""What a model's code cannot do in either sandbox, whoever runs rlenv: reach out, stay, forge, or shift the blame.

Each test is a promise. None skips quietly where a sandbox is installed; all hold for root and for any other user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.concurrency.processes import only_child, work_of
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.testing.tools import call, fake_tool, kept
from rlenv.tools._monty import _calls_in
from rlenv.tools._monty_cell import PendingCalls
from rlenv.tools._sandbox import _Sandbox
from rlenv.tools._seccomp import OWN_PID, system_call_filter
from rlenv.tools.base import Tool, ToolOutput
from rlenv.tools.code import KIND, CodeSpec

SANDBOXES = ["monty", pytest.param("bubblewrap", marks=pytest.mark.sandbox)]
CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *arguments) >= 0 or os.strerror(ctypes.get_errno())
"""


def compiled(sandbox: str = "bubblewrap", **keys: Any) -> Tool:
    limits = {"time_s": 5.0, "workers": 1}
    spec = CodeSpec.model_validate({"kind": "code", "sandbox": sandbox, **limits, **keys})
    others = {"look": fake_tool("look", lambda arguments: "seen")}
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), tools=others))
    assert isinstance(tool, Tool)
    return tool


def run(*codes: str, sandbox: str = "bubblewrap", **keys: Any) -> list[ToolResult]:
    """What each gives, one after another, in one worker."""
    tool = compiled(sandbox, **keys)

    async def go() -> list[ToolResult]:
        async with kept() as make:
            return [await call(tool, {"code": code}, within=make()) for code in codes]

    return asyncio.run(go())


def told(*codes: str, **keys: Any) -> list[Any]:
    """What the last expression of each gives, where each of them ends well."""
    values = []
    for code, result in zip(codes, run(*codes, **keys), strict=True):
        assert result.outcome == "ok", f"{code}: {result.text}"
        values.append(result.value["result"])
    return values


# What code may reach.


@pytest.mark.sandbox
def test_code_has_no_capability_and_is_never_root() -> None:
    tried = (
        CALL + "data = (ctypes.c_uint32 * 6)()\ncall(125, (ctypes.c_uint32 * 2)(0x20080522, 0), data)\nlist(data)",
        "import os\n0 in (*os.getresuid(), *os.getresgid(), *os.getgroups())",
        "import os\n[os.setuid, os.setgid] and os.setuid(0)",
    )
    capabilities, is_root, becomes_root = run(*tried)
    assert capabilities.value["result"] == [0] * 6
    assert is_root.value["result"] is False or os.getgid() == 0
    assert "not permitted" in becomes_root.text


@pytest.mark.sandbox
def test_every_system_call_that_is_not_listed_is_refused_also_one_that_is_yet_to_come() -> None:
    listed = (
        "0 1 3 5 8 9 10 11 12 13 14 15 16 17 18 19 20 25 28 32 33 35 72 202 228 230 231 257 262 273 318 334".split()
    )
    code = (
        CALL
        + f"""
quiet = {{*map(int, {listed!r}), 22, 23, 24, 34, 36, 37, 38, 60, 61, 100, 127, 128, 130, 131, 186, 213, 218, 219, 232}}
quiet |= {{270, 271, 281, 284, 290, 291, 292, 293, 436, 335, 336}}  # the last two are the kernel's own, for tracing
words = ("Operation not permitted", "Function not implemented")
allowed = []
for number in [*range(334), *range(337, 620), 4_000, 0x4000_0039, 2**31 - 1]:
    if number not in quiet and call(number, -1, -1, -1, -1, -1, -1) not in words:
        allowed.append(number)
allowed
"""
    )
    (allowed,) = told(code)
    if os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    # Nothing of mounts, namespaces, tracing, keys, other processes, sockets to outside, io_uring, bpf, tuning.
    harmful = {41, 42, 49, 56, 57, 58, 59, 62, 101, 155, 161, 165, 166, 170, 175, 200, 234, 246, 248, 250, 256, 272}
    harmful |= {279, 298, 302, 303, 304, 308, 310, 311, 312, 314, 317, 319, 321, 322, 323, 188, 189, 190, 141, 203, 135}
    assert harmful & set(allowed) == set()
    assert not [number for number in allowed if number >= 424 and number not in (439, 441, 452)]


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("clone the tree of mounts writable", "call(467, -100, b'/usr', 1, bytes(32), 32)"),
        ("mount", "call(165, b'tmpfs', b'/tmp', b'tmpfs', 0, 0)"),
        ("uncover what a mount hides", "call(166, b'/tmp', 2)"),
        ("a user namespace", "call(272, 0x10000000)"),
        ("a thread in a user namespace", "call(56, 0x10010F00, 0, 0, 0, 0)"),
        ("a program from memory", "call(319, b'x', 0)"),
        ("a program", "os.execv('/bin/true', ['true'])"),
        ("a signal by a number with upper bits", "call(62, os.getpid(), ctypes.c_ulong((1 << 32) | 19))"),
        ("stop itself", "os.kill(os.getpid(), 19)"),
        ("kill itself", "os.kill(os.getpid(), 9)"),
        ("a timer that stops it", "call(222, 0, bytes(64), bytes(8))"),
        ("the signal of a descriptor", "__import__('fcntl').fcntl(1, 10, 19)"),
        ("lower its limits", "__import__('resource').setrlimit(0, (1, 1))"),
        ("signal its parent", "os.kill(1, 2)"),
        ("keep notes in attributes", "os.setxattr('/tmp', 'user.note', b'42')"),
        ("keep notes in a host name", "__import__('socket').sethostname('note')"),
        ("inode flags", "__import__('fcntl').ioctl(os.open('/tmp', 0), 0x40086602, bytes(8))"),
        ("input of a terminal", "__import__('fcntl').ioctl(1, 0x5412, b'x')"),
        ("a socket", "__import__('socket').socket()"),
        ("pass descriptors", "__import__('socket').send_fds(__import__('socket').socketpair()[0], [b'x'], [1])"),
        ("a device's mode", "os.chmod('/dev/null', 0o666)"),
        ("a device's times", "os.utime('/dev/null', (1, 1))"),
        ("a device of its own", "os.mknod('/tmp/null', 0o20666, os.makedev(1, 3))"),
        ("a lock that others see", "__import__('fcntl').flock(open(os.__file__), 2)"),
        ("huge pages", "call(9, 0, 2 << 20, 3, 0x40022, -1, 0)"),
        ("the interpreter's files", "open(os.__file__, 'a')"),
        ("what it is served by", "open('/zygote.py', 'a')"),
    ],
)
def test_code_is_refused(name: str, expression: str) -> None:
    if "call(" in expression and os.uname().machine != "x86_64":
        pytest.skip("numbers of x86_64")
    (result,) = run(CALL + expression)
    words = (
        "not permitted",
        "not implemented",
        "Read-only",
        "Invalid argument",
        "Inappropriate",
        "not allowed",
        "denied",
    )
    assert any(word in result.text for word in words), f"{name}: {result.text}"


@pytest.mark.sandbox
def test_honest_code_finds_threads_event_loops_and_its_folder() -> None:
    assert told(
        "import asyncio\nasyncio.run(asyncio.sleep(0.001, 'slept'))",
        "import threading\nfound = []\none = threading.Thread(target=found.append, args=(1,))\none.start()\n"
        "one.join()\nfound",
        "import tempfile, shutil, os\nwith open('a', 'w') as file:\n    print('text', file=file)\n"
        "shutil.copy2('a', 'b')\n"
        "os.rename('b', 'c')\n[sorted(os.listdir()), open('c').read()]",
        "import signal\nseen = []\nsignal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n"
        "signal.raise_signal(signal.SIGUSR1)\nseen",
        "open('/dev/null').read() + str(len(open('/dev/urandom', 'rb').read(3)))",
        "import socket\none, two = socket.socketpair()\none.sendall(b'hey')\ntwo.recv(9).decode()",
    ) == ["slept", [1], [["a", "c"], "text\n"], [1], "3", "hey"]


# What stays.


@pytest.mark.sandbox
def test_every_piece_of_code_finds_a_new_file_system() -> None:
    put = """
import os
def tried(what, *arguments):
    try:
        what(*arguments)
    except OSError:
        pass
for n in range(100):
    open(f'/tmp/{n}', 'w').close()
os.mkdir('/tmp/.hidden')
os.symlink('/usr', '/tmp/link')
tried(os.setxattr, '/tmp', 'user.note', b'the answer is 42')
tried(os.setxattr, '/tmp', 'system.posix_acl_default', bytes(28))
os.utime('/tmp', (42, 42))
os.chmod('/tmp', 0o7711)
"""
    get = """
import os
found = os.stat('/tmp')
[os.listdir('/tmp'), os.listxattr('/tmp'), found.st_mode & 0o7777, found.st_mtime == 42, found.st_nlink]
"""
    before, _, after = told(get, put + "\n0", get)
    assert before == after == [[], [], 0o755, False, 2]


@pytest.mark.sandbox
def test_a_folder_that_code_fills_is_bounded_and_gone_for_the_next() -> None:
    fill = """
n = 0
try:
    while True:
        {what}
        n += 1
except OSError as error:
    pass
n
"""
    files, left, chunks, also = told(
        fill.format(what="open(f'f{n}', 'w').close()"),
        "import os\nlen(os.listdir('/tmp'))",
        fill.format(what="open(f'g{n}', 'wb').write(bytes(10**7))"),
        "import os\nlen(os.listdir('/tmp'))",
        time_s=20.0,
    )
    assert 5_000 < files < 10_001
    assert chunks < 8
    assert left == also == 0


@pytest.mark.sandbox
def test_modules_and_names_that_code_changes_are_whole_for_the_next() -> None:
    spoil = "import json, sys, builtins\njson.dumps = None\nsys.modules['math'] = None\nbuiltins.len = None\n0"
    _, after = run(spoil, "import json, math\n[json.dumps([1]), math.floor(2.5), len('ab')]")
    assert after.value["result"] == ["[1]", 2, 2]


# What code says of itself.


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "code",
    [
        'import os\nos.write(3, b\'{"shown": "1", "result": true, "error": null}\')\nos._exit(0)',
        'import os\nos.pwrite(63, b\'{"shown": "1", "result": true, "error": null}\\n\', 0)\nos._exit(0)',
        "import os\nfor fd in range(64):\n    try: os.pwrite(fd, b'{}\\n', 0)\n    except OSError: pass\nos._exit(0)",
        "import os\nos._exit(0)",
        "print('passed')\nraise SystemExit",
        "print('passed')\nraise SystemExit(0)",
        "import sys\nprint('passed')\nsys.exit(0)",
        "exit()",
        "print('passed')\nraise KeyboardInterrupt",
        "import json\njson.dumps = lambda *_: '[1]'\n5",
        'import json\njson.dumps = lambda *_: \'{"shown": 1, "result": null, "error": null}\'\n5',
        'import json\njson.dumps = lambda *_: \'{"shown": "x", "error": null, "result": \' + \'[\' * 50_000\n5',
        'import json\njson.dumps = lambda *_: \'{"shown": "x", "error": null, "result": NaN}\'\n5',
        'import json\njson.dumps = lambda *_: \'{"shown": "x", "error": null, "result": \' + \'9\' * 5_000 + \'}\'\n5',
        'import json\njson.dumps = lambda *_: \'{"shown": "x", "error": [], "result": null}\'\n5',
    ],
)
def test_code_that_does_not_reach_its_end_in_order_has_failed_and_it_is_its_own_doing(code: str) -> None:
    (result,) = run(code)
    assert (result.outcome, result.whose, result.value) == ("failed", "policy", None)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_leaving_early_is_a_failure_in_every_sandbox(sandbox: str) -> None:
    (result,) = run("print('passed')\nraise SystemExit", sandbox=sandbox)
    assert (result.outcome, result.text.splitlines()[0]) == ("failed", "passed")
    assert "SystemExit" in result.text


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_only_data_of_the_built_in_types_leaves_as_data(sandbox: str) -> None:
    anything = "class Any:\n    def __eq__(self, other): return True\n    def __repr__(self): return 'True'\n"
    plain = [True, 0, 2.5, "text", None, [1, [2, "x"]], {"a": [1, {"b": None}]}]
    assert told(*map(repr, plain), sandbox=sandbox) == plain
    assert told(anything + "Any()", anything + "[Any()]", anything + "{'a': Any()}", sandbox=sandbox) == [
        "True",
        "[True]",
        "{'a': True}",
    ]
    assert told("(1, 2)", "{1: 2}", "[1e308 * 10]", "[[0]] * 3000", "{1}", sandbox=sandbox)[0] == "(1, 2)"
    big = told("10**900", "[0] * 2000", "'x' * 20_000", "['x' * 20_000]", sandbox=sandbox)
    assert big[0] == 10**900
    assert all(len(str(value)) <= 10_000 for value in big)


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_deep_or_endless_value_is_shown_within_bounds(sandbox: str) -> None:
    codes = ["x = []\nfor _ in range(90): x = [x]\nx", "x = []\nx.append(x)\nx", "10**5000", "[10**5000]"]
    for result in run(*codes, sandbox=sandbox):
        assert result.whose in ("", "policy")
        assert len(result.text) < 11_000


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_lone_surrogate_leaves_a_sandbox(sandbox: str) -> None:
    codes = ["'\\ud800'", "['\\ud800', {'\\udfff': '\\udc00'}]", "print('\\ud800')\n1", "raise ValueError('\\ud800')"]
    if sandbox == "bubblewrap":
        codes += ["import sys\nsys.stdout.buffer.write(b'\\xff\\xed\\xa0\\x80')\n1"]
    for result in run(*codes, sandbox=sandbox):
        repr(result).encode()
        str(result.value).encode()
        result.text.encode()


def test_a_variable_that_is_called_like_a_built_in_is_shown_as_any_other() -> None:
    codes = ["len = 3\nlen", "type = 'a'\ntype", "repr = lambda value: [1]\n5", "int = str = list = 4\n[int]"]
    assert told(*codes, sandbox="monty") == [3, "a", 5, [4]]


# Whose doing it was.


def sandboxed(pids: set[int]) -> Callable[[], list[int]]:
    """The processes below this one that are not among `pids`, parents first."""

    def find() -> list[int]:
        found, rest = [], [os.getpid()]
        while rest:
            parent = rest.pop(0)
            children = []
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    children += [int(one) for one in path.read_text(encoding="ascii").split()]
            found += [one for one in children if one not in pids]
            rest += children
        return found

    return find


def ended_while(tool: Tool, code: str, act: Callable[[list[int]], None], *, processes: int) -> ToolResult:
    """How `code` ended where `act` was done once its processes were there; honest code runs after that."""
    find = sandboxed(set(sandboxed(set())()))

    async def go() -> ToolResult:
        async with kept() as make:
            assert (await call(tool, {"code": "6 * 7"}, within=make())).text == "42"
            task = asyncio.ensure_future(call(tool, {"code": code}, within=make()))
            end = time.monotonic() + 30
            # The process of the call before may still be ending beside this one's, which has to be at the code.
            while len(found := find()) != processes or not is_at_work(found[-1], sleeps="sleep" in code):
                assert time.monotonic() < end
                assert not task.done()
                await asyncio.sleep(0.002)
            act(found)
            result = await task
            assert (await call(tool, {"code": "6 * 7"}, within=make())).text == "42"
            return result

    return asyncio.run(go())


def is_at_work(pid: int, *, sleeps: bool) -> bool:
    """Whether it has done more than to start, and to serve the call before."""
    work = work_of(pid)
    return work is not None and (work.cpu_s > 0.08 or (sleeps and work.age_s > 0.05))


def within_s(reason: str) -> float:
    """A limit that code which ends by a signal never meets, however busy the machine is; all else ends by it."""
    return 60.0 if reason == "worker" else 2.0


def send(number: int, place: int) -> Callable[[list[int]], None]:
    return lambda pids: os.kill(pids[place], number)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "timeout"),
        ("x = []\nwhile True: x.append('y' * 10**6 + str(len(x)))", "memory"),
        ("while True: print('x' * 1000)", "too_large"),
        ("import os\nwhile True: os.fork()", "failed"),
        ("def f(n): return f(n + 1)\nf(0)", "failed"),
        ("1 / 0", "failed"),
        ("def (", "failed"),
    ],
)
def test_what_code_does_to_itself_is_its_own(sandbox: str, code: str, reason: str) -> None:
    (result,) = run(code, sandbox=sandbox, time_s=1.0, memory_mb=64)
    assert result.whose == "policy" or (sandbox, reason) == ("monty", "too_large")
    if (sandbox, reason) != ("monty", "too_large"):
        assert result.reason == reason


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(99)",
        "import threading\nthreading.Event().wait()",
        "import os\nos.read(os.pipe()[0], 1)",
        "import signal\nsignal.pause()",
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
        "ctypes.CDLL(None).syscall(ctypes.c_long({'x86_64': 60}.get(__import__('os').uname().machine, 93)), 0)",
        "import os\nos._exit(120)",
        "import os\nos._exit(121)",
        "import os\nos.abort()",
        "import ctypes\nctypes.string_at(0)",
        "import signal\nsignal.raise_signal(signal.SIGTERM)",
        "import signal\nsignal.raise_signal(signal.SIGINT)",
        "import ctypes, os\nctypes.CDLL(None).kill(os.getpid(), 1)\nos.abort()",
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_DFL)\nsignal.raise_signal(signal.SIGUSR1)",
        "import signal\nsignal.alarm(1)\nsignal.pause()",
        "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nfile = open('x', 'wb', 0)\n"
        "while file.write(bytes(2**20)): pass",
        "import signal\nsignal.raise_signal(signal.SIGXCPU)",
        "import os\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "import threading, time\nfor _ in range(10**5): threading.Thread(target=time.sleep, args=(99,)).start()",
        "import signal, os\nfor n in range(1, 65):\n    try: os.kill(os.getpid(), n)\n    except OSError: pass\n1",
    ],
)
def test_waiting_and_ending_oneself_are_the_codes_own(code: str) -> None:
    (result,) = run(code, time_s=0.5)
    assert (result.outcome in ("failed", "timeout"), result.whose) == (True, "policy"), result.text


BWRAP, FORKS, CODE = 0, 1, 2


@pytest.fixture
def heeded() -> Iterator[None]:
    """What a shell starts in the background ignores SIGQUIT, and so does all that it starts."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGQUIT, before)


@pytest.mark.sandbox
@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize(
    ("number", "place", "reason"),
    [
        (signal.SIGKILL, CODE, "worker"),
        (signal.SIGKILL, FORKS, "worker"),
        (signal.SIGKILL, BWRAP, "worker"),
        # What supervisors send to all processes of a service that is to end.
        (signal.SIGTERM, CODE, "worker"),
        (signal.SIGINT, CODE, "worker"),
        # What batch systems warn a job's processes by, before its time is up; the first is ignored.
        (signal.SIGUSR1, CODE, "timeout"),
        (signal.SIGQUIT, CODE, "worker"),
        (signal.SIGXCPU, CODE, "worker"),
        (signal.SIGRTMAX, CODE, "worker"),
        (signal.SIGSTOP, CODE, "stalled"),
        (signal.SIGSTOP, FORKS, "stalled"),
    ],
)
def test_a_sandbox_that_is_stopped_or_killed_from_outside_is_the_infrastructures(
    number: int, place: int, reason: str
) -> None:
    code = "import time\ntime.sleep(1.7)" if (number, place) == (signal.SIGSTOP, FORKS) else "while True: pass"
    result = ended_while(compiled(time_s=within_s(reason)), code, send(number, place), processes=3)
    assert (result.reason, result.whose) == (reason, "policy" if reason == "timeout" else "infrastructure")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "worker"), (signal.SIGUSR1, "worker"), (signal.SIGRTMAX, "worker"), (signal.SIGSTOP, "stalled")],
)
def test_a_worker_of_monty_that_is_stopped_or_killed_from_outside_is_the_infrastructures(
    number: int, reason: str
) -> None:
    tool = compiled("monty", time_s=within_s(reason))
    result = ended_while(tool, "while True: pass", send(number, 0), processes=1)
    assert (result.reason, result.whose) == (reason, "infrastructure")


@pytest.mark.sandbox
def test_a_sandbox_that_ended_while_it_was_idle_costs_nobody_a_call() -> None:
    tool = compiled()
    find = sandboxed(set(sandboxed(set())()))

    async def go() -> list[str]:
        async with kept() as make:
            texts = [(await call(tool, {"code": "1"}, within=make())).text]
            os.kill(find()[FORKS], signal.SIGKILL)
            end = time.monotonic() + 30
            while len(find()) > 1:  # bwrap itself is left until it is waited for
                assert time.monotonic() < end
                await asyncio.sleep(0.002)
            return [*texts, (await call(tool, {"code": "2"}, within=make())).text]

    assert asyncio.run(go()) == ["1", "2"]


@pytest.mark.sandbox
def test_a_sandbox_whose_end_bwrap_has_not_heard_of_yet_costs_nobody_a_call() -> None:
    tool = compiled()
    find = sandboxed(set(sandboxed(set())()))

    async def go() -> list[str]:
        async with kept() as make:
            texts = [(await call(tool, {"code": "1"}, within=make())).text]
            bwrap, forks = find()[BWRAP], find()[FORKS]
            os.kill(bwrap, signal.SIGSTOP)  # so that it stays between the end of what it started and its own
            os.kill(forks, signal.SIGKILL)
            end = time.monotonic() + 30
            while (work := work_of(forks)) is not None and work.state != "Z":
                assert time.monotonic() < end
                await asyncio.sleep(0.002)
            return [*texts, (await call(tool, {"code": "2"}, within=make())).text]

    assert asyncio.run(go()) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_piece_of_code_opens_the_breaker_for_the_next(sandbox: str) -> None:
    bad = ["while True: pass", "1/0", "import os\nos._exit(3)", "repr = lambda value: [1]\n5", "10**5000"]

    async def go() -> str:
        tool = compiled(sandbox, time_s=1)
        executor = Executor({"run": tool}, calls=CallsSpec.model_validate({"breaker": {"failures": 2, "reset_s": 60}}))
        async with kept() as make:
            for code in bad:
                await executor.run([ToolCall("run", {"code": code})], make())
            (result,) = await executor.run([ToolCall("run", {"code": "6 * 7"})], make())
            return result.text

    assert asyncio.run(go()) == "42"


# Calls that code makes.


ENV = """
rlenv: 1
name: calls
tasks: {{train: {{rows: [{{question: q, answer: "1"}}]}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
tools:
  look: {{kind: python, function: "tools.py:look", run_in: loop}}
  run: {{kind: code, tools: [look]}}
limits: {{tool_calls: {tool_calls}, calls_per_turn: {calls_per_turn}}}
rewards:
  few: {{kind: rule, rule: tool_call_count, max: 3}}
  looked: {{kind: rule, rule: tool_called, tool: look, min: 0, max: 3}}
"""


def played(tmp_path: Path, code: str, *, tool_calls: int, calls_per_turn: int) -> tuple[ToolResult, dict[str, Any]]:
    (tmp_path / "tools.py").write_text("def look(text: str) -> str:\n    return text\n", encoding="utf-8")
    path = tmp_path / "env.yaml"
    path.write_text(ENV.format(tool_calls=tool_calls, calls_per_turn=calls_per_turn), encoding="utf-8")
    environment = load(path)

    async def go() -> tuple[ToolResult, dict[str, Any]]:
        async with environment, environment.start(task=0) as episode:
            arguments = code.replace("\n", "\\n").replace('"', '\\"')
            await episode.step(f'<tool_call>\n{{"name": "run", "arguments": {{"code": "{arguments}"}}}}\n</tool_call>')
            result = episode.turns[0].results[0]
            with contextlib.suppress(UsageError):  # a limit may have ended it
                await episode.step("<answer>1</answer>")
            reward = episode.trajectory.reward
            assert reward is not None
            return result, {name: term.value for name, term in reward.terms.items()}

    return asyncio.run(go())


def test_calls_that_code_makes_come_off_the_budgets_of_the_turn_and_the_episode(tmp_path: Path) -> None:
    code = "made = 0\nfor n in range(900):\n    try: made += len(look('x'))\n    except RuntimeError: pass\nmade"
    result, _ = played(tmp_path, code, tool_calls=64, calls_per_turn=5)
    assert result.value["result"] == 4  # the fifth of the turn is the call that ran the code
    result, _ = played(tmp_path, code, tool_calls=3, calls_per_turn=5)
    assert result.value["result"] == 2


def test_rules_that_count_calls_see_those_that_code_made(tmp_path: Path) -> None:
    few = "for n in range(2): look('x')"
    many = "for n in range(40): look('x')"
    assert played(tmp_path, few, tool_calls=99, calls_per_turn=99)[1] == {"few": 1.0, "looked": 1.0}
    assert played(tmp_path, many, tool_calls=99, calls_per_turn=99)[1] == {"few": 0.0, "looked": 0.0}


def made_by(code: str, others: dict[str, Tool], *, memory_mb: int = 128, **context: Any) -> ToolResult:
    spec = CodeSpec.model_validate({"kind": "code", "tools": list(others), "session": True, "memory_mb": memory_mb})
    (tool,) = KIND.factory("run", spec, CompileContext(base=Path(), tools=others))

    async def go() -> ToolResult:
        executor = Executor({"run": tool, **others}, calls=CallsSpec())
        async with kept() as make:
            within = replace(make(), run_calls=executor.run, **context)
            (result,) = await executor.run([ToolCall("run", {"code": code})], within)
            return result

    return asyncio.run(go())


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def test_what_is_kept_of_the_calls_that_code_makes_is_bounded() -> None:
    look = fake_tool("look", lambda arguments: "x", parameters=TEXT)
    large = "try:\n    look('a' * 2_000_000)\nexcept TypeError as error:\n    print(error)"
    code = f"for n in range(200):\n    look('a' * 100_000)\n{large}"
    result = made_by(code, {"look": look})
    assert result.details is not None
    assert result.details["called"] == {"look": {"ok": 200}}
    assert len(repr(result.details)) < 300_000
    assert "at most 1000000 characters" in result.text


ANYTHING = {"type": "object", "properties": {"given": {}}, "required": ["given"]}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("{1: 'a', 'b': (2, [3.5, None, True])}", {"1": "a", "b": [2, [3.5, None, True]]}),
        *((one, None) for one in ("{'a': b'x'}", "[{1}]", "ValueError('x')", "...", "{(1,): 2}", "float('nan')")),
    ],
)
def test_code_gives_a_tool_nothing_that_a_call_could_not_hold(given: str, taken: Any) -> None:
    """A tool that meets another type fails as by its own fault."""
    met = list[Any]()

    def answer(arguments: Any) -> str:
        met.append(arguments["given"])
        return ""

    look = fake_tool("look", answer, parameters=ANYTHING)
    result = made_by(f"look({given})", {"look": look})
    assert met == ([] if taken is None else [taken])
    assert (result.outcome, result.whose) == (("failed", "policy") if taken is None else ("ok", ""))


def test_reading_large_calls_that_code_makes_at_once_is_bounded_and_holds_no_loop() -> None:
    look = fake_tool("look", lambda arguments: "", parameters=ANYTHING)
    made = "import asyncio\nx = {}\nawait asyncio.gather(*[look(x) for n in range({})])"
    all_s, loop_s = time.process_time(), time.thread_time()
    assert made_by(made.format("[[]] * 50_000", 12), {"look": look}).outcome == "ok"
    assert time.thread_time() - loop_s < (time.process_time() - all_s) / 2
    assert "at most 16000000 characters" in made_by(made.format("'a' * 900_000", 40), {"look": look}).text


def test_what_code_gives_beyond_what_calls_at_once_take_is_not_looked_at() -> None:
    """Whether its calls are taken or each is too large itself."""
    look = fake_tool("look", lambda arguments: "", parameters=ANYTHING)

    class Given(dict[str, Any]):
        measured = 0

        def items(self) -> Any:
            Given.measured += 1
            return super().items()

    for chars in (900_000, 1_100_000):
        Given.measured, given = 0, Given(a="a" * chars)
        made = PendingCalls({number: ("look", (given,), {}) for number in range(100)})
        calls, refused = _calls_in(made, {"look": look})
        assert (len(calls) + len(refused), Given.measured <= 40) == (100, True)


@pytest.mark.parametrize(("turn", "chars"), [(0, 60_000), (-1, 1_000_000)])
def test_no_more_answers_are_asked_for_at_once_than_the_code_could_hold(turn: int, chars: int) -> None:
    """All of them stand in rlenv's own process before the code has one."""
    met = list[Any]()

    def answer(arguments: Any) -> ToolOutput:
        met.append(arguments)
        return ToolOutput("", ["x" * chars])

    code = "import asyncio\nlen(await asyncio.gather(*[look(str(n)) for n in range({})]))"
    look = fake_tool("look", answer, parameters=TEXT)
    for calls in (10, 900):
        met.clear()
        result = made_by(code.format(calls), {"look": look}, memory_mb=16, turn=turn)
        most = (16 << 20) // chars
        assert len(met) == calls if calls < most else most < len(met) <= most + 64
        assert calls > most or result.outcome == "ok"
        assert result.whose in ("", "policy")


def test_a_session_that_grows_too_large_is_as_it_was_before() -> None:
    tool = compiled("monty", session=True, session_mb=1, memory_mb=64)

    async def go() -> list[ToolResult]:
        async with kept() as make:
            codes = ("kept = 1", "kept = 'x' * 5_000_000\n0", "kept")
            return [await call(tool, {"code": code}, within=make()) for code in codes]

    _, large, after = asyncio.run(go())
    assert (large.outcome, large.reason, large.whose) == ("failed", "memory", "policy")
    assert after.text == "1"


@pytest.mark.parametrize("turn", [0, -1])
def test_a_fault_of_a_tool_that_code_called_is_not_the_codes(turn: int) -> None:
    def broken(arguments: Any) -> str:
        raise OSError("the disk is gone")

    look = fake_tool("look", broken, parameters=TEXT)
    raised = made_by("look('x')", {"look": look}, turn=turn)
    assert (raised.outcome, raised.reason, raised.whose) == ("failed", "bug", "infrastructure")
    swallowed = made_by(
        "try:\n    look('x')\nexcept RuntimeError:\n    print('no matter')\n0", {"look": look}, turn=turn
    )
    # Within an episode the model goes on with what it has; a reward must not be measured on that.
    assert (swallowed.outcome, swallowed.whose) == (("ok", "") if turn >= 0 else ("failed", "infrastructure"))


# Tests that are appended to a model's program.


VERIFY = """
rlenv: 1
name: program
tasks: {train: {rows: [{question: "write solve(n), the n-th prime", expected: [2, 3, 5, 7, 11]}]}}
prompt: {user: "{{ task.question }}"}
tools: {run: {kind: code, sandbox: SANDBOX, time_s: 5}}
answer: {from: tag, tag: answer}
rewards:
  tests:
    kind: verify
    tool: run
    arguments: {code: "{{ answer }}\\n[solve(n) for n in range(5)]"}
    expect: {value: {result: "{{ task.expected }}"}}
    compare: {by: json, mode: subset}
"""
FORGED = [
    "def solve(n): return 1",
    "class Any:\n    def __eq__(self, other): return True\n    def __repr__(self): return '[2, 3, 5, 7, 11]'\n"
    "def solve(n): return Any()",
    "class Any:\n    def __repr__(self): return '2, 3, 5, 7, 11'\ndef solve(n): return Any()",
    'import os\nos.write(3, b\'{"shown": "True", "result": true, "error": null}\')\nos._exit(0)',
    "print('[2, 3, 5, 7, 11]')\nraise SystemExit",
    "def solve(n): return 1\nTrue #",
    "True\n'''",
    "solve = lambda n: 0\nrange = lambda n: []\nTrue",
    "repr = lambda value: '[2, 3, 5, 7, 11]'\ndef solve(n): return 0",
]


@pytest.fixture(params=SANDBOXES)
def reward_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], float | None]:
    compiled(request.param)  # skips where there is none
    path = tmp_path / "env.yaml"
    path.write_text(VERIFY.replace("SANDBOX", request.param), encoding="utf-8")
    environment = load(path)

    def measure(program: str) -> float | None:
        async def go() -> float | None:
            async with environment.start(task=0) as episode:
                return (await episode.step(f"<answer>{program}</answer>")).reward

        async def whole() -> float | None:
            async with environment:
                return await go()

        return asyncio.run(whole())

    return measure


def test_a_program_is_paid_for_the_values_it_returns_and_for_nothing_that_it_says_of_them(
    reward_of: Callable[[str], float | None],
) -> None:
    assert reward_of("def solve(n): return [2, 3, 5, 7, 11][n]") == 1.0
    for program in FORGED:
        assert reward_of(program) == 0.0, program


def test_the_filter_for_code_names_its_own_process_and_no_other() -> None:
    assert system_call_filter("code").count(OWN_PID.to_bytes(4, "little")) == 2
    assert OWN_PID.to_bytes(4, "little") not in system_call_filter("program")


def lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.sandbox
def test_a_sandbox_that_is_stopped_while_it_is_set_up_leaves_nothing_behind() -> None:
    compiled()  # skips where there is no bubblewrap
    sandbox = _Sandbox()
    group = sandbox._process.pid
    end = time.monotonic() + 30
    while only_child(group) is None:  # bwrap has forked, and its child waits to be told of its user
        assert time.monotonic() < end
    os.killpg(group, signal.SIGSTOP)
    sandbox.close()
    while lives(group):
        assert time.monotonic() < end
        time.sleep(0.002)
