"""Recorded episodes stepped again through their environment, and what came out differently."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlenv._base.bounded import cut_end
from rlenv._base.jsonable import plain
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import together
from rlenv.messages import Sampled, ToolResult
from rlenv.trajectory import Trajectory, Turn

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One episode played again. `differences` name a place and what was there before and now; empty where nothing is.

    `skipped` says why an episode was not played again, "" where it was.
    """

    recorded: Trajectory
    again: Trajectory | None
    differences: tuple[str, ...]
    skipped: str = ""


async def replay(
    environment: Environment, trajectories: Sequence[Trajectory], *, concurrency: int = 64
) -> list[Replayed]:
    """Take the recorded actions once more, one by one, and compare what the environment answers.

    Compared are the prompt, each turn's parsed calls and observation, how the episode ended, the answer and every term
    of the reward; times are not. Tools, judges and services are called again. An episode that failed is not played:
    its environment was not well.
    """
    places = asyncio.Semaphore(concurrency)

    async def one(recorded: Trajectory) -> Replayed:
        async with places:
            return await _replayed(environment, recorded)

    return await together([one(trajectory) for trajectory in trajectories])


async def _replayed(environment: Environment, recorded: Trajectory) -> Replayed:
    if recorded.failure is not None and recorded.failure.reason != "reward":
        return Replayed(recorded, None, (), f"it had failed: {recorded.failure.reason}")
    if recorded.split not in environment.spec.tasks:
        return Replayed(recorded, None, (f"split: '{recorded.split}' is not in {environment.id}",))
    rows = environment.tasks(recorded.split)
    index = recorded.task_index
    task: int | Mapping[str, Any] = dict(recorded.task)
    moved = []
    if 0 <= index < len(rows):
        if plain(rows[index]) == plain(recorded.task):
            task = index
        else:
            moved = [f"task: row {index} of split '{recorded.split}' is another one now; the recorded row was played"]
    async with environment.start(task=task, split=recorded.split, seed=recorded.seed) as episode:
        prompt = episode.messages
        for turn in recorded.turns:
            if episode.is_ended:
                break
            await episode.step(Sampled(turn.action, turn.finish_reason, turn.token_ids))
        if not episode.is_ended:
            await episode.truncate(recorded.cut_by or "left")
        again = episode.trajectory
    was = plain(recorded.messages[: len(prompt)])
    differences = [*moved, *_difference("prompt", was, plain(prompt)), *_compare(recorded, again)]
    return Replayed(recorded, again, tuple(differences))


def _compare(old: Trajectory, new: Trajectory) -> list[str]:
    found: list[str] = []
    if len(old.turns) != len(new.turns):
        found.append(f"turns: {len(old.turns)} before, {len(new.turns)} now")
    for before, now in zip(old.turns, new.turns, strict=False):
        found += _difference(f"turn {before.index}, calls", _calls(before), _calls(now))
        found += _outages(before, now)
        found += _difference(f"turn {before.index}, observation", _shown(before), _shown(now))
    found += _difference("end", [old.reason, old.truncated], [new.reason, new.truncated])
    found += _difference("answer", old.answer, new.answer)
    for name in dict.fromkeys([*old.reward.terms, *new.reward.terms]):
        found += _numbers(f"reward {name}", _value(old, name), _value(new, name))
    found += _numbers("reward", old.reward.total, new.reward.total)
    return found + _difference("success", old.success, new.success)


def _outages(old: Turn, new: Turn) -> list[str]:
    """Calls that failed for want of the infrastructure once and not twice: no change of the environment's."""
    found = []
    for index, (before, now) in enumerate(zip(old.results, new.results, strict=False)):
        place = f"turn {old.index}, call {index} of '{before.name}'"
        if _is_outage(before) and not _is_outage(now):
            found.append(f"{place}: it failed for want of the infrastructure before ({before.reason}) and does not now")
        elif _is_outage(now) and not _is_outage(before):
            found.append(f"{place}: it fails for want of the infrastructure now ({now.reason}) and did not before")
    return found


def _is_outage(result: ToolResult) -> bool:
    return result.whose == "infrastructure" and result.reason != "injected"


def _calls(turn: Turn) -> Any:
    return plain(turn.parsed.calls)


def _shown(turn: Turn) -> Any:
    """What the policy was shown; one message's text where it is nothing but that."""
    messages = turn.observation.messages if turn.observation is not None else ()
    if len(messages) == 1 and not messages[0].images:
        return messages[0].content
    return [plain(message) for message in messages]


def _value(trajectory: Trajectory, name: str) -> float | None:
    term = trajectory.reward.terms.get(name)
    return None if term is None else term.value


def _numbers(place: str, old: float | None, new: float | None) -> list[str]:
    if old is not None and new is not None and math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-9):
        return []
    return _difference(place, old, new)


def _difference(place: str, old: object, new: object) -> list[str]:
    return [] if old == new else [f"{place}: {_short(old)} before, {_short(new)} now"]


def _short(value: object) -> str:
    return cut_end(repr(value), 160)
