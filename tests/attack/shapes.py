"""Tokenizers of the shapes that families publish, made on the spot, and chat templates that do odd things."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="the extra tokens is not installed")

from rlenv.testing.tokens import CHAT_TEMPLATE  # noqa: E402 (needs tokenizers)

MARKS: Final = (
    "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>",
    "</tool_response>", "[INST]", "[/INST]", "<s>", "</s>", "<｜end▁of▁sentence｜>", '<|"|>', "sop", "◁think▷",
)  # fmt: skip
_TEXT: Final = (
    "the quick brown fox jumps over the lazy dog {'name': 'add', \"x\": 1}\n\n user assistant system tool < >"
)


def _made(pre: Any, decoder: Any, *, normalizer: Any = None, flags: dict[str, Any] | None = None) -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = pre, decoder
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([_TEXT] * 20, trainer)
    if normalizer is not None:
        made.normalizer = normalizer
    for mark in MARKS:
        options = {"normalized": False, **(flags or {})} if mark not in ("<|im_start|>", "<|im_end|>") else {}
        made.add_tokens([tokenizers.AddedToken(mark, special=mark.startswith("<|"), **options)])
    return made


def _sentence_piece(scheme: str) -> Any:
    """Words with a sign for the space before them, and bytes for what is not known, as Llama 2's and Mistral's."""
    learned = tokenizers.Tokenizer(tokenizers.models.BPE())
    learned.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    learned.train_from_iterator([_TEXT] * 20, tokenizers.trainers.BpeTrainer(vocab_size=200, show_progress=False))
    model = json.loads(learned.to_str())["model"]
    vocab = {f"<0x{number:02X}>": number for number in range(256)}
    vocab |= {token: 256 + number for token, number in model["vocab"].items()}
    merges = [tuple(pair) for pair in model["merges"]]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    made.add_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return made


@cache
def tokenizer(shape: str) -> Any:
    """The tokenizer of one of `SHAPES`."""
    pre, decoder = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    folding = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFKC(), tokenizers.normalizers.Lowercase()])
    if shape == "byte level":
        return _made(pre, decoder)
    if shape == "composing":
        return _made(pre, decoder, normalizer=tokenizers.normalizers.NFC())
    if shape == "folding, tokens too":
        return _made(pre, decoder, normalizer=folding, flags={"normalized": True})
    if shape == "single words":
        return _made(pre, decoder, flags={"single_word": True})
    return _sentence_piece("never")


SHAPES: Final = ("byte level", "composing", "folding, tokens too", "single words", "pieces and bytes")

_USER: Final = "message.content + '<|im_end|>\\n' }}\n    {%- elif message.role == 'assistant'"
TEMPLATES: Final = {
    "as it is": CHAT_TEMPLATE,
    "builds tags of names": CHAT_TEMPLATE.replace(
        "{{- tool | tojson }}",
        "{{- '<' + tool.function.name + '>' }}{%- for key, value in tool.function.parameters.properties.items() %}"
        "{{- '<|' + key + '|>' + (value.description or '') + (value.enum | join('')) }}{%- endfor %}",
    ),
    "writes ASCII": CHAT_TEMPLATE.replace("tool | tojson", "tool | tojson(ensure_ascii=True)"),
    "takes escapes away": CHAT_TEMPLATE.replace(
        _USER,
        f"message.content | replace('&lt;', '<') | replace('ZZ', '') + {_USER.removeprefix('message.content + ')}",
    ),
    "looks into contents": CHAT_TEMPLATE.replace(
        _USER,
        "message.content.split('</think>')[-1] + ('!' if '<think>' in message.content else '') + "
        + _USER.removeprefix("message.content + "),
    ),
    "strips": CHAT_TEMPLATE.replace(_USER, f"message.content | trim + {_USER.removeprefix('message.content + ')}"),
}
