"""Calls under a tape: each has its lane, and what came of it is kept, or given again.

What is kept is the result as the policy and the rewards had it, above retries, kept results and rates: one entry says
what a call gave, however often it was tried. Tools of the kinds `model` and `agent` run again: what they ask of their
endpoint is on the tape, so that a changed prompt is seen. Faults that a spec puts in on purpose are drawn, not kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.jsonable import plain
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.lanes import Answer, Asked, Lane, Slot, entered, given
from rlenv.errors import CassetteError, EpisodeError, ToolFailed
from rlenv.messages import Image, MalformedCall, ToolCall, ToolResult
from rlenv.tools.base import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Made", "asked_of", "is_spoiled", "together", "tried"]

_RUN_AGAIN: Final = frozenset({"model", "agent"})
_LEAVES: Final = frozenset({"http", "mcp"})

Made = tuple[Any, ...]
"""A call that has to be waited for, as the executor holds it: the tool's entry first, then the call."""


@cache
def _adapter() -> TypeAdapter[ToolResult]:
    from pydantic import TypeAdapter

    return TypeAdapter(ToolResult)


@cache
def _schema(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def asked_of(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Asked | None:
    """A call as a tape knows it; None for tools whose own requests are on it.

    Equal content may be answered alike where the tool depends on no more than the content holds.
    """
    if tool.kind in _RUN_AGAIN:
        return None
    kept = tool.policy.cache.key if tool.policy is not None and tool.policy.cache is not None else None
    depends_on = kept or tool.depends_on
    schema = _schema(json.dumps(plain(tool.parameters), sort_keys=True))
    content = {"kind": tool.kind, "tool": tool.name, "schema": schema, "arguments": plain(arguments)}
    if depends_on == "task":
        content["task"] = plain(context.task)
    is_local = not (tool.reaches_out or tool.kind in _LEAVES)
    return Asked("tool", tool.name, content, is_shared=depends_on != "episode", is_local=is_local)


def together(
    lane: Lane,
    calls: Sequence[ToolCall | MalformedCall],
    context: ToolContext,
    first: int,
    *,
    inline: Callable[[ToolCall], tuple[Tool, Mapping[str, Any]] | None],
    at_once: Callable[[ToolCall | MalformedCall, ToolContext], ToolResult | Made],
    waiting: Callable[[Any, ToolContext, int], Awaitable[ToolResult]],
) -> list[ToolResult | asyncio.Task[ToolResult]]:
    """The results of calls that need no waiting, and tasks of the others, in order.

    Args:
        first: the place of the first of `calls` in its turn.
        inline: the tool and the arguments of a call that runs on the loop, None for any other.

    Raises:
        CassetteError: the tape has no answer, before a task is begun.
    """
    found: list[tuple[Lane, ToolResult | Made]] = []
    for index, call in enumerate(calls, first):
        own = lane.at(f"call {index}")
        if isinstance(call, ToolCall) and lane.tape.lets_out(call.name):
            own = replace(own, is_live=True)
        with entered(own):
            found.append((own, _first(own, call, context, inline=inline, at_once=at_once)))
    results: list[ToolResult | asyncio.Task[ToolResult]] = []
    for index, (own, made) in enumerate(found, first):
        if isinstance(made, ToolResult):
            results.append(made)
            continue
        with entered(own):  # the task takes the lane that it is made in
            results.append(asyncio.ensure_future(_taken_up(own, made, context, index, waiting)))
    return results


def _first(
    lane: Lane,
    call: ToolCall | MalformedCall,
    context: ToolContext,
    *,
    inline: Callable[[ToolCall], tuple[Tool, Mapping[str, Any]] | None],
    at_once: Callable[[ToolCall | MalformedCall, ToolContext], ToolResult | Made],
) -> ToolResult | Made:
    """What a call gives at once, or what has to be awaited."""
    quick = inline(call) if isinstance(call, ToolCall) else None
    if quick is None or (asked := asked_of(*quick, context)) is None:
        return at_once(call, context)
    assert isinstance(call, ToolCall)
    slot = lane.tape.look(lane, asked)
    return _again(slot, call, context) if slot.answer is not None else _kept(slot, at_once(call, context))


async def _taken_up(
    lane: Lane,
    made: Made,
    context: ToolContext,
    index: int,
    waiting: Callable[[Any, ToolContext, int], Awaitable[ToolResult]],
) -> ToolResult:
    """The result of a call that may take its time: from the tape, or from the tool."""
    tool, call = made[0].tool, made[1]
    asked = asked_of(tool, call.arguments, context)
    if asked is None or is_spoiled(tool):
        return await waiting(made, context, index)
    slot = lane.tape.look(lane, asked)
    if await given(slot) is not None:
        return _again(slot, call, context)
    try:
        return _kept(slot, await waiting(made, context, index))
    except CassetteError:
        raise
    except asyncio.CancelledError:
        lane.tape.keep(slot, Answer("cancelled"))
        raise
    except EpisodeError as error:
        lane.tape.keep(slot, Answer("failed", {"message": str(error), "reason": error.reason}, error.reason))
        raise


def is_spoiled(tool: Tool) -> bool:
    """Whether faults are put into a tool's calls on purpose. They are drawn anew, so its tries are what is kept."""
    return tool.policy is not None and tool.policy.faults is not None


async def tried(
    lane: Lane,
    tool: Tool,
    arguments: Mapping[str, Any],
    context: ToolContext,
    run: Callable[[], Awaitable[ToolOutput]],
) -> ToolOutput:
    """One try of a tool whose calls are spoiled on purpose: what it gave or raised, from the tape or from the tool."""
    asked = asked_of(tool, arguments, context)
    if asked is None:
        return await run()
    slot = lane.tape.look(lane, asked)
    if (answer := await given(slot)) is not None:
        return _tried_again(answer)
    try:
        output = await run()
    except asyncio.CancelledError:
        lane.tape.keep(slot, Answer("cancelled"))
        raise
    except ToolFailed as error:
        names = ("text", "reason", "retryable", "whose")
        held = {name: getattr(error, name) for name in names} | {"details": plain(error.details)}
        lane.tape.keep(slot, Answer("failed", held, error.reason))
        raise
    except Expired as error:
        lane.tape.keep(slot, Answer("failed", {"expired": error.reason}, error.reason))
        raise
    if type(output) is ToolOutput:
        held = plain(output)
        is_whole = held["value"] == output.value
        lane.tape.keep(slot, Answer("ok", held) if is_whole else Answer("refused", None, "its value is no JSON"))
    return output


def _tried_again(answer: Answer) -> ToolOutput:
    held = answer.response
    if answer.outcome == "refused":
        raise CassetteError(f"the tape has no result of this call: {answer.reason}")
    if answer.outcome == "failed":
        raise Expired(None, reason=held["expired"]) if "expired" in held else ToolFailed(**held)
    images = tuple(Image(**image) for image in held["images"])
    return ToolOutput(held["text"], held["value"], images, held["details"])


def _kept(slot: Slot, result: Any) -> ToolResult:
    """Hands a result to the tape."""
    assert isinstance(result, ToolResult)
    held = plain(result)
    if held["value"] != result.value:
        reason = f"the value of {result.name} is no JSON"
        slot.lane.tape.keep(slot, Answer("refused", None, reason))
    else:
        slot.lane.tape.keep(slot, Answer("ok" if result.outcome == "ok" else "failed", held, result.reason))
    return result


def _again(slot: Slot, call: ToolCall, context: ToolContext) -> ToolResult:
    """A result that was kept, as that of `call`.

    Raises:
        EpisodeError: as it did then.
        CassetteError: it could not be kept then.
    """
    answer = slot.answer
    assert answer is not None
    if answer.outcome == "refused":
        raise CassetteError(f"{slot.lane.place}: the tape has no result of {call.name}: {answer.reason}")
    if "outcome" not in answer.response:
        raise EpisodeError(answer.response["message"], reason=answer.response["reason"])
    result = _adapter().validate_python(answer.response)
    return replace(result, call_id=call.id, seconds=0.0, waited=0.0, started=time.monotonic() - context.begun)
