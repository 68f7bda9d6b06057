"""The exactness of a chat template for what an environment really plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, rollout
from rlenv.messages import Message
from rlenv.policies.scripted import OraclePolicy
from rlenv.tokens.check import CheckReport, check
from rlenv.tokens.dialogues import Dialogue, Turn
from rlenv.tokens.encoder import TokenEncoder
from rlenv.tokens.verdict import Prompts, Verdict, opened_prompts, verdict_of
from rlenv.trajectory import Trajectory

__all__ = ["check_environment", "judge_environment"]

_PROMPTS = 64
"""Prompts of each split that are looked at."""
_EPISODES = 20


def judge_environment(environment: Environment, encoder: TokenEncoder | Callable[[], TokenEncoder]) -> Verdict:
    """The verdict on a chat template for an environment: its own prompts of every split, tools, calls and users.

    Episodes are opened and not played.

    Raises:
        UsageError: no episode of the environment opens, so that its prompts are not known.
    """
    return verdict_of(environment, encoder, asyncio.run(_prompts(environment)))


def check_environment(
    environment: Environment, make: Callable[[], TokenEncoder], *, name: str, dialogues: int = 100, seed: int = 0
) -> CheckReport:
    """All checks of `rlenv.tokens.check` with the verdict for an environment, and its oracle's episodes replayed."""
    return check(
        make,
        name=name,
        dialogues=dialogues,
        seed=seed,
        real=list(_played(environment)),
        verdict=judge_environment(environment, make),
        with_tools=bool(environment.parts.tools),
        with_users=environment.parts.simulated is not None,
    )


async def _prompts(environment: Environment) -> Prompts:
    from rlenv.errors import UsageError

    prompts, why = await opened_prompts(environment, most=_PROMPTS)
    if not list(prompts):
        raise UsageError(f"no episode of {environment.spec.name} opens, so that its prompts are not known: {why}")
    return prompts


def _played(environment: Environment) -> Iterator[Dialogue]:
    """Dialogues of an environment: up to 20 tasks of its first split, played by its oracle; none without one."""
    if not environment.spec.oracle:
        return
    split = next(iter(environment.spec.tasks))

    async def play() -> list[Trajectory]:
        async with environment:
            count = min(len(environment.tasks(split)), _EPISODES)
            policy = OraclePolicy(environment.spec, environment.parts.dialect)
            return await rollout(environment, policy, [Job(split, task) for task in range(count)])

    for trajectory in asyncio.run(play()):
        turns = []
        for turn in trajectory.turns:
            if turn.observation is None or not turn.observation.messages:
                break
            parsed = turn.parsed
            said = Message("assistant", parsed.content, parsed.calls, thinking=parsed.thinking)
            turns.append(Turn(said, turn.observation.messages, "some" if parsed.thinking else "none"))
        yield Dialogue(trajectory.messages, tuple(map(dict, environment.tool_schemas)), tuple(turns))
