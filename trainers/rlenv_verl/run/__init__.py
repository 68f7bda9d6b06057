"""`rlenv train`: from specs to a folder that holds a whole run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import yaml

from rlenv.episodes.environment import load
from rlenv.errors import RlenvError, UsageError
from rlenv.runs.folder import STOP
from rlenv.runs.locks.files import Say, digest_of, tree_sha256
from rlenv.runs.locks.lock import FOLDER, Lock, diff, lock_of, read_lock
from rlenv.tasks.rows import STEP_SEEDS
from rlenv.tokens.bound import load_tokenizer
from rlenv_train.progress import TrainerRun, cut_after
from rlenv_verl.export import step_folders

if TYPE_CHECKING:
    from rlenv.tokens.encoder import History

Mode = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class SpecEntry:
    """A spec of the run; see `rlenv_train.specs.TrainedSpec`. `id` is rlenv/NAME-vVERSION."""

    name: str
    id: str
    source: str
    set: Mapping[str, Any]
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(TrainerRun):
    """A run of `rlenv train`; what any run has, see `TrainerRun`.

    `environment` is what the preset, the shell and the command line decided on, and `pinned` names those of the command
    line. `modes` are those of the validation. `history` is what becomes of turns that the chat template would write
    otherwise later (`run.history`). `given` is what `model` was made of, such as `package:NAME`; "" where nothing was
    made.
    """

    MADE_BY: ClassVar = "rlenv train"
    KINDS: ClassVar = ("train", "eval")
    FACTS: ClassVar = ("preset", "algorithm", "mode", "seed", "train_split", "validation_split", "validation_tasks")

    specs: tuple[SpecEntry, ...]
    algorithm: str
    mode: str
    shuffled_rewards: bool
    train_split: str
    validation_split: str
    validation_tasks: int
    modes: tuple[Mode, ...]
    ray_address: str | None
    validation_only: bool
    warm_start: Mapping[str, Any] | None = None
    history: History = "grow"
    pinned: tuple[str, ...] = ()
    given: str = ""

    @property
    def sources(self) -> dict[str, str]:
        """The validation's data source by label: the mode, behind the spec's name where there are several specs."""
        single = len(self.specs) == 1
        return {
            mode if single else f"{spec.name}/{mode}": f"{spec.name}/{self.validation_split}/{mode}"
            for spec in self.specs
            for mode in self.modes
        }

    @property
    def trained(self) -> Path:
        """The tasks that each step trained on, one line a group."""
        return self.folder / "trained.jsonl"

    @property
    def watch(self) -> Path:
        """The folder in which the run's processes say what they wait for."""
        return self.folder / "watch"

    @property
    def stop(self) -> Path:
        """The file that asks the run to stop; see `rlenv.runs.folder.STOP`."""
        return self.folder / STOP

    def save(self) -> None:
        """Write run.json, whole or not at all."""
        kind, specs = "eval" if self.validation_only else "train", self.specs
        self.write(kind=kind, specs=[spec.source for spec in specs], environments=[spec.id for spec in specs])

    @classmethod
    def load(cls, folder: Path) -> Run:
        """As any run's."""
        fields = cls.read(folder)
        return cls(**{**fields, "specs": tuple(SpecEntry(**entry) for entry in fields["specs"])})


def forget_after(run: Run, step: int) -> None:
    """Remove the figures of what is done anew, and checkpoints of later steps, which were cut while they were written.

    Kept episodes stay; `rlenv.runs.reader` leaves out those that do not count.
    """
    cut_after(run.trained, step)
    for number, path in step_folders(run.checkpoints)[0].items():
        if number > step:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait_s: float = 60.0) -> Iterator[int]:
    """Hold the run's folder for this process; gives the lock's file descriptor, for whoever holds it on.

    A run whose driver was killed is ended by its guard, which keeps the lock until that is done; so this waits.

    Raises:
        UsageError: another process trains in this folder.
    """
    descriptor = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UsageError(
                        f"another process trains in {folder}", hint="wait for it, or end it first"
                    ) from None
                time.sleep(0.2)
            except OSError:  # a file system without locks: nothing can be said of other processes
                break
        yield descriptor
    finally:
        os.close(descriptor)


_WEIGHTS: Final = (".safetensors", ".bin", ".json")
_PLACES: Final = tuple("name _target_ spec spec_set seed record_dir watch_dir keep_gb remote".split())
"""Of an agent loop's entry: what stands in other sections, or makes no episode."""
_LABELS: Final = ("ray_kwargs.", "hydra.", "trainer.experiment_name", "trainer.project_name")
"""Overrides that say where a run runs and what it is called."""
_MOST_NAMED: Final = 6


def attempt_locks(run: Run, config: Mapping[str, Any], *, from_step: int, say: Say | None = None) -> dict[str, Lock]:
    """The locks of the attempt that begins at a step, by environment as its episodes name it (NAME-vVERSION).

    Args:
        run: in whose folder the agent loops' YAML is, and the checkpoint of `from_step`.
        config: veRL's configuration, as `run.overrides` resolve.

    Raises:
        UsageError: a split is missing.
        SpecError: a spec's own faults.
    """
    splits = [run.validation_split] if run.validation_only else [run.train_split, run.validation_split]
    loops = yaml.safe_load((run.folder / "agent_loop.yaml").read_text(encoding="utf-8"))
    policy = _policy_facts(run, from_step, say)
    common = _trainer_facts(run, config)
    tokenizer = _load_tokenizer(run.model)
    locks = {}
    for entry, loop in zip(run.specs, loops, strict=True):
        environment = load(entry.source, set=dict(entry.set) or None)
        own = {"weight": entry.weight, "loop": {key: value for key, value in loop.items() if key not in _PLACES}}
        locks[f"{environment.spec.name}-v{environment.spec.version}"] = lock_of(
            environment,
            splits=list(dict.fromkeys(splits)),
            policy=policy,
            seed=run.seed,
            seeds=STEP_SEEDS,
            k=int(config["actor_rollout_ref"]["rollout"]["n"]),
            tokenizer=tokenizer,
            trainer={**common, **own},
            say=say,
        )
    return locks


def _policy_facts(run: Run, from_step: int, say: Say | None) -> dict[str, Any]:
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


def _load_tokenizer(model: str) -> Any:
    try:
        return load_tokenizer(model)
    except RlenvError:  # one that only transformers can load; what stands in its folder counts with the weights
        return None


def _trainer_facts(run: Run, config: Mapping[str, Any]) -> dict[str, Any]:
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
        "config": digest_of(_without_places(content, run)),
        "overrides": _without_places(overrides, run),
    }


def _without_places(value: Any, run: Run) -> Any:
    """A JSON value with `RUN` for the run's folder and `MODEL` for its model's, wherever they stand."""
    text = json.dumps(value, default=str)
    for name, place in (("RUN", str(run.folder)), ("MODEL", run.model)):
        if Path(place).is_absolute():
            written = re.escape(json.dumps(place)[1:-1])
            text = re.sub(written + r"""(?=[/"',\]}\\\s]|$)""", name, text)
    return json.loads(text)


def changed_lines(run: Run) -> Iterator[str]:
    """The changes of the run's last attempt against the one before, a line for each of its specs.

    That it goes on from another step is no line. Nothing is said where the attempt before has no lock.
    """
    if len(run.attempts) < 2:
        return
    before, last = run.attempts[-2:]
    for old, (environment, new) in zip(before.locks.values(), last.locks.items(), strict=False):
        files = [run.folder / FOLDER / f"{one}.json" for one in (old, new)]
        if names := _differing_keys(*files):
            shown = ", ".join(names[:_MOST_NAMED])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            yield f"{environment} goes on with another {shown}{more}: rlenv runs lock diff {files[0]} {files[1]}"


def _differing_keys(old: Path, new: Path) -> list[str]:
    if old == new:
        return []
    try:
        found = diff(read_lock(old), read_lock(new))
    except UsageError:
        return ["lock, which cannot be read"]
    return [f"{one.section}.{one.key}" for one in found if (one.section, one.key) not in _OF_A_CHECKPOINT]


_OF_A_CHECKPOINT: Final = (("policy", "run"), ("policy", "step"))
