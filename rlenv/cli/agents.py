"""`rlenv serve --mcp` and `rlenv serve --gateway`: episodes for agents that are not rlenv's own."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlenv.cli.options import WithOut, WithSpec, given, option
from rlenv.cli.serve import token_in
from rlenv.cli.terminal import say, write, write_error
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.language.spec import SamplingSpec

if TYPE_CHECKING:
    from aiohttp import web

    from rlenv.runs.folder import KeptRun

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

    def keeping(self, stack: ExitStack, environment: Any, *, policy: str, model: str = "") -> KeptRun | None:
        """The run in the folder of `-o`; None where none is named."""
        from rlenv.runs.locks.lock import lock_of
        from rlenv.runs.stage import Stage

        stage = Stage(kind="eval", say=say, set=self.overrides, **given(self, "out", "overwrite"))
        facts = {"kind": policy, **({"model": model} if model else {})}
        lock = lock_of(environment, policy=facts, say=say) if self.out else None
        return stack.enter_context(stage.kept(environment, lock=lock, policy=policy, model=model))

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
        token = self.token()
        with ExitStack() as stack:
            kept = self.keeping(stack, environment, policy="mcp")
            options: dict[str, Any] = {"most": self.max_sessions, "idle_s": self.idle_s}
            if kept is not None:
                options["keep"] = lambda held, trajectory: kept.append(trajectory, Facts())
            if self.port is None:
                return asyncio.run(self._lines(environment, options))
            app = application(environment, host=self.host, token=token, **options)
            self.serve(app, self.port, lambda root: f"{environment.id} for MCP at {root}/mcp; POST {root}/episodes")
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
        from rlenv.hosts.gateway import Gateway

        environment = load(self.spec, set=self.overrides or None)
        # Whoever runs the agent is asked for a token in any case: the agent is on this machine too.
        token, is_made = (self.token(), False) if self.token_env else (self.token() or secrets.token_urlsafe(24), True)
        key = os.environ.get(self.api_key_env, "") if self.api_key_env else ""
        endpoint = Endpoint(
            name="",
            base_url=self.base_url.rstrip("/"),
            model=self.model,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout_s=self.request_timeout,
            sampling=SamplingSpec(**given(self, "temperature", "top_p", "max_tokens")),
        )
        with ExitStack() as stack:
            kept = self.keeping(stack, environment, policy="gateway", model=self.model)
            options: dict[str, Any] = {"most": self.max_sessions, "idle_s": self.idle_s, "kept": kept}
            options |= {"most_requests": self.max_requests, "wants_ids": not self.no_ids}
            gateway = Gateway(environment, Client(endpoint), host=self.host, token=token, **options)
            told = f"; Authorization: Bearer {token}" if is_made else ""
            shown = f"{environment.id} behind {self.model} at"
            self.serve(gateway.application(), self.port, lambda root: f"{shown} {root}; POST {root}/episodes{told}")
        return 0
