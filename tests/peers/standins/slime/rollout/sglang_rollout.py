"""What slime of 21 August 2026 has under this name: the tokenizer of a run's checkpoint, once a process."""

from __future__ import annotations

from typing import Any


class GenerateState:
    def __init__(self, args: Any) -> None:
        self.tokenizer = args.tokenizer
