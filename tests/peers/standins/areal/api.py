"""What AReaL of 21 May 2026 has under these names (areal/api/workflow_api.py, areal/api/io_struct.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class GenerationHyperparameters:
    n_samples: int = 1
    max_new_tokens: int = 16384
    stop_token_ids: list[int] = field(default_factory=list)
    stop: list[str] | None = None

    def new(self, **changed: Any) -> GenerationHyperparameters:
        return replace(self, **changed)


@dataclass
class ModelRequest:
    rid: str
    input_ids: list[int]
    gconfig: GenerationHyperparameters
    tokenizer: Any = None


@dataclass
class ModelResponse:
    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]


class RolloutWorkflow(ABC):
    @abstractmethod
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None: ...
