"""Functions in worker processes: whatever one does, it ends in time, the next call works and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlenv.calls.executor import Executor
from rlenv.errors import EpisodeError, ToolFailed, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.testing.tools import check_tool, context, kept
from rlenv.tools.base import Tool
from rlenv.tools.python import KIND, PythonSpec

MODULE = '''
import asyncio, os, pathlib, signal, subprocess, sys, time
from typing import Any
from rlenv.errors import EpisodeError, ToolFailed
from rlenv.messages import Image
from rlenv.tools.base import ToolOutput

class OutOfStock(Exception): ...

def pid() -> int:
    """Tell the process."""
    return os.getpid()

def do(what: str, path: str = "") -> Any:
    """Do something."""
    if what == "loop":
        pathlib.Path(path).write_text(str(os.getpid()))
        while True: pass
    if what == "exit": os._exit(3)
    if what == "signal": os.kill(os.getpid(), signal.SIGSEGV)
    if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if what == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if what == "sleep": time.sleep(600)
    if what == "fork_and_exit":
        if os.fork() == 0: time.sleep(600)
        os._exit(4)
    if what == "fork_and_return":
        os.fork()
        return "once"
    if what == "break_fds":
        os.closerange(3, 256)
        return "said to nobody"
    if what == "print":
        print("x" * 1_000, flush=True)
        os.write(1, b"raw")
        return sys.stdin.read()
    if what == "child":
        child = subprocess.Popen(["sleep", "600"])
        pathlib.Path(path).write_text(str(child.pid))
        time.sleep(600)
    if what == "big": return "x" * 10_000_000
    if what == "too_big": return "x" * 40_000_000
    if what == "raise": raise KeyError("secret")
    if what == "quit": sys.exit(2)
    if what == "declared": raise OutOfStock("none left")
    if what == "tool_failed": raise ToolFailed("busy", reason="timeout", retryable=True, details={"a": 1}, wait_s=0.5)
    if what.startswith("whose "): raise ToolFailed("no", reason="word", whose=what.removeprefix("whose "))
    if what == "episode": raise EpisodeError("the store is gone", reason="store")
    if what == "object": return object()
    return {
        "text": "t", "none": None, "int": 10**40, "list": [1, "a"], "unicode": "\\u00e9\\ud800", "nan": float("inf"),
        "output": ToolOutput("t", {"a": [1]}, (Image("image/png", "AA=="),), {"tokens": 3}),
    }[what]

async def later(a: int) -> int:
    """Add one, later."""
    await asyncio.sleep(0)
    return a + 1

def meet(folder: str, count: int) -> int:
    """Come, and wait until so many are there at once."""
    pathlib.Path(folder, str(os.getpid())).touch()
    end = time.monotonic() + 30
    while len(os.listdir(folder)) < count and time.monotonic() < end:
        time.sleep(0.005)
    return len(os.listdir(folder))

def asks(key: str, task: Any) -> Any:
    """Read the task."""
    return task[key]

def world_of(world: Any, context: Any) -> int:
    """Read the world."""
    return 1
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def compiled(folder: Path, function: str, **keys: Any) -> Tool:
    keys = {"run_in": "process", "workers": 1, **keys}
    spec = PythonSpec(kind="python", function=f"tools.py:{function}", **keys)
    (tool,) = KIND.factory(function, spec, CompileContext(base=folder, resources={"world": object()}))
    assert isinstance(tool, Tool)
    return tool


Call = Callable[..., Awaitable[ToolResult]]


def session(tool: Tool, steps: Callable[[Call], Awaitable[None]]) -> None:
    """Runs `steps` within one environment; `call(**arguments)` is one call, `seconds=` its episode's time."""

    async def all_steps() -> None:
        executor = Executor({tool.name: tool}, calls=CallsSpec())
        async with kept() as make:

            async def call(*, seconds: float = 60.0, **arguments: Any) -> ToolResult:
                within = replace(make(), deadline=time.monotonic() + seconds, task={"id": 7, "deep": {"a": (1,)}})
                (result,) = await executor.run([ToolCall(tool.name, arguments)], within)
                return result

            await steps(call)

    asyncio.run(all_steps())


def is_running(pid: int) -> bool:
    """False once every thread has ended: a process whose first thread ended may still be ending."""
    try:
        stats = [path.read_text(encoding="utf-8") for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread ended just now
        return Path(f"/proc/{pid}").exists()
    return any(stat.rpartition(")")[2].split()[0] not in "ZX" for stat in stats)


def written_pid(path: Path) -> int:
    end = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.005)
    return int(path.read_text())


def until_gone(pid: int) -> bool:
    end = time.monotonic() + 30
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.005)
    return not is_running(pid)


@pytest.mark.slow
def test_functions_in_processes_keep_the_laws_of_tools(folder: Path) -> None:
    check_tool(compiled(folder, "later", workers=2), good=[{"a": 1}], bad=[{}, {"a": "1"}])
    check_tool(
        compiled(folder, "do", errors=("OutOfStock",)),
        good=[{"what": "list"}, {"what": "none"}],
        failing=[{"what": "declared"}, {"what": "tool_failed"}, {"what": "exit"}, {"what": "too_big"}],
    )


def test_a_function_in_a_process_imports_what_lies_beside_its_file(folder: Path) -> None:
    (folder / "beside.py").write_text("WORD = 'beside'\n")
    text = 'import beside\ndef say() -> str:\n    """Say it."""\n    import beside as again\n    return again.WORD\n'
    (folder / "tools.py").write_text(text)

    async def steps(call: Call) -> None:
        assert (await call()).text == "beside"

    session(compiled(folder, "say"), steps)


def test_results_are_what_they_are_in_a_thread(folder: Path) -> None:
    async def steps(call: Call) -> None:
        for what in ("text", "none", "int", "list", "unicode", "nan", "output"):
            there = await call(what=what)
            executor = Executor({"do": compiled(folder, "do", run_in="thread", workers=None)}, calls=CallsSpec())
            (here,) = await executor.run([ToolCall("do", {"what": what})], context())
            assert replace(there, seconds=0.0, waited=0.0, started=None) == replace(here, seconds=0.0, started=None)
            assert there.outcome == "ok"

    session(compiled(folder, "do"), steps)


@pytest.mark.slow
def test_an_endless_loop_is_killed_at_its_timeout_and_the_next_call_works(folder: Path, tmp_path: Path) -> None:
    async def steps(call: Call) -> None:
        assert (await call(what="text")).outcome == "ok"
        late = await call(what="loop", path=str(tmp_path / "pid"), seconds=2.0)
        assert (late.outcome, late.text) == ("timeout", "the tool do was stopped: the episode's time is up")
        assert until_gone(int((tmp_path / "pid").read_text()))
        assert (await call(what="text")).text == "t"

    session(compiled(folder, "do"), steps)


@pytest.mark.slow
def test_a_timeout_shorter_than_a_start_does_not_start_over_for_ever(folder: Path) -> None:
    async def steps(call: Call) -> None:
        outcomes = [(await call(what="text", seconds=0.05)).outcome]
        while outcomes[-1] == "timeout":  # for ever, if each of them ended the start that the one before it began
            outcomes.append((await call(what="text", seconds=0.05)).outcome)
        assert outcomes[-1] == "ok"

    session(compiled(folder, "do"), steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how"),
    [("exit", "status 3"), ("signal", "SIGSEGV"), ("fork_and_exit", "status 4"), ("break_fds", None)],
)
def test_a_process_that_ends_is_a_plain_failure_and_is_replaced(folder: Path, what: str, how: str | None) -> None:
    async def steps(call: Call) -> None:
        for _ in range(2):
            result = await call(what=what)
            assert (result.outcome, result.text) == ("failed", "the tool do failed: its process ended")
            assert result.details is not None
            assert how in (None, result.details["process"])
            assert (await call(what="text")).text == "t"

    session(compiled(folder, "do"), steps)


@pytest.mark.slow
def test_a_worker_that_died_between_calls_is_replaced(folder: Path) -> None:
    async def steps(call: Call) -> None:
        first = (await call()).value
        os.kill(first, 9)
        assert until_gone(first)
        again = await call()
        assert again.outcome == "ok"
        assert again.value != first

    session(compiled(folder, "pid"), steps)


def test_a_forked_child_that_comes_back_does_not_answer(folder: Path) -> None:
    async def steps(call: Call) -> None:
        for _ in range(3):
            assert (await call(what="fork_and_return")).text == "once"
            assert (await call(what="list")).value == [1, "a"]

    session(compiled(folder, "do"), steps)


def test_what_a_function_prints_does_not_disturb_the_answer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def steps(call: Call) -> None:
        result = await call(what="print")
        assert (result.outcome, result.text) == ("ok", "")

    session(compiled(folder, "do"), steps)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("raw")


@pytest.mark.slow
def test_large_results_are_taken_and_larger_ones_refused(folder: Path) -> None:
    async def steps(call: Call) -> None:
        big = await call(what="big")
        assert big.outcome == "ok"
        assert len(big.text) < 100_000
        refused = await call(what="too_big")
        assert (refused.outcome, refused.text) == ("failed", "the tool do gave more than 32 MB")
        assert (await call(what="text")).text == "t"

    session(compiled(folder, "do"), steps)


def test_large_arguments_arrive(folder: Path) -> None:
    async def steps(call: Call) -> None:
        assert (await call(what="text", path="x" * 5_000_000)).text == "t"

    session(compiled(folder, "do"), steps)


def test_how_long_a_function_asks_to_be_left_alone_arrives(folder: Path) -> None:
    async def go() -> float:
        async with kept() as make:
            with pytest.raises(ToolFailed) as raised:
                await compiled(folder, "do").run({"what": "tool_failed"}, make())
            return raised.value.wait_s

    assert asyncio.run(go()) == 0.5


def test_only_declared_exceptions_show_their_message(folder: Path) -> None:
    async def steps(call: Call) -> None:
        for what in ("raise", "quit", "object"):
            result = await call(what=what)
            assert (result.outcome, result.text) == ("failed", "the tool do failed")
        assert (await call(what="declared")).text == "none left"
        failed = await call(what="tool_failed")
        assert (failed.outcome, failed.text, failed.details) == ("timeout", "busy", {"a": 1})
        for whose in ("policy", "infrastructure", "unclear"):
            assert (await call(what=f"whose {whose}")).whose == whose
        with pytest.raises(EpisodeError, match="the store is gone") as raised:
            await call(what="episode")
        assert raised.value.reason == "store"

    session(compiled(folder, "do", errors=("OutOfStock",)), steps)


def test_what_a_function_raised_is_kept_for_the_author(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def steps(call: Call) -> None:
        await call(what="raise")

    session(compiled(folder, "do"), steps)
    assert "KeyError: 'secret'" in caplog.text


@pytest.mark.slow
def test_workers_run_at_once_and_calls_beyond_them_wait_their_turn(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    place.mkdir()

    async def steps(call: Call) -> None:
        results = await asyncio.gather(*(call(folder=str(place), count=2) for _ in range(6)))
        assert [result.value for result in results] == [2] * 6

    session(compiled(folder, "meet", workers=2), steps)


@pytest.mark.slow
def test_a_call_that_hangs_does_not_delay_others(folder: Path, tmp_path: Path) -> None:
    async def steps(call: Call) -> None:
        hanging = asyncio.ensure_future(call(what="loop", path=str(tmp_path / "pid")))
        assert (await call(what="text")).text == "t"
        assert not hanging.done()
        pid = await asyncio.to_thread(written_pid, tmp_path / "pid")
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        assert until_gone(pid)

    session(compiled(folder, "do", workers=2), steps)


def test_a_worker_is_kept_and_is_gone_with_its_environment(folder: Path) -> None:
    seen: list[int] = []

    async def steps(call: Call) -> None:
        seen.extend([(await call()).value, (await call()).value])
        assert is_running(seen[0])

    session(compiled(folder, "pid"), steps)
    assert seen[0] == seen[1] != os.getpid()
    assert not Path(f"/proc/{seen[0]}").exists()


def test_what_a_function_started_is_killed_with_it(folder: Path, tmp_path: Path) -> None:
    async def steps(call: Call) -> None:
        assert (await call(what="text")).outcome == "ok"
        assert (await call(what="child", path=str(tmp_path / "pid"), seconds=2.0)).outcome == "timeout"
        assert until_gone(int((tmp_path / "pid").read_text()))

    session(compiled(folder, "do"), steps)


@pytest.mark.slow
def test_workers_end_with_a_parent_that_is_killed(folder: Path, tmp_path: Path) -> None:
    program = """
        import asyncio, os, sys, time
        from pathlib import Path
        from rlenv.testing.tools import kept
        from rlenv.language.kinds import CompileContext
        from rlenv.tools.python import KIND, PythonSpec
        spec = PythonSpec(kind="python", function="tools.py:do", run_in="process", workers=2)
        (tool,) = KIND.factory("do", spec, CompileContext(base=Path(sys.argv[1])))
        async def main():
            async with kept() as make:
                hanging = asyncio.ensure_future(tool.run({"what": "loop", "path": sys.argv[2]}, make()))
                while not os.path.exists(sys.argv[2]) or not os.path.getsize(sys.argv[2]):
                    await asyncio.sleep(0.005)
                os.kill(os.getpid(), 9)
        asyncio.run(main())
    """
    place = tmp_path / "pid"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(folder), str(place)], timeout=60, check=False
    )
    assert done.returncode == -9
    assert until_gone(int(place.read_text()))


def test_a_task_may_be_injected(folder: Path) -> None:
    async def steps(call: Call) -> None:
        assert (await call(key="id")).value == 7
        assert (await call(key="deep")).value == {"a": [1]}

    session(compiled(folder, "asks", inject=("task",)), steps)


def test_a_file_that_cannot_be_imported_in_the_worker_ends_the_episode(folder: Path) -> None:
    tool = compiled(folder, "pid")
    (folder / "tools.py").write_text("raise RuntimeError('moved')\n", encoding="utf-8")

    async def steps(call: Call) -> None:
        with pytest.raises(EpisodeError, match="moved") as raised:
            await call()
        assert raised.value.reason == "worker"

    session(tool, steps)


@pytest.mark.parametrize(
    ("function", "keys", "says"),
    [
        ("world_of", {"inject": ("world", "context")}, "'world' cannot go to another process"),
        ("world_of", {"inject": ("context", "world")}, "'context' cannot go to another process"),
        ("pid", {"run_in": "thread"}, "only functions in processes have workers"),
    ],
)
def test_what_no_process_can_have_is_refused(folder: Path, function: str, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as failed:
        compiled(folder, function, **keys)
    assert says in str(failed.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason", "whose"),
    [
        ("exit", "crashed", "unclear"),
        ("signal", "crashed", "unclear"),
        ("kill", "killed", "unclear"),
        ("stop", "stopped", "unclear"),
        ("sleep", "late", "unclear"),
        ("too_big", "too_large", "policy"),
    ],
)
def test_a_failure_in_a_process_says_whose_it_is(folder: Path, what: str, reason: str, whose: str) -> None:
    async def steps(call: Call) -> None:
        assert (await call(what="text")).outcome == "ok"
        found = await call(what=what, seconds=3.0 if what in ("stop", "sleep") else 60.0)
        assert (found.reason, found.whose) == (reason, whose)
        assert (await call(what="text")).outcome == "ok"

    session(compiled(folder, "do"), steps)
