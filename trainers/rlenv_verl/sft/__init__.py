"""`rlenv sft`: a policy started on supervised rows, by veRL's own trainer, unmodified; and the same loss without it.

The data set that veRL's trainer reads, rows as `rlenv collect` wrote them with ids and masks untouched, is named by
`data.custom_cls`. Its own keys stand in `data`: `rlenv_seed`, which orders the rows, and `rlenv_skip_long`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
import yaml

from rlenv.collect import Data, identity_of, read_data
from rlenv.collect.data import rows_of
from rlenv.collect.encode import EncodedRow
from rlenv.errors import UsageError
from rlenv.preflight.memory import model_of
from rlenv.tokens.bound import load_tokenizer
from rlenv_train.progress import TrainerRun, entries_of
from rlenv_train.specs import spec_and_overrides
from rlenv_verl.export import whole_checkpoints
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import Preset, load_sft_preset, lora_keys, override, with_sft_keys

CONFIG = "sft_trainer_engine"
"""veRL's configuration of its supervised trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRun(TrainerRun):
    """A run of `rlenv sft`; what any run has, see `TrainerRun`.

    `steps_an_epoch` are the steps that the rows give, `skipped` the rows that were too long. `processes` are those of
    one machine, `machines` how many there are. `keeps` says whether checkpoints were asked for, to resume from.
    `specs` and `environments` are those that the data's episodes were played in.
    """

    MADE_BY: ClassVar = "rlenv sft"
    KINDS: ClassVar = ("sft",)
    FACTS: ClassVar = ("preset", "rows", "batch", "steps", "seed", "lora")

    data: tuple[str, ...]
    val: tuple[str, ...]
    rows: int
    skipped: int
    batch: int
    steps: int
    steps_an_epoch: int
    lora: int | None
    keeps: bool
    processes: int
    machines: int
    specs: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()

    def save(self) -> None:
        """Write run.json, whole or not at all."""
        self.write(kind="sft", specs=self.specs, environments=self.environments)


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of one optimiser step: the mean loss of its trained tokens, in nats, before the step was taken.

    `val` is the held-out loss behind it, None where it was not measured. `tokens` are all of the step's rows. `lr` is
    the rate of the next step.
    """

    number: int
    loss: float
    grad_norm: float | None
    lr: float | None
    tokens: int | None
    val: float | None = None


def read_steps(path: Path) -> list[Step]:
    """The steps in a file of metrics, without the rest of a line that is being written."""
    found: dict[int, Step] = {}
    for entry in entries_of(path):
        number, values = int(entry["step"]), entry["data"]
        if "train/loss" in values:
            tokens = values.get("train/global_tokens")
            found[number] = Step(
                number,
                float(values["train/loss"]),
                values.get("train/grad_norm"),
                values.get("train/lr"),
                None if tokens is None else int(tokens),
            )
        if "val/loss" in values and number in found:
            found[number] = dataclasses.replace(found[number], val=float(values["val/loss"]))
    return [found[number] for number in sorted(found)]


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


def new_run(arguments: argparse.Namespace, *, model: str, folder: Path, started_in: str) -> SftRun:
    """A run of these arguments; writes its configuration into the folder.

    Raises:
        UsageError: the data is not this model's or not whole, gives no step, or veRL's configuration does not take an
            override.
    """
    folders, overrides = spec_and_overrides(arguments.items)
    if not folders:
        raise UsageError("name the data to train on: rlenv sft DATA --model M -o OUT", hint="`rlenv collect` makes it")
    preset, overrides = with_sft_keys(load_sft_preset(arguments.preset or "cpu"), overrides)
    data, val = _data_of(folders, model), _data_of(arguments.val or [], model)
    own = _own_overrides(arguments, data, val, model=model, folder=folder)
    settings = compose_sft([*preset.overrides(), *own, *overrides])
    sizes = model_of(Path(model))
    most = arguments.max_length or (sizes and sizes.positions) or int(settings["data"]["max_length"])
    rows, skipped, longest = _count_rows([*data, *val], most, skips=arguments.skip_long, train=len(data))
    batch = int(settings["data"]["train_batch_size"])
    ranks = int(settings["trainer"]["n_gpus_per_node"]) * int(settings["trainer"]["nnodes"])
    an_epoch = _steps_an_epoch(rows, batch, ranks)
    steps = arguments.steps or (arguments.epochs or int(preset.run["epochs"])) * an_epoch
    more: dict[str, Any] = {
        "data.max_length": most,
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": -(-steps // an_epoch),
    }
    if longest > int(settings["data"]["max_token_len_per_gpu"]):
        # A row is never parted: a micro-batch has to hold the longest.
        more["data.max_token_len_per_gpu"] = longest
    # What follows from the data stands before what a user gave, which wins.
    laid = (*preset.overrides(), *own, *(override(key, value) for key, value in more.items()), *overrides)
    compose_sft(laid, keep=folder / "config.yaml")
    return SftRun(
        folder=folder,
        preset=preset.name,
        model=model,
        data=tuple(str(one.folder.resolve()) for one in data),
        val=tuple(str(one.folder.resolve()) for one in val),
        rows=rows,
        skipped=skipped,
        batch=batch,
        steps=steps,
        steps_an_epoch=an_epoch,
        seed=arguments.seed or 0,
        lora=arguments.lora,
        keeps=arguments.save_every is not None,
        time_limit_s=arguments.time_limit or preset.run["time_limit_s"],
        processes=int(settings["trainer"]["n_gpus_per_node"]),
        machines=int(settings["trainer"]["nnodes"]),
        cwd=started_in,
        overrides=laid,
        environment=process_variables(preset, processes=int(settings["trainer"]["n_gpus_per_node"])),
        specs=tuple(dict.fromkeys(one.manifest.spec for one in data)),
        environments=tuple(dict.fromkeys(one.manifest.environment for one in data)),
        command=arguments.command,
    )


def process_variables(preset: Preset, *, processes: int) -> dict[str, str]:
    """The environment variables of each process."""
    threads = preset.run["threads"] or max((os.cpu_count() or 1) // processes, 1)
    return {**preset.environment, "OMP_NUM_THREADS": str(threads)}


def _own_overrides(
    arguments: argparse.Namespace, data: Sequence[Data], val: Sequence[Data], *, model: str, folder: Path
) -> list[str]:
    """The overrides of the arguments and of the run's folder."""
    seed = arguments.seed or 0
    keys: dict[str, Any] = {
        "data.train_files": [str(one.file.resolve()) for one in data],
        "data.val_files": [f"{HELD_OUT}{one.file.resolve()}" for one in val] or None,
        "data.custom_cls.path": "pkg://rlenv_verl.sft",
        "data.custom_cls.name": "RowsDataset",
        "model.path": model,
        **lora_keys(arguments.lora, model="model"),
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": "rlenv",
        "trainer.experiment_name": folder.name,
        "trainer.seed": seed,
        "trainer.save_freq": arguments.save_every or -1,
        "trainer.test_freq": (arguments.val_every if val else None) or -1,
        "checkpoint.save_contents": _parts(is_lora=arguments.lora is not None, keeps=arguments.save_every is not None),
        "hydra.run.dir": str(folder / "hydra"),
    }
    if arguments.lr is not None:
        keys["optim.lr"] = arguments.lr
    if arguments.batch is not None:
        keys["data.train_batch_size"] = arguments.batch
    added = {"data.rlenv_seed": seed, "data.rlenv_skip_long": bool(arguments.skip_long)}
    return [
        *(override(key, value) for key, value in keys.items()),
        *(override(key, value, add=True) for key, value in added.items()),
    ]


def resumed_run(arguments: argparse.Namespace) -> tuple[SftRun, int]:
    """The run of a folder, to go on from its last whole checkpoint, and that checkpoint's step.

    Raises:
        UsageError: there is no run, no checkpoint to go on from, or nothing left to do.
    """
    run = SftRun.load(arguments.resume)
    folders, overrides = spec_and_overrides(arguments.items)
    if folders:
        raise UsageError("--resume goes on with the run's own data", hint=f"leave out {', '.join(folders)}")
    whole = whole_checkpoints(run.checkpoints)
    if not whole:
        hint = "start it again" if run.keeps else "it was started without --save-every, which keeps checkpoints"
        raise UsageError(f"{run.folder} has no whole checkpoint to go on from", hint=hint)
    newest = whole[-1]
    steps = arguments.steps or run.steps
    if steps <= newest.step:
        raise UsageError(f"{run.folder} has taken {newest.step} steps already", hint="name more with --steps")
    keys = {
        "trainer.total_training_steps": steps,
        "trainer.total_epochs": -(-steps // run.steps_an_epoch),
        "trainer.resume_mode": "resume_path",
        "trainer.resume_from_path": str(newest.folder),
    }
    laid = (*run.overrides, *(override(key, value) for key, value in keys.items()), *overrides)
    compose_sft(laid, keep=None if arguments.dry_run else run.folder / "config.yaml")
    limit = arguments.time_limit or run.time_limit_s
    changed = {"overrides": laid, "steps": steps, "time_limit_s": limit, "command": arguments.command}
    return dataclasses.replace(run, **changed), newest.step


def _data_of(folders: Sequence[str], model: str) -> list[Data]:
    """The data of folders, once it is this model's."""
    found = []
    for folder in folders:
        kwargs = read_data(folder).manifest.template_kwargs
        found.append(read_data(folder, identity=identity_of(load_tokenizer(model), template_kwargs=kwargs)))
    return found


def _parts(*, is_lora: bool, keeps: bool) -> list[str]:
    """The parts of a checkpoint: the weights, and all that a run is where it shall be gone on from."""
    # Not `hf_model` with LoRA: veRL 0.9.1 writes base and adapter there under peft's names, which transformers does not
    # know; it would draw all weights at random. The shards are merged instead.
    weights = ["model"] if is_lora else ["hf_model"]
    return list(dict.fromkeys(["model", "optimizer", "extra", *weights])) if keeps else weights


def _count_rows(data: Sequence[Data], most: int, *, skips: bool, train: int) -> tuple[int, int, int]:
    """Rows to train on, rows that are too long, and the tokens of the longest that is left.

    Raises UsageError: there are longer ones, and they may not be left out.
    """
    rows = skipped = longest = 0
    for number, one in enumerate(data):
        if one.manifest.longest <= most:
            longest = max(longest, one.manifest.longest)
            rows += one.manifest.rows if number < train else 0
            continue
        lengths = [len(row.input_ids) for row in rows_of([one.file])]
        too_long = [length for length in lengths if length > most]
        if not skips:
            raise UsageError(
                f"{len(too_long)} of {len(lengths)} rows of {one.folder} are longer than {most:,} tokens (the longest "
                f"has {max(lengths):,})",
                hint="rows are never cut: raise --max-length, or leave them out with --skip-long",
            )
        skipped += len(too_long)
        rows += len(lengths) - len(too_long) if number < train else 0
        longest = max([longest, *(length for length in lengths if length <= most)])
    return rows, skipped, longest


def _steps_an_epoch(rows: int, batch: int, ranks: int) -> int:
    """As veRL's loader gives them: whole batches alone, of equally many rows on each rank.

    Raises UsageError: the batch cannot be shared, or there are fewer rows than one has.
    """
    if batch % ranks:
        raise UsageError(
            f"a batch of {batch} rows cannot be shared among {ranks} processes", hint=f"give a multiple of {ranks}"
        )
    steps = (rows // ranks) // (batch // ranks)
    if not steps:
        raise UsageError(f"{rows} rows give no batch of {batch}", hint=f"collect more, or give --batch {max(rows, 1)}")
    return steps


HELD_OUT: Final = "held-out:"
"""What stands before a file in `data.val_files`: the class is not told otherwise what its rows are for."""


class RowsDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows as tensors of their own lengths: `input_ids`, `position_ids` from 0, and `loss_mask`, int64.

    Expected: `trainer.seed` orders the data and draws an adapter's first weights. Actual (veRL 0.9.1,
    trainer/sft_trainer.py): nothing reads it, and the sampler's seed is always 0; so the rows are put into the seed's
    order here, and torch is seeded, before the model is built. Remove when veRL reads it.

    Args:
        parquet_files: the files of rows, the name is veRL's; `HELD_OUT` stands before those whose loss is measured.
        config: veRL's `data`.
        max_samples: at most this many rows, -1 for all.

    Raises:
        UsageError: a row is longer than `data.max_length` and may not be skipped, or there is none.
    """

    def __init__(
        self,
        parquet_files: str | Sequence[str],
        tokenizer: Any,
        config: Any,
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        given = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        is_held_out = all(name.startswith(HELD_OUT) for name in given)
        files = [name.removeprefix(HELD_OUT) for name in given]
        rows = list(_short_rows(files, int(config.max_length), skips=bool(config.rlenv_skip_long)))
        if not rows:
            raise UsageError(f"{', '.join(files)}: no row is left to train on")
        torch.manual_seed(int(config.rlenv_seed))
        if is_held_out:
            # A batch that is not full would be left out of the held-out loss: rows without a trained token fill it.
            missing = -len(rows) % int(config.train_batch_size)
            rows += [EncodedRow(rows[0].input_ids, (0,) * len(rows[0].loss_mask))] * missing
        else:
            rows = shuffle_rows(rows, seed=int(config.rlenv_seed))
        self._rows = rows if max_samples < 0 else rows[:max_samples]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[index]
        return {
            "input_ids": torch.tensor(row.input_ids, dtype=torch.int64),
            "position_ids": torch.arange(len(row.input_ids), dtype=torch.int64),
            "loss_mask": torch.tensor(row.loss_mask, dtype=torch.int64),
        }


def shuffle_rows(rows: Sequence[EncodedRow], *, seed: int) -> list[EncodedRow]:
    """The rows in the order of a seed; veRL's sampler shuffles that order anew in each epoch."""
    found = list(rows)
    random.Random(seed).shuffle(found)
    return found


def _short_rows(files: Sequence[str], most: int, *, skips: bool) -> Iterator[EncodedRow]:
    for row in rows_of(files):
        if len(row.input_ids) <= most:
            yield row
        elif not skips:
            raise UsageError(f"a row has {len(row.input_ids):,} tokens, and data.max_length is {most:,}")
