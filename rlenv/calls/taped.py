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
from dataclasses import replace
from functools import cache, partial
from hashlib import blake2b
from typing import Any, Final, Literal

from rlenv._base.bounded import adapter_of, bounded, encodable, plain, quick, size
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.lanes import Event, Lane, said_again, through
from rlenv.errors import CassetteError, EpisodeError, ToolFailed, whose_failure
from rlenv.images import within_limits
from rlenv.language.functions import FailureLog
from rlenv.messages import Image, MalformedCall, ToolCall, ToolResult
from rlenv.secrets import redact_ends, redact_value
from rlenv.tools.base import Tool, ToolContext, ToolOutput

_RUN_AGAIN: Final = frozenset({"model", "agent"})
_LEAVES: Final = frozenset({"http", "mcp"})

Made = tuple[Any, ...]
"""A call that has to be waited for, as the executor holds it: the tool's entry first, then the call."""


@cache
def _schema_digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _is_local(tool: Tool) -> bool:
    return not (tool.reaches_out or tool.kind in _LEAVES)


def _make_event(lane: Lane, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Event | None:
    """A call as the tape of a lane knows it; None where the tape is not asked about it."""
    return None if _is_local(tool) and not lane.tape.wants_local else asked_of(tool, arguments, context)


def asked_of(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Event | None:
    """A call as a tape knows it; None for tools whose own requests are on it.

    Equal ones may be answered alike where the tool depends on no more than the request holds.
    """
    if tool.kind in _RUN_AGAIN:
        return None
    kept = tool.policy.cache.key if tool.policy is not None and tool.policy.cache is not None else None
    depends_on = kept or tool.depends_on
    schema = _schema_digest(json.dumps(plain(tool.parameters), sort_keys=True))
    request = {"kind": tool.kind, "tool": tool.name, "schema": schema, "arguments": plain(arguments)}
    request["options"] = plain(tool.options)
    if depends_on == "task":
        request["task"] = plain(context.task)
    is_shared, is_local = depends_on != "episode", _is_local(tool)
    return Event(kind="tool", name=tool.name, request=request, is_shared=is_shared, is_local=is_local)


def quick_result(
    lane: Lane,
    call: ToolCall | MalformedCall,
    context: ToolContext,
    inline: tuple[Tool, Mapping[str, Any]] | None,
    run: Callable[[ToolCall | MalformedCall, ToolContext], ToolResult | Made],
) -> ToolResult | Made:
    """The result of a call that gives one at once, or what has to be waited for.

    `inline`: the tool and the arguments of a call that runs on the loop. Raises CassetteError: there is no answer.
    """
    if inline is None or (request := _make_event(lane, *inline, context)) is None:
        return run(call, context)
    assert isinstance(call, ToolCall)
    event = lane.tape.look(lane, request)
    if event.outcome:
        return said_again(event, _replayer(call, context))
    try:
        result = run(call, context)
    except EpisodeError as error:
        if (ending := _ending_event(event, error)) is not None:
            lane.tape.keep(lane, ending)
        raise
    lane.tape.keep(lane, _result_event(event, result))
    return result


async def slow_result(
    lane: Lane,
    made: Made,
    context: ToolContext,
    index: int,
    run: Callable[[Any, ToolContext, int], Awaitable[ToolResult]],
) -> ToolResult:
    """The result of a call that may take its time: from the tape, or from the tool."""
    tool, call = made[0].tool, made[1]
    event = _make_event(lane, tool, call.arguments, context)
    if event is None or is_spoiled(tool):
        return await run(made, context, index)
    make = partial(run, made, context, index)
    return await through(lane, event, make, again=_replayer(call, context), kept=_result_event, failed=_ending_event)


def _ending_event(event: Event, error: BaseException) -> Event | None:
    """The end of an episode as a tape keeps it; a miss, which is this run's own, is none of it."""
    if isinstance(error, asyncio.CancelledError):
        return event.ended("cancelled")
    if not isinstance(error, EpisodeError) or isinstance(error, CassetteError):
        return None
    return event.ended("failed", {"message": str(error), "reason": error.reason}, error.reason)


def is_spoiled(tool: Tool) -> bool:
    """True where faults are put into a tool's calls on purpose. They are drawn anew, so its tries are what is kept."""
    return tool.policy is not None and tool.policy.faults is not None


async def run_try(
    lane: Lane, tool: Tool, arguments: Mapping[str, Any], context: ToolContext, run: Callable[[], Awaitable[ToolOutput]]
) -> ToolOutput:
    """One try of a tool whose calls are spoiled on purpose: what it gave or raised, from the tape or from the tool."""
    event = _make_event(lane, tool, arguments, context)
    return await (run() if event is None else through(lane, event, run, again=_replay, kept=_output, failed=_failure))


def _output(event: Event, output: Any) -> Event:
    """A try with what it gave. An output of another type is the tool's bug, which the caller finds."""
    text = output.text if type(output) is ToolOutput else None
    if type(text) is not str:
        return event.ended("failed", {"is_output": type(output) is ToolOutput}, "bug")
    response = plain(output)
    is_json = response["value"] == output.value
    return event.ended("ok", response) if is_json else event.ended("refused", reason="its value is no JSON")


def _failure(event: Event, error: BaseException) -> Event:
    """A try with what it raised. Of a bug it matters whether it is an Exception, since others are not tried again."""
    if isinstance(error, EpisodeError) and (ending := _ending_event(event, error)) is not None:
        return ending
    if isinstance(error, ToolFailed):
        names = ("text", "reason", "retryable", "whose", "details")
        return event.ended("failed", {name: plain(getattr(error, name)) for name in names}, error.reason)
    if isinstance(error, Expired):
        return event.ended("failed", {"expired": error.reason}, error.reason)
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        return event.ended("cancelled")
    return event.ended("failed", {"bug": type(error).__name__, "is_exception": isinstance(error, Exception)}, "bug")


def _replay(event: Event) -> ToolOutput:
    """The return value of a try, which may be no output; raises the exception that it ended in then."""
    held = event.response
    if event.outcome == "ok":
        return ToolOutput(held["text"], held["value"], tuple(Image(**one) for one in held["images"]), held["details"])
    if "expired" in held:
        raise Expired(reason=held["expired"])
    if "bug" in held:
        raise (RuntimeError if held["is_exception"] else BaseException)(f"{held['bug']}, when it was recorded")
    if "is_output" in held:
        nothing: Any = None
        return ToolOutput(nothing) if held["is_output"] else nothing
    raise EpisodeError(held["message"], reason=held["reason"]) if "message" in held else ToolFailed(**held)


def _result_event(event: Event, result: Any) -> Event:
    """A call with its result."""
    assert isinstance(result, ToolResult)
    response = plain(result)
    if response["value"] != result.value:
        return event.ended("refused", reason=f"the value of {result.name} is no JSON")
    return event.ended("ok" if result.outcome == "ok" else "failed", response, result.reason)


def _replayer(call: ToolCall, context: ToolContext) -> Callable[[Event], ToolResult]:
    """Makes a recorded result that of `call`, or raises the EpisodeError that it ended in then."""

    def again(event: Event) -> ToolResult:
        if "outcome" not in event.response:
            raise EpisodeError(event.response["message"], reason=event.response["reason"])
        result: ToolResult = adapter_of(ToolResult).validate_python(event.response)
        began = time.monotonic() - event.seconds
        return replace(result, call_id=call.id, seconds=event.seconds, waited=0.0, started=began - context.begun)

    return again


_result = quick(ToolResult)
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
            note = f"a value of more than {limit} characters"
            details = dict(details or {})
            details["left_out"] = f"{details['left_out']}; {note}" if "left_out" in details else note
        else:
            value = redact_value(value)
            if isinstance(value, str):
                value = encodable(value)
    took = time.monotonic() - started
    return _result(call.name, text, "ok", value, call.id, took, images, details, "", "", started - context.begun)


def failed(call: ToolCall, failure: ToolFailed, started: float, context: ToolContext) -> ToolResult:
    """A call whose tool said that it failed, in words for the model."""
    outcome = _OUTCOME_OF_REASON.get(failure.reason, "failed")
    text = encodable(redact_ends(str(failure.text), _MAX_ERROR_CHARS))
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
    log.add(f"tool '{call.name}'", error)
    took, at = time.monotonic() - started, started - context.begun
    text = f"the tool {call.name} failed"
    return _result(call.name, text, "failed", None, call.id, took, (), None, "bug", whose_failure("bug"), at)


def _bounded_details(details: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's details of its call, redacted and within bounds: it is kept, and nobody is shown it."""
    if size(details, _MAX_NOTES_CHARS) <= _MAX_NOTES_CHARS:
        clean: Mapping[str, Any] = redact_value(details)
        return clean
    # Cut first, so that the work is bounded too; each text is redacted before it is cut.
    kept = bounded(details, _MAX_NOTES_CHARS, cut=redact_ends)
    return {**kept, "left_out": f"details of more than {_MAX_NOTES_CHARS} characters"}
