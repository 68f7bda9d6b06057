"""The seam between tools and the executor; and the policy of a tool's calls: its own keys over those of `calls:`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from rlenv.concurrency.scope import Scope
from rlenv.errors import UsageError
from rlenv.language.functions import FailureLog
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import BreakerSpec, CacheSpec, CallsSpec, FaultsSpec, ToolSpec
from rlenv.messages import Image, ToolCall, ToolResult

__all__ = ["CallPolicy", "DependsOn", "Ends", "RowTools", "Tool", "ToolContext", "ToolFactory", "ToolOutput"]
__all__ += ["asked_again", "ends_once", "policy_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """The policy around each call of one tool; the default does nothing.

    `attempt_s` bounds one try in seconds, `rate_per_s` calls a second in this process, `shared_concurrency` calls at
    once over all processes. `cache_path` is where a cache on disk stands, None for the user's cache folder. `coerce`
    names JSON types that may come as text.
    """

    retries: int = 0
    attempt_s: float | None = None
    rate_per_s: float | None = None
    shared_concurrency: int | None = None
    cache: CacheSpec | None = None
    cache_path: Path | None = None
    breaker: BreakerSpec | None = None
    faults: FaultsSpec | None = None
    coerce: frozenset[str] = frozenset()

    @property
    def is_quiet(self) -> bool:
        """True where calls run as if there were no policy; coercion happens before a call and does not count."""
        return self.retries == 0 and all(
            value is None
            for value in (
                self.attempt_s,
                self.rate_per_s,
                self.shared_concurrency,
                self.cache,
                self.breaker,
                self.faults,
            )
        )


def policy_of(
    calls: CallsSpec, entry: ToolSpec | None = None, *, idempotent: bool, mutates: bool, cache_path: Path | None = None
) -> CallPolicy:
    """The policy of a tool: what its entry says, else what `calls` says.

    Defaults that a tool cannot keep are left out for it: retries where it is not idempotent, a cache where it also
    mutates.

    Raises:
        UsageError: the entry itself asks for what the tool cannot keep.
    """
    own = entry if entry is not None else ToolSpec.model_construct(kind="")
    if not idempotent and own.retries:
        raise UsageError(
            "calls of this tool may not be repeated",
            key="retries",
            hint="add 'idempotent: true' if that does no harm, or remove retries",
        )
    can_keep = idempotent and not mutates
    if not can_keep and own.cache is not None and own.cache.scope != "none":
        why = "its calls change state" if mutates else "calls of this tool may not be repeated"
        hint = "" if mutates else "add 'idempotent: true' if equal calls give equal results, or "
        raise UsageError(f"results cannot be kept, since {why}", key="cache", hint=f"{hint}remove cache")
    retries = own.retries if own.retries is not None else calls.retries or 0
    cache = calls.cache if own.cache is None else own.cache
    breaker = calls.breaker if own.breaker is None else own.breaker
    faults = calls.faults if own.faults is None else own.faults
    coerce = own.coerce if own.coerce is not None else calls.coerce or ()
    return CallPolicy(
        retries=retries if idempotent else 0,
        attempt_s=own.attempt_s if own.attempt_s is not None else calls.attempt_s,
        rate_per_s=own.rate_per_s if own.rate_per_s is not None else calls.rate_per_s,
        shared_concurrency=(own.shared_concurrency if own.shared_concurrency is not None else calls.shared_concurrency),
        cache=cache if cache is not None and can_keep and cache.scope != "none" else None,
        cache_path=cache_path,
        breaker=breaker if breaker is not None and breaker.failures else None,
        faults=faults if faults is not None and faults.is_on else None,
        coerce=frozenset(coerce),
    )


Mode = Literal["inline", "async", "thread"]
Ends = Callable[[ToolResult, "ToolContext"], Literal["", "ended", "truncated"]]
"""How a call of the policy's ends the episode, "" where it goes on."""


def ends_once(result: ToolResult, _: ToolContext) -> Literal["", "ended"]:
    """The end of `ends: true`, and of the tool that takes the answer: the first call that succeeds."""
    return "" if result.is_error else "ended"


def ends_with(world: str) -> Ends:
    """The end of a world: the name of a resource that has `terminated` and `truncated`."""

    def ends(_: ToolResult, context: ToolContext) -> Literal["", "ended", "truncated"]:
        held = context.resources[world]
        if held.terminated:
            return "ended"
        return "truncated" if held.truncated else ""

    return ends


def show_safely(show: Callable[[], str]) -> str:
    """What `show` writes of a world's state. Where that fails the log has why, and not the policy."""
    try:
        return show()
    except Exception as error:  # of a template, of JSON or of the world's own drawing: it has paid all the same
        not_shown.add("what shows the state of a world", error)
        return "what came of it cannot be shown"


not_shown: Final = FailureLog("rlenv.tools")
WORLD: Final = ("text", "observation", "info", "total", "rewards", "steps", "terminated", "truncated")
"""What templates read of a world."""

DependsOn = Literal["arguments", "task", "episode"]
RunCalls = Callable[[Sequence[ToolCall], "ToolContext"], Awaitable[tuple[ToolResult, ...]]]


asked_again: Final[ContextVar[str]] = ContextVar("rlenv_asked_again", default="")
"""The reason of a failure, while a call is made to find out whose it was (`rlenv.rewards.outages`): nothing that is
kept answers it, no breaker stops or counts it, and a server that dies of it takes no call of others along."""
FELLED: Final = ("crashed", "killed", "stopped", "disconnected")
"""The reasons of a call that may have felled what it asked."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The context of one call.

    `resources` are the opened resources by name. `deadline` is on the clock of `time.monotonic()`; work that can be
    interrupted stops by then. `seed` is derived from the episode's seed and is equal for equal calls. `scope()` keeps
    what lives as long as the episode (a session, a sandbox), `shared()` what lives as long as the environment; both
    are closed whatever happens. `turn` is the episode's turn, 0-based, and -1 for a call that a reward makes.
    `bounded_by` says whose time `deadline` is where the tool's own limit is later. `run_calls` runs calls of the
    environment's tools under all their policies, for a tool that calls others; None where there is no environment.
    `begun` is when the episode began, on the clock of `deadline`.
    """

    task: Mapping[str, Any]
    resources: Mapping[str, Any]
    deadline: float
    seed: int = 0
    scope: Callable[[], Scope] = Scope
    shared: Callable[[], Scope] = Scope
    turn: int = -1
    bounded_by: Literal["episode", "turn"] = "episode"
    run_calls: RunCalls | None = None
    begun: float = 0.0

    def until(self, deadline: float) -> ToolContext:
        """The same with another deadline."""
        return ToolContext(  # by position: `dataclasses.replace` takes several times as long, on every call
            self.task,
            self.resources,
            deadline,
            self.seed,
            self.scope,
            self.shared,
            self.turn,
            self.bounded_by,
            self.run_calls,
            self.begun,
        )


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The output of a tool: the text for the model and, where there is one, the value behind it for rewards.

    `details` (JSON) are kept in the trajectory and never shown to the model: the tokens that a model tool used, the
    trajectory of an agent.
    """

    text: str
    value: Any = None
    images: tuple[Image, ...] = ()
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A compiled tool, shared by all episodes of a process.

    `run(arguments, context)` takes arguments that fit `parameters` (a JSON Schema object) and returns a ToolOutput,
    or raises ToolFailed with a text for the model; any other exception is shown as a plain failure without details
    (and kept for the author). `mode` says what `run` is:
        inline: sync, bounded and quick (well under a millisecond): called on the event loop.
        async: a coroutine function; cancelled at its timeout.
        thread: sync and possibly blocking: called in the bounded thread pool, abandoned at its timeout.

    `idempotent` is true where a call may be repeated without harm; only then is it retried or its result kept.
    `may_write` is true where such a call may change what a server holds all the same, as a deletion does. `depends_on`
    says what equal results need beside equal arguments: nothing, an equal task, or the same episode; `resources` names
    those that its entry reads or changes. `identity` stands for what the tool is made of beside its entry in the spec
    (a function's source): a cache on disk forgets what was kept under another. `reaches_out` is true where a call
    leaves the environment (a service, a model): such a call is not taken again to restore what an episode left, and a
    replay answers it from its tape. `shares` says what keeps its state for several episodes ("" where nothing does), so
    that no episode alone leaves it. `about` says what stands behind the tool, as JSON, for the lock of a run: a
    server's name and version. The compiler sets `kind`, `example` and `policy` from the entry, and `entry`, the key
    under `tools`, `options`, what of the entry decides the answer to a call (see `rlenv.calls.toolsets`), and `digest`:
    what the tool is made of (`identity` too), equal wherever the files of the spec stand. `pool` names what counts its
    calls with those of other tools: limits, breaker and kept results of tools that rows declare are their entry's.
    `ends` is None for a tool that never ends an episode. Arguments that do not fit are handed to one that is not
    strict.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Mapping[str, Any], ToolContext], Any]
    mode: Mode
    timeout_s: float | None = None
    concurrency: int | None = None
    mutates: bool = False
    idempotent: bool = False
    may_write: bool = False
    depends_on: DependsOn = "episode"
    resources: frozenset[str] = frozenset()
    identity: str = ""
    entry: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""
    pool: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    reaches_out: bool = False
    shares: str = ""
    kind: str = ""
    example: Mapping[str, Any] | None = None
    policy: CallPolicy | None = None
    ends: Ends | None = None
    is_strict: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """The function object as OpenAI-compatible servers and chat templates take it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": dict(self.parameters)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTools:
    """Tools that a row of the tasks declares. `declared(task, user_turn)` gives their schemas, and `made(schemas)` the
    tools of them, which are kept for equal schemas.

    Both raise UsageError for what is no schema, and `declared` whatever the author's function raises.
    """

    declared: Callable[[Mapping[str, Any], int], Sequence[Mapping[str, Any]]]
    made: Callable[[Sequence[Mapping[str, Any]]], Sequence[Tool]]
    reads_turn: bool = False


class ToolFactory(Protocol):
    """Compiles one entry under `tools:`; most kinds give one tool, a server may give several, rows their own.

    Author mistakes that only show here (a missing function, say) raise `rlenv.errors.UsageError` with the key at
    fault, where the fault then stands.
    """

    def __call__(self, name: str, spec: Any, context: CompileContext) -> Sequence[Tool] | RowTools: ...


def common(spec: ToolSpec, *, idempotent: bool = False) -> dict[str, Any]:
    """The fields that every kind hands from its spec to its Tool; `idempotent` is the kind's default."""
    named = (*re.findall(r"\bresources\.(\w+)", repr(spec)), *getattr(spec, "inject", ()))
    return {
        "resources": frozenset((*named, getattr(spec, "resource", ""))) - {"task", "context", ""},
        "timeout_s": spec.timeout_s,
        "concurrency": spec.concurrency,
        "mutates": spec.mutates,
        "idempotent": idempotent if spec.idempotent is None else spec.idempotent,
    }
