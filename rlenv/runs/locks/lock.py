"""The lock of an episode, by content: equal locks, equal episodes as far as a seed and a server keep them.

A digest of what could not be read says so, and two of these are never called equal.

    RUN/locks/HASH.json   a lock; HASH stands in every row of an episode that it made

HASH is the first 12 digits of the SHA-256 of the file's JSON without `host` and `started`, with sorted keys, without
blanks and in ASCII.

Whether a run may go on with a lock: its episodes and the new ones have to be of the same rows and rewards.

What has changed since a tape was recorded, by its locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from rlenv._base.paths import draft_of, read_file
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError, UsageError
from rlenv.runs.locks import parts
from rlenv.runs.locks.files import UNREADABLE, Code, Say, json_bytes, machine_facts, package_versions, to_lock

__all__ = ["FOLDER", "SECTIONS", "Lock", "LockEntry", "changed_since", "check_resumed", "diff", "last_of"]
__all__ += ["lock_entries", "lock_of", "locks_of", "read_lock"]

FOLDER: Final = "locks"
_FORMAT: Final = 1
_MOST_BYTES: Final = 64_000_000
_FILE: Final = re.compile(r"[0-9a-f]{12}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The causes of an episode. Every section holds JSON without nulls; digests are SHA-256, hexadecimal.

    No secret stands in a lock: see `rlenv.runs.locks.files.to_lock`. `host` (for people: its name, the spec's path, the
    working directory) and `started` (seconds since the epoch) are no part of its hash, and nothing else names a place
    or a time.
    """

    rlenv: Mapping[str, Any] = field(default_factory=dict)
    """Version and commit, and what differs from it."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    """The splits that were played."""
    prompts: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, Any] = field(default_factory=dict)
    dialect: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Empty where none is bound."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Kind, model, weights or the run and step that they come from, sampling."""
    endpoints: Mapping[str, Any] = field(default_factory=dict)
    play: Mapping[str, Any] = field(default_factory=dict)
    """Seed, what the seeds of episodes are made of, samples of a task, shuffling, limits."""
    packages: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    """Python and the platform."""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    """Whatever a trainer says of itself."""
    host: Mapping[str, str] = field(default_factory=dict)
    started: float = 0.0

    @property
    def hash12(self) -> str:
        """12 hexadecimal digits; equal for equal content of all sections, in whatever order their keys stand."""
        held = {key: value for key, value in self.as_dict().items() if key not in _NOT_HASHED}
        return hashlib.sha256(json_bytes(held)).hexdigest()[:12]

    def as_dict(self) -> dict[str, Any]:
        """The lock as its file holds it."""
        return {"format": _FORMAT, **{one.name: getattr(self, one.name) for one in fields(self)}}

    def of_a_spec(self) -> Lock:
        """Without what a spec says nothing of: the policy, its tokenizer, the trainer, the run's seed and samples."""
        play = {key: value for key, value in self.play.items() if key not in ("seed", "seeds", "k")}
        return replace(self, play=play, policy={}, tokenizer={}, trainer={})

    def write(self, run: str | Path) -> Path:
        """Writes RUN/locks/HASH.json, whole, and gives its path; one that is there already stays.

        Raises:
            OSError: it cannot be written.
        """
        folder = Path(run) / FOLDER
        target = folder / f"{self.hash12}.json"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with draft_of(target) as draft:
                draft.write_text(json.dumps(self.as_dict(), indent=2, sort_keys=True) + "\n", encoding="ascii")
        return target


_NOT_HASHED: Final = ("host", "started")
SECTIONS: Final = tuple(one.name for one in fields(Lock) if one.name not in _NOT_HASHED)
"""The sections that are hashed, in the order in which people read them."""


@dataclass(frozen=True, slots=True)
class LockEntry:
    """One difference between two locks; None stands for what one of them does not have."""

    section: str
    key: str
    a: Any
    b: Any


def lock_of(
    environment: Environment,
    *,
    splits: Sequence[str] | None = None,
    policy: Mapping[str, Any] | None = None,
    seed: int | None = None,
    seeds: str | None = None,
    k: int | None = None,
    tokenizer: Any = None,
    trainer: Mapping[str, Any] | None = None,
    say: Say | None = None,
) -> Lock:
    """The lock of episodes of `environment`, from its files as they are now. Nothing is started, opened or sent.

    Args:
        splits: those that are played; all of the spec where None. Every row of theirs is read.
        policy: who acts, as JSON: `kind`, `model`, `weights` (or `run` and `step`), `sampling`.
        seeds: what the seed of an episode is made of, such as `rlenv.tasks.rows.SEEDS`.
        tokenizer: what is bound, of `rlenv.tokens.bound` or transformers.
        trainer: what a trainer says of itself, as JSON.
        say: is told what takes long, such as gigabytes of rows.

    Raises:
        UsageError: no such split.
        SpecError: the rows of a split cannot be read.
    """
    splits = tuple(environment.spec.tasks if splits is None else splits)
    python, system = machine_facts()
    with Code() as code:
        sections = _make_sections(environment, splits, say)
        sections["rlenv"] = code.section()
    sections |= {
        "tokenizer": parts.lock_tokenizer(tokenizer),
        "policy": to_lock(policy or {}, hides=True),
        "play": {"seed": seed, "seeds": seeds, "k": k, **parts.lock_limits(environment, splits)},
        "machine": {"python": python, "platform": system},
        "trainer": to_lock(trainer or {}, hides=True),
    }
    spec = environment.address or str(environment.loaded.path)
    host = {"name": socket.gethostname(), "spec": spec, "cwd": os.getcwd()}
    return Lock(**{name: to_lock(part) for name, part in sections.items()}, host=to_lock(host), started=time.time())


def _make_sections(environment: Environment, splits: Sequence[str], say: Say | None) -> dict[str, Any]:
    data, resources, images, tests = parts.data_and_files(environment, splits, say=say)
    return {
        "spec": parts.lock_spec(environment),
        "data": data,
        "prompts": {**parts.lock_prompts(environment, splits), "image_files": images},
        "tools": parts.lock_tools(environment, say=say),
        "resources": resources,
        "user": parts.lock_user(environment, say=say),
        "rewards": parts.lock_rewards(environment, tests=tests, say=say),
        "dialect": parts.lock_dialect(environment, say=say),
        "endpoints": parts.lock_endpoints(environment),
        "packages": package_versions(parts.distributions(environment)),
    }


def lock_entries(lock: Lock) -> dict[tuple[str, str], Any]:
    """The values of a lock by section and dotted key; lists and empty mappings count as values."""

    def visit(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping) and value:
            for name in value:
                yield from visit(value[name], f"{key}.{name}" if key else name)
        elif key:
            yield key, value

    return {(section, key): value for section in SECTIONS for key, value in visit(getattr(lock, section), "")}


def diff(a: Lock, b: Lock) -> tuple[LockEntry, ...]:
    """The differences in hashed content, by section and key; () where the hashes are equal and everything could be
    read.

    What could not be read on both sides is among them, with UNREADABLE (`rlenv.runs.locks.files`) as both values.
    """
    mine, theirs = lock_entries(a), lock_entries(b)
    order = {section: index for index, section in enumerate(SECTIONS)}
    places = sorted(mine.keys() | theirs.keys(), key=lambda place: (order[place[0]], place[1]))
    return tuple(
        LockEntry(*place, mine.get(place), theirs.get(place)) for place in places if _is_different(place, mine, theirs)
    )


def _is_different(place: tuple[str, str], a: Mapping[tuple[str, str], Any], b: Mapping[tuple[str, str], Any]) -> bool:
    # As they are hashed: to Python 1 and True are one.
    if a.get(place) == b.get(place) == UNREADABLE:
        return True
    return (place in a) is not (place in b) or json_bytes(a[place]) != json_bytes(b[place])


def read_lock(path: str | Path) -> Lock:
    """The lock in a file.

    Raises:
        UsageError: there is none, it was written by another version, or changed since it was written.
    """
    path = Path(path)
    try:
        json_bytes(held := json.loads(read_file(path, most=_MOST_BYTES)))  # no number beyond a float's range has them
    except FileNotFoundError as error:
        raise UsageError(f"there is no lock at {path}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a lock: {error}") from error
    if not isinstance(held, dict) or "format" not in held or "spec" not in held:
        raise UsageError(f"{path} is no lock", hint=f"they lie in RUN/{FOLDER}")
    if held.pop("format") != _FORMAT or held.keys() != {one.name for one in fields(Lock)}:
        raise UsageError(f"{path} was written by another version of rlenv", hint="look at it with that version")
    if not all(isinstance(held[one], dict) for one in (*SECTIONS, "host")):
        raise UsageError(f"{path} is no lock: every section is an object")
    lock = Lock(**held)
    if _FILE.fullmatch(path.name) and lock.hash12 != path.stem:
        raise UsageError(f"{path} was changed since it was written: its content is {lock.hash12}'s")
    return lock


def locks_of(run: str | Path) -> dict[str, Lock]:
    """The locks of a run by their hash, in the order in which they began; empty where it has none.

    Raises:
        UsageError: one cannot be read.
    """
    folder = Path(run) / FOLDER
    files = [path for path in folder.iterdir() if _FILE.fullmatch(path.name)] if folder.is_dir() else []
    found = sorted((read_lock(path) for path in files), key=lambda lock: (lock.started, lock.hash12))
    return {lock.hash12: lock for lock in found}


def last_of(locks: Mapping[str, Lock], last: str) -> str:
    """The hash of the lock of a run's `last` attempt; where that is not among its locks, of the one that began last."""
    return last if last in locks else list(locks)[-1]


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
    said = "; ".join(f"{place}: {_short_text(a)} → {_short_text(b)}" for place, a, b in found[:_SHOWN])
    said += f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    rows = any(place.startswith("data.") for place, _, _ in found)
    hint = "name another folder" if rows else f"name another folder, or `rlenv rescore {run} --spec SPEC -o NEW`"
    raise UsageError(f"{run} holds episodes of other {'rows' if rows else 'rewards'} ({said})", hint=hint)


def _differences(old: Lock, new: Lock) -> Iterator[tuple[str, Any, Any]]:
    for one in diff(old, new):
        split, _, name = one.key.rpartition(".")
        # Of splits that both played; where the file of rows lies is no matter.
        is_of_rows = one.section == "data" and name == "sha256" and split in old.data and split in new.data
        if (one.section == "rewards" or is_of_rows) and not one.a == one.b == UNREADABLE:
            yield f"{one.section}.{one.key}", one.a, one.b


def _short_text(value: Any) -> str:
    text = "–" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"


_FIRST: Final = ("tools", "prompts", "endpoints", "user", "rewards", "dialect", "resources", "data")
"""What decides a request; the other sections say why these changed."""
_NAMED: Final = 4


def changed_since(run: str | Path, hash12: str, environment: Environment) -> str:
    """The changes since the lock `hash12` was written into a run, in words; "" where nothing is known.

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
