"""Builds what a reward term reads, so that a term can be tested without a policy or a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlenv import registry
from rlenv.errors import UsageError
from rlenv.messages import MalformedCall, ParsedAction, ToolCall, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.tools.base import Tool
from rlenv.trajectory import Turn

__all__ = ["compile_term", "measure", "reward_context", "turn"]


async def _no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise UsageError(f"the term called the tool '{name}'", hint="pass `call` to reward_context")


def turn(
    content: str = "",
    *,
    index: int = 0,
    thinking: str = "",
    calls: Sequence[ToolCall | MalformedCall] = (),
    results: Sequence[ToolResult] = (),
    is_cut: bool = False,
) -> Turn:
    """A turn whose action a dialect read as `content`, `thinking` and `calls`."""
    return Turn(index, content, ParsedAction(content, thinking, tuple(calls), is_cut), tuple(results))


def reward_context(
    *,
    answer: str | None = None,
    task: Mapping[str, Any] | None = None,
    turns: Sequence[Turn] | None = None,
    call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] = _no_call,
    resources: Mapping[str, Any] | None = None,
    variables: Mapping[str, Any] | None = None,
    reason: str = "",
) -> RewardContext:
    """What a term reads; `turns` is by default the one turn that holds the answer as its text."""
    if turns is None:
        turns = (turn(answer or ""),)
    return RewardContext(task or {}, (), turns, answer, resources or {}, variables or {}, call, reason)


def compile_term(
    kind: str = "rule",
    *,
    name: str = "term",
    tools: Mapping[str, Tool] | None = None,
    base: Path = Path(),
    **keys: Any,
) -> Term:
    """A compiled term from the keys of its entry under `rewards:`.

    Raises:
        UsageError: the factory refuses the entry.
        pydantic.ValidationError: a key does not fit.
    """
    rule = None if kind != "rule" else keys.setdefault("rule", "python")
    spec_kind = registry.get("rewards", kind) if rule is None else registry.get("rules", rule)
    spec = spec_kind.spec.model_validate({"kind": kind, **keys})
    term = registry.get("rewards", kind).factory(name, spec, TermCompileContext(base=base, tools=tools or {}))
    assert isinstance(term, Term)
    return term


def measure(rule: str, context: RewardContext, *, tools: Mapping[str, Tool] | None = None, **keys: Any) -> Measured:
    """What a rule measures in `context`; one that waits for something is run in an event loop of its own.

    Raises:
        RewardError: it cannot be measured.
        UsageError: the factory refuses the entry.
        RuntimeError: the rule waits for something, and this is called from within a loop; await
            `compile_term(...).measure_async(context)` there.
    """
    term = compile_term(rule=rule, tools=tools, **keys)
    if term.measure is not None:
        return term.measure(context)
    assert term.measure_async is not None
    return asyncio.run(_awaited(term.measure_async(context)))


async def _awaited(measured: Awaitable[Measured]) -> Measured:
    return await measured
