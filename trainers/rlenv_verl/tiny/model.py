"""The tiny policy's network: Qwen3's architecture at about half a million parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["new_model", "save_model"]


def new_model(tokenizer: Any, *, hidden: int = 128, layers: int = 3, heads: int = 4) -> Any:
    """A randomly initialised causal language model for `tokenizer`, in float32.

    The caller seeds torch; the same seed gives the same weights.
    """
    import transformers

    library: Any = transformers  # its classes are partly annotated
    config = library.Qwen3Config(
        # A multiple of 64 keeps the output projection aligned; the ids above len(tokenizer) are never produced.
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=4096,
        # Episodes are about a hundred tokens: a small base resolves neighbouring positions, which copying needs.
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        # transformers' default of 0.02 is meant for wide models; at this width it delays learning to copy.
        initializer_range=0.08,
    )
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float()
    model.config.architectures = [type(model).__name__]
    return model


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write weights, configuration and tokenizer to `folder`, as `from_pretrained` and veRL read them."""
    import transformers
    from transformers.utils import logging

    library: Any = transformers
    silence: Any = logging.disable_progress_bar
    silence()
    model.save_pretrained(folder)
    generation = library.GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
