"""What an attempt of a run makes its episodes of: a lock for each of its specs (`rlenv.runs.locks.lock`).

Two runs with equal settings have equal locks, wherever their folders and models lie and whatever cluster they join. An
attempt that goes on from a checkpoint differs by that step at least; what its command adds to go on from it follows
from the step and is no part of the lock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

from rlenv.episodes.environment import Environment, load
from rlenv.errors import RlenvError, UsageError
from rlenv.runs.locks.files import Say, digest_of, tree_sha256
from rlenv.runs.locks.lock import FOLDER, Lock, diff, lock_of, read_lock
from rlenv.tokens.bound import load_tokenizer
from rlenv_verl.run.runfile import Run

__all__ = ["attempt_locks", "changed_lines"]

_WEIGHTS: Final = (".safetensors", ".bin", ".json")
_PLACES: Final = ("name", "_target_", "spec", "spec_set", "seed", "seeds", "record_dir", "watch_dir", "keep_gb")
"""Of an agent loop's entry: what stands in other sections, or makes no episode."""
_LABELS: Final = ("ray_kwargs.", "hydra.", "trainer.experiment_name", "trainer.project_name")
"""Overrides that say where a run runs and what it is called."""
_MOST_NAMED: Final = 6


def attempt_locks(run: Run, config: Mapping[str, Any], *, from_step: int, say: Say | None = None) -> dict[str, Lock]:
    """The locks of the attempt that begins at a step, by environment as its episodes name it (NAME-vVERSION).

    Args:
        run: in whose folder the agent loops' YAML is, and the checkpoint of `from_step`.
        config: veRL's configuration, as `run.overrides` resolve.
        say: is told what takes long, such as gigabytes of weights.

    Raises:
        UsageError: a split is missing.
        SpecError: a spec's own faults.
    """
    splits = [run.validation_split] if run.validation_only else [run.train_split, run.validation_split]
    loops = yaml.safe_load((run.folder / "agent_loop.yaml").read_text(encoding="utf-8"))
    policy = _policy(run, from_step, say)
    common = _trainer(run, config)
    tokenizer = _tokenizer(run.model)
    locks = {}
    for entry, loop in zip(run.specs, loops, strict=True):
        environment = load(entry.source, set=dict(entry.set) or None)
        own = {"weight": entry.weight, "loop": {key: value for key, value in loop.items() if key not in _PLACES}}
        locks[_named(environment)] = lock_of(
            environment,
            splits=list(dict.fromkeys(splits)),
            policy=policy,
            seed=run.seed,
            seeds=loop.get("seeds"),
            k=int(config["actor_rollout_ref"]["rollout"]["n"]),
            tokenizer=tokenizer,
            trainer={**common, **own},
            say=say,
        )
    return locks


def _named(environment: Environment) -> str:
    return f"{environment.spec.name}-v{environment.spec.version}"


def _policy(run: Run, from_step: int, say: Say | None) -> dict[str, Any]:
    """The model that the run started from, by content where it lies here; and the run and step that it has come to."""
    folder = Path(run.model)
    is_here = folder.is_dir()
    found: dict[str, Any] = {
        "kind": "train",
        "model": folder.name if is_here or folder.is_absolute() else run.model,  # a path is no part of what a model is
        "weights": tree_sha256(folder, suffixes=_WEIGHTS, say=say) if is_here else None,
        "step": from_step,
    }
    return found | ({"run": run.folder.name} if from_step else {})


def _tokenizer(model: str) -> Any:
    try:
        return load_tokenizer(model)
    except RlenvError:  # one that only transformers can load; what stands in its folder counts with the weights
        return None


def _trainer(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer's version and its configuration, without places and labels."""
    content = {key: value for key, value in config.items() if key not in ("ray_kwargs", "hydra")}
    labels = ("experiment_name", "project_name")
    content["trainer"] = {key: value for key, value in config["trainer"].items() if key not in labels}
    given = (item.partition("=") for item in run.overrides)
    overrides = {key: value for key, _, value in given if not key.lstrip("+").startswith(_LABELS)}
    return {
        "name": "verl",
        "version": metadata.version("verl"),
        "preset": run.preset,
        "algorithm": run.algorithm,
        "mode": run.mode,
        "shuffled_rewards": run.shuffled_rewards,
        "config": digest_of(_placeless(content, run)),
        "overrides": _placeless(overrides, run),
    }


def _placeless(value: Any, run: Run) -> Any:
    """A JSON value with `RUN` for the run's folder and `MODEL` for its model's, wherever they stand."""
    text = json.dumps(value, default=str)
    for name, place in (("RUN", str(run.folder)), ("MODEL", run.model)):
        if Path(place).is_absolute():
            written = re.escape(json.dumps(place)[1:-1])
            text = re.sub(written + r"""(?=[/"',\]}\\\s]|$)""", name, text)
    return json.loads(text)


def changed_lines(run: Run) -> Iterator[str]:
    """What the run's last attempt goes on with that the one before did not have, a line for each of its specs.

    That it goes on from another step is no line. Nothing is said where the attempt before has no lock.
    """
    if len(run.attempts) < 2:
        return
    before, last = run.attempts[-2:]
    for old, (environment, new) in zip(before.locks.values(), last.locks.items(), strict=False):
        files = [run.folder / FOLDER / f"{one}.json" for one in (old, new)]
        if names := _differing(*files):
            shown = ", ".join(names[:_MOST_NAMED])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            yield f"{environment} goes on with another {shown}{more}: rlenv runs lock diff {files[0]} {files[1]}"


def _differing(old: Path, new: Path) -> list[str]:
    if old == new:
        return []
    try:
        found = diff(read_lock(old), read_lock(new))
    except UsageError:
        return ["lock, which cannot be read"]
    return [f"{one.section}.{one.key}" for one in found if (one.section, one.key) not in _OF_A_CHECKPOINT]


_OF_A_CHECKPOINT: Final = (("policy", "run"), ("policy", "step"))
