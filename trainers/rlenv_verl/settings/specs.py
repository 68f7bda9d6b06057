"""The specs of one run: which, with what replaced, and in what shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlenv._base.nearest import did_you_mean
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.language.loader import load_document
from rlenv.language.shipped import find

__all__ = ["TrainedSpec", "load_specs", "spec_and_overrides"]


@dataclass(frozen=True, slots=True)
class TrainedSpec:
    """One spec of a run.

    `source` is an absolute path or the name of a spec that ships; `set` holds values that replace its keys by dotted
    path. `weight` is positive and relative to the other specs' weights.
    """

    environment: Environment
    source: str
    set: Mapping[str, Any]
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The spec's own name, unique in a run."""
        return self.environment.spec.name


def spec_and_overrides(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Positional arguments as specs and as overrides of veRL's configuration, which hold a `=`."""
    specs = [item for item in items if "=" not in item or Path(item).is_file()]
    return specs, [item for item in items if item not in specs]


def load_specs(
    sources: Sequence[str], *, set: Sequence[str] = (), weights: Sequence[str] = ()
) -> tuple[TrainedSpec, ...]:
    """Load and compile the specs of a run.

    Args:
        sources: paths, or names of specs that ship.
        set: `KEY=VALUE` for every spec, `NAME:KEY=VALUE` for the one of that name; values are YAML.
        weights: `NAME=W`; a spec without one weighs 1.

    Raises:
        UsageError: two specs share a name, a name that no spec has, or an argument that cannot be read.
        SpecError: a spec's own faults.
    """
    assignments = [_assignment(item) for item in set]
    everywhere = {key: value for name, key, value in assignments if name is None}
    names = [_name_of(source, everywhere) for source in sources]
    _check_unique(names, sources)
    given = dict(_weight(item) for item in weights)
    for flag, wanted in [("--weight", name) for name in given] + [
        ("--set", name) for name, _, _ in assignments if name
    ]:
        if wanted not in names:
            hint = did_you_mean(wanted, names, otherwise=f"this run has {', '.join(names)}")
            raise UsageError(f"{flag} names '{wanted}', and no spec of this run is called that", hint=hint)
    out = []
    for source, name in zip(sources, names, strict=True):
        own = everywhere | {key: value for owner, key, value in assignments if owner == name}
        out.append(TrainedSpec(load(source, set=own or None), _absolute(source), own, given.get(name, 1.0)))
    _check_unique([spec.name for spec in out], sources)
    return tuple(out)


def _name_of(source: str, everywhere: Mapping[str, Any]) -> str:
    path = find(source)
    return str(everywhere.get("name") or load_document(path).get("name") or path.stem)


def _check_unique(names: Sequence[str], sources: Sequence[str]) -> None:
    for index, name in enumerate(names):
        first = names.index(name)
        if first < index:
            raise UsageError(
                f"{sources[first]} and {sources[index]} are both called '{name}', and figures are kept by name",
                hint="change `name:` in one of them",
            )


def _assignment(item: str) -> tuple[str | None, str, Any]:
    left, separator, value = item.partition("=")
    name, colon, key = left.rpartition(":")
    if not separator or not key:
        raise UsageError(f"--set wants KEY=VALUE or NAME:KEY=VALUE, not '{item}'")
    try:
        return (name if colon else None), key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {item}: the value is not YAML", hint="put quotes around it") from error


def _weight(item: str) -> tuple[str, float]:
    name, separator, text = item.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not separator or not 0 < weight < math.inf:
        raise UsageError(
            f"--weight wants NAME=W with W above 0, not '{item}'", hint="leave a spec out to train without it"
        )
    return name, weight


def _absolute(source: str) -> str:
    path = Path(source)
    return str(path.resolve()) if path.exists() else source
