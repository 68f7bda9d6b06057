"""`rlenv runs`: the runs that were kept: what they are, packing them, handing them on, removing them.

`rlenv runs lock show RUN` and `rlenv runs lock diff A B`: what made episodes, by content.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Column, Table

from rlenv._base.bounded import plain
from rlenv._base.paths import draft_of
from rlenv._base.text import figure
from rlenv.cli.console import Console, WithPrices, show_spending
from rlenv.cli.options import Options, WithSet, argument, option
from rlenv.cli.terminal import say, write, write_error, write_json
from rlenv.episodes.environment import load
from rlenv.errors import MissingExtra, UsageError, disk_told
from rlenv.runs import files
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import Listed, Overview, overview
from rlenv.runs.figures.tools import asked, asked_in
from rlenv.runs.folder import RunInfo, clear_run, is_run, open_run, read_info
from rlenv.runs.locks.lock import SECTIONS, Lock, LockEntry, diff, last_of, lock_entries, lock_of, locks_of, read_lock
from rlenv.runs.pack import pack
from rlenv.runs.recorded import ordered_ids
from rlenv.runs.usage import Spending, as_prices, money, prices_in, spending_of_usage

_SORTS: Final = ("newest", "run", "environment", "success", "episodes")
_SPARE: Final = ("kind", "started", "cost", "tokens", "state", "step", "invalid", "of", "episodes", "environment")
"""Columns of a list that a narrow terminal leaves out, the first ones first."""


@dataclass
class RunsCommand(WithPrices):
    """`rlenv runs list`."""

    folders: list[str] = argument("the current one by default", default=["."], metavar="FOLDER", nargs="*")
    sort: str = option("what stands first; newest by default", default="newest", choices=_SORTS)
    json: bool = option("print it as JSON")

    def execute(self) -> int:
        """Exit code 1 where there is no run."""
        found = []
        for path in find_runs(self.folders):
            try:
                found.append(_Figures.of(path, self))
            except UsageError as error:  # one broken run hides no other
                write_error(f"{path} is left out: {error}\n")
        found.sort(key=lambda one: _order_key(one, self.sort))
        if self.json:
            write_json([one.as_dict() for one in found])
            return 0 if found else 1
        if not found:
            write("no runs\n")
            return 1
        has_asked = any(one.spending.roles for one in found)
        heads = "run kind environment policy state started step episodes success of invalid".split()
        heads += ["tokens", "cost"] if has_asked else []
        table = Table(*(Column(head, no_wrap=True) for head in heads))
        for one in found:
            told = one.as_dict()
            policy = " ".join(dict.fromkeys(told[name] for name in ("policy", "model") if told[name]))
            words = [str(told[name] or "–") for name in ("path", "kind", "environment")]
            words += [policy or "–", told["state"] or "–", one.started]
            counts = [str(told["step"]), f"{told['episodes']:,}", figure(told["success"]), one.success_of or "–"]
            asked_for = _asked_for(one.spending) if has_asked else ()
            table.add_row(*map(escape, (*words, *counts, f"{told['invalid']:,}", *asked_for)))
        Console(highlight=False).show(table, spare=_SPARE)
        return 0


@dataclass
class ShowCommand(WithPrices):
    """`rlenv runs show`."""

    run: str = argument("a run's folder")
    json: bool = option("print it as JSON")

    def execute(self) -> int:
        """Exit code 0."""
        found = _Figures.of(_run_at(self.run), self)
        told = found.as_dict()
        if self.json:
            write_json(told)
            return 0
        said = found.said
        interval = f", 95 % interval {figure(said.success_low)} to {figure(said.success_high)}"
        success = figure(said.success) + (interval if said.success is not None else "")
        told |= {"started": found.started, "success": success}
        told |= {name: f"{told[name]:,}" for name in ("episodes", "invalid")}
        del told["usage"], told["success_interval"]
        table = Table(show_header=False)
        for name, value in told.items():
            table.add_row(name.replace("_", " "), escape("–" if value in (None, "") else str(value)))
        console = Console(highlight=False)
        console.print(table)
        show_spending(console, found.spending)
        return 0


@dataclass
class PackCommand(Options):
    """`rlenv runs pack`."""

    run: str = argument("a run's folder")
    force: bool = option("journals of writers on other hosts too: they are gone")

    def execute(self) -> int:
        """Exit code 0."""
        done = pack(_run_at(self.run), force=self.force)
        write(f"{done.sealed} journals sealed, {done.merged} parts merged")
        write(f"; {len(done.left)} journals left, whose writers live or may live, or broken\n" if done.left else "\n")
        return 0


@dataclass
class ExportCommand(Options):
    """`rlenv runs export`."""

    run: str = argument("a run's folder")
    out: str = option("the file; it may not be there", "-o", "--out", metavar="FILE", required=True, writes=True)

    def execute(self) -> int:
        """Exit code 0."""
        path, out = _run_at(self.run), Path(self.out)
        if os.path.lexists(out):  # a link that leads nowhere would be written through
            raise UsageError(f"{out} exists already", hint="name another file")
        reader = open_run(path)
        ids = ordered_ids(reader)
        with disk_told(out, "written"), draft_of(out) as draft:  # half an export reads as a whole one
            files.write(draft, (reader.body(id).trajectory() for id in ids))
        bodiless = sum(not row["has_body"] for row in reader.rows() if reader.is_counted(row))
        write(f"{len(ids)} episodes in {out}")
        write(f"; {bodiless} whose bodies were not kept are left out\n" if bodiless else "\n")
        return 0


@dataclass
class RemoveCommand(Options):
    """`rlenv runs rm`."""

    runs: list[str] = argument("a run's folder", metavar="RUN")
    yes: bool = option("remove; without it only what would go is shown")

    def execute(self) -> int:
        """Exit code 0."""
        # One that is named twice once.
        paths = list({Path(name).resolve(): _run_at(name) for name in self.runs}.values())
        for path in paths:
            info = read_info(path)
            if info is not None and info.state == "running":
                raise UsageError(f"{path} is still running", hint="stop it first")
        for path in paths:
            size = sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
            if self.yes:  # said once it is so: a folder may not let its files go
                with disk_told(path, "removed"):
                    clear_run(path)
                    if not path.is_symlink() and not any(path.iterdir()):
                        path.rmdir()
            write(f"{'removed' if self.yes else 'would remove'} the run in {path}, {size / 1e6:.1f} MB\n")
        if not self.yes:
            write("nothing is removed without --yes\n")
        return 0


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures of a run in a list."""

    path: Path
    info: RunInfo | None
    said: Overview
    spending: Spending

    @staticmethod
    def of(path: Path, args: WithPrices) -> _Figures:
        reader, info = open_run(path), read_info(path)
        prices = as_prices(args.prices) or (None if info is None else prices_in(info.facts))
        try:
            rows = Snapshot(reader)
        except MissingExtra:  # all rows are in journals; what came later is not looked at
            counted = [row for row in reader.rows() if reader.is_counted(row)]
            return _Figures(path, info, overview(Listed(counted)), spending_of_usage(asked_in(counted), prices=prices))
        return _Figures(path, info, overview(rows), spending_of_usage(asked(rows), prices=prices))

    def as_dict(self) -> dict[str, Any]:
        info, said = self.info, self.said
        last = info.attempts[-1] if info and info.attempts else None
        return {
            "path": str(self.path),
            **{name: getattr(info, name, None) for name in ("kind", "state", "environment", "spec", "policy")},
            "model": (info and info.model) or None,
            "attempts": len(info.attempts) if info else 0,
            "started": last.started if last else None,
            "lock": last.lock if last else None,
            "episodes": said.episodes,
            "step": said.step,
            "invalid": said.invalid,
            "success": said.success,
            "success_interval": None if said.success is None else [said.success_low, said.success_high],
            "success_of": self.success_of,
            "usage": plain(self.spending),
        }

    @property
    def success_of(self) -> str:
        """The splits, mode and steps that success is of; "" where nothing was played."""
        said, is_trained = self.said, self.info is not None and self.info.kind == "train"
        if not said.mode:
            return ""
        one, two = said.first_step, said.last_step
        steps = f"step {two}" if one == two else f"steps {one} to {two}"
        trained = "training" if said.mode == "train" else f"held-out, {said.mode}"
        mode = trained if is_trained else said.mode
        splits = said.splits if said.mode != "train" else ()
        return ", ".join([*splits, mode, *([steps] if is_trained or two > 0 else [])])

    @property
    def started(self) -> str:
        """The date and time at which the last attempt began, to the minute; "–" where that is not known."""
        last = self.info.attempts[-1] if self.info and self.info.attempts else None
        return datetime.fromtimestamp(last.started).isoformat(" ", "minutes") if last and last.started else "–"


def find_runs(folders: Sequence[str | Path]) -> Iterator[Path]:
    """The runs in and below folders, by name; folders inside of a run are not looked into.

    Raises:
        UsageError: one is no folder.
    """
    rest = [Path(folder) for folder in reversed(folders)]
    for folder in rest:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}")
    while rest:
        folder = rest.pop()
        if is_run(folder):
            yield folder
            continue
        inside = (item for item in folder.iterdir() if item.is_dir() and not item.is_symlink())
        rest += sorted((item for item in inside if not item.name.startswith(".")), reverse=True)


def _order_key(one: _Figures, by: str) -> tuple[Any, ...]:
    """The place of a run in a list; the newest, the best and the longest first, and what has no figure last."""
    told = one.as_dict()
    path = told["path"]
    if by in ("run", "environment"):
        return (told[by] or "" if by != "run" else path, path)
    number = told["started" if by == "newest" else by]
    return (number is None, -(number or 0.0), path)


def _asked_for(spending: Spending) -> tuple[str, str]:
    """The tokens of prompts and completions together, and what they cost; "–" for what is not known."""
    parts = (spending.prompt_tokens, spending.completion_tokens)
    tokens = "–" if None in parts else f"{sum(one or 0 for one in parts):,}"
    return tokens, "–" if spending.cost is None else f"{money(spending.cost)} {spending.currency}"


def _run_at(name: str) -> Path:
    path = Path(name)
    if not is_run(path):
        info = read_info(path)
        if info is not None and info.kind == "sft":
            hint = "its figures are in summary.json, curve.png and metrics.jsonl"
            raise UsageError(f"{path} is a supervised run ({info.state}), which keeps no episodes", hint=hint)
        raise UsageError(f"there is no run at {path}", hint="`rlenv runs list` shows those below this folder")
    return path


_DIGEST_DIGITS: Final = 12


@dataclass
class LockCommand(WithSet):
    """`rlenv runs lock`."""

    action: str = argument("show one lock, or what differs between two", choices=("show", "diff"))
    of: list[str] = argument("a run's folder (its last lock), a lock's file, or a spec as it is now", metavar="RUN")
    json: bool = option("print the lock, or the differences, as JSON")
    full: bool = option("print digests in full")

    def execute(self) -> int:
        """Exit code 1 where two locks differ, 0 otherwise."""
        wanted = 1 if self.action == "show" else 2
        if len(self.of) != wanted:
            example = "rlenv runs lock show RUN" if wanted == 1 else "rlenv runs lock diff A B"
            raise UsageError(f"found {len(self.of)} names; expected {wanted}", hint=f"write {example}")
        if wanted == 1:
            return _show_lock(self, _read_named(self.of[0], self))
        return _show_diff(self, *_make_comparable(_read_named(self.of[0], self), _read_named(self.of[1], self), self))


@dataclass(frozen=True, slots=True)
class _Named:
    """A lock as it was named; None where the name is a spec's, whose lock depends on what it is compared with."""

    name: str
    lock: Lock | None


def _read_named(name: str, args: LockCommand) -> _Named:
    path = Path(name)
    if path.suffix == ".json":
        return _Named(name, read_lock(path))
    if not path.is_dir():
        return _Named(name, None)
    locks, info = locks_of(path), read_info(path)
    if not locks:
        said = f"{name} holds no lock" if is_run(path) else f"{name} holds no run"
        raise UsageError(said, hint="`rlenv eval -o DIR` keeps a run with its lock")
    chosen = last_of(locks, info.lock if info else "")
    beside = [other for other in info.attempts[-1].locks.values() if other != chosen] if info and info.lock else []
    before = [other for other in locks if other != chosen and other not in beside]
    others = [f"{word} it: {', '.join(of)}" for word, of in (("beside", beside), ("before", before)) if of]
    if others:
        write_error(f"{name} has {len(locks)} locks; {chosen} is the last, {', '.join(others)}\n")
    return _Named(name, locks[chosen])


def _lock_of_spec(name: str, args: LockCommand, splits: list[str] | None) -> Lock:
    environment = load(name, set=args.overrides)
    known = None if splits is None else [split for split in splits if split in environment.spec.tasks]
    return lock_of(environment, splits=known, say=say)


def _make_comparable(a: _Named, b: _Named, args: LockCommand) -> tuple[Lock, Lock]:
    """The locks; where one is a spec's, without what only a run has, and for the splits of the other."""
    if a.lock is not None and b.lock is not None:
        if args.set:
            raise UsageError("--set is for a spec, and none is named", hint="leave it out")
        return a.lock, b.lock
    other = a.lock or b.lock
    splits = list(other.data) if other is not None else None
    mine, theirs = (one.lock or _lock_of_spec(one.name, args, splits) for one in (a, b))
    return mine.of_a_spec(), theirs.of_a_spec()


def _entry_table(*locks: str) -> Table:
    """A table of locks' entries: the section, the key, and the value in each lock."""
    names = [Column(style=style, no_wrap=True) for style in ("bold", "cyan")]
    return Table(*names, *(Column(lock, overflow="fold") for lock in locks), box=None, show_header=any(locks))


def _show_lock(args: LockCommand, named: _Named) -> int:
    if args.set and named.lock is not None:
        raise UsageError("--set is for a spec, and none is named", hint="leave it out")
    lock = named.lock or _lock_of_spec(named.name, args, None)
    if args.json:
        write_json({"hash": lock.hash12, **lock.as_dict()}, indent=2)
        return 0
    console = Console(highlight=False)
    console.print(f"[bold]{lock.hash12}[/bold]  {escape(named.name)}", soft_wrap=True)
    held = lock_entries(lock)
    table = _entry_table("")
    for section in SECTIONS:
        first = section
        for (own, key), value in held.items():
            if own == section:
                table.add_row(first, escape(key), escape(_value_text(value, args)))
                first = ""
    console.print(table)
    return 0


def _show_diff(args: LockCommand, a: Lock, b: Lock) -> int:
    found = diff(a, b)
    if args.json:
        write_json({"a": a.hash12, "b": b.hash12, "differences": [asdict(one) for one in found]}, indent=2)
        return 1 if found else 0
    console = Console(highlight=False)
    if not found:
        console.print(f"no difference: {a.hash12}")
        return 0
    for side, name in zip("AB", args.of, strict=True):
        console.say(f"{side} {name}")
    table = _entry_table("A", "B")
    last = ""
    for one in found:
        table.add_row(one.section if one.section != last else "", escape(one.key), *_both_texts(one, args))
        last = one.section
    console.print(table)
    unknown = sum(one.a == one.b for one in found)
    count = len(found) - unknown
    behind = f", and {unknown} of which nobody knows: they cannot be read" if unknown else ""
    console.print(f"{count} difference{'s' if count != 1 else ''}{behind}")
    return 1


def _both_texts(one: LockEntry, args: LockCommand) -> tuple[str, str]:
    a, b = (escape(_value_text(value, args)) for value in (one.a, one.b))
    return f"[red]{a}[/red]", f"[green]{b}[/green]"


def _value_text(value: Any, args: LockCommand) -> str:
    if value is None:
        return "–"
    if not isinstance(value, str):
        return json.dumps(value)
    is_digest = len(value) >= 32 and set(value) <= set("0123456789abcdef")
    return value[:_DIGEST_DIGITS] if is_digest and not args.full else value
