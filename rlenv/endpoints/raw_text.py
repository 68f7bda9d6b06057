"""Completions of raw text (`POST /completions`), as they were sampled.

A completion server has defaults that a chat server has not. It writes 16 tokens where no limit is given, leaves control
tokens out of its text, and puts what begins a conversation before a prompt that may begin with it already. Each of
these changes what a model reads or what is read of it, and none of them is an error: so each is answered with every
request.

Source: `CompletionRequest` of vLLM 0.27.1 (vllm/entrypoints/openai/completion/protocol.py).

Requests to an endpoint under a tape: one entry is an answer as whoever asked had it, above retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.bounded import adapter_of, plain
from rlenv.concurrency.lanes import Event, here, through
from rlenv.endpoints.account import Completion, Usage, as_wire, asking, read_text
from rlenv.errors import EndpointError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message

if TYPE_CHECKING:
    from rlenv.endpoints import Client

Around = Callable[[Callable[..., Awaitable[Completion]]], Awaitable[Completion]]
_MOST_ENDS: Final = 4
"""The most stop texts that the OpenAI API takes."""
_OWN_FIELDS: Final = ("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens")
"""Fields of these requests that are not the OpenAI API's."""


class RawText:
    """Asks a client's server for what follows on raw text."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_understood = False  # the server has taken a request with our fields

    async def complete(
        self,
        prompt: str,
        *,
        max_tokens: int,
        is_whole: bool = False,
        stops: Sequence[str] = (),
        ends: Sequence[str] = (),
        sampling: SamplingSpec | None = None,
        deadline: float = float("inf"),
        around: Around | None = None,
    ) -> Completion:
        """The completion of `prompt`, with the control tokens that were sampled in it.

        Args:
            max_tokens: the most tokens of the completion, fewer where the server's context has no room for so many;
                wins over that of any sampling.
            is_whole: `prompt` is written with all that a tokenizer would put before it: the server adds nothing.
            stops: the completion ends behind the first of these texts, which it keeps.
            ends: without `stops`, the completion ends before the first of these texts (the wire format knows four).
            sampling: fields that are set replace the endpoint's own; its `stop` texts stop beside these.
            deadline: when to give up, on the clock of `time.monotonic()`; retries that would pass it are not made.
            around: makes the request, as for `Client.chat`.

        Raises:
            EndpointError: the server refused, or did not answer within the retries; or `stops` are given and it does
                not say which of them it met.
        """
        body = {
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "add_special_tokens": not is_whole,
            **self._client.body(sampling),
            "prompt": prompt,
            "max_tokens": max_tokens,
        }
        if wanted := tuple(dict.fromkeys((*(stops or ends[:_MOST_ENDS]), *(body.get("stop") or ())))):
            body["stop"] = list(wanted)

        async def request(**tries: Any) -> Completion:
            return await self._ask_server(body, tuple(stops), deadline, **tries)

        endpoint = self._client.endpoint
        return await complete_taped(request, around, partial(asked_text, endpoint.name, body), model=endpoint.model)

    async def _ask_server(
        self, body: Mapping[str, Any], stops: tuple[str, ...], deadline: float, **tries: Any
    ) -> Completion:
        try:
            answer = await self._client.post_fitting("/completions", body, deadline=deadline, **tries)
        except EndpointError as error:
            if self._is_understood or error.is_full or error.status not in (400, 422):
                raise
            raise EndpointError(
                f"{error}; raw text is asked for with {', '.join(_OWN_FIELDS)}, which vLLM and SGLang know. A server"
                f" that refuses one is asked without it by `--extra {_OWN_FIELDS[0]}=null`, in a spec by `sampling:"
                f" {{extra: {{{_OWN_FIELDS[0]}: null}}}}`",
                status=error.status,
            ) from error
        self._is_understood = True
        completion = self._client.counted(read_text, answer)
        return self._close_at_stop(completion, stops) if stops else completion

    def _close_at_stop(self, completion: Completion, stops: tuple[str, ...]) -> Completion:
        """A completion with the stop text that it ended at, which servers leave out.

        With vLLM's `include_stop_str_in_output` it would stand there, but so would the end token of a turn that ended
        by itself, whose spelling nobody knows here.
        """
        text = completion.message.content
        if completion.finish_reason not in ("stop", "") or text.endswith(stops):
            return completion
        if completion.stopped_at is None:
            endpoint = self._client.endpoint
            raise EndpointError(
                f"endpoint '{endpoint.name}' ({endpoint.model} at /completions): the server does not say at which text"
                f" it stopped ({' or '.join(stops)}, or none of them); an episode that is one growing text needs"
                " `stop_reason`, as vLLM gives it, or `matched_stop`, as SGLang does"
            )
        if completion.stopped_at not in stops:
            return completion
        return replace(completion, message=Message("assistant", text + completion.stopped_at))


def fit_room(body: Mapping[str, Any], room: int | None) -> Mapping[str, Any]:
    """The request with limits that `room` tokens hold; as it is, where that is None.

    The least number that an author asks for comes down with the limit: a server refuses the two crossed, and whoever
    fills its context would so make its own reward invalid.
    """
    if room is None:
        return body
    given = ((name, body.get(name)) for name in ("max_tokens", "max_completion_tokens"))
    limits = {name: min(most, room) for name, most in given if type(most) is int} or {"max_tokens": room}
    least = body.get("min_tokens")
    if isinstance(least, int) and least > min(limits.values()):
        limits["min_tokens"] = min(limits.values())
    return {**body, **limits}


_DRAWN: Final = frozenset({"seed"})
"""Fields of a request that differ between equal questions."""


def asked_chat(
    endpoint: str, body: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Event:
    """A conversation as a tape knows it. Servers draw the ids of calls; results stand in the order of theirs."""
    content = {
        "model": body["model"],
        "messages": [_without_ids(as_wire(message)) for message in messages],
        "tools": plain(list(tools)),
        "sampling": sampling_of(body),
    }
    return Event(kind="chat", name=endpoint, request=content)


def asked_text(endpoint: str, body: Mapping[str, Any]) -> Event:
    """Raw text as a tape knows it."""
    content = {"model": body["model"], "prompt": body["prompt"], "sampling": sampling_of(body)}
    return Event(kind="text", name=endpoint, request=content)


def sampling_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of a request, as a tape knows it."""
    left_out = {"model", "prompt", *_DRAWN}
    return {key: plain(value) for key, value in body.items() if key not in left_out}


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    message.pop("tool_call_id", None)
    for call in message.get("tool_calls", ()):
        call.pop("id", None)
    return message


async def complete_taped(
    request: Callable[..., Awaitable[Completion]], around: Around | None, asked: Callable[[], Event], *, model: str
) -> Completion:
    """The answer to a request: from the tape, or from the server, and then kept.

    What the tape answers is counted as recorded, for `model`: one try, since a tape stands above retries.

    Args:
        around: makes the request, where it is not made as it is.
        asked: what a tape knows it by.

    Raises:
        EndpointError: the server refused or did not answer, now or when it was recorded.
        CassetteError: the tape has no answer, and nobody may be asked.
    """

    def ask() -> Awaitable[Completion]:
        return request() if around is None else around(request)

    def kept(event: Event, found: Completion) -> Event:
        return event.ended("ok", plain(found))

    if (lane := here()) is None:
        return await ask()
    return await through(lane, asked(), ask, again=partial(_from_tape, model=model), kept=kept, failed=_failure)


def _failure(event: Event, error: BaseException) -> Event | None:
    if isinstance(error, asyncio.CancelledError):
        return event.ended("cancelled")
    if isinstance(error, EndpointError):
        return event.ended("failed", {"message": str(error), **error.facts}, error.reason)
    # A bug, which whoever asked may have taken for a failure of its own.
    return event.ended("failed", {"bug": type(error).__name__}, "bug") if isinstance(error, Exception) else None


def _from_tape(event: Event, *, model: str) -> Completion:
    held, whose = event.response, asking()
    if event.outcome == "failed":
        if whose is not None:
            whose.tried(model, Usage(), failed=True, is_recorded=True)
        if "bug" in held:
            raise RuntimeError(f"{held['bug']}, when it was recorded")
        raise EndpointError(**held)
    found: Completion = replace(adapter_of(Completion).validate_python(held), is_recorded=True)
    if whose is not None:
        whose.tried(model, found.usage, is_recorded=True)
    return found
