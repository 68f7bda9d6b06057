"""Take up a run where its last complete checkpoint stands: to train on, or to validate it.

The results that a run leaves: its summary, its trained policy, and its episodes sealed.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlenv.episodes.environment import load
from rlenv.errors import UsageError
from rlenv.runs.folder import is_run
from rlenv.runs.locks.files import Say
from rlenv.runs.pack import seal_abandoned
from rlenv.runs.usage import spending_page
from rlenv_train.keeping import KeptEpisodes
from rlenv_train.launch import Ending
from rlenv_train.progress import entries_of, plot_png
from rlenv_verl.export import find_checkpoints, last_checkpoint, versions
from rlenv_verl.run import Run, attempt_locks, forget_after
from rlenv_verl.run.figures import WORDS, StepFigures, phase_shares, series
from rlenv_verl.run.inputs import validation_rows, write_rows
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import override


def resume_run(
    run: Run, *, steps: int | None = None, save_every: int | None = None, dry_run: bool = False, say: Say | None = None
) -> tuple[Run, list[str]]:
    """The run with one more attempt, and the overrides that hold for that attempt alone.

    Figures of what will be trained anew are removed; its episodes stay, and do not count. Without any checkpoint the
    run begins again.

    Args:
        dry_run: change nothing in the folder.

    Raises:
        UsageError: the run has nothing left to do.
        SpecError: a spec's own faults.
    """
    if run.validation_only:
        raise UsageError(f"{run.folder} only validated a policy: there is nothing to go on with", hint="start it again")
    settings = {"trainer.total_training_steps": steps, "trainer.save_freq": save_every}
    changed = [override(key, value) for key, value in settings.items() if value is not None]
    run = dataclasses.replace(run, overrides=(*run.overrides, *changed))
    checkpoint = last_checkpoint(run.checkpoints)
    step = step_of(checkpoint)
    config = compose(run.overrides)
    total = config["trainer"]["total_training_steps"]
    if total is not None and step >= total:
        raise UsageError(f"{run.folder} has trained all of its {total} steps", hint="go further with --steps N")
    # veRL validates before it trains on. That repeats a validation which is known, unless the run ended before it was
    # logged.
    frequency = config["trainer"]["test_freq"]
    wanted = config["trainer"]["val_before_train"] if step == 0 else frequency > 0 and step % frequency == 0
    more = [override("trainer.val_before_train", bool(wanted and not _is_validated(run, step)))]
    if checkpoint is None:
        more.append(override("trainer.resume_mode", "disable"))
    else:
        more += _resume_keys(checkpoint)
        # Sampling starts anew with each rollout server: with the same seed it would draw what the first steps drew.
        more.append(override("actor_rollout_ref.rollout.seed", run.seed + step))
    if dry_run:
        return run, more
    locks = attempt_locks(run, config, from_step=step, say=say)
    forget_after(run, step)
    seal_abandoned(run.folder)
    return run.begin_attempt(step, locks=locks), more


def validation_of(
    run: Run, output: Path | None, *, tasks: int | None = None, dry_run: bool = False, say: Say | None = None
) -> tuple[Run, list[str]]:
    """A run of its own that validates the last checkpoint of `run`, and its overrides.

    Args:
        run: the run that was trained; nothing in its folder is changed.
        output: the folder of the validation; by default `eval-STEP-TIME` in the run's.
        tasks: held-out tasks a spec; as many as the run's own otherwise.
        dry_run: write nothing; the validation then has no attempt.

    Raises:
        UsageError: there is no complete checkpoint, or `output` holds a run already.
        SpecError: a spec's own faults.
    """
    checkpoint = last_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise UsageError(
            f"{run.folder} has no complete checkpoint",
            hint=f"validate the policy it started from with rlenv train SPEC --eval --model {run.model}",
        )
    step = step_of(checkpoint)
    folder = (output or run.folder / f"eval-{step}-{time.strftime('%Y%m%d-%H%M%S')}").resolve()
    # Its run.json would become the validation's, and the episodes of both would count as those of one.
    if folder == run.folder.resolve() or is_run(folder) or (folder / "metrics.jsonl").exists():
        raise UsageError(f"{folder} holds a run already", hint="choose another folder with -o")
    keys = {"actor_rollout_ref.rollout.agent.agent_loop_config_path": str(folder / "agent_loop.yaml")}
    if tasks is not None:
        keys["data.val_files"] = str(folder / "data" / "validation.parquet")
    more = [override(key, value) for key, value in keys.items()]
    more += [override("trainer.val_only", True), override("trainer.val_before_train", True), *_resume_keys(checkpoint)]
    validation = dataclasses.replace(
        run,
        validation_only=True,
        folder=folder,
        validation_tasks=tasks if tasks is not None else run.validation_tasks,
        warm_start=None,
        attempts=(),
    )
    if dry_run:
        return validation, more
    locks = attempt_locks(
        dataclasses.replace(run, validation_only=True), compose(run.overrides), from_step=step, say=say
    )
    _write_validation(run, folder, tasks=tasks)
    return validation.begin_attempt(step, locks=locks), more


def _write_validation(run: Run, folder: Path, *, tasks: int | None) -> None:
    """Writes the settings that the agent loops of a validation of `run` read, and its rows where they are others than
    the run's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    loops = yaml.safe_load((run.folder / "agent_loop.yaml").read_text(encoding="utf-8"))
    for loop in loops:
        loop["record_dir"] = str(folder)
        loop["watch_dir"] = str(folder / "watch") if loop.get("watch_dir") else None
    (folder / "agent_loop.yaml").write_text(yaml.safe_dump(loops, sort_keys=False), encoding="utf-8")
    if run.ray_address is not None:
        shutil.copytree(run.folder / "ship", folder / "ship", dirs_exist_ok=True)
    if tasks is not None:
        environments = [load(spec.source, set=dict(spec.set) or None) for spec in run.specs]
        rows = validation_rows(environments, run.validation_split, tasks=tasks, modes=run.modes)
        write_rows(folder / "data" / "validation.parquet", rows)


def _resume_keys(checkpoint: Path) -> list[str]:
    # By its path and not by veRL's `auto`, which trusts a file that may itself have been cut.
    return [override("trainer.resume_mode", "resume_path"), override("trainer.resume_from_path", str(checkpoint))]


def step_of(checkpoint: Path | None) -> int:
    """The step of a checkpoint's folder, 0 without one."""
    return int(checkpoint.name.removeprefix("global_step_")) if checkpoint is not None else 0


def _is_validated(run: Run, step: int) -> bool:
    """True if the validation of `step` stands in the log of an attempt that counts."""
    logged = (entry for attempt in run.attempts for entry in entries_of(run.metrics_of(attempt)))
    return any(entry["step"] == step and any(key.startswith("val-core/") for key in entry["data"]) for entry in logged)


# A larger policy is exported on request (`rlenv runs export-policy`): it is read into memory and takes its size again.
_KEPT_BYTES = 4 << 30


def summarise(run: Run, ending: Ending, steps: Sequence[StepFigures], *, seconds: float) -> dict[str, Any]:
    """Gather what the run left, write summary.json, say in run.json what has become of it, and return the summary.

    Args:
        steps: the figures of all attempts, one entry a step.
        seconds: wall time of this attempt, everything included.
    """
    seal_abandoned(run.folder)
    trained = _keep_policy(run, run.folder / "trained")
    episodes = KeptEpisodes(run.folder)
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
        "usage": spending_page(episodes.spending()),
        "failed_episodes": len(episodes.failures()),
        "failure_reasons": episodes.reasons(),
        "trained": str(trained) if trained is not None else None,
        "model": run.model,
        "warm_start": run.warm_start,
        "versions": versions("rlenv", "verl", "torch", "ray", "transformers"),
    }
    run.end_attempt(ending.how, summary)
    if curves := series(steps):
        plot_png(curves, run.folder / "curve.png", title=f"{summary['environment']}, seed {run.seed}")
    return summary


_MOVING = ("reward", "success")


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
        figures["episodes"] = int(sum(entry.get("episodes", 0.0) for entry in seen))
        for start, words in WORDS["counted"].items():
            for name in (one for one in names if one == start or (start.endswith("/") and one.startswith(start))):
                figures[words + name.removeprefix(start)] = int(sum(entry.get(name, 0.0) for entry in seen))
        for name, words in WORDS["steady"].items():
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
    # torch and transformers: only where there is something to export
    from rlenv_verl.export.export import export_policy

    shutil.rmtree(target, ignore_errors=True)
    return export_policy(run.folder, target, step=newest.step).folder


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None
