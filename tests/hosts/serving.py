"""A server on a thread of its own, as it is in a process of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlenv.episodes.environment import Environment
from rlenv.hosts.http_sessions import HttpSessions
from rlenv.hosts.serve import Server, ServerLimits
from rlenv.hosts.workers import listen, serve
from tests.support.environments import BASE

DOWN = BASE.replace(
    "rewards:",
    """endpoints:
  judge: {base_url: "http://127.0.0.1:9/v1", model: secret-judge, retries: 0, timeout_s: 2}
rewards:
  judged: {kind: judge, endpoint: judge, prompt: "Is it right? {{ answer }}", weight: 1}""",
)
"""An environment whose judge answers nobody."""


@dataclass
class Served:
    """A server that runs; `url` is its address."""

    server: Server
    url: str
    port: int
    loop: asyncio.AbstractEventLoop
    stopped: asyncio.Event
    thread: threading.Thread

    def stop(self) -> None:
        """Tells it to end, and waits until it has."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stopped.set)
            self.thread.join(30)
            assert not self.thread.is_alive()

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Returns once something holds in the server's loop; the test's time limit is the only clock."""

        async def wait() -> None:
            while not holds():  # noqa: ASYNC110 - what it looks at is no event
                await asyncio.sleep(0.005)

        asyncio.run_coroutine_threadsafe(wait(), self.loop).result(30)


@contextmanager
def serving(
    *environments: Environment, limits: ServerLimits | None = None, token: str = "", port: int = 0, **more: Any
) -> Iterator[Served]:
    """A server over these environments."""
    server = Server({one.spec.name: one for one in environments}, limits or ServerLimits(drain_s=5.0), token, **more)
    bound = listen("127.0.0.1", port)
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def main() -> None:
        made["loop"], made["stopped"] = asyncio.get_running_loop(), asyncio.Event()
        app = server.application(HttpSessions(server))
        await serve(app, bound, on_ready=ready.set, stopped=made["stopped"], drain=server.drain)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    port = bound.getsockname()[1]
    served = Served(server, f"http://127.0.0.1:{port}", port, made["loop"], made["stopped"], thread)
    try:
        yield served
    finally:
        served.stop()


def raw(served: Served) -> socket.socket:
    """A connection that speaks what the test writes."""
    return socket.create_connection(("127.0.0.1", served.port), timeout=30)
