"""The inputs of veRL's processes: data files, environment variables, and a place on a Ray cluster."""

from __future__ import annotations

import math
import os
import random
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import rlenv
import rlenv_verl
from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError
from rlenv_train.guard import RUN_MARK
from rlenv_verl.run.runfile import Mode, Run
from rlenv_verl.settings.presets import override

__all__ = [
    "agent_name",
    "cluster_overrides",
    "command_text",
    "data_source",
    "joining",
    "mixed_rows",
    "python_path",
    "rows_by_weight",
    "run_environment",
    "training_rows",
    "validation_rows",
    "write_rows",
]

_MOST_ROWS = 5_000_000


def agent_name(spec: str) -> str:
    """The name of a spec's agent loop in veRL's registry and in the rows."""
    return f"rlenv/{spec}"


def data_source(environment: Environment, split: str, mode: Mode, group: str | None = None) -> str:
    """The name under which veRL reports a validation's figures, or those of one group of it."""
    name = f"{environment.spec.name}/{split}/{mode}"
    return name if group is None else f"{name}/{group.replace('/', '_')}"


def training_rows(environment: Environment, split: str) -> list[dict[str, Any]]:
    """One row for each task of `split`."""
    return _numbered(_training_row(environment, split, task) for task in range(len(environment.tasks(split))))


def mixed_rows(specs: Sequence[tuple[Environment, float]], split: str, *, seed: int) -> list[dict[str, Any]]:
    """One epoch over several specs, each with its share of the rows.

    The epoch is the shortest in which every task occurs, so a spec that is small for its weight comes round more than
    once: each round is a new shuffle by `seed`. The specs take turns, so that any stretch of rows has nearly their
    shares; the shares of the whole are exact to one row.

    Args:
        specs: environments with their weights.
        split: the split of each.
        seed: of the shuffles.

    Raises:
        UsageError: the weights make an epoch of more than five million rows.
    """
    if len(specs) == 1:
        return training_rows(specs[0][0], split)
    sizes = [len(environment.tasks(split)) for environment, _ in specs]
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
            tasks += rng.sample(range(size), size)
        drawn += [
            ((place + 0.5) / count, index, _training_row(environment, split, task))
            for place, task in enumerate(tasks[:count])
        ]
    return _numbered(row for _, _, row in sorted(drawn, key=lambda item: item[:2]))


def rows_by_weight(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many rows of each spec an epoch has: shares as the weights, and none below the spec's size."""
    total = sum(weights)
    rows = max(size * total / weight for size, weight in zip(sizes, weights, strict=True))
    # Rounded up, as a task that is in no row would never be trained; less than the error of the weights' own digits.
    return [max(size, math.ceil(rows * weight / total - 1e-6)) for size, weight in zip(sizes, weights, strict=True)]


def validation_rows(environment: Environment, split: str, *, tasks: int, modes: Sequence[Mode]) -> list[dict[str, Any]]:
    """`tasks` tasks of `split` (`Environment.part`), once for each mode; the groups of `report_by` keep their names."""
    groups = environment.groups(split)
    return [
        _row(
            environment,
            split,
            task,
            source=data_source(environment, split, mode, groups[task] if groups is not None else None),
            greedy=mode == "greedy",
            is_validation=True,
        )
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
        "extra_info": {
            "index": task,
            "split": split,
            "task": task,
            "greedy": greedy,
            "is_validation": is_validation,
        },
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
    """What the workers of a cluster that is joined are given; nothing for a cluster of the run's own.

    They are started by the cluster and inherit nothing: the specs come as their working directory, and the variables
    by name. `{mark}` becomes the run's mark.
    """
    if run.ray_address is None:
        return []
    variables = {name: value for name, value in _variables(run, metrics).items() if name != "PYTHONPATH"}
    keys = {f"env_vars.{name}": value for name, value in {**variables, RUN_MARK: "{mark}"}.items()}
    keys["working_dir"] = str(run.folder / "ship")
    return [override(f"ray_kwargs.ray_init.runtime_env.{key}", value, add=True) for key, value in keys.items()]


def run_environment(run: Run, metrics: Path) -> dict[str, str]:
    """The environment variables of veRL's processes, on top of this process's own.

    Args:
        run: the run.
        metrics: the file that veRL's file logger writes.
    """
    # Ray starts its workers by `bash`, and waits for ever where PATH has none: those of the system come last then.
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("bash", path=path) is None:
        path = os.pathsep.join((path, os.defpath))
    return {**os.environ, "PATH": path, **_variables(run, metrics)}


def _variables(run: Run, metrics: Path) -> dict[str, str]:
    variables = {
        "VERL_FILE_LOGGER_PATH": str(metrics),
        "TENSORBOARD_DIR": str(run.folder / "tensorboard"),
        "RLENV_SEED": str(run.seed),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        **run.environment,
    }
    return {**variables, "PYTHONPATH": python_path()}


def python_path() -> str:
    """`PYTHONPATH` for a run's processes: what this one imported from a checkout has to be importable there too."""
    roots = [str(Path(str(package.__file__)).resolve().parents[1]) for package in (rlenv, rlenv_verl)]
    known = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([*dict.fromkeys(roots), *([known] if known else [])])


def command_text(run: Run, metrics: Path, command: Sequence[str]) -> str:
    """The command as a shell takes it, with the environment variables that it needs."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in _variables(run, metrics).items()]
    parts = ["cd " + shlex.quote(run.cwd) + " && env", *variables, shlex.join(command[:3])]
    return " \\\n  ".join([*parts, *(shlex.quote(part) for part in command[3:])])
