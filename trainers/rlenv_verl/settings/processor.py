"""Whether this machine's processor computes in bfloat16, asked before a run depends on it.

Some virtual machines announce AMX and trap its instructions: the first matrix product in bfloat16 then ends the process
with "Illegal instruction", in a worker of Ray's or vLLM's, minutes after the start and without a word of why. What is
announced says nothing, so it is tried, in a process of its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rlenv.preflight import Finding
from rlenv_verl.settings.verl_keys import value_at

__all__ = ["bf16_keys", "bf16_runs", "packing_findings", "processor_findings"]

# Sizes at which oneDNN takes its kernels for AMX, both directions.
_PROGRAM: Final = """
import torch
for rows, size in ((1, 64), (64, 576)):
    layer = torch.nn.Linear(size, size, dtype=torch.bfloat16)
    layer(torch.ones(rows, size, dtype=torch.bfloat16)).sum().backward()
"""
_ISA: Final = "ONEDNN_MAX_CPU_ISA"
_WITHOUT_AMX: Final = "AVX512_CORE_FP16"
_NAMES: Final = ("bf16", "bfloat16", "auto")
# A loaded machine takes half a minute to import torch.
_LIMIT_S: Final = 300.0


def bf16_runs(
    environment: Mapping[str, str] | None = None, *, program: str = _PROGRAM, keep: Path | None = None
) -> bool | None:
    """Whether a process with these variables computes in bfloat16; None where that could not be found out.

    Tried once for each start of the machine, kind of processor, torch and value of `ONEDNN_MAX_CPU_ISA`; the answer is
    kept in a file.

    Args:
        environment: the process's variables; this process's own by default.
        program: what is tried, as Python.
        keep: the file; `rlenv/bf16.json` in the user's cache by default.
    """
    variables = dict(os.environ if environment is None else environment)
    path = keep or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlenv" / "bf16.json"
    key = _machine(variables.get(_ISA, ""), program)
    known = _read(path)
    if key in known:
        return known[key]
    found = _tried(variables, program)
    if found is not None:
        _write(path, {**known, key: found})
    return found


def _tried(variables: Mapping[str, str], program: str) -> bool | None:
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**variables, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return True
    # Anything else (no torch, no memory) says nothing of the processor.
    return False if done.returncode == -signal.SIGILL else None


def _machine(isa: str, program: str) -> str:
    """What the answer holds for: a machine may be moved to another processor while it is down."""
    boot = cpu = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    told = "\n".join([boot, cpu or platform.processor(), torch, isa, program])
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, bool]:
    try:
        found = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): value for key, value in found.items() if isinstance(value, bool)}


def _write(path: Path, known: Mapping[str, bool]) -> None:
    """Whole or not at all; a cache that cannot be written is none."""
    draft = path.with_name(f"{path.name}.{uuid4().hex}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(known), encoding="ascii")
        os.replace(draft, path)


def bf16_keys(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys by which a run on CPUs computes in bfloat16, each with the value in float32; none on other devices."""
    if value_at(config, "trainer.device") != "cpu":
        return []
    return [*_of_the_trainer(config), *_of_the_rollout(config)]


def _of_the_trainer(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    actor = "actor_rollout_ref.actor"
    has_reference = value_at(config, f"{actor}.use_kl_loss") or value_at(config, "algorithm.use_kl_in_reward")
    has_critic = value_at(config, "algorithm.adv_estimator") == "gae" or value_at(config, "critic.enable")
    parts = {
        f"{actor}.fsdp_config": True,
        "actor_rollout_ref.ref.fsdp_config": bool(has_reference),
        "critic.fsdp": bool(has_critic),
    }
    for part, is_used in parts.items():
        own = value_at(config, part)
        if not is_used or not isinstance(own, Mapping):
            continue
        if str(own.get("model_dtype")) in _NAMES:
            yield f"{part}.model_dtype", "fp32"
        precision = own.get("mixed_precision")
        # Without a word of it veRL's engine takes bfloat16 (verl/workers/engine/fsdp/transformer_impl.py).
        if not isinstance(precision, Mapping):
            yield f"+{part}.mixed_precision.param_dtype", "fp32"
        elif str(precision.get("param_dtype", "bf16")) in _NAMES:
            yield f"{part}.mixed_precision.param_dtype", "fp32"


def _of_the_rollout(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rollout = value_at(config, "actor_rollout_ref.rollout") or {}
    # rlenv's own server computes in float32, whatever stands there.
    if rollout.get("name") in ("vllm", "sglang") and str(rollout.get("dtype")) in _NAMES:
        yield "actor_rollout_ref.rollout.dtype", "float32"


def processor_findings(
    config: Mapping[str, Any], environment: Mapping[str, str], *, keep: Path | None = None, program: str = _PROGRAM
) -> list[Finding]:
    """What this machine's processor makes of a run's bfloat16; nothing is tried where the run has none on a CPU.

    Args:
        config: veRL's configuration, resolved.
        environment: the variables of the run's processes.
        keep, program: as for `bf16_runs`.
    """
    keys = bf16_keys(config)
    if not keys:
        return []
    runs = bf16_runs(environment, keep=keep, program=program)
    if runs:
        return []
    named = ", ".join(key.lstrip("+") for key, _ in keys)
    fix = " ".join(f"{key}={value}" for key, value in keys)
    if runs is None:
        why = f"whether this processor computes in bfloat16 ({named}) could not be tried; float32 is sure: {fix}"
        return [Finding("unknown", why)]
    message = (
        f"bfloat16 ends with 'Illegal instruction' on this processor, which announces instructions that it traps, and"
        f" this run computes in it ({named}); take float32: {fix}"
    )
    if bf16_runs({**environment, _ISA: _WITHOUT_AMX}, keep=keep, program=program):
        message += f"; or export {_ISA}={_WITHOUT_AMX}, with which bfloat16 was tried and runs, slower than float32"
    return [Finding("error", message)]


_FLASH_ALONE: Final = ("qwen2_vl", "qwen2_5_vl")


def packing_findings(config: Mapping[str, Any]) -> list[Finding]:
    """A model that sees and whose packed rows veRL computes by flash-attention alone, on CPUs, which have none.

    Expected: `use_remove_padding` computes with `attn_implementation`, as it does for models of text. Actual (0.9.1):
    for these families it puts an attention of its own in place (verl/models/transformers/qwen2_vl.py), which ends in a
    NameError without flash-attn, in the first step. Remove when that asks for the implementation.
    """
    model = value_at(config, "actor_rollout_ref.model") or {}
    if value_at(config, "trainer.device") != "cpu" or not model.get("use_remove_padding"):
        return []
    try:
        kind = json.loads((Path(str(model.get("path"))) / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):
        return []
    if kind not in _FLASH_ALONE:
        return []
    message = f"veRL packs rows of {kind} by flash-attention alone, which a CPU has not: the first step would fail"
    return [Finding("error", f"{message}; set actor_rollout_ref.model.use_remove_padding=false")]
