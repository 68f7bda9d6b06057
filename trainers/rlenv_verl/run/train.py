"""`rlenv train`: from specs to a trained policy, with unmodified veRL."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlenv.cli.console import Console
from rlenv.errors import UsageError
from rlenv.preflight import lines_of
from rlenv.runs.folder import is_run
from rlenv_train.keeping import KeptEpisodes
from rlenv_train.launch import EXIT_STATUS, Ending, ending_lines, run_to_end
from rlenv_train.progress import Stage, Underway, driving, plot_text, time_is_up_at
from rlenv_train.specs import run_folder, spec_and_overrides, unprepared_info
from rlenv_verl.loop import told_at_the_end
from rlenv_verl.run import Run, attempt_locks, changed_lines, inputs, lock_folder
from rlenv_verl.run.figures import MetricsFile, StepFigures, by_step, series, show_summary, step_lines, without_failures
from rlenv_verl.run.model import first_model, heed_stop, made_again, made_of, measure_prompts, stops_of
from rlenv_verl.run.preflight import check_before, config_of, is_to_be_made
from rlenv_verl.run.prepare import Plan, RunSettings, asked_for, plan_of, prepare
from rlenv_verl.run.resume import resume_run, step_of, summarise, validation_of
from rlenv_verl.settings import UNMEASURED, Variables, with_the_shell
from rlenv_verl.settings.machine import vllm_findings
from rlenv_verl.settings.presets import Preset, override

_LOOK_EVERY_S = 2.0


def main(argv: list[str]) -> int:
    """Train as `argv` says; returns the exit status (0 done, 1 failed, 2 wrong use, 130 interrupted)."""
    return inputs.carried_out("train", argv, inputs.parser(), _dispatch)


def _dispatch(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.trainer == "trl":
        from rlenv_trl.train import train

        return train(arguments, console)
    if not arguments.rehearse:
        return _train(arguments, console)
    from rlenv_verl.rehearse.command import rehearse

    return rehearse(arguments, console, run_plan=_run)


def _train(arguments: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    with ExitStack() as stack:
        if arguments.resume is not None:
            plan, lock = _taken_up(arguments, stack, console)
        else:
            plan, lock = _new_run(arguments, stack, console, started)
        run = plan.run
        if arguments.dry_run:
            return _show_dry_run(plan, arguments, console)
        if not _looks_ready(plan, run.folder, console, starts=True):
            raise inputs.NotReady([])
        heed_stop(run.stop, console)
        limit = arguments.time_limit or run.time_limit_s or float("inf")
        left = max(limit - (time.monotonic() - started), 0.0)  # the warm start counts
        ending, steps = _run(plan, console, time_limit_s=left, lock=lock)
        summary = summarise(run, ending, steps, seconds=time.monotonic() - started)
    _show_end(summary, steps, run.folder, console)
    if ending.how != "finished":
        _explain_end(ending, run, console)
    return EXIT_STATUS[ending.how]


def _show_dry_run(plan: Plan, arguments: argparse.Namespace, console: Console) -> int:
    """Shows the command of a dry run, and what it would meet; nothing is written into the folder of a run that is."""
    run, resumed = plan.run, arguments.resume
    text = inputs.command_text(_command(plan, run.metrics), inputs.run_variables(run, run.metrics), cwd=run.cwd)
    if resumed is None:
        (run.folder / "command.sh").write_text(text + "\n", encoding="utf-8")
    console.say(text)
    is_ready = _looks_ready(plan, resumed or run.folder, console, starts=False)
    left = f"everything is in {run.folder}" if resumed is None else "nothing was written"
    console.say(f"\nnothing was started; {left}")
    return 0 if is_ready else 1


def _looks_ready(plan: Plan, folder: Path, console: Console, *, starts: bool) -> bool:
    """Shows what the run would meet with the agent loops of a folder; False where it must not start."""
    report = check_before(plan.run, plan.config, loops=folder / "agent_loop.yaml", needs_weights=starts)
    console.say(*lines_of(report))
    return report.is_ready


def _new_run(arguments: argparse.Namespace, stack: ExitStack, console: Console, started: float) -> tuple[Plan, int]:
    """A new run in a folder of its own, and the folder's lock."""
    specs, preset, overrides = asked_for(
        arguments,
        preset="cpu",
        without="name the spec to train on: rlenv train SPEC, such as a .yaml file or `arithmetic`",
    )
    variables = with_the_shell(preset.environment, os.environ, pinned=preset.pinned)
    preset = dataclasses.replace(preset, environment=variables.values)
    folder = run_folder(arguments.output, specs)
    # Episodes come before the first figures: those of a run that died early would be taken for this one's.
    if (folder / "metrics.jsonl").exists() or is_run(folder):
        raise UsageError(
            f"{folder} holds a run already", hint=f"choose another folder with -o, or go on with --resume {folder}"
        )
    if arguments.dry_run and not folder.exists():
        stack.push(lambda kind, *_: shutil.rmtree(folder, ignore_errors=True) if kind else None)  # it is refused
    folder.mkdir(parents=True, exist_ok=True)
    lock = stack.enter_context(lock_folder(folder, wait_s=0.0))
    if not arguments.dry_run:
        stack.enter_context(driving(folder, unprepared_info("eval" if arguments.eval else "train", arguments, specs)))

    console.say(f"run folder  {folder}")
    _say_variables(variables, console)
    limit = arguments.time_limit or preset.run.get("time_limit_s")
    with time_is_up_at(started + limit if limit else None):
        if not arguments.dry_run and is_to_be_made(str(folder / "model")) and arguments.model in (None, "tiny"):
            _require_engine(preset, folder, overrides)
        model, warm_start = first_model(arguments, specs, folder, console, limit_s=limit)
    settings = RunSettings(
        specs=specs,
        folder=folder,
        model=model,
        preset=preset,
        seed=arguments.seed or 0,
        shuffle_rewards=arguments.shuffle_rewards,
        steps=arguments.steps,
        save_every=arguments.save_every,
        validation_only=arguments.eval,
        ray_address=arguments.ray_address or os.environ.get("RAY_ADDRESS"),
        user_overrides=tuple(overrides),
        given=made_of(arguments.model, model),
        command=arguments.command,
    )
    is_there = warm_start is None and not is_to_be_made(model)
    if is_there and (stops := stops_of(model, specs, preset.run["template_kwargs"])):
        raise inputs.NotReady([f"{finding.level}: {finding.message}" for finding in stops])
    plan = prepare(settings, max_prompt_tokens=_prompt_limit(settings), warm_start=warm_start)
    if arguments.dry_run:
        return plan, lock
    locks = attempt_locks(plan.run, plan.config, from_step=0, say=console.say)
    return dataclasses.replace(plan, run=plan.run.begin_attempt(0, locks=locks)), lock


def _taken_up(arguments: argparse.Namespace, stack: ExitStack, console: Console) -> tuple[Plan, int | None]:
    """The run in a folder, going on from its last checkpoint; or a new folder for its validation.

    Of a dry run nothing is written, so that it takes no lock either.
    """
    sources, overrides = spec_and_overrides(arguments.items)
    own = [item for item in overrides if item.startswith("run.")]
    inputs.refuse_fixed([*inputs.options_of(arguments, inputs.FIXED_BY_A_RUN), *sources, *own])
    idle = ("steps", "save_every") if arguments.eval else ("validation_tasks", "output")
    if given := [f"--{name.replace('_', '-')}" for name in idle if getattr(arguments, name) is not None]:
        why = "a validation trains nothing" if arguments.eval else "the run's own stays; with --eval it can be another"
        raise UsageError(f"--resume does not take {', '.join(given)} here", hint=why)
    run, lock = _resumed_run(arguments, overrides), None
    if arguments.eval:
        made_again(run)
        tasks, dry_run = arguments.validation_tasks, arguments.dry_run
        run, more = validation_of(run, arguments.output, tasks=tasks, dry_run=dry_run, say=console.say)
        if not dry_run:
            lock = _drive_run(run, stack, attempts=0)
    else:
        if not arguments.dry_run:
            lock = _drive_run(run, stack)
            # Read again, now that nobody else changes it.
            run = _resumed_run(arguments, overrides)
        made_again(run)
        run, more = resume_run(
            run, steps=arguments.steps, save_every=arguments.save_every, dry_run=arguments.dry_run, say=console.say
        )
    variables = with_the_shell(run.environment, os.environ, pinned=run.pinned, whose="run")
    run = dataclasses.replace(run, environment=variables.values)
    plan = plan_of(run, *more, dry_run=arguments.dry_run)
    trainer = plan.config["trainer"]
    step = step_of(Path(trainer["resume_from_path"]) if trainer["resume_mode"] == "resume_path" else None)
    what = "validates" if arguments.eval else "goes on from"
    console.say(f"run folder  {run.folder}\n{what} step {step} of {plan.total_steps or 'the data'}")
    _say_variables(variables, console)
    if not arguments.dry_run:
        run.save()
        console.say(*changed_lines(run))
    return plan, lock


def _drive_run(run: Run, stack: ExitStack, *, attempts: int | None = None) -> int:
    """The lock of a run's folder, in which this process drives a run from now on."""
    lock = stack.enter_context(lock_folder(run.folder))
    stack.enter_context(driving(run.folder, attempts=attempts))
    return lock


def _say_variables(variables: Variables, console: Console) -> None:
    for line in variables.said:
        console.say(f"environment {line}")


def _resumed_run(arguments: argparse.Namespace, overrides: Sequence[str]) -> Run:
    """The run that `--resume` names, with more overrides, and on the cluster that is at another address by now."""
    run = dataclasses.replace(Run.load(arguments.resume), command=arguments.command)
    known, ray_address = run.overrides, arguments.ray_address
    if ray_address is not None:
        if run.ray_address is None:
            raise UsageError(
                "this run has a Ray cluster of its own", hint="--ray-address is for one that joined a cluster"
            )
        key = "+ray_kwargs.ray_init.address="
        known = tuple(item for item in known if not item.startswith(key))
        known += (override("ray_kwargs.ray_init.address", ray_address, add=True),)
        run = dataclasses.replace(run, ray_address=ray_address)
    return dataclasses.replace(run, overrides=(*known, *overrides))


def _require_engine(preset: Preset, folder: Path, overrides: Sequence[str]) -> None:
    """Says that the rollout engine is missing before minutes are spent on a policy for it."""
    config, _ = config_of(preset, str(folder / "model"), overrides)
    if errors := [finding.message for finding in vllm_findings(config) if finding.level == "error"]:
        raise UsageError("; ".join(errors))


def _prompt_limit(settings: RunSettings) -> int | str:
    run = settings.preset.run
    limit = run["max_prompt_length"]
    if limit != "measured":
        return int(limit)
    if is_to_be_made(settings.model):
        return UNMEASURED  # a dry run has no tokenizer to measure with
    splits = list(dict.fromkeys((run["train_split"], run["validation_split"])))
    kwargs = run["template_kwargs"]
    return max(
        measure_prompts(spec.environment, settings.model, splits=splits, template_kwargs=kwargs)
        for spec in settings.specs
    )


def _command(plan: Plan, metrics: Path) -> list[str]:
    more = inputs.cluster_overrides(plan.run, metrics)
    return [sys.executable, "-m", "verl.trainer.main_ppo", *plan.overrides, *more]


def _run(plan: Plan, console: Console, *, time_limit_s: float, lock: int | None) -> tuple[Ending, list[StepFigures]]:
    """Run veRL and report each step as its figures come."""
    run = plan.run
    metrics = run.metrics_of(run.attempts[-1])
    command = _command(plan, metrics)
    if any(item.startswith("+ray_kwargs.ray_init.address=local") for item in plan.overrides):
        command.append("+ray_kwargs.ray_init._temp_dir={ray_dir}")
    run.merge_metrics()
    episodes = KeptEpisodes(run.folder)
    steps = [_correct_reward(entry, plan, episodes) for entry in MetricsFile(run.metrics, run.sources).new()]
    figures = MetricsFile(metrics, run.sources, copy=run.metrics)

    shutil.rmtree(run.watch, ignore_errors=True)  # what an earlier attempt waited for
    stage = Stage(episodes, run.watch, run.train_split, plan.episodes_a_step)
    console.say(f"{stage.line()} (its log: {run.folder / 'verl.log'})")

    with console.status("veRL is starting") as status:
        underway, looked = Underway(console, status.update), 0.0

        def poll(seconds: float) -> None:
            nonlocal looked
            for read in figures.new():
                entry = _correct_reward(read, plan, episodes)
                steps.append(entry)
                console.say(*step_lines(entry, total=plan.total_steps, seconds=seconds))
                underway.reset()
            if seconds - looked >= _LOOK_EVERY_S:  # each look counts all episodes
                looked = seconds
                underway.show(stage.line())

        ending = run_to_end(
            command,
            log=run.folder / "verl.log",
            environment=inputs.run_environment(run, metrics),
            time_limit_s=time_limit_s,
            on_poll=poll,
            cwd=run.cwd if Path(run.cwd).is_dir() else None,
            lock=lock,
            stop=run.stop,
        )
        poll(ending.seconds)
    return ending, by_step(steps)


def _correct_reward(entry: StepFigures, plan: Plan, episodes: KeptEpisodes) -> StepFigures:
    """The figures with failed episodes left out of the training reward."""
    valid = [figures for figures in entry.specs.values() if "reward" in figures]
    if valid:  # rlenv's own figures leave them out already
        masked = [sum(value for name, value in one.items() if name.startswith("masked/")) for one in valid]
        weights = [figures["episodes"] - lost for figures, lost in zip(valid, masked, strict=True)]
        total = sum(figures["reward"] * weight for figures, weight in zip(valid, weights, strict=True))
        return dataclasses.replace(entry, reward=total / sum(weights)) if sum(weights) else entry
    failed = episodes.failed_by_step(split=plan.run.train_split)
    return without_failures(entry, failed=failed.get(entry.step, 0), episodes=plan.episodes_a_step)


def _show_end(summary: Mapping[str, Any], steps: list[StepFigures], folder: Path, console: Console) -> None:
    console.say("", plot_text(series(steps)), "")
    show_summary(summary, console)
    console.say(f"{summary['seconds']:.0f} s in all; summary.json, curve.png and its episodes in {folder}")
    if summary["trained"]:
        console.say(f"trained policy: {summary['trained']}")


def _explain_end(ending: Ending, run: Run, console: Console) -> None:
    """Say why a run did not finish, and how to go on with it."""
    log = run.folder / "verl.log"
    if ending.how == "interrupted" and run.stop.exists():
        console.say(f"{run.stop} asked for the end")
    console.say(*ending_lines(ending, log, last=lambda: told_at_the_end(log, since=ending.log_from)))
    if not run.validation_only:
        console.say(f"go on with: rlenv train --resume {run.folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
