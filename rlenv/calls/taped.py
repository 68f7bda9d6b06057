"""Calls under a tape: each has its lane, and what came of it is kept, or given again.

What is kept is the result as the policy and the rewards had it, above retries, kept results and rates: one entry says
what a call gave, however often it was tried. Tools of the kinds `model` and `agent` run again: what they ask of their
endpoint is on the tape, so that a changed prompt is seen. Faults that a spec puts in on purpose are drawn, not kept.

The end of a call for the policy and for rewards: redacted, valid Unicode, and within bounds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Any, Final, Literal

from rlenv._base.bounded import adapter_of, bounded, cut_middle, encodable, plain, quick, size
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.lanes import Answer, Asked, Lane, Slot, entered, said_again, through
from rlenv.errors import CassetteError, EpisodeError, ToolFailed, whose_failure
from rlenv.images import within_limits
from rlenv.messages import Image, MalformedCall, ToolCall, ToolResult
from rlenv.secrets import logger, redact, redact_ends, redact_value
from rlenv.tools.base import Tool, ToolContext, ToolOutput

_RUN_AGAIN: Final = frozenset({"model", "agent"})
_LEAVES: Final = frozenset({"http", "mcp"})

Made = tuple[Any, ...]
"""A call that has to be waited for, as the executor holds it: the tool's entry first, then the call."""


@cache
def _schema(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _is_local(tool: Tool) -> bool:
    return not (tool.reaches_out or tool.kind in _LEAVES)


def _asked(lane: Lane, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Asked | None:
    """A call as the tape of a lane knows it; None where the tape is not asked about it."""
    return None if _is_local(tool) and not lane.tape.wants_local else asked_of(tool, arguments, context)


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
    content["options"] = plain(tool.options)
    if depends_on == "task":
        content["task"] = plain(context.task)
    return Asked("tool", tool.name, content, is_shared=depends_on != "episode", is_local=_is_local(tool))


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
    """The result of a call that gives one at once, or the task to wait for."""
    quick = inline(call) if isinstance(call, ToolCall) else None
    if quick is None or (asked := _asked(lane, *quick, context)) is None:
        return at_once(call, context)
    assert isinstance(call, ToolCall)
    slot = lane.tape.look(lane, asked)
    if slot.answer is not None:
        return said_again(slot, slot.answer, _again(call, context))
    try:
        result = at_once(call, context)
    except EpisodeError as error:
        if (ending := _failed(error)) is not None:
            lane.tape.keep(slot, ending)
        raise
    lane.tape.keep(slot, _kept(result))
    return result


async def _taken_up(
    lane: Lane,
    made: Made,
    context: ToolContext,
    index: int,
    waiting: Callable[[Any, ToolContext, int], Awaitable[ToolResult]],
) -> ToolResult:
    """The result of a call that may take its time: from the tape, or from the tool."""
    tool, call = made[0].tool, made[1]
    asked = _asked(lane, tool, call.arguments, context)
    if asked is None or is_spoiled(tool):
        return await waiting(made, context, index)

    def make() -> Awaitable[ToolResult]:
        return waiting(made, context, index)

    return await through(lane, asked, make, again=_again(call, context), kept=_kept, failed=_failed)


def _failed(error: BaseException) -> Answer | None:
    """The end of an episode as a tape keeps it; a miss, which is this run's own, is none of it."""
    if isinstance(error, asyncio.CancelledError):
        return Answer("cancelled")
    if not isinstance(error, EpisodeError) or isinstance(error, CassetteError):
        return None
    return Answer("failed", {"message": str(error), "reason": error.reason}, error.reason)


def is_spoiled(tool: Tool) -> bool:
    """True where faults are put into a tool's calls on purpose. They are drawn anew, so its tries are what is kept."""
    return tool.policy is not None and tool.policy.faults is not None


async def tried(
    lane: Lane, tool: Tool, arguments: Mapping[str, Any], context: ToolContext, run: Callable[[], Awaitable[ToolOutput]]
) -> ToolOutput:
    """One try of a tool whose calls are spoiled on purpose: what it gave or raised, from the tape or from the tool."""
    asked = _asked(lane, tool, arguments, context)
    if asked is None:
        return await run()
    ending = await through(lane, asked, run, again=_ending, kept=_given, failed=_raised)
    if isinstance(ending, BaseException):
        raise ending
    output: ToolOutput = ending
    return output


def _given(output: Any) -> Answer:
    """The answer to record of a try. An output of another type is the tool's bug, which the caller finds, then and in a
    replay.
    """
    text = output.text if type(output) is ToolOutput else None
    if type(text) is not str:
        return Answer("failed", {"is_output": type(output) is ToolOutput}, "bug")
    held = plain(output)
    return Answer("ok", held) if held["value"] == output.value else Answer("refused", None, "its value is no JSON")


def _raised(error: BaseException) -> Answer:
    """The exception of a try. Of a bug it matters whether it is an Exception, since others are not tried again."""
    if isinstance(error, EpisodeError) and (ending := _failed(error)) is not None:
        return ending
    if isinstance(error, ToolFailed):
        names = ("text", "reason", "retryable", "whose", "details")
        return Answer("failed", {name: plain(getattr(error, name)) for name in names}, error.reason)
    if isinstance(error, Expired):
        return Answer("failed", {"expired": error.reason}, error.reason)
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        return Answer("cancelled")
    return Answer("failed", {"bug": type(error).__name__, "is_exception": isinstance(error, Exception)}, "bug")


def _ending(slot: Slot, answer: Answer) -> Any:
    """The return value of a try, which may be no output, or its exception."""
    held = answer.response
    if answer.outcome == "ok":
        return ToolOutput(held["text"], held["value"], tuple(Image(**one) for one in held["images"]), held["details"])
    if "expired" in held:
        return Expired(reason=held["expired"])
    if "bug" in held:
        return (RuntimeError if held["is_exception"] else BaseException)(f"{held['bug']}, when it was recorded")
    if "is_output" in held:
        nothing: Any = None
        return ToolOutput(nothing) if held["is_output"] else nothing
    return EpisodeError(held["message"], reason=held["reason"]) if "message" in held else ToolFailed(**held)


def _kept(result: Any) -> Answer:
    """A result as a tape keeps it."""
    assert isinstance(result, ToolResult)
    held = plain(result)
    if held["value"] != result.value:
        return Answer("refused", None, f"the value of {result.name} is no JSON")
    return Answer("ok" if result.outcome == "ok" else "failed", held, result.reason)


def _again(call: ToolCall, context: ToolContext) -> Callable[[Slot, Answer], ToolResult]:
    """Makes a recorded result that of `call`, or raises the EpisodeError that it ended in then."""

    def again(slot: Slot, answer: Answer) -> ToolResult:
        if "outcome" not in answer.response:
            raise EpisodeError(answer.response["message"], reason=answer.response["reason"])
        result: ToolResult = adapter_of(ToolResult).validate_python(answer.response)
        began = time.monotonic() - slot.seconds
        return replace(result, call_id=call.id, seconds=slot.seconds, waited=0.0, started=began - context.begun)

    return again


_result = quick(ToolResult)
_log = logger("rlenv.tools")
_LOG_EVERY_S: Final = 1.0
_MAX_ERROR_CHARS: Final = 2_000
_MAX_NOTES_CHARS: Final = 131_072
_MAX_REWARD_VALUE: Final = 16_000_000
"""A value that only a reward reads is not kept; it is bounded for the reader's sake alone."""

_FailedOutcome = Literal["failed", "timeout", "bad_arguments"]
_OUTCOME_OF_REASON: Final[dict[str, _FailedOutcome]] = {
    "timeout": "timeout",
    "late": "timeout",
    "stalled": "timeout",
    "stopped": "timeout",
    "busy": "timeout",
    "bad_arguments": "bad_arguments",
}


def refused(
    name: str, text: str, outcome: Literal["unknown_tool", "bad_arguments", "malformed"], call_id: str | None
) -> ToolResult:
    """A call that never reached a tool: the policy wrote it so."""
    return ToolResult(name, text, outcome, None, call_id, reason=outcome, whose="policy")


def not_run(calls: Sequence[ToolCall | MalformedCall], text: str) -> tuple[ToolResult, ...]:
    """Calls that were left out, each answered with `text`."""
    return tuple(
        ToolResult(call.name or "", text, "skipped", call_id=call.id, reason="skipped", whose="policy")
        for call in calls
    )


def ended(call: ToolCall, output: Any, started: float, context: ToolContext, *, max_chars: int) -> ToolResult:
    """A call that returned `output`.

    Raises:
        TypeError: that is no ToolOutput with a text.
    """
    if type(output) is not ToolOutput:
        raise TypeError(f"a tool's run returned a {type(output).__name__}, not a ToolOutput")
    if type(output.text) is not str:
        raise TypeError(f"a tool's text was a {type(output.text).__name__}, not a str")
    text, value, details, images = redact_ends(output.text, max_chars), output.value, output.details, output.images
    text = text if text.isascii() else encodable(text)
    if images:
        images, left_out = within_limits(images)
        text = f"{text}\n{left_out}" if left_out and text else text or left_out
    if details is not None:
        details = _bounded_details(details)
    if value is output.text:
        value = text
    elif value is not None:
        # What a reward asks for is read once and not kept, so that only its reader has to be spared.
        limit = max_chars if context.turn >= 0 else _MAX_REWARD_VALUE
        if size(value, limit) > limit:
            value = text if isinstance(value, str) else None
            told = f"a value of more than {limit} characters"
            details = dict(details or {})
            details["left_out"] = f"{details['left_out']}; {told}" if "left_out" in details else told
        else:
            value = redact_value(value)
            if isinstance(value, str):
                value = encodable(value)
    took = time.monotonic() - started
    return _result(call.name, text, "ok", value, call.id, took, images, details, "", "", started - context.begun)


def failed(call: ToolCall, failure: ToolFailed, started: float, context: ToolContext) -> ToolResult:
    """A call whose tool said that it failed, in words for the model."""
    outcome = _OUTCOME_OF_REASON.get(failure.reason, "failed")
    text = cut_middle(encodable(redact(str(failure.text))), _MAX_ERROR_CHARS)
    details = _bounded_details(failure.details) if failure.details is not None else None
    took = time.monotonic() - started
    at = started - context.begun
    return _result(call.name, text, outcome, None, call.id, took, (), details, failure.reason, failure.whose, at)


def late(call: ToolCall, started: float, context: ToolContext, *, timeout_s: float, reason: str = "late") -> ToolResult:
    """A call that did not end by its tool's limit of `timeout_s` or by the episode's deadline, whichever was first."""
    if started + timeout_s <= context.deadline:
        text = f"the tool {call.name} did not end within {timeout_s:g} s"
    else:
        text = f"the tool {call.name} was stopped: the {context.bounded_by}'s time is up"
    took, at = time.monotonic() - started, started - context.begun
    return _result(call.name, text, "timeout", None, call.id, took, (), None, reason, whose_failure(reason), at)


def broken(call: ToolCall, error: BaseException, started: float, context: ToolContext, log: FailureLog) -> ToolResult:
    """A call whose tool raised what it should not: the author is told what, the model only that it failed."""
    log.add(call.name, error)
    took, at = time.monotonic() - started, started - context.begun
    text = f"the tool {call.name} failed"
    return _result(call.name, text, "failed", None, call.id, took, (), None, "bug", whose_failure("bug"), at)


@dataclass(slots=True, eq=False)
class FailureLog:
    """One tool's failures to the logger `rlenv.tools`, at most one a second; the others are counted."""

    shown_at: float = float("-inf")
    not_shown: int = 0

    def add(self, name: str, error: BaseException) -> None:
        """Shows a failure, or counts it."""
        now = time.monotonic()
        if now - self.shown_at < _LOG_EVERY_S:
            self.not_shown += 1
            return
        also = f" ({self.not_shown} more failures since the last one shown)" if self.not_shown else ""
        _log.warning("tool '%s' raised%s", name, also, exc_info=error)
        self.shown_at, self.not_shown = now, 0


def _bounded_details(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's details of its call, redacted and within bounds: it is kept, and nobody is shown it."""
    if size(details, _MAX_NOTES_CHARS) <= _MAX_NOTES_CHARS:
        clean: Mapping[str, Any] = redact_value(details)
        return clean
    # Cut first, so that the work is bounded too; each text is redacted before it is cut.
    kept = bounded(details, _MAX_NOTES_CHARS, cut=redact_ends)
    return {**kept, "left_out": f"details of more than {_MAX_NOTES_CHARS} characters"}
