"""A tokenizer and a chat template for tests that need ids but no download; needs `tokenizers`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["CHAT_TEMPLATE", "small_tokenizer"]

_ADDED: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_SPLIT: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEXT: Final = (
    "the quick brown fox <tool_call> jumps over\n\n the lazy dog </tool_response> {'name': 'add', \"arguments\": {}}"
    " <|im_start|>assistant\nuser\nsystem tool_response\n\n\n  \n\t naïve 世界 12345 67890 look add result answer is"
)


@cache
def small_tokenizer() -> Any:
    """A byte-level `tokenizers.Tokenizer` of 606 ids with Qwen's control tokens, trained on the spot; one a process."""
    import tokenizers  # type: ignore[import-untyped]

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_SPLIT), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT] * 40, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(token, special=False, normalized=False) for token in _ADDED])
    return tokenizer


CHAT_TEMPLATE: Final = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
