"""Context managers that live in a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from rlenv.concurrency.scope import Hosted, Scope


@asynccontextmanager
async def grouped(log: list[str], name: str = "a") -> AsyncIterator[str]:
    # A cancel scope of anyio refuses to be exited by another task than the one that entered it.
    async with anyio.create_task_group():
        log.append(f"open {name}")
        try:
            yield name
        finally:
            log.append(f"close {name}")


@asynccontextmanager
async def broken() -> AsyncIterator[str]:
    raise OSError("no server")
    yield ""


@asynccontextmanager
async def endless(log: list[str]) -> AsyncIterator[str]:
    try:
        await asyncio.Event().wait()
        yield ""
    finally:
        log.append("taken down")


def test_it_is_opened_and_closed_from_different_tasks() -> None:
    log: list[str] = []

    async def main() -> None:
        host = Hosted(grouped(log))
        assert await asyncio.create_task(host.open()) == "a"
        assert host.is_open
        await asyncio.create_task(host.aclose())
        await host.aclose()
        assert not host.is_open

    asyncio.run(main())
    assert log == ["open a", "close a"]


def test_what_entering_raises_reaches_the_one_who_opens() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="no server"):
            await Hosted(broken()).open()

    asyncio.run(main())


def test_cancelling_the_opening_takes_it_down_again() -> None:
    log: list[str] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await Hosted(endless(log)).open()

    asyncio.run(main())
    assert log == ["taken down"]


def test_a_scope_opens_once_for_all_who_ask_and_closes_in_reverse_order() -> None:
    log: list[str] = []

    async def main() -> None:
        scope = Scope()
        first = await asyncio.gather(*(scope.get("a", lambda: grouped(log, "a")) for _ in range(5)))
        assert first == ["a"] * 5
        assert await scope.get("b", lambda: grouped(log, "b")) == "b"
        await scope.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await scope.get("c", lambda: grouped(log, "c"))

    asyncio.run(main())
    assert log == ["open a", "open b", "close b", "close a"]


def test_whoever_is_cancelled_over_an_opening_fails_no_one_else_who_waits_for_it() -> None:
    log: list[str] = []

    async def main() -> None:
        scope = Scope()
        openings = iter((endless(log), grouped(log)))
        first, *others = (asyncio.create_task(scope.get("a", lambda: next(openings))) for _ in range(3))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others) == ["a", "a"]
        assert first.cancelled()
        await scope.aclose()

    asyncio.run(main())
    assert log == ["taken down", "open a", "close a"]


def test_a_scope_tries_again_after_a_failure_and_after_a_discard() -> None:
    log: list[str] = []

    async def main() -> None:
        scope = Scope()
        with pytest.raises(OSError, match="no server"):
            await scope.get("a", broken)
        with pytest.raises(ZeroDivisionError):  # nothing was entered yet
            await scope.get("a", lambda: 1 / 0)  # type: ignore[arg-type, return-value]
        assert await scope.get("a", lambda: grouped(log)) == "a"
        await scope.discard("a")
        assert await scope.get("a", lambda: grouped(log)) == "a"
        await scope.aclose()

    asyncio.run(main())
    assert log == ["open a", "close a", "open a", "close a"]


@asynccontextmanager
async def ends_badly(log: list[str], name: str) -> AsyncIterator[str]:
    yield name
    log.append(f"close {name}")
    raise OSError(f"{name} does not end well")


def test_what_exiting_raises_reaches_who_closes_and_keeps_nothing_else_open() -> None:
    log: list[str] = []

    async def main() -> None:
        host = Hosted(ends_badly(log, "alone"))
        await host.open()
        with pytest.raises(OSError, match="alone does not end well"):
            await host.aclose()
        assert not host.is_open
        scope = Scope()
        for name in ("first", "second"):
            await scope.get(name, lambda name=name: ends_badly(log, name))  # type: ignore[misc]
        with pytest.raises(OSError, match="second does not end well"):
            await scope.aclose()
        await scope.aclose()

    asyncio.run(main())
    assert log == ["close alone", "close second", "close first"]


def test_who_is_cancelled_while_a_scope_closes_closes_all_of_it() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def slow(name: str) -> AsyncIterator[str]:
        yield name
        await asyncio.sleep(0)
        log.append(f"close {name}")

    async def main() -> None:
        scope = Scope()
        for name in ("first", "second", "third"):
            await scope.get(name, lambda name=name: slow(name))  # type: ignore[misc]
        closing = asyncio.ensure_future(scope.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.sleep(0)

    asyncio.run(main())
    assert sorted(log) == ["close first", "close second", "close third"]


def test_what_was_still_opening_as_its_scope_was_closed_is_closed_at_once() -> None:
    log: list[str] = []

    async def main() -> None:
        go_on = asyncio.Event()

        @asynccontextmanager
        async def slow() -> AsyncIterator[str]:
            await go_on.wait()
            yield "late"
            log.append("closed")

        scope = Scope()
        asked = asyncio.ensure_future(scope.get("a", slow))
        await asyncio.sleep(0)
        await scope.aclose()
        go_on.set()
        assert await asked == "late"
        assert log == ["closed"]

    asyncio.run(main())


def test_a_host_is_open_from_when_it_is_asked_for_until_it_has_ended() -> None:
    async def main() -> None:
        host = Hosted(broken())
        assert not host.is_open
        opening = asyncio.ensure_future(host.open())
        await asyncio.sleep(0)
        assert host.is_open
        with pytest.raises(OSError, match="no server"):
            await opening
        assert not host.is_open
        await Hosted(broken()).aclose()  # never opened

    asyncio.run(main())


def test_a_plain_value_is_made_once_for_its_key() -> None:
    scope, made = Scope(), list[int]()
    kept = [scope.keep(key, lambda: made.append(1) or made) for key in ("a", "a", "b")]  # type: ignore[func-returns-value]
    assert (len(made), kept[0] is kept[1]) == (2, True)
