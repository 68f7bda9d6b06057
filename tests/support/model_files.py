"""Models in small folders: real tokenizers and configurations, weights of a few numbers, made on the spot."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer

IDS = max(small_tokenizer().get_vocab(with_added_tokens=True).values()) + 1
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "float32",
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": IDS,
    "max_position_embeddings": 4096,
}
TOKENIZER: dict[str, Any] = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def tensors(*shape: int, dtype: str = "F32", name: str = "model.embed_tokens.weight") -> bytes:
    """A file of safetensors with one tensor of zeros."""
    size = 4
    for count in shape:
        size *= count
    header = json.dumps({name: {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model's folder that lacks nothing; keys of its files that are None are left out."""

    def write(
        name: str = "model",
        *,
        config: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        rows: int = IDS,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, usual, more in (
            ("config.json", CONFIG, config),
            ("tokenizer_config.json", TOKENIZER, tokenizer),
            ("generation_config.json", {"eos_token_id": [2]}, generation),
        ):
            found = {key: value for key, value in {**usual, **(more or {})}.items() if value is not None}
            (folder / file).write_text(json.dumps(found))
        (folder / "tokenizer.json").write_text(small_tokenizer().to_str())
        (folder / "model.safetensors").write_bytes(tensors(rows, 4))
        return folder

    return write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, one for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rlenv" / "models"
