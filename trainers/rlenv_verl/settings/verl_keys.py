"""veRL's configuration: composed with a run's overrides, and as its files list it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlenv.errors import MissingExtra, UsageError

__all__ = ["compose", "value_at", "verl_keys"]


def compose(overrides: Sequence[str], *, name: str = "ppo_trainer") -> dict[str, Any]:
    """veRL's whole configuration with `overrides`, resolved, without importing veRL.

    Args:
        name: which of veRL's: `ppo_trainer`, or `sft_trainer_engine`.

    Raises:
        MissingExtra: veRL is not installed.
        UsageError: an override that veRL's configuration does not take; the message is Hydra's.
    """
    return _composed(overrides, name=name, is_resolved=True)


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path of veRL's configuration; None where nothing does."""
    value: Any = config
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


@cache
def verl_keys() -> Mapping[str, Any] | None:
    """veRL's configuration as its files list it, interpolations as they stand; None where veRL is not installed."""
    try:
        return _composed((), name="ppo_trainer", is_resolved=False)
    except MissingExtra:
        return None


def _composed(overrides: Sequence[str], *, name: str, is_resolved: bool) -> dict[str, Any]:
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
        resolved = OmegaConf.to_container(config, resolve=is_resolved)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(f"veRL's configuration does not take these settings: {error}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
