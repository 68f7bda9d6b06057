"""A tokenizer for the specs of a run: byte-level BPE whose merges cover the constant parts of their conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tokenizers import (  # type: ignore[import-untyped]
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

__all__ = ["CONTROL_TOKENS", "MARKER_TOKENS", "build_tokenizer", "chat_template"]

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (PAD, START, END)
MARKER_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# A word in title case. It stands alone, so that a name is the same tokens wherever it stands and can be copied.
_NAME = "[A-Z][a-z]+"
_Conversation = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
_CONTROLS = re.compile("|".join(re.escape(token) for token in CONTROL_TOKENS + MARKER_TOKENS))


def chat_template() -> str:
    """The chat template of the tiny policy: Qwen3's layout with a short tools block."""
    return (resources.files(__package__) / "chat_template.jinja").read_text(encoding="utf-8")


def build_tokenizer(
    conversations: Sequence[_Conversation],
    folder: Path,
    *,
    markers: Sequence[str] = (),
    vocab_size: int = 2048,
) -> Any:
    """Train a tokenizer on `conversations` and save it to `folder`.

    Digits stand alone, so that numbers are copied digit by digit, and so do words in title case, so that names are
    copied by the same tokens everywhere; everything else may merge across words, so that whatever every conversation
    repeats (the tools block, the frame of a call) is a handful of tokens.

    Args:
        conversations: messages and the tool schemas that their prompt shows, as chat templates take them.
        folder: where the tokenizer's files go.
        markers: further strings that are one token each, such as an answer tag.
        vocab_size: at most this many tokens; as many as the merges need.

    Returns:
        The tokenizer as transformers loads it from `folder`.
    """
    import transformers

    fast_tokenizer: Any = transformers.PreTrainedTokenizerFast

    bpe = _untrained()
    texts = _texts(fast_tokenizer(tokenizer_object=bpe), conversations, markers)
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            # Only what repeats everywhere is worth a token; a merge seen in few episodes would split their numbers'
            # surroundings in ways the rest never shows.
            min_frequency=max(2, len(conversations) // 100),
            special_tokens=list(CONTROL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*MARKER_TOKENS, *markers)])
    tokenizer = fast_tokenizer(tokenizer_object=bpe, eos_token=END, pad_token=PAD, model_max_length=4096)
    tokenizer.chat_template = chat_template()
    tokenizer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def _untrained() -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(_NAME), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    return bpe


def _texts(fast: Any, conversations: Sequence[_Conversation], markers: Sequence[str]) -> list[str]:
    """What the conversations read between the tokens that stand alone."""
    fast.chat_template = chat_template()
    split = re.compile("|".join([_CONTROLS.pattern, *(re.escape(marker) for marker in markers)]))
    texts: list[str] = []
    for messages, tools in conversations:
        rendered = fast.apply_chat_template(
            [dict(message) for message in messages], tools=[dict(tool) for tool in tools] or None, tokenize=False
        )
        texts.extend(piece for piece in split.split(str(rendered)) if piece)
    return texts
