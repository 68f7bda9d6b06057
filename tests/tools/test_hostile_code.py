"""Code and programs that mean harm: each is contained with a clear result, the next call works, nothing is left.

Every bomb is bounded by the limits of its sandbox, and the whole process by rlimits of its own as a second belt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
import wsgiref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.errors import ToolFailed
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.testing.tools import call, kept
from rlenv.tools._bubblewrap import UNSEEN
from rlenv.tools._cell import CodeRequest
from rlenv.tools._sandbox import Sandboxes
from rlenv.tools.base import Tool, asked_again
from rlenv.tools.code import KIND as CODE
from rlenv.tools.code import CodeSpec
from rlenv.tools.command import KIND as COMMAND
from rlenv.tools.command import CommandSpec

SANDBOXES = ["monty", pytest.param("bubblewrap", marks=pytest.mark.sandbox)]
TRIES: dict[str, Any] = {"time_s": 0.5, "memory_mb": 64, "max_bytes": 10_000, "workers": 1}


@pytest.fixture(autouse=True)
def second_belt() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def code_tool(sandbox: str, **keys: Any) -> Tool:
    spec = CodeSpec.model_validate({"kind": "code", "sandbox": sandbox, **TRIES, **keys})
    (tool,) = CODE.factory("run", spec, CompileContext(base=Path()))
    assert isinstance(tool, Tool)
    return tool


def children() -> set[int]:
    """The processes that this one started and that are still there."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path(f"/proc/{name}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(name))
    return found


def attempt(tool: Tool, *codes: str) -> list[ToolResult]:
    """Runs each in one environment, checks that honest code works after each, and that nothing is left at the end."""

    async def go() -> list[ToolResult]:
        results = []
        async with kept() as make:
            for code in codes:
                results.append(await call(tool, {"code": code}, within=make()))
                after = await call(tool, {"code": "6 * 7"}, within=make())
                assert (after.outcome, after.text) == ("ok", "42"), f"after {code!r}: {after}"
        return results

    # What a library keeps for the whole process once it was used is no leak.
    asyncio.run(call_once(tool))
    before = children(), len(os.listdir("/proc/self/fd"))
    results = asyncio.run(go())
    assert children() <= before[0], "a process is left"
    assert len(os.listdir("/proc/self/fd")) <= before[1], "a descriptor is left"
    return results


async def call_once(tool: Tool) -> None:
    async with kept() as make:
        await call(tool, {"code": "1"}, within=make())


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_endless_code_costs_its_time_limit(sandbox: str) -> None:
    for result in attempt(
        code_tool(sandbox), "while True: pass", "def f(n):\n    return f(n) if n else 0\nwhile 1: f(0)"
    ):
        assert (result.outcome, result.text) == ("timeout", "the code did not end within 0.5 s")


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_sleeping_costs_no_time_or_the_limit(sandbox: str) -> None:
    (slept,) = attempt(code_tool(sandbox), "import time\ntime.sleep(1000)\n1")
    assert slept.text == "1" if sandbox == "monty" else slept.outcome == "timeout"


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_memory_bomb_is_a_memory_error(sandbox: str) -> None:
    bombs = ["x = [0] * 10**9", "x = []\nwhile True: x.append('y' * 10**6 + str(len(x)))", "x = 'a' * 10**12"]
    for result in attempt(code_tool(sandbox, time_s=3.0), *bombs):
        assert result.outcome == "failed"
        assert "MemoryError" in result.text
        assert "bytes >" not in result.text, "how much it was differs from one run to the next"


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_deep_recursion_is_an_error(sandbox: str) -> None:
    (result,) = attempt(code_tool(sandbox), "def f(n): return f(n + 1)\nf(0)")
    assert "RecursionError" in result.text


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_flood_of_output_is_cut(sandbox: str) -> None:
    for result in attempt(code_tool(sandbox), "while True: print('x' * 1000)", "print('x' * 10**7)"):
        assert "(cut after 10000 bytes)" in result.text
        assert len(result.text) < 11_000


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_the_hosts_files_and_environment_are_not_there(sandbox: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RLENV_TEST_KEY", "correct-horse-battery")
    secret = tmp_path / "secret"
    secret.write_text("correct-horse-battery", encoding="utf-8")
    paths = [str(secret), "/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/1/environ", "/etc/shadow"]
    codes = [f"print(open({path!r}).read())" for path in paths]
    codes += ["import os\nprint(os.environ)", "import os\nprint(os.getenv('RLENV_TEST_KEY'))"]
    codes += [
        f"import os\nprint(os.listdir({path!r}))" for path in ("/home/someone", "/proc", "/etc/ssl", str(tmp_path))
    ]
    for code, result in zip(codes, attempt(code_tool(sandbox), *codes), strict=True):
        assert "correct-horse" not in result.text
        assert result.outcome == "failed" or "environ" in code or "getenv" in code, f"{code}: {result.text}"


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_there_is_no_network(sandbox: str) -> None:
    code = "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)"
    other = "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')"
    for result in attempt(code_tool(sandbox, time_s=3.0), code, other):
        assert result.outcome == "failed"
        assert "ModuleNotFoundError" in result.text or "not permitted" in result.text


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_nothing_can_be_written_outside_and_nothing_stays(sandbox: str, tmp_path: Path) -> None:
    places = [str(tmp_path / "x"), "/x", "/usr/x", "/dev/x", "/zygote.py", "/filter"]
    codes = [f"open({place!r}, 'w').write('x')" for place in places]
    for result in attempt(code_tool(sandbox), *codes):
        assert result.outcome == "failed", result
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sandbox
def test_files_of_one_piece_of_code_are_gone_for_the_next() -> None:
    results = attempt(
        code_tool("bubblewrap", time_s=3.0),
        "import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0)",
        "import os\nos.listdir('/tmp')",
        "import os\nos.chmod('/tmp', 0)",
        "import os\n(os.stat('/tmp').st_mode & 0o777, os.listdir('/tmp'))",
        "for n in range(3000): open(f'f{n}', 'w').close()",
        "import os\nos.listdir('/tmp')",
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        "import os\nos.listdir('/tmp')",
    )
    assert [one.text for one in results[1::2]] == ["[]", "(493, [])", "[]", "[]"]
    assert results[6].outcome == "failed"


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_no_process_can_be_started(sandbox: str) -> None:
    codes = [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'echo x'])",
        "import os\nos.system('echo x') and 1/0",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    ]
    for result in attempt(code_tool(sandbox, time_s=3.0), *codes):
        assert result.outcome == "failed", result


@pytest.mark.sandbox
def test_threads_are_bounded_by_memory_and_go_with_the_code() -> None:
    code = "import threading, time\nfor n in range(10**5): threading.Thread(target=time.sleep, args=(100,)).start()"
    (result,) = attempt(code_tool("bubblewrap", time_s=3.0), code)
    assert result.outcome in ("failed", "timeout")


@pytest.mark.sandbox
def test_the_process_that_serves_the_next_call_cannot_be_touched() -> None:
    codes = [
        "import os\nos.kill(1, 9)",
        "import os, signal\nos.killpg(0, 9)",
        "import resource\nresource.prlimit(1, resource.RLIMIT_NPROC, (0, 0))",
        "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, 1, 0, 0))",
        "import os\nos.sched_setaffinity(1, [0])",
        "import os\nos.setpriority(os.PRIO_PROCESS, 1, 19)",
        "import ctypes\nctypes.string_at(0)",
        "import os\nos._exit(0)",
        "import os\nos.abort()",
        "import os\nos.close(1); os.close(2); os.close(3)",
        "import os\nfor n in range(10000): os.write(3, b'x' * 1000)",
        'import os\nos.write(3, b\'{"shown": "forged", "result": 1, "error": null}\'); os._exit(0)',
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(100)",
    ]
    for code, result in zip(codes, attempt(code_tool("bubblewrap"), *codes), strict=True):
        assert result.text, code


def test_a_worker_that_is_killed_is_replaced() -> None:
    async def go() -> list[str]:
        async with kept() as make:
            tool = code_tool("monty")
            texts = [(await call(tool, {"code": "1"}, within=make())).text]
            for pid in children():
                os.kill(pid, 9)
            first = await call(tool, {"code": "2"}, within=make())
            assert first.text in ("2", "the code broke its sandbox and was stopped")
            return [*texts, (await call(tool, {"code": "3"}, within=make())).text]

    assert asyncio.run(go()) == ["1", "3"]


def command(script: str, **keys: Any) -> ToolResult:
    argv = ["sh", "-c", script]
    limits = {"cpu_s": 2, "memory_mb": 300, "disk_mb": 4, "max_bytes": 10_000, "timeout_s": 5.0}
    spec = CommandSpec.model_validate({"kind": "command", "command": argv, **limits, **keys})
    (tool,) = COMMAND.factory("run", spec, CompileContext(base=Path()))
    before = children(), len(os.listdir("/proc/self/fd"))
    result = asyncio.run(call(tool, {}))
    assert children() <= before[0], "a process is left"
    assert len(os.listdir("/proc/self/fd")) <= before[1], "a descriptor is left"
    return result


@pytest.mark.sandbox
def test_a_program_that_may_start_no_others_cannot_bomb() -> None:
    result = command("f() { f | f & }; f; echo started", sandbox="bubblewrap", processes=False)
    assert "fork" in result.text


@pytest.mark.parametrize("keys", [{}, pytest.param({"sandbox": "bubblewrap"}, marks=pytest.mark.sandbox)])
def test_a_crowd_of_daemons_goes_with_the_program(keys: dict[str, Any]) -> None:
    word = f"rlenv-hostile-{os.getpid()}"
    script = f"for n in 1 2 3 4 5 6 7 8; do setsid sh -c ': {word}; sleep 60; :' & done; echo started"
    assert command(script, **keys).text == "started"
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if word.encode() in line]


@pytest.mark.slow
def test_a_program_is_held_to_memory_time_output_and_files() -> None:
    python = f"exec {sys.executable} -I -S -c"
    assert "MemoryError" in command(f"{python} 'x = bytearray(10**9)'").text
    assert command("while :; do :; done", cpu_s=1, timeout_s=60.0).text == "sh used up its CPU time"
    assert command("sleep 60", timeout_s=0.2).outcome == "timeout"
    assert command("exec yes").text == "sh wrote more than 10000 bytes and was stopped"
    assert command("head -c 100000000 /dev/zero > big; ls -l big | cut -d' ' -f5").text == str(4 << 20)


@pytest.mark.sandbox
def test_a_program_in_the_sandbox_sees_no_personal_file_and_no_network(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RLENV_TEST_KEY", "correct-horse-battery")
    assert "correct-horse" not in command("env").text
    assert command("ls -A /root /home | grep -v : | grep .", sandbox="bubblewrap", expect=[1]).text == "(no output)"
    outside = command(f"touch {tmp_path}/x /usr/x /etc/x; true", sandbox="bubblewrap")
    assert outside.outcome == "ok"
    assert list(tmp_path.iterdir()) == []
    assert not Path("/usr/x").exists()
    assert command("cat /proc/net/dev | wc -l", sandbox="bubblewrap").text == "3"  # two lines of head, and the loopback


@pytest.mark.sandbox
def test_code_does_not_see_what_is_not_to_be_seen() -> None:
    assert str(Path(rlenv.__file__).parent) in UNSEEN  # its shipped environments have answers
    folder = str(Path(wsgiref.__file__).parent)  # of the interpreter, whose files the sandbox has
    look = f"import os\nlen(os.listdir({folder!r}))"
    assert int(attempt(code_tool("bubblewrap"), look)[0].text) > 1
    UNSEEN.add(folder)
    try:
        assert attempt(code_tool("bubblewrap"), look)[0].text == "0"
    finally:
        UNSEEN.discard(folder)


@pytest.mark.sandbox
@pytest.mark.parametrize("is_asked_again", [False, True])
def test_what_a_reward_asks_again_waits_for_a_sandbox_beyond_its_time(is_asked_again: bool) -> None:
    """Else a group whose codes all hang would leave each of them too few tries to be told from bad luck."""
    spec = CodeSpec.model_validate({"kind": "code", "sandbox": "bubblewrap", **TRIES})
    wanted = CodeRequest({"mode": "cell", "code": "1 + 1"})

    async def work() -> tuple[bool, str]:
        with contextlib.closing(Sandboxes(1)) as sandboxes:
            await sandboxes._places.acquire()
            token = asked_again.set("late") if is_asked_again else None
            running = asyncio.create_task(sandboxes.run(wanted, spec, deadline=time.monotonic(), seed=0))
            if token is not None:
                asked_again.reset(token)
            for _ in range(100):
                await asyncio.sleep(0)
            was_waiting = not running.done()
            sandboxes._places.release()
            with pytest.raises(ToolFailed) as failed:
                await running
            return was_waiting, failed.value.reason

    # There was no time left when it began, for its start either: only its wait counts for nothing.
    assert asyncio.run(work()) == ((True, "worker") if is_asked_again else (False, "busy"))
