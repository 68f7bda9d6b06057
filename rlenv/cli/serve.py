"""`rlenv serve`: environments for clients elsewhere. `rlenv init --export`: a spec as the folder that a host wants."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rlenv.cli.options import Options, WithSet, argument, option
from rlenv.cli.terminal import write
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError

_NEW = 10_000
"""So many new objects are looked through at once."""


def token_in(variable: str | None) -> str:
    """The token in an environment variable, "" where none is named; raises UsageError for one that is short."""
    token = "" if variable is None else os.environ.get(variable, "")
    if variable is not None and len(token) < 16:
        raise UsageError(f"--token-env {variable}: found {len(token)} characters; expected 16 or more")
    return token


@dataclass
class ServeCommand(WithSet):
    """`rlenv serve`."""

    specs: list[str] = argument(
        "YAML files, or names of shipped environments; the first stands at /, each at /env/NAME",
        default=[],
        metavar="SPEC",
        nargs="+",
    )
    host: str = option("127.0.0.1 by default; another needs a token", default="127.0.0.1")
    port: int = option("8000 by default; 0 takes a free one", default=8000, least=0)
    token_env: str | None = option("the environment variable that holds the token of clients", metavar="NAME")
    no_token: bool = option("let whoever reaches the server play; for a container behind a proxy")
    workers: int = option("processes at the same address, one for each core", default=1, least=1)
    max_sessions: int = option("sessions open at once, over all workers", default=1_024, least=1)
    queue_s: float = option("a client waits so long for a free session", default=0.0, least=0, metavar="SECONDS")
    idle_s: float = option("a session without a message is closed", default=3_600.0, above=0, metavar="SECONDS")
    drain_s: float = option(
        "running episodes may go on so long once the server is told to end", default=30.0, least=0, metavar="SECONDS"
    )
    max_message_mb: float = option("the longest message of a client", default=16.0, above=0, metavar="MB")

    def execute(self) -> int:
        """Serves until SIGINT or SIGTERM comes; exit code 0 then, 2 where it cannot start."""
        from rlenv.hosts import workers
        from rlenv.hosts.http import is_local
        from rlenv.hosts.http_sessions import HttpSessions
        from rlenv.hosts.serve import UP, Board, Server, ServerLimits

        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
        token = token_in(self.token_env)
        if not token and not self.no_token and not is_local(self.host):
            hint = "give --token-env NAME, or --no-token where a proxy asks for one"
            raise UsageError(f"--host {self.host}: whoever reaches it could play without a token", hint=hint)
        workers.raise_file_limit()
        board = workers.board_of_worker()
        bound = workers.listen(self.host, self.port, is_shared=self.workers > 1)
        shown, port = workers.address_of(bound), bound.getsockname()[1]
        if self.workers > 1 and board is None:
            names = ", ".join(self._environments())  # faults are told once, before anything starts
            with bound:
                command = [sys.executable, "-m", "rlenv", "serve", *sys.argv[2:], "--port", str(port)]
                text = f"{names} at {shown}, {self.workers} workers\n"
                return workers.supervise(command, self.workers, drain_s=self.drain_s, on_ready=lambda: write(text))
        limits = ServerLimits(
            sessions=max(1, self.max_sessions // self.workers),
            queue_s=self.queue_s,
            idle_s=self.idle_s,
            drain_s=self.drain_s,
            message_bytes=int(self.max_message_mb * 1e6),
        )
        server = Server(
            self._environments(), limits, token, board=board or Board(), is_open=self.no_token and not token
        )

        def ready() -> None:
            server.board.add(UP)
            if board is None:
                write(f"{', '.join(server.environments)} at {shown}, {limits.sessions} sessions\n")

        # What is loaded stays. A full collection looks at every session, for 0.1 s with thousands of them.
        gc.freeze()
        gc.set_threshold(_NEW, 20, 100)
        app = server.application(HttpSessions(server))
        asyncio.run(workers.serve(app, bound, on_ready=ready, drain=server.drain, is_worker=server.board.is_shared))
        return 0

    def _environments(self) -> dict[str, Environment]:
        found: dict[str, Environment] = {}
        for spec in self.specs:
            environment = load(spec, set=self.overrides or None)
            if environment.spec.name in found:
                raise UsageError(f"two specs are called '{environment.spec.name}'", hint="rename one")
            found[environment.spec.name] = environment
        return found


@dataclass
class HostExportCommand(Options):
    """`rlenv init --export`."""

    host: str = argument("the host: openenv, nemo-gym or verifiers", choices=("openenv", "nemo-gym", "verifiers"))
    spec: str = argument("a YAML file, or the name of a shipped environment")
    folder: Path = argument("the folder to make", writes=True)

    def execute(self) -> int:
        """Writes the folder; never overwrites a file."""
        from rlenv.hosts.export import FORMS

        files = FORMS[self.host](load(self.spec))
        if taken := [name for name in files if (self.folder / name).exists()]:
            raise UsageError(f"{self.folder / taken[0]} exists already", hint="choose another folder")
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        write(f"wrote {', '.join(str(self.folder / name) for name in files)}\n")
        return 0
