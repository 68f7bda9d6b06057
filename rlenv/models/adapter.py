"""The door to the adapter for veRL, which need not be installed."""

from __future__ import annotations

import importlib
from typing import Any

from rlenv.errors import MissingExtra

__all__ = ["adapter"]


def adapter(module: str, *, wanted_by: str) -> Any:
    """A module of `rlenv_verl`.

    Raises:
        MissingExtra: the adapter or what it stands on is not installed; it names `wanted_by`.
    """
    try:
        return importlib.import_module(f"rlenv_verl.{module}")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{wanted_by} ({error.name} is missing)", extra="verl") from error
