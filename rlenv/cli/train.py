"""`rlenv train`: hands over to a trainer's adapter."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rlenv.models.place import adapter

__all__ = ["add_arguments", "run_argv"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The adapter parses its own arguments; `rlenv train --help` shows them."""


def run_argv(argv: Sequence[str]) -> int:
    """Runs the veRL adapter's command.

    Raises:
        MissingExtra: the adapter or veRL is not installed.
    """
    return int(adapter("run.train", wanted_by="rlenv train").main(list(argv)))
