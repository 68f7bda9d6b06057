"""A rollout as training rows: one, or a new one wherever the chat template rewrites what was sampled before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import Message, Observation
from rlenv.tokens.trajectory import Limits, TokenTrajectory

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder


class TokenRows:
    """One rollout as the rows that are trained; made by `TokenEncoder.start_rows`, used by one task at a time.

    With an encoder of history "grow" or "keep" there is one row, the trajectory that `TokenEncoder.start` gives. With
    "rows" the row ends where the template would rewrite earlier turns (Qwen3 drops earlier thinking at a user message),
    and the next one starts with the template's rendering of the whole conversation as its prompt: what serving would
    see. Each sampled id stands in exactly one row with mask 1, and never changes. Contents of the environment are no
    control tokens in either.

    Limits: `max_prompt_tokens` holds for the first prompt. `max_total_tokens` holds for each row, its prompt
    included. `max_response_tokens` holds for all rows together: everything sampled, and every observation as the ids
    that its messages have behind a turn, also where they became part of a row's prompt.

    Attributes:
        rows: all rows so far; the policy continues the last.
        reason: why the last observation was refused ("" where it was not).
    """

    def __init__(
        self,
        encoder: TokenEncoder,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        limits: Limits,
    ) -> None:
        self._encoder = encoder
        self._given = tuple(messages)
        self._said: list[Message] = []
        self._tools = tools
        self._budget = limits.max_response_tokens
        self._text = ""
        self._turns: list[tuple[str, Message, tuple[str, ...]]] = []
        self._spent = 0  # of the budget, in the rows before the last
        self.reason = ""
        self.rows: list[TokenTrajectory] = [encoder.start_within(limits, messages, tools)]
        self._limits = replace(limits, max_prompt_tokens=None)

    @property
    def last(self) -> TokenTrajectory:
        """The row that the policy continues."""
        return self.rows[-1]

    @property
    def context_ids(self) -> list[int]:
        """The ids that the policy continues: prompt and response of the last row."""
        return self.last.context_ids

    @property
    def remaining(self) -> int | None:
        """The number of tokens that may still be sampled or observed, at least 0; None where there is no limit."""
        return self.last.remaining

    @property
    def differences(self) -> list[str]:
        """The differences from the template's own rendering, for all rows; see `TokenTrajectory.differences`."""
        return [difference for row in self.rows for difference in row.differences]

    def respelled(self) -> int:
        """The number of answered turns that the template writes in other words than were sampled, thinking aside.

        What was sampled stays, and is trained; a server that is told the turn as a message shows the policy the
        template's spelling. Counted of turns whose message was given (`said`), once an episode has ended.
        """
        if self._encoder.same_turn is not None:
            return 0
        return sum(self._encoder.growth.respells(*turn) for turn in self._turns)

    def __len__(self) -> int:
        """The tokens of the response so far, of all rows: what the budget counts."""
        return self._spent + len(self.last)

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> str:
        """Appends a sampled turn to the last row; see `TokenTrajectory.add_sampled`."""
        self._text = self.last.add_sampled(ids, logprobs)
        return self._text

    def add_observation(
        self, observation: Observation, *, said: Message | None = None, max_tokens: int | None = None
    ) -> bool:
        """Appends an observation to the last row, or starts a new row where the template rewrites history.

        False where it does not fit, and `reason` says why; the rows are unchanged then.

        Args:
            said: the assistant's message that it answers, as the template shall write it in a new row's prompt:
                content, thinking, and calls as structured data. None where no row can come (history "grow" or "keep").
            max_tokens: the content's limit for this observation, instead of the trajectory's.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised at all.
            UsageError: there is no sampled turn to answer, no message to append, or `said` is not the assistant's.
        """
        self._check(said)
        if self._encoder.history != "rows" or not self.last.difference(observation, said=said):
            fits = self.last.add_observation(observation, max_tokens=max_tokens, said=said)
            self.reason = self.last.reason
        else:
            assert said is not None
            fits = self._take_row(*self._new_row(observation, said, max_tokens))
        return self._remember(observation, said, max_tokens) if fits else False

    async def add_observation_async(
        self, observation: Observation, *, said: Message | None = None, max_tokens: int | None = None
    ) -> bool:
        """As `observe`, with slow work done in a thread so that the event loop is not held up.

        Nothing is appended when the wait is cancelled.
        """
        self._check(said)
        if self._encoder.history != "rows" or not await self._find_difference(observation, said):
            fits = await self.last.add_observation_async(observation, max_tokens=max_tokens, said=said)
            self.reason = self.last.reason
        else:
            assert said is not None
            fits = self._take_row(*await asyncio.to_thread(self._new_row, observation, said, max_tokens))
        return self._remember(observation, said, max_tokens) if fits else False

    async def _find_difference(self, observation: Observation, said: Message | None) -> str:
        if self.last.knows(observation, said=said):
            return self.last.difference(observation, said=said)
        return await asyncio.to_thread(self.last.difference, observation, said=said)

    def _check(self, said: Message | None) -> None:
        if said is not None and said.role != "assistant":
            raise UsageError(f"said is a message of {said.role}; expected the assistant's")
        if said is None and self._encoder.history == "rows":
            raise UsageError('said is None; with history "rows" a new row may have to write the assistant\'s message')

    def _remember(self, observation: Observation, said: Message | None, max_tokens: int | None) -> bool:
        if said is not None:
            self._turns.append((self._text, said, tuple([message.role for message in observation.messages])))
        if said is not None and self._encoder.history == "rows":
            self._said += [self._template(said), *self.last.cut_messages(observation.messages, max_tokens=max_tokens)]
        return True

    def _template(self, said: Message) -> Message:
        """The assistant message as a template reads it: one that knows no calls reads the text as it was sampled."""
        if not said.tool_calls or not self._encoder.growth.is_plain(self.last.story):
            return said
        return Message("assistant", self._text)

    def _new_row(
        self, observation: Observation, said: Message, max_tokens: int | None
    ) -> tuple[TokenTrajectory | None, int, str]:
        """A row that begins with the whole conversation, what is spent before it, and why there is none."""
        messages = self.last.cut_messages(observation.messages, max_tokens=max_tokens)
        spent = len(self) + self.last.observed(messages)
        if self._budget is not None and spent > self._budget:
            left = max(self._budget - len(self), 0)
            reason = (
                f"the observation has {spent - len(self)} tokens; {left} of {self._budget} response tokens are left"
            )
            return None, 0, reason
        left_over = None if self._budget is None else self._budget - spent
        story, opens = self.last.told(observation, said=said)
        try:
            row = self._encoder.start_after(
                self._given,
                (*self._said, self._template(said), *messages),
                tools=self._tools,
                story=story,
                limits=replace(self._limits, max_response_tokens=left_over),
            )
        except EpisodeError as error:
            return None, 0, str(error)
        row.opens(opens)
        return row, spent, ""

    def _take_row(self, row: TokenTrajectory | None, spent: int, reason: str) -> bool:
        self.reason = reason
        if row is None:
            return False
        self._spent = spent
        self.rows.append(row)
        return True
