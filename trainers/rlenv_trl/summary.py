"""What a run of TRL leaves beside its episodes: its curves, and summary.json with the keys that veRL's has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rlenv.runs.folder import RunInfo
from rlenv.runs.pack import seal_abandoned
from rlenv_train.keeping import KeptEpisodes

__all__ = ["curves_of", "figures", "summarise"]


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Success and reward of each spec by step, in training and held out, over all attempts."""
    found: dict[str, dict[int, float]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        for label, value in figures(entry["data"]):
            found.setdefault(label, {})[entry["step"]] = value
    return {label: sorted(points.items()) for label, points in found.items()}


def figures(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Those of what TRL logs that are curves, by their labels."""
    for key, value in logs.items():
        if key.endswith(("/success", "/reward")) and "rlenv/" in key:
            kind = "held-out" if key.startswith("eval_") else "training"
            yield f"{kind} {key.rpartition('rlenv/')[2]}", float(value)


def summarise(
    folder: Path, info: RunInfo, *, shuffles: bool, held_out_tasks: int, how: str, seconds: float
) -> dict[str, Any]:
    """Writes summary.json, with the keys that a run of veRL has too.

    Args:
        shuffles: of a control.
        held_out_tasks: of each validation.
        how: finished, time_limit or stop.
        seconds: wall time of this attempt.
    """
    seal_abandoned(folder)
    seed = info.facts["seed"]
    curves, episodes = curves_of(folder), KeptEpisodes(folder)
    held_out: dict[int, dict[str, float]] = {}
    for label, points in curves.items():
        if label.startswith("held-out ") and label.endswith("/success"):
            for step, value in points:
                held_out.setdefault(step, {})[label.removeprefix("held-out ").removesuffix("/success")] = value
    rewards = [points for label, points in curves.items() if label.startswith("training ") and "/reward" in label]
    summary = {
        "environment": info.environment,
        "trainer": "trl",
        "seed": seed,
        "shuffled_rewards": shuffles,
        "ending": {"how": how},
        "seconds": round(seconds, 1),
        "steps": max((step for points in curves.values() for step, _ in points), default=0),
        "attempts": [asdict(attempt) for attempt in info.attempts],
        "held_out_tasks": held_out_tasks,
        "held_out_success": [{"step": step, **values} for step, values in sorted(held_out.items())],
        "training_reward": rewards[0] if len(rewards) == 1 else rewards,
        "kept_episodes": len(episodes),
        "failed_episodes": len(episodes.failed()),
        "failure_reasons": episodes.reasons(),
        "trained": str(folder / "trained") if (folder / "trained").exists() else None,
        "model": info.policy,
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
