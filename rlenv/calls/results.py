"""The end of a call for the policy and for rewards: redacted, valid Unicode, and within bounds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rlenv._base.bounded import bounded, cut_middle, encodable, size
from rlenv._base.fast_records import quick
from rlenv._base.reasons import whose
from rlenv.errors import ToolFailed
from rlenv.images import within_limits
from rlenv.messages import ToolCall, ToolResult
from rlenv.secrets import logger, redact, redact_ends, redact_value
from rlenv.tools.base import ToolContext, ToolOutput

__all__ = ["FailureLog", "broken", "ended", "failed", "late", "refused"]

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


def ended(call: ToolCall, output: Any, started: float, context: ToolContext, *, max_chars: int) -> ToolResult:
    """A call that returned `output`.

    Raises:
        TypeError: that is no ToolOutput with a text.
    """
    if type(output) is not ToolOutput:
        raise TypeError(f"a tool's run returned a {type(output).__name__}, not a ToolOutput")
    if type(output.text) is not str:
        raise TypeError(f"a tool's text was a {type(output.text).__name__}, not a str")
    text, value, details = encodable(redact_ends(output.text, max_chars)), output.value, output.details
    images = output.images
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
    return _result(call.name, text, "timeout", None, call.id, took, (), None, reason, whose(reason), at)


def broken(call: ToolCall, error: BaseException, started: float, context: ToolContext, log: FailureLog) -> ToolResult:
    """A call whose tool raised what it should not: the author is told what, the model only that it failed."""
    log.add(call.name, error)
    took, at = time.monotonic() - started, started - context.begun
    text = f"the tool {call.name} failed"
    return _result(call.name, text, "failed", None, call.id, took, (), None, "bug", whose("bug"), at)


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
