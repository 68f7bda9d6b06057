"""Recorded episodes, wherever they are: in a run's folder, or in a .jsonl file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import cut_end
from rlenv._base.paths import names_in, read_file
from rlenv._base.text import nearest
from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.folder import is_run, open_run
from rlenv.runs.journal import loads
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.trajectory import Trajectory

__all__ = ["expected_of", "file_of", "in_order", "recorded", "recorded_in", "whole_groups", "with_facts", "with_ids"]

_FILE: Final = "trajectories.jsonl"
_LOCK: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_LOCK_BYTES: Final = 8_000_000
_COLUMN: Final = re.compile(r"\{\{\s*task\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)
_MOST_SAID: Final = 2_000


def recorded(name: str | Path) -> list[Trajectory]:
    """The episodes of a run's folder in the order of step, mode, split, task and sample; or of a file, as they stand.

    Args:
        name: a run's folder, a .jsonl file, or a folder with trajectories.jsonl, as older versions wrote it.

    Raises:
        UsageError: there is none, it is empty, or what is there cannot be read.
    """
    return [trajectory for _, trajectory in with_ids(name)]


def with_ids(name: str | Path, count: int | None = None) -> list[tuple[str, Trajectory]]:
    """The same, the first `count` of them, each with its id; those of a file have none ("").

    Raises:
        UsageError: as `recorded`.
    """
    path = Path(name)
    if is_run(path):
        reader = open_run(path)
        found = [(id, reader.body(id).trajectory()) for id in in_order(reader)[:count]]
    else:
        found = [("", trajectory) for trajectory in files.read(file_of(path))][:count]
    if not found:
        raise UsageError(f"{path} holds no trajectory")
    return found


def with_facts(name: str | Path) -> list[tuple[Facts | None, Trajectory]]:
    """The same, each with the step, sample, mode and group of its row; None for those of a file, which have none.

    Raises:
        UsageError: as `recorded`.
    """
    rows = {row["id"]: row for row in open_run(name).rows()} if is_run(Path(name)) else {}
    return [(_facts(rows.get(id)), trajectory) for id, trajectory in with_ids(name)]


def _facts(row: Mapping[str, Any] | None) -> Facts | None:
    if row is None:
        return None
    return Facts(step=row["step"], sample=row["sample"], mode=row["mode"], group=row["group"] or "")


def whole_groups(name: str | Path, count: int | None = None) -> list[Hashable]:
    """The groups of the same episodes, equal for those of one group; None of which not all members are among them.

    Raises:
        UsageError: as `recorded`.
    """
    path = Path(name)
    if is_run(path):
        reader = open_run(path)
        rows = {row["id"]: row for row in reader.rows() if reader.counts(row)}
        of = {id: (row["step"], row["mode"], row["group"], row["split"], row["task"]) for id, row in rows.items()}
        every: list[Hashable] = [*of.values()]
        chosen: list[Hashable] = [of[id] for id in in_order(reader)[:count]]
    else:
        every = [(one.split, one.task_index) for one in files.read(file_of(path))]
        chosen = every[:count]
    sizes, found = Counter(every), Counter(chosen)
    return [group if found[group] == sizes[group] else None for group in chosen]


def recorded_in(run: Path) -> Iterator[Trajectory]:
    """The episodes of a run's folder whose bodies were kept, in that order.

    Those of an attempt behind the step at which another went on do not count.

    Raises:
        UsageError: there is no such folder, or it cannot be read.
    """
    reader = open_run(run)
    for id in in_order(reader):
        yield reader.body(id).trajectory()


def in_order(reader: RunReader) -> list[str]:
    """The ids of the episodes that count and whose bodies were kept, by step, mode, split, task and sample."""
    rows = [row for row in reader.rows() if row["has_body"] and reader.counts(row)]
    rows.sort(key=lambda row: (row["step"], row["mode"], row["split"], row["task"], row["sample"], row["seed"]))
    return [row["id"] for row in rows]


def file_of(path: Path) -> Path:
    """The file of trajectories that a name means: itself, or trajectories.jsonl in a folder.

    Raises:
        UsageError: there is none; the message names what is near.
    """
    if path.is_dir() and not (path / _FILE).is_file():
        inside = sorted(item for item in path.glob("*") if is_run(item)) or sorted(path.glob("**/*.jsonl"))
        hint = f"name what is in it, such as {inside[0]}" if inside else ""
        raise UsageError(f"{path} is no run and has no {_FILE}", hint=hint)
    path = path / _FILE if path.is_dir() else path
    if not path.is_file():
        close = nearest(path.name, [name for name in names_in(path.parent) if _may_be(path.parent / name)])
        hint = f"did you mean {path.parent / close}?" if close else ""
        raise UsageError(f"there are no recorded trajectories at {path}", hint=hint)
    return path


def _may_be(path: Path) -> bool:
    return path.suffix == ".jsonl" or is_run(path)


def expected_of(run: Path, lock: str, task: Mapping[str, Any]) -> dict[str, str]:
    """By term, what its rule asked of a task, such as `10` or `at most 4`, from what the run's lock says of the rule.

    Terms of which that is not known are left out: those of runs without a lock, and rules whose template is more than
    columns of the task. No template is computed, whoever wrote the lock.
    """
    if not _LOCK.fullmatch(lock):
        return {}
    try:
        held = loads(read_file(run / "locks" / f"{lock}.json", most=_LOCK_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    terms = held.get("rewards") if isinstance(held, Mapping) else None
    found = {}
    for name, term in terms.items() if isinstance(terms, Mapping) else ():
        asks = term.get("asks") if isinstance(term, Mapping) else None
        if isinstance(asks, Mapping) and (said := _expected(asks, task)):
            found[name] = cut_end(said, _MOST_SAID)
    return found


def _expected(asks: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    if "expect" in asks:
        golds = _gold(asks["expect"], task)
        joined = " and " if asks.get("match") == "all" else " or "
        return joined.join(one if isinstance(one, str) else json.dumps(one, default=str) for one in golds)
    if isinstance(asks.get("pattern"), str):
        return f"a match of {asks['pattern']}"
    return " and ".join(
        f"{words} {asks[key]}"
        for words, key in (("at least", "min"), ("at most", "max"))
        if isinstance(asks.get(key), (int, float))
    )


def _gold(value: Any, task: Mapping[str, Any]) -> list[Any]:
    """The accepted values; empty where one of them is not known."""
    if isinstance(value, list):
        each = [_gold(one, task) for one in value]
        return [one for some in each for one in some] if all(each) else []
    if not isinstance(value, str):
        return [value]
    if whole := _COLUMN.fullmatch(value.strip()):
        gold = task.get(whole[1])
        return [] if gold is None else list(gold) if isinstance(gold, (list, tuple)) else [gold]
    if any(column not in task for column in _COLUMN.findall(value)):
        return []
    filled = _COLUMN.sub(lambda found: str(task[found[1]]), value)
    return [] if "{{" in _COLUMN.sub("", value) or "{%" in value else [filled]
