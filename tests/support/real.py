"""Real tokenizers and chat templates, in the folder of RLENV_DATA."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support import data


def families() -> list[Any]:
    """The families whose templates are at hand, as parameters of marked tests.

    Where there are none, one stands for all: `template` skips its tests and says what they lack.
    """
    found = sorted(path.stem for path in data.found("chat_templates/*.jinja")) or ["*"]
    return [pytest.param(name, marks=pytest.mark.shared_data) for name in found]


def template(family: str) -> str:
    """The chat template of a family, for marked tests."""
    return data.find(f"chat_templates/{family}.jinja").read_text("utf8")


def qwen(family: str) -> Tokenizer:
    """The tokenizer of Qwen3 or Qwen2.5, for marked tests."""
    return _qwen(family, data.find("tokenizers"))


@cache
def _qwen(family: str, folder: Path) -> Tokenizer:
    with gzip.open(folder / "qwen3" / "tokenizer.json.gz", "rt", encoding="utf8") as file:
        read = json.load(file)
    if family == "qwen2_5":
        model = read["model"]
        read = json.loads((folder / "qwen2_5" / "tokenizer_without_model.json").read_text("utf8"))
        read["model"] = model
    return Tokenizer.from_str(json.dumps(read, ensure_ascii=False))
