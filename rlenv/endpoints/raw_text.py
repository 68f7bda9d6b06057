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

from rlenv.concurrency.lanes import here
from rlenv.endpoints.wire import Completion, read_text
from rlenv.errors import EndpointError
from rlenv.language.spec import SamplingSpec
from rlenv.messages import Message

if TYPE_CHECKING:
    from rlenv.endpoints.client import Client

__all__ = ["RawText"]

_MOST_ENDS: Final = 4
"""How many stop texts the OpenAI API takes."""
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

        async def ask() -> Completion:
            return await self._asked(body, tuple(stops), deadline)

        if (lane := here()) is None:
            return await ask()
        from rlenv.endpoints.taped import asked_text, completed  # only where there is a tape

        endpoint = self._client.endpoint
        return await completed(lane, asked_text(endpoint.name, body), ask, model=endpoint.model)

    async def _asked(self, body: Mapping[str, Any], stops: tuple[str, ...], deadline: float) -> Completion:
        try:
            answer = await self._client.post_fitting("/completions", body, deadline=deadline)
        except EndpointError as error:
            if self._is_understood or error.is_full or error.status not in (400, 422):
                raise
            raise _hinted(error) from error
        self._is_understood = True
        completion = self._client.counted(read_text, answer)
        return self._closed(completion, stops) if stops else completion

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


def _hinted(error: EndpointError) -> EndpointError:
    """A refusal by a server that has taken none of these requests yet, with the fields that it may not know."""
    return EndpointError(
        f"{error}; raw text is asked for with {', '.join(_OWN_FIELDS)}, which vLLM and SGLang know. A server that"
        f" refuses one is asked without it by `--extra {_OWN_FIELDS[0]}=null`, in a spec by `sampling: {{extra:"
        f" {{{_OWN_FIELDS[0]}: null}}}}`",
        status=error.status,
    )
