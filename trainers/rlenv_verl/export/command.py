"""What `rlenv runs export-policy` does and says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv_verl.export.check import agreement
from rlenv_verl.export.checkpoints import run_config
from rlenv_verl.export.export import PROVENANCE, export_policy

__all__ = ["export", "text"]


def export(
    run: Path,
    target: Path | None,
    *,
    step: int | None,
    best: bool,
    dtype: str | None,
    adapter: bool,
    check: bool,
) -> dict[str, Any]:
    """Export as `export_policy` does; returns the provenance, `folder`, and `check` or None."""
    exported = export_policy(run, target, step=step, best=best, dtype=dtype, adapter=adapter)
    report: dict[str, Any] = json.loads((exported.folder / PROVENANCE).read_bytes())
    report |= {"folder": str(exported.folder), "parameters": exported.parameters, "check": None}
    if check:
        found = agreement(exported, base=run_config(run)["actor_rollout_ref"]["model"]["path"])
        report["check"] = {**dataclasses.asdict(found), "holds": found.holds}
    return report


def text(report: Mapping[str, Any]) -> str:
    """A report for people."""
    rate = report["held_out_success"]
    lines = [
        f"policy      {report['folder']}",
        f"step        {report['step']}" + (f", held-out success {rate:.3f}" if rate is not None else ""),
        f"weights     {report['parameters']:,} parameters, {report['dtype']}, from {report['weights']}",
    ]
    if report["is_adapter"]:
        lines.append(f"base model  {report['base_model']}")
    check = report["check"]
    if check is not None:
        verdict = "the same policy" if check["holds"] else "NOT the checkpoint's policy"
        lines.append(
            f"check       {verdict}: logits differ by {check['difference']:.2g} at most (standard deviation "
            f"{check['spread']:.2g}), the same choice at {check['same_choice']:.1%} of {check['tokens']} positions, "
            f"{'the same' if check['same_tokenizer'] else 'ANOTHER'} tokenizer"
        )
    if report["is_adapter"]:
        lines.append(
            f"vLLM        vllm serve {report['base_model']} --enable-lora --lora-modules "
            f"policy={report['folder']} --max-lora-rank {report['lora']['r']}"
        )
    else:
        lines.append(f"try it      rlenv eval SPEC --policy hf:{report['folder']}")
        lines.append(f"vLLM        vllm serve {report['folder']}")
    return "\n".join(lines) + "\n"
