"""One rollout as token ids: what the policy sampled, kept as it was, and what the environment put in between."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlenv.errors import EpisodeError, UnsupportedTemplate, UsageError
from rlenv.messages import Message, Observation
from rlenv.tokens.dummies import TurnShape
from rlenv.tokens.grown import RESPELLS
from rlenv.tokens.growth import AnsweredTurn
from rlenv.tokens.shapes import Story, end_of
from rlenv.tokens.vocabulary import CHARS_A_TOKEN, Keep, token_cut

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder

_UNKNOWN: Final = array("d", (math.nan,))
_THREAD_CHARS: Final = 8_000  # about 2 ms of encoding; longer contents are encoded in a thread
_LONG_TURN: Final = 65_536  # the shape of as many characters takes about 10 ms to read


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The room of a trajectory, in tokens; None: no limit. See `TokenEncoder.start`."""

    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    max_total_tokens: int | None = None
    max_observation_tokens: int | None = None
    keep: Keep = "head_tail"

    def check_prompt(self, length: int) -> None:
        """Passes where a prompt of `length` tokens fits.

        Raises:
            EpisodeError: it does not; `reason` is "prompt_tokens" or "total_tokens".
        """
        if self.max_prompt_tokens is not None and length > self.max_prompt_tokens:
            raise EpisodeError(
                f"the prompt has {length} tokens; expected at most {self.max_prompt_tokens} (max_prompt_tokens)",
                reason="prompt_tokens",
            )
        if self.max_total_tokens is not None and length >= self.max_total_tokens:
            raise EpisodeError(
                f"the prompt has {length} tokens; expected fewer than {self.max_total_tokens} (max_total_tokens)",
                reason="total_tokens",
            )

    def of_response(self, prompt_length: int) -> tuple[int | None, str]:
        """The tokens that a response may have in all, and which limit that is: "response" or "total"."""
        limit = self.max_response_tokens
        if self.max_total_tokens is not None:
            total = self.max_total_tokens - prompt_length
            if limit is None or total < limit:
                return total, "total"
        return limit, "response"


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

    def __init__(
        self, encoder: TokenEncoder, prompt_ids: array[int], story: Story, limits: Limits, *, images: Sequence[Any] = ()
    ) -> None:
        limits.check_prompt(len(prompt_ids))
        self._encoder = encoder
        self._ids = prompt_ids
        self._prompt_length = len(prompt_ids)
        self._mask = bytearray()
        self._logprobs = array("d")
        self._limits = limits
        self._story = story
        self._opens: bool | None = None  # whether the prompt of the last turn ends inside thinking
        self._last = ""
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
        """The number of tokens that the response may still have, at least 0; None where it has no limit."""
        limit = self._limits.of_response(self._prompt_length)[0]
        return None if limit is None else max(limit - len(self._mask), 0)

    @property
    def story(self) -> Story:
        """The shapes of the conversation so far."""
        return self._story

    @property
    def is_thinking(self) -> bool:
        """True if the next turn begins inside a block of thinking that its prompt has opened."""
        if self._opens is None:
            self._opens = self._encoder.growth.opens(self._story)
        return self._opens

    def opens(self, thinking: bool) -> None:
        """Says whether the prompt ends inside a block of thinking; it is found by rendering where nobody does."""
        self._opens = thinking

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
            given = array("d", logprobs) if logprobs is not None else _UNKNOWN * len(sampled)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"token ids and log-probabilities must be numbers: {error}") from error
        plain = ids if type(ids) is list else sampled.tolist()
        unknown = self._encoder.vocabulary.unknown(plain)
        if unknown is not None:
            raise UsageError(f"{unknown} is no id of the tokenizer; token ids are neither negative nor beyond its last")
        end = len(plain)
        end_ids = self._encoder.end_ids
        while end and plain[end - 1] in end_ids:
            end -= 1
        if end < len(plain) and plain[end] in self._encoder.closing_ids:
            end += 1
        text = self._encoder.decode(plain[:end])
        start = len(self._mask)
        self._ids.extend(sampled)
        self._mask.extend(b"\x01" * len(sampled))
        self._logprobs.extend(given)
        self.turn_spans.append((start, start + len(sampled)))
        self.has_logprobs = self.has_logprobs and logprobs is not None
        self._last = text
        return text

    def end_turn(self, observation: Observation | None = None, *, said: Message | None = None) -> int | None:
        """Ends the last turn with the id that the template ends it with, as if that had been sampled (mask 1).

        For a turn that nobody sampled: its text was encoded, which has no end. What was sampled keeps its own end.

        Args:
            observation: what answers the turn; None for the last one of a conversation.
            said: the assistant's message that it answers, as it was read.

        Returns:
            The id that was appended; None where the turn ends with an end token already.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages at all.
            UsageError: no turn was added, or something stands behind it.
        """
        self._check_is_turn()
        if self._last_id() in self._encoder.end_ids:
            return None
        messages = (Message("user", ""),) if observation is None else observation.messages
        turn = self._last_turn(messages, said)
        found = end_of(self._encoder, self._story, turn, is_last=observation is None)
        self._ids.append(found)
        self._mask.append(1)
        self._logprobs.append(math.nan)
        self.turn_spans[-1] = (self.turn_spans[-1][0], len(self._mask))
        self.has_logprobs = False
        return found

    def add_observation(
        self, observation: Observation, *, max_tokens: int | None = None, said: Message | None = None
    ) -> bool:
        """Appends an observation's ids with mask 0, the next generation prompt included; all of it or nothing.

        An image counts with all tokens that the processor makes of it; one that cannot be read is a note in its place.
        Each content is cut first, so that its structure always stands. A turn that stopped without a stop mark is
        closed before. False where the result does not fit into `remaining`, and `reason` says so; the trajectory is
        unchanged then.

        Args:
            max_tokens: the content's limit for this observation, instead of the trajectory's.
            said: the assistant's message that it answers, as it was read; its shape is read from the text without it.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages here, or the template would write the
                history otherwise and the encoder's history is not "keep"; the message names the template.
            UsageError: there is no sampled turn to answer, or no message to append.
        """
        self._check(observation)
        return self._append(self._prepare_ids(observation.messages, self._limit_of(max_tokens), said))

    async def add_observation_async(
        self, observation: Observation, *, max_tokens: int | None = None, said: Message | None = None
    ) -> bool:
        """As `observe`, with images, long contents and new shapes worked on in a thread, beside the event loop.

        Nothing is appended when the wait is cancelled.
        """
        self._check(observation)
        messages, limit = observation.messages, self._limit_of(max_tokens)
        is_quick = sum(len(message.content) for message in messages) <= _THREAD_CHARS
        if is_quick and not any(message.images for message in messages) and self.knows(observation, said=said):
            return self._append(self._prepare_ids(messages, limit, said))
        return self._append(await asyncio.to_thread(self._prepare_ids, messages, limit, said))

    def difference(self, observation: Observation, *, said: Message | None = None) -> str:
        """The template's change to the history once this observation follows, "" where it only grows.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised for these messages at all.
            UsageError: there is no sampled turn to answer, or no message to append.
        """
        self._check(observation)
        finding = self._encoder.look(self._story, self._last_turn(observation.messages, said))
        if finding.is_refused:
            raise UnsupportedTemplate(finding.fault)
        return self._find_fault(finding, observation.messages)

    def knows(self, observation: Observation, *, said: Message | None = None) -> bool:
        """True if a conversation of this shape was looked at before, so that nothing has to be rendered.

        False of a turn so long that its shape takes long to read.
        """
        if self._encoder.same_turn is not None:
            return True
        if len(self._last) > _LONG_TURN:
            return False
        return self._opens is not None and self._encoder.growth.knows(
            self._story, self._last_turn(observation.messages, said)
        )

    def observed(self, messages: Sequence[Message]) -> int:
        """The tokens that messages have behind a turn."""
        shown = self._encoder.show(messages)
        return len(self._encoder.encode_messages(shown.messages, places=shown.places))

    def told(self, observation: Observation, *, said: Message | None = None) -> tuple[Story, bool]:
        """The shapes of the conversation behind an observation, and whether its prompt opens a block of thinking."""
        turn = self._last_turn(observation.messages, said)
        return self._story.after(turn), self._encoder.look(self._story, turn).opens

    def cut_messages(self, messages: Sequence[Message], *, max_tokens: int | None = None) -> tuple[Message, ...]:
        """Messages with their contents cut to `max_observation_tokens`, as an observation of them would show."""
        limit = self._limit_of(max_tokens)
        messages = self._encoder.show(messages).messages
        if limit is None:
            return messages
        cut = token_cut(self._encoder.vocabulary.plain, max_tokens=limit, keep=self._limits.keep)
        return tuple(replace(message, content=cut(message.content)) for message in messages)

    def _limit_of(self, max_tokens: int | None) -> int | None:
        return max_tokens if max_tokens is not None else self._limits.max_observation_tokens

    def _check(self, observation: Observation) -> None:
        if not observation.messages:
            raise UsageError("the observation has no messages; expected those that answer the turn")
        self._check_is_turn()

    def _check_is_turn(self) -> None:
        if not self.turn_spans or self.turn_spans[-1][1] != len(self._mask):
            raise UsageError("no sampled turn stands before this observation", hint="call add_sampled first")

    def _last_turn(self, messages: Sequence[Message], said: Message | None) -> TurnShape:
        """The shape of the last turn."""
        encoder = self._encoder
        roles = tuple([message.role for message in messages])
        images: tuple[int, ...] = ()
        if encoder.images is not None and any(message.images for message in messages):
            images = tuple(len(message.images) for message in messages)
        if encoder.same_turn is not None:
            return TurnShape("none", "", roles, images)
        if self._opens is None:
            self._opens = encoder.growth.opens(self._story)
        start = self._prompt_length + self.turn_spans[-1][0]
        return encoder.growth.read(
            self._story, self._last, roles, images, said, is_open=self._opens, ids=lambda: set(self._ids[start:])
        )

    def _find_fault(self, finding: AnsweredTurn, messages: Sequence[Message]) -> str:
        """The template's change to the history; "" where there is none."""
        ids = [message.tool_call_id for message in messages if message.role == "tool"] if finding.needs_ids else []
        has_ids = bool(ids) and all(one and one in self._last for one in ids)
        fault = "" if has_ids else finding.fault
        if not fault and finding.rewrites(self._last):
            fault = RESPELLS
        return fault or self._other_end(finding)

    def _other_end(self, finding: AnsweredTurn) -> str:
        """The difference between the turn's end and the template's; "" where there is none, or the turn was cut."""
        last = self._last_id()
        encoder = self._encoder
        if encoder.same_turn is not None or last is None or last not in encoder.end_ids:
            return ""
        stop = finding.layout.stop
        if last == encoder.vocabulary.added[stop]:
            return ""
        return f"it ends this turn with {stop}, and {encoder.decode([last])} was sampled"

    def _last_id(self) -> int | None:
        """The last sampled id; None where the turn has none."""
        return None if len(self._mask) == self.turn_spans[-1][0] else self._ids[-1]

    def _prepare_ids(self, messages: Sequence[Message], limit: int | None, said: Message | None) -> _Prepared:
        shown = self._encoder.show(messages)
        messages, images, places = shown.messages, shown.images, shown.places
        turn = self._last_turn(messages, said)
        finding = self._encoder.look(self._story, turn)
        fault = self._find_fault(finding, messages)
        if fault and self._encoder.history != "keep":
            raise UnsupportedTemplate(fault if finding.is_refused else self._encoder.refusal(turn.roles, fault))
        layout = finding.layout
        ids: array[int] | None = None
        if limit is not None:
            if sum(len(message.content) for message in messages) <= limit * CHARS_A_TOKEN:
                ids = self._encoder.encode_messages(messages, places=places, layout=layout)
            if ids is None or len(ids) > limit:
                cut = token_cut(self._encoder.vocabulary.plain, max_tokens=limit, keep=self._limits.keep)
                messages = [replace(message, content=cut(message.content)) for message in messages]
                ids = None
        if ids is None:
            ids = self._encoder.encode_messages(messages, places=places, layout=layout)
        return _Prepared(ids, images, turn, finding, fault)

    def _append(self, made: _Prepared) -> bool:
        ids = made.ids
        layout = made.finding.layout
        last = self._last_id()
        is_closed = False
        if self._encoder.same_turn is None:  # nothing closes a turn that goes on
            stop_id = self._encoder.vocabulary.added[layout.stop]
            # Behind another end mark none is written, but for the one that the next message begins with.
            is_ended = last is not None and last in self._encoder.end_ids and layout.ends_turns
            if last != stop_id and not is_ended:
                ids = array("q", (stop_id,)) + ids
                is_closed = True
        limit, name = self._limits.of_response(self._prompt_length)
        if limit is not None and len(self._mask) + len(ids) > limit:
            whole = self._limits.max_response_tokens if name == "response" else self._limits.max_total_tokens
            self.reason = f"the observation has {len(ids)} tokens; {self.remaining} of {whole} {name} tokens are left"
            return False
        if is_closed:
            self.closed_turns.append(len(self.turn_spans) - 1)
        self._ids.extend(ids)
        self._mask.extend(bytes(len(ids)))
        self._logprobs.frombytes(bytes(8 * len(ids)))
        if made.images:
            self.images.extend(made.images)
        if made.fault:
            self.differences.append(made.fault)
        self._story.add(made.turn)
        self._opens = made.finding.opens
        self.reason = ""
        return True


class _Prepared(NamedTuple):
    """An observation before it is appended: its ids and images, and what the template makes of the turn before it."""

    ids: array[int]
    images: tuple[Any, ...]
    turn: TurnShape
    finding: AnsweredTurn
    fault: str
