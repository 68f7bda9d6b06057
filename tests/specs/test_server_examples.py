"""Examples whose tools ask something outside the process: the oracle earns the maximum on every task."""

from __future__ import annotations

import importlib.util
import threading
from asyncio import Event, new_event_loop
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import web

from rlenv.episodes.environment import load


@contextmanager
def serving(file: Path) -> Iterator[str]:
    """The application of an example's server.py on a free port of this machine; gives its address."""
    spec = importlib.util.spec_from_file_location("example_server", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    address: Future[str] = Future()
    loop = new_event_loop()
    leave = Event()

    async def serve() -> None:
        runner = web.AppRunner(module.application(), shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await leave.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.result(30)
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join()
        loop.close()


def test_the_http_example(root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    pytest.importorskip("jmespath")
    with serving(root / "examples" / "http" / "server.py") as address:
        environment = load(root / "examples" / "http" / "env.yaml", set={"vars.server": address})
        assert_all_earn_maximum(environment, play_oracle(environment, "train"))


def test_the_command_example(root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    environment = load(root / "examples" / "command" / "env.yaml")
    assert_all_earn_maximum(environment, play_oracle(environment, "train"))


@pytest.mark.slow
def test_the_mcp_example(root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    pytest.importorskip("mcp")
    # A server takes a second to start, and several where the machine is busy.
    environment = load(root / "examples" / "mcp_clock" / "env.yaml", set={"tools.clock.timeout_s": 100})
    assert_all_earn_maximum(environment, play_oracle(environment, "train"))


def test_the_code_example(root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable) -> None:
    pytest.importorskip("pydantic_monty")
    environment = load(root / "examples" / "code" / "env.yaml")
    assert_all_earn_maximum(environment, play_oracle(environment, "train"))


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["humaneval", "mbpp", "repositories"])
def test_the_examples_of_hidden_tests(
    name: str, root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    environment = load(root / "examples" / name / "env.yaml")
    assert_all_earn_maximum(environment, play_oracle(environment, "test"))
