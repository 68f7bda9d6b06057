"""What `rlenv serve` holds: sessions open at once, episodes a second of one worker, the wait for a step.

    python benchmarks/serve.py [--sessions N] [--clients N] [--seconds S]
    python benchmarks/serve.py --soak MINUTES

One worker of the shipped arithmetic spec, a process of its own, asked by OpenEnv's wire: an episode is a reset, a turn
with a call and a turn with an answer. All sessions are opened and hold an episode; after that `clients` of them play
one episode after another, at first without a pause, then with one before each step, as while a policy samples. What
the server takes of a processor is told beside wall time, which other work on the machine prolongs.
Marks: 3,000 sessions, 200 episodes a second, and 50 ms for the 99th percentile of a step.

`--soak` lets clients of every kind come at a gentle rate: who play, leave amid an episode, keep a connection half open,
flood, send what is too long or malformed, do not read, or crowd in. It prints what the server holds each minute, and
ends with 1 where anything is left behind them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

import aiohttp
import orjson
import psutil

from rlenv.hosts.workers import raise_file_limit

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'
ANSWER = "<answer>5</answer>"
PAUSE_S = 0.5


@contextmanager
def served(sessions: int) -> Iterator[tuple[psutil.Process, str]]:
    """A worker's process and its address."""
    command = [sys.executable, "-m", "rlenv", "serve", "arithmetic", "--port", "0", "--max-sessions", str(sessions)]
    with subprocess.Popen([*command, "--drain-s", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield psutil.Process(process.pid), re.findall("http://[0-9.:]+", process.stdout.readline())[0]
        finally:
            process.terminate()


async def ask(socket: aiohttp.ClientWebSocketResponse, kind: str, data: dict[str, Any]) -> Any:
    """The answer's data."""
    await socket.send_str(orjson.dumps({"type": kind, "data": data}).decode())
    told = orjson.loads((await socket.receive(120)).data)
    assert told["type"] == "observation", told
    return told["data"]


async def opened(client: aiohttp.ClientSession, url: str, number: int) -> aiohttp.ClientWebSocketResponse:
    """A socket in an episode that has had one step."""
    socket = await client.ws_connect(f"{url}/ws", compress=0)
    await ask(socket, "reset", {"split": "train", "task": number % 1_000})
    await ask(socket, "step", {"message": CALL})
    return socket


async def play(socket: aiohttp.ClientWebSocketResponse, until: float, pause_s: float) -> list[list[float]]:
    """The milliseconds of each episode's steps, for the episodes that began before a time."""
    episodes = []
    while time.perf_counter() < until:
        task, waits = random.randrange(1_000), []
        await ask(socket, "reset", {"split": "train", "task": task})
        for text in (CALL, ANSWER):
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            began = time.perf_counter()
            held = await ask(socket, "step", {"message": text})
            waits.append(1_000 * (time.perf_counter() - began))
        assert held["done"], held
        assert held["reward"] is not None, held
        episodes.append(waits)
    return episodes


async def row(
    name: str, server: psutil.Process, sockets: list[aiohttp.ClientWebSocketResponse], seconds: float, pause_s: float
) -> None:
    """Prints what clients at these sockets saw, and what the server took."""
    began, cpu = time.perf_counter(), sum(server.cpu_times()[:2])
    played = [one for many in await asyncio.gather(*[play(one, began + seconds, pause_s) for one in sockets])
              for one in many]  # fmt: skip
    took, cpu = time.perf_counter() - began, sum(server.cpu_times()[:2]) - cpu
    waits = sorted(wait for one in played for wait in one)
    cells = [len(played) / took, len(played) / cpu, statistics.median(waits), waits[int(0.99 * len(waits))]]
    print(f"{name:28}" + "".join(f"{cell:14.1f}" for cell in cells), flush=True)


async def active(client: aiohttp.ClientSession, url: str) -> int:
    """How many sessions the server has."""
    async with client.get(f"{url}/health") as response:
        return int((await response.json())["active_sessions"])


async def measure(server: psutil.Process, url: str, *, sessions: int, clients: int, seconds: float) -> None:
    gc.disable()  # here, in the clients' process: it would stop 3,000 of them at once for 0.1 s, and be told as a wait
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        sockets = [await opened(client, url, 0)]
        before, began = server.memory_info().rss, time.perf_counter()
        idle = [asyncio.create_task(sockets[0].receive())]  # reads, and so answers the server's pings
        while len(sockets) < sessions:
            more = range(len(sockets), min(len(sockets) + clients, sessions))
            sockets += await asyncio.gather(*[opened(client, url, one) for one in more])
            idle += [asyncio.create_task(socket.receive()) for socket in sockets[len(idle) : sessions - clients]]
        each = (server.memory_info().rss - before) / (sessions - 1) / 1024
        took = time.perf_counter() - began
        print(f"{await active(client, url)} sessions open, each in an episode; {each:.1f} KB each; {took:.1f} s")
        print(f"{'':28}{'episodes/s':>14}{'per CPU s':>14}{'step p50 ms':>14}{'p99 ms':>14}")
        for name, pause_s in (("without a pause", 0.0), (f"{PAUSE_S:g} s a step", PAUSE_S)):
            await row(f"{clients} clients, {name}", server, sockets[-clients:], seconds, pause_s)
        print(f"{await active(client, url)} sessions open afterwards; load {os.getloadavg()[0]:.1f}")
        for task in idle:
            task.cancel()


class Soak:
    """Clients of every kind at one server."""

    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self.client, self.url, self.came = client, url, Counter[str]()

    async def plays(self) -> None:
        async with self.client.ws_connect(f"{self.url}/ws", compress=0) as socket:
            for _ in range(random.randint(1, 20)):
                await play(socket, time.perf_counter() + 0.01, 0.05)

    async def leaves(self) -> None:
        socket = await opened(self.client, self.url, random.randrange(1_000))
        socket.get_extra_info("socket").shutdown(2)
        await socket.close()

    async def half_open(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        shake = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
        shake += base64.b64encode(os.urandom(16)).decode()
        sent = random.choice(["", "GET /he", f"GET /ws HTTP/1.1\r\nHost: {host}:{port}\r\n{shake}\r\n\r\n"])
        writer.write(sent.encode())
        while await reader.read(65_536):
            pass
        writer.close()

    async def floods(self) -> None:
        async with self.client.ws_connect(f"{self.url}/ws", compress=0) as socket:
            with suppress(ConnectionError, aiohttp.ClientError):
                for _ in range(1_000):
                    await socket.send_str('{"type":"state"}')
            while not socket.closed:
                await socket.receive(60)

    async def oversize(self) -> None:
        async with self.client.ws_connect(f"{self.url}/ws", compress=0) as socket:
            with suppress(ConnectionError, aiohttp.ClientError):
                await socket.send_str('"' + "x" * 20_000_000)
            while not socket.closed:
                await socket.receive(60)

    async def malformed(self) -> None:
        async with self.client.ws_connect(f"{self.url}/ws", compress=0) as socket:
            for text in ("{", "[]", '{"type":"step"}', '{"type":"reset","data":{"task":-1}}', "[" * 5_000, '{"a":NaN}'):
                await socket.send_str(text)
                await socket.receive(60)

    async def does_not_read(self) -> None:
        socket = await opened(self.client, self.url, 0)
        with suppress(ConnectionError, aiohttp.ClientError):
            while True:
                await socket.send_str('{"type":"mcp","data":{"id":1,"method":"tools/list"}}')
                await asyncio.sleep(0.002)

    async def crowds(self) -> None:
        sockets = await asyncio.gather(*[self.client.ws_connect(f"{self.url}/ws", compress=0) for _ in range(80)])
        await asyncio.gather(*[socket.close() for socket in sockets])

    async def comes(self, kind: Callable[[], Awaitable[None]], every_s: float, until: float) -> None:
        while time.perf_counter() + (wait_s := random.expovariate(1 / every_s)) < until:
            await asyncio.sleep(wait_s)
            with suppress(AssertionError, ConnectionError, aiohttp.ClientError):  # there was no place
                await kind()
            self.came[kind.__name__] += 1


async def soak(server: psutil.Process, url: str, minutes: float) -> int:
    """1 where sessions or descriptors are left; prints what the server holds each minute."""

    async def look(minute: float) -> tuple[int, int]:
        held = server.num_fds(), await active(client, url)
        cpu = sum(server.cpu_times()[:2])
        shown = (
            f"{server.memory_info().rss / 1e6:.1f} MB, {held[0]} descriptors, {held[1]} sessions, {cpu:.1f} s of CPU"
        )
        print(f"minute {minute:4.0f}: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
        return held

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        clients, until = Soak(client, url), time.perf_counter() + 60 * minutes
        before, _ = await look(0)
        kinds = {
            clients.plays: 2.0, clients.leaves: 2.0, clients.half_open: 5.0, clients.floods: 20.0,
            clients.oversize: 20.0, clients.malformed: 5.0, clients.does_not_read: 60.0, clients.crowds: 60.0,
        }  # fmt: skip
        coming = [asyncio.create_task(clients.comes(kind, every_s, until)) for kind, every_s in kinds.items()]
        for minute in range(1, int(minutes) + 1):
            await asyncio.sleep(60)
            await look(minute)
        await asyncio.gather(*coming)
        await asyncio.sleep(1)
        after, sessions = await look(minutes)
        print(", ".join(f"{kind} {count}" for kind, count in clients.came.items()))
    return int(sessions > 0 or after > before + 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=3_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    args = parser.parse_args()
    raise_file_limit()
    random.seed(0)
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load {loads}; "
          f"aiohttp {version('aiohttp')}, orjson {version('orjson')}")  # fmt: skip
    with served(64 if args.soak else args.sessions + 8) as (server, url):
        if args.soak:
            sys.exit(asyncio.run(soak(server, url, args.soak)))
        asyncio.run(measure(server, url, sessions=args.sessions, clients=args.clients, seconds=args.seconds))


if __name__ == "__main__":
    main()
