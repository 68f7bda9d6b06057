"""`rlenv train --trainer trl`: from specs to a trained policy, with unmodified TRL, in this process.

Without a GPU the sizes are those of a tiny policy, and TRL's own otherwise. `key=value` replaces a key of TRL's
`GRPOConfig`, and `run.key=value` one of `RUN`. Under `accelerate launch` each process plays its own prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rlenv.cli.console import Console
from rlenv.errors import MissingExtra, UsageError, all_known
from rlenv.runs.folder import STOP, Attempt, RunInfo, is_run, write_info
from rlenv.runs.locks.lock import lock_of
from rlenv_train.keeping import KEEP_GB, Keeper
from rlenv_train.progress import Underway, driving, plot_text
from rlenv_train.specs import TrainedSpec, load_specs, read_override, spec_and_overrides
from rlenv_trl.rollout import Rollout, rlenv_reward

RUN: Final[Mapping[str, Any]] = {
    "train_split": "train",
    "validation_split": "test",
    "validation_tasks": 64,
    "turn_tokens": None,
    "history": "grow",
    "template_kwargs": {},
    "failures": {},
    "keep_gb": KEEP_GB,
}
"""What rlenv itself decides; `run.KEY=VALUE` replaces one."""

ALWAYS: Final[Mapping[str, Any]] = {
    "report_to": "none",
    "logging_steps": 1,
    "disable_tqdm": True,
    "save_strategy": "no",
    "eval_strategy": "steps",
    "eval_steps": 5,
    "eval_on_start": True,
    "num_generations_eval": 1,
    "beta": 0.0,  # what is masked has no KL term either
    "max_steps": 20,
    "log_completions": False,
}
CPU: Final[Mapping[str, Any]] = {
    "use_cpu": True,
    "bf16": False,  # TRL's default is True, which some CPUs have no instructions for
    "gradient_checkpointing": False,
    "num_generations": 8,
    "per_device_train_batch_size": 128,
    "per_device_eval_batch_size": 64,
    "max_completion_length": 96,
    "learning_rate": 5.0e-4,  # for a small network, which needs and bears it
    "lr_scheduler_type": "constant",
}
"""Sizes for a tiny policy, as those of veRL's preset `cpu`."""

_NOT_HERE: Final = (
    "preset",
    "algorithm",
    "mode",
    "weight",
    "lora",
    "resume",
    "eval",
    "rehearse",
    "ray_address",
    "dry_run",
)
"""Options of `rlenv train` that veRL alone takes."""


def train(arguments: argparse.Namespace, console: Console) -> int:
    """Trains as the options of `rlenv train` say; returns the exit status.

    Raises:
        UsageError: an option or a key that TRL's run does not take, or a folder that holds a run.
        MissingExtra: TRL is not installed.
    """
    if given := [f"--{name.replace('_', '-')}" for name in _NOT_HERE if getattr(arguments, name)]:
        raise UsageError(
            f"--trainer trl does not take {', '.join(given)}", hint="say key=value for a key of GRPOConfig"
        )
    sources, items = spec_and_overrides(arguments.items)
    if not sources:
        raise UsageError("name the spec to train on: rlenv train SPEC --trainer trl")
    own, keys = overrides_of(items)
    if arguments.validation_tasks is not None:
        own["validation_tasks"] = arguments.validation_tasks
    specs = load_specs(sources, set=arguments.set)
    trl = _trl()
    name = "-".join(spec.name for spec in specs)
    folder = (arguments.output or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}").resolve()
    if (folder / "metrics.jsonl").exists() or is_run(folder):
        raise UsageError(f"{folder} holds a run already", hint="choose another folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    info = RunInfo(
        "train",
        command=arguments.command,
        spec=", ".join(spec.source for spec in specs),
        environment=", ".join(spec.environment.id for spec in specs),
        policy=arguments.model or "tiny",
    )
    with driving(folder, info):
        console.print(f"run folder  {folder}", markup=False)
        model = _model(arguments, specs, folder, console)
        info = _begun(info, specs, folder, model, own, arguments.seed or 0)
        return _run(trl, arguments, specs, folder, model, own, keys, info, console)


def overrides_of(items: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `run.key=value` and `key=value` say: rlenv's own part, and keys of `GRPOConfig`.

    Raises:
        UsageError: rlenv's own part has no such key, or a value cannot be read.
    """
    own, keys = dict(RUN), dict[str, Any]()
    for item in items:
        key, value = read_override(item)
        if not key.startswith("run."):
            keys[key] = value
        elif (key := key.removeprefix("run.")) in RUN:
            own[key] = value
        else:
            raise UsageError(f"a run of TRL has no key '{key}'", key=f"run.{key}", hint=all_known(key, RUN))
    return own, keys


def config_of(trl: Any, keys: Mapping[str, Any], *, folder: Path, seed: int, on_cpu: bool) -> Any:
    """TRL's `GRPOConfig` of a run.

    Raises:
        UsageError: it has no such key, or does not take the value.
    """
    known = {field.name for field in fields(trl.GRPOConfig)}
    for key in keys:
        if key not in known:
            raise UsageError(f"TRL's GRPOConfig has no key '{key}'", key=key, hint=all_known(key, known))
    merged = {**ALWAYS, **(CPU if on_cpu else {}), "seed": seed, "output_dir": str(folder / "checkpoints"), **keys}
    try:
        return trl.GRPOConfig(**merged)
    except (ValueError, TypeError) as error:
        raise UsageError(f"TRL's GRPOConfig: {error}") from error


def _trl() -> Any:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        import trl
    except ModuleNotFoundError as error:
        raise MissingExtra(f"rlenv train --trainer trl ({error.name} is missing)", extra="trl") from error
    return trl


def _model(arguments: argparse.Namespace, specs: Sequence[TrainedSpec], folder: Path, console: Console) -> str:
    """The policy to start from; the tiny one is made of the specs' oracles."""
    from rlenv_verl.run.model import given_model

    if arguments.model not in (None, "tiny"):
        return given_model(arguments, folder)
    if arguments.chat_template is not None:
        raise UsageError("--chat-template is for a model of your own", hint="name it with --model")
    from rlenv_verl.tiny.make import make_tiny_policy

    with console.status("warm start: making a tiny policy") as status:
        underway = Underway(console, status.update)
        report = make_tiny_policy(
            [spec.environment for spec in specs],
            folder / "model",
            seed=arguments.seed or 0,
            progress=lambda line: underway.show(f"warm start: {line}"),
        )
    console.print(f"warm start  {report.parameters:,} parameters, {report.seconds:.0f} s", markup=False)
    return str(folder / "model")


def _begun(
    info: RunInfo, specs: Sequence[TrainedSpec], folder: Path, model: str, own: Mapping[str, Any], seed: int
) -> RunInfo:
    """The run with its attempt, kept in run.json, and the locks of its episodes."""
    splits = list(dict.fromkeys((own["train_split"], own["validation_split"])))
    policy = {"kind": "train", "model": Path(model).name if Path(model).is_absolute() else model}
    locks = {
        f"{spec.name}-v{spec.environment.spec.version}": lock_of(
            spec.environment, splits=splits, policy=policy, seed=seed, trainer={"name": "trl", "run": dict(own)}
        )
        .write(folder)
        .stem
        for spec in specs
    }
    attempt = Attempt(1, 0, next(iter(locks.values())), time.time(), socket.gethostname(), os.getpid(), locks)
    info = replace(info, attempts=(attempt,), policy=model, facts={"trainer": "trl", "seed": seed})
    write_info(folder, info)
    return info


def _run(
    trl: Any,
    arguments: argparse.Namespace,
    specs: Sequence[TrainedSpec],
    folder: Path,
    model: str,
    own: Mapping[str, Any],
    keys: dict[str, Any],
    info: RunInfo,
    console: Console,
) -> int:
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    if arguments.steps is not None:
        keys["max_steps"] = arguments.steps
    if arguments.save_every is not None:
        keys |= {"save_strategy": "steps", "save_steps": arguments.save_every}
    seed = arguments.seed or 0
    config = config_of(trl, keys, folder=folder, seed=seed, on_cpu=not torch.cuda.is_available())
    keeper = Keeper(folder, keep_gb=float(own["keep_gb"]), writers=config.world_size)
    rollout = Rollout(
        *(spec.environment for spec in specs),
        history=own["history"],
        turn_tokens=own["turn_tokens"],
        failures=own["failures"],
        template_kwargs=own["template_kwargs"],
        keeper=keeper,
        control=arguments.shuffle_rewards,
    )
    follower = _follower(folder, console, limit_s=arguments.time_limit)
    try:
        trainer = trl.GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rollout.rows(own["train_split"], seed=seed)),
            eval_dataset=Dataset.from_list(
                rollout.rows(own["validation_split"], seed=seed, count=own["validation_tasks"])
            ),
            rollout_func=rollout,
            reward_funcs=rlenv_reward,
            callbacks=[follower],
        )
        trainer.remove_callback(PrinterCallback)  # the follower prints what a reader wants
        trainer.train()
        if follower.ended in ("", "time_limit"):
            trainer.save_model(str(folder / "trained"))
    finally:
        keeper.close()
    console.print(plot_text(follower.curves), markup=False)
    state: Any = {"": "ended", "time_limit": "ended", "stop": "stopped"}[follower.ended]
    write_info(folder, replace(info, state=state, ended=time.time()))
    console.print(f"trained policy: {folder / 'trained'}" if state == "ended" else f"{folder / STOP} asked for the end")
    return 0 if state == "ended" else 130


def _follower(folder: Path, console: Console, *, limit_s: float | None) -> Any:
    """TRL's callback that writes the figures of each step to metrics.jsonl and heeds the run's limits."""
    from transformers import TrainerCallback

    started = time.monotonic()

    class Follower(TrainerCallback):
        ended = ""
        curves: dict[str, list[tuple[int, float]]]

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
            if not state.is_world_process_zero:
                return
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "data": dict(logs or {})}, default=str) + "\n")
            shown = []
            for key, value in (logs or {}).items():
                if key.endswith(("/success", "/reward")) and "rlenv/" in key:
                    label = "held-out" if key.startswith("eval_") else "training"
                    self.curves.setdefault(f"{label} {key.rpartition('rlenv/')[2]}", []).append(
                        (state.global_step, float(value))
                    )
                    shown.append(f"{label} {key.rpartition('rlenv/')[2]} {value:.3f}")
            if shown:
                seconds = time.monotonic() - started
                console.print(f"step {state.global_step}  {', '.join(shown)}, {seconds:.0f} s", markup=False)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if (folder / STOP).exists():
                self.ended = "stop"
            elif limit_s is not None and time.monotonic() - started > limit_s:
                self.ended = "time_limit"
            control.should_training_stop = control.should_training_stop or bool(self.ended)
            return control

    follower = Follower()
    follower.curves = {}
    return follower
