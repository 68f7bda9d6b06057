"""The parquet files that veRL reads: one row a task, which names the task and nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rlenv.episodes.environment import Environment
from rlenv.errors import UsageError

__all__ = [
    "Mode",
    "agent_name",
    "data_source",
    "mixed_rows",
    "rows_by_weight",
    "training_rows",
    "validation_rows",
    "write_rows",
]

Mode = Literal["greedy", "sampled"]

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
