"""A server of this process that runs beside what a test calls, until the test takes it away."""

from __future__ import annotations

import threading
from asyncio import Event, new_event_loop
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from aiohttp import web

_T = TypeVar("_T")


@contextmanager
def served(server: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
    """What the server gives as it is entered, in a thread and a loop of its own."""
    given: Future[_T] = Future()
    loop = new_event_loop()
    leave = Event()

    async def serve() -> None:
        try:
            async with server as value:
                given.set_result(value)
                await leave.wait()
        except BaseException as error:
            if given.done():
                raise
            given.set_exception(error)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield given.result(30)
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def site(app: web.Application) -> AsyncIterator[str]:
    """The address of an application on a free port of this machine."""
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
