"""An MCP server that misbehaves, to be put into a spec: over stdio, or over HTTP on loopback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from rlenv.testing import hostile_mcp_server
from rlenv.testing.hostile_mcp_server import HTTP_MODES, LISTING, MODES

__all__ = ["HTTP_MODES", "LISTING", "MODES", "HostileMcpServer"]


class HostileMcpServer:
    """A hostile server to put into a spec; what it does is in `rlenv.testing.hostile_mcp_server`.

    Over stdio, give its `command`; over HTTP, enter it and give its `url`:

        server = {"kind": "mcp", "command": HostileMcpServer("garbage").command}
        check_hostile("env.yaml", set={"tools.odd": server})

        with HostileMcpServer("gzip bomb") as server:
            check_hostile("env.yaml", set={"tools.odd": {"kind": "mcp", "url": server.url}})

    Args:
        mode: a name of MODES, LISTING or (over HTTP) HTTP_MODES, or `any`.
    """

    def __init__(self, mode: str = "any") -> None:
        known = {"any", *MODES, *LISTING, *HTTP_MODES}
        if mode not in known:
            raise ValueError(f"mode: found '{mode}'; expected one of {', '.join(sorted(known))}")
        self.mode = mode
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def command(self) -> list[str]:
        """The server's command line over stdio."""
        return [sys.executable, "-B", str(Path(hostile_mcp_server.__file__).resolve()), self.mode]

    @property
    def url(self) -> str:
        """The server's address over HTTP."""
        assert self._port, "use `with HostileMcpServer(...) as server`"
        return f"http://127.0.0.1:{self._port}/mcp"

    def __enter__(self) -> HostileMcpServer:
        command = [*self.command, "--http", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._port = 0
