"""What the files of a model's weights hold, from their headers alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Weights", "weights_in"]

_HEADER_MOST: Final = 100_000_000  # safetensors refuses a longer header
_TABLES: Final = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
)
_POINTER: Final = b"version https://git-lfs"
_INDEXES: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE: Final = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, slots=True)
class Weights:
    """What was found. `fault` says what is wrong with the files, "" where nothing is.

    `rows` is how many ids the embeddings have, None where the headers do not tell. `dtypes` are those of the tensors
    as safetensors names them.
    """

    fault: str = ""
    rows: int | None = None
    dtypes: frozenset[str] = field(default_factory=frozenset)


def weights_in(folder: Path) -> Weights:
    """What the weights in a folder of transformers are; no tensor is read."""
    names, fault = _names(folder)
    if fault:
        return Weights(fault)
    rows: int | None = None
    dtypes: set[str] = set()
    for name in names:
        header, fault = _header(folder / name)
        if fault:
            return Weights(fault)
        for tensor, entry in header.items():
            shape = entry.get("shape")
            if tensor.endswith(_TABLES) and isinstance(shape, list) and len(shape) == 2:
                rows = int(shape[0])
            dtypes.add(str(entry.get("dtype")))
    return Weights("", rows, frozenset(dtypes))


def _names(folder: Path) -> tuple[list[str], str]:
    """The files that hold weights, as transformers chooses them, and what is wrong."""
    for single, index in zip(_SINGLE, _INDEXES, strict=True):
        if _is_there(folder / single):
            return [single], ""
        if (folder / index).is_file():
            try:
                shards = sorted(set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, LookupError, AttributeError, TypeError) as error:
                return [], f"{index} cannot be read: {error}"
            missing = [shard for shard in shards if not _is_there(folder / shard)]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                return [], f"{missing[0]}{more} of the {len(shards)} files in {index} are not there"
            return shards, ""
        if (folder / single).is_symlink():
            return [], f"{single} is a link to {(folder / single).readlink()}, which is not there"
    other = sorted(path.name for path in folder.glob("*.safetensors"))
    hint = f" (there is {other[0]}, which no index names)" if other else ""
    return [], f"there is neither {_SINGLE[0]} nor {_INDEXES[0]}{hint}"


def _is_there(path: Path) -> bool:
    return path.is_file()


def _header(path: Path) -> tuple[Mapping[str, Any], str]:
    """The header of a file of safetensors, {} of another kind, and what is wrong with the file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            if start.startswith(_POINTER):
                return {}, f"{path.name} is a pointer of Git LFS and holds no weights; git lfs pull fetches them"
            if path.suffix != ".safetensors":
                return {}, "" if size else f"{path.name} is empty"
            length = int.from_bytes(start[:8], "little")
            if len(start) < 8 or not 0 < length <= min(_HEADER_MOST, size - 8):
                return {}, f"{path.name} is cut or no file of safetensors"
            file.seek(8)
            header = json.loads(file.read(length))
    except (OSError, ValueError) as error:
        return {}, f"{path.name} cannot be read: {str(error)[:100]}"
    if not isinstance(header, dict):
        return {}, f"{path.name} is no file of safetensors"
    header.pop("__metadata__", None)
    ends = [
        entry["data_offsets"][1] for entry in header.values() if isinstance(entry, dict) and "data_offsets" in entry
    ]
    whole = 8 + length + max(ends, default=0)
    if whole > size:
        return {}, f"{path.name} is cut: it has {size:,} of {whole:,} bytes"
    return {name: entry for name, entry in header.items() if isinstance(entry, dict)}, ""
