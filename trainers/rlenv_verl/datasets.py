"""The parquet files that veRL reads: one row a task, which names the task and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rlenv.environment import Environment
from rlenv_verl.names import AGENT_NAME

__all__ = ["Mode", "data_source", "training_rows", "validation_rows", "write_rows"]

Mode = Literal["greedy", "sampled"]


def data_source(environment: Environment, split: str, mode: Mode) -> str:
    """The name under which veRL reports a validation's figures."""
    return f"{environment.spec.name}/{split}/{mode}"


def training_rows(environment: Environment, split: str) -> list[dict[str, Any]]:
    """One row for each task of `split`."""
    return [
        _row(environment, split, task, source=f"{environment.spec.name}/{split}", greedy=False, is_validation=False)
        for task in range(len(environment.tasks(split)))
    ]


def validation_rows(environment: Environment, split: str, *, tasks: int, modes: Sequence[Mode]) -> list[dict[str, Any]]:
    """The first `tasks` tasks of `split`, once for each mode."""
    count = min(tasks, len(environment.tasks(split)))
    return [
        _row(
            environment,
            split,
            task,
            source=data_source(environment, split, mode),
            greedy=mode == "greedy",
            is_validation=True,
        )
        for mode in modes
        for task in range(count)
    ]


def _row(
    environment: Environment, split: str, task: int, *, source: str, greedy: bool, is_validation: bool
) -> dict[str, Any]:
    return {
        "data_source": source,
        "agent_name": AGENT_NAME,
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
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
