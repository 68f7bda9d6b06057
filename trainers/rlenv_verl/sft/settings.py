"""The settings of a supervised run: a preset, what the command line says, and what follows from the data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rlenv._base.nearest import all_known, did_you_mean
from rlenv.errors import UsageError
from rlenv_verl.settings.files import laid_over
from rlenv_verl.settings.preset import compose, flatten, override

__all__ = ["CONFIG", "SftPreset", "compose_sft", "load_sft_preset", "sft_preset_names"]

CONFIG = "sft_trainer_engine"
"""veRL's configuration of its supervised trainer."""

_SECTIONS = ("environment", "run", "verl", "verl_add")


@dataclass(frozen=True, slots=True)
class SftPreset:
    """A preset of `sft/presets`; its sections mean what those of `rlenv_verl.settings.preset.Preset` mean."""

    name: str
    environment: Mapping[str, str]
    run: Mapping[str, Any]
    verl: Mapping[str, Any]
    verl_add: Mapping[str, Any]

    def overrides(self) -> list[str]:
        """The preset's keys as Hydra overrides."""
        known = [override(key, value) for key, value in flatten(self.verl)]
        return known + [override(key, value, add=True) for key, value in flatten(self.verl_add)]

    def with_run(self, items: Sequence[str]) -> tuple[SftPreset, list[str]]:
        """The preset with `run.KEY=VALUE` items laid over it, and the other items.

        Raises:
            UsageError: the preset has no such key.
        """
        run, rest = dict(self.run), []
        for item in items:
            key, _, value = item.partition("=")
            if not key.startswith("run."):
                rest.append(item)
                continue
            name = key.removeprefix("run.")
            if name not in run:
                listed = f"there are {', '.join(f'run.{one}' for one in run)}"
                hint = did_you_mean(name, run, prefix="run.", otherwise=listed)
                raise UsageError(f"{item}: no such key", hint=hint)
            run[name] = yaml.safe_load(value)
        return SftPreset(self.name, self.environment, run, self.verl, self.verl_add), rest

    def variables(self, processes: int) -> dict[str, str]:
        """The environment variables of each process."""
        threads = self.run["threads"] or max((os.cpu_count() or 1) // processes, 1)
        return {**{key: str(value) for key, value in self.environment.items()}, "OMP_NUM_THREADS": str(threads)}


def sft_preset_names() -> list[str]:
    """The presets that ship."""
    entries = _folder().iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def load_sft_preset(name: str) -> SftPreset:
    """The preset of that name.

    Raises:
        UsageError: there is none.
    """
    data = _read(name)
    return SftPreset(name, **{section: data.get(section) or {} for section in _SECTIONS})


def _folder() -> Any:
    return resources.files("rlenv_verl") / "sft" / "presets"


def _read(name: str) -> dict[str, Any]:
    known = sft_preset_names()
    if name not in known:
        raise UsageError(f"no preset '{name}' for supervised training", hint=all_known(name, known))
    data: dict[str, Any] = yaml.safe_load((_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    base = data.pop("extends", None)
    return data if base is None else laid_over(_read(base), data)


def compose_sft(overrides: Sequence[str], *, keep: Path | None = None) -> dict[str, Any]:
    """veRL's whole configuration of the supervised trainer; also written to `keep`.

    Raises:
        UsageError: an override that veRL's configuration does not take, or one that rlenv stands on was changed.
    """
    config = compose(overrides, name=CONFIG)
    if "file" not in config["trainer"]["logger"]:
        raise UsageError("trainer.logger has to keep 'file', which progress and summary are read from")
    if config["data"]["pad_mode"] != "no_padding":
        raise UsageError("data.pad_mode has to stay no_padding: veRL's FSDP engine takes no other")
    if keep is not None:
        keep.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return config
