"""Checksums of all tensors of a model, by the names that vLLM gives them. Imported by a run's processes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

RECORDS = "RLENV_TEST_RECORDS"
# vLLM keeps these behind each other in one tensor, in this order.
_FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
_FUSED["up_proj"] = "gate_up_proj"


def fused(name: str) -> str:
    """The tensor of vLLM's that holds the one of transformers called `name`."""
    parts = name.replace(".base_layer.", ".").split(".")
    return ".".join(_FUSED.get(part, part) for part in parts)


def checksums(named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The SHA-256 of every tensor's bytes; those that vLLM fuses count as one, in the order in which they come."""
    sums: dict[str, Any] = {}
    for name, tensor in named:
        add(sums, name, tensor)
    return {name: found.hexdigest() for name, found in sums.items()}


def add(sums: dict[str, Any], name: str, tensor: Any) -> None:
    import torch

    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    data = whole.detach().to("cpu", torch.float32).contiguous()
    sums.setdefault(fused(name), hashlib.sha256()).update(data.numpy().tobytes())


def write(file: str, entry: dict[str, Any]) -> None:
    """Appends a line to a file of the folder of records."""
    with (Path(os.environ[RECORDS]) / file).open("ab") as opened:
        opened.write(orjson.dumps(entry, option=orjson.OPT_NON_STR_KEYS) + b"\n")
