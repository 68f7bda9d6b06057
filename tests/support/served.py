"""The workbench's routes behind aiohttp's own test client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rlenv.web.workbench import ROOTS, add_routes

__all__ = ["Asks", "served"]


class Asks:
    """Asks the routes; an answer is its status and its JSON."""

    def __init__(self, client: TestClient[web.Request, web.Application]) -> None:
        self._client = client

    async def __call__(self, method: str, path: str, body: Any = None, /, **query: str) -> tuple[int, dict[str, Any]]:
        async with self._client.request(method, path, json=body, params=query) as response:
            return response.status, await response.json()

    async def fine(self, method: str, path: str, body: Any = None, /, **query: str) -> dict[str, Any]:
        status, answer = await self(method, path, body, **query)
        assert status == 200, answer
        return answer

    async def refused(self, method: str, path: str, body: Any = None, /, **query: str) -> str:
        status, answer = await self(method, path, body, **query)
        assert status in (400, 422), answer
        return str(answer["error"])


def served(
    roots: tuple[Path, ...], play: Callable[[Asks], Awaitable[None]], **keys: tuple[web.AppKey[Any], Any]
) -> web.Application:
    """Plays with an application that serves these roots; it has ended when this returns."""
    app = web.Application()
    app[ROOTS] = roots
    for key, value in keys.values():
        app[key] = value
    add_routes(app)

    async def main() -> None:
        async with asyncio.timeout(100), TestClient(TestServer(app)) as client:
            await play(Asks(client))

    asyncio.run(main())
    return app
