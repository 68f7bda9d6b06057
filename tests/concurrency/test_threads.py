"""What is known of a call while its thread runs it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from rlenv.concurrency.threads import ThreadPool, run_sync

LIMIT_S = 60.0


def spin(until: threading.Event, at_work: threading.Event) -> None:
    """Works until told to stop, and says when it has used some processor time."""
    while not until.is_set():
        sum(range(1_000))
        if time.thread_time() > 0.05:
            at_work.set()


def wait(until: threading.Event, at_work: threading.Event) -> None:
    at_work.set()
    until.wait(LIMIT_S)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no clocks of their own that another may read here")
def test_the_processor_time_of_a_call_can_be_read_while_it_runs() -> None:
    async def work() -> None:
        pool = ThreadPool(size=2)
        until = threading.Event()
        events = [threading.Event(), threading.Event()]
        spins, waits = pool.submit(spin, until, events[0]), pool.submit(wait, until, events[1])
        for event in events:
            await asyncio.to_thread(event.wait, LIMIT_S)
        assert spins.has_begun
        assert spins.cpu_s() > 0.04
        assert waits.cpu_s() < spins.cpu_s()
        until.set()
        await asyncio.gather(spins.done, waits.done)
        assert spins.cpu_s() == 0.0  # its thread serves others now
        pool.close()

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


def test_a_call_that_waits_for_a_thread_has_not_begun() -> None:
    async def work() -> None:
        pool = ThreadPool(size=1)
        until, at_work = threading.Event(), threading.Event()
        first, second = pool.submit(wait, until, at_work), pool.submit(int)
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        assert first.has_begun
        assert not second.has_begun
        assert second.cpu_s() == 0.0
        until.set()
        await asyncio.gather(first.done, second.done)
        pool.close()

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


def test_a_call_that_waits_behind_one_that_is_given_up_has_a_thread_of_its_own() -> None:
    async def work() -> None:
        pool = ThreadPool(size=1)
        until, at_work, ended = threading.Event(), threading.Event(), threading.Event()
        hung, second = pool.submit(wait, until, at_work), pool.submit(int)
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        assert pool.give_up(hung, after=ended.set)
        await asyncio.wait_for(second.done, LIMIT_S / 2)
        assert (second.outcome(), hung.is_ended, pool.threads) == (0, False, 1)
        until.set()
        await asyncio.to_thread(ended.wait, LIMIT_S)
        assert hung.is_ended
        pool.close()

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    made: list[int] = []

    async def work() -> None:
        pool = ThreadPool(size=1)
        until, at_work = threading.Event(), threading.Event()
        first = pool.submit(wait, until, at_work)
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        given_up, kept = (asyncio.ensure_future(pool.call(made.append, number)) for number in (1, 2))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait((given_up,))
        until.set()
        await asyncio.gather(first.done, kept)

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))
    assert made == [2]


def test_work_that_is_finished_whatever_comes_is_waited_for_through_every_cancellation() -> None:
    go_on, done = threading.Event(), threading.Event()

    async def main() -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def work() -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(60)
            done.set()

        task = asyncio.ensure_future(ThreadPool(size=1).finish(work))
        await begun.wait()
        for _ in range(3):
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
        go_on.set()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert done.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("how", ["call", "run", "finish"])
def test_what_a_call_raises_is_raised_where_it_is_waited_for(how: str, error: BaseException) -> None:
    def fails() -> None:
        raise error

    async def work() -> None:
        pool = ThreadPool(size=1)
        with pytest.raises(type(error)) as raised:
            await getattr(pool, how)(fails)
        assert raised.value is error
        assert await getattr(pool, how)(lambda: "well") == "well"
        assert pool.threads == 1
        pool.close()

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


@pytest.mark.parametrize("size", [1, 2])
def test_no_more_calls_run_at_once_than_the_pool_has_threads_and_a_closed_one_begins_anew(size: int) -> None:
    running, most, lock = [0], [0], threading.Lock()
    full = threading.Barrier(size)

    def call() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        full.wait(LIMIT_S)
        with lock:
            running[0] -= 1
        return threading.get_ident()

    async def work() -> None:
        pool = ThreadPool(size=size)
        for _ in range(2):
            threads = await asyncio.gather(*(pool.call(call) for _ in range(3 * size)))
            assert (len(set(threads)), most[0], pool.threads) == (size, size, size)
            pool.close()
            assert pool.threads == 0

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


def test_only_a_call_at_work_leaves_a_thread_behind() -> None:
    async def work() -> None:
        pool = ThreadPool(size=1)
        until, at_work = threading.Event(), threading.Event()
        ended = pool.submit(int)
        await ended.done
        assert not pool.give_up(ended)
        running, waiting = pool.submit(wait, until, at_work), pool.submit(int)
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        assert not pool.give_up(waiting)
        assert (pool.threads, running.is_left_behind) == (1, False)
        assert pool.give_up(running)
        assert (pool.threads, running.is_left_behind) == (1, True), "one for the call that waits"
        until.set()
        assert await pool.call(int) == 0
        assert not waiting.is_ended
        pool.close()

    asyncio.run(asyncio.wait_for(work(), LIMIT_S))


def test_work_that_is_left_behind_frees_its_place_at_once() -> None:
    until, at_work = threading.Event(), threading.Event()

    async def work() -> None:
        pool = ThreadPool(size=1)
        hung = asyncio.ensure_future(pool.run(lambda: wait(until, at_work)))
        await asyncio.to_thread(at_work.wait, LIMIT_S)
        hung.cancel()
        await asyncio.wait([hung])
        assert hung.cancelled()
        assert await pool.call(int) == 0
        pool.close()

    try:
        asyncio.run(asyncio.wait_for(work(), LIMIT_S))
    finally:
        until.set()


def test_results_that_are_ready_at_once_wake_the_loop_once() -> None:
    async def work() -> int:
        pool, loop = ThreadPool(size=1), asyncio.get_running_loop()
        woken, wake = list[int](), loop.call_soon_threadsafe

        def counted(*given: Any, **keys: Any) -> asyncio.Handle:
            woken.append(1)
            return wake(*given, **keys)

        loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]
        over = threading.Event()
        jobs = [*(pool.submit(int) for _ in range(20)), pool.submit(over.set)]
        assert over.wait(LIMIT_S)  # the loop looks at nothing meanwhile
        await asyncio.gather(*(job.done for job in jobs))
        pool.close()
        return len(woken)

    assert 1 <= asyncio.run(asyncio.wait_for(work(), LIMIT_S)) <= 2


def test_synchronous_callers_share_one_loop_and_hear_what_is_raised() -> None:
    async def loop() -> int:
        return id(asyncio.get_running_loop())

    async def fails(text: str, *, number: int) -> None:
        raise ValueError(f"{text} {number}")

    assert run_sync(loop) == run_sync(loop)
    with pytest.raises(ValueError, match="no 3"):
        run_sync(fails, "no", number=3)
