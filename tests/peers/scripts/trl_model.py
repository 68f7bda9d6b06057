"""A policy of random weights that reads and writes any text."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv_verl.tiny import new_model, save_model

tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=small_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>"
)
tokenizer.chat_template = CHAT_TEMPLATE
torch.manual_seed(0)
save_model(new_model(tokenizer, hidden=32, layers=1, heads=2), tokenizer, Path("policy"))
print(json.dumps({"model": str(Path("policy").resolve())}))
