"""Real tokenizers and chat templates, where the data is there."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TOKENIZERS, TEMPLATES = DATA / "tokenizers", DATA / "chat_templates"


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
