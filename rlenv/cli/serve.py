"""`rlenv serve`: environments for clients elsewhere; `--mcp` and `--gateway` for agents that are not rlenv's own."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlenv.cli.options import WithOut, WithSet, WithSpec, argument, given, option
from rlenv.cli.terminal import say, write, write_error
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.language.spec import SamplingSpec

if TYPE_CHECKING:
    from aiohttp import web

    from rlenv.runs.folder import KeptRun

_NEW = 10_000
"""The number of new objects that the garbage collector looks through at once."""


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
            names = ", ".join(self._load_environments())  # faults are told once, before anything starts
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
        is_open = self.no_token and not token
        server = Server(self._load_environments(), limits, token, board=board or Board(), is_open=is_open)

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

    def _load_environments(self) -> dict[str, Environment]:
        found: dict[str, Environment] = {}
        for spec in self.specs:
            environment = load(spec, set=self.overrides or None)
            if environment.spec.name in found:
                raise UsageError(f"two specs are called '{environment.spec.name}'", hint="rename one")
            found[environment.spec.name] = environment
        return found


_GRACE_S = 10.0


@dataclass
class _Served(WithSpec, WithOut):
    """A server that holds episodes and keeps them."""

    host: str = option("127.0.0.1 by default; another needs --token-env", default="127.0.0.1")
    token_env: str | None = option("the environment variable that holds the driver's token", metavar="NAME")
    max_sessions: int = option("episodes open at once", default=1_000, least=1)
    idle_s: float = option(
        "an episode that nobody asks for so long is ended", default=900.0, above=0, metavar="SECONDS"
    )

    def token(self) -> str:
        """The driver's token, "" where none is named; raises UsageError where others reach the server then."""
        from rlenv.hosts.http import is_local

        if self.token_env is None and not is_local(self.host):
            raise UsageError(f"--host {self.host}: others reach it too", hint="name a token by --token-env NAME")
        return token_in(self.token_env)

    def driver_token(self) -> tuple[str, str]:
        """The driver's token, and how it is told where none was named: one is asked for in any case, since an agent on
        this machine could open the same task again, and try answers until one is paid."""
        token = self.token() or secrets.token_urlsafe(24)
        return token, "" if self.token_env else f"; Authorization: Bearer {token}"

    def keeping(self, stack: ExitStack, environment: Any, *, policy: str, model: str = "") -> KeptRun | None:
        """The run in the folder of `-o`; None where none is named."""
        from rlenv.runs.locks.lock import lock_of
        from rlenv.runs.stage import Stage

        stage = Stage(kind="eval", say=say, set=self.overrides, **given(self, "out", "overwrite"))
        facts = {"kind": policy, **({"model": model} if model else {})}
        lock = lock_of(environment, policy=facts, say=say) if self.out else None
        return stack.enter_context(stage.keep_run(environment, lock=lock, policy=policy, model=model))

    def serve(self, app: web.Application, port: int, shown: Callable[[str], str]) -> None:
        """Serves until SIGINT or SIGTERM comes; raises UsageError where the address cannot be listened at."""
        from rlenv.hosts import workers

        def ready() -> None:
            write(shown(workers.address_of(bound)) + "\n")
            sys.stdout.flush()

        workers.raise_file_limit()
        bound = workers.listen(self.host, port)
        asyncio.run(workers.serve(app, bound, on_ready=ready, grace_s=_GRACE_S))


@dataclass
class McpCommand(_Served):
    """`rlenv serve --mcp`."""

    port: int | None = option("serve HTTP there, 0 takes a free one; standard input and output otherwise", least=0)
    task: int = option("without --port: the row", default=0)
    split: str | None = option("without --port: the split; the first by default")
    seed: int | None = option("without --port: the seed of the episode")

    def execute(self) -> int:
        """Serves until the client or a signal ends it; exit code 0 then, 2 where it cannot start."""
        from rlenv.hosts.mcp_server import application, check
        from rlenv.runs.schema import Facts

        environment = load(self.spec, set=self.overrides or None)
        check(environment)
        token, told = self.driver_token()
        with ExitStack() as stack:
            kept = self.keeping(stack, environment, policy="mcp")
            options: dict[str, Any] = {"most": self.max_sessions, "idle_s": self.idle_s}
            if kept is not None:
                options["keep"] = lambda held, trajectory: kept.append(trajectory, Facts())
            if self.port is None:
                return asyncio.run(self._lines(environment, options))
            app = application(environment, host=self.host, token=token, **options)
            shown = f"{environment.id} for MCP at"
            self.serve(app, self.port, lambda root: f"{shown} {root}/mcp; POST {root}/episodes{told}")
        return 0

    async def _lines(self, environment: Any, options: dict[str, Any]) -> int:
        """One episode for the process that has started this one; its end is said on standard error."""
        import json

        from rlenv._base.bounded import sendable
        from rlenv.cli.servers import Input
        from rlenv.hosts.desk import Desk
        from rlenv.hosts.http import MOST_BYTES
        from rlenv.hosts.mcp_server import serve_lines
        from rlenv.hosts.workers import stop_by_signal

        # Nothing but messages may reach the client: what is printed goes to standard error.
        out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with out:
            async with environment, Desk(environment, **options | {"idle_s": float("inf")}) as desk:
                held = await desk.start(**given(self, "task", "split", "seed"))
                stop_by_signal(stopped := asyncio.Event())
                source = Input(sys.stdin.fileno())
                await serve_lines(desk, held, lambda: source.readline(MOST_BYTES), out, stopped=stopped)
        assert held.trajectory is not None
        write_error(json.dumps(sendable(held.trajectory.outcome())) + "\n")
        return 0


@dataclass
class GatewayCommand(_Served):
    """`rlenv serve --gateway`."""

    base_url: str = option("the model's server, up to and with /v1", required=True, metavar="URL")
    model: str = option("the model there", required=True)
    api_key_env: str | None = option("the environment variable that holds its key", metavar="NAME")
    port: int = option("8001 by default; 0 takes a free one", default=8001, least=0)
    temperature: float | None = option("what is sampled with, whatever the agent asks for")
    top_p: float | None = option("as --temperature")
    max_tokens: int | None = option("the most tokens of an answer, whatever the agent asks for", least=1)
    max_requests: int = option("of one episode", default=500, least=1)
    request_timeout: float = option("of one request to the model", default=600.0, above=0, metavar="SECONDS")
    no_ids: bool = option("ask for no token ids and log-probabilities; there are no training rows then")

    def execute(self) -> int:
        """Serves until SIGINT or SIGTERM comes; exit code 0 then, 2 where it cannot start."""
        from rlenv.endpoints import Client, Endpoint
        from rlenv.hosts.gateway import MOST_AT_ONCE, Gateway

        environment = load(self.spec, set=self.overrides or None)
        token, told = self.driver_token()
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        endpoint = Endpoint(
            name="",
            base_url=self.base_url.rstrip("/"),
            model=self.model,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout_s=self.request_timeout,
            # Agents' own limits of time would count the wait for a place.
            concurrency=self.max_sessions * MOST_AT_ONCE,
            sampling=SamplingSpec(**given(self, "temperature", "top_p", "max_tokens")),
        )
        with ExitStack() as stack:
            kept = self.keeping(stack, environment, policy="gateway", model=self.model)
            options: dict[str, Any] = {"most": self.max_sessions, "idle_s": self.idle_s, "kept": kept}
            options |= {"most_requests": self.max_requests, "wants_ids": not self.no_ids}
            gateway = Gateway(environment, Client(endpoint), host=self.host, token=token, **options)
            shown = f"{environment.id} behind {self.model} at"
            self.serve(gateway.application(), self.port, lambda root: f"{shown} {root}; POST {root}/episodes{told}")
        return 0
