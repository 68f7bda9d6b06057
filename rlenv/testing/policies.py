"""The laws that every policy keeps.

Run them on your own, in an environment that it is meant for:

    from rlenv.testing.policies import check_policy

    def test_my_policy_keeps_the_laws():
        check_policy(MyPolicy(max_tokens=256), "my_env.yaml", max_tokens=256)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import context_of, drive
from rlenv.errors import EpisodeError, PolicyError
from rlenv.messages import Message, Sampled
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.testing import laws

__all__ = ["check_policy", "check_policy_async", "closes"]


async def check_policy_async(
    policy: Policy,
    spec: str | Path | Environment,
    *,
    set: Mapping[str, Any] | None = None,
    task: int = 0,
    split: str | None = None,
    seed: int = 0,
    max_tokens: int | None = None,
    is_cut: bool = False,
    is_seeded: bool = True,
    failing: Policy | None = None,
    limit_s: float = laws.LIMIT_S,
) -> None:
    """Runs the laws of policies on `policy`, which is closed at the end; one that is broken is an AssertionError.

    Args:
        spec: a spec's file or name, or an environment, which is closed at the end.
        set: values that replace keys of the spec.
        task: the row of the split that is played.
        split: the first one by default.
        max_tokens: the policy's own limit of tokens in one action; None where it has none.
        is_cut: `max_tokens` is so low that it cuts the first action.
        is_seeded: equal seeds give equal actions; False for a server that does not promise it.
        failing: the same policy with an endpoint that is down.
        limit_s: how long one action may take, in seconds: a bound for what hangs.
    """
    name = getattr(policy, "name", None)
    laws.law("a policy has a name", isinstance(name, str) and bool(name), repr(name))
    environment = laws.environment_of(spec, set=set)
    one = _Laws(environment, task, split, seed, _Limits(max_tokens, is_cut, limit_s))
    async with environment:
        alone = await one.actions(policy)
        if is_seeded:
            again = await one.actions(policy)
            laws.law("equal seeds give equal actions", again == alone, f"{laws.short(alone)}, then {laws.short(again)}")
            for beside in await asyncio.gather(one.actions(policy), one.actions(policy)):
                rule = "episodes side by side get the actions of one alone"
                laws.law(rule, beside == alone, f"{laws.short(alone)} alone, {laws.short(beside)} beside another")
        await one.is_cancelled(policy)
        if failing is not None:
            await one.fails(failing)
    for when in ("", ", and may be closed again"):
        await closes(policy, f"a policy closes without an error{when}", limit_s)


check_policy = laws.in_own_loop(check_policy_async)


async def closes(policy: Policy, rule: str, limit_s: float) -> None:
    """States that a policy closes; with `rule`, that it does without an error."""
    with laws.raises_only(rule):
        await laws.in_time(policy.aclose(), "a policy closes in time", limit_s)


@dataclass(frozen=True)
class _Limits:
    max_tokens: int | None
    is_cut: bool
    limit_s: float


class _Laws:
    """One task of an environment, played by policies."""

    def __init__(self, environment: Environment, task: int, split: str | None, seed: int, limits: _Limits) -> None:
        self._environment = environment
        self._where: dict[str, Any] = {"task": task, "split": split, "seed": seed}
        self._limits = limits

    async def actions(self, policy: Policy) -> list[Any]:
        """The actions of a policy in one episode, each checked."""
        watched = _Watched(policy, self._limits)
        async with self._environment.start(**self._where) as episode:
            trajectory = await drive(episode, watched, limit_s=episode.limits.episode_s)
        failure = trajectory.failure
        is_playing = failure is None or failure.reason == "reward"
        laws.law("a policy acts until the episode ends", is_playing, failure)
        return watched.actions

    async def is_cancelled(self, policy: Policy) -> None:
        """An action that is waited for ends where the episode's time does."""
        async with self._environment.start(**self._where) as episode:
            session = policy.start(context_of(episode))
            await laws.ends_when_cancelled(
                laws.awaited(session.act([*episode.messages])), "an action", self._limits.limit_s
            )

    async def fails(self, policy: Policy) -> None:
        """An endpoint that is down is no action."""
        rule = "a policy whose endpoint is down raises PolicyError"
        async with self._environment.start(**self._where) as episode:
            try:
                with laws.raises_only(rule, PolicyError):
                    asked = policy.start(context_of(episode)).act(list(episode.messages))
                    said = await laws.in_time(
                        asked, "a policy whose endpoint is down says so in time", self._limits.limit_s
                    )
            except PolicyError:
                return
            finally:
                await closes(policy, "a policy whose endpoint is down closes without an error", self._limits.limit_s)
        raise laws.broken(rule, f"it said {laws.short(said)}")


class _Watched:
    """A policy whose every action is looked at."""

    def __init__(self, policy: Policy, limits: _Limits) -> None:
        self.name = policy.name
        self.actions: list[Any] = []
        self._policy = policy
        self._limits = limits
        self._session: PolicySession | None = None

    def start(self, context: PolicyContext) -> PolicySession:
        before = laws.kept_as_json(context.task)
        self._session = self._policy.start(context)
        laws.law(
            "a policy leaves the task as it is", laws.kept_as_json(context.task) == before, laws.short(context.task)
        )
        return self

    async def act(self, messages: Sequence[Message]) -> str | Message | Sampled:
        assert self._session is not None
        given = list(messages)
        with laws.raises_only("a policy that cannot act raises PolicyError", EpisodeError):
            asked = self._session.act(given)
            action = await laws.in_time(asked, "a policy acts in time", self._limits.limit_s)
        laws.law("a policy leaves the conversation as it is", given == list(messages), laws.short(given))
        self._check(action)
        self.actions.append(replace(action, token_ids=tuple(action.token_ids)) if type(action) is Sampled else action)
        return action

    async def aclose(self) -> None: ...

    def _check(self, action: object) -> None:
        said = action.action if isinstance(action, Sampled) else action
        is_action = isinstance(said, str) or (isinstance(said, Message) and said.role == "assistant")
        laws.law("an action is a text, an assistant's message, or Sampled of one", is_action, laws.short(action))
        limits = self._limits
        if limits.max_tokens is None:
            return
        if not isinstance(action, Sampled) or not action.finish_reason:
            raise laws.broken(
                "a policy with a limit of tokens says why each action ended (Sampled.finish_reason)", laws.short(action)
            )
        count = len(action.token_ids)
        laws.law(f"an action has at most {limits.max_tokens} tokens", count <= limits.max_tokens, f"it has {count}")
        if limits.is_cut and not self.actions:
            rule = "an action that the limit has cut says so (finish_reason is length)"
            laws.law(rule, action.finish_reason == "length", laws.short(action.finish_reason))
