"""Everything a run needs, written into its folder before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlenv.errors import UsageError, did_you_mean, under
from rlenv.hosts.remote import RemoteEnvironment
from rlenv.language.templates import as_template
from rlenv.tokens.encoder import HISTORIES, History
from rlenv_train.fate import failure_policy
from rlenv_train.keeping import KEEP_GB
from rlenv_train.samples import stragglers
from rlenv_train.specs import Shipped, TrainedSpec, check_splits, load_specs, ship, spec_and_overrides
from rlenv_verl.loop import check_reward_model
from rlenv_verl.run import Mode, Run, SpecEntry
from rlenv_verl.run.inputs import agent_name, joining, mixed_rows, validation_rows, write_rows
from rlenv_verl.settings import compose
from rlenv_verl.settings.checks import check_masking, check_order, check_rows
from rlenv_verl.settings.presets import Preset, control_estimator, load_preset, lora_overrides, override, with_run_keys

_LOOP_CLASS = "rlenv_verl.loop.agent_loop.RlenvAgentLoop"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of the command line. `user_overrides` are Hydra overrides and win over everything.

    `model` is a folder or a name on the hub, and `given` what it was made of, as `--model` named it; "" where they are
    the same. `save_every` and `steps` are None where the preset decides. `command` is the command line itself.
    """

    specs: tuple[TrainedSpec, ...]
    folder: Path
    model: str
    preset: Preset
    seed: int
    shuffle_rewards: bool = False
    steps: int | None = None
    save_every: int | None = None
    validation_only: bool = False
    ray_address: str | None = None
    user_overrides: tuple[str, ...] = ()
    given: str = ""
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is ready to start: `overrides` are all that veRL is given, `config` is what they resolve to."""

    run: Run
    overrides: tuple[str, ...]
    config: Mapping[str, Any]

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole run; None where veRL derives them from the data."""
        steps: int | None = self.config["trainer"]["total_training_steps"]
        return steps

    @property
    def episodes_a_step(self) -> int:
        """Training episodes of one step."""
        return int(self.config["data"]["train_batch_size"]) * int(self.config["actor_rollout_ref"]["rollout"]["n"])


def asked_for(
    arguments: argparse.Namespace, *, preset: str, without: str
) -> tuple[tuple[TrainedSpec, ...], Preset, list[str]]:
    """The specs, the preset and veRL's overrides that a command line of `rlenv train` names.

    Args:
        preset: the one of a command line that names none.
        without: what to say where it names no spec.

    Raises:
        UsageError: there is no spec, or whatever `preset_of` raises.
        SpecError: a spec's own faults.
    """
    sources, items = spec_and_overrides(arguments.items)
    if not sources:
        raise UsageError(without)
    specs = load_specs(sources, set=arguments.set, weights=arguments.weight)
    chosen, overrides = preset_of(
        arguments.preset or preset,
        items,
        algorithm=arguments.algorithm,
        mode=arguments.mode,
        lora=arguments.lora,
        validation_tasks=arguments.validation_tasks,
    )
    return specs, chosen, overrides


def preset_of(
    name: str,
    items: Sequence[str],
    *,
    algorithm: str | None,
    mode: str | None,
    lora: int | None,
    validation_tasks: int | None = None,
) -> tuple[Preset, list[str]]:
    """The preset that a command line names, with what it says of the preset's own part, and veRL's overrides.

    Raises:
        UsageError: there is no such preset, algorithm or mode, or `with_run_keys` refuses an item.
    """
    preset, overrides = with_run_keys(load_preset(name, algorithm=algorithm, mode=mode), items)
    if validation_tasks is not None:
        preset = dataclasses.replace(preset, run={**preset.run, "validation_tasks": validation_tasks})
    return preset, [*lora_overrides(preset, lora), *overrides]


def history_of(given: Any) -> History:
    """The `history:` of a run; `grow` where it says nothing.

    Raises:
        UsageError: it is no history.
    """
    if known := [history for history in HISTORIES if history == ("grow" if given is None else given)]:
        return known[0]
    hint = did_you_mean(str(given), HISTORIES, otherwise=f"there are {', '.join(HISTORIES)}")
    raise UsageError(f"no history '{given}'", key="run.history", hint=hint)


def prepare(
    settings: RunSettings, *, max_prompt_tokens: int | str, warm_start: Mapping[str, Any] | None = None
) -> Plan:
    """Write the data sets, the agent loops' YAML, the resolved configuration and run.json, and return the plan.

    Args:
        max_prompt_tokens: the longest prompt, or `UNMEASURED` where no tokenizer tells it yet.

    Raises:
        UsageError: a split is missing, or veRL's configuration does not take an override.
    """
    run = settings.preset.run
    folder = settings.folder.resolve()
    modes: tuple[Mode, ...] = tuple(run["validation_modes"])
    overrides = tuple(_all_overrides(settings, folder, max_prompt_tokens))
    _write_inputs(settings, folder, modes, overrides)
    kept = Run(
        folder=folder,
        specs=tuple(
            SpecEntry(spec.name, spec.environment.id, spec.source, dict(spec.set), spec.weight)
            for spec in settings.specs
        ),
        preset=settings.preset.name,
        algorithm=settings.preset.algorithm,
        mode=settings.preset.mode,
        seed=settings.seed,
        shuffled_rewards=settings.shuffle_rewards,
        model=settings.model,
        given=settings.given,
        command=settings.command,
        train_split=run["train_split"],
        validation_split=run["validation_split"],
        validation_tasks=max(
            len(one.environment.part(run["validation_split"], run["validation_tasks"])) for one in settings.specs
        ),
        modes=modes,
        time_limit_s=run["time_limit_s"],
        ray_address=settings.ray_address,
        validation_only=settings.validation_only,
        cwd=os.getcwd(),
        overrides=overrides,
        environment=dict(settings.preset.environment),
        pinned=settings.preset.pinned,
        warm_start=warm_start,
        history=history_of(run.get("history")),
    )
    plan = plan_of(kept)
    _check_judge(settings, plan.config)
    kept.save()
    return plan


def _write_inputs(settings: RunSettings, folder: Path, modes: Sequence[Mode], overrides: tuple[str, ...]) -> None:
    """The data sets, the agent loops' YAML and the preset as it was laid out."""
    run = settings.preset.run
    check_splits(settings.specs, run)
    environments = [spec.environment for spec in settings.specs]
    weighed = [(spec.environment, spec.weight) for spec in settings.specs]
    prompts = None
    if any(one.tasks(run["train_split"]).is_endless for one in environments):
        config = compose(overrides)
        steps = config["trainer"].get("total_training_steps")
        prompts = None if steps is None else int(steps) * int(config["data"]["train_batch_size"])
    train = mixed_rows(weighed, run["train_split"], seed=settings.seed, prompts=prompts)
    write_rows(folder / "data" / "train.parquet", train)
    held_out = validation_rows(environments, run["validation_split"], tasks=run["validation_tasks"], modes=modes)
    write_rows(folder / "data" / "validation.parquet", held_out)
    found = [Shipped(spec.source, spec.set) for spec in settings.specs]
    if settings.ray_address is not None:
        found = ship(settings.specs, folder / "ship")
    loops = [_loop(spec, at, settings, folder) for spec, at in zip(settings.specs, found, strict=True)]
    (folder / "agent_loop.yaml").write_text(yaml.safe_dump(loops, sort_keys=False), encoding="utf-8")
    (folder / "preset.yaml").write_text(yaml.safe_dump(dict(settings.preset.file), sort_keys=False), encoding="utf-8")


def _all_overrides(settings: RunSettings, folder: Path, max_prompt_tokens: int | str) -> list[str]:
    """All that veRL is given; what stands later wins."""
    overrides = settings.preset.overrides()
    overrides += [override(key, value) for key, value in _own_keys(settings, folder, max_prompt_tokens).items()]
    if is_own_sampler(settings.preset.verl.get("trainer", {}).get("v1", {}).get("sampler", {})):
        given = " ".join(settings.user_overrides)
        for name, path in (("trained_file", folder / "trained.jsonl"), ("record_dir", folder)):
            if f"sampler_kwargs.{name}" not in given:
                overrides.append(override(f"trainer.v1.sampler.sampler_kwargs.{name}", str(path), add=True))
    if settings.ray_address is not None:
        overrides = joining(overrides, settings.ray_address)
    else:
        # A cluster of the run's own: whatever else runs on this machine is neither joined nor disturbed.
        overrides.append(override("ray_kwargs.ray_init.address", "local", add=True))
    return [*overrides, *settings.user_overrides]


def _check_judge(settings: RunSettings, config: Mapping[str, Any]) -> None:
    """Raises unless an endpoint that veRL's reward model shall serve exists, and can be served."""
    endpoint = settings.preset.run.get("reward_model")
    if endpoint is None:
        return
    known = dict.fromkeys(name for spec in settings.specs for name in spec.environment.spec.endpoints)
    if endpoint not in known:
        hint = did_you_mean(str(endpoint), known, otherwise=f"there are {', '.join(known) or 'none'}")
        raise UsageError(f"no endpoint '{endpoint}' in the specs", key="run.reward_model", hint=hint)
    check_reward_model(config)


def plan_of(run: Run, *more: str, dry_run: bool = False) -> Plan:
    """The plan of a run, with `more` overrides that hold for this attempt alone.

    The resolved configuration is written into the run's folder, unless it is a `dry_run`.

    Raises:
        UsageError: veRL's configuration does not take an override.
    """
    overrides = (*run.overrides, *more)
    config = compose(overrides)
    if "file" not in config["trainer"]["logger"]:
        raise UsageError("trainer.logger has to keep 'file', which progress and summary are read from")
    check_masking(config)
    if run.history == "rows":
        check_rows(config)
    if config["data"].get("rlenv_run") is not None:
        check_order(config)
    if not dry_run:
        (run.folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        (run.folder / "overrides.txt").write_text("\n".join(overrides) + "\n", encoding="utf-8")
    return Plan(run, overrides, config)


def _loop(spec: TrainedSpec, at: Shipped, settings: RunSettings, folder: Path) -> dict[str, Any]:
    """The entry of one spec in the agent loops' YAML."""
    run = settings.preset.run
    watches = run.get("watch")
    judge = run.get("reward_model")
    # Mistakes are told here and not by a worker, minutes later.
    failure_policy(run.get("failures"))
    stragglers(run.get("stragglers"))
    return {
        "name": agent_name(spec.name),
        "_target_": _LOOP_CLASS,
        "spec": at.source,
        "spec_set": dict(at.set),
        "seed": settings.seed,
        "turn_tokens": run["turn_tokens"],
        "template_kwargs": dict(run["template_kwargs"]),
        "record_dir": str(folder),
        "keep_gb": KEEP_GB if run.get("keep_gb") is None else float(run["keep_gb"]),
        "failures": dict(run.get("failures") or {}),
        "stragglers": run.get("stragglers"),
        "watch_dir": str(folder / "watch") if watches is None or watches else None,
        "reward_model": judge if judge in spec.environment.spec.endpoints else None,
        "history": history_of(run.get("history")),
        "remote": _remote_of(spec, str(run.get("remote") or "")),
    }


def _remote_of(spec: TrainedSpec, url: str) -> str | None:
    """The address of the spec's environment at the server that plays it; None without one.

    Raises:
        UsageError: there is no such server, or it serves another state of the spec.
    """
    if not url:
        return None
    address = f"{url.rstrip('/')}/env/{spec.name}"
    with under("run.remote"):
        RemoteEnvironment(address, spec=spec.environment)
    return address


def _own_keys(settings: RunSettings, folder: Path, max_prompt_tokens: int | str) -> dict[str, Any]:
    """The keys that depend on the run and not on the preset."""
    model, split = Path(settings.model), settings.preset.run["train_split"]
    keys: dict[str, Any] = {
        "data.train_files": str(folder / "data" / "train.parquet"),
        "data.val_files": str(folder / "data" / "validation.parquet"),
        "data.max_prompt_length": max_prompt_tokens,
        "data.seed": settings.seed,
        "actor_rollout_ref.model.path": str(model.resolve()) if model.exists() else settings.model,
        "actor_rollout_ref.rollout.seed": settings.seed,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(folder / "agent_loop.yaml"),
        "actor_rollout_ref.rollout.agent.default_agent_loop": agent_name(settings.specs[0].name),
        "actor_rollout_ref.actor.data_loader_seed": settings.seed,
        "actor_rollout_ref.actor.fsdp_config.seed": settings.seed,
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": "rlenv",
        "trainer.experiment_name": folder.name,
        "hydra.run.dir": str(folder / "hydra"),
    }
    if isinstance(max_prompt_tokens, str):  # veRL reads this one with a default of its own where the other is missing
        keys["actor_rollout_ref.rollout.prompt_length"] = max_prompt_tokens
    orders = [one.order for spec in settings.specs if (one := spec.environment.spec.tasks.get(split)) and one.order]
    if orders:
        keys["data.shuffle"] = False  # veRL's sampler goes by the rows, also after a restart
    if any("measured" in as_template(order).names for order in orders):
        keys |= {
            "data.custom_cls.path": "pkg://rlenv_verl.loop.replay_buffer",
            "data.custom_cls.name": "MeasuredRows",
            "data.dataloader_num_workers": 0,
            "+data.rlenv_run": str(folder),
        }
    if settings.steps is not None:
        keys["trainer.total_training_steps"] = settings.steps
    if settings.save_every is not None:
        keys["trainer.save_freq"] = settings.save_every
    if settings.validation_only:
        keys |= {"trainer.val_only": True, "trainer.val_before_train": True}
    if settings.shuffle_rewards:
        keys["algorithm.adv_estimator"] = control_estimator(settings.preset)
    return keys


def is_own_sampler(sampler: Mapping[str, Any]) -> bool:
    """True if veRL's section `trainer.v1.sampler` names a sampler of rlenv's."""
    return str((sampler.get("custom_sampler") or {}).get("path", "")).endswith("rlenv_verl.loop.replay_buffer")
