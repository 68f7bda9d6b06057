"""A rollout as training rows: one, or a new one wherever the chat template rewrites what was sampled before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import Message, Observation
from rlenv.tokens.trajectory import TokenTrajectory

if TYPE_CHECKING:
    from rlenv.tokens.encoder import TokenEncoder

__all__ = ["TokenRows"]


class TokenRows:
    """One rollout over a template that is not append-only; made by `TokenEncoder.start_rows`.

    Where the template only grows there is one row, the same that `TokenEncoder.start` gives. Where it would rewrite
    earlier turns (Qwen3 drops earlier thinking at a user message), the row ends, and the next one starts with the
    template's rendering of the whole conversation as its prompt: what serving would see. Each sampled id stands in
    exactly one row with mask 1, and never changes. Contents of the environment are no control tokens in either.

    Attributes:
        rows: all rows so far; the policy continues the last.
        reason: why the last observation was refused ("" where it was not).
    """

    def __init__(
        self,
        encoder: TokenEncoder,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        **limits: Any,
    ) -> None:
        self._encoder = encoder
        self._given = tuple(messages)
        self._said: list[Message] = []
        self._tools = tools
        self._limits = limits
        self.reason = ""
        self.rows: list[TokenTrajectory] = [encoder.start(messages, tools=tools, **limits)]

    @property
    def last(self) -> TokenTrajectory:
        """The row that the policy continues."""
        return self.rows[-1]

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> str:
        """Appends a sampled turn to the last row; see `TokenTrajectory.add_sampled`."""
        return self.last.add_sampled(ids, logprobs)

    def add_observation(self, observation: Observation, *, said: Message) -> bool:
        """Appends an observation to the last row, or starts a new row where the template rewrites history.

        False where it does not fit, and `reason` says why; the rows are unchanged then.

        Args:
            said: the assistant's message that it answers, as the template shall write it in a new row's prompt:
                content with its thinking, and calls as structured data.

        Raises:
            UnsupportedTemplate: exact ids cannot be promised at all.
        """
        if said.role != "assistant":
            raise UsageError(f"said is a message of {said.role}; expected the assistant's")
        last = self.last
        if not self._encoder.rewrites([m.role for m in observation.messages], after_thinking=last.has_thinking):
            fits = last.add_observation(observation)
            self.reason = last.reason
        else:
            fits = self._start_row((*self._said, said, *last.cut_messages(observation.messages)))
        if fits:
            self._said += [said, *last.cut_messages(observation.messages)]
        return fits

    def _start_row(self, said: Sequence[Message]) -> bool:
        try:
            row = self._encoder.start_after(self._given, said, tools=self._tools, **self._limits)
        except EpisodeError as error:
            self.reason = str(error)
            return False
        self.reason = ""
        self.rows.append(row)
        return True
