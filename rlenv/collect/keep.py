"""Which episodes are worth imitating: a comparison of their figures, and two things that never are unless asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rlenv.errors import UsageError
from rlenv.language.expressions import Expression, compile_expression
from rlenv.trajectory import Trajectory

__all__ = ["FIGURES", "FLAGS", "Keep"]

FLAGS: Final = ("success", "invalid", "terminated", "truncated", "cut", "answered")
"""Figures that are 1 or 0; an expression may name them alone."""

FIGURES: Final = (*FLAGS, "reward", "turns", "calls", "calls_failed", "calls_malformed", "chars")


@dataclass(frozen=True, slots=True)
class Keep:
    """Decides over episodes; `of` makes one."""

    expression: Expression
    keeps_invalid: bool
    keeps_cut: bool

    @classmethod
    def of(cls, source: str, *, terms: Collection[str], keeps_invalid: bool = False, keeps_cut: bool = False) -> Keep:
        """Reads an expression such as `success and turns <= 3` over `FIGURES` and the spec's reward terms.

        Raises:
            ExpressionError: it cannot be read, or names what there is not; the message has the nearest name.
            UsageError: it names a term that is called as a figure is.
        """
        expression = compile_expression(source, names=tuple(dict.fromkeys((*FIGURES, *terms))), flags=FLAGS)
        for name in expression.names:
            if name in FIGURES and name in terms:
                raise UsageError(
                    f"--keep: '{name}' is a figure of every episode and a reward term of this spec",
                    hint="rename the term",
                )
        return cls(expression, keeps_invalid, keeps_cut)

    def reason_against(self, trajectory: Trajectory) -> str:
        """Why an episode is rejected, as a word for counting; "" where it is kept."""
        if trajectory.reward.total is None and not self.keeps_invalid:
            return "invalid reward"
        if _is_cut(trajectory) and not self.keeps_cut:
            return "cut turn"
        decided = self.expression(_figures(trajectory))
        if decided is None:
            return "keep: unknown"
        return "" if decided else "keep: false"


def _is_cut(trajectory: Trajectory) -> bool:
    """Whether a limit ended one of the policy's turns in the middle."""
    return trajectory.reason == "turn_tokens" or any(turn.was_cut or turn.parsed.is_cut for turn in trajectory.turns)


def _figures(trajectory: Trajectory) -> Mapping[str, float | None]:
    results = [result for turn in trajectory.turns for result in turn.results]
    own: dict[str, float | None] = {
        "success": None if trajectory.success is None else float(trajectory.success),
        "invalid": float(trajectory.reward.total is None),
        "terminated": float(trajectory.terminated),
        "truncated": float(trajectory.truncated),
        "cut": float(_is_cut(trajectory)),
        "answered": float(trajectory.answer is not None),
        "reward": trajectory.reward.total,
        "turns": float(len(trajectory.turns)),
        "calls": float(trajectory.calls),
        "calls_failed": float(sum(result.is_error for result in results)),
        "calls_malformed": float(sum(turn.calls_malformed for turn in trajectory.turns)),
        "chars": float(sum(len(turn.action) for turn in trajectory.turns)),
    }
    return {**{name: term.value for name, term in trajectory.reward.terms.items()}, **own}
