"""Everything a run needs, written into its folder before anything starts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import rlenv
from rlenv.environment import Environment
from rlenv.errors import UsageError
from rlenv_verl.datasets import Mode, data_source, training_rows, validation_rows, write_rows
from rlenv_verl.names import AGENT_NAME, GRPO_SHUFFLED, LOOP_CLASS
from rlenv_verl.preset import Preset, compose, override

__all__ = ["Plan", "RunSettings", "measure_prompts", "prepare", "run_environment"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What the command line asks for. `user_overrides` are Hydra overrides and win over everything."""

    spec: str
    spec_set: Mapping[str, Any]
    folder: Path
    model: Path
    preset: Preset
    seed: int
    shuffle_rewards: bool
    steps: int | None
    user_overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is ready to start.

    `sources` names the validation's data source of each mode. `total_steps` is None where veRL derives it from the
    data. `config` is veRL's whole configuration as it resolved.
    """

    overrides: tuple[str, ...]
    config: Mapping[str, Any]
    sources: Mapping[str, str]
    metrics: Path
    records: Path
    checkpoints: Path
    total_steps: int | None


def prepare(settings: RunSettings, environment: Environment, *, max_prompt_tokens: int) -> Plan:
    """Write the data sets, the agent loop's YAML and the resolved configuration, and return the plan.

    Raises:
        UsageError: a split is missing, or veRL's configuration does not take an override.
    """
    run = settings.preset.run
    folder = settings.folder.resolve()
    modes: tuple[Mode, ...] = tuple(run["validation_modes"])
    train_split, validation_split = run["train_split"], run["validation_split"]
    train = training_rows(environment, train_split)
    held_out = validation_rows(environment, validation_split, tasks=run["validation_tasks"], modes=modes)
    write_rows(folder / "data" / "train.parquet", train)
    write_rows(folder / "data" / "validation.parquet", held_out)
    records = folder / "trajectories"
    loop: dict[str, Any] = {
        "name": AGENT_NAME,
        "_target_": LOOP_CLASS,
        "spec": settings.spec,
        "spec_set": dict(settings.spec_set),
        "seed": settings.seed,
        "turn_tokens": run["turn_tokens"],
        "template_kwargs": dict(run["template_kwargs"]),
        "record_dir": str(records),
    }
    (folder / "agent_loop.yaml").write_text(yaml.safe_dump([loop], sort_keys=False), encoding="utf-8")

    overrides = settings.preset.overrides()
    overrides += [override(key, value) for key, value in _own_keys(settings, folder, max_prompt_tokens).items()]
    if "RAY_ADDRESS" not in os.environ:
        # A cluster of the run's own: whatever else runs on this machine is neither joined nor disturbed.
        overrides.append(override("ray_kwargs.ray_init.address", "local", add=True))
    overrides += settings.user_overrides
    config = compose(overrides)
    if "file" not in config["trainer"]["logger"]:
        raise UsageError("trainer.logger has to keep 'file', which progress and summary are read from")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    (folder / "overrides.txt").write_text("\n".join(overrides) + "\n", encoding="utf-8")
    return Plan(
        overrides=tuple(overrides),
        config=config,
        sources={mode: data_source(environment, validation_split, mode) for mode in modes},
        metrics=folder / "metrics.jsonl",
        records=records,
        checkpoints=folder / "checkpoints",
        total_steps=config["trainer"]["total_training_steps"],
    )


def _own_keys(settings: RunSettings, folder: Path, max_prompt_tokens: int) -> dict[str, Any]:
    """The keys that depend on the run and not on the preset."""
    keys: dict[str, Any] = {
        "data.train_files": str(folder / "data" / "train.parquet"),
        "data.val_files": str(folder / "data" / "validation.parquet"),
        "data.max_prompt_length": max_prompt_tokens,
        "data.seed": settings.seed,
        "actor_rollout_ref.model.path": str(settings.model.resolve()),
        "actor_rollout_ref.rollout.seed": settings.seed,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(folder / "agent_loop.yaml"),
        "actor_rollout_ref.rollout.agent.default_agent_loop": AGENT_NAME,
        "actor_rollout_ref.actor.data_loader_seed": settings.seed,
        "actor_rollout_ref.actor.fsdp_config.seed": settings.seed,
        "trainer.default_local_dir": str(folder / "checkpoints"),
        "trainer.project_name": "rlenv",
        "trainer.experiment_name": folder.name,
        "hydra.run.dir": str(folder / "hydra"),
    }
    if settings.steps is not None:
        keys["trainer.total_training_steps"] = settings.steps
    if settings.shuffle_rewards:
        keys["algorithm.adv_estimator"] = GRPO_SHUFFLED
    return keys


def run_environment(settings: RunSettings, plan: Plan) -> dict[str, str]:
    """The environment variables of veRL's processes, on top of this process's own."""
    variables = dict(os.environ)
    variables.update(
        {
            "VERL_FILE_LOGGER_PATH": str(plan.metrics),
            "RLENV_SEED": str(settings.seed),
            "TOKENIZERS_PARALLELISM": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "HYDRA_FULL_ERROR": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )
    variables.update(settings.preset.environment)
    # Ray's workers are new processes: what this one imported from a checkout has to be importable there too.
    roots = [str(Path(rlenv.__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1])]
    known = variables.get("PYTHONPATH", "")
    variables["PYTHONPATH"] = os.pathsep.join([*dict.fromkeys(roots), *([known] if known else [])])
    return variables


def measure_prompts(
    environment: Environment,
    model: Path,
    *,
    splits: Sequence[str],
    template_kwargs: Mapping[str, Any],
    sample: int = 256,
) -> int:
    """Tokens of the longest prompt among the first `sample` tasks of each split, and a quarter more."""
    from transformers import AutoTokenizer

    from rlenv.tokens import TokenEncoder

    encoder = TokenEncoder(AutoTokenizer.from_pretrained(model), template_kwargs=template_kwargs)

    async def longest() -> int:
        lengths = []
        for split in splits:
            for task in range(min(sample, len(environment.tasks(split)))):
                async with environment.start(task=task, split=split) as episode:
                    tokens = encoder.start(episode.messages, tools=environment.tool_schemas)
                    lengths.append(len(tokens.prompt_ids))
        return max(lengths)

    return -(-asyncio.run(longest()) * 5 // 4)
