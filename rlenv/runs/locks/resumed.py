"""Whether a run may go on with a lock: its episodes and the new ones have to be of the same rows and rewards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rlenv.errors import UsageError
from rlenv.runs.locks.files import canonical
from rlenv.runs.locks.lock import FOLDER, Lock, entries, read_lock

__all__ = ["check_resumed"]

_SHOWN: Final = 3
_SHOWN_CHARS: Final = 20


def check_resumed(run: Path, before: str, lock: Lock) -> None:
    """Refuses to go on where what was kept is of other rows or rewards than what would be played.

    An episode is found again by its split, its task's number and its seed, which any environment has. Whatever else
    differs (limits, packages, the host) makes other episodes of the same tasks; `rlenv runs lock diff` names it.

    Args:
        before: the hash of the run's last lock; nothing is looked at where the run has none.

    Raises:
        UsageError: it is of another environment, other rows of a split or other rewards; or its lock cannot be read.
    """
    path = run / FOLDER / f"{before}.json"
    if not before or not path.is_file():
        return
    old = read_lock(path)
    if old.spec.get("id") != lock.spec.get("id"):
        raise UsageError(
            f"{run} holds episodes of {old.spec.get('id')}, not of {lock.spec.get('id')}", hint="name another folder"
        )
    found = list(_differences(old, lock))
    if not found:
        return
    said = "; ".join(f"{place}: {_short(a)} → {_short(b)}" for place, a, b in found[:_SHOWN])
    said += f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    rows = any(place.startswith("data.") for place, _, _ in found)
    hint = "name another folder" if rows else f"name another folder, or `rlenv rescore {run} --spec SPEC -o NEW`"
    raise UsageError(f"{run} holds episodes of other {'rows' if rows else 'rewards'} ({said})", hint=hint)


def _differences(old: Lock, new: Lock) -> Iterator[tuple[str, Any, Any]]:
    a, b = entries(old), entries(new)
    for section, key in sorted(a.keys() | b.keys()):
        if section == "rewards":
            is_meant = True
        else:  # of splits that both played; where the file of rows lies is no matter
            split, _, name = key.rpartition(".")
            is_meant = section == "data" and name == "sha256" and split in old.data and split in new.data
        values = a.get((section, key)), b.get((section, key))
        if is_meant and canonical(values[0]) != canonical(values[1]):
            yield f"{section}.{key}", *values


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
