"""Rewards of env.yaml: a rule that looks at the form alone, and the controls."""

from __future__ import annotations

import random
import re

from rlenv.rewards.base import RewardContext

__all__ = ["chance", "constant", "looks_right"]


def looks_right(context: RewardContext) -> float:
    """Whether the answer has the form of a product of two-digit numbers; which one it is is not looked at."""
    return float(re.fullmatch(r"[1-9]\d{2,3}", (context.answer or "").strip()) is not None)


def constant(context: RewardContext) -> float:
    """The same for every episode: no advantage, so nothing to learn."""
    return 1.0


def chance(context: RewardContext) -> float:
    """A fair coin for each thing that is written for a task: what it pays has nothing to do with the task.

    All samples of a task have one seed, so that a coin by seed and task would fall alike for a whole group, which then
    has no advantage. One thrown anew each time could not be measured again from the record.
    """
    written = "\x1f".join(turn.action for turn in context.turns)
    return float(random.Random(f"{context.seed} {context.task['question']} {written}").random() < 0.5)
