"""Which episodes have no reward, and why: what a command says of them."""

from __future__ import annotations

from collections.abc import Sequence

from rlenv._base.bounded import cut_end
from rlenv.trajectory import Trajectory

__all__ = ["invalid_lines"]

_LISTED = 5
_SHOWN_CHARS = 400


def invalid_lines(trajectories: Sequence[Trajectory]) -> list[str]:
    """A line for each of the commonest reasons, with the first episode that has it and how many more there are."""
    found: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.reward.total is None:
            failure = trajectory.failure
            why = ("reward", _terms(trajectory)) if failure is None else (failure.reason, failure.message)
            found.setdefault(why, []).append(trajectory)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [_line(reason, message, one) for (reason, message), one in ordered[:_LISTED]]
    if len(ordered) > _LISTED:
        lines.append(f"… and {len(ordered) - _LISTED} more reasons")
    return lines


def _line(reason: str, message: str, trajectories: Sequence[Trajectory]) -> str:
    first = trajectories[0]
    more = f" and {len(trajectories) - 1} more" if len(trajectories) > 1 else ""
    text = cut_end(message, _SHOWN_CHARS)
    line = f"{first.split}/{first.task_index} seed {first.seed}{more}: {reason}: {text}"
    return line.replace("\n", " ")


def _terms(trajectory: Trajectory) -> str:
    bad = [f"{term.name}: {term.error}" for term in trajectory.reward.terms.values() if term.status == "invalid"]
    return "; ".join(bad)
