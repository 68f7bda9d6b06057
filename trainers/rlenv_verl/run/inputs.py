"""The inputs of a run: the command lines of `rlenv train` and `rlenv sft`, data files, variables, and a Ray cluster."""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import rlenv
import rlenv_verl
from rlenv.cli.commands import parser_named
from rlenv.cli.console import Console
from rlenv.cli.options import Options, argument, option, parsed
from rlenv.episodes.environment import Environment
from rlenv.errors import RlenvError, SpecError, UsageError
from rlenv.runs.folder import check_out
from rlenv_train.guard import RUN_MARK
from rlenv_train.launch import EXIT_STATUS, terminated_as_interrupted
from rlenv_train.progress import TimeIsUp
from rlenv_verl.run import Mode, Run
from rlenv_verl.settings import algorithm_names, mode_names, preset_names, sft_preset_names
from rlenv_verl.settings.presets import override

_MOST_ROWS = 5_000_000


def agent_name(spec: str) -> str:
    """The name of a spec's agent loop in veRL's registry and in the rows."""
    return f"rlenv/{spec}"


def data_source(environment: Environment, split: str, mode: Mode, group: str | None = None) -> str:
    """The name under which veRL reports a validation's figures, or those of one group of it."""
    name = f"{environment.spec.name}/{split}/{mode}"
    return name if group is None else f"{name}/{group.replace('/', '_')}"


def training_rows(environment: Environment, split: str, *, count: int | None = None) -> list[dict[str, Any]]:
    """One row for each task of `split`, `count` of one without an end."""
    size = _size(environment, split, count)
    return _numbered(_training_row(environment, split, task) for task in range(size))


def _size(environment: Environment, split: str, count: int | None) -> int:
    rows = environment.tasks(split)
    size = count if rows.is_endless and count is not None else len(rows)
    environment.parts.check_rows(rows[task] for task in range(size))
    return size


def mixed_rows(
    specs: Sequence[tuple[Environment, float]], split: str, *, seed: int, prompts: int | None = None
) -> list[dict[str, Any]]:
    """One epoch over several specs, each with its share of the rows.

    The epoch is the shortest in which every task occurs, so a spec that is small for its weight comes round more than
    once: each round is a new shuffle by `seed`, or in the `order` of its split. The specs take turns, so that any
    stretch of rows has nearly their shares; the shares of the whole are exact to one row.

    Args:
        prompts: so many the run asks; a spec without an end gives its share of them, each of them once.

    Raises:
        UsageError: the weights make an epoch of more than five million rows.
    """
    if len(specs) == 1:
        return training_rows(specs[0][0], split, count=prompts)
    total = sum(weight for _, weight in specs)
    shares = [None if prompts is None else math.ceil(prompts * weight / total) for _, weight in specs]
    sizes = [_size(environment, split, share) for (environment, _), share in zip(specs, shares, strict=True)]
    counts = rows_by_weight(sizes, [weight for _, weight in specs])
    if sum(counts) > _MOST_ROWS:
        rare = min(range(len(specs)), key=lambda index: specs[index][1] / sizes[index])
        name = specs[rare][0].spec.name
        raise UsageError(
            f"an epoch that covers {name} ({sizes[rare]} tasks) at this weight has {sum(counts):,} rows",
            hint=f"give it a larger --weight, or fewer tasks with --set {name}:tasks.{split}.limit=N",
        )
    drawn: list[tuple[float, int, dict[str, Any]]] = []
    for index, ((environment, _), size, count) in enumerate(zip(specs, sizes, counts, strict=True)):
        rng = random.Random(f"{seed}/{environment.spec.name}")
        tasks: list[int] = []
        while len(tasks) < count:
            tasks += range(size) if environment.spec.tasks[split].order else rng.sample(range(size), size)
        drawn += [
            ((place + 0.5) / count, index, _training_row(environment, split, task))
            for place, task in enumerate(tasks[:count])
        ]
    return _numbered(row for _, _, row in sorted(drawn, key=lambda item: item[:2]))


def rows_by_weight(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The number of rows of each spec in an epoch: shares as the weights, and none below the spec's size."""
    total = sum(weights)
    rows = max(size * total / weight for size, weight in zip(sizes, weights, strict=True))
    # Rounded up, as a task that is in no row would never be trained; less than the error of the weights' own digits.
    return [max(size, math.ceil(rows * weight / total - 1e-6)) for size, weight in zip(sizes, weights, strict=True)]


def validation_rows(
    environments: Sequence[Environment], split: str, *, tasks: int, modes: Sequence[Mode]
) -> list[dict[str, Any]]:
    """`tasks` tasks of `split` of each (`Environment.part`), once a mode; groups of `report_by` keep their names."""
    return [
        _row(
            environment,
            split,
            task,
            source=data_source(environment, split, mode, groups[task] if groups is not None else None),
            greedy=mode == "greedy",
            is_validation=True,
        )
        for environment in environments
        for groups in [environment.groups(split, tasks)]
        for mode in modes
        for task in environment.part(split, tasks)
    ]


def _training_row(environment: Environment, split: str, task: int) -> dict[str, Any]:
    source = f"{environment.spec.name}/{split}"
    return _row(environment, split, task, source=source, greedy=False, is_validation=False)


def _numbered(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`index` as the row's number: veRL tells prompts apart by it, and tasks of two specs share their numbers."""
    out = list(rows)
    for index, row in enumerate(out):
        row["extra_info"]["index"] = index
    return out


def _row(
    environment: Environment, split: str, task: int, *, source: str, greedy: bool, is_validation: bool
) -> dict[str, Any]:
    return {
        "data_source": source,
        "agent_name": agent_name(environment.spec.name),
        # veRL wants a prompt. The real one is rendered by the environment when the episode starts, since it may show
        # resources that exist only then.
        "prompt": [{"role": "user", "content": f"{environment.spec.name}/{split}/{task}"}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": task, "split": split, "task": task, "greedy": greedy, "is_validation": is_validation},
    }


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as parquet; the folder is made where it is missing."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


# What a cluster that is joined has decided already; Ray refuses these with an address.
_OF_A_NEW_CLUSTER = ("num_cpus", "num_gpus", "object_store_memory", "include_dashboard")


def joining(overrides: Sequence[str], address: str) -> list[str]:
    """The overrides of a run that joins the Ray cluster at `address`."""
    unwanted = tuple(f"ray_kwargs.ray_init.{name}=" for name in _OF_A_NEW_CLUSTER)
    kept = [item for item in overrides if not item.lstrip("+").startswith(unwanted)]
    return [*kept, override("ray_kwargs.ray_init.address", address, add=True)]


def cluster_overrides(run: Run, metrics: Path) -> list[str]:
    """The overrides for the workers of a cluster that is joined; none for a cluster of the run's own.

    They are started by the cluster and inherit nothing: the specs come as their working directory, and the variables
    by name. `{mark}` becomes the run's mark.
    """
    if run.ray_address is None:
        return []
    variables = {name: value for name, value in run_variables(run, metrics).items() if name != "PYTHONPATH"}
    keys = {f"env_vars.{name}": value for name, value in {**variables, RUN_MARK: "{mark}"}.items()}
    keys["working_dir"] = str(run.folder / "ship")
    return [override(f"ray_kwargs.ray_init.runtime_env.{key}", value, add=True) for key, value in keys.items()]


def run_environment(run: Run, metrics: Path) -> dict[str, str]:
    """The environment variables of veRL's processes, on top of this process's own."""
    # Ray starts its workers by `bash`, and waits for ever where PATH has none: those of the system come last then.
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("bash", path=path) is None:
        path = os.pathsep.join((path, os.defpath))
    return {**os.environ, "PATH": path, **run_variables(run, metrics)}


def run_variables(run: Run, metrics: Path) -> dict[str, str]:
    """The environment variables that make veRL's processes those of a run."""
    own = {"RLENV_SEED": str(run.seed), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    return trainer_variables(run.folder, metrics, own=own, environment=run.environment)


def trainer_variables(
    folder: Path, metrics: Path, *, own: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables of any trainer of veRL: its logs, the command's own, and what the preset and the shell decided."""
    return {
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
        "TOKENIZERS_PARALLELISM": "false",
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        **own,
        **environment,
        "PYTHONPATH": python_path(),
    }


def python_path() -> str:
    """`PYTHONPATH` for a run's processes: what this one imported from a checkout has to be importable there too."""
    roots = [str(Path(str(package.__file__)).resolve().parents[1]) for package in (rlenv, rlenv_verl)]
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*dict.fromkeys(roots), *([known] if known else [])])


def command_text(command: Sequence[str], variables: Mapping[str, str], *, cwd: str) -> str:
    """The command as a shell takes it, with the environment variables that it needs; a word like $THIS is the shell's.

    Overrides stand behind the trainer's module, one a line.
    """
    words = [word if word.startswith("$") else shlex.quote(word) for word in command]
    start = next(at for at, word in enumerate(command) if word.startswith("verl.trainer.")) + 1
    named = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " \\\n  ".join([f"cd {shlex.quote(cwd)} && env", *named, " ".join(words[:start]), *words[start:]])


class NotReady(Exception):
    """A run that would fail or learn nothing, known before its folder is filled; the argument is what to show."""


def carried_out(
    name: str, argv: Sequence[str], reads: argparse.ArgumentParser, work: Callable[[argparse.Namespace, Console], int]
) -> int:
    """Does what a command line asks for; returns the exit status (0 done, 1 failed, 2 wrong use, 130 interrupted)."""
    arguments = parsed(reads, list(argv))
    console = Console(highlight=False, soft_wrap=True)
    try:
        arguments.command = ("rlenv", name, *argv)
        if arguments.output is not None:
            check_out(arguments.output)
        with terminated_as_interrupted():
            return work(arguments, console)
    except RlenvError as error:
        said = str(error) if isinstance(error, SpecError) else f"rlenv: {error}"
        Console(stderr=True, highlight=False, soft_wrap=True).say(said)
        return 2
    except NotReady as error:
        console.say(*error.args[0], "nothing was started")
        return EXIT_STATUS["failed"]
    except TimeIsUp:
        console.say("the time limit was reached before veRL was started")
        return EXIT_STATUS["time_limit"]
    except KeyboardInterrupt:
        return EXIT_STATUS["interrupted"]


def options_of(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """The options among `names` that a command line gives, as they are written."""
    return [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]


def refuse_fixed(given: Sequence[str]) -> None:
    """Raises UsageError unless a command line that goes on with a run gives nothing that the run has decided."""
    if given:
        raise UsageError("--resume goes on with the run's own settings", hint=f"leave out {', '.join(given)}")


TRAINERS = ("verl", "trl")

FIXED_BY_A_RUN = tuple("preset algorithm mode model chat_template set weight lora seed shuffle_rewards".split())
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
