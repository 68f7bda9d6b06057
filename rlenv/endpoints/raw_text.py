"""Completions of raw text (`POST /completions`), as they were sampled.

A completion server has defaults that a chat server has not. It writes 16 tokens where no limit is given, leaves control
tokens out of its text, and puts what begins a conversation before a prompt that may begin with it already. Each of
these changes what a model reads or what is read of it, and none of them is an error: so each is answered with every
request.

Source: `CompletionRequest` of vLLM 0.27.1 (vllm/entrypoints/openai/completion/protocol.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rlenv._chat import Completion, read_text
from rlenv.errors import EndpointError
from rlenv.messages import Message
from rlenv.spec import SamplingSpec

if TYPE_CHECKING:
    from rlenv.endpoints.client import Client

__all__ = ["REFUSED", "RawText"]

REFUSED: Final = frozenset({400, 413, 422})
"""What a server answers to a request that it cannot take for what it holds, such as one that is too long."""

_MOST_ENDS: Final = 4
"""How many stop texts the OpenAI API takes."""
_OWN_FIELDS: Final = ("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens")
"""Fields of these requests that are not the OpenAI API's."""


class RawText:
    """Asks a client's server for what follows on raw text."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_understood = False  # the server has taken a request with our fields
        self._is_narrow = False  # its context had no room for as many tokens as a completion may have

    async def complete(
        self,
        prompt: str,
        *,
        max_tokens: int,
        may_lower: bool = False,
        is_whole: bool = False,
        stops: Sequence[str] = (),
        ends: Sequence[str] = (),
        sampling: SamplingSpec | None = None,
        deadline: float = float("inf"),
    ) -> Completion:
        """What follows on `prompt`, with the control tokens that were sampled in it.

        Args:
            max_tokens: the most tokens of the completion; wins over that of any sampling.
            may_lower: where the server's context has no room for so many, as many are asked for as it has.
            is_whole: `prompt` is written with all that a tokenizer would put before it: the server adds nothing.
            stops: the completion ends behind the first of these texts, which it keeps.
            ends: without `stops`, the completion ends before the first of these texts (the wire format knows four).
            sampling: fields that are set replace the endpoint's own; its `stop` texts stop beside these.
            deadline: when to give up, on the clock of `time.monotonic()`; retries that would pass it are not made.

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
        answer = await self._answer(body, may_lower=may_lower, deadline=deadline)
        completion = self._client.counted(read_text, answer)
        return self._closed(completion, tuple(stops)) if stops else completion

    async def _answer(self, body: dict[str, Any], *, may_lower: bool, deadline: float) -> dict[str, Any]:
        """The server's answer, to a request for fewer tokens where they may be lowered and must be."""
        post, most = self._client.post, body["max_tokens"]
        if may_lower and self._is_narrow and (room := await self._room(body, deadline)) is not None:
            body = {**body, "max_tokens": min(most, max(room, 1))}
        try:
            answer = await post("/completions", body, deadline=deadline)
        except EndpointError as error:
            may_lower = may_lower and error.status in REFUSED and not self._is_narrow
            room = await self._room(body, deadline) if may_lower else None
            if room is None or not 0 < room < most:
                raise self._hinted(error) from error
            self._is_narrow = True
            answer = await post("/completions", {**body, "max_tokens": room}, deadline=deadline)
        self._is_understood = True
        return answer

    def _hinted(self, error: EndpointError) -> EndpointError:
        """A refusal by a server that has taken none of these requests yet, with the fields that it may not know."""
        if self._is_understood or error.status not in REFUSED:
            return error
        return EndpointError(
            f"{error}; raw text is asked for with {', '.join(_OWN_FIELDS)}, which vLLM and SGLang know. A server that"
            f" refuses one is asked without it by `--extra {_OWN_FIELDS[0]}=null`, in a spec by `sampling: {{extra:"
            f" {{{_OWN_FIELDS[0]}: null}}}}`",
            status=error.status,
        )

    async def _room(self, body: Mapping[str, Any], deadline: float) -> int | None:
        """How many tokens the server's context has left behind a prompt; None where it does not say."""
        asked = {key: body.get(key) for key in ("model", "prompt", "add_special_tokens")}
        # vLLM and SGLang count tokens beside the API, not in it.
        url = self._client.endpoint.base_url.removesuffix("/v1") + "/tokenize"
        try:
            counted = await self._client.post_to(url, asked, path="/tokenize", deadline=deadline)
        except EndpointError:
            return None
        count, whole = counted.get("count"), counted.get("max_model_len")
        return whole - count if type(count) is int and type(whole) is int else None

    def _closed(self, completion: Completion, stops: tuple[str, ...]) -> Completion:
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
