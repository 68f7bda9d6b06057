"""`rlenv serve --workers`: processes at one address, as an operator starts and ends them."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.environments import BASE

psutil = pytest.importorskip("psutil")  # comes with the trainer
SESSIONS = 12


@contextmanager
def started(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of two workers that takes requests, with its address; nothing of it is left afterwards."""
    (folder / "spec.yaml").write_text(BASE, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "rlenv", "serve", str(folder / "spec.yaml"), "--port", "0", "--workers", "2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--drain-s", "0", "--max-sessions", "40"], env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.endswith(", 2 workers\n"), process.stderr and process.stderr.read()
            yield process, re.findall("http://[0-9.:]+", line)[0]
        finally:
            workers = psutil.Process(process.pid).children() if process.poll() is None else []
            process.kill()
            for worker in workers:
                worker.kill()


def pids(process: subprocess.Popen[str]) -> list[int]:
    return sorted(child.pid for child in psutil.Process(process.pid).children())


@contextmanager
def ending(numbers: list[int]) -> Iterator[None]:
    """Waits at its end until the processes of these numbers have ended."""
    with ExitStack() as stack:
        files = [os.pidfd_open(number) for number in numbers]
        for file in files:
            stack.callback(os.close, file)
        yield
        for file in files:
            assert select.select([file], [], [], 60)[0], "a worker goes on without its parent"


async def health(client: aiohttp.ClientSession, url: str) -> Any:
    async with client.get(f"{url}/health", headers={"Connection": "close"}) as response:
        return await response.json()


@pytest.mark.slow
def test_workers_count_together_and_one_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async def main(process: subprocess.Popen[str], url: str) -> None:
        async with aiohttp.ClientSession() as client:
            sockets = [await client.ws_connect(f"{url}/ws") for _ in range(SESSIONS)]
            for socket in sockets:
                await socket.send_json({"type": "reset", "data": {}})
                assert (await socket.receive_json(timeout=60))["type"] == "observation"
            shown = [await health(client, url) for _ in range(8)]  # of either worker
            expected = {"active_sessions": SESSIONS, "max_sessions": 40, "waiting": 0, "episodes": SESSIONS}
            assert shown == [{"status": "healthy", **expected}] * 8
            first, second = before = pids(process)
            with ending([first]):
                os.kill(first, signal.SIGKILL)
            assert process.stderr is not None
            assert "worker 0 ended with status -9; it is started again" in await asyncio.to_thread(
                process.stderr.readline
            )
            left = 0
            for socket in sockets:
                with suppress(ConnectionError):  # whose worker has ended
                    await socket.send_json({"type": "state", "data": {}})
                left += (await socket.receive(60)).type is aiohttp.WSMsgType.TEXT
            now = await health(client, url)
            assert (now["active_sessions"], now["episodes"]) == (left, SESSIONS)
            assert second in pids(process)
            assert first not in pids(process)
            assert len(pids(process)) == len(before)

    with started(tmp_path) as (process, url):
        asyncio.run(main(process, url))
        with ending(pids(process)):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path: Path, signum: signal.Signals) -> None:
    with started(tmp_path) as (process, _), ending(pids(process)):
        process.send_signal(signum)
        assert process.wait(60) == (0 if signum is signal.SIGINT else -signum)
