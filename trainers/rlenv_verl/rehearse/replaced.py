"""What a rehearsal replaces in a preset, and the list of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from rlenv_verl.settings.preset import Preset, flatten, override

__all__ = ["Replaced", "overlay", "replaced_keys"]

_WORKERS = 2  # processes that play episodes; each imports torch and veRL
_TRAINERS = 2  # processes that train where the preset has several GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """A key of veRL's configuration with the preset's value and the rehearsal's."""

    key: str
    preset: Any
    rehearsal: Any


def overlay(preset: Preset, config: Mapping[str, Any]) -> tuple[Preset, list[str]]:
    """The preset with a rehearsal's environment variables, and the overrides that make a rehearsal of it.

    Args:
        preset: with an algorithm and a mode laid over it.
        config: the preset's configuration as veRL resolves it.
    """
    text = (resources.files("rlenv_verl") / "rehearse" / "overlay.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    layers = [data, data["with"].get(preset.algorithm, {})]
    overrides: list[str] = []
    for layer in layers:
        overrides += [override(key, value) for key, value in flatten(layer.get("verl", {}))]
        # `++` also takes a key that the preset itself adds.
        overrides += [f"++{override(key, value)}" for key, value in flatten(layer.get("verl_add", {}))]
    workers = int(config["actor_rollout_ref"]["rollout"]["agent"]["num_workers"])
    if workers > _WORKERS:
        overrides.append(override("actor_rollout_ref.rollout.agent.num_workers", _WORKERS))
    # One trainer of all rows takes longer than two of half of them, even on two cores: veRL's
    # `index_select_tensor_dict` is quadratic in the rows of a worker.
    gpus = int(config["trainer"]["n_gpus_per_node"]) * int(config["trainer"]["nnodes"])
    overrides.append(override("trainer.n_gpus_per_node", min(gpus, _TRAINERS)))
    return dataclasses.replace(preset, environment={**preset.environment, **data["environment"]}), overrides


def replaced_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Replaced]:
    """Every key of a configuration whose value differs, in the order of the keys."""
    old, new = dict(flatten(before)), dict(flatten(after))
    keys: Sequence[str] = sorted({*old, *new})
    return [Replaced(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]
