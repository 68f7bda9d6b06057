"""`rlenv train --rehearse SPEC --preset gpu`: the whole of a run before anybody pays for it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from rlenv.cli.console import Console
from rlenv.errors import UsageError
from rlenv.preflight import Preflight, lines_of
from rlenv_train.launch import Ending, Peak, ending_lines, watch_peak
from rlenv_train.progress import driving, entries_of
from rlenv_train.specs import TrainedSpec, run_folder
from rlenv_verl.export import find_checkpoints
from rlenv_verl.loop import told_at_the_end
from rlenv_verl.rehearse import Check, Evidence, check_run
from rlenv_verl.rehearse.model import RehearsalModel, make_model, register
from rlenv_verl.run import attempt_locks, lock_folder
from rlenv_verl.run.figures import StepFigures
from rlenv_verl.run.inputs import options_of
from rlenv_verl.run.preflight import config_of, look
from rlenv_verl.run.prepare import Plan, RunSettings, asked_for, plan_of, prepare
from rlenv_verl.run.resume import resume_run, summarise
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import Preset, flatten, override

_WORKERS = 2  # processes that play episodes; each imports torch and veRL
_TRAINERS = 2  # processes that train where the preset has several GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Replaced:
    """A key of veRL's configuration with the preset's value and the rehearsal's."""

    key: str
    preset: Any
    rehearsal: Any


def overlay(preset: Preset, config: Mapping[str, Any]) -> tuple[Preset, list[str]]:
    """The preset with a rehearsal's environment variables, and the overrides that make a rehearsal of it.

    Args:
        preset: with an algorithm and a mode laid over it.
        config: the preset's configuration as veRL resolves it.
    """
    text = (resources.files("rlenv_verl") / "rehearse" / "overlay.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    layers = [data, data["with"].get(preset.algorithm, {})]
    overrides: list[str] = []
    for layer in layers:
        overrides += [override(key, value) for key, value in flatten(layer.get("verl", {}))]
        # `++` also takes a key that the preset itself adds.
        overrides += [f"++{override(key, value)}" for key, value in flatten(layer.get("verl_add", {}))]
    workers = int(config["actor_rollout_ref"]["rollout"]["agent"]["num_workers"])
    if workers > _WORKERS:
        overrides.append(override("actor_rollout_ref.rollout.agent.num_workers", _WORKERS))
    # One trainer of all rows takes longer than two of half of them, even on two cores: veRL's
    # `index_select_tensor_dict` is quadratic in the rows of a worker.
    gpus = int(config["trainer"]["n_gpus_per_node"]) * int(config["trainer"]["nnodes"])
    overrides.append(override("trainer.n_gpus_per_node", min(gpus, _TRAINERS)))
    return dataclasses.replace(preset, environment={**preset.environment, **data["environment"]}), overrides


def replaced_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Replaced]:
    """Every key of a configuration whose value differs, in the order of the keys."""
    old, new = dict(flatten(before)), dict(flatten(after))
    keys: Sequence[str] = sorted({*old, *new})
    return [Replaced(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


RunPlan = Callable[..., tuple[Ending, list[StepFigures]]]

_LOOP = "rlenv_verl.rehearse.loop.RehearsalLoop"
_MARK = "RLENV_REHEARSAL_MARK"
_FOLDER = "RLENV_REHEARSAL"
_REFUSED = ("resume", "eval", "dry_run", "shuffle_rewards", "save_every", "ray_address")


@dataclasses.dataclass(slots=True)
class _Stages:
    """Seconds of each stage, in order."""

    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


def rehearse(arguments: argparse.Namespace, console: Console, *, run_plan: RunPlan) -> int:
    """Rehearse the run that `arguments` ask for; returns the exit status (0 all checks passed, 1 one failed).

    Args:
        arguments: those of `rlenv train`; `--steps` are the steps before the resume.
        run_plan: starts veRL for a plan and returns how it ended.

    Raises:
        UsageError: arguments that a rehearsal does not take, or settings that no run could have.
    """
    if given := options_of(arguments, _REFUSED):
        hint = f"leave out {', '.join(given)}"
        raise UsageError("--rehearse runs on this machine from the beginning", hint=hint)
    register()  # the trained policy is read here too
    stages = _Stages()
    mark = uuid4().hex
    with stages.timed("everything"):
        with stages.timed("files, vocabulary and network"):
            scene = _prepare_scene(arguments, mark)
        console.say(f"run folder  {scene.plan.run.folder}")
        console.say(*scene.lines())
        console.say(*(lines_of(scene.preflight) if scene.preflight is not None else ()))
        folder = scene.plan.run.folder
        with lock_folder(folder, wait_s=0.0) as lock, driving(folder), watch_peak(_MARK, mark) as peak:
            ended = _play_attempts(scene, arguments, console, run_plan, lock, stages)
        with stages.timed("checks"):
            checks = [*_looked_at(scene), *_run_checks(scene, ended)]
    report = _make_report(scene, stages, peak, checks)
    (scene.plan.run.folder / "rehearsal.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.say(*_lines(report))
    return 0 if report["is_ok"] else 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Scene:
    """A rehearsal whose files are written. `rows` are what each data file should have."""

    plan: Plan
    specs: tuple[TrainedSpec, ...]
    preset: Preset
    model: str | None
    preflight: Preflight | None
    made: RehearsalModel
    replaced: Sequence[Replaced]
    before: int

    @property
    def accounts(self) -> Path:
        return self.plan.run.folder / "rehearsal"

    def lines(self) -> Iterator[str]:
        """The lines that say what is rehearsed and, key by key, what of it is replaced."""
        data, rollout = self.plan.config["data"], self.plan.config["actor_rollout_ref"]["rollout"]
        yield (
            f"rehearses {self.preset.name}, {self.preset.algorithm}: {data['train_batch_size']} prompts x"
            f" {rollout['n']} samples x ({data['max_prompt_length']:,} + {data['max_response_length']:,}) tokens,"
            f" {self.before} steps, a checkpoint, and one more step from it"
        )
        yield (
            f"model       {self.model or 'none named'}: replaced by Qwen3's architecture with"
            f" {self.made.parameters:,} parameters, a vocabulary of {self.made.vocabulary} tokens and"
            f" {self.made.template} chat template"
        )
        yield (
            f"prompts     the spec's own (at most {self.made.longest:,} tokens) behind {self.made.filler:,} tokens of"
            " filler"
        )
        yield "rollout     scripted: the oracle's actions behind filler, cut, broken, short and aborted ones"
        yield "replaced    (everything else is the preset's own)"
        for one in self.replaced:
            yield f"  {one.key}: {_short_text(one.preset)} -> {_short_text(one.rehearsal)}"


def _short_text(value: Any) -> str:
    text = "(not set)" if value is None else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _prepare_scene(arguments: argparse.Namespace, mark: str) -> _Scene:
    without = "name the spec to rehearse: rlenv train --rehearse SPEC --preset gpu"
    specs, preset, overrides = asked_for(arguments, preset="gpu", without=without)
    if preset.mode != "sync":
        raise UsageError(f"--rehearse plays the mode sync; the mode {preset.mode} cannot be rehearsed")
    folder = run_folder(arguments.output, specs, kind=f"rehearsal-{preset.name}-")
    if (folder / "run.json").exists():
        raise UsageError(f"{folder} holds a run already", hint="choose another folder with -o")
    model = None if arguments.model in (None, "tiny") else str(arguments.model)
    config, _ = config_of(preset, model or "MODEL", overrides)
    report = None if model is None else _run_preflight(arguments, model)
    prompt = config["data"]["max_prompt_length"]
    before = arguments.steps or 1
    run = preset.run
    made = make_model(
        [spec.environment for spec in specs],
        folder / "model",
        model=model,
        splits=list(dict.fromkeys((run["train_split"], run["validation_split"]))),
        prompt_tokens=int(prompt) if isinstance(prompt, int) else None,
        most_tokens=(int(prompt) if isinstance(prompt, int) else 4096) + int(config["data"]["max_response_length"]),
        template_kwargs=run["template_kwargs"],
        seed=arguments.seed or 0,
    )
    rehearsed, replacing = overlay(preset, config)
    accounts = folder / "rehearsal"
    accounts.mkdir(parents=True)
    own = {_FOLDER: str(accounts), _MARK: mark}
    rehearsed = dataclasses.replace(rehearsed, environment={**rehearsed.environment, **own})
    settings = RunSettings(
        specs=specs,
        folder=folder,
        model=str(folder / "model"),
        preset=rehearsed,
        seed=arguments.seed or 0,
        steps=before,
        command=arguments.command,
        # The command line's own come last: who asks for two workers gets them.
        user_overrides=(*replacing, *overrides),
    )
    limit: int | str = int(prompt) if isinstance(prompt, int) else made.longest * 5 // 4
    plan = prepare(settings, max_prompt_tokens=limit)
    _follow_script(folder / "agent_loop.yaml")
    kept = _drop_overrides(_drop_overrides(plan.run.overrides, replacing), [f"trainer.total_training_steps={before}"])
    original = compose(kept)
    return _Scene(plan, specs, preset, model, report, made, replaced_keys(original, plan.config), before)


def _run_preflight(arguments: argparse.Namespace, model: str) -> Preflight:
    """The preflight of the run itself with its own model, before anything of it is replaced."""
    return look(
        arguments.items,
        model=model,
        preset=arguments.preset or "gpu",
        algorithm=arguments.algorithm,
        mode=arguments.mode,
        set=arguments.set,
        lora=arguments.lora,
    )


def _looked_at(scene: _Scene) -> list[Check]:
    report = scene.preflight
    if report is None:
        return []
    return [Check(f"preflight of {scene.model}", report.is_ready, "; ".join(report.errors[:2]) or "the run can start")]


def _drop_overrides(overrides: Sequence[str], dropped: Sequence[str]) -> list[str]:
    """`overrides` without the last stretch of these in them."""
    for start in reversed(range(len(overrides))):
        if list(overrides[start : start + len(dropped)]) == list(dropped):
            return [*overrides[:start], *overrides[start + len(dropped) :]]
    raise AssertionError("the overlay is among the overrides")


def _follow_script(path: Path) -> None:
    loops = yaml.safe_load(path.read_text(encoding="utf-8"))
    for loop in loops:
        loop["_target_"] = _LOOP
    path.write_text(yaml.safe_dump(loops, sort_keys=False), encoding="utf-8")


def _play_attempts(
    scene: _Scene, arguments: argparse.Namespace, console: Console, run_plan: RunPlan, lock: int, stages: _Stages
) -> Plan:
    """Both attempts; the plan with what they left."""
    limit = arguments.time_limit or float("inf")
    started = time.monotonic()
    locks = attempt_locks(scene.plan.run, scene.plan.config, from_step=0)
    plan = dataclasses.replace(scene.plan, run=scene.plan.run.begin_attempt(0, locks=locks))
    with stages.timed("veRL, from the beginning"):
        ending, steps = run_plan(plan, console, time_limit_s=limit, lock=lock)
    if ending.how == "finished":
        run, more = resume_run(plan.run, steps=scene.before + 1)
        run.save()
        plan = plan_of(run, *more)
        console.say(f"starts again from the checkpoint of step {run.attempts[-1].from_step}")
        left = max(limit - (time.monotonic() - started), 0.0)
        with stages.timed("veRL, from the checkpoint"):
            ending, steps = run_plan(plan, console, time_limit_s=left, lock=lock)
    summarise(plan.run, ending, steps, seconds=time.monotonic() - started)
    if ending.how != "finished":
        log = plan.run.folder / "verl.log"
        console.say(*ending_lines(ending, log, last=lambda: told_at_the_end(log, since=ending.log_from)))
    return plan


def _run_checks(scene: _Scene, plan: Plan) -> list[Check]:
    import pyarrow.parquet

    from rlenv_verl.export.weights import plain_weights
    from rlenv_verl.rehearse.loop import digest

    # The first attempt's configuration: the second does not validate again what it starts from.
    evidence = Evidence.of(plan.run, scene.plan.config, accounts=scene.accounts, before=scene.before)
    digests = {}
    for entry in find_checkpoints(plan.run.folder):
        if not entry.fault:
            # As a sampler has them: with an adapter, it and the base as one.
            digests[entry.step] = digest(plain_weights(entry, base=plan.run.model)[0])
    run, environments = scene.preset.run, [spec.environment for spec in scene.specs]
    wanted = {"validation": sum(_held_out(one, run) for one in environments)}
    if len(environments) == 1:  # several are mixed by their weights
        wanted["train"] = len(environments[0].tasks(run["train_split"]))
    rows = {}
    for name, count in wanted.items():
        path = plan.run.folder / "data" / f"{name}.parquet"
        rows[path.name] = (pyarrow.parquet.ParquetFile(path).metadata.num_rows, count)
    return check_run(evidence, digests=digests, rows=rows)


def _held_out(environment: Any, run: Mapping[str, Any]) -> int:
    return len(environment.part(run["validation_split"], run["validation_tasks"])) * len(run["validation_modes"])


def _make_report(scene: _Scene, stages: _Stages, peak: Peak, checks: Sequence[Check]) -> dict[str, Any]:
    folder = scene.plan.run.folder
    phases: dict[str, float] = {}
    for entry in entries_of(scene.plan.run.metrics):
        for name, value in entry["data"].items():
            part = name.removeprefix("timing_s/")
            if part != name and part in _PHASES:
                phases[part] = phases.get(part, 0.0) + value
    return {
        "preset": scene.preset.name,
        "algorithm": scene.preset.algorithm,
        "model": scene.model,
        "is_ok": all(check.is_ok for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
        "seconds": {name: round(value, 1) for name, value in stages.seconds.items()},
        "phases": {name: round(value, 1) for name, value in phases.items()},
        "cpu_seconds": round(peak.cpu_s, 1),
        "peak_bytes": peak.bytes,
        "peak_processes": peak.processes,
        "peak_parts": dict(sorted(peak.parts.items(), key=lambda item: -item[1])),
        "disk_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "replaced": [dataclasses.asdict(one) for one in scene.replaced],
    }


_PHASES = ("gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "update_weights",
           "save_checkpoint", "testing")  # fmt: skip


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield "seconds"
    for name, value in report["seconds"].items():
        yield f"  {name:<32} {value:>8.1f}"
    for name, value in report["phases"].items():
        yield f"    {name:<30} {value:>8.1f}"
    yield f"cpu     {report['cpu_seconds']:,.0f} s of all processors together ({os.cpu_count()} here)"
    parts = list(report["peak_parts"].items())[:5]
    shown = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts)
    yield f"memory  {report['peak_bytes'] / 1e9:.1f} GB at most in {report['peak_processes']} processes ({shown})"
    yield f"disk    {report['disk_bytes'] / 1e9:.2f} GB in the run's folder"
    yield "checks"
    for check in report["checks"]:
        yield f"  {'ok    ' if check['is_ok'] else 'FAILED'} {check['name']}: {check['detail']}"
    failed = [check["name"] for check in report["checks"] if not check["is_ok"]]
    yield f"failed: {', '.join(failed)}" if failed else "all checks passed"
