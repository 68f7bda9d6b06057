"""`rlenv sft`: hands over to a trainer's adapter."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from rlenv.errors import MissingExtra

__all__ = ["add_arguments", "run_argv"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The adapter parses its own arguments; `rlenv sft --help` shows them."""


def run_argv(argv: Sequence[str]) -> int:
    """Runs the veRL adapter's command.

    Raises:
        MissingExtra: the adapter or veRL is not installed.
    """
    try:
        adapter = importlib.import_module("rlenv_verl.sft.command")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"rlenv sft ({error.name} is missing)", extra="verl") from error
    return int(adapter.main(list(argv)))
