"""`rlenv runs lock show RUN` and `rlenv runs lock diff A B`: what made episodes, by content."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from rlenv.cli.console import Console
from rlenv.cli.options import WithSet, argument, option
from rlenv.cli.terminal import say, write_error, write_json
from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.runs.folder import is_run, read_info
from rlenv.runs.locks.lock import SECTIONS, Lock, LockEntry, diff, entries, lock_of, locks_of, read_lock

__all__ = ["LockCommand"]

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
            return _show(self, _named(self.of[0], self))
        return _diff(self, *_comparable(_named(self.of[0], self), _named(self.of[1], self), self))


@dataclass(frozen=True, slots=True)
class _Named:
    """A lock as it was named; None where the name is a spec's, whose lock depends on what it is compared with."""

    name: str
    lock: Lock | None


def _named(name: str, args: LockCommand) -> _Named:
    path = Path(name)
    if path.suffix == ".json":
        return _Named(name, read_lock(path))
    if not path.is_dir():
        return _Named(name, None)
    locks, info = locks_of(path), read_info(path)
    if not locks:
        said = f"{name} holds no lock" if is_run(path) else f"{name} holds no run"
        raise UsageError(said, hint="`rlenv eval -o DIR` keeps a run with its lock")
    last = info.attempts[-1].lock if info is not None and info.attempts else ""
    chosen = last if last in locks else list(locks)[-1]
    beside = [other for other in info.attempts[-1].locks.values() if other != chosen] if last and info else []
    before = [other for other in locks if other != chosen and other not in beside]
    others = [f"{word} it: {', '.join(of)}" for word, of in (("beside", beside), ("before", before)) if of]
    if others:
        write_error(f"{name} has {len(locks)} locks; {chosen} is the last, {', '.join(others)}\n")
    return _Named(name, locks[chosen])


def _of_spec(name: str, args: LockCommand, splits: list[str] | None) -> Lock:
    environment = load(name, set=args.overrides)
    known = None if splits is None else [split for split in splits if split in environment.spec.tasks]
    return lock_of(environment, splits=known, say=say)


def _comparable(a: _Named, b: _Named, args: LockCommand) -> tuple[Lock, Lock]:
    """The locks; where one is a spec's, without what only a run has, and for the splits of the other."""
    if a.lock is not None and b.lock is not None:
        if args.set:
            raise UsageError("--set is for a spec, and none is named", hint="leave it out")
        return a.lock, b.lock
    other = a.lock or b.lock
    splits = list(other.data) if other is not None else None
    mine, theirs = (one.lock or _of_spec(one.name, args, splits) for one in (a, b))
    return mine.of_a_spec(), theirs.of_a_spec()


def _show(args: LockCommand, named: _Named) -> int:
    if args.set and named.lock is not None:
        raise UsageError("--set is for a spec, and none is named", hint="leave it out")
    lock = named.lock or _of_spec(named.name, args, None)
    if args.json:
        write_json({"hash": lock.hash12, **lock.as_dict()}, indent=2)
        return 0
    console = Console(highlight=False)
    console.print(f"[bold]{lock.hash12}[/bold]  {escape(named.name)}", soft_wrap=True)
    held = entries(lock)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for section in SECTIONS:
        first = section
        for (own, key), value in held.items():
            if own == section:
                table.add_row(first, escape(key), escape(_shown(value, args)))
                first = ""
    console.print(table)
    return 0


def _diff(args: LockCommand, a: Lock, b: Lock) -> int:
    found = diff(a, b)
    if args.json:
        write_json({"a": a.hash12, "b": b.hash12, "differences": [asdict(one) for one in found]}, indent=2)
        return 1 if found else 0
    console = Console(highlight=False)
    if not found:
        console.print(f"no difference: {a.hash12}")
        return 0
    for side, name in zip("AB", args.of, strict=True):
        console.print(f"{side} {name}", markup=False)
    table = Table("", "", "A", "B", box=None)
    for column, style in zip(table.columns[:2], ("bold", "cyan"), strict=True):
        column.style, column.no_wrap = style, True
    for column in table.columns[2:]:
        column.overflow = "fold"
    last = ""
    for one in found:
        table.add_row(one.section if one.section != last else "", escape(one.key), *_both(one, args))
        last = one.section
    console.print(table)
    unknown = sum(one.a == one.b for one in found)
    count = len(found) - unknown
    behind = f", and {unknown} of which nobody knows: they cannot be read" if unknown else ""
    console.print(f"{count} difference{'s' if count != 1 else ''}{behind}")
    return 1


def _both(one: LockEntry, args: LockCommand) -> tuple[str, str]:
    a, b = (escape(_shown(value, args)) for value in (one.a, one.b))
    return f"[red]{a}[/red]", f"[green]{b}[/green]"


def _shown(value: Any, args: LockCommand) -> str:
    if value is None:
        return "–"
    if not isinstance(value, str):
        return json.dumps(value)
    is_digest = len(value) >= 32 and set(value) <= set("0123456789abcdef")
    return value[:_DIGEST_DIGITS] if is_digest and not args.full else value
