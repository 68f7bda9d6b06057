"""Executors that change what a policy's calls give, and nothing that a reward's calls give."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from rlenv.calls.executor import Executor
from rlenv.episodes.environment import Environment
from rlenv.language.spec import FaultsSpec
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.tools.base import ToolContext, policy_of

__all__ = ["Muting", "Planting", "faulty", "planted"]


@dataclasses.dataclass(slots=True)
class Planting:
    """Puts `text` before what every call gives, however it ended; a value that is text gets it too."""

    text: str
    succeeded: int = 0
    """Calls that went well, so that the text stood in what a tool gave."""

    def after(self, result: ToolResult) -> ToolResult:
        """The result with the text in it."""
        self.succeeded += result.outcome == "ok"
        value = f"{self.text}\n{result.value}" if isinstance(result.value, str) else result.value
        return dataclasses.replace(result, text=f"{self.text}\n{result.text}", value=value)


@dataclasses.dataclass(slots=True)
class Muting:
    """Takes out of what every call gives the texts that were `marked`, where a call says back what it was told."""

    BEGINS: ClassVar = "zqx-begins"
    ENDS: ClassVar = "zqx-ends"
    muted: int = 0
    """Results that held such a text."""

    @classmethod
    def marked(cls, text: str) -> str:
        """The text between marks that no tool knows."""
        return f"{cls.BEGINS}\n{text}\n{cls.ENDS}"

    def after(self, result: ToolResult) -> ToolResult:
        """The result without such texts; one that was cut in the middle goes to its end."""
        self.muted += self.BEGINS in result.text
        return dataclasses.replace(result, text=self._without(result.text), value=self._without(result.value))

    def _without(self, value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(rf"{self.BEGINS}.*?(?:{self.ENDS}|\Z)", "", value, flags=re.DOTALL)
        if isinstance(value, Mapping):
            return {key: self._without(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._without(part) for part in value]
        return value


class _Planted:
    """An executor of whose results those of a policy's calls are changed."""

    def __init__(self, inner: Executor, planting: Planting | Muting) -> None:
        self.inner = inner
        self.planting = planting

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        results = await self.inner.run(calls, context)
        if context.turn < 0:  # a reward's own call
            return results
        return tuple(self.planting.after(result) for result in results)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def planted(environment: Environment, planting: Planting | Muting) -> Iterator[None]:
    """While entered, what the calls of episodes of `environment` give has a text planted in it, or taken out."""
    inner = environment.executor
    environment.executor = cast(Executor, _Planted(inner, planting))
    try:
        yield
    finally:
        environment.executor = inner


@contextmanager
def faulty(environment: Environment, share: float, *, seed: int) -> Iterator[None]:
    """While entered, so many of the calls fail, as with `calls.faults: {error: SHARE}`, and by the same code.

    It takes the place of the faults that the spec asks for itself. A tool with retries is tried again.
    """
    calls, inner = environment.spec.calls, environment.executor
    faults = FaultsSpec(error=share, seed=seed)
    tools = {}
    for name, tool in environment.parts.tools.items():
        policy = tool.policy or policy_of(calls, idempotent=tool.idempotent, mutates=tool.mutates)
        tools[name] = dataclasses.replace(tool, policy=dataclasses.replace(policy, faults=faults))
    environment.executor = Executor(tools, calls=calls)
    try:
        yield
    finally:
        environment.executor.close()
        environment.executor = inner
