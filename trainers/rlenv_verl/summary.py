"""What a run leaves for later: its summary, its trained policy, and its records joined into one file a step."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rlenv
from rlenv.environment import Environment
from rlenv_verl.launch import Ending
from rlenv_verl.metrics import StepFigures
from rlenv_verl.prepare import Plan, RunSettings
from rlenv_verl.report import plot_png, series

__all__ = ["failures_by_step", "summarise"]


def summarise(
    settings: RunSettings,
    plan: Plan,
    environment: Environment,
    ending: Ending,
    steps: Sequence[StepFigures],
    tiny: Mapping[str, Any] | None,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Gather what the run left, write summary.json, and return it."""
    failures = _gather_records(plan.records)
    trained = _keep_policy(plan.checkpoints, settings.folder / "trained")
    held_out = [{"step": entry.step, **entry.success} for entry in steps if entry.success]
    summary: dict[str, Any] = {
        "environment": environment.id,
        "preset": settings.preset.name,
        "seed": settings.seed,
        "shuffled_rewards": settings.shuffle_rewards,
        "ending": dataclasses.asdict(ending),
        "seconds": round(seconds, 1),
        "steps": max((entry.step for entry in steps), default=0),
        "held_out_tasks": settings.preset.run["validation_tasks"],
        "held_out_success": held_out,
        "training_reward": [[entry.step, entry.reward] for entry in steps if entry.reward is not None],
        "mean_step_s": _mean([entry.seconds for entry in steps if entry.seconds is not None]),
        "failed_episodes": failures,
        "failure_reasons": _reasons(plan.records / "failures.jsonl"),
        "trained": str(trained) if trained is not None else None,
        "model": str(settings.model),
        "warm_start": tiny,
        "versions": {name: _version(name) for name in ("rlenv", "verl", "torch", "ray", "transformers")},
    }
    text = json.dumps(summary, indent=2)
    (settings.folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    curves = series(steps)
    if curves:
        plot_png(curves, settings.folder / "curve.png", title=f"{environment.id}, seed {settings.seed}")
    return summary


def _gather_records(folder: Path) -> int:
    """Join the files of the run's processes, one a step and mode, and return how many episodes failed."""
    failures = 0
    for part in sorted(folder.glob("*.*.jsonl")):
        name = part.name.split(".")[0]
        data = part.read_bytes()
        if name == "failures":
            failures += data.count(b"\n")
        with (folder / f"{name}.jsonl").open("ab") as file:
            file.write(data)
        part.unlink()
    return failures


def _keep_policy(checkpoints: Path, target: Path) -> Path | None:
    """Copy the last checkpoint's policy, in the layout of transformers, to `target`; None where there is none."""
    found = sorted(checkpoints.glob("global_step_*/actor/huggingface/*.safetensors"), key=_step_of)
    if not found:
        return None
    shutil.copytree(found[-1].parent, target, dirs_exist_ok=True)
    return target


def _step_of(path: Path) -> int:
    return int(path.parents[2].name.removeprefix("global_step_"))


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return rlenv.__version__ if package == "rlenv" else "not installed"


def _reasons(failures: Path, *, most: int = 5) -> dict[str, int]:
    """The commonest reasons of failed episodes and how often each was seen; empty without failures."""
    if not failures.exists():
        return {}
    entries = [json.loads(line) for line in failures.read_bytes().splitlines()]
    counts = Counter(f"{entry['reason']}: {entry['message']}" for entry in entries)
    return dict(counts.most_common(most))


def failures_by_step(folder: Path, *, split: str) -> dict[int, int]:
    """How many episodes of a split failed at each step, from the records that the run's processes have written."""
    counts: dict[int, int] = {}
    for part in folder.glob("failures*.jsonl"):
        for line in part.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            if entry["split"] == split:
                counts[entry["step"]] = counts.get(entry["step"], 0) + 1
    return counts
