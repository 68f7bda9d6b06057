"""A scripted judge: it works the product out, and is wrong about a fixed share of the answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["scripted_judge"]

_ASKED = re.compile(r"What is (\d+) \* (\d+)\?")
_SHOWN = re.compile(r"<(MATERIAL-[0-9a-f]+)>(\".*?\"|\{.*?\})</\1>", re.DOTALL)


def scripted_judge(noise: float) -> Callable[[Mapping[str, Any]], str]:
    """Answers requests of the term `judge`: 5 for the right product and 1 for others.

    Args:
        noise: the share of (question, answer) pairs about which it says the opposite, always the same ones.
    """

    def answer(body: Mapping[str, Any]) -> str:
        text = "\n".join(str(message["content"]) for message in body["messages"])
        asked, shown = _ASKED.search(text), _SHOWN.search(text)
        if asked is None or shown is None:
            raise ValueError(f"neither question nor answer in: {text[-400:]}")
        answered = str(json.loads(shown[2])).strip()
        is_right = answered == str(int(asked[1]) * int(asked[2]))
        digest = hashlib.sha256(f"{asked[0]} {answered}".encode()).digest()
        if int.from_bytes(digest[:8], "big") < noise * 2**64:
            is_right = not is_right
        return json.dumps({"reasoning": "worked out", "score": 5 if is_right else 1})

    return answer
