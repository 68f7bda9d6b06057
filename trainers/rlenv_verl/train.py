"""`rlenv train`: from one spec to a trained policy, with unmodified veRL."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from rlenv.environment import Environment, load
from rlenv.errors import RlenvError, UsageError
from rlenv_verl.launch import Ending, run_to_end
from rlenv_verl.metrics import MetricsFile, StepFigures, merged, without_failures
from rlenv_verl.prepare import Plan, RunSettings, measure_prompts, prepare, run_environment
from rlenv_verl.preset import load_preset, preset_names
from rlenv_verl.report import plot_text, series
from rlenv_verl.summary import failures_by_step, summarise

__all__ = ["main"]

_EXIT = {"finished": 0, "failed": 1, "time_limit": 1, "interrupted": 130}


def main(argv: list[str]) -> int:
    """Train as `argv` says; returns the exit status (0 done, 1 failed, 2 wrong use, 130 interrupted)."""
    arguments = _parser().parse_intermixed_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    try:
        return _train(arguments, console)
    except RlenvError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(error), markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlenv train",
        description="Train a policy on a spec with veRL. Everything of the run is kept in one folder.",
        epilog="key=value are overrides of veRL's configuration, in Hydra's syntax (trainer.test_freq=5).",
    )
    parser.add_argument("spec", help="the environment's YAML file, or the name of one that ships")
    parser.add_argument("--preset", choices=preset_names(), default="cpu")
    parser.add_argument(
        "--model", default="tiny", help="'tiny' makes a small policy on the spot (default); else a folder or hub name"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps; the preset's otherwise")
    parser.add_argument("--validation-tasks", type=int, metavar="N", help="held-out tasks; the preset's otherwise")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of the spec")
    parser.add_argument("--shuffle-rewards", action="store_true", help="the control: permute rewards over episodes")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop training after this long")
    parser.add_argument("--dry-run", action="store_true", help="write the run's folder and start nothing")
    parser.add_argument("-o", "--output", type=Path, help="the run's folder; by default runs/NAME-TIME")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    return parser


def _train(arguments: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    spec_set = _assignments(arguments.set)
    environment = load(arguments.spec, set=spec_set or None)
    preset = load_preset(arguments.preset)
    if arguments.validation_tasks is not None:
        preset = dataclasses.replace(preset, run={**preset.run, "validation_tasks": arguments.validation_tasks})
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = (arguments.output or Path("runs") / f"{environment.spec.name}-{stamp}").resolve()
    if (folder / "metrics.jsonl").exists():
        raise UsageError(f"{folder} holds a run already; choose another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)

    console.print(f"run folder  {folder}", markup=False)
    model, tiny = _model(arguments, environment, folder, console)
    settings = RunSettings(
        spec=_absolute(arguments.spec),
        spec_set=spec_set,
        folder=folder,
        model=model,
        preset=preset,
        seed=arguments.seed,
        shuffle_rewards=arguments.shuffle_rewards,
        steps=arguments.steps,
        user_overrides=tuple(arguments.overrides),
    )
    plan = prepare(settings, environment, max_prompt_tokens=_prompt_limit(settings, environment))
    if arguments.dry_run:
        console.print(
            f"{len(plan.overrides)} overrides in {folder / 'overrides.txt'}; nothing was started", markup=False
        )
        return 0
    limit = arguments.time_limit or preset.run["time_limit_s"] or float("inf")
    ending, steps = _run(settings, plan, console, time_limit_s=limit)
    summary = summarise(settings, plan, environment, ending, steps, tiny, seconds=time.monotonic() - started)
    _show(summary, steps, folder, console)
    if ending.how != "finished":
        _explain(ending, folder / "verl.log", console)
    return _EXIT[ending.how]


def _model(
    arguments: argparse.Namespace, environment: Environment, folder: Path, console: Console
) -> tuple[Path, dict[str, Any] | None]:
    """The policy to start from, and what was made where it is the tiny one."""
    if arguments.model != "tiny":
        return Path(arguments.model), None
    target = folder / "model"
    if arguments.dry_run:
        return target, None
    from rlenv_verl.tiny.make import make_tiny_policy

    with console.status("warm start: making a tiny policy") as status:
        report = make_tiny_policy(
            environment,
            target,
            seed=arguments.seed,
            progress=lambda step, loss: status.update(f"warm start: step {step}, loss {loss:.3f}"),
        )
    console.print(
        f"warm start  {report.parameters:,} parameters, {report.vocabulary} tokens, {report.warmup.steps} steps, "
        f"loss {report.warmup.clean_loss:.3f} (clean) {report.warmup.mixed_loss:.3f} (mixed), {report.seconds:.0f} s",
        markup=False,
    )
    return target, dataclasses.asdict(report)


def _prompt_limit(settings: RunSettings, environment: Environment) -> int:
    run = settings.preset.run
    limit = run["max_prompt_length"]
    if limit != "measured":
        return int(limit)
    if not settings.model.exists():
        return 512  # a dry run has no tokenizer to measure with
    splits = dict.fromkeys((run["train_split"], run["validation_split"]))
    return measure_prompts(environment, settings.model, splits=list(splits), template_kwargs=run["template_kwargs"])


def _run(
    settings: RunSettings, plan: Plan, console: Console, *, time_limit_s: float
) -> tuple[Ending, list[StepFigures]]:
    """Run veRL and report each step as its figures come."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *plan.overrides]
    if any(item.startswith("+ray_kwargs.ray_init.address=local") for item in plan.overrides):
        command.append("+ray_kwargs.ray_init._temp_dir={ray_dir}")
    figures = MetricsFile(plan.metrics, plan.sources)
    steps: list[StepFigures] = []
    config = plan.config
    episodes = config["data"]["train_batch_size"] * config["actor_rollout_ref"]["rollout"]["n"]
    total = f"/{plan.total_steps}" if plan.total_steps else ""

    with console.status("veRL is starting") as status:

        def poll(seconds: float) -> None:
            for read in figures.new():
                failed = failures_by_step(plan.records, split=settings.preset.run["train_split"])
                entry = without_failures(read, failed=failed.get(read.step, 0), episodes=episodes)
                steps.append(entry)
                console.print(f"{_line(entry, total)}  {seconds:6.0f} s", markup=False)
            done = steps[-1].step if steps else 0
            status.update(f"step {done}{total}, {seconds:.0f} s" if steps else f"veRL is starting, {seconds:.0f} s")

        ending = run_to_end(
            command,
            log=settings.folder / "verl.log",
            environment=run_environment(settings, plan),
            time_limit_s=time_limit_s,
            on_poll=poll,
        )
        poll(ending.seconds)
    return ending, merged(steps)


def _line(entry: StepFigures, total: str) -> str:
    parts = [f"step {entry.step:>3}{total}"]
    parts.append(f"reward {entry.reward:5.3f}" if entry.reward is not None else "            ")
    parts += [f"held-out {mode} {rate:5.3f}" for mode, rate in entry.success.items()]
    if entry.invalid:
        parts.append(f"failed episodes {entry.invalid:.1%}")
    return "  ".join(parts)


def _show(summary: Mapping[str, Any], steps: Sequence[StepFigures], folder: Path, console: Console) -> None:
    console.print()
    console.print(plot_text(series(steps)), markup=False)
    console.print()
    held_out = summary["held_out_success"]
    if held_out:
        for mode in [key for key in held_out[0] if key != "step"]:
            first, last = held_out[0], held_out[-1]
            console.print(
                f"held-out success, {mode}: {first[mode]:.3f} at step {first['step']}, "
                f"{last.get(mode, float('nan')):.3f} at step {last['step']} ({summary['held_out_tasks']} tasks)",
                markup=False,
            )
    if summary["failed_episodes"]:
        console.print(f"failed episodes, masked out: {summary['failed_episodes']}", markup=False)
        for reason, count in summary["failure_reasons"].items():
            console.print(f"  {count} x {reason[:200]}", markup=False)
    console.print(
        f"{summary['seconds']:.0f} s in all; summary.json, curve.png and trajectories/ in {folder}", markup=False
    )
    if summary["trained"]:
        console.print(f"trained policy: {summary['trained']}", markup=False)


def _explain(ending: Ending, log: Path, console: Console) -> None:
    """Say why a run did not finish, with the end of its log where it failed."""
    if ending.how == "time_limit":
        console.print(f"stopped at the time limit after {ending.seconds:.0f} s", markup=False)
    elif ending.how == "interrupted":
        console.print("interrupted; all processes of the run were ended", markup=False)
    else:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        console.print(f"veRL ended with status {ending.code}; the end of {log}:", markup=False)
        for line in lines[-25:]:
            console.print("  " + line[:300], markup=False)


def _assignments(items: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs, the values as YAML."""
    out: dict[str, Any] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--set wants KEY=VALUE, not '{item}'")
        out[key] = yaml.safe_load(value)
    return out


def _absolute(spec: str) -> str:
    path = Path(spec)
    return str(path.resolve()) if path.exists() else spec


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
