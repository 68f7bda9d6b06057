"""`rlenv compare` with `--plan`, and `rlenv runs report`: what changed from one run to another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from rlenv._base.paths import draft_of
from rlenv._base.text import figure
from rlenv.cli.console import Console, WithPrices
from rlenv.cli.options import Options, argument, option
from rlenv.cli.terminal import write, write_error, write_json
from rlenv.errors import UsageError, disk_told
from rlenv.runs.folder import is_run, read_info
from rlenv.runs.locks.lock import Lock, diff, last_of, locks_of
from rlenv.runs.usage import as_prices, tokens_text

if TYPE_CHECKING:
    from rlenv.runs.figures.snapshot import Snapshot


_LISTED: Final = 10
"""Fixed and broken tasks, and differences of locks, that are shown; --json has all."""
_ANYWAY: Final = "runs of one spec and the same rows are; --anyway pairs these by the numbers of their tasks"


@dataclass
class CompareCommand(Options):
    """`rlenv compare`."""

    a: str = argument("the run before: a folder, or a .jsonl of trajectories", metavar="A")
    b: str = argument("the run after", metavar="B")
    min_change: float | None = option(
        "exit 1 where success changed by less, such as -0.02; by default where it is worse with p < 0.05", metavar="D"
    )
    anyway: bool = option("compare runs of other environments or questions, too")
    power: float | None = option("say how many tasks it takes to see such a change", metavar="D")
    json: bool = option("print everything as one JSON object")
    text: bool = option("print lines instead of tables")

    def execute(self) -> int:
        """Exit code 1 where success is worse than asked for, 2 where the runs are not of the same tasks."""
        from rlenv.runs.figures.paired import compare_runs, pilot_counts

        if self.min_change is not None and not -1 <= self.min_change <= 1:
            raise UsageError("--min-change is between -1 and 1")
        if self.power is not None and not 0 < self.power < 1:
            raise UsageError("--power is between 0 and 1", hint="0.05 is five points")
        a, b = _rows_of(self.a), _rows_of(self.b)
        found: dict[str, Any] = {"a": self.a, "b": self.b, "lock": _lock_changes(self.a, self.b), **compare_runs(a, b)}
        if not found["pairs"]:
            raise UsageError(f"{self.a} and {self.b} share no task", hint="runs of one spec and split do")
        if found["unlike"] and not self.anyway:
            raise UsageError(f"these are not two runs of the same tasks: {found['unlike']}", hint=_ANYWAY)
        if self.power is not None:
            found["power"] = {"difference": self.power, "tasks": list(map(asdict, pilot_counts(a, b, self.power)))}
        problem = _find_problem(found["success"], self.min_change)
        found["problem"] = problem
        if self.json:
            write_json(found)
        else:
            _show_change(self, found)
        if problem:
            write_error(f"rlenv compare: {problem}\n")
        return 1 if problem else 0


def _rows_of(name: str) -> Snapshot:
    from rlenv.runs.figures.snapshot import Snapshot
    from rlenv.runs.recorded import reader_of

    return Snapshot(reader_of(name))


def _find_problem(success: dict[str, Any], least: float | None) -> str:
    from rlenv.runs.figures.change import LEVEL

    change = success["change"]
    if change is None:
        return "no pair has two valid episodes, so that nothing is known of success"
    if least is None:
        if change < 0 and success["p"] < LEVEL:
            return f"success is worse by {figure(-change)} (p {_p_text(success['p'])})"
        return ""
    return f"success changed by {change:+.3f}, which is less than {least:+g}" if change < least else ""


def _lock_changes(a: str, b: str) -> dict[str, Any]:
    """The differences between the locks of two runs; `known` is false where one has no lock."""
    locks = [_lock(a), _lock(b)]
    if locks[0] is None or locks[1] is None:
        missing = [name for name, lock in zip((a, b), locks, strict=True) if lock is None]
        return {"known": False, "without": missing, "differences": []}
    return {"known": True, "without": [], "differences": [asdict(one) for one in diff(locks[0], locks[1])]}


def _lock(name: str) -> Lock | None:
    path = Path(name)
    if not is_run(path):
        return None
    locks, info = locks_of(path), read_info(path)
    return locks[last_of(locks, info.lock if info else "")] if locks else None


def _p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _show_change(args: CompareCommand, found: dict[str, Any]) -> None:
    _show_locks(found["lock"])
    pairs, alone = found["pairs"], found["unpaired"]
    how = "task and sample" + ("" if found["paired_by"] == "seed" else ", of which some have other seeds")
    write(f"{pairs} pairs by {how}; unpaired: {alone['a']} of A, {alone['b']} of B\n")
    if found["renumbered"]:
        write(f"{found['renumbered']} of these have another number in B, and the same prompt\n")
    if found["asked_otherwise"]:
        write(f"{found['asked_otherwise']} of these were asked something else in B\n")
    head = ("", "A", "B", "change", "95 % interval", "p", "over")
    rows = [_row(name, one) for name, one in _figure_rows(found)]
    if args.text:
        for row in rows:
            write("  ".join(f"{key} {value}".strip() for key, value in zip(head, row, strict=True) if value) + "\n")
    else:
        _print_rows(head, rows)
    success = found["success"]
    if success["invalid"]:
        low, high = success["bounds"]
        invalid = f"with the {success['invalid']} pairs of which a side is invalid"
        write(f"{invalid}, success changed by {low:+.3f} to {high:+.3f}\n")
    write(f"{success['fixed']} fixed, {success['broken']} broken, {success['same']} the same\n")
    for kind in ("broken", "fixed"):
        _show_tasks(kind, found["tasks"])
    for side, names in found["terms_unpaired"].items():
        if names:
            write(f"only {side.upper()} has the terms {', '.join(names)}\n")
    if "power" in found:
        show_power(found["power"], is_text=args.text)


def _show_tasks(kind: str, pairs: list[dict[str, Any]]) -> None:
    """The tasks that came out differently, the most samples first, each with its first pair of episodes."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for one in pairs:
        if one["kind"] == kind:
            by_task.setdefault(f"{one['split']}/{one['task']}", []).append(one)
    for name, ones in sorted(by_task.items(), key=lambda item: -len(item[1]))[:_LISTED]:
        ids = " → ".join(ones[0][side]["id"] for side in ("a", "b") if ones[0][side]["id"])
        samples = f"{len(ones)} samples, such as " if len(ones) > 1 else ""
        write(f"  {kind} {name}  {samples}{ids}\n")
    if len(by_task) > _LISTED:
        write(f"  and {len(by_task) - _LISTED} more tasks {kind}: --json\n")


def show_power(power: dict[str, Any], *, is_text: bool) -> None:
    """Prints the number of tasks needed, as a table or as lines."""
    write(f"tasks to see a change of success by {power['difference']:g} (80 % power, 5 % level, two-sided)\n")
    if "rate" in power:
        _show_ways(power, is_text=is_text)
        return
    rows = [(str(one["k"]), tokens_text(one["paired"]), tokens_text(one["unpaired"])) for one in power["tasks"]]
    if is_text:
        for k, paired, unpaired in rows:
            write(f"  k {k}: {paired} played by both; or {unpaired} in each run, if they are others\n")
        return
    _print_rows(("samples of each (k)", "both play the same", "each plays others"), rows)


def _show_ways(power: dict[str, Any], *, is_text: bool) -> None:
    """The tasks of each of two runs over other tasks, for a rise and for a fall; a run of both takes the larger."""
    rate, by = power["rate"], power["difference"]
    ends = {"rise": f"a rise to {figure(rate + by)}", "fall": f"a fall to {figure(rate - by)}"}
    ways = {said: [tokens_text(one["unpaired"]) for one in power[way]] for way, said in ends.items() if way in power}
    rows = list(zip((str(one["k"]) for one in power["tasks"]), *ways.values(), strict=True))
    if is_text:
        for k, *counts in rows:
            shown = ", ".join(f"{count} in each run for {said}" for said, count in zip(ways, counts, strict=True))
            write(f"  k {k}: {shown}\n")
        return
    _print_rows(("samples of each (k)", *(f"in each run, for {said}" for said in ways)), rows)


def _print_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*head)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*map(escape, row))
    Console(highlight=False).print(table)


def _figure_rows(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    terms = [(f"  {name}", one) for name, one in found["terms"].items()]
    return [("success", found["success"]), ("reward", found["reward"]), *terms]


def _row(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    change = one["change"]
    signed = "–" if change is None or not math.isfinite(change) else f"{change:+.3f}"
    interval = "" if one["low"] is None else f"{one['low']:+.3f} to {one['high']:+.3f}"
    over = f"{one['pairs']} pairs, {one['tasks']} tasks"
    lacks = "without a value" if name[0] == " " else "invalid"  # a term that was skipped is not invalid
    over += f"; {one['invalid']} {lacks} left out" if one["invalid"] else ""
    p = _p_text(one["p"]) + ("" if one["p_by"] == "exact" else f" ({one['p_by']})")
    return (name, figure(one["a"]), figure(one["b"]), signed, interval, p, over)


def _show_locks(lock: dict[str, Any]) -> None:
    if not lock["known"]:
        write(f"what made them is not known: no lock in {', '.join(lock['without'])}\n")
        return
    differences = lock["differences"]
    if not differences:
        write("made by the same: equal locks\n")
        return
    write(f"what made them differs in {len(differences)} place{'s' if len(differences) > 1 else ''}\n")
    for one in differences[:_LISTED]:
        write(f"  {one['section']}.{one['key']}: {_short_text(one['a'])} → {_short_text(one['b'])}\n")
    if len(differences) > _LISTED:
        write(f"  and {len(differences) - _LISTED} more: rlenv runs lock diff A B\n")


def _short_text(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


@dataclass
class PlanCommand(Options):
    """`rlenv compare --plan`."""

    difference: float = argument("of success, such as 0.05 for five points", metavar="D")
    run: str | None = option(
        "a pilot run, for its rate and for how alike a task's samples are",
        metavar="RUN",
        one_of="before",
        required=True,
    )
    rate: float | None = option("the success rate before, without a pilot run", metavar="P", one_of="before")
    icc: float | None = option("with --rate: the correlation of two samples of a task", metavar="R")
    k: list[int] = option("samples of each task", default=[1, 4, 16], metavar="K", nargs="+", least=1)
    json: bool = option("print it as one JSON object")
    text: bool = option("print lines instead of a table")

    def execute(self) -> int:
        """Exit code 0."""
        from rlenv.runs.figures.change import TaskCounts, spread_of_rate, tasks_needed

        if not 0 < self.difference < 1:
            raise UsageError("D is between 0 and 1", hint="0.05 is five points")
        if self.run is not None:
            if self.icc is not None:
                raise UsageError("--icc goes with --rate: a run shows its own", hint="leave it out")
            before = _spread_of(self.run)
        else:
            icc, rate = self.icc or 0.0, self.rate or 0.0
            if not 0 <= icc <= 1:
                raise UsageError("--icc is between 0 and 1")
            if not 0 <= rate <= 1:
                raise UsageError("--rate is between 0 and 1")
            if self.icc is None and max(self.k) > 1:
                raise UsageError("how much more samples tell depends on --icc", hint="add --icc 0.5, say, or -k 1")
            before = spread_of_rate(rate, icc)
        ways: dict[str, list[TaskCounts]] = {}
        for way, rate in (("rise", before.mean + self.difference), ("fall", before.mean - self.difference)):
            if -1e-9 <= rate <= 1 + 1e-9:  # one that is beyond has no variance
                after = spread_of_rate(min(1.0, max(0.0, rate)), before.icc or 0.0) if before.of(1) else before
                ways[way] = tasks_needed(self.k, difference=self.difference, runs=(before, after))
        if not ways:
            hint = "name a smaller D"
            raise UsageError(f"no rate lies {self.difference:g} above or below {before.mean:g}", hint=hint)
        found: dict[str, Any] = {
            "difference": self.difference,
            "rate": before.mean,
            "icc": before.icc,
            "tasks": [
                asdict(max(some, key=lambda one: one.unpaired or 0)) for some in zip(*ways.values(), strict=True)
            ],
            **{way: [asdict(one) for one in tasks] for way, tasks in ways.items()},
        }
        if self.json:
            write_json(found)
        else:
            show_power(found, is_text=self.text)
        return 0


def _spread_of(name: str) -> Any:
    from rlenv.runs.figures.paired import spread_of_run

    return spread_of_run(_rows_of(name))


@dataclass
class ReportCommand(WithPrices):
    """`rlenv runs report`."""

    runs: list[str] = argument("run folders; the others are compared with the first", metavar="RUN")
    out: str = option("the file, such as report.html", "-o", "--out", metavar="FILE", required=True, writes=True)
    title: str = option("its title", default="Runs")
    episodes: int = option("episodes of each run to show (6)", default=6, metavar="N", least=0)
    overwrite: bool = option("replace the file if it is there")

    def execute(self) -> int:
        """Writes the file; exit code 0."""
        from rlenv.runs.figures.report import report

        prices = as_prices(self.prices)
        for name in self.runs:
            if not is_run(name):
                raise UsageError(f"there is no run at {name}", hint="`rlenv runs list` shows those below this folder")
        out = Path(self.out)
        if out.is_symlink() and not out.exists():  # it would be written through, to wherever it leads
            raise UsageError(f"{out} is a link that leads nowhere", hint="name another file, or remove the link")
        if out.exists() and not self.overwrite:
            raise UsageError(f"{out} exists already", hint="name another file, or add --overwrite")
        if out.exists() and not out.is_file():  # a device, say, whose name a file would take
            raise UsageError(f"{out} is no file", hint="name another")
        text = report([Path(name) for name in self.runs], title=self.title, episodes=self.episodes, prices=prices)
        # A link stays what it is, and the old one whole till the new one is.
        with disk_told(out, "written"), draft_of(out.resolve()) as draft:
            draft.write_text(text, encoding="utf-8", errors="replace")
        write(f"{out}: {len(self.runs)} runs, {len(text) / 1e3:.0f} kB\n")
        return 0
