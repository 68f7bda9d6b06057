"""The command line of `rlenv sft`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rlenv.cli.commands import parser_named
from rlenv.cli.options import Options, argument, option
from rlenv_verl.run.options import count
from rlenv_verl.sft.settings import sft_preset_names

__all__ = ["FIXED_BY_A_RUN", "SftCommand", "data_and_overrides", "parser"]

FIXED_BY_A_RUN = (
    *("preset", "model", "chat_template", "batch", "lr", "lora", "seed", "epochs", "val"),
    *("max_length", "skip_long", "save_every", "val_every", "output"),
)
"""Arguments that `--resume` does not take: they would make another run of it."""

_EPILOG = """key=value are overrides: of veRL's configuration of its supervised trainer in Hydra's syntax
(optim.weight_decay=0), or of the preset's own part (run.threads=2). They win over everything else."""


_what = partial(option, group="what is trained")
_length = partial(option, group="how long, and what is kept")
_how = partial(option, group="how it is run")


@dataclass
class SftCommand(Options):
    """The options of `rlenv sft`; `items` are folders of data and overrides, told apart by `data_and_overrides`."""

    usage: ClassVar[str] = (
        "rlenv sft DATA [DATA ...] --model M -o OUT [options] [key=value ...]\n"
        "       rlenv sft --resume OUT [--steps N] [key=value ...]"
    )
    epilog: ClassVar[str] = _EPILOG

    items: list[str] = argument("folders of `rlenv collect -o`", metavar="DATA | key=value", nargs="*")
    model: str | None = _what("the model to start from, as `rlenv train` takes it")
    chat_template: str | None = _what("the template that the data was collected with", metavar="FILE|NAME")
    preset: str | None = _what("machine and sizes; cpu by default", choices=sft_preset_names())
    lora: int | None = _what("train an adapter on all linear layers; it is merged", metavar="RANK")
    lr: float | None = _what("learning rate; the preset's otherwise", metavar="RATE")
    batch: int | None = _what("rows a step; the preset's otherwise", metavar="N", read=count)
    seed: int | None = _what("of the rows' order and an adapter's first weights; 0 by default")
    max_length: int | None = _what("of a row; by default what the model reads", metavar="TOKENS", read=count)
    skip_long: bool = _what("leave longer rows out; without it they are an error")
    steps: int | None = _length("optimiser steps", metavar="N", read=count, one_of="length")
    epochs: int | None = _length(
        "passes over the data; the preset's otherwise", metavar="E", read=count, one_of="length"
    )
    val: list[str] | None = _length("rows whose loss is measured, not trained on", metavar="DATA")
    val_every: int | None = _length("measure each N steps; at the end in any case", metavar="N", read=count)
    save_every: int | None = _length("a checkpoint each N steps, to resume from", metavar="N", read=count)
    time_limit: float | None = _length("stop training after this long", metavar="SECONDS")
    output: Path | None = _length(
        "a new folder; the policy is in OUT/trained", "-o", "--output", metavar="OUT", writes=True
    )
    resume: Path | None = _how("go on from the last checkpoint of the run in a folder", metavar="OUT", writes=True)
    dry_run: bool = _how("write the run's folder, print the command, start nothing")


def parser() -> argparse.ArgumentParser:
    """Reads the arguments of `rlenv sft`."""
    return parser_named("sft", SftCommand)


def data_and_overrides(items: list[str]) -> tuple[list[str], list[str]]:
    """Folders of data, and overrides: what has a '=' and is no path that exists."""
    data = [item for item in items if "=" not in item or Path(item).exists()]
    return data, [item for item in items if item not in data]
