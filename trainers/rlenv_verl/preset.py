"""Presets: YAML files of veRL keys, turned into the overrides of one run and checked against veRL's configuration."""

from __future__ import annotations

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

__all__ = ["Preset", "compose", "flatten", "load_preset", "override", "preset_names"]

_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
_AMBIGUOUS = re.compile(r"(?i)(true|false|null|nan|inf|[-+]?[0-9][0-9_.e+-]*|.*:.*)")


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset file.

    `environment` is set for the run's processes; `run` is rlenv's own part; `verl` holds keys that veRL's
    configuration has, `verl_add` keys that it reads without listing them.
    """

    name: str
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    verl: Mapping[str, Any]
    verl_add: Mapping[str, Any]

    def overrides(self) -> list[str]:
        """The preset's keys as Hydra overrides."""
        known = [override(key, value) for key, value in flatten(self.verl)]
        return known + [override(key, value, add=True) for key, value in flatten(self.verl_add)]


def preset_names() -> list[str]:
    """The presets that ship."""
    folder = resources.files("rlenv_verl") / "presets"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in preset_names():
        raise UsageError(f"no preset '{name}'; there are {', '.join(preset_names())}")
    text = (resources.files("rlenv_verl") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    return Preset(name, data["environment"], data["run"], data["verl"], data["verl_add"])


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


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """veRL's whole configuration with `overrides`, resolved, without importing veRL.

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
            config = hydra_compose("ppo_trainer", overrides=list(overrides))
        resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"veRL's configuration does not take these settings: {error}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
