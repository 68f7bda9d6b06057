"""Processes that can be killed: what ends one is told by one table, and the next one asked is well."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rlenv.concurrency.deadline import Countdown, Expired, running_under
from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Cause, Gone, Process, Program, StartFailed, cause_of, ending_text, work_of

OWN = ("SIGSEGV", "SIGBUS", "SIGSYS", "SIGTRAP", "SIGABRT", "SIGFPE", "SIGILL")
OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGXCPU")
CAUSES: dict[str, Cause] = {
    **dict.fromkeys(OWN, "crash"),
    "SIGPROF": "processor",
    "SIGALRM": "time",
    **dict.fromkeys(OUTSIDE, "outside"),
}
ACTS = """
import os, signal, time
from rlenv.concurrency import served

def act(body, fd):
    what, _, number = body.decode().partition(" ")
    if what == "signal":
        if int(number) != signal.SIGKILL:
            signal.signal(int(number), signal.SIG_DFL)
        os.kill(os.getpid(), int(number))
    if what == "exit":
        os._exit(int(number))
    if what == "work":
        while True: pass
    if what == "wait":
        time.sleep(600)
    return body[::-1], os.memfd_create("rlenv-given") if what == "give" else None

def serve(host, told):
    while told.get("gate") and not os.path.exists(told["gate"]):
        time.sleep(0.002)
    if told.get("is_broken"):
        raise KeyError("not there")
    served.answer(host, act)
"""


@contextmanager
def opened(folder: Path, *, limit: int = 1, told: dict[str, Any] | None = None, **keys: Any) -> Iterator[Pool]:
    (folder / "acts.py").write_text(ACTS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    pool = Pool(Program("acts:serve", told or {}, is_bare=True, **keys), limit=limit)
    try:
        yield pool
    finally:
        sys.path.remove(str(folder))
        pool.close()


async def ask(pool: Pool, what: str, *, seconds: float | None = None, cpu_s: float | None = None, **keys: Any) -> str:
    async def work(process: Process) -> str:
        return (await process.ask(what.encode(), cpu_s=cpu_s))[0].decode()

    return await pool.run(work, until=None if seconds is None else time.monotonic() + seconds, **keys)


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_what_a_process_does_itself_is_told_from_what_is_done_to_it(name: str, cause: Cause) -> None:
    number = getattr(signal, name)
    assert (cause_of(-number), ending_text(-number)) == (cause, name)
    assert (cause_of(3), ending_text(3)) == ("exit", "status 3")


def test_whatever_ends_a_process_is_told_once_and_the_next_one_is_well(tmp_path: Path) -> None:
    async def main() -> None:
        for name, cause in [("SIGSEGV", "crash"), ("SIGPROF", "processor"), ("SIGKILL", "outside")]:
            with pytest.raises(Gone, match=name) as gone:
                await ask(pool, f"signal {getattr(signal, name):d}")
            assert gone.value.cause == cause
            assert await ask(pool, "abc") == "cba"
        with pytest.raises(Gone, match="status 7"):
            await ask(pool, "exit 7")

    with opened(tmp_path) as pool:
        asyncio.run(main())
        assert asyncio.run(ask(pool, "another loop")) == "pool rehtona"


@pytest.mark.parametrize(
    ("what", "waits", "reason"),
    [("work", {}, "timeout"), ("wait", {}, "stalled"), ("wait", {"S": "late"}, "late")],
)
def test_a_process_that_does_not_end_is_killed_and_its_time_is_judged(
    tmp_path: Path, what: str, waits: dict[str, str], reason: str
) -> None:
    async def main() -> None:
        assert await ask(pool, "ab") == "ba"
        (pid,) = pool.processes
        with pytest.raises(Expired) as late:
            await ask(pool, what, seconds=1.0, cpu_s=0.01)
        assert late.value.reason == reason
        assert pid not in pool.processes

    with opened(tmp_path, waits=waits) as pool:
        asyncio.run(main())


def test_one_that_is_killed_while_nobody_needs_it_costs_no_question(tmp_path: Path) -> None:
    with opened(tmp_path) as pool:
        assert asyncio.run(ask(pool, "ab")) == "ba"
        (killed,) = pool._all
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
        assert asyncio.run(ask(pool, "ab")) == "ba"
        assert pool.processes != [killed.process.pid]


def test_who_finds_no_place_in_its_time_is_told_so_and_takes_none(tmp_path: Path) -> None:
    async def main() -> None:
        busy = asyncio.ensure_future(ask(pool, "wait"))
        await asyncio.sleep(0)
        with pytest.raises(Expired) as late:
            await ask(pool, "ab", seconds=0.05)
        assert late.value.reason == "busy"
        next_one = asyncio.ensure_future(ask(pool, "ab"))
        busy.cancel()
        assert await next_one == "ba"
        assert busy.cancelled()

    with opened(tmp_path) as pool:
        asyncio.run(main())


def test_who_is_cancelled_as_it_is_handed_a_place_gives_it_back(tmp_path: Path) -> None:
    async def main() -> str:
        busy = asyncio.ensure_future(ask(pool, "ab"))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(ask(pool, "cd"))
        busy.add_done_callback(lambda _: waiting.cancel())  # handed over, and not yet taken
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        return await asyncio.wait_for(ask(pool, "ef"), 30)

    with opened(tmp_path) as pool:
        assert asyncio.run(main()) == "fe"


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are read from /proc")
@pytest.mark.parametrize("is_limit", [False, True])
@pytest.mark.parametrize("passes", range(6))
def test_an_answer_that_comes_as_its_time_ends_or_who_waits_is_cancelled_is_taken_or_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int, is_limit: bool
) -> None:
    real, skipped = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + skipped)

    async def main() -> None:
        nonlocal skipped
        await ask(pool, "ab")
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Process] = loop.create_future()

        async def give(process: Process) -> int | None:
            asked.set_result(process)
            return (await process.ask(b"give"))[1]

        asking = asyncio.ensure_future(pool.run(give, until=time.monotonic() + 500))
        select.select([(await asked).socket], [], [])  # the answer is there, and the loop has not seen it
        for _ in range(passes):
            await asyncio.sleep(0)
        if is_limit:
            skipped = 1_000.0
        else:  # after what the same pass reads
            loop.call_later(0, asking.cancel)
        with suppress(asyncio.CancelledError, Expired):
            fd = await asking
            assert fd is not None
            os.close(fd)
        assert await ask(pool, "cd") == "dc"

    with opened(tmp_path) as pool:
        asyncio.run(main())
        held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in held if "rlenv-given" in path]


@pytest.fixture
def hop(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Awaitable[None]]:
    """Puts the clock forward, and lets what is due then run."""
    real, skipped = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: real() + skipped)

    async def hop(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds
        for _ in range(10):
            await asyncio.sleep(0)

    return hop


def test_the_start_of_a_process_counts_for_no_limit(tmp_path: Path, hop: Callable[[float], Awaitable[None]]) -> None:
    async def main() -> None:
        limit = Countdown(20.0)
        with running_under(limit):
            asked = asyncio.ensure_future(ask(pool, "ab", seconds=20.0))
        await asyncio.sleep(0)
        await hop(40.0)
        assert limit.left_s > 10
        (tmp_path / "gate").touch()
        assert await asked == "ba"

    with opened(tmp_path, told={"gate": str(tmp_path / "gate")}) as pool:
        asyncio.run(main())


def test_who_is_patient_waits_for_a_place_as_long_as_it_takes(
    tmp_path: Path, hop: Callable[[float], Awaitable[None]]
) -> None:
    async def main() -> None:
        busy = asyncio.ensure_future(ask(pool, "wait"))
        await asyncio.sleep(0)
        asked = [asyncio.ensure_future(ask(pool, "ab", seconds=20.0, is_patient=each)) for each in (True, False)]
        await asyncio.sleep(0)
        await hop(40.0)
        busy.cancel()
        patient, hasty = await asyncio.gather(*asked, return_exceptions=True)
        assert (patient, getattr(hasty, "reason", None)) == ("ba", "busy")

    with opened(tmp_path) as pool:
        asyncio.run(main())


def test_a_program_that_cannot_be_loaded_is_told_with_its_traceback(tmp_path: Path) -> None:
    with opened(tmp_path, told={"is_broken": True}) as pool:
        with pytest.raises(StartFailed, match=r"(?s)Traceback.*not there") as failed:
            asyncio.run(ask(pool, "ab"))
        assert failed.value.is_told


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_is_used_again_and_preferred_by_what_it_holds(tmp_path: Path) -> None:
    async def used(key: str = "", *, holds: str = "", fails: bool = False) -> int:
        async def work(process: Process) -> int:
            await process.ask(b"ab")
            process.holds = holds
            if fails:
                raise ValueError("its own")
            return process.process.pid

        return await pool.run(work, key=key)

    async def main() -> None:
        first, second = await asyncio.gather(used(holds="a"), used(holds="b"))
        assert sorted(pool.processes) == sorted([first, second])
        assert (pool.holds("a"), pool.holds("b"), pool.holds("c")) == (True, True, False)
        assert [await used("a", holds="a"), await used("b", holds="b"), await used("a")] == [first, second, first]
        assert not pool.holds("a")
        with pytest.raises(ValueError, match="its own"):
            await used(fails=True)
        assert await used() in (first, second)
        assert sorted(pool.processes) == sorted([first, second])
        await pool.aclose()
        assert pool.processes == []
        assert not any(map(is_there, (first, second))), "their ends are waited for"
        assert await used() not in (first, second)

    with opened(tmp_path, limit=2) as pool:
        asyncio.run(main())


def test_who_is_urgent_is_handed_the_next_place_and_all_others_come_in_turn(tmp_path: Path) -> None:
    order: list[str] = []

    async def asks(name: str, **keys: Any) -> None:
        await ask(pool, name, **keys)
        order.append(name)

    async def main() -> None:
        names = [("busy", False), ("first", False), ("second", False), ("urgent", True)]
        works = []
        for name, is_urgent in names:
            works.append(asyncio.ensure_future(asks(name, is_urgent=is_urgent)))
            await asyncio.sleep(0)
        await asyncio.gather(*works)

    with opened(tmp_path) as pool:
        asyncio.run(main())
    assert order == ["busy", "urgent", "first", "second"]


def test_a_process_that_is_left_at_work_is_killed_and_the_next_one_starts_before_it_is_asked_for(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        at_work = asyncio.Event()

        async def work(process: Process) -> None:
            at_work.set()
            await process.ask(b"wait")

        busy = asyncio.ensure_future(pool.run(work))
        await at_work.wait()
        (killed,) = pool.processes
        busy.cancel()
        await asyncio.wait([busy])
        (fresh,) = pool.processes
        assert fresh != killed
        assert await ask(pool, "ab") == "ba"
        assert pool.processes == [fresh]
        pool.close()
        assert pool.processes == []

    with opened(tmp_path) as pool:
        asyncio.run(main())


def test_who_is_cancelled_while_a_process_starts_leaves_it_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        asked = asyncio.ensure_future(ask(pool, "ab"))
        await asyncio.sleep(0)
        (starting,) = pool.processes
        asked.cancel()
        await asyncio.wait([asked])
        (tmp_path / "gate").touch()
        assert await ask(pool, "ab") == "ba"
        assert pool.processes == [starting]

    with opened(tmp_path, told={"gate": str(tmp_path / "gate")}) as pool:
        asyncio.run(main())


def test_an_answer_is_whole_whatever_its_size(tmp_path: Path) -> None:
    sizes = (0, 1, 7, 8, 9, 262_144, 300_000)
    with opened(tmp_path) as pool:

        async def main() -> list[str]:
            return [await ask(pool, "x" * one) for one in sizes]

        assert [len(one) for one in asyncio.run(main())] == list(sizes)


def test_a_pool_has_two_places_at_least() -> None:
    assert Pool(Program("acts:serve")).limit >= 2
    assert Pool(Program("acts:serve"), limit=1).limit == 1


def test_a_status_that_no_signal_has_is_told_as_it_is() -> None:
    assert [ending_text(status) for status in (0, 1, -1, -200)] == ["status 0", "status 1", "SIGHUP", "status -200"]
    assert [cause_of(status) for status in (0, -200)] == ["exit", "outside"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says")
def test_the_work_of_a_process_is_its_own_and_that_of_its_children_apart() -> None:
    burn = "import time\nwhile time.process_time() < {}: pass\n"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn.format(0.15)!r}])\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{child}print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        work = work_of(process.pid)
        process.kill()
    assert work is not None
    assert work.children_s >= 0.14 > work.cpu_s
    assert work_of(process.pid) is None
