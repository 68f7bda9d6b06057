"""Reads what veRL's file logger writes: one JSON object a step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

__all__ = ["MetricsFile", "StepFigures", "figures_of", "merged", "without_failures"]

_RLENV = re.compile(r"rlenv/([^/]+)/(.+)")


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one step that a person follows.

    `reward` is the mean score of the step's training episodes (None at step 0, where nothing is trained, and where all
    failed). `success` and `terms` hold the held-out success and the reward terms of each validation, by its label, at
    steps that validate; failed episodes are left out of them. A split with `report_by` also has LABEL/GROUP in
    `success`, and its own figures are means of the groups'. `invalid` is the share of validation episodes that
    failed. `seconds` is veRL's own time for the step, `phases` its parts in seconds. `specs` are the figures of
    training by spec, as `rlenv_verl.loop.replay_buffer` names them.
    """

    step: int
    reward: float | None
    success: Mapping[str, float]
    invalid: float
    seconds: float | None
    entropy: float | None
    response_tokens: float | None
    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    specs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def figures_of(step: int, values: Mapping[str, Any], *, sources: Mapping[str, str]) -> StepFigures:
    """The figures in one line of the log.

    Args:
        step: veRL's global step.
        values: veRL's metrics by name.
        sources: the data source of each validation, by label.
    """
    success: dict[str, float] = {}
    terms: dict[str, dict[str, float]] = {}
    invalid = 0.0
    for label, source in sources.items():
        means = _means(values, source)
        grouped = {key: value for key, value in means.items() if "/" in key}
        if grouped:
            means = _means_of_groups(grouped)
        invalid = max(invalid, means.get("invalid", 0.0))
        if "success" in means:
            success[label] = means["success"]
            of_groups = {
                key.removesuffix("/success"): rate for key, rate in grouped.items() if key.endswith("/success")
            }
            success |= {f"{label}/{group}": rate for group, rate in of_groups.items()}
        named = {key.removeprefix("term_"): value for key, value in means.items() if key.startswith("term_")}
        if named:
            terms[label] = named
    specs: dict[str, dict[str, float]] = {}
    for key in values:
        found = _RLENV.fullmatch(key)
        number = _number(values, key) if found else None
        if found and number is not None:
            specs.setdefault(found[1], {})[found[2]] = number
    prefix = "timing_s/"
    timings = {key.removeprefix(prefix): _number(values, key) for key in values if key.startswith(prefix)}
    return StepFigures(
        step=step,
        reward=_number(values, "critic/score/mean"),
        success=success,
        invalid=invalid,
        seconds=timings.get("step"),
        entropy=_number(values, "actor/entropy"),
        response_tokens=_number(values, "response_length/mean"),
        terms=terms,
        phases={name: seconds for name, seconds in timings.items() if name != "step" and seconds is not None},
        tokens_per_s=_number(values, "perf/throughput"),
        specs=specs,
    )


def _means(values: Mapping[str, Any], source: str) -> dict[str, float]:
    """The means of one data source by variable, or by GROUP/VARIABLE; veRL appends the episodes a task (`mean@1`)."""
    start, out = f"val-aux/{source}/", {}
    for key in values:
        if key.startswith(start) and "/mean@" in key:
            number = _number(values, key)
            if number is not None:
                out[key[len(start) : key.rindex("/mean@")]] = number
    return out


def _means_of_groups(grouped: Mapping[str, float]) -> dict[str, float]:
    """The mean of each variable over the groups of a split (`report_by`), each group counted alike."""
    by_variable: dict[str, list[float]] = {}
    for key, value in grouped.items():
        by_variable.setdefault(key.rpartition("/")[2], []).append(value)
    return {variable: math.fsum(found) / len(found) for variable, found in by_variable.items()}


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


@dataclass(slots=True)
class MetricsFile:
    """Follows a log that is being written: each call of `new` gives the steps that were completed since the last.

    Whole lines are copied to the end of `copy` as they are read, where one is given.
    """

    path: Path
    sources: Mapping[str, str]
    copy: Path | None = None
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
        whole = [line for line in lines if line.strip()]
        if whole and self.copy is not None:
            with self.copy.open("ab") as file:
                file.write(b"".join(line + b"\n" for line in whole))
        for line in whole:
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
    """One entry a step, in order.

    Where a step was logged twice the later figures win. A validation that was repeated when a run was taken up again
    has no figures of training: those of the earlier line stay.
    """
    out: dict[int, StepFigures] = {}
    for entry in steps:
        before = out.get(entry.step)
        if before is not None and entry.seconds is None and before.seconds is not None:
            entry = replace(
                before,
                success={**before.success, **entry.success},
                terms={**before.terms, **entry.terms},
                invalid=max(before.invalid, entry.invalid),
            )
        out[entry.step] = entry
    return [entry for _, entry in sorted(out.items())]
