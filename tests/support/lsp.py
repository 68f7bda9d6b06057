"""A client of the language server: a real process that is spoken to as editors do."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlenv.checks.editor.server import frame, messages

__all__ = ["Client", "client"]

_LIMIT_S = 60.0


class Client:
    """Sends requests and notifications; waits for what it is asked to wait for, a minute at most."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._number = 0
        self._heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self._told: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for message in messages(self.process.stdout.readline, self.process.stdout.read):
            assert isinstance(message, dict)
            self._heard.put(message)

    def raw(self, content: bytes) -> None:
        """Bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def notify(self, method: str, **params: Any) -> None:
        self.raw(frame({"jsonrpc": "2.0", "method": method, "params": params}))

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole answer, a result or an error."""
        self._number += 1
        self.raw(frame({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}))
        return self.wait(lambda message: message.get("id") == self._number and "method" not in message)

    def wait(self, fits: Any) -> dict[str, Any]:
        """The next message that fits; others are kept for later."""
        for index, message in enumerate(self._told):
            if fits(message):
                return self._told.pop(index)
        while True:
            message = self._heard.get(timeout=_LIMIT_S)
            if fits(message):
                return message
            self._told.append(message)

    def diagnostics(self, uri: str, count: int) -> list[dict[str, Any]]:
        """The next diagnostics of a document that are so many."""

        def fits(message: dict[str, Any]) -> bool:
            params = message.get("params", {})
            return params.get("uri") == uri and len(params["diagnostics"]) == count

        found: list[dict[str, Any]] = self.wait(fits)["params"]["diagnostics"]
        return found

    def open(self, path: Path, text: str) -> str:
        """Opens a text that stands at `path`, and gives its address."""
        uri = path.as_uri()
        self.notify("textDocument/didOpen", textDocument={"uri": uri, "languageId": "yaml", "version": 1, "text": text})
        return uri

    def end(self) -> int:
        """Ends the session as the protocol says; the exit code."""
        assert self.ask("shutdown")["result"] is None
        self.notify("exit")
        return self.process.wait(timeout=_LIMIT_S)


@contextmanager
def client(folder: Path, *options: str, starts: bool = True) -> Iterator[Client]:
    """A server in a folder, initialised unless told not to."""
    with subprocess.Popen(
        [sys.executable, "-m", "rlenv", "editor", "lsp", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
    ) as process:
        try:
            one = Client(process)
            if starts:
                answer = one.ask("initialize", processId=None, rootUri=None, capabilities={})
                assert json.dumps(answer["result"]["capabilities"]["textDocumentSync"])
                one.notify("initialized")
            yield one
        finally:
            process.kill()
            process.wait()
