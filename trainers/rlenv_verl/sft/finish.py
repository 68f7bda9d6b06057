"""What is left of a supervised run: the policy, its figures and its curve."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlenv.collect import Manifest
from rlenv_verl.export.checkpoints import versions
from rlenv_verl.run.launch import STATES, Ending
from rlenv_verl.run.report import plot_png, plot_text
from rlenv_verl.sft.run import SftRun, checkpoints_of, losses, read_steps, without_attempts

__all__ = ["Finished", "finish"]

_PACKAGES = ("rlenv", "verl", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Finished:
    """`curve` is the loss as text; `lines` say what is where; `trained` is the policy's folder, None without one."""

    curve: str
    lines: tuple[str, ...]
    trained: Path | None


def finish(run: SftRun, ending: Ending) -> Finished:
    """Exports the last whole checkpoint to `trained/`, writes summary.json and curve.png, and the end into run.json."""
    steps = read_steps(run.metrics)
    curves = losses(steps)
    trained, step = _export(run)
    tokens = sum(one.tokens or 0 for one in steps)
    summary = {
        **without_attempts(dataclasses.asdict(run)),
        "folder": str(run.folder),
        "how": ending.how,
        "seconds": round(ending.seconds, 1),
        "steps_done": steps[-1].number if steps else 0,
        "tokens": tokens,
        "loss_first": steps[0].loss if steps else None,
        "loss_last": steps[-1].loss if steps else None,
        "val_loss": next((one.val for one in reversed(steps) if one.val is not None), None),
        "trained": None if trained is None else str(trained),
        "trained_step": step,
        "versions": versions(*_PACKAGES),
    }
    dataclasses.replace(run, state=STATES[ending.how], ended=time.time()).save()
    (run.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    lines = [f"{ending.seconds:.0f} s in all; summary.json, metrics.jsonl and verl.log in {run.folder}"]
    if steps:
        plot_png(curves, run.folder / "curve.png", title=f"{run.folder.name}: loss of the trained tokens")
        lines.insert(
            0, f"loss {steps[0].loss:.4f} at step {steps[0].number}, {steps[-1].loss:.4f} at {steps[-1].number}"
        )
    if trained is not None:
        lines.append(f"trained policy: {trained}")
        lines.append(f"go on with: rlenv train SPEC --model {trained}")
    return Finished(plot_text(curves) if steps else "", tuple(lines), trained)


def _export(run: SftRun) -> tuple[Path | None, int | None]:
    """The policy of the newest whole checkpoint, as a folder of its own."""
    newest = max(checkpoints_of(run.checkpoints), key=lambda one: one.step, default=None)
    if newest is None:
        return None, None
    from rlenv_verl.export.export import Exported, write_policy  # torch and transformers: only where there is something

    def provenance(exported: Exported) -> Mapping[str, Any]:
        return {
            "run": run.folder.name,
            "kind": "sft",
            "step": newest.step,
            "weights": exported.source,
            "dtype": exported.dtype,
            "is_adapter": False,
            "lora": exported.checkpoint.lora,
            "base_model": run.model,
            "seed": run.seed,
            "data": [dataclasses.asdict(Manifest.load(Path(folder))) for folder in run.data],
            "exported_with": versions(*_PACKAGES),
        }

    target = run.folder / "trained"
    shutil.rmtree(target, ignore_errors=True)
    write_policy(newest, target, base=run.model, provenance=provenance)
    if not run.keeps:
        shutil.rmtree(run.checkpoints)  # the same weights once more; nobody asked to go on from them
    return target, newest.step
