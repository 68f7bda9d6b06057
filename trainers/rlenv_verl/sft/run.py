"""A supervised run's folder: what starts it again, what its attempts logged, and its checkpoints.

run.json  config.yaml  overrides.txt  metrics.jsonl  verl.log  checkpoints/  trained/  summary.json  curve.png
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.errors import UsageError
from rlenv.runs.command import kept_command
from rlenv.runs.folder import State
from rlenv_verl.export.checkpoints import Checkpoint
from rlenv_verl.run.attempts import Attempt, attempts_of, begin_attempt, write_run

__all__ = ["SftRun", "Step", "begun", "checkpoints_of", "read_steps"]

_VERSION = 2
_READ = (1, 2)
_LATEST = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True)
class SftRun:
    """Everything that starts a run again. Paths are absolute.

    `steps_an_epoch` are the steps that the rows give, `skipped` the rows that were too long. `processes` are those of
    one machine, `machines` how many there are. `keeps` says whether checkpoints were asked for, to resume from.
    `specs` and `environments` are those that the data's episodes were played in. `command` is the command line of the
    last attempt, `state` what has become of that, and `ended` when, in seconds since the epoch (0.0: it has not).
    """

    folder: Path
    preset: str
    model: str
    data: tuple[str, ...]
    val: tuple[str, ...]
    rows: int
    skipped: int
    batch: int
    steps: int
    steps_an_epoch: int
    seed: int
    lora: int | None
    keeps: bool
    time_limit_s: float | None
    processes: int
    machines: int
    cwd: str
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    attempts: tuple[Attempt, ...] = ()
    specs: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    state: State = "stopped"
    ended: float = 0.0

    @property
    def metrics(self) -> Path:
        """The figures of all attempts, a line a step and one a validation."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """veRL's checkpoints, one folder a step."""
        return self.folder / "checkpoints"

    def save(self) -> None:
        """Write run.json, whole or not at all: what any run's says (`RunInfo`), and this run's own."""
        own = dataclasses.asdict(self)
        # Any run's `environment` is what was played in; the variables have stood under that name here.
        variables = own.pop("environment")
        common = {
            "kind": "sft",
            "command": list(kept_command(self.command)),
            "spec": ", ".join(self.specs),
            "environment": ", ".join(self.environments),
            "policy": self.model,
            "facts": {name: own[name] for name in _FACTS},
        }
        write_run(self, {"version": _VERSION, **own, **common, "variables": variables})

    @classmethod
    def load(cls, folder: Path) -> SftRun:
        """The run that a folder holds.

        Raises:
            UsageError: it holds none of `rlenv sft`, or one that another version wrote.
        """
        path = folder.resolve() / "run.json"
        fields = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if fields.pop("kind", None) != "sft":
            raise UsageError(f"{folder} holds no run of `rlenv sft`", hint="give the folder that -o named")
        version = fields.pop("version", None)
        if version is None and "format" in fields:
            raise UsageError(f"the run in {folder} ended before it was prepared", hint="start it again")
        if version not in _READ:
            raise UsageError(f"{path} was written by another version of rlenv", hint="start a new run")
        if version > 1:
            fields["environment"] = fields.pop("variables")
            for name in ("spec", "policy", "facts"):
                fields.pop(name)
        for name in ("data", "val", "overrides", "specs", "environments", "command"):
            fields[name] = tuple(fields.get(name, ()))
        fields["attempts"] = attempts_of(fields["attempts"])
        return cls(folder=folder.resolve(), **fields)


_FACTS = ("preset", "rows", "batch", "steps", "seed", "lora")
"""Of a run's own fields, those that say more of it to whoever looks at runs."""


def begun(run: SftRun, from_step: int) -> SftRun:
    """The run with one more attempt that is running, kept in run.json."""
    return begin_attempt(dataclasses.replace(run, state="running", ended=0.0), from_step)


@dataclass(frozen=True, slots=True)
class Step:
    """The figures of one optimiser step: the mean loss of its trained tokens, in nats, before the step was taken.

    `val` is the held-out loss behind it, None where it was not measured. `tokens` are all of the step's rows. `lr` is
    the rate of the next step.
    """

    number: int
    loss: float
    grad_norm: float | None
    lr: float | None
    tokens: int | None
    val: float | None = None


def read_steps(path: Path) -> list[Step]:
    """The steps in a file of metrics, without the rest of a line that is being written."""
    found: dict[int, Step] = {}
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        entry = json.loads(line)
        number, values = int(entry["step"]), entry["data"]
        if "train/loss" in values:
            tokens = values.get("train/global_tokens")
            found[number] = Step(
                number,
                float(values["train/loss"]),
                values.get("train/grad_norm"),
                values.get("train/lr"),
                None if tokens is None else int(tokens),
            )
        if "val/loss" in values and number in found:
            found[number] = dataclasses.replace(found[number], val=float(values["val/loss"]))
    return [found[number] for number in sorted(found)]


def checkpoints_of(folder: Path) -> Iterator[Checkpoint]:
    """The whole checkpoints in a folder, the oldest first; veRL names the last that is whole in a file of its own."""
    try:
        newest = int((folder / _LATEST).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return
    steps = sorted(int(path.name.removeprefix("global_step_")) for path in folder.glob("global_step_*"))
    for step in steps:
        entry = Checkpoint(step, folder / f"global_step_{step}")
        if step <= newest and (entry.shards or entry.has_whole_weights):
            yield entry


def losses(steps: Sequence[Step]) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run."""
    curves = {"training loss": [(step.number, step.loss) for step in steps]}
    if held_out := [(step.number, step.val) for step in steps if step.val is not None]:
        curves["held-out loss"] = held_out
    return curves


def without_attempts(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields for its summary."""
    left_out = ("attempts", "overrides", "environment", "command", "state", "ended")
    return {key: value for key, value in values.items() if key not in left_out}
