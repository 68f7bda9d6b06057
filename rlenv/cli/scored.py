"""Recorded episodes and their rewards of one spec or several, and `rlenv rescore --ablate`: what each term is worth."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import plain
from rlenv._base.text import figure
from rlenv.cli.console import Console, WithPrices, counting, show_spending_line
from rlenv.cli.options import Options, WithSet, argument, option
from rlenv.cli.terminal import say, write, write_json
from rlenv.endpoints.account import as_recorded
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.language.shipped import shipped
from rlenv.runs.figures.report import Row, interval_chart
from rlenv.runs.figures.rewards import Agreement, Estimate, agreements
from rlenv.runs.folder import RunInfo, open_run, read_info
from rlenv.runs.locks.lock import locks_of
from rlenv.runs.recorded import episodes_with_facts, machines_of
from rlenv.runs.replay import rescore
from rlenv.runs.schema import Facts
from rlenv.runs.summary import task_of, value_of
from rlenv.runs.usage import Prices, Spending, as_prices, spending_of_usage
from rlenv.runs.variants import Ablation, ablation, held_to_record, shared_terms, witnesses
from rlenv.trajectory import TermResult, Trajectory


@dataclass
class TasksCommand(Options):
    """`rlenv runs tasks`."""

    run: str = argument("a run's folder")
    out: str = argument("the .jsonl file; it may not be there", metavar="FILE")

    def execute(self) -> int:
        """Writes each task's row with a column `measured`: success and reward, means over `episodes` valid ones; and
        the split."""
        reader, found = open_run(Path(self.run)), defaultdict[tuple[str, int], list[Mapping[str, Any]]](list)
        for row in reader.rows():
            if reader.is_counted(row) and row["has_body"] and None not in (row["success"], row["reward"]):
                found[row["split"], row["task"]].append(row)
        if not found:
            raise UsageError(f"{self.run} has no valid episode")
        try:
            with open(self.out, "x", encoding="utf-8") as file:
                for (split, _), rows in sorted(found.items()):
                    means = {key: sum(float(row[key]) for row in rows) / len(rows) for key in ("success", "reward")}
                    task = reader.body(rows[0]["id"]).trajectory().task
                    file.write(
                        json.dumps({**plain(task), "measured": {**means, "episodes": len(rows), "split": split}}) + "\n"
                    )
        except OSError as error:
            raise UsageError(f"{self.out} cannot be written: {error.strerror}", hint="name another file") from error
        write(f"{len(found)} tasks in {self.out}\n")
        return 0


@dataclass(frozen=True, slots=True)
class Source:
    """The episodes of a run. `apart` tells apart, for each, answers to one task that are of several groups;
    `places` are those in the whole run."""

    path: str
    episodes: Sequence[tuple[Facts | None, Trajectory]]
    before: list[Trajectory]
    apart: list[Hashable]
    places: Sequence[int]

    @staticmethod
    def of(path: str) -> Source:
        """Reads a run's folder, or a file of trajectories.

        Raises:
            UsageError: as `rlenv.runs.recorded.recorded`.
        """
        episodes = episodes_with_facts(path)
        apart: list[Hashable] = [None if one is None else (one.step, one.mode, one.group) for one, _ in episodes]
        return Source(path, episodes, [one for _, one in episodes], apart, range(len(episodes)))


@dataclass(frozen=True, slots=True)
class Scored:
    """The episodes with the rewards of one environment; `taken` are the terms that were measured for another one."""

    environment: Environment
    episodes: list[Trajectory]
    taken: frozenset[str] = frozenset()


def environments_of(specs: Sequence[str], source: Source, *, set: Mapping[str, Any]) -> dict[str, Environment]:
    """The environments of `--spec` by name, or that of the run itself where none is given.

    Raises:
        UsageError: a spec is at fault, given twice, or there is none; or a server has played the run.
    """
    _info_of(source.path)
    if not specs:
        return {"recorded": environment_of(source.before, run=source.path, set=set)}
    if len({*specs}) < len(specs):
        raise UsageError("--spec names one spec twice", hint="leave one of them out")
    short = [Path(path).stem for path in specs]
    names = short if len({*short}) == len(short) else specs
    return {name: load(path, set=set) for name, path in zip(names, specs, strict=True)}


async def scored_again(
    environments: Mapping[str, Environment], source: Source, *, concurrency: int, only_invalid: bool = False
) -> dict[str, Scored]:
    """The episodes with the rewards of each environment; what one has measured another does not measure again.

    With `only_invalid` what is valid stays as it was recorded; where terms compare the samples of a task, in the groups
    that have nothing invalid.
    """
    if only_invalid:
        return {name: await _mend_scores(one, source, concurrency=concurrency) for name, one in environments.items()}
    found: dict[str, Scored] = {}
    held = machines_of(source.path)
    for name, environment in environments.items():
        known: list[dict[str, TermResult]] = [{} for _ in source.before]
        for earlier in found.values():
            names = shared_terms(earlier.environment, environment)
            for own, one in zip(known, earlier.episodes, strict=True):
                if one.failure is None or one.failure.reason == "reward":
                    own.update({term: one.reward.terms[term] for term in names if term not in own})
        async with environment:
            again = await rescore(
                environment, source.before, concurrency=concurrency, groups=source.apart, known=known,
                machines=lambda index: held(source.places[index]),
            )  # fmt: skip
        locks = locks_of(source.path).values()
        again = held_to_record(environment, source.before, again, witnesses(environment, locks), groups=source.apart)
        taken = frozenset.intersection(*map(frozenset, known)) if known else frozenset()
        found[name] = Scored(environment, again, taken)
    return found


async def _mend_scores(environment: Environment, source: Source, *, concurrency: int) -> Scored:
    invalid = [one.reward.total is None for one in source.before]
    if environment.parts.scorer.has_group_terms:
        groups = list(zip(map(task_of, source.before), source.apart, strict=True))
        spoiled = {group for group, is_invalid in zip(groups, invalid, strict=True) if is_invalid}
        invalid = [group in spoiled for group in groups]
    places = [place for place, is_invalid in enumerate(invalid) if is_invalid]
    part = Source(
        source.path,
        [source.episodes[place] for place in places],
        [source.before[place] for place in places],
        [source.apart[place] for place in places],
        [source.places[place] for place in places],
    )
    again = await scored_again({"": environment}, part, concurrency=concurrency)
    episodes = list(source.before)
    for place, one in zip(places, again[""].episodes, strict=True):
        episodes[place] = one
    return Scored(environment, episodes)


def spending_of(source: Source, measured: Mapping[str, Scored], prices: Prices | None) -> Spending:
    """The spending of the recorded episodes, once, and that of measuring them again by all specs."""
    now = [one for scored in measured.values() for each in scored.episodes for one in each.usage if not one.is_recorded]
    before = as_recorded(one for each in source.before for one in each.usage)
    return spending_of_usage((*before, *now), prices=prices)


def agreement_table(measured: Mapping[str, Scored]) -> list[Agreement]:
    """The agreement of all measured terms; a name that two specs use for two terms has the spec's behind it."""
    columns: dict[str, list[float | None]] = {}
    tasks: list[Hashable] = []
    for name, one in measured.items():
        tasks = [task_of(episode) for episode in one.episodes]
        for term in one.environment.parts.scorer.names:
            if term in one.taken:
                continue
            values = [value_of(episode, term) for episode in one.episodes]
            columns[f"{term} ({name})" if term in columns else term] = values
    return agreements(columns, tasks)


def bounded(estimate: Estimate | None) -> str:
    """A figure with its interval behind it, "–" for none."""
    if estimate is None:
        return "–"
    interval = None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    return within(estimate.value, interval)


def within(value: float | None, interval: tuple[float, float] | None) -> str:
    """A number with an interval behind it, where there is one."""
    bounds = f" [{figure(interval[0])}, {figure(interval[1])}]" if interval is not None else ""
    return f"{figure(value)}{bounds}"


def environment_of(
    trajectories: Sequence[Trajectory], *, run: str, spec: str | None = None, set: Mapping[str, Any]
) -> Environment:
    """The environment that recorded the trajectories of a run: `spec`, or the one that the run names with what was set
    over it, or the shipped one of their name.

    Raises:
        UsageError: the name is no shipped one's and no spec is given; or a server has played the run.
    """
    info = _info_of(run)
    info = None if spec else info
    if info is not None and info.spec and not Path(info.spec).is_file():
        say(f"rlenv: {info.spec}, which the run names, is not there: --spec names another")
    elif info is not None and info.spec:
        held = info.facts.get("set")
        spec, set = info.spec, {**(held if isinstance(held, Mapping) else {}), **set}
    if not spec:
        names = sorted({one.environment for one in trajectories})
        spec = names[0].removeprefix("rlenv/").rpartition("-v")[0]
        if len(names) > 1 or spec not in shipped():
            raise UsageError(f"recorded in {', '.join(names)}", hint="name the spec with --spec FILE")
    return load(spec, set=set)


def _info_of(run: str) -> RunInfo | None:
    info = read_info(run)
    if info is not None and info.spec.startswith(("http://", "https://")):
        told = f"the episodes of {run} were played by {info.spec}, and their rows, which rewards read, are there"
        raise UsageError(told, hint="only runs of a spec's own are replayed and scored again: evaluate the spec itself")
    return info


_COLUMNS: Final = ("", "reward", "success", "invalid", "kappa", "Spearman", "Kendall", "seconds", "tokens")


@dataclass
class AblateCommand(WithSet, WithPrices):
    """`rlenv rescore --ablate`."""

    run: str = argument("a run's folder, or a .jsonl of trajectories")
    spec: str | None = option("measure the terms of this spec; by default those that were recorded")
    reference: str | None = option("hold the others against this term, not the whole reward", metavar="TERM")
    concurrency: int = option("episodes at once", default=64, metavar="C", least=1)
    json: bool = option("print the figures as one JSON object")
    out: str | None = option(
        "write ablation.json, ablation.md and ablation.svg there", "-o", "--out", metavar="DIR", writes=True
    )
    overwrite: bool = option("replace such files in the folder of -o")

    def execute(self) -> int:
        """Exit code 0 where the figures could be made."""
        prices, files = as_prices(self.prices), _out_files(self)
        source = Source.of(self.run)
        environments = environments_of([self.spec] if self.spec else [], source, set=self.overrides)
        ((name, environment),) = environments.items()
        scored = {name: Scored(environment, source.before)}
        if self.spec:
            with counting(prices):
                scored = asyncio.run(scored_again(environments, source, concurrency=self.concurrency))
        found = ablation(environment, scored[name].episodes, reference=self.reference, groups=source.apart)
        agreement = agreement_table(scored)
        spending = spending_of(source, scored if self.spec else {}, prices)
        whole = {"environment": environment.id, **plain(found), "agreement": plain(agreement), "usage": plain(spending)}
        text = _to_markdown(environment.id, found, agreement)
        if self.json:
            write_json(whole)
        else:
            write(text)
            show_spending_line(Console(highlight=False), spending)
        if files:
            files["json"].write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            files["md"].write_text(text, encoding="utf-8")
            files["svg"].write_text(_draw_chart(environment.id, found), encoding="utf-8")
            if not self.json:
                write(f"{', '.join(str(path) for path in files.values())}\n")
        return 0


def _out_files(args: AblateCommand) -> dict[str, Path]:
    if not args.out:
        if args.overwrite:
            raise UsageError("--overwrite is about files in the folder of -o, and none is named", hint="add -o DIR")
        return {}
    folder = Path(args.out)
    files = {end: folder / f"ablation.{end}" for end in ("json", "md", "svg")}
    there = [path for path in files.values() if path.exists()]
    if there and not args.overwrite:
        raise UsageError(f"{there[0]} is there already", hint="name another folder, or --overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return files


def _rows(found: Ablation) -> list[tuple[str, ...]]:
    return [
        (
            part.name,
            within(part.figures.reward_mean, part.figures.reward_interval),
            within(part.figures.success_rate, part.figures.success_interval),
            str(part.figures.invalid),
            bounded(part.success.kappa),
            bounded(part.reward.spearman),
            bounded(part.reward.kendall),
            _seconds_text(part.seconds),
            "–" if part.tokens is None else f"{part.tokens:.0f}",
        )
        for part in found.parts
    ]


def _seconds_text(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.6f}".rstrip("0").rstrip(".") if value < 0.1 else f"{value:.2f}"


def _head_line(name: str, found: Ablation) -> str:
    return f"{name} · {found.episodes} episodes, agreement with: {found.reference}"


def _to_markdown(name: str, found: Ablation, agreement: list[Agreement]) -> str:
    lines = [_head_line(name, found), "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    if agreement:
        lines += ["", "| terms | episodes | kappa | Spearman | Kendall |", "|---|---|---|---|---|"]
        for one in agreement:
            figures: list[Any] = [one.kappa, one.spearman, one.kendall]
            lines.append(f"| {one.a}, {one.b} | {one.episodes} | {' | '.join(map(bounded, figures))} |")
    return "\n".join([*lines, ""])


def _draw_chart(name: str, found: Ablation) -> str:
    rows = []
    for part in found.parts:
        low, high = part.figures.success_interval or (None, None)
        rows.append(Row(part.name, part.figures.success_rate, low, high))
    return interval_chart(f"Success by {name}, where only some of its terms decide", rows)
