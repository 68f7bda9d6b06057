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
    """A fair coin by the episode's seed and task: rewards that are tied to nothing that the policy does."""
    return float(random.Random(f"{context.seed} {context.task['question']}").random() < 0.5)
