"""The results that a run leaves: its summary, its trained policy, and its episodes sealed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlenv.runs.pack import seal_abandoned
from rlenv.runs.usage import shown
from rlenv_train.keeping import KeptEpisodes
from rlenv_train.launch import STATES, Ending
from rlenv_train.progress import plot_png
from rlenv_verl.export.checkpoints import find_checkpoints, versions
from rlenv_verl.run.figures import StepFigures, phase_shares, series
from rlenv_verl.run.runfile import Run

__all__ = ["summarise", "training_figures"]

# A larger policy is exported on request (`rlenv runs export-policy`): it is read into memory and takes its size again.
_KEPT_BYTES = 4 << 30


def summarise(run: Run, ending: Ending, steps: Sequence[StepFigures], *, seconds: float) -> dict[str, Any]:
    """Gather what the run left, write summary.json, say in run.json what has become of it, and return the summary.

    Args:
        run: the run, with all its attempts.
        ending: of the last attempt.
        steps: the figures of all attempts, one entry a step.
        seconds: wall time of this attempt, everything included.
    """
    seal_abandoned(run.folder)
    trained = _keep_policy(run, run.folder / "trained")
    episodes = KeptEpisodes(run.folder, run.records)
    last_terms = {label: dict(terms) for entry in steps for label, terms in entry.terms.items()}
    summary: dict[str, Any] = {
        "environment": ", ".join(spec.id for spec in run.specs),
        "preset": run.preset,
        "algorithm": run.algorithm,
        "mode": run.mode,
        "history": run.history,
        "seed": run.seed,
        "shuffled_rewards": run.shuffled_rewards,
        "ending": dataclasses.asdict(ending),
        "seconds": round(seconds, 1),
        "steps": max((entry.step for entry in steps), default=0),
        "attempts": [dataclasses.asdict(attempt) for attempt in run.attempts],
        "held_out_tasks": run.validation_tasks,
        "held_out_success": [{"step": entry.step, **entry.success} for entry in steps if entry.success],
        "held_out_terms": last_terms,
        "training_reward": [[entry.step, entry.reward] for entry in steps if entry.reward is not None],
        "training": training_figures(steps),
        "mean_step_s": _mean([entry.seconds for entry in steps if entry.seconds is not None]),
        "time_by_phase": {name: round(share, 4) for name, share in phase_shares(steps).items()},
        "kept_episodes": len(episodes),
        "lost_episodes": int(sum(figures.get("not_kept", 0.0) for step in steps for figures in step.specs.values())),
        "usage": shown(episodes.asked()),
        "failed_episodes": len(episodes.failed()),
        "failure_reasons": episodes.reasons(),
        "trained": str(trained) if trained is not None else None,
        "model": run.model,
        "warm_start": run.warm_start,
        "versions": versions("rlenv", "verl", "torch", "ray", "transformers"),
    }
    text = json.dumps(summary, indent=2)
    (run.folder / "summary.json").write_text(text + "\n", encoding="utf-8")
    dataclasses.replace(run, state=STATES[ending.how], ended=time.time()).save()
    curves = series(steps)
    if curves:
        plot_png(curves, run.folder / "curve.png", title=f"{summary['environment']}, seed {run.seed}")
    return summary


_MOVING = ("reward", "success")
_STEADY = {
    "turns": "turns an episode",
    "calls": "calls an episode",
    "calls_malformed": "malformed calls an episode",
    "rows": "training rows an episode",
    "respelled": "turns that the chat template spells otherwise, an episode",
    "differences": "observations behind another history than the template's, an episode",
    "tool_s/mean": "environment, s an episode",
    "tool_s/max": "environment, s at most",
    "generate_s/mean": "rollout, s an episode",
    "tokens_per_s": "tokens/s",
    "calls_per_s": "calls/s",
}
_COUNTED = {
    "invalid": "invalid",
    "not_kept": "not kept",
    "ended/template": "cut, the chat template shows no such turn",
    "masked/": "masked, ",
    "zeroed/": "counted as 0, ",
}


def training_figures(steps: Sequence[StepFigures]) -> dict[str, dict[str, Any]]:
    """The figures of each spec in training: [first, last] of reward, success and terms, means, and counts over all
    steps.

    Figures of steps that have none are left out; empty where veRL's sampler is not rlenv's.
    """
    out: dict[str, dict[str, Any]] = {}
    for spec in dict.fromkeys(name for entry in steps for name in entry.specs):
        seen = [entry.specs[spec] for entry in steps if spec in entry.specs]
        names = list(dict.fromkeys(name for figures in seen for name in figures))
        figures: dict[str, Any] = {}
        for name in [*_MOVING, *(name for name in names if name.startswith("term/"))]:
            values = [entry[name] for entry in seen if name in entry]
            if values:
                figures[name.removeprefix("term/")] = [round(values[0], 4), round(values[-1], 4)]
        episodes = sum(entry.get("episodes", 0.0) for entry in seen)
        figures["episodes"] = int(episodes)
        for start, words in _COUNTED.items():
            for name in names:
                if name == start or (start.endswith("/") and name.startswith(start)):
                    count = sum(entry.get(name, 0.0) for entry in seen)
                    figures[words + name.removeprefix(start)] = int(count)
        for name, words in _STEADY.items():
            values = [entry[name] for entry in seen if name in entry]
            if values:
                combined = max(values) if name.endswith("/max") else sum(values) / len(values)
                figures[words] = round(combined, 4)
        out[spec] = figures
    return out


def _keep_policy(run: Run, target: Path) -> Path | None:
    """Export the last checkpoint's policy to `target`; None where there is none, or where a copy costs too much."""
    newest = next((entry for entry in reversed(find_checkpoints(run.folder)) if not entry.fault), None)
    if newest is None or sum(path.stat().st_size for path in newest.shards) > _KEPT_BYTES:
        return None
    from rlenv_verl.export.export import (
        export_policy,  # torch and transformers: only where there is something to export
    )

    shutil.rmtree(target, ignore_errors=True)
    return export_policy(run.folder, target, step=newest.step).folder


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
