"""Tokens of prompts and of the oracle's episodes, measured with a model's own tokenizer and chat template."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import context_of, gather_all
from rlenv.errors import EpisodeError, PolicyError, RlenvError, UnsupportedTemplate
from rlenv.messages import Message
from rlenv.policies.scripted import OraclePolicy
from rlenv.rewards.scorer import Scorer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.bound import cut_of
from rlenv.tokens.rows import TokenRows

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits of a run in tokens; None where there is none, or where it is not known yet.

    `prompt` is for the first messages, `response` for all that follows, `turn` for one action. `is_own`: the response's
    is the spec's own `limits.response_tokens`.
    """

    prompt: int | None = None
    response: int | None = None
    turn: int | None = None
    is_own: bool = False

    def within(self, response: int | None) -> RunLimits:
        """These limits, with the spec's own budget for the response where that is smaller."""
        if response is None or (self.response is not None and self.response <= response):
            return self
        return replace(self, response=response, is_own=True)


@dataclass(frozen=True, slots=True)
class TaskLengths:
    """The tokens that one task takes.

    `prompt` is None where the episode did not open, and `response` where the oracle did not play it to the end;
    `fault` then says why. `response` counts what the oracle says with its end marks, and what it is answered; `turn` is
    the longest action. `rows` are prompt and response of each training row, where there is more than one. `limit`
    is the spec's own for the response, which rows may give.
    """

    task: int
    prompt: int | None = None
    response: int | None = None
    turn: int = 0
    turns: int = 0
    calls: int = 0
    rows: tuple[tuple[int, int], ...] = ()
    fault: str = ""
    limit: int | None = None

    def falls_out(self, limits: RunLimits) -> bool:
        """True if the task cannot be trained on, or not be solved as the oracle solves it, within `limits`."""
        limits = limits.within(self.limit)
        return (
            self.prompt is None
            or _is_over(self.prompt, limits.prompt)
            or _is_over(self.response, limits.response)
            or _is_over(self.turn, limits.turn)
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """The middle, the 99th percentile (nearest rank) and the largest of `count` numbers; how many are over `limit`."""

    count: int
    p50: int
    p99: int
    longest: int
    mean: float
    limit: int | None = None
    over: int = 0


@dataclass(frozen=True, slots=True)
class SplitLengths:
    """One split: `size` tasks, of which `tasks` were measured.

    `not_played` says why no oracle played, "" where one did.
    """

    environment: str
    split: str
    size: int
    limits: RunLimits
    tasks: tuple[TaskLengths, ...]
    not_played: str = ""

    @property
    def prompts(self) -> Lengths | None:
        """Of the first messages, with the tools."""
        return lengths_of([one.prompt for one in self.tasks if one.prompt is not None], self.limits.prompt)

    @property
    def responses(self) -> Lengths | None:
        """Of what follows the prompt in the oracle's episodes."""
        played = [(one.response, self.limits.within(one.limit).response) for one in self.tasks]
        found = lengths_of([number for number, _ in played if number is not None], self.limits.response)
        return None if found is None else replace(found, over=sum(_is_over(*one) for one in played))

    @property
    def is_by_row(self) -> bool:
        """True where rows have limits of their own for the response, which are smaller than the run's."""
        return len({self.limits.within(one.limit) for one in self.tasks}) > 1

    @property
    def turns(self) -> Lengths | None:
        """Of the longest action of each of the oracle's episodes."""
        return lengths_of([one.turn for one in self.tasks if one.response is not None], self.limits.turn)

    @property
    def later_prompts(self) -> Lengths | None:
        """Of the longest prompt of a later training row, for each episode that has one."""
        found = [max(prompt for prompt, _ in one.rows[1:]) for one in self.tasks if len(one.rows) > 1]
        return lengths_of(found, None)

    @property
    def falling_out(self) -> int:
        """The number of measured tasks that fall out, for whichever reason."""
        return sum(one.falls_out(self.limits) for one in self.tasks)

    @property
    def is_sample(self) -> bool:
        """True if fewer tasks were measured than there are."""
        return len(self.tasks) < self.size


def _is_over(number: int | None, limit: int | None) -> bool:
    return number is not None and limit is not None and number > limit


def lengths_of(numbers: Sequence[int], limit: int | None) -> Lengths | None:
    """A summary of `numbers`, None where there are none."""
    if not numbers:
        return None
    ordered = sorted(numbers)

    def rank(share: float) -> int:
        return ordered[max(math.ceil(share * len(ordered)), 1) - 1]

    over = sum(_is_over(number, limit) for number in ordered)
    return Lengths(len(ordered), rank(0.5), rank(0.99), ordered[-1], sum(ordered) / len(ordered), limit, over)


def chosen_tasks(environment: Environment, split: str, *, tasks: int | None, sample: int) -> list[int]:
    """At most `sample` indices, evenly over those that a run plays: all of the split, or `tasks` of it."""
    played = environment.part(split, tasks)
    return played if len(played) <= sample else [played[index * len(played) // sample] for index in range(sample)]


async def measure(
    environment: Environment,
    encoder: TokenEncoder,
    *,
    split: str,
    tasks: Sequence[int],
    limits: RunLimits,
    why_not_played: str = "",
    on_prompt: Callable[[Sequence[Message]], None] | None = None,
) -> SplitLengths:
    """The lengths of `tasks`, whose oracle plays them without thinking and without any limit on tokens.

    Rewards are not measured. An oracle's last action is counted and not taken where it is known to be the last.

    Args:
        environment: open for as long as this takes.
        encoder: of the model. With `history="keep"` lengths are those of "grow", for a template that rewrites too.
        limits: what the run gives; the spec's own `limits.response_tokens` is counted in.
        why_not_played: a reason not to play the oracle, such as that it would ask other models; "" plays it.
        on_prompt: called with the first messages of each episode.
    """
    if not environment.spec.oracle:
        why_not_played = why_not_played or "the spec has no oracle"
    oracle = None if why_not_played else environment.oracle()
    found: dict[int, TaskLengths] = {}
    waiting = iter(list(tasks))
    parts = environment.parts

    async def work() -> None:
        for task in waiting:
            found[task] = await _measure_task(environment, encoder, oracle, split, task, on_prompt)

    environment.parts = replace(parts, scorer=Scorer((), success=None))
    try:
        await gather_all([work() for _ in range(min(_AT_ONCE, len(tasks)))])
    finally:
        environment.parts = parts
    size = len(environment.tasks(split))
    ordered = tuple(found[task] for task in tasks)
    own = [math.inf if one.limit is None else one.limit for one in ordered]
    limits = limits.within(int(most) if (most := max(own, default=math.inf)) < math.inf else None)
    return SplitLengths(environment.spec.name, split, size, limits, ordered, why_not_played)


async def _measure_task(
    environment: Environment,
    encoder: TokenEncoder,
    oracle: OraclePolicy | None,
    split: str,
    task: int,
    on_prompt: Callable[[Sequence[Message]], None] | None,
) -> TaskLengths:
    opening = environment.unasked_opening
    episode = environment.start(task=task, split=split, cut=cut_of(environment, encoder), opening=opening)
    unknown = TaskLengths(task, limit=episode.limits.response_tokens)
    async with aclosing(episode):
        await episode.open()
        if episode.failure is not None:
            return replace(unknown, fault=episode.failure.message)
        if on_prompt is not None:
            on_prompt(episode.messages)
        try:
            rows = encoder.start_rows(episode.messages, tools=episode.tool_schemas)
        except (EpisodeError, UnsupportedTemplate) as error:
            return replace(unknown, fault=str(error))
        prompt = len(rows.last.prompt_ids)
        if oracle is None:
            return replace(unknown, prompt=prompt)
        try:
            async with asyncio.timeout(episode.limits.episode_s):
                return await _play_oracle(episode, encoder, oracle, rows)
        except (RlenvError, TimeoutError) as error:
            return replace(unknown, prompt=prompt, fault=str(error) or "the oracle's episode took too long")


async def _play_oracle(episode: Episode, encoder: TokenEncoder, oracle: OraclePolicy, rows: TokenRows) -> TaskLengths:
    """The oracle's episode behind an open prompt; its last action is counted and not taken."""
    session = oracle.start(context_of(episode))
    messages = list(episode.messages)
    turn = turns = calls = 0
    end = [] if encoder.same_turn is not None else [encoder.stop_id]
    while True:
        text = await session.act(messages)
        sampled = [*encoder.encode_text(text), *end]
        rows.add_sampled(sampled)
        turn, turns = max(turn, len(sampled)), turns + 1
        calls += len(episode.environment.parse(text)[1].calls)
        if session.is_over:
            break
        step = await episode.step(text)
        if step.is_last:
            break
        await rows.add_observation_async(step.observation, said=episode.turns[-1].parsed.said)
        messages += [Message("assistant", text), *step.observation.messages]
    if episode.failure is not None:
        raise PolicyError(episode.failure.message)
    lengths = tuple((len(row.prompt_ids), len(row)) for row in rows.rows)
    several = lengths if len(lengths) > 1 else ()
    limit = episode.limits.response_tokens
    return TaskLengths(episode.task_index, lengths[0][0], len(rows), turn, turns, calls, several, limit=limit)
