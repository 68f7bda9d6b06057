"""The chat templates of many families over the small tokenizer."""

from __future__ import annotations

import re

from tokenizers import AddedToken, Tokenizer

from rlenv.testing.tokens import small_tokenizer
from rlenv.tokens import TokenEncoder
from tests.support import real

MARKS = re.compile(r"<\|?[\w｜▁/:.]+\|?>|\[/?[A-Z_]+\]|<｜[^｜]+｜>")
CONTROL = re.compile(r"[|｜▁]|^\[|_of_|turn|^</?s>|escape|function_call|function_resp|declaration")
_ENDS = {
    "llama4": "<|eot|>",
    "llama": "<|eot_id|>",
    "toolace": "<|eot_id|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "muse": "</s>",
    "granite": "<|endoftext|>",
}


def bound(family: str) -> TokenEncoder:
    """The family's template over the small tokenizer, to which the template's control marks are added."""
    source = real.template(family)
    tokenizer = Tokenizer.from_str(small_tokenizer().to_str())
    marks = {mark for mark in MARKS.findall(source) if CONTROL.search(mark)} | {"<s>", "</s>", "<bos>"}
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in sorted(marks)])
    values = {"bos_token": "<s>", "eos_token": end_of(family)}
    return TokenEncoder(tokenizer, chat_template=source, template_kwargs=values)


def end_of(family: str) -> str:
    """The mark that ends an assistant's turn."""
    return next((end for part, end in _ENDS.items() if part in family), "<|im_end|>")
