"""Executors that change what a policy's calls give, and nothing that a reward's calls give."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

from rlenv._base.reasons import whose
from rlenv.calls.executor import Executor
from rlenv.calls.injection import Injector, injected
from rlenv.episodes.environment import Environment
from rlenv.episodes.retaken import left_out
from rlenv.language.spec import FaultsSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.tools.base import ToolContext

__all__ = ["Faulty", "Planting", "wrapped"]


class Change(Protocol):
    """What is done to the calls of a policy."""

    def instead(self, call: ToolCall | MalformedCall, context: ToolContext, index: int) -> ToolResult | None:
        """The result of a call that is not run, None where it is; `index` is its place in the turn."""
        ...

    def after(self, result: ToolResult) -> ToolResult:
        """What becomes of the result of a call that was run."""
        ...


class _Wrapped:
    """An executor whose calls and results pass through `change` where a policy made the call."""

    def __init__(self, inner: Executor, change: Change) -> None:
        self.inner = inner
        self.change = change

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        if context.turn < 0:  # a reward's own call
            return await self.inner.run(calls, context)
        instead = [self.change.instead(call, context, index) for index, call in enumerate(calls)]
        run = [call if given is None else left_out() for call, given in zip(calls, instead, strict=True)]
        results = await self.inner.run(run, context)
        return tuple(
            self.change.after(result) if given is None else given
            for result, given in zip(results, instead, strict=True)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def wrapped(environment: Environment, change: Change) -> Iterator[None]:
    """While entered, the calls of episodes of `environment` are changed."""
    inner = environment.executor
    environment.executor = cast(Executor, _Wrapped(inner, change))
    try:
        yield
    finally:
        environment.executor = inner


@dataclasses.dataclass(slots=True)
class Planting:
    """Puts `text` before what every call gives, however it ended; a value that is text gets it too."""

    text: str
    succeeded: int = 0
    """Calls that went well, so that the text stood in what a tool gave."""

    def instead(self, call: ToolCall | MalformedCall, context: ToolContext, index: int) -> ToolResult | None:
        """Every call is run."""
        return None

    def after(self, result: ToolResult) -> ToolResult:
        """The result with the text in it."""
        self.succeeded += result.outcome == "ok"
        value = f"{self.text}\n{result.value}" if isinstance(result.value, str) else result.value
        return dataclasses.replace(result, text=f"{self.text}\n{result.text}", value=value)


class Faulty:
    """Lets a share of the calls fail as `calls.faults: {error: SHARE}` does: such a call does not run.

    The same ones fail for equal seeds, tasks and turns. A tool with retries is tried again, without the waits.
    """

    def __init__(self, environment: Environment, share: float, *, seed: int) -> None:
        spec = FaultsSpec(error=share, seed=seed)
        self._injectors = {name: Injector(name, spec) for name in environment.parts.tools}
        self._tries = {
            name: 1 + (tool.policy.retries if tool.policy is not None else 0)
            for name, tool in environment.parts.tools.items()
        }

    def instead(self, call: ToolCall | MalformedCall, context: ToolContext, index: int) -> ToolResult | None:
        """The failure of a call that meets a fault at every try."""
        if isinstance(call, MalformedCall) or call.name not in self._injectors:
            return None
        draw = self._injectors[call.name].draw
        tries = self._tries[call.name]
        if any(draw(context, index=index, attempt=attempt) is None for attempt in range(tries)):
            return None
        failure = injected(call.name)
        reason, details = failure.reason, {"faults": ["error"] * tries}
        return ToolResult(
            call.name, failure.text, "failed", call_id=call.id, details=details, reason=reason, whose=whose(reason)
        )

    def after(self, result: ToolResult) -> ToolResult:
        """A call that runs gives what it gives."""
        return result
