"""What a call of an MCP tool costs through the executor, against the SDK's own client (mark: at most 1.1 times).

    python benchmarks/mcp_calls.py [--calls N] [--rounds N]

`bare` is `mcp.Client.call_tool` on one session of the SDK with its own transport; `rlenv` is the same call of the same
server through the executor: arguments checked, a time limit, a place in the concurrency limit, the result as text.
Both have a session of their own, opened once; rounds alternate, and the ratio is the median over rounds. `at once` is
64 calls in flight on one session. The server is a small one of the SDK: in memory, on standard streams, over HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.mcpserver import MCPServer

from rlenv.calls.executor import Executor
from rlenv.concurrency.scope import Scope
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import CallsSpec
from rlenv.messages import ToolCall
from rlenv.tools._mcp.link import open_pool
from rlenv.tools._mcp.server import Connection, McpServer
from rlenv.tools.base import Tool, ToolContext
from rlenv.tools.mcp import KIND, McpSpec

AT_ONCE = 64
Call = Callable[[], Awaitable[Any]]


def small_server() -> MCPServer:
    """A server with one tool."""
    server = MCPServer("small", log_level="ERROR")

    @server.tool(structured_output=False)
    async def echo(text: str) -> str:
        """Give the text back."""
        return text

    return server


def compiled(**keys: Any) -> Tool:
    """The server's one tool."""
    (tool,) = KIND.factory("small", McpSpec(kind="mcp", **keys), CompileContext(base=Path.cwd()))
    assert isinstance(tool, Tool)
    return tool


def through_executor(tool: Tool, scope: Scope) -> Call:
    """A call as an episode makes it."""
    executor = Executor({"echo": tool}, calls=CallsSpec())
    calls = (ToolCall("echo", {"text": "hello"}),)

    async def call() -> None:
        context = ToolContext({}, {}, time.monotonic() + 60, shared=lambda: scope)
        (result,) = await executor.run(calls, context)
        assert result.text == "hello", result

    return call


def bare(client: Client) -> Call:
    """A call as the SDK's documentation makes it."""

    async def call() -> None:
        result = await client.call_tool("echo", {"text": "hello"})
        assert result.content[0].text == "hello", result  # type: ignore[union-attr]

    return call


async def one_by_one(call: Call, count: int) -> None:
    for _ in range(count):
        await call()


async def at_once(call: Call, count: int) -> None:
    for _ in range(0, count, AT_ONCE):
        await asyncio.gather(*(call() for _ in range(AT_ONCE)))


async def timed(how: Callable[[Call, int], Awaitable[None]], call: Call, count: int) -> tuple[float, float]:
    """Milliseconds of wall time and of this process's CPU time, for one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    await how(call, count)
    return 1000 * (time.perf_counter() - wall) / count, 1000 * (time.process_time() - cpu) / count


async def row(name: str, theirs: Call, ours: Call, *, calls: int, rounds: int) -> None:
    for warm in (theirs, ours):
        await one_by_one(warm, calls // 4)
    for how, work in (("one by one", one_by_one), (f"{AT_ONCE} at once", at_once)):
        bare_times: list[tuple[float, float]] = []
        our_times: list[tuple[float, float]] = []
        for number in range(rounds):
            for call in (theirs, ours) if number % 2 == 0 else (ours, theirs):
                (bare_times if call is theirs else our_times).append(await timed(work, call, calls))
        cells = []
        for bare_one, our_one in zip(zip(*bare_times, strict=True), zip(*our_times, strict=True), strict=True):
            ratio = statistics.median(mine / other for other, mine in zip(bare_one, our_one, strict=True))
            cells.append(f"{statistics.median(bare_one):9.3f} {statistics.median(our_one):9.3f} {ratio:6.2f}")
        print(f"{name:8} {how:11} {'  '.join(cells)}", flush=True)


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", str(port), stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(3000):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


async def measure(*, calls: int, rounds: int) -> None:
    command = (sys.executable, __file__, "--serve", "0")
    async with AsyncExitStack() as stack:
        scope = Scope()
        stack.push_async_callback(scope.aclose)
        tool = await asyncio.to_thread(compiled, command=command, start_timeout_s=90)

        @asynccontextmanager
        async def in_memory(server: McpServer, **_: Any) -> AsyncIterator[Connection]:
            async with Client(small_server(), cache=None) as client:
                yield Connection(client, None)

        memory_scope = Scope()
        stack.push_async_callback(memory_scope.aclose)
        server = McpServer("small", command=command, cwd=Path.cwd().absolute())
        await memory_scope.get(("mcp", server.key, 1), lambda: open_pool(server, size=1, connect=in_memory))
        client = await stack.enter_async_context(Client(small_server(), cache=None))
        await row("memory", bare(client), through_executor(tool, memory_scope), calls=calls, rounds=rounds)

        parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
        client = await stack.enter_async_context(Client(parameters))
        await row("stdio", bare(client), through_executor(replace(tool), scope), calls=calls, rounds=rounds)

        url = await stack.enter_async_context(http_server())
        remote = await asyncio.to_thread(compiled, url=url, start_timeout_s=90)
        client = await stack.enter_async_context(Client(url))
        await row("HTTP", bare(client), through_executor(remote, scope), calls=calls, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the server; 0 for standard streams")
    args = parser.parse_args()
    if args.serve is not None:
        if args.serve:
            small_server().run("streamable-http", port=args.serve)
        else:
            small_server().run()
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mcp", "httpx2", "anyio"))
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores; {versions}")
    print(f"ms a call {'':10} {'wall: bare':>9} {'rlenv':>8} {'ratio':>6}   {'CPU: bare':>9} {'rlenv':>8} {'ratio':>6}")
    asyncio.run(measure(calls=args.calls, rounds=args.rounds))


if __name__ == "__main__":
    main()
