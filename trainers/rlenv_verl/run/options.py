"""The command line of `rlenv train`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlenv_verl.settings.preset import algorithm_names, mode_names, preset_names

__all__ = ["FIXED_BY_A_RUN", "TRAINERS", "count", "parser"]

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


def parser() -> argparse.ArgumentParser:
    """Reads the arguments; positional ones are specs and overrides, told apart by `spec_and_overrides`."""
    reads = argparse.ArgumentParser(
        prog="rlenv train",
        usage=(
            "rlenv train SPEC [SPEC ...] [options] [key=value ...]\n"
            "       rlenv train --resume RUN [options] [key=value ...]"
        ),
        description="Train a policy on one spec or several with veRL. Everything of the run is kept in one folder.",
        epilog=_EPILOG,
    )
    reads.set_defaults(command=())  # the command line itself, which whoever reads it adds
    reads.add_argument("items", nargs="*", metavar="SPEC | key=value", help="YAML files, or names of specs that ship")
    _what_is_trained(reads)
    _how_long(reads)
    _how_it_is_run(reads)
    return reads


def _what_is_trained(reads: argparse.ArgumentParser) -> None:
    what = reads.add_argument_group("what is trained")
    what.add_argument("--trainer", choices=TRAINERS, default="verl")
    what.add_argument(
        "--preset",
        metavar="NAME|FILE",
        help=f"machine and sizes: {', '.join(preset_names())}, or a YAML file like theirs; cpu by default",
    )
    what.add_argument("--algorithm", choices=algorithm_names(), help="the preset's own by default, mostly grpo")
    what.add_argument("--mode", choices=mode_names(), help="whether rollout and update take turns; sync by default")
    what.add_argument(
        "--model",
        help=("a folder, a .gguf file, package:NAME or a hub name; 'tiny' (default) makes a small policy on the spot"),
    )
    what.add_argument(
        "--chat-template", metavar="FILE|NAME", help="instead of the model's own, and kept with it: a file, or chatml"
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of every spec; NAME:KEY=VALUE of one",
    )
    what.add_argument(
        "--weight", action="append", default=[], metavar="NAME=W", help="a spec's share of the rows; 1 by default"
    )
    what.add_argument("--lora", type=int, metavar="RANK", help="train a LoRA adapter of this rank on all linear layers")
    what.add_argument("--seed", type=int, help="0 by default")
    what.add_argument("--shuffle-rewards", action="store_true", help="the control: permute rewards over episodes")


def _how_long(reads: argparse.ArgumentParser) -> None:
    length = reads.add_argument_group("how long, and what is kept")
    length.add_argument("--steps", type=count, help="training steps; the preset's otherwise")
    length.add_argument(
        "--validation-tasks", type=count, metavar="N", help="held-out tasks a spec; the preset's otherwise"
    )
    length.add_argument(
        "--save-every", type=count, metavar="N", help="a checkpoint each N steps; the preset's otherwise"
    )
    length.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop training after this long")
    length.add_argument("-o", "--output", type=Path, help="the run's folder; by default runs/NAME-TIME")


def _how_it_is_run(reads: argparse.ArgumentParser) -> None:
    how = reads.add_argument_group("how it is run")
    how.add_argument("--resume", type=Path, metavar="RUN", help="go on from the last checkpoint of the run in a folder")
    how.add_argument("--eval", action="store_true", help="validate only; with --resume the run's last checkpoint")
    how.add_argument("--dry-run", action="store_true", help="write the run's folder, print the command, start nothing")
    how.add_argument(
        "--rehearse",
        action="store_true",
        help="play the preset's whole data flow at its full batch shape on this machine, with a tiny model and scripted"
        " tokens: STEPS (1) steps, a checkpoint and one more step from it",
    )
    how.add_argument("--ray-address", metavar="ADDRESS", help="join this Ray cluster and ship the specs to it")
