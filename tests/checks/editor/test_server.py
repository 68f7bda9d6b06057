"""The language server says its own faults and goes on."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.checks.editor.server import MAX_BYTES, EditorServer, Unreadable, frame, messages
from rlenv.checks.editor.validator import MAX_TEXT
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
        server = EditorServer(send)
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


def test_a_text_that_is_too_long_is_a_fault_and_nothing_of_it_is_looked_at() -> None:
    sent: list[dict[str, Any]] = []
    told = asyncio.Event()

    def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message.get("method") == "textDocument/publishDiagnostics":
            told.set()

    async def session(text: str) -> list[Any]:
        server = EditorServer(send, pause_s=0.0, full_s=0.0)
        await server.take({"id": 1, "method": "initialize", "params": {}})
        opened = {"uri": "file:///nowhere/spec.yaml", "text": text}
        await server.take({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        asked = {"textDocument": opened, "position": {"line": 0, "character": 1}}
        for number, name in enumerate(("hover", "completion", "documentSymbol")):
            await server.take({"id": number, "method": f"textDocument/{name}", "params": asked})
        await asyncio.wait_for(told.wait(), 60)
        await server.aclose()
        return [message["result"] for message in sent if "result" in message][-3:]

    assert asyncio.run(session("# x" + "\n# y" * (MAX_TEXT // 4))) == [None] * 3
    (fault,) = sent[-1]["params"]["diagnostics"]
    assert "1,000,003 characters" in fault["message"]
    assert (fault["severity"], fault["range"]["start"]) == (1, {"line": 0, "character": 0})


# Messages behind their headers, as they come out of a pipe


def read(content: bytes) -> list:
    stream = io.BytesIO(content)
    return list(messages(stream.readline, stream.read))


def test_a_message_comes_back_as_it_was_sent() -> None:
    sent: list[dict] = [{"id": 1, "text": "ä😀"}, {"text": "\ud800"}, {}]
    assert read(b"".join(map(frame, sent))) == sent


def test_other_headers_are_passed_over() -> None:
    typed = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length: 2\r\n\r\n{}"
    assert read(typed) == [{}]


def test_what_is_cut_off_ends_the_stream() -> None:
    whole = frame({"id": 1})
    assert read(whole + frame({"id": 2})[:-3]) == [{"id": 1}]
    assert read(whole + b"Content-Len") == [{"id": 1}]


def test_what_is_too_long_is_passed_over() -> None:
    (long, short) = read(b"Content-Length: %d\r\n\r\n%s" % (MAX_BYTES + 1, b"x" * (MAX_BYTES + 1)) + frame({"id": 1}))
    assert isinstance(long, Unreadable)
    assert short == {"id": 1}


def test_a_number_without_end_and_a_depth_without_end_are_told() -> None:
    deep = b"[" * 100_000
    found = read(b"Content-Length: %d\r\n\r\n%s" % (len(deep), deep) + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n")
    assert all(isinstance(one, Unreadable) for one in found)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(content: bytes) -> None:
    assert all(isinstance(one, (dict, Unreadable)) for one in read(content))
