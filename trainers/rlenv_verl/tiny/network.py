"""The tiny policy's tokenizer and network: Qwen3's architecture at about half a million parameters."""

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

__all__ = ["CONTROL_TOKENS", "MARKER_TOKENS", "build_tokenizer", "chat_template", "new_model", "save_model"]

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
