"""A server of models beside what has an event loop of its own, such as a command."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from rlenv.testing.endpoint import FakeEndpoint


@contextlib.contextmanager
def running(server: FakeEndpoint) -> Iterator[FakeEndpoint]:
    """The server, beside the command."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
