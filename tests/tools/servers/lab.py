# ruff: noqa: ASYNC220, ASYNC240, ASYNC251  (it misbehaves on purpose)
"""An MCP server that does whatever a test asks of it.

python lab.py [--port N [--sse]] [--delay SECONDS] [--refuse] [--noise] [--changed] [--marks FILE]
"""

from __future__ import annotations

import argparse
import base64
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

RAW = os.dup(1)  # the SDK hides the standard output from the tools that run in a server
PIXEL = base64.b64encode(b"\x89PNG a pixel").decode()

server = MCPServer("lab", version="1.2")
counted = waiting = 0
met: list[anyio.Event] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def echo(text: str) -> str:
    """Give the text back."""
    return text


@server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=False))
def count() -> int:
    """Count the calls of this process."""
    global counted
    counted += 1
    return counted


@server.tool(structured_output=False)
def mixed() -> CallToolResult:
    """Give one part of every kind."""
    return CallToolResult(
        content=[
            TextContent(text="first"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            EmbeddedResource(resource=TextResourceContents(uri="lab://note", text="a note")),
            EmbeddedResource(resource=BlobResourceContents(uri="lab://shot", mime_type="image/jpeg", blob=PIXEL)),
            EmbeddedResource(resource=BlobResourceContents(uri="lab://pack", mime_type="application/zip", blob="UEs=")),
            ResourceLink(name="report", uri="lab://report", description="the long one"),
            AudioContent(data="AAAA", mime_type="audio/wav"),
            TextContent(text="last"),
        ],
        structured_content={"parts": 8},
    )


@server.tool(structured_output=False)
def picture() -> CallToolResult:
    """Give an image and nothing else."""
    return CallToolResult(content=[ImageContent(data=PIXEL, mime_type="image/png")])


@server.tool(structured_output=False)
def nothing() -> CallToolResult:
    """Give nothing."""
    return CallToolResult(content=[])


@server.tool(structured_output=False)
def refuse(why: str) -> CallToolResult:
    """Declare a failure."""
    return CallToolResult(content=[TextContent(text=why)], is_error=True)


@server.tool(structured_output=False)
async def wait(seconds: float) -> str:
    """Wait, and answer others meanwhile."""
    global waiting
    waiting += 1
    await anyio.sleep(seconds)
    return "waited"


@server.tool(structured_output=False)
async def meet(count: int) -> str:
    """Wait until as many calls of this tool and of wait have come."""
    global waiting
    waiting += 1
    if not met:
        met.append(anyio.Event())
    if waiting >= count:
        met[0].set()
    await met[0].wait()
    return "met"


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def waits() -> str:
    """Say how many calls of wait and meet have come."""
    return str(waiting)


@server.tool(structured_output=False)
async def freeze() -> str:
    """Stop answering anybody, for ever."""
    time.sleep(3600)
    return "thawed"


@server.tool(structured_output=False)
async def die(code: int = 3, mark: str = "") -> str:
    """End the process; with a mark, only the first time."""
    if mark and Path(mark).exists():
        return "survived"
    if mark:
        Path(mark).touch()
    sys.stderr.write("it was too much\n")
    sys.stderr.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


@server.tool(structured_output=False)
async def die_with_child() -> str:
    """End the process, but leave a child that holds the pipes."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os._exit(0)


@server.tool(structured_output=False)
async def progress(steps: int, context: Context) -> str:
    """Report progress that nobody asked for."""
    for step in range(steps):
        await context.report_progress(step, steps)
        line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":%d}}\n'
        os.write(RAW, line % step)
    return "done"


@server.tool(structured_output=False)
async def change() -> str:
    """Say that the tools have changed."""
    os.write(RAW, b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n')
    return "said"


@server.tool(structured_output=False)
async def ask(context: Context) -> str:
    """Ask the client for a person's answer, its roots and its model."""
    os.write(RAW, b'{"jsonrpc":"2.0","id":"r1","method":"roots/list"}\n')
    os.write(RAW, b'{"jsonrpc":"2.0","id":"r2","method":"sampling/createMessage","params":{}}\n')
    os.write(RAW, b'{"jsonrpc":"2.0","id":"r3","method":"elicitation/create","params":{}}\n')
    return "asked"


@server.tool(structured_output=False)
async def noise(lines: int) -> str:
    """Write what is no message on the standard output."""
    for _ in range(lines):
        os.write(RAW, b"\xff\xfe not a message {\n[1]\n")
    return "was loud"


@server.tool(structured_output=False)
def large(size: int) -> str:
    """Give a text of that many characters."""
    return "x" * size


@server.tool(structured_output=False)
def environment() -> str:
    """Show the process's environment."""
    return "\n".join(f"{key}={value}" for key, value in sorted(os.environ.items()))


@server.tool(structured_output=False)
def place() -> str:
    """Show the process's folder and its id."""
    return f"{os.getcwd()} {os.getpid()}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--sse", action="store_true")
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--stubborn", action="store_true", help="ignores the end of its input and SIGTERM")
    parser.add_argument("--marks", help="a file that gets one line at each start")
    args = parser.parse_args()
    if args.marks:
        with Path(args.marks).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if args.noise:
        os.write(RAW, b"Welcome to the lab!\n\n{\n")
    if args.refuse:
        sys.exit("the lab is closed today")
    time.sleep(args.delay)
    if args.changed:
        server.remove_tool("count")
        server.remove_tool("add")

        @server.tool(annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=True))
        def add(a: int, b: int, c: int) -> int:
            """Add two whole numbers."""
            return a + b + c

        @server.tool(structured_output=False)
        def fresh() -> str:
            """Be new."""
            return "new"

    if args.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options: dict[str, Any] = {"host": "127.0.0.1", "port": args.port}
    if args.port and args.sse:
        server.run("sse", **options)
    elif args.port:
        server.run("streamable-http", **options)
    else:
        server.run()
    if args.stubborn:
        time.sleep(3600)


if __name__ == "__main__":
    main()
