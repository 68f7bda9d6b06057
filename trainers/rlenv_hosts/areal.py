"""AReaL's rollout workflow, token by token exact: an episode whose reward is invalid is rejected.

    workflow = RlenvWorkflow(gconfig, tokenizer)      # rows of the data set: Address.as_dict()

Read in AReaL of 21 May 2026 (`areal/api/workflow_api.py`, `areal/api/io_struct.py`, `areal/workflow/multi_turn.py`);
tried against a stand-in of its engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from areal.api import ModelRequest, RolloutWorkflow

from rlenv_train.player import Address, Hosted


class RlenvWorkflow(RolloutWorkflow):
    """Plays one episode a call.

    Args:
        gconfig: AReaL's `GenerationHyperparameters`; its `max_new_tokens` is the room of the whole response.
        options: those of `rlenv_train.player.Player`.
    """

    def __init__(self, gconfig: Any, tokenizer: Any, **options: Any) -> None:
        self.gconfig, self.tokenizer = gconfig, tokenizer
        options = {"model": str(getattr(tokenizer, "name_or_path", "") or "policy"), **options}
        self.player = Hosted(tokenizer, max_response_tokens=gconfig.max_new_tokens, **options)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, Any] | None:
        """The tensors of one sample, shape (1, tokens); None where it is not to be trained on."""
        import torch

        rid = uuid4().hex
        versions: list[tuple[int, list[int]]] = []

        async def sample(
            ids: list[int], *, max_tokens: int | None, stop_token_ids: list[int], stop: Sequence[str] = (), **_: Any
        ) -> tuple[list[int], list[float]]:
            own = {"n_samples": 1, "max_new_tokens": max_tokens, "stop_token_ids": stop_token_ids}
            gconfig = self.gconfig.new(**own, **({"stop": list(stop)} if stop else {}))
            request = ModelRequest(rid=rid, input_ids=list(ids), gconfig=gconfig, tokenizer=self.tokenizer)
            answer = await engine.agenerate(request)
            versions.append((len(ids), list(answer.output_versions)))
            return list(answer.output_tokens), list(answer.output_logprobs)

        outcome, figures = await self.player.play(Address.of(data), sample)
        if figures.reward is None:
            return None
        row = outcome.rows[0]
        prompt, length = len(row.prompt_ids), len(row.prompt_ids) + len(row.response_ids)
        version = [-1] * length
        for at, found in versions:
            for place, value in zip(range(at, length), found, strict=False):
                version[place] = value
        masked = [-1 if not trained else value for trained, value in zip(row.mask, version[prompt:], strict=True)]
        made = {
            "input_ids": torch.tensor([*row.prompt_ids, *row.response_ids], dtype=torch.int32),
            "logprobs": torch.tensor([0.0] * prompt + list(row.logprobs), dtype=torch.float32),
            "loss_mask": torch.tensor([0] * prompt + list(row.mask), dtype=torch.int32),
            "versions": torch.tensor([-1] * prompt + masked, dtype=torch.int32),
            "rewards": torch.tensor(figures.reward, dtype=torch.float32),
            "attention_mask": torch.ones(length, dtype=torch.bool),
        }
        return {name: value.unsqueeze(0) for name, value in made.items()}
