"""The command line of `rlenv sft`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlenv_verl.run.options import count
from rlenv_verl.sft.settings import sft_preset_names

__all__ = ["FIXED_BY_A_RUN", "data_and_overrides", "parser"]

FIXED_BY_A_RUN = (
    *("preset", "model", "chat_template", "batch", "lr", "lora", "seed", "epochs", "val"),
    *("max_length", "skip_long", "save_every", "val_every", "output"),
)
"""Arguments that `--resume` does not take: they would make another run of it."""

_EPILOG = """key=value are overrides: of veRL's configuration of its supervised trainer in Hydra's syntax
(optim.weight_decay=0), or of the preset's own part (run.threads=2). They win over everything else."""


def parser() -> argparse.ArgumentParser:
    """Reads the arguments; positional ones are folders of data and overrides, told apart by `data_and_overrides`."""
    reads = argparse.ArgumentParser(
        prog="rlenv sft",
        usage=(
            "rlenv sft DATA [DATA ...] --model M -o OUT [options] [key=value ...]\n"
            "       rlenv sft --resume OUT [--steps N] [key=value ...]"
        ),
        description="Start a policy on what `rlenv collect` wrote, with veRL's own supervised trainer.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    reads.add_argument("items", nargs="*", metavar="DATA | key=value", help="folders of `rlenv collect -o`")
    what = reads.add_argument_group("what is trained")
    what.add_argument("--model", help="the model to start from, as `rlenv train` takes it")
    what.add_argument("--chat-template", metavar="FILE|NAME", help="the template that the data was collected with")
    what.add_argument("--preset", choices=sft_preset_names(), help="machine and sizes; cpu by default")
    what.add_argument("--lora", type=int, metavar="RANK", help="train an adapter on all linear layers; it is merged")
    what.add_argument("--lr", type=float, metavar="RATE", help="learning rate; the preset's otherwise")
    what.add_argument("--batch", type=count, metavar="N", help="rows a step; the preset's otherwise")
    what.add_argument("--seed", type=int, help="of the rows' order and an adapter's first weights; 0 by default")
    what.add_argument("--max-length", type=count, metavar="TOKENS", help="of a row; by default what the model reads")
    what.add_argument("--skip-long", action="store_true", help="leave longer rows out; without it they are an error")
    length = reads.add_argument_group("how long, and what is kept")
    how_long = length.add_mutually_exclusive_group()
    how_long.add_argument("--steps", type=count, metavar="N", help="optimiser steps")
    how_long.add_argument("--epochs", type=count, metavar="E", help="passes over the data; the preset's otherwise")
    length.add_argument("--val", action="append", metavar="DATA", help="rows whose loss is measured, not trained on")
    length.add_argument("--val-every", type=count, metavar="N", help="measure each N steps; at the end in any case")
    length.add_argument("--save-every", type=count, metavar="N", help="a checkpoint each N steps, to resume from")
    length.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop training after this long")
    length.add_argument("-o", "--output", type=Path, metavar="OUT", help="a new folder; the policy is in OUT/trained")
    how = reads.add_argument_group("how it is run")
    how.add_argument("--resume", type=Path, metavar="OUT", help="go on from the last checkpoint of the run in a folder")
    how.add_argument("--dry-run", action="store_true", help="write the run's folder, print the command, start nothing")
    return reads


def data_and_overrides(items: list[str]) -> tuple[list[str], list[str]]:
    """Folders of data, and overrides: what has a '=' and is no path that exists."""
    data = [item for item in items if "=" not in item or Path(item).exists()]
    return data, [item for item in items if item not in data]
