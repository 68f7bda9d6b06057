"""What has changed since a tape was recorded, by its locks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError
from rlenv.runs.locks.lock import FOLDER, SECTIONS, diff, lock_of, read_lock

__all__ = ["changed_since"]

_FIRST: Final = ("tools", "prompts", "endpoints", "user", "rewards", "dialect", "resources", "data")
"""What decides a request; the other sections say why these changed."""
_NAMED: Final = 4


def changed_since(run: str | Path, hash12: str, environment: Environment) -> str:
    """What is not as it was when the lock `hash12` was written into a run, in words; "" where nothing is known.

    What only the run has, its policy, seed and samples, is left out, as are the splits that it did not play.
    """
    try:
        then = read_lock(Path(run) / FOLDER / f"{hash12}.json")
        splits = [split for split in then.data if split in environment.spec.tasks]
        now = lock_of(environment, splits=splits)
    except RlenvError:
        return ""
    found = diff(then.of_a_spec(), now.of_a_spec())
    order = [*_FIRST, *SECTIONS]
    places = [f"{one.section} {one.key}" for one in sorted(found, key=lambda one: order.index(one.section))]
    if not places:
        return ""
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"since lock {hash12} these differ: {', '.join(places[:_NAMED])}{more}"
