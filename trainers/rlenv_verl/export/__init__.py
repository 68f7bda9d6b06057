"""A run's checkpoints as veRL lays them out: which there are, which are whole, and their weights."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import rlenv
from rlenv.errors import UsageError
from rlenv_train.progress import entries_of

# val-aux/SPEC/SPLIT/MODE/success/mean@EPISODES: veRL's name for a figure of the data source SPEC/SPLIT/MODE
_SUCCESS = re.compile(r"val-aux/.+/([^/]+)/success/mean@\d+")

LATEST = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One step's actor. `fault` says why it cannot be used, "" where it can."""

    step: int
    folder: Path
    fault: str = ""

    @property
    def huggingface(self) -> Path:
        """The folder of the configuration and the tokenizer."""
        return self.folder / "huggingface"

    @property
    def lora(self) -> Mapping[str, Any] | None:
        """Rank (`r`) and `lora_alpha` of the adapter that was trained, None without one."""
        meta = self.folder / "lora_train_meta.json"
        return dict(json.loads(meta.read_bytes())) if meta.is_file() else None

    @property
    def has_whole_weights(self) -> bool:
        """True if transformers' own weights were saved; with LoRA what stands there is not the model's."""
        return self.lora is None and any(self.huggingface.glob("*.safetensors"))

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote it; 0 where it does not say."""
        config = self.folder / "fsdp_config.json"
        return int(json.loads(config.read_bytes())["world_size"]) if config.is_file() else 0

    @property
    def shards(self) -> list[Path]:
        """The shards of all ranks, in the order of ranks; empty where none were saved."""
        world = self.world_size
        paths = [self.folder / f"model_world_size_{world}_rank_{rank}.pt" for rank in range(world)]
        return paths if all(path.is_file() for path in paths) else []

    def state(self) -> dict[str, Any]:
        """All tensors by name, in the dtype that was saved, the ranks' shards put together.

        veRL's own merger (verl.model_merger) rounds every tensor to bfloat16; this one keeps what was trained.

        Raises:
            UsageError: there are no shards, or one that is sharded in a way that FSDP does not.
        """
        import torch
        import torch.distributed.tensor  # the class of the tensors in the file

        if not self.shards:
            raise UsageError(
                f"{self.folder} has no model shards", hint="actor.checkpoint.save_contents has to hold 'model'"
            )
        with _no_word_of_process_groups():
            # weights_only: a checkpoint is data, whoever made it, and nothing in it is run.
            ranks = [torch.load(path, map_location="cpu", weights_only=True) for path in self.shards]
        return {name: _join_parts(name, [state[name] for state in ranks]) for name in ranks[0]}


@contextmanager
def _no_word_of_process_groups() -> Iterator[None]:
    """torch warns that a mesh read from a file has no process group; nothing is communicated here."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _join_parts(name: str, parts: Sequence[Any]) -> Any:
    """One tensor from its ranks' parts. DTensors say how they were cut; a plain tensor is the same on every rank."""
    import torch
    from torch.distributed.tensor import DTensor

    first: Any = parts[0]
    if not isinstance(first, DTensor):
        if any(not torch.equal(part, first) for part in parts[1:]):
            raise UsageError(f"{name} differs between ranks; expected the same tensor on each")
        return first
    placements: Sequence[Any] = first.placements
    cuts = [place for place in placements if place.is_shard()]
    local = [part.to_local() for part in parts]
    if not cuts:
        return local[0]
    if len(cuts) > 1 or any(place.is_partial() for place in placements):
        raise UsageError(f"{name} is placed as {placements}; expected one cut, as FSDP makes it")
    # With replication (ddp × fsdp) the last dimension of the mesh is the cut one: its first row holds every part.
    count = first.device_mesh.mesh.shape[-1]
    whole = torch.cat(local[:count], dim=cuts[0].dim)
    if tuple(whole.shape) != tuple(first.shape):
        raise UsageError(f"the parts of {name} make {tuple(whole.shape)}; expected {tuple(first.shape)}")
    return whole.contiguous()


def run_config(run: Path) -> dict[str, Any]:
    """veRL's configuration of a run, as `rlenv train` keeps it.

    Raises:
        UsageError: the folder is no run's.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{run} is no run of `rlenv train`: it has no config.yaml")
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def step_folders(folder: Path) -> tuple[dict[int, Path], int]:
    """veRL's folders by step, in the order of steps, and the last step that is whole; -1 without one.

    veRL names a checkpoint in a file of its own once all of it is written; a folder of a later step was cut while it
    was written. Where that file itself was cut, the newest folder is taken for cut.
    """
    found = {int(path.name.removeprefix("global_step_")): path for path in folder.glob("global_step_*")}
    try:
        newest = int((folder / LATEST).read_text(encoding="ascii"))
    except FileNotFoundError:
        newest = -1
    except ValueError:
        newest = max(found, default=0) - 1
    return dict(sorted(found.items())), newest


def last_checkpoint(folder: Path) -> Path | None:
    """The newest folder of a step to go on from, None where there is none."""
    found, newest = step_folders(folder)
    # veRL removes old actors (`max_actor_ckpt_to_keep`) and leaves the rest of their folders.
    whole = [path for step, path in found.items() if step <= newest and (path / "actor").is_dir()]
    return whole[-1] if whole else None


def whole_checkpoints(folder: Path) -> list[Checkpoint]:
    """The whole checkpoints of veRL's supervised trainer, the oldest first; a step's folder is the model's own."""
    found, newest = step_folders(folder)
    entries = [Checkpoint(step, path) for step, path in found.items() if step <= newest]
    return [entry for entry in entries if entry.shards or entry.has_whole_weights]


def find_checkpoints(run: Path) -> list[Checkpoint]:
    """The checkpoints of a run in the order of steps, those that are not whole among them."""
    found, newest = step_folders(run / "checkpoints")
    return [Checkpoint(step, path / "actor", _find_fault(path / "actor", step, newest)) for step, path in found.items()]


def _find_fault(actor: Path, step: int, newest: int) -> str:
    if step > newest:
        last = f"names step {newest}" if newest >= 0 else "is not there"
        return f"is half-written: {LATEST}, which veRL writes last, {last}"
    entry = Checkpoint(step, actor)
    if not (actor / "huggingface" / "config.json").is_file():
        return "has no actor/huggingface/config.json"
    if not entry.shards and not entry.has_whole_weights:
        return "has no weights: shards of a rank are missing, and actor/huggingface holds none"
    return ""


def choose(run: Path, *, step: int | None = None, best: bool = False) -> Checkpoint:
    """The checkpoint to take: of `step`, the best by held-out success, or the last.

    Raises:
        UsageError: there is none, it is not whole, or nothing says which is the best; the message says what there is.
    """
    config = run_config(run)
    found = find_checkpoints(run)
    whole = [entry for entry in found if not entry.fault]
    names = ", ".join(str(entry.step) for entry in whole) or "none"
    if step is not None:
        asked = next((entry for entry in found if entry.step == step), None)
        if asked is None:
            raise UsageError(f"{run} has no checkpoint of step {step}", hint=f"whole ones: {names}")
        if asked.fault:
            raise UsageError(f"the checkpoint of step {step} {asked.fault}", hint=f"whole ones: {names}")
        return asked
    if not whole:
        broken = "".join(f"; step {entry.step} {entry.fault}" for entry in found)
        frequency = config["trainer"]["save_freq"]
        raise UsageError(
            f"{run} has no checkpoint yet{broken}. veRL saves every trainer.save_freq={frequency} steps and at the "
            "last one",
            hint="train with a smaller trainer.save_freq, or let the run end",
        )
    if not best:
        return whole[-1]
    success = success_by_step(run)
    measured = [entry for entry in whole if entry.step in success]
    if not measured:
        raise UsageError(
            f"no step was both saved and measured (saved: {names}; measured: {', '.join(map(str, success)) or 'none'})",
            hint="make trainer.save_freq a multiple of trainer.test_freq",
        )
    # Of equals the latest: it has been trained longest.
    return max(measured, key=lambda entry: (success[entry.step], entry.step))


def success_by_step(run: Path) -> dict[int, float]:
    """Held-out success of every step that was validated: greedy where that was measured, the mean over specs."""
    found: dict[int, float] = {}
    for entry in entries_of(run / "metrics.jsonl"):
        rates: dict[str, list[float]] = {}
        for key, value in entry["data"].items():
            source = _SUCCESS.fullmatch(key)
            if source and isinstance(value, int | float) and math.isfinite(value):
                rates.setdefault(source[1], []).append(float(value))
        chosen = rates.get("greedy") or next(iter(rates.values()), [])
        if chosen:
            found[int(entry["step"])] = sum(chosen) / len(chosen)
    return found


def versions(*packages: str) -> dict[str, str]:
    """The version of each package, as it is kept beside what was written with it."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return rlenv.__version__ if package == "rlenv" else "not installed"
