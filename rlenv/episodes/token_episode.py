"""One episode played token by token: what a trainer samples in, training rows out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlenv.errors import EpisodeError, UnsupportedTemplate, UsageError
from rlenv.messages import Message, Sampled
from rlenv.tokens.bound import cut_of, said_of, thinking_of
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.rows import TokenRows
from rlenv.tokens.trajectory import TokenTrajectory
from rlenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment
    from rlenv.episodes.episode import Episode
    from rlenv.episodes.players import Seat
    from rlenv.policies.base import Policy


class TokenEpisode:
    """An episode of which every turn is sampled as token ids; entered with `async with`, or opened and closed.

        encoder = rlenv.bind(tokenizer, environment)
        async with TokenEpisode(environment, encoder, task=3, max_response_tokens=8192) as played:
            while not played.is_ended:
                ids, logprobs = await sample(played.context_ids, **played.sampling)
                await played.step(ids, logprobs)
        played.rows, played.trajectory.reward.total

    Results are cut by the tokens that the spec says. A limit of tokens, of the spec or of the trainer, ends the episode
    as truncated (`response_tokens`), and so does a turn that the chat template cannot go on behind (`template`): what
    was sampled is scored, and stays in the rows. A prompt that is too long, or that the template does not take, ends it
    with an invalid reward.

    Args:
        encoder: the policy's, bound to the environment (`bind`).
        task: the row's index in the split, or a row of its own.
        split: by default the first of the spec.
        seed: of the episode; see `Environment.start`.
        others: who plays the other players, where there are several; see `Environment.start`.
        episode: one that was made already and is not open yet, such as another player's; nothing of the task is asked
            for then.
        turn_tokens: the most tokens of one turn.
        max_prompt_tokens: a longer prompt is a failure, never cut.
        max_response_tokens: the room for turns and observations together; the spec's own limit holds beside it.
        max_total_tokens: the room for prompt and response together.

    Attributes:
        episode: the episode that is played.
        tokens: its training rows so far; None before a prompt stands.
        step_s: the seconds that the environment took for all steps.

    Raises:
        UsageError: no such split or row.
    """

    def __init__(
        self,
        environment: Environment,
        encoder: TokenEncoder,
        *,
        task: int | Mapping[str, Any] = 0,
        split: str | None = None,
        seed: int | None = None,
        turn_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        max_total_tokens: int | None = None,
        others: Policy | Seat | None = None,
        episode: Episode | None = None,
    ) -> None:
        self._environment, self._encoder, self._turn_tokens = environment, encoder, turn_tokens
        self._thinking = thinking_of(environment)
        self._sampled: Sampled | None = None
        self._taken = 0
        if episode is None:
            cut = cut_of(environment, encoder)
            episode = environment.start(task=task, split=split, seed=seed, cut=cut, others=others)
        self.episode: Episode = episode
        self._limits = {
            "max_prompt_tokens": max_prompt_tokens,
            "max_response_tokens": max_response_tokens,
            "max_total_tokens": max_total_tokens,
        }
        self.tokens: TokenRows | None = None
        self.step_s = 0.0

    async def __aenter__(self) -> TokenEpisode:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the episode; may be called twice."""
        await self.episode.aclose()

    async def open(self) -> None:
        """Opens the episode and encodes its prompt; one that fails over it has ended on return.

        Raises:
            UnsupportedTemplate: the chat template takes no prompt of these roles, whatever the row.
        """
        episode = self.episode
        await episode.open()
        if episode.is_ended:
            return
        try:
            if any(message.images for message in episode.messages):
                self.tokens = await asyncio.to_thread(self._start)
            else:
                self.tokens = self._start()
        except EpisodeError as error:
            episode.fail(error.reason, str(error))
        except UnsupportedTemplate as error:
            if not self._takes_prompts_of(episode.messages):
                raise
            episode.fail("prompt", str(error))  # this row's, and no other episode's
        else:
            await self._end_without_room()

    def _start(self) -> TokenRows:
        tools = self.episode.tool_schemas
        limits = (self.episode.limits.response_tokens, self._limits["max_response_tokens"])
        most = min((limit for limit in limits if limit is not None), default=None)
        return self._encoder.start_rows(
            self.episode.messages, tools=tools, **self._limits | {"max_response_tokens": most}
        )

    def _takes_prompts_of(self, messages: Sequence[Message]) -> bool:
        """True where the chat template takes a prompt of these roles at all."""
        if any(message.images for message in messages) and self._encoder.images is None:
            return False
        try:
            self._encoder.encode_prompt([Message(message.role, "x") for message in messages])
        except UnsupportedTemplate:
            return False
        return True

    @property
    def is_ended(self) -> bool:
        """True once nothing more is to be sampled."""
        return self.episode.is_ended

    @property
    def trajectory(self) -> Trajectory:
        """The record of the episode, which has ended; UsageError while it runs."""
        return self.episode.trajectory

    @property
    def rows(self) -> list[TokenTrajectory]:
        """The training rows: one, or several where the encoder's history is "rows"; [] where no prompt stands."""
        return [] if self.tokens is None else self.tokens.rows

    @property
    def context_ids(self) -> list[int]:
        """The ids that the policy continues."""
        return self._open().context_ids

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of the next turn; None for no limit."""
        limits = (self._open().remaining, self._turn_tokens)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def sampling(self) -> dict[str, Any]:
        """The arguments for sampling the next turn, by the names of vLLM's `SamplingParams`: where it ends."""
        stops = list(self._environment.stops)
        texts = {"stop": stops, "include_stop_str_in_output": True} if stops else {}
        return {"max_tokens": self.max_tokens, "stop_token_ids": self._encoder.stop_token_ids, **texts}

    def take(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, *, finish_reason: str | None = None
    ) -> Sampled:
        """Appends a sampled turn to the rows, and gives it as `Episode.step` takes it; `step` does both.

        Raises:
            UsageError: see `TokenTrajectory.add_sampled`; nothing is changed.
        """
        most = self.max_tokens
        text = self._open().add_sampled(ids, logprobs)
        if finish_reason is None:
            ended = not ids or ids[-1] in self._encoder.end_ids or text.endswith(self._environment.stops or "\0")
            finish_reason = "length" if most is not None and len(ids) >= most and not ended else ""
        self._sampled, self._taken = Sampled(text, finish_reason, tuple(ids)), self._taken + 1
        return self._sampled

    async def step(
        self, ids: Sequence[int], logprobs: Sequence[float] | None = None, *, finish_reason: str | None = None
    ) -> None:
        """Takes a turn as it was sampled, and appends what answers it.

        Args:
            ids: its ids, the end token included where there is one.
            logprobs: one natural logarithm for each id; None where they are not known.
            finish_reason: `length` where a limit of tokens has cut it, as the sampler says; where it says nothing, a
                turn of `max_tokens` without an end was cut.

        Raises:
            UsageError: see `take`; or the episode has ended.
        """
        sampled = self.take(ids, logprobs, finish_reason=finish_reason)
        began = time.perf_counter()
        try:
            step = await self.episode.step(sampled)
        finally:
            self.step_s += time.perf_counter() - began
        if step.is_last:
            return
        turn, tokens = self.episode.turns[-1], self._open()
        said = said_of(turn.action, turn.parsed, thinking=self._thinking)
        try:
            fits = await tokens.add_observation_async(step.observation, said=said)
        except UnsupportedTemplate:
            # What the environment plays can be shown, or nothing had begun: the policy chose the shape of its turn,
            # such as how many calls it writes.
            await self.episode.truncate("template")
            return
        if fits:
            await self._end_without_room()
        else:
            await self.episode.truncate("response_tokens")

    async def truncate(self, reason: str) -> Trajectory:
        """Ends the episode from outside and scores it as it stands, with a turn whose step was interrupted."""
        is_pending = self._taken > len(self.episode.turns)
        return await self.episode.truncate(reason, action=self._sampled if is_pending else None)

    async def _end_without_room(self) -> None:
        if self.max_tokens == 0:
            await self.episode.truncate("response_tokens")

    def _open(self) -> TokenRows:
        if self.tokens is None:
            raise UsageError("no prompt stands", hint="use `async with TokenEpisode(…) as played`, and see is_ended")
        return self.tokens
