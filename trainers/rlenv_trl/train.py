"""`rlenv train --trainer trl`: from specs to a trained policy, with unmodified TRL, in this process.

Without a GPU the sizes are those of a tiny policy, and TRL's own otherwise. `key=value` replaces a key of TRL's
`GRPOConfig`, and `run.key=value` one of `RUN`. Under `torchrun` or `accelerate launch` each process plays its own part
of the prompts; the first one prepares the folder, keeps the figures and says when the run is to end.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml

from rlenv.cli.console import Console
from rlenv.errors import MissingExtra, UsageError, all_known, told_as
from rlenv.runs.folder import STOP, Attempt, RunInfo, is_run, read_info, write_info
from rlenv.runs.locks.lock import lock_of
from rlenv.runs.pack import seal_abandoned
from rlenv_train.keeping import KEEP_GB, Keeper, KeptEpisodes
from rlenv_train.progress import cut_after, driving, entries_of, plot_text
from rlenv_train.specs import TrainedSpec, load_specs, read_override, run_folder, spec_and_overrides, unprepared_info
from rlenv_trl.rollout import Rollout, rlenv_reward
from rlenv_verl.run.inputs import options_of, refuse_fixed
from rlenv_verl.run.model import first_model

_SETTINGS: Final = yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8"))
RUN: Final[Mapping[str, Any]] = {**_SETTINGS["run"], "keep_gb": KEEP_GB}
"""The settings that rlenv itself decides; `run.KEY=VALUE` replaces one."""
_OF_THE_RUN: Final = ("set", "model", "chat_template", "seed", "shuffle_rewards", "output", "validation_tasks")
"""Options that `--resume` does not take: they would make another run of it."""


def train(arguments: argparse.Namespace, console: Console) -> int:
    """Trains as the options of `rlenv train` say; returns the exit status.

    Raises:
        UsageError: an option or a key that TRL's run does not take, or a folder that holds a run.
        MissingExtra: TRL is not installed.
    """
    for name, needs in _SETTINGS["needs"].items():
        if getattr(arguments, name):
            raise UsageError(f"--trainer trl does not take --{name.replace('_', '-')}", hint=needs)
    trl = _import_trl()
    console.quiet = not _is_first()
    if arguments.resume is not None:
        return _resume(trl, arguments, console)
    sources, items = spec_and_overrides(arguments.items)
    if not sources:
        raise UsageError("name the spec to train on: rlenv train SPEC --trainer trl")
    asked = _parse_asked(arguments, items)
    specs = load_specs(sources, set=arguments.set)
    folder = run_folder(arguments.output, specs)
    if _is_first() and ((folder / "metrics.jsonl").exists() or is_run(folder)):
        raise UsageError(f"{folder} holds a run already", hint=f"choose another with -o, or --resume {folder}")
    config = config_of(trl, asked.keys, folder=folder, seed=asked.seed, on_cpu=_on_cpu())
    run = _Run(trl, asked, specs, folder, config, console)
    if arguments.dry_run:
        return run.dry_run(arguments.model or "tiny")
    if config.world_size > 1 and arguments.output is None:
        raise UsageError("several processes need one folder", key="-o", hint="name it by -o FOLDER")
    info = unprepared_info("train", arguments, specs)

    def prepare() -> None:
        console.say(f"run folder  {folder}")
        model, _ = first_model(arguments, specs, folder, console, limit_s=arguments.time_limit)
        facts = {"trainer": "trl", "seed": asked.seed, "asked": asdict(asked)}
        facts |= {"sources": [spec.source for spec in specs], "set": list(arguments.set)}
        run.begin(replace(info, facts=facts), model, from_step=0)

    return run.drive(prepare, info, limit_s=arguments.time_limit)


def _is_first() -> bool:
    """True in a process alone, and in the first of several."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for: rlenv's own part, keys of `GRPOConfig`, and whether rewards are shuffled."""

    own: Mapping[str, Any]
    keys: Mapping[str, Any]
    seed: int = 0
    shuffles: bool = False


def _parse_asked(arguments: argparse.Namespace, items: Sequence[str]) -> Asked:
    own, keys = overrides_of(items)
    if arguments.validation_tasks is not None:
        own["validation_tasks"] = arguments.validation_tasks
    keys |= _steps_of(arguments)
    return Asked(own, keys, arguments.seed or 0, bool(arguments.shuffle_rewards))


def _steps_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keys of `--steps` and `--save-every`."""
    keys = {} if arguments.steps is None else {"max_steps": arguments.steps}
    saves = {"save_strategy": "steps", "save_steps": arguments.save_every}
    return keys if arguments.save_every is None else keys | saves


@dataclass(frozen=True, slots=True)
class _Run:
    """A run in its folder, as it was asked for; `config` is TRL's."""

    trl: Any
    asked: Asked
    specs: Sequence[TrainedSpec]
    folder: Path
    config: Any
    console: Console

    def dry_run(self, model: str, *, step: int = 0) -> int:
        """Shows what a run would be, once TRL has accepted it; nothing is written or started."""
        asked, config, console = self.asked, self.config, self.console
        console.say(f"run folder  {self.folder}\npolicy      {model}")
        for spec in self.specs:
            sizes = [(asked.own[f"{which}_split"], which) for which in ("train", "validation")]
            rows = [f"{len(spec.environment.tasks(split))} tasks of {split} ({which})" for split, which in sizes]
            console.say(f"spec        {spec.name}: {', '.join(rows)}")
        for part, values in (("run.", asked.own), ("", merge_keys(asked.keys, self.folder, asked.seed, _on_cpu()))):
            for key, value in values.items():
                console.say(f"  {part}{key}={value if part else getattr(config, key)}")
        console.say(f"nothing was started or written; steps {step} to {config.max_steps}")
        return 0

    def drive(self, prepare: Callable[[], None], unprepared: RunInfo | None = None, **options: Any) -> int:
        """Trains in a folder that the first process drives and has prepared; the others wait for that."""
        with ExitStack() as stack:
            with self.config.main_process_first(local=False):
                if _is_first():
                    self.folder.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(driving(self.folder, unprepared))
                    prepare()
            info = read_info(self.folder)
            assert info is not None  # where preparing has failed, this process is ended by whoever started it
            return self._train(info, **options)

    def begin(self, info: RunInfo, model: str, *, from_step: int) -> None:
        """The run with one more attempt, kept in run.json, and the locks of its episodes."""
        asked = self.asked
        splits = list(dict.fromkeys((asked.own["train_split"], asked.own["validation_split"])))
        policy = {"kind": "train", "model": Path(model).name if Path(model).is_absolute() else model}
        trainer = {"name": "trl", "run": dict(asked.own)}
        locks = {
            f"{spec.name}-v{spec.environment.spec.version}": lock_of(
                spec.environment, splits=splits, policy=policy, seed=asked.seed, trainer=trainer
            )
            .write(self.folder)
            .stem
            for spec in self.specs
        }
        attempt = Attempt.begin(len(info.attempts) + 1, from_step, locks=locks)
        write_info(self.folder, replace(info, attempts=(*info.attempts, attempt), policy=model))

    def _train(self, info: RunInfo, *, limit_s: float | None, checkpoint: Path | None = None) -> int:
        from datasets import Dataset
        from transformers.trainer_callback import PrinterCallback

        started, asked, folder, config = time.monotonic(), self.asked, self.folder, self.config
        own, seed, console = asked.own, asked.seed, self.console
        keeper = Keeper(folder, keep_gb=float(own["keep_gb"]), writers=config.world_size)
        rollout = Rollout(
            *(spec.environment for spec in self.specs),
            **{key: own[key] for key in ("history", "turn_tokens", "failures", "template_kwargs")},
            keeper=keeper,
            control=asked.shuffles,
        )
        follower = _make_follower(folder, console, limit_s=limit_s)
        held_out = rollout.rows(own["validation_split"], seed=seed, count=own["validation_tasks"])
        held_out, config.per_device_eval_batch_size = _even_tasks(held_out, config)
        with closing(keeper):
            trainer = self.trl.GRPOTrainer(
                model=info.policy,
                args=config,
                train_dataset=Dataset.from_list(rollout.rows(own["train_split"], seed=seed)),
                eval_dataset=Dataset.from_list(held_out),
                rollout_func=rollout,
                reward_funcs=rlenv_reward,
                callbacks=[follower],
            )
            trainer.remove_callback(PrinterCallback)  # the follower prints what a reader wants
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint is not None else None)
            if follower.ended in ("", "time_limit"):
                trainer.save_model(str(folder / "trained"))
        trainer.accelerator.wait_for_everyone()  # for the episodes of the others
        state: Any = {"": "ended", "time_limit": "ended", "stop": "stopped"}[follower.ended]
        if _is_first():
            info = replace(info, state=state, ended=time.time())
            write_info(folder, info)
            facts: dict[str, Any] = {"shuffles": asked.shuffles, "held_out_tasks": len(held_out)}
            summarise(folder, info, how=follower.ended or "finished", seconds=time.monotonic() - started, **facts)
        console.say(plot_text(curves_of(folder)))
        where = f"trained policy: {folder / 'trained'}" if state == "ended" else f"{folder / STOP} asked for the end"
        console.say(f"{where}; summary.json stands in {folder}")
        return 0 if state == "ended" else 130


def _resume(trl: Any, arguments: argparse.Namespace, console: Console) -> int:
    """A run that goes on from its last checkpoint, with its own settings; --steps, --save-every and --time-limit may be
    others.

    Raises:
        UsageError: the folder has no run of TRL, none of its checkpoints, or an option would make another run of it.
    """
    folder = arguments.resume.resolve()
    refuse_fixed([*(["SPEC and key=value"] if arguments.items else []), *options_of(arguments, _OF_THE_RUN)])
    info = read_info(folder)
    if info is None or "asked" not in info.facts:
        raise UsageError(f"{folder} holds no run of TRL", hint="leave out --trainer trl for one of veRL")
    kept = sorted((folder / "checkpoints").glob("checkpoint-*"), key=step_of)
    if not kept:
        hint = "start it with --save-every N; one that a file `stop` or its time limit ends keeps its last step too"
        raise UsageError(f"{folder} has no checkpoint to go on from", hint=hint)
    asked = Asked(**info.facts["asked"])
    asked = replace(asked, keys={**asked.keys, **_steps_of(arguments)})
    specs = load_specs(info.facts["sources"], set=info.facts["set"])
    step = step_of(kept[-1])
    config = config_of(trl, asked.keys, folder=folder, seed=asked.seed, on_cpu=_on_cpu())
    run = _Run(trl, asked, specs, folder, config, console)
    if arguments.dry_run:
        return run.dry_run(info.policy, step=step)
    begun = replace(info, command=arguments.command, state="running", ended=0.0)

    def prepare() -> None:
        console.say(f"run folder  {folder}\ngoes on from step {step}")
        cut_after(folder / "metrics.jsonl", step)
        run.begin(begun, begun.policy, from_step=step)

    return run.drive(prepare, limit_s=arguments.time_limit, checkpoint=kept[-1])


def step_of(checkpoint: Path) -> int:
    """The step behind which TRL has written a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


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
    with told_as(UsageError, "TRL's GRPOConfig:", ValueError, TypeError):
        return trl.GRPOConfig(**merge_keys(keys, folder, seed, on_cpu))


def merge_keys(keys: Mapping[str, Any], folder: Path, seed: int, on_cpu: bool) -> dict[str, Any]:
    """All keys of `GRPOConfig` that a run gives."""
    own = {"seed": seed, "output_dir": str(folder / "checkpoints")}
    return {**_SETTINGS["always"], **(_SETTINGS["cpu"] if on_cpu else {}), **own, **keys}


def _on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _import_trl() -> Any:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    try:
        import trl
    except ModuleNotFoundError as error:
        raise MissingExtra(f"rlenv train --trainer trl ({error.name} is missing)", extra="trl") from error
    return trl


def _even_tasks(held_out: list[dict[str, Any]], config: Any) -> tuple[list[dict[str, Any]], int]:
    """The tasks of a validation and the size of a batch by which all processes have as many: TRL fills up what is left
    with tasks that have been played. Batches are alike, or in one process nearly: TRL gives the mean of their means."""
    size, each = config.per_device_eval_batch_size, len(held_out) // config.world_size
    if not each:
        return held_out, size
    alike = next(one for one in range(size, 0, -1) if each % one == 0)
    if config.world_size == 1 and alike * 4 < size:
        alike = -(-each // -(-each // size))
    return held_out[: each * config.world_size], alike


def _make_follower(folder: Path, console: Console, *, limit_s: float | None) -> Any:
    """TRL's callback that writes the figures of each step to metrics.jsonl and heeds the run's limits."""
    from accelerate.utils import broadcast_object_list
    from transformers import TrainerCallback

    started = time.monotonic()

    class Follower(TrainerCallback):
        ended = ""

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
            if not state.is_world_process_zero:
                return
            with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, "data": dict(logs or {})}, default=str) + "\n")
            shown = [f"{label} {value:.3f}" for label, value in curve_figures(logs or {})]
            if shown:
                seconds = time.monotonic() - started
                console.say(f"step {state.global_step}  {', '.join(shown)}, {seconds:.0f} s")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if (folder / STOP).exists():
                self.ended = "stop"
            elif limit_s is not None and time.monotonic() - started > limit_s:
                self.ended = "time_limit"
            # One that ended alone would leave the other processes waiting.
            (self.ended,) = broadcast_object_list([self.ended])
            if self.ended:
                control.should_training_stop = True
                control.should_save = state.global_step < state.max_steps  # for --resume
            return control

    return Follower()


# What a run leaves beside its episodes: its curves, and summary.json with the keys that veRL's has


def curves_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Success and reward of each spec by step, in training and held out, over all attempts."""
    found: dict[str, dict[int, float]] = {}
    for entry in entries_of(folder / "metrics.jsonl"):
        for label, value in curve_figures(entry["data"]):
            found.setdefault(label, {})[entry["step"]] = value
    return {label: sorted(points.items()) for label, points in found.items()}


def curve_figures(logs: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The logged values of TRL that are curves, by their labels."""
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
        "failed_episodes": len(episodes.failures()),
        "failure_reasons": episodes.reasons(),
        "trained": str(folder / "trained") if (folder / "trained").exists() else None,
        "model": info.policy,
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
