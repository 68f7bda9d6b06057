"""The command lines of `rlenv train` and `rlenv sft`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from rlenv.cli.commands import parser_named
from rlenv.cli.options import Options, argument, option
from rlenv_verl.settings.keys import algorithm_names, mode_names, preset_names, sft_preset_names

__all__ = [
    "FIXED_BY_AN_SFT_RUN",
    "FIXED_BY_A_RUN",
    "TRAINERS",
    "SftCommand",
    "TrainCommand",
    "count",
    "parser",
    "sft_parser",
]

TRAINERS = ("verl",)

FIXED_BY_A_RUN = (
    "preset",
    "algorithm",
    "mode",
    "model",
    "chat_template",
    "set",
    "weight",
    "lora",
    "seed",
    "shuffle_rewards",
)
"""Arguments that `--resume` does not take: they would make another run of it."""

_EPILOG = """key=value are overrides: of veRL's configuration in Hydra's syntax (trainer.test_freq=5), or of the
preset's own part (run.validation_tasks=50). They win over everything else."""


def count(text: str) -> int:
    """A number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, not {number}")
    return number


_what = partial(option, group="what is trained")
_length = partial(option, group="how long, and what is kept")
_how = partial(option, group="how it is run")


@dataclass
class TrainCommand(Options):
    """The options of `rlenv train`; `items` are specs and overrides, told apart by `spec_and_overrides`."""

    usage: ClassVar[str] = (
        "rlenv train SPEC [SPEC ...] [options] [key=value ...]\n"
        "       rlenv train --resume RUN [options] [key=value ...]"
    )
    epilog: ClassVar[str] = _EPILOG

    items: list[str] = argument("YAML files, or names of specs that ship", metavar="SPEC | key=value", nargs="*")
    trainer: str = _what("what updates the weights", choices=TRAINERS, default="verl")
    preset: str | None = _what(
        f"machine and sizes: {', '.join(preset_names())}, or a YAML file like theirs; cpu by default",
        metavar="NAME|FILE",
    )
    algorithm: str | None = _what("the preset's own by default, mostly grpo", choices=algorithm_names())
    mode: str | None = _what("whether rollout and update take turns; sync by default", choices=mode_names())
    model: str | None = _what(
        "a folder, a .gguf file, package:NAME or a hub name; 'tiny' (default) makes a small policy on the spot"
    )
    chat_template: str | None = _what(
        "instead of the model's own, and kept with it: a file, or chatml", metavar="FILE|NAME"
    )
    set: list[str] = _what("replace a key of every spec; NAME:KEY=VALUE of one", default=[], metavar="KEY=VALUE")
    weight: list[str] = _what("a spec's share of the rows; 1 by default", default=[], metavar="NAME=W")
    lora: int | None = _what("train a LoRA adapter of this rank on all linear layers", metavar="RANK")
    seed: int | None = _what("0 by default")
    shuffle_rewards: bool = _what("the control: permute rewards over episodes")
    steps: int | None = _length("training steps; the preset's otherwise", read=count)
    validation_tasks: int | None = _length("held-out tasks a spec; the preset's otherwise", metavar="N", read=count)
    save_every: int | None = _length("a checkpoint each N steps; the preset's otherwise", metavar="N", read=count)
    time_limit: float | None = _length("stop training after this long", metavar="SECONDS")
    output: Path | None = _length("the run's folder; by default runs/NAME-TIME", "-o", "--output", "--out", writes=True)
    resume: Path | None = _how("go on from the last checkpoint of the run in a folder", metavar="RUN", writes=True)
    eval: bool = _how("validate only; with --resume the run's last checkpoint")
    dry_run: bool = _how("write the run's folder, print the command, start nothing")
    rehearse: bool = _how(
        "play the preset's whole data flow at its full batch shape on this machine, with a tiny model and scripted"
        " tokens: STEPS (1) steps, a checkpoint and one more step from it"
    )
    ray_address: str | None = _how("join this Ray cluster and ship the specs to it", metavar="ADDRESS", local=True)


def parser() -> argparse.ArgumentParser:
    """Reads the arguments of `rlenv train`."""
    reads = parser_named("train", TrainCommand)
    reads.set_defaults(command=())  # the command line itself, which whoever reads it adds
    return reads


FIXED_BY_AN_SFT_RUN = (
    *("preset", "model", "chat_template", "batch", "lr", "lora", "seed", "epochs", "val"),
    *("max_length", "skip_long", "save_every", "val_every", "output"),
)
"""Arguments that `--resume` does not take: they would make another run of it."""

_SFT_EPILOG = """key=value are overrides: of veRL's configuration of its supervised trainer in Hydra's syntax
(optim.weight_decay=0), or of the preset's own part (run.threads=2). They win over everything else."""


@dataclass
class SftCommand(Options):
    """The options of `rlenv sft`; `items` are folders of data and overrides, told apart by `spec_and_overrides`."""

    usage: ClassVar[str] = (
        "rlenv sft DATA [DATA ...] --model M -o OUT [options] [key=value ...]\n"
        "       rlenv sft --resume OUT [--steps N] [key=value ...]"
    )
    epilog: ClassVar[str] = _SFT_EPILOG

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
        "a new folder; the policy is in OUT/trained", "-o", "--output", "--out", metavar="OUT", writes=True
    )
    resume: Path | None = _how("go on from the last checkpoint of the run in a folder", metavar="OUT", writes=True)
    dry_run: bool = _how("write the run's folder, print the command, start nothing")


def sft_parser() -> argparse.ArgumentParser:
    """Reads the arguments of `rlenv sft`."""
    return parser_named("sft", SftCommand)
