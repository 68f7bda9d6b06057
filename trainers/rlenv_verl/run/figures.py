"""The figures of a run's steps: read from veRL's log, and shown to people."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson
from rich.table import Table

from rlenv.cli.console import Console

WORDS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The figures in words."""
_PHASES: Final[Mapping[str, str]] = WORDS["phases"]
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
    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    specs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def figures_of(step: int, values: Mapping[str, Any], *, sources: Mapping[str, str]) -> StepFigures:
    """The figures in one line of the log."""
    success: dict[str, float] = {}
    terms: dict[str, dict[str, float]] = {}
    invalid = 0.0
    for label, source in sources.items():
        means = _source_means(values, source)
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
        terms=terms,
        phases={name: seconds for name, seconds in timings.items() if name != "step" and seconds is not None},
        tokens_per_s=_number(values, "perf/throughput"),
        specs=specs,
    )


def _source_means(values: Mapping[str, Any], source: str) -> dict[str, float]:
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
    """
    if entry.reward is None or not failed:
        return entry
    if failed >= episodes:
        return replace(entry, reward=None)
    return replace(entry, reward=entry.reward * episodes / (episodes - failed))


def by_step(steps: Sequence[StepFigures]) -> list[StepFigures]:
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


def series(steps: Sequence[StepFigures]) -> dict[str, list[tuple[int, float]]]:
    """Named curves of (step, value): the training reward and the held-out success of each mode."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in steps:
        for mode, rate in entry.success.items():
            curves.setdefault(f"held-out success, {mode}", []).append((entry.step, rate))
        if entry.reward is not None:
            curves.setdefault("training reward", []).append((entry.step, entry.reward))
    return curves


def step_lines(entry: StepFigures, *, total: int | None, seconds: float) -> list[str]:
    """A line for the step, and one for each validation in it. Figures that were not measured are left out."""
    head = f"step {entry.step:>3}" + (f"/{total}" if total else "")
    parts = [head]
    if entry.reward is not None:
        parts.append(f"reward {entry.reward:.3f}{_by_spec(entry.specs, 'reward')}")
    if (success := _mean_of(entry.specs, "success")) is not None:
        parts.append(f"success {success:.2f}{_by_spec(entry.specs, 'success')}")
    episodes = _sum_of(entry.specs, "episodes")
    if episodes and (invalid := _sum_of(entry.specs, "invalid")):
        parts.append(f"invalid {invalid / episodes:.1%}")
    if entry.specs:
        parts += [
            f"tools {1000 * value:.0f} ms" for value in (_mean_of(entry.specs, "tool_s/mean"),) if value is not None
        ]
        parts += [
            f"{_sum_of(entry.specs, name):,.0f} {unit}"
            for name, unit in (("tokens_per_s", "tokens/s"), ("calls_per_s", "calls/s"))
            if _sum_of(entry.specs, name)
        ]
    elif entry.tokens_per_s is not None:
        parts.append(f"{entry.tokens_per_s:,.0f} tokens/s")
    if entry.seconds is not None:
        shares = phase_shares([entry])
        longest = sorted(shares, key=lambda name: -shares[name])[:2]
        shown = ", ".join(f"{name} {shares[name]:.0%}" for name in longest if shares[name] >= 0.01)
        parts.append(f"{entry.seconds:.1f} s" + (f" ({shown})" if shown else ""))
    lines = ["  ".join(parts) + f"  at {seconds:.0f} s"]
    for label, rate in entry.success.items():
        terms = "".join(f"  {name} {value:.3f}" for name, value in entry.terms.get(label, {}).items())
        failed = f"  failed episodes {entry.invalid:.1%}" if entry.invalid else ""
        lines.append(f"{'':>{len(head)}}  held-out {label}: success {rate:.3f}{terms}{failed}")
    return lines


def phase_shares(steps: Sequence[StepFigures]) -> dict[str, float]:
    """The share of each phase in the time of all steps, the longest first; they add up to 1. Empty without times."""
    seconds: dict[str, float] = {}
    whole = 0.0
    for entry in steps:
        if entry.seconds is None:
            continue
        known = {_PHASES[name]: value for name, value in entry.phases.items() if name in _PHASES}
        within = sum(value for name, value in known.items() if name != _PHASES["testing"])
        known["other"] = max(0.0, entry.seconds - within)
        for name, value in known.items():
            seconds[name] = seconds.get(name, 0.0) + value
            whole += value
    return {name: seconds[name] / whole for name in sorted(seconds, key=lambda name: -seconds[name])} if whole else {}


def _by_spec(specs: Mapping[str, Mapping[str, float]], figure: str) -> str:
    found = {name: figures[figure] for name, figures in specs.items() if figure in figures}
    return f" ({', '.join(f'{name} {value:.2f}' for name, value in found.items())})" if len(specs) > 1 else ""


def _sum_of(specs: Mapping[str, Mapping[str, float]], figure: str) -> float:
    return sum(figures.get(figure, 0.0) for figures in specs.values())


def _mean_of(specs: Mapping[str, Mapping[str, float]], figure: str) -> float | None:
    """The mean over all specs' episodes; None where no spec has the figure."""
    found = [(figures[figure], figures.get("episodes", 1.0)) for figures in specs.values() if figure in figures]
    weight = sum(episodes for _, episodes in found)
    return sum(value * episodes for value, episodes in found) / weight if weight else None


def show_summary(summary: Mapping[str, Any], console: Console) -> None:
    """The held-out success of each validation, the figures of each spec and the time by phase."""
    held_out: list[Mapping[str, Any]] = summary["held_out_success"]
    for label in dict.fromkeys(key for entry in held_out for key in entry if key != "step"):
        points = [(entry["step"], entry[label]) for entry in held_out if label in entry]
        (first, start), (last, end) = points[0], points[-1]
        then = f"{start:.3f} at step {first}, " if len(points) > 1 else ""
        terms = "".join(f", {name} {value:.3f}" for name, value in summary["held_out_terms"].get(label, {}).items())
        console.say(
            f"held-out success, {label}: {then}{end:.3f} at step {last} ({summary['held_out_tasks']} tasks{terms})"
        )
    if summary["training"]:
        console.print(_training_table(summary["training"]))
    if summary["time_by_phase"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary["time_by_phase"].items() if share >= 0.005)
        console.say(f"time of a step ({summary['mean_step_s']} s): {shares}")
    if summary["lost_episodes"]:
        console.say(
            f"episodes that are not kept, since the run's folder could not be written: {summary['lost_episodes']}"
        )
    if said := summary["usage"]["said"]:
        console.say(said)
    if summary["failed_episodes"]:
        console.say(f"failed episodes: {summary['failed_episodes']}")
        for reason, count in summary["failure_reasons"].items():
            console.say(f"  {count} x {reason[:200]}")


def _training_table(training: Mapping[str, Mapping[str, Any]]) -> Table:
    """One column a spec: what training saw of it, the first and the last step where a figure moves."""
    table = Table("training, first to last step", box=None, pad_edge=False, header_style="bold")
    rows: dict[str, dict[str, str]] = {}
    for spec, figures in training.items():
        table.add_column(spec, justify="right")
        for name, value in figures.items():
            rows.setdefault(name, {})[spec] = _cell(value)
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(spec, "") for spec in training))
    return table


def _cell(value: Any) -> str:
    return f"{value[0]:.3f} … {value[1]:.3f}" if isinstance(value, Sequence) else f"{value:,.4g}"
