"""The tokenizer of a GGUF file whose vocabulary is byte-level BPE, as the file itself describes it.

transformers (5.10, `integrations/ggml.py`) makes tokenizers of GGUF files too. Expected: the file's control tokens, its
end mark and the way its text is split. Actual: `GGUFLlamaConverter` gives the end mark's id as the beginning's and the
other way round; `GGUFQwen2Converter` adds three tokens by name and none of the others, so that `<tool_call>` is no
token; both split text as GPT-2 or Qwen2 do, whatever `tokenizer.ggml.pre` says. Can go when those read the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

__all__ = ["SPLITS", "byte_level"]

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SPLITS: Final[dict[str, str]] = {
    # What `tokenizer.ggml.pre` names, after llama.cpp's src/llama-vocab.cpp: "gpt2" is GPT-2's pattern, "digits" the
    # same behind a split into single digits, anything else a pattern of its own.
    "default": "gpt2",
    "gpt-2": "gpt2",
    "phi-2": "gpt2",
    "mpt": "gpt2",
    "olmo": "gpt2",
    "jais": "gpt2",
    "smollm": "digits",
    "starcoder": "digits",
    "refact": "digits",
    "command-r": "digits",
    "codeshell": "digits",
    "exaone": "digits",
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "hunyuan": _QWEN2,
    "megrez": _QWEN2,
}
_COMPOSED: Final = ("qwen2", "deepseek-r1-qwen", "command-r")
"""Those that learned text in Unicode's form NFC."""
_WHOLE: Final = ("llama-bpe", "llama3", "llama-v3", "falcon3")
"""Those in which a piece that is a token is that token, whatever its merges would make of it."""


def byte_level(tokens: Sequence[str], types: Sequence[int], merges: Sequence[str], pre: str) -> Any:
    """The `tokenizers.Tokenizer` of a byte-level BPE vocabulary.

    Args:
        tokens: the vocabulary, an id a place.
        types: of each token (`tokenizer.ggml.token_type`): 3 is a control token, 4 one that was added by hand.
        merges: pairs as `left right`, in their order.
        pre: how text is split; one of `SPLITS`.
    """
    from tokenizers import (  # type: ignore[import-untyped]
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in _WHOLE))
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    split = SPLITS[pre]
    parts: list[Any] = []
    if split == "digits":
        parts.append(pre_tokenizers.Digits(individual_digits=True))
    elif split != "gpt2":
        parts.append(pre_tokenizers.Split(Regex(split), "isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt2", "digits")))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts) if len(parts) > 1 else parts[0]
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    # At once: tokens that are added later stand behind all others.
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=kind == _CONTROL) for token, kind in added])
    return tokenizer
