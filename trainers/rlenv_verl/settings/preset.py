"""Presets: YAML files of veRL keys, turned into the overrides of one run and checked against veRL's configuration.

A run's settings are laid over each other, later ones win:

1. the preset that a preset `extends`, then the preset itself (`presets/`: machine and sizes);
2. the algorithm (`presets/algorithms/`) and the trainer's mode (`presets/modes/`);
3. what the preset adds under `with:` for that algorithm or mode, because only it knows its machine;
4. what the command line says.

Mappings are merged key by key; a list or a scalar replaces what was there. A preset is one that ships, or a file of the
same form (`rlenv_verl.settings`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlenv.errors import UsageError
from rlenv_verl.settings.files import layered, read_preset, read_shipped
from rlenv_verl.settings.names import algorithm_names, mode_names, preset_names
from rlenv_verl.settings.threads import thread_variables
from rlenv_verl.settings.verl_keys import compose

__all__ = [
    "Preset",
    "algorithm_names",
    "compose",
    "control_estimator",
    "flatten",
    "load_preset",
    "mode_names",
    "override",
    "preset_names",
]

_SECTIONS = ("environment", "run", "verl", "verl_add")

_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
_AMBIGUOUS = re.compile(r"(?i)(true|false|null|nan|inf|[-+]?[0-9][0-9_.e+-]*|.*:.*)")


@dataclass(frozen=True, slots=True)
class Preset:
    """The settings of a run before the command line's own.

    `environment` is set for the run's processes; `run` is rlenv's own part; `verl` holds keys that veRL's
    configuration has, `verl_add` keys that it reads without listing them. `algorithm` and `mode` name the overlays
    that are in them. `pinned` names the variables that the command line gave. `file` is the preset as a file that is
    read to the same settings, whatever it extended.
    """

    name: str
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    verl: Mapping[str, Any]
    verl_add: Mapping[str, Any]
    algorithm: str = "grpo"
    mode: str = "sync"
    pinned: tuple[str, ...] = ()
    file: Mapping[str, Any] = field(default_factory=dict)

    def overrides(self) -> list[str]:
        """The preset's keys as Hydra overrides."""
        known = [override(key, value) for key, value in flatten(self.verl)]
        return known + [override(key, value, add=True) for key, value in flatten(self.verl_add)]


def load_preset(name: str, *, algorithm: str | None = None, mode: str | None = None) -> Preset:
    """The preset of that name or file, with an algorithm and a mode laid over it.

    Args:
        name: one of `preset_names()`, or a file.
        algorithm: one of `algorithm_names()`; None takes the preset's own, `grpo` where it names none.
        mode: one of `mode_names()`; None takes the preset's own, `sync` where it names none.

    Raises:
        UsageError: there is no such preset, algorithm or mode.
        SpecError: the file's faults, each at its place.
    """
    data = read_preset(name)
    algorithm = algorithm or str(data.get("algorithm", "grpo"))
    mode = mode or str(data.get("mode", "sync"))
    layers = [
        data,
        read_shipped("presets/algorithms", algorithm, what="algorithm"),
        read_shipped("presets/modes", mode, what="mode"),
    ]
    own = data.get("with", {})
    layers += [own[choice] for choice in (algorithm, mode) if choice in own]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = layered(merged, {section: layer[section] for section in _SECTIONS if section in layer})
    sections = {section: merged.get(section, {}) for section in _SECTIONS}
    environment = {key: str(value) for key, value in sections.pop("environment").items()}
    threads = sections["run"].get("threads")
    if threads is not None:  # a variable that stands beside it comes from a later layer
        environment = {**thread_variables(threads, verl=sections["verl"]), **environment}
    file = {**data, "algorithm": algorithm, "mode": mode}
    return Preset(name=name, environment=environment, algorithm=algorithm, mode=mode, file=file, **sections)


def control_estimator(preset: Preset) -> str:
    """The advantage estimator of the control run, which permutes a batch's rewards over its episodes.

    Raises:
        UsageError: the preset's algorithm has none.
    """
    control = preset.run.get("control")
    if control is None:
        able = [
            name
            for name in algorithm_names()
            if read_shipped("presets/algorithms", name, what="algorithm")["run"]["control"]
        ]
        raise UsageError(
            f"--shuffle-rewards: the algorithm '{preset.algorithm}' has no control run",
            hint=f"these have: {', '.join(able)}",
        )
    return str(control)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a nested mapping; lists are values."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def override(key: str, value: Any, *, add: bool = False) -> str:
    """One Hydra override, quoted as Hydra's grammar wants it; `add` for a key that the configuration does not have."""
    return f"{'+' if add else ''}{key}={_literal(value)}"


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_literal(item) for item in value) + "]"
    if isinstance(value, Mapping):  # inside a list
        return "{" + ",".join(f"{key}:{_literal(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text):
        return text
    # Hydra's grammar: inside quotes, a quote is escaped by a backslash, as are the backslashes before it.
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"
