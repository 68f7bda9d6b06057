"""Executors that change what a policy's calls give, and nothing that a reward's calls give."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from rlenv.environment import Environment
from rlenv.executor import Executor
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.tools.base import ToolContext

__all__ = ["faulty", "planting", "wrapped"]

Change = Callable[[ToolResult, ToolContext, int], ToolResult]


class _Wrapped:
    """An executor whose results pass through `change` where a policy made the call."""

    def __init__(self, inner: Executor, change: Change) -> None:
        self.inner = inner
        self.change = change

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        results = await self.inner.run(calls, context)
        if context.turn < 0:  # a reward's own call
            return results
        return tuple(self.change(result, context, index) for index, result in enumerate(results))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def wrapped(environment: Environment, change: Change) -> Iterator[None]:
    """While entered, episodes of `environment` see changed results."""
    inner = environment.executor
    environment.executor = cast(Executor, _Wrapped(inner, change))
    try:
        yield
    finally:
        environment.executor = inner


def planting(text: str) -> Change:
    """Puts `text` before what every successful call gives the model; the value behind it stays."""

    def change(result: ToolResult, context: ToolContext, index: int) -> ToolResult:
        return dataclasses.replace(result, text=f"{text}\n{result.text}") if result.outcome == "ok" else result

    return change


def faulty(share: float, *, seed: int) -> Change:
    """Lets a share of the calls fail; the same ones for equal seeds, tasks and turns."""

    def change(result: ToolResult, context: ToolContext, index: int) -> ToolResult:
        key = f"{seed}/{context.seed}/{context.turn}/{index}/{sorted(context.task.items(), key=str)!r}"
        drawn = int.from_bytes(hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=4).digest(), "big") / 2**32
        if drawn >= share:
            return result
        return dataclasses.replace(result, text="The tool failed. Try again.", outcome="failed", value=None)

    return change
