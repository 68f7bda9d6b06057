"""An MCP server that does what it is told to, by the book or not: `python bad.py [LISTING]`, and `how` in each call."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

waiting: dict[str, Any] = {}
LISTING = sys.argv[1] if len(sys.argv) > 1 else ""
PLAIN: dict[str, Any] = {"type": "object", "properties": {"how": {"type": "string"}}}


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def send(message: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def tools() -> list[dict[str, Any]]:
    tool: dict[str, Any] = {"name": "t", "description": "A tool.", "inputSchema": PLAIN}
    how = {"type": "string"}
    if LISTING.startswith("ref:"):
        how = {"$ref": LISTING[4:]}
    elif LISTING.startswith("pattern:"):
        how = {"type": "string", "pattern": LISTING[8:]}
    tool["inputSchema"] = {"type": "object", "properties": {"how": how}}
    if LISTING == "doubled":
        doubled = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(28)}
        tool["inputSchema"] |= {"properties": {"how": {"$ref": "#/$defs/a0"}}, "$defs": {**doubled, "a28": {}}}
    elif LISTING == "output":
        tool["outputSchema"] = {"type": "object", "properties": {"y": {"type": "string", "pattern": "^(a+)+$"}}}
    elif LISTING == "described":
        tool["description"] = "A\x1b]52;c;evil\x07 \u202etool" + "x" * 50_000
        tool["inputSchema"] = {"type": "object", "properties": {"how": {"type": "string", "description": "a\x00b"}}}
    elif LISTING == "many":
        return [{**tool, "name": f"t{n}"} for n in range(2_000)]
    return [tool]


def content(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"content": list(parts), **more}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def answer(number: Any, how: str) -> None:
    head = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[' % json.dumps(number).encode()
    word, _, rest = how.partition(" ")
    if word == "parts":
        write(head + b'{"type":"text","text":"a"},' * 500_000 + b'{"type":"text","text":"z"}]}}\n')
    elif word == "objects":
        write(head + b'],"structuredContent":{"x":[' + b"{}," * 2_500_000 + b"1]}}}\n")
    elif word == "deep":
        write(head + b'],"structuredContent":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}}\n")
    elif word == "digits":
        write(head + b'],"structuredContent":{"x":' + b"9" * 1_000_000 + b"}}}\n")
    elif word == "long":
        write(head + b'{"type":"text","text":"' + b"a" * 40_000_000 + b'"}]}}\n')
    elif word == "large":
        write(head + b'{"type":"text","text":"' + b"a" * 3_000_000 + b'"}]}}\n')
    elif word == "surrogate":
        write(head + b'{"type":"text","text":"a\\ud800b"}]}}\n')
    elif word == "error":
        send({"id": number, "error": {"code": int(rest), "message": "no"}})
    elif word == "closed":
        send({"id": number, "error": {"code": -32000, "message": "Connection closed"}})
    elif word == "dumb":
        os.close(1)
        signal.pause()
    elif word == "exit":
        os._exit(3)
    elif word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif word == "images":
        send({"id": number, "result": content(*[{"type": "image", "data": "QUJD", "mimeType": "image/png"}] * 40)})
    elif word == "mime":
        send({"id": number, "result": content({"type": "image", "data": "QUJD", "mimeType": "image/png\r\nX: y"})})
    elif word == "many":
        send({"id": number, "result": content(*[text("a")] * 300)})
    elif word == "structured":
        send({"id": number, "result": content(text("x"), structuredContent={"y": "a" * 40 + "!"})})
    elif word == "notes":
        send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        write(
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}\n' * 3_000
        )
        write(b"{no message\n" * 500)
        for _ in range(100):
            send({"method": "notifications/tools/list_changed"})
        send({"id": number, "result": content(text("done"))})
    elif word == "daemon":
        if os.fork() == 0:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                for stream in range(3):
                    os.close(stream)
                signal.pause()
            send({"id": number, "result": content(text(str(pid)))})
            os._exit(0)
    elif word == "deaf":
        signal.pause()
    elif word in ("waits", "forges"):
        waiting[word] = number
        if len(waiting) == 2:
            for guess in range(200):
                send({"id": guess, "result": content(text("forged"))})
                send({"id": str(guess), "result": content(text("forged"))})
            for said in ("its own", "twice"):
                send({"id": waiting["forges"], "result": content(text(said))})
            send({"id": waiting["waits"], "result": content(text("its own"))})
    elif word == "half":
        write(head)
        send({"id": number, "result": content(text("its own"))})
    elif word == "later":
        send({"id": number, "result": content(text("its own"))})
        write(head.replace(b"rlenv", b"other"))
    elif word == "torn":
        write(head + b"something else" + b'{"type":"text","text":"its own"}]}}\n')
    else:
        send({"id": number, "result": content(text("ok"))})


for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "bad", "version": "1"}}
        send({"id": number, "result": {"protocolVersion": version, **about}})
    elif method == "tools/list":
        send({"id": number, "result": {"tools": tools()}})
    elif method == "tools/call":
        answer(number, message["params"].get("arguments", {}).get("how", ""))
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "no"}})
