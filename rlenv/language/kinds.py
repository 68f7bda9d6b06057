"""Kinds by name: which spec class a kind takes and which factory compiles it.

Built-ins stand in one table of import paths (kinds.toml) and are imported when first named, so that importing rlenv
stays light. Other kinds come from entry points, which are loaded only when a kind is named that is not built in.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlenv._base.paths import finder
from rlenv.errors import UnknownEntry, UsageError
from rlenv.language.requirements import Requirement
from rlenv.language.spec import Spec
from rlenv.language.templates import Template

_R = TypeVar("_R")

__all__ = ["BUILT_IN", "CompileContext", "Group", "Kind", "get", "kind_of", "names"]

Group = Literal["tools", "resources", "rewards", "rules", "dialects", "policies", "users"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind that a spec can name: `spec` is its mapping's class, `factory` compiles an instance of it.

    `requirements(entry, folder)` gives what an entry needs of the machine, for `rlenv validate --machine` (see
    `rlenv.language.requirements`); what the factory itself raises need not be named. Urls under `url` are looked at
    anyway.
    """

    spec: type[Spec]
    factory: Callable[..., Any]
    requirements: Callable[[Any, Path], Iterable[Requirement]] | None = None
    values: tuple[float, float] | None = field(default=None, kw_only=True)
    """Rewards: between which values a term lies, whatever the policy does; None where that is not known."""
    gold: str = field(default="", kw_only=True)
    """Rewards: the key of the entry that holds what the answer is compared with, such as `expect`; "" for none."""
    of_calls: bool = field(default=False, kw_only=True)
    """Rewards: calls stand under `gold`, and no answer is compared with them."""
    several: bool = field(default=False, kw_only=True)
    """Rewards: a list under `gold` gives alternatives, rather than being one value."""
    normalise: Callable[[str], str] | None = field(default=None, kw_only=True)
    """Rewards: what is done to answer and gold before they are compared, where no key `normalise` says it."""
    reads_answer: bool = field(default=False, kw_only=True)
    """Rewards: it looks at what `answer:` reads of the last message."""
    form: Literal["", "all"] = field(default="", kw_only=True)
    """Rewards: `all` where it pays for the form of an episode (calls, turns, length), whatever the answer says."""
    asks_models: bool = field(default=False, kw_only=True)
    """It asks other models: it takes long, costs, and may answer otherwise the next time."""
    is_local: bool = field(default=False, kw_only=True)
    """Tools: a call reaches nothing outside of this machine, so that validation may make one."""


@dataclass(frozen=True, slots=True)
class CompileContext:
    """The values and lookups that a factory may use.

    `base` is the folder of the file that holds the entry; `bases` names the keys whose value comes from elsewhere (an
    override, a spec that is extended) with the folder that they are relative to.
    """

    base: Path
    vars: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Compiled resources by name (see `rlenv.resources.base.Resource`); not opened yet."""
    bases: Mapping[str, Path] = field(default_factory=dict)
    endpoints: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """Compiled endpoints by name (see `rlenv.endpoints.Endpoint`)."""
    nest: Callable[..., Any] | None = field(default=None, kw_only=True)
    """Compiles another spec for nested episodes; see `rlenv.episodes.rollout.nest`."""
    tools: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """The compiled tools of the entries above this one, by name (see `rlenv.tools.base.Tool`)."""
    roots: tuple[Path, ...] = field(default=(), kw_only=True)
    """Folders of the spec's `roots`: rows may name paths below them too."""
    row: Callable[[], Mapping[str, Any]] = field(default=dict, kw_only=True)
    """The first row that can be read, for what has to be tried while the spec is compiled; {} where there is none."""

    def path(self, key: str, value: str) -> Path:
        """The path that `value`, written under `key` of this entry, names."""
        return self.bases.get(key, self.base) / value

    def resource(self, name: str, kind: type[_R], named: str) -> _R:
        """The compiled resource that the entry names under `resource`; `named` are its kinds, for the message.

        Raises:
            UsageError: it does not exist or is of another kind.
        """
        if (found := self.resources.get(name)) is None:
            raise UnknownEntry("resources", name, self.resources, key="resource")
        if not isinstance(found, kind):
            message = f"'{name}' is a {type(found).__name__}; expected one of kind {named}"
            raise UsageError(message, key="resource")
        return found

    def finder(self, key: str, template: Template, **values: Any) -> Callable[[str], Path]:
        """A function that resolves a text, rendered from the `template` written under `key`, to a path.

        What a row fills in may not lead out of the folder that the author wrote before it; see `rlenv._base.paths`. The
        function raises `rlenv._base.paths.RefusedPath` then.
        """
        return finder(template, base=self.bases.get(key, self.base), roots=self.roots, **values)


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_RULES = {name: f"rlenv.rewards.{module}:{name.upper()}" for module, names in _DATA["rules"].items() for name in names}

BUILT_IN: dict[Group, dict[str, str]] = {
    "tools": _DATA["tools"],
    "resources": _DATA["resources"],
    "rewards": _DATA["rewards"],
    "rules": dict(sorted(_RULES.items())),
    "dialects": {name: f"rlenv.dialects.built_in:{name}" for name in _DATA["dialects"]["names"].split()},
    "policies": {},
    "users": _DATA["users"],
}


def names(group: Group) -> tuple[str, ...]:
    """The kinds of a group that can be named, built-ins first, without importing any."""
    installed = (point.name for point in entry_points(group=f"rlenv.{group}"))
    return tuple(dict.fromkeys((*BUILT_IN[group], *installed)))


def kind_of(group: Group, entry: Any) -> Kind:
    """The kind of an entry of a spec; that of its rule where the entry is a rule.

    Raises:
        KeyError, UsageError: as `get`.
    """
    rule = getattr(entry, "rule", "") if group == "rewards" and entry.kind == "rule" else ""
    return get("rules", rule) if rule else get(group, entry.kind)


def is_own(entry: Any) -> bool:
    """True for a reward's entry whose value a function of the author's own gives."""
    return hasattr(entry, "function") and entry.kind in ("rule", "group")


def gold_key(entry: Any) -> str:
    """The key of a reward's entry that holds what is right; "" where it compares with nothing, or nobody knows."""
    try:
        return kind_of("rewards", entry).gold
    except (KeyError, UsageError):
        return ""


def gold_in(entry: Any) -> Any:
    """What stands under that key; None where there is none."""
    return getattr(entry, key, None) if (key := gold_key(entry)) else None


def get(group: Group, name: str) -> Kind:
    """The kind called `name`; a dialect also by another name that people know it by (see `rlenv.dialects.built_in`).

    Raises:
        KeyError: no kind has that name; `names(group)` lists those that exist.
        UsageError: a plug-in's kind cannot be loaded; the message names its distribution.
    """
    target = BUILT_IN[group].get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
        assert isinstance(kind, Kind)
        return kind
    for point in entry_points(group=f"rlenv.{group}", name=name):
        distribution = point.dist.name if point.dist is not None else "an unknown distribution"
        try:
            kind = point.load()
        except Exception as error:  # a plug-in may fail in any way while it is imported
            raise UsageError(f"{group} kind '{name}' of {distribution} cannot be loaded: {error!r}") from error
        if not isinstance(kind, Kind):
            raise UsageError(f"{group} kind '{name}' of {distribution} is a {type(kind).__name__}, not a Kind")
        return kind
    if group == "dialects":  # another name of a built-in one; looked for last, since it imports all of them
        other = getattr(importlib.import_module("rlenv.dialects.built_in"), name, None)
        if isinstance(other, Kind):
            return other
    raise KeyError(name)
