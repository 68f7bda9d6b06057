"""Facts of models that people train, so that their memory is known without a network: from their `config.json`.

Source: `config.json` in the repository of that name on the Hugging Face hub; a test counts each one's parameters
against transformers' own classes. Variants of one size (base, instruct) differ in nothing that is counted here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["KNOWN", "known_config"]

_NAMES: Final = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "max_position_embeddings",
)
# layers, width, inner width, heads, key-value heads, head size, vocabulary, tied output layer, positions
_ROWS: Final[Mapping[str, tuple[Any, ...]]] = {
    "Qwen/Qwen3-0.6B": ("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, True, 40960),
    "Qwen/Qwen3-1.7B": ("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, True, 40960),
    "Qwen/Qwen3-4B": ("qwen3", 36, 2560, 9728, 32, 8, 128, 151936, True, 40960),
    "Qwen/Qwen3-8B": ("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, False, 40960),
    "Qwen/Qwen3-14B": ("qwen3", 40, 5120, 17408, 40, 8, 128, 151936, False, 40960),
    "Qwen/Qwen3-32B": ("qwen3", 64, 5120, 25600, 64, 8, 128, 151936, False, 40960),
    "Qwen/Qwen2.5-0.5B": ("qwen2", 24, 896, 4864, 14, 2, 64, 151936, True, 32768),
    "Qwen/Qwen2.5-1.5B": ("qwen2", 28, 1536, 8960, 12, 2, 128, 151936, True, 32768),
    "Qwen/Qwen2.5-3B": ("qwen2", 36, 2048, 11008, 16, 2, 128, 151936, True, 32768),
    "Qwen/Qwen2.5-7B": ("qwen2", 28, 3584, 18944, 28, 4, 128, 152064, False, 32768),
    "Qwen/Qwen2.5-14B": ("qwen2", 48, 5120, 13824, 40, 8, 128, 152064, False, 32768),
    "Qwen/Qwen2.5-32B": ("qwen2", 64, 5120, 27648, 40, 8, 128, 152064, False, 32768),
    "meta-llama/Llama-3.2-1B": ("llama", 16, 2048, 8192, 32, 8, 64, 128256, True, 131072),
    "meta-llama/Llama-3.2-3B": ("llama", 28, 3072, 8192, 24, 8, 128, 128256, True, 131072),
    "meta-llama/Llama-3.1-8B": ("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 131072),
    "HuggingFaceTB/SmolLM2-135M": ("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 8192),
}

KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {
    name: dict(zip(_NAMES, row, strict=True)) for name, row in _ROWS.items()
}
"""By the model's name on the hub, the keys of its `config.json` that memory depends on."""

_VARIANT: Final = re.compile(r"-(base|instruct|it|chat|instruct-2507|thinking-2507|bf16)$")


def known_config(name: str) -> Mapping[str, Any] | None:
    """The facts of the model of that name, or of a variant of it (`-Base`, `-Instruct`); None where it is not here."""
    wanted = _VARIANT.sub("", name.rsplit("/", 1)[-1].lower())
    return next((facts for known, facts in KNOWN.items() if known.rsplit("/", 1)[-1].lower() == wanted), None)
