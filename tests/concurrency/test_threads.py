"""What is known of a call while its thread runs it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from rlenv.concurrency.threads import ThreadPool

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
