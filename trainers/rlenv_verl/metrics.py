"""Reads what veRL's file logger writes: one JSON object a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

__all__ = ["MetricsFile", "StepFigures", "figures_of", "merged", "without_failures"]


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one step that a person follows.

    `reward` is the mean score of the step's training episodes (None at step 0, where nothing is trained, and where all
    failed). `success`
    holds the held-out success of each validation mode at steps that validate; failed episodes are left out of it.
    `invalid` is the share of validation episodes that failed. `seconds` is veRL's own time for the step.
    """

    step: int
    reward: float | None
    success: Mapping[str, float]
    invalid: float
    seconds: float | None
    entropy: float | None
    response_tokens: float | None


def figures_of(step: int, values: Mapping[str, Any], *, sources: Mapping[str, str]) -> StepFigures:
    """The figures in one line of the log.

    Args:
        step: veRL's global step.
        values: veRL's metrics by name.
        sources: the validation's data source of each mode.
    """
    success: dict[str, float] = {}
    invalid = 0.0
    for mode, source in sources.items():
        rate = _number(values, f"val-aux/{source}/success/mean@1")
        failed = _number(values, f"val-aux/{source}/invalid/mean@1")
        if failed is not None:
            invalid = max(invalid, failed)
        if rate is not None:
            success[mode] = rate
    return StepFigures(
        step=step,
        reward=_number(values, "critic/score/mean"),
        success=success,
        invalid=invalid,
        seconds=_number(values, "timing_s/step"),
        entropy=_number(values, "actor/entropy"),
        response_tokens=_number(values, "response_length/mean"),
    )


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) else None


@dataclass(slots=True)
class MetricsFile:
    """Follows a log that is being written: each call of `new` gives the steps that were completed since the last."""

    path: Path
    sources: Mapping[str, str]
    _offset: int = 0
    _rest: bytes = field(default=b"")

    def new(self) -> Iterator[StepFigures]:
        """The steps whose lines are complete by now; nothing where the file is not there yet."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            read = file.read()
        self._offset += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            if line.strip():
                entry = orjson.loads(line)
                yield figures_of(int(entry["step"]), entry["data"], sources=self.sources)


def without_failures(entry: StepFigures, *, failed: int, episodes: int) -> StepFigures:
    """The step's figures with its training reward over the episodes that did not fail.

    veRL's mean counts the placeholder 0 of a failed episode like a reward.

    Args:
        entry: as read from the log.
        failed: how many of the step's training episodes failed.
        episodes: how many there were.
    """
    if entry.reward is None or not failed:
        return entry
    if failed >= episodes:
        return replace(entry, reward=None)
    return replace(entry, reward=entry.reward * episodes / (episodes - failed))


def merged(steps: Sequence[StepFigures]) -> list[StepFigures]:
    """One entry a step, the last one written where a step was logged twice."""
    return [entry for _, entry in sorted({entry.step: entry for entry in steps}.items())]
