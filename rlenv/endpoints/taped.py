"""Requests to an endpoint under a tape: one entry is an answer as whoever asked had it, above retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.jsonable import plain
from rlenv.concurrency.lanes import Answer, Asked, Lane, Slot, through
from rlenv.endpoints.account import asking
from rlenv.endpoints.wire import Completion, Usage, as_wire
from rlenv.errors import EndpointError
from rlenv.messages import Message

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["asked_chat", "asked_text", "completed", "sampling_of"]

_DRAWN: Final = frozenset({"seed"})
"""Fields of a request that differ between equal questions."""


@cache
def _adapter() -> TypeAdapter[Completion]:
    from pydantic import TypeAdapter

    return TypeAdapter(Completion)


def asked_chat(
    endpoint: str, body: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Asked:
    """A conversation as a tape knows it. Servers draw the ids of calls; results stand in the order of theirs."""
    content = {
        "model": body["model"],
        "messages": [_without_ids(as_wire(message)) for message in messages],
        "tools": plain(list(tools)),
        "sampling": sampling_of(body),
    }
    return Asked("chat", endpoint, content)


def asked_text(endpoint: str, body: Mapping[str, Any]) -> Asked:
    """Raw text as a tape knows it."""
    content = {"model": body["model"], "prompt": body["prompt"], "sampling": sampling_of(body)}
    return Asked("text", endpoint, content)


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of a request, as a tape knows it."""
    left_out = {"model", "prompt", *_DRAWN}
    return {key: plain(value) for key, value in body.items() if key not in left_out}


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    message.pop("tool_call_id", None)
    for call in message.get("tool_calls", ()):
        call.pop("id", None)
    return message


async def completed(lane: Lane, asked: Asked, ask: Callable[[], Awaitable[Completion]], *, model: str) -> Completion:
    """The answer to a request: from the tape, or from the server, and then kept.

    What the tape answers is counted as recorded, for `model`: one try, since a tape stands above retries.

    Raises:
        EndpointError: the server refused or did not answer, now or when it was recorded.
        CassetteError: the tape has no answer, and nobody may be asked.
    """

    def again(slot: Slot, answer: Answer) -> Completion:
        return _again(answer, model)

    return await through(lane, asked, ask, again=again, kept=lambda found: Answer("ok", plain(found)), failed=_failed)


def _failed(error: BaseException) -> Answer | None:
    if isinstance(error, asyncio.CancelledError):
        return Answer("cancelled")
    if isinstance(error, EndpointError):
        response = {"message": str(error), "status": error.status, "is_full": error.is_full}
        return Answer("failed", response, error.reason)
    # A bug, which whoever asked may have taken for a failure of its own.
    return Answer("failed", {"bug": type(error).__name__}, "bug") if isinstance(error, Exception) else None


def _again(answer: Answer, model: str) -> Completion:
    held, whose = answer.response, asking()
    if whose is not None and answer.outcome == "failed":
        whose.tried(model, Usage(), failed=True, is_recorded=True)
    if answer.outcome == "failed" and "bug" in held:
        raise RuntimeError(f"{held['bug']}, when it was recorded")
    if answer.outcome == "failed":
        raise EndpointError(held["message"], status=held["status"], is_full=held["is_full"])
    found = replace(_adapter().validate_python(held), is_recorded=True)
    if whose is not None:
        whose.tried(model, found.usage, is_recorded=True)
    return found
