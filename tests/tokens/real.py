"""The tokenizers that the token tests run with: real ones where the data is there, a small one always."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TOKENIZERS, TEMPLATES = DATA / "tokenizers", DATA / "chat_templates"

ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = (
    "the quick brown fox <tool_call> jumps over\n\n the lazy dog </tool_response> {'name': 'add', \"arguments\": {}}"
    " <|im_start|>assistant\nuser\nsystem tool_response\n\n\n  \n\t naïve 世界 12345 67890 look add result answer is"
)


@cache
def small() -> Tokenizer:
    """A byte-level tokenizer with Qwen's control tokens, trained on the spot."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 40, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


@cache
def qwen(family: str) -> Tokenizer:
    """The tokenizer of Qwen3 or Qwen2.5; skips the test where the data is not there."""
    if not TOKENIZERS.is_dir():
        pytest.skip(f"{TOKENIZERS} is not there: it holds the real tokenizers")
    with gzip.open(TOKENIZERS / "qwen3" / "tokenizer.json.gz", "rt", encoding="utf8") as file:
        data = json.load(file)
    if family == "qwen2_5":
        model = data["model"]
        data = json.loads((TOKENIZERS / "qwen2_5" / "tokenizer_without_model.json").read_text("utf8"))
        data["model"] = model
    return Tokenizer.from_str(json.dumps(data, ensure_ascii=False))


def template(family: str) -> str:
    """The chat template of a family; skips the test where the data is not there."""
    path = TEMPLATES / f"{family}.jinja"
    if not path.is_file():
        pytest.skip(f"{path} is not there: it holds the family's chat template")
    return path.read_text("utf8")


SMALL_TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Tools:' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}{{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
