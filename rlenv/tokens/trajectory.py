"""One rollout as token ids: what the policy sampled, kept as it was, and what the environment put in between."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rlenv.errors import UnsupportedTemplate, UsageError
from rlenv.messages import Message, Observation
from rlenv.tokens.cut import CHARS_A_TOKEN, Keep, token_cut

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder

__all__ = ["TokenTrajectory"]

_THREAD_MESSAGES: Final = 8  # the first observation of so many messages takes about 5 ms
_THREAD_CHARS: Final = 8_000  # about 2 ms of encoding; longer contents are encoded in a thread


class TokenTrajectory:
    """Token ids that only grow; made by `TokenEncoder.start`, used by one task at a time.

    `len(response_ids) == len(mask) == len(logprobs)` always holds. Ids and text of sampled turns are never changed,
    dropped or encoded again. The list properties are fresh lists, made in time linear in their length.

    Attributes:
        reason: why the last observation was refused ("" where it was not).
        turn_spans: start and end (exclusive) in `response_ids` of every sampled turn.
        closed_turns: indices of the turns that stopped without the stop mark, and were closed by the environment.
        has_logprobs: whether every sampled turn came with log-probabilities.
        images: the decoded images of the prompt and of all observations, in the order of their placeholders.
        differences: what the template would have written otherwise, one text for each observation concerned; it stays
            empty but with an encoder of history "keep".
    """

    __slots__ = (
        "_cut",
        "_encoder",
        "_ids",
        "_is_thinking",
        "_logprobs",
        "_mask",
        "_max_response_tokens",
        "_max_total_tokens",
        "_prompt_length",
        "closed_turns",
        "differences",
        "has_logprobs",
        "images",
        "keep",
        "max_observation_tokens",
        "reason",
        "turn_spans",
    )

    def __init__(
        self,
        encoder: TokenEncoder,
        prompt_ids: array[int],
        *,
        images: Sequence[Any] = (),
        max_response_tokens: int | None = None,
        max_total_tokens: int | None = None,
        max_observation_tokens: int | None = None,
        keep: Keep = "head_tail",
    ) -> None:
        self._encoder = encoder
        self._ids = prompt_ids
        self._prompt_length = len(prompt_ids)
        self._mask = bytearray()
        self._logprobs = array("d")
        self._max_response_tokens = max_response_tokens
        self._max_total_tokens = max_total_tokens
        self._is_thinking = False
        self.max_observation_tokens = max_observation_tokens
        self.keep = keep
        self.reason = ""
        self.turn_spans: list[tuple[int, int]] = []
        self.closed_turns: list[int] = []
        self.has_logprobs = True
        self.images = list(images)
        self.differences: list[str] = []

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt's ids, generation prompt included."""
        return self._ids[: self._prompt_length].tolist()

    @property
    def response_ids(self) -> list[int]:
        """All ids after the prompt: sampled turns and observations."""
        return self._ids[self._prompt_length :].tolist()

    @property
    def context_ids(self) -> list[int]:
        """Prompt and response: what the policy continues."""
        return self._ids.tolist()

    @property
    def mask(self) -> list[int]:
        """1 for what the policy sampled, its end token included; 0 for all else. Aligned with `response_ids`."""
        return list(self._mask)

    @property
    def logprobs(self) -> list[float]:
        """Natural logarithms as they were given, aligned with `response_ids`.

        0.0 where the mask is 0; NaN where a turn was sampled and none were given, so that it cannot pass for a number.
        """
        return self._logprobs.tolist()

    @property
    def remaining(self) -> int | None:
        """How many more tokens the response may have, at least 0; None where it has no limit."""
        limit = self._limit_of_response()[0]
        return None if limit is None else max(limit - len(self._mask), 0)

    @property
    def has_thinking(self) -> bool:
        """Whether a sampled turn has thought, as far as the marks `<think>` and `</think>` tell."""
        return self._is_thinking

    def _limit_of_response(self) -> tuple[int | None, str]:
        """The tokens that the response may have in all, and which limit it is."""
        limit, name = self._max_response_tokens, "response"
        if self._max_total_tokens is not None:
            total = self._max_total_tokens - self._prompt_length
            if limit is None or total < limit:
                return total, "total"
        return limit, name

    def __len__(self) -> int:
        """The tokens of the response."""
        return len(self._mask)

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> str:
        """Appends a sampled turn exactly as it is, and returns its text without the end tokens at its very end.

        Nothing is dropped: ids that stand behind a stop mark stay, and show in the text.

        Args:
            ids: what the policy sampled, its end token included where it gave one.
            logprobs: one natural logarithm for each id; None where they are not known.

        Raises:
            UsageError: `logprobs` has another length than `ids`, or an id is none of the model's; nothing is changed.
        """
        if logprobs is not None and len(logprobs) != len(ids):
            raise UsageError(f"{len(logprobs)} log-probabilities for {len(ids)} ids; expected one for each")
        try:
            sampled = array("q", ids)
            given = array("d", logprobs) if logprobs is not None else array("d", (math.nan,)) * len(sampled)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"token ids and log-probabilities must be numbers: {error}") from error
        unknown = self._encoder.vocabulary.unknown(sampled)
        if unknown is not None:
            raise UsageError(f"{unknown} is no id of the tokenizer; token ids are neither negative nor beyond its last")
        end = len(sampled)
        end_ids = self._encoder.end_ids
        while end and sampled[end - 1] in end_ids:
            end -= 1
        text = self._encoder.decode(sampled[:end].tolist())
        start = len(self._mask)
        self._ids.extend(sampled)
        self._mask.extend(b"\x01" * len(sampled))
        self._logprobs.extend(given)
        self.turn_spans.append((start, start + len(sampled)))
        self.has_logprobs = self.has_logprobs and logprobs is not None
        self._is_thinking = self._is_thinking or "</think>" in text or "<think>" in text
        return text

    def add_observation(self, observation: Observation, *, max_tokens: int | None = None) -> bool:
        """Appends an observation's ids with mask 0, the next generation prompt included; all of it or nothing.

        An image counts with all tokens that the processor makes of it; one that cannot be read is a note in its place.
        Each content is cut first, so that its structure always stands. A turn that stopped without the stop mark is
        closed before. False where the result does not fit into `remaining`, and `reason` says so; the trajectory is
        unchanged then.

        Args:
            max_tokens: the content's limit for this observation, instead of the trajectory's.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages here; the message names the template.
            UsageError: there is no sampled turn to answer, or no message to append.
        """
        difference = self._accepted(observation)
        return self._append(*self._encode(observation.messages, self._limit(max_tokens)), difference)

    async def add_observation_async(self, observation: Observation, *, max_tokens: int | None = None) -> bool:
        """The same, with images and long contents worked on in a thread so that the event loop is not held up.

        Nothing is appended when the wait is cancelled.
        """
        messages = observation.messages
        is_quick = sum(len(message.content) for message in messages) <= _THREAD_CHARS
        is_quick = is_quick and not any(message.images for message in messages)
        if is_quick and (len(messages) <= _THREAD_MESSAGES or self._encoder.knows(messages)):
            return self.add_observation(observation, max_tokens=max_tokens)
        self._checked(observation)

        def encoded() -> tuple[array[int], tuple[Any, ...], str]:
            difference = self._accepted(observation)
            return *self._encode(messages, self._limit(max_tokens)), difference

        return self._append(*await asyncio.to_thread(encoded))

    def cut_messages(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> tuple[Message, ...]:
        """Messages with their contents cut to `max_observation_tokens`, as an observation of them would show."""
        limit = self._limit(max_tokens)
        messages = self._encoder.show(messages).messages
        if limit is None:
            return messages
        cut = token_cut(self._encoder.vocabulary.plain, max_tokens=limit, keep=self.keep)
        return tuple(replace(message, content=cut(message.content)) for message in messages)

    def _limit(self, max_tokens: int | None) -> int | None:
        return max_tokens if max_tokens is not None else self.max_observation_tokens

    def _checked(self, observation: Observation) -> tuple[Message, ...]:
        if not observation.messages:
            raise UsageError("the observation has no messages; expected those that answer the turn")
        if not self.turn_spans or self.turn_spans[-1][1] != len(self._mask):
            raise UsageError("no sampled turn stands before this observation; call add_sampled first")
        return observation.messages

    def difference(self, observation: Observation) -> str:
        """How the template would write the history otherwise once this observation follows, "" where it only grows.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages at all.
            UsageError: there is no sampled turn to answer, or no message to append.
        """
        messages = self._checked(observation)
        return self._encoder.rewrites([message.role for message in messages], after_thinking=self._is_thinking)

    async def difference_async(self, observation: Observation) -> str:
        """The same, in a thread where a conversation of this shape was not looked at before."""
        if len(observation.messages) <= _THREAD_MESSAGES or self._encoder.knows(observation.messages):
            return self.difference(observation)
        return await asyncio.to_thread(self.difference, observation)

    def observed(self, messages: Sequence[Message]) -> int:
        """The tokens that messages have behind a turn, its missing stop mark included."""
        shown = self._encoder.show(messages)
        return len(self._encoder.encode_messages(shown.messages, places=shown.places))

    def _accepted(self, observation: Observation) -> str:
        fault = self.difference(observation)
        if fault and self._encoder.history != "keep":
            raise UnsupportedTemplate(self._encoder.refusal([m.role for m in observation.messages], fault))
        return fault

    def _encode(self, messages: Sequence[Message], limit: int | None) -> tuple[array[int], tuple[Any, ...]]:
        shown = self._encoder.show(messages)
        messages, images, places = shown.messages, shown.images, shown.places
        if limit is not None:
            if sum(len(message.content) for message in messages) <= limit * CHARS_A_TOKEN:
                ids = self._encoder.encode_messages(messages, places=places)
                if len(ids) <= limit:
                    return ids, images
            cut = token_cut(self._encoder.vocabulary.plain, max_tokens=limit, keep=self.keep)
            messages = [replace(message, content=cut(message.content)) for message in messages]
        return self._encoder.encode_messages(messages, places=places), images

    def _append(self, ids: array[int], images: Sequence[Any], difference: str) -> bool:
        is_open = len(self._mask) == self.turn_spans[-1][0] or self._ids[-1] != self._encoder.stop_id
        is_open = is_open and self._encoder.same_turn is None  # nothing closes a turn that goes on
        if is_open:
            ids = array("q", (self._encoder.stop_id,)) + ids
        limit, name = self._limit_of_response()
        if limit is not None and len(self._mask) + len(ids) > limit:
            whole = self._max_response_tokens if name == "response" else self._max_total_tokens
            self.reason = f"the observation has {len(ids)} tokens; {self.remaining} of {whole} {name} tokens are left"
            return False
        if is_open:
            self.closed_turns.append(len(self.turn_spans) - 1)
        self._ids.extend(ids)
        self._mask.extend(bytes(len(ids)))
        self._logprobs.extend(array("d", bytes(8 * len(ids))))
        self.images.extend(images)
        if difference:
            self.differences.append(difference)
        self.reason = ""
        return True
