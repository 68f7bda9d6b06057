"""Presets: YAML files of veRL keys, turned into the overrides of one run and checked against veRL's configuration.

A run's settings are laid over each other, later ones win:

1. the preset that a preset `extends`, then the preset itself (`presets/`: machine and sizes);
2. the algorithm (`algorithms/`) and the trainer's mode (`modes/`);
3. what the preset adds under `with:` for that algorithm or mode, because only it knows its machine;
4. what the command line says.

Mappings are merged key by key; a list or a scalar replaces what was there.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rlenv.errors import MissingExtra, UsageError

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
    that are in them.
    """

    name: str
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    verl: Mapping[str, Any]
    verl_add: Mapping[str, Any]
    algorithm: str = "grpo"
    mode: str = "sync"

    def overrides(self) -> list[str]:
        """The preset's keys as Hydra overrides."""
        known = [override(key, value) for key, value in flatten(self.verl)]
        return known + [override(key, value, add=True) for key, value in flatten(self.verl_add)]


def preset_names() -> list[str]:
    """The presets that ship."""
    return _names("presets")


def algorithm_names() -> list[str]:
    """The algorithms that ship."""
    return _names("algorithms")


def mode_names() -> list[str]:
    """The modes of veRL's trainer."""
    return _names("modes")


def load_preset(name: str, *, algorithm: str | None = None, mode: str | None = None) -> Preset:
    """The preset of that name, with an algorithm and a mode laid over it.

    Args:
        name: one of `preset_names()`.
        algorithm: one of `algorithm_names()`; None takes the preset's own, `grpo` where it names none.
        mode: one of `mode_names()`; None takes the preset's own, `sync` where it names none.

    Raises:
        UsageError: there is no such preset, algorithm or mode.
    """
    data = _read_preset(name)
    algorithm = algorithm or str(data.get("algorithm", "grpo"))
    mode = mode or str(data.get("mode", "sync"))
    layers = [data, _read("algorithms", algorithm, what="algorithm"), _read("modes", mode, what="mode")]
    own = data.get("with", {})
    layers += [own[choice] for choice in (algorithm, mode) if choice in own]
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _laid_over(merged, {section: layer[section] for section in _SECTIONS if section in layer})
    sections = {section: merged.get(section, {}) for section in _SECTIONS}
    return Preset(name=name, algorithm=algorithm, mode=mode, **sections)


def control_estimator(preset: Preset) -> str:
    """The advantage estimator of the control run, which permutes a batch's rewards over its episodes.

    Raises:
        UsageError: the preset's algorithm has none.
    """
    control = preset.run.get("control")
    if control is None:
        able = [name for name in algorithm_names() if _read("algorithms", name, what="algorithm")["run"]["control"]]
        raise UsageError(
            f"--shuffle-rewards: the algorithm '{preset.algorithm}' has no control run; these have: {', '.join(able)}"
        )
    return str(control)


def _names(folder: str) -> list[str]:
    entries = (resources.files("rlenv_verl") / folder).iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def _read(folder: str, name: str, *, what: str) -> dict[str, Any]:
    known = _names(folder)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(f"no {what} '{name}'; {hint}there are {', '.join(known)}")
    data = yaml.safe_load((resources.files("rlenv_verl") / folder / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def _read_preset(name: str) -> dict[str, Any]:
    data = _read("presets", name, what="preset")
    base = data.pop("extends", None)
    return data if base is None else _laid_over(_read_preset(base), data)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one; where both have a value, that of `above`."""
    merged = dict(below)
    for key, value in above.items():
        known = merged.get(key)
        merged[key] = _laid_over(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged


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
    text = str(value)
    if _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text):
        return text
    # Hydra's grammar: inside quotes, a quote is escaped by a backslash, as are the backslashes before it.
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", text) + "'"


def compose(overrides: Sequence[str], *, name: str = "ppo_trainer") -> dict[str, Any]:
    """veRL's whole configuration with `overrides`, resolved, without importing veRL.

    Args:
        name: which of veRL's: `ppo_trainer`, or `sft_trainer_engine`.

    Raises:
        MissingExtra: veRL is not installed.
        UsageError: an override that veRL's configuration does not take; the message is Hydra's.
    """
    package = importlib.util.find_spec("verl")
    if package is None or package.submodule_search_locations is None:
        raise MissingExtra("training with veRL", extra="verl")
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    folder = Path(package.submodule_search_locations[0]) / "trainer" / "config"
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = hydra_compose(name, overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"veRL's configuration does not take these settings: {error}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
