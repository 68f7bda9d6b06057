"""Episodes of an environment, one after another, for a host that asks for a reset and then for steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from rlenv.dialects.base import Cut
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.errors import RlenvError, UsageError
from rlenv.messages import Message, Sampled
from rlenv.trajectory import Step, Trajectory


@dataclass(frozen=True, slots=True)
class Opened:
    """An episode that was opened: its id, its prompt as messages and as the dialect's text, and its tools.

    `is_ended` is True where opening failed or the row cannot be read: there is nothing to act on then, `text` is "",
    and the first step, whatever its action, reports the end.
    """

    id: str
    messages: tuple[Message, ...]
    text: str
    tools: tuple[Mapping[str, Any], ...]
    is_ended: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The prompt as JSON: messages and tools in OpenAI's form."""
        messages = [message.as_dict() for message in self.messages]
        return {"text": self.text, "messages": messages, "tools": [dict(tool) for tool in self.tools]}


class Session:
    """One episode at a time, safe after its end: what a server or another framework's environment object holds.

        session = rlenv.Session(environment)
        opened = await session.reset(task=3)
        step = await session.step("<answer>42</answer>")      # and again: the same end, paid once
        session.trajectory.outcome()
        await session.aclose()

    An invalid reward is None in the step and in the outcome. Nothing that a row or a policy holds is ever raised. The
    environment is the caller's to close.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.episode: Episode | None = None
        self.id = ""
        self._steps = 0

    async def reset(
        self,
        *,
        task: int | Mapping[str, Any] = 0,
        split: str | None = None,
        seed: int | None = None,
        cut: Cut | None = None,
        id: str = "",
    ) -> Opened:
        """Closes the episode that is open, and opens one.

        Args:
            task: the row's index in the split, or a row of its own.
            split: by default the first of the spec.
            seed: of the episode; see `Environment.start`.
            cut: how long results are cut; see `Environment.start`.
            id: the caller's name of the episode; made up where it gives none.

        Raises:
            UsageError: no such split or row. The session has no episode then.
        """
        await self.aclose()
        self.episode, self.id, self._steps = None, "", 0
        episode = self.environment.start(task=task, split=split, seed=seed, cut=cut)
        await episode.open()
        self.episode, self.id = episode, id or uuid4().hex
        text = "" if episode.is_ended else episode.prompt_text
        return Opened(self.id, episode.messages, text, episode.tool_schemas, episode.is_ended)

    async def step(
        self, action: str | Message | Sampled, *, finish_reason: str = "", token_ids: Sequence[int] = ()
    ) -> Step:
        """Takes one action. After the end nothing is done: a step says the end again, shows and pays nothing, so that
        the rewards of all steps sum to the total; that of an invalid reward stays None.

        Args:
            action: the policy's text, or an assistant message with structured calls.
            finish_reason: `length` where a limit of tokens has cut the action.
            token_ids: the ids that were sampled, for the record.

        Raises:
            UsageError: before `reset`, or while another step is running.
        """
        episode = self._running_episode
        if episode.is_reported:
            return Step.last(episode.trajectory, reward=None if episode.failure else 0.0)
        if not isinstance(action, Sampled) and (finish_reason or token_ids):
            action = Sampled(action, finish_reason, tuple(token_ids))
        step = await episode.step(action)
        self._steps += 1
        return step

    @property
    def is_ended(self) -> bool:
        """True where no action can change anything: the episode has ended, or there is none."""
        return self.episode is None or self.episode.is_ended

    @property
    def is_reported(self) -> bool:
        """True once a step has returned the end of the episode."""
        return self.episode is not None and self.episode.is_reported

    @property
    def trajectory(self) -> Trajectory:
        """The frozen record of the episode.

        Raises:
            UsageError: before `reset`, or the episode has not ended.
        """
        return self._running_episode.trajectory

    def state(self) -> dict[str, Any]:
        """The episode's id (None before the first), the number of actions taken, and whether it has ended."""
        return {"episode_id": self.id or None, "step_count": self._steps, "is_ended": self.is_ended}

    def fail(self, reason: str, message: str) -> None:
        """Ends an episode that runs with an invalid reward, such as `client` where whoever played it has gone."""
        if self.episode is not None:
            self.episode.fail(reason, message)

    async def aclose(self) -> None:
        """Closes the episode's resources; may be called twice. Its trajectory stays."""
        if self.episode is not None:
            await self.episode.aclose()

    @property
    def _running_episode(self) -> Episode:
        if self.episode is None:
            raise UsageError("there is no episode yet", hint="call reset() first")
        return self.episode


def shown(environment: Environment, split: str, index: int) -> str:
    """The prompt of a row as people read it: its last message; its address where it cannot be read alone."""
    try:
        messages = environment.prompt(environment.tasks(split)[index], {})
    except RlenvError:  # it takes resources, or the row has a fault
        messages = ()
    return (messages[-1].content if messages else "") or f"{environment.spec.name}/{split}/{index}"


def why_invalid(outcome: Mapping[str, Any] | None) -> str:
    """The words for an outcome (`Trajectory.outcome()`) whose reward is invalid; None is an episode without an end."""
    failure = None if outcome is None else outcome["failure"]
    return f"{failure['reason']}: {failure['message']}" if failure else "the episode did not end"


def require_alone(environment: Environment, by: str, hint: str) -> None:
    """Passes where an episode can be scored without its siblings, as `by` does it.

    Raises:
        UsageError: terms compare the answers to one task.
    """
    if names := ", ".join(environment.parts.scorer.group_names):
        told = f"the terms {names} of {environment.spec.name} compare the answers to one task, and {by} by itself"
        raise UsageError(told, hint=hint)
