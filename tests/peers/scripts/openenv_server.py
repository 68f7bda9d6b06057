"""Two servers of OpenEnv's own: openenv_server.py FILE. FILE gets their addresses as JSON once they take requests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class Guess(Action):
    """Guess the number."""

    number: int


class Hint(Observation):
    hint: str


class Guessing(Environment):
    """Higher or lower, with three guesses; -1 breaks it, and -2 takes the server down."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, secret: int = 0, **more: Any) -> Hint:
        self._secret, self._left = secret, 3
        return Hint(hint="Guess.")

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Hint:
        if action.number == -1:
            raise RuntimeError("out of order")
        if action.number == -2:
            os._exit(1)
        self._left -= 1
        is_right = action.number == self._secret
        hint = "Right." if is_right else "Higher." if action.number < self._secret else "Lower."
        return Hint(hint=hint, reward=1.0 if is_right else -0.25, done=is_right or not self._left)

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    """Tools, in place of an action."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        tools = FastMCP("tools")

        @tools.tool
        def divide(a: float, b: float) -> float:
            """Divides."""
            return a / b

        @tools.tool
        def shout(text: str) -> str:
            """Shouts."""
            return text.upper()

        super().__init__(tools)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Observation:
        return Observation(metadata={"seed": seed})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        raise NotImplementedError

    @property
    def state(self) -> State:
        return State()


async def main(file: Path) -> None:
    apps = {
        "guessing": create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=8),
        "tools": create_fastapi_app(Tools, CallToolAction, CallToolObservation, max_concurrent_envs=8),
    }
    servers = {name: uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning")) for name, app in apps.items()}
    running = [asyncio.create_task(one.serve()) for one in servers.values()]
    while not all(one.started for one in servers.values()):  # noqa: ASYNC110 - what it looks at is no event
        await asyncio.sleep(0.05)
    ports = {name: one.servers[0].sockets[0].getsockname()[1] for name, one in servers.items()}
    written = file.with_suffix(".part")
    written.write_text(json.dumps({name: f"http://127.0.0.1:{port}" for name, port in ports.items()}))
    written.rename(file)
    await asyncio.gather(*running)


asyncio.run(main(Path(sys.argv[1])))
