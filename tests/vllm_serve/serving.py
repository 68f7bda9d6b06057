"""`vllm serve` on loopback, as its own processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.waiting import wait_until

__all__ = ["MODEL", "WINDOW", "Server", "free_port"]

MODEL = "real"
"""The model's name at the server."""
WINDOW = 1024
"""Tokens of a prompt and its answer."""
_START_S = 600.0
_RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} ([\d.e+]+)$", re.MULTILINE)


def free_port() -> int:
    """A port that nothing listens on at the moment."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Server:
    """A model folder behind vLLM's OpenAI-compatible server; enter it to start it.

    Args:
        model: the folder.
        log: what it writes goes there.
        more: further arguments of the server.
    """

    def __init__(self, model: Path, log: Path, *, more: tuple[str, ...] = ()) -> None:
        self.model = model
        self.log = log
        self.port = free_port()
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The address up to and with `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Starts it on its port, and returns once it is healthy."""
        arguments = ["--model", str(self.model), "--served-model-name", MODEL, "--dtype", "float32"]
        arguments += ["--host", "127.0.0.1", "--port", str(self.port), "--max-model-len", str(WINDOW)]
        arguments += ["--max-num-seqs", "16", "--enforce-eager", "--generation-config", "vllm"]
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", *self._more]
        own = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        }
        own |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its engine is a process of its own, and ends with it
            )
        wait_until(self.is_healthy, what=f"the server is healthy; see {self.log}", seconds=_START_S)

    def is_healthy(self) -> bool:
        """Whether it answers; fails where its process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self, *, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends its processes, and returns once they are gone; may be called twice."""
        process, self._process = self._process, None
        if process is None:
            return
        group = process.pid
        for sent in (how, signal.SIGKILL):
            try:
                os.killpg(group, sent)
                process.wait(30)
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        wait_until(lambda: not _is_there(group), what="the server's processes are gone", seconds=60)

    def kill(self) -> None:
        """Ends it as a machine does that fails: at once, in the middle of whatever it writes."""
        self.stop(how=signal.SIGKILL)

    def in_flight(self) -> int:
        """How many requests it is working on, those that wait included."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            found = _RUNNING.findall(answer.read().decode())
        assert found, "the server's metrics do not say how many requests run"
        return int(sum(float(one) for one in found))

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """The status and the answer of a request that rlenv has no part in; `path` such as `/v1/completions`."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps({"model": MODEL, **body}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
