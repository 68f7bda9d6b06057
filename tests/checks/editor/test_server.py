"""The language server says its own faults and goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rlenv.checks.editor.server import Server
from tests.support.editing import SMALL


def test_a_fault_while_it_looks_is_said_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[dict[str, Any]] = []
    said = asyncio.Event()

    def send(message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            raise RuntimeError("no way to publish")
        sent.append(message)
        if message.get("method") == "window/logMessage":
            said.set()

    async def session() -> None:
        server = Server(send)
        await server.take({"id": 1, "method": "initialize", "params": {}})
        opened = {"uri": "file:///nowhere/spec.yaml", "text": SMALL}
        await server.take({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        await asyncio.wait_for(said.wait(), 60)
        asked = {"textDocument": opened, "position": {"line": 1, "character": 1}}
        await server.take({"id": 2, "method": "textDocument/hover", "params": asked})
        await server.aclose()

    with caplog.at_level(logging.ERROR, logger="rlenv.checks.editor"):
        asyncio.run(session())
    (told,) = [message["params"] for message in sent if message.get("method") == "window/logMessage"]
    assert told["type"] == 1
    assert "RuntimeError: no way to publish" in told["message"]
    assert "Traceback" in caplog.text
    assert "name" in sent[-1]["result"]["contents"]["value"]
