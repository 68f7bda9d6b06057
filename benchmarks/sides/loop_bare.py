"""A loop that asks the model, waits as long as the tools take, and does nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from benchmarks import workload

__all__ = ["BareLoop", "prompts_of"]

_SEEN: dict[str, list[list[list[int]]]] = {}


class BareLoop(AgentLoopBase):
    """What no loop can beat: prompts were made beforehand, and stand in `file` by task and turn."""

    def __init__(self, *args: Any, file: str, waits: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if file not in _SEEN:
            _SEEN[file] = json.loads(Path(file).read_text())
        self._prompts, self._waits = _SEEN[file], waits

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """One sample."""
        prompts, request = self._prompts[row["extra_info"]["task"]], uuid4().hex
        for turn, prompt in enumerate(prompts):
            answer = await self.server_manager.generate(
                request_id=request, prompt_ids=prompt, sampling_params=sampling_params
            )
            if turn < len(workload.CALLS) and self._waits:
                await asyncio.sleep(workload.DELAY_S)
        ids = prompts[-1][len(prompts[0]) :] + answer.token_ids
        return AgentLoopOutput(
            prompt_ids=prompts[0],
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=[0.0] * len(ids),
            reward_score=0.0,
            num_turns=len(prompts),
            metrics=AgentLoopMetrics(),
            extra_fields={"reward_extra_info": {}, "turn_scores": [], "tool_rewards": []},
        )


def prompts_of(made: dict[int, dict[str, Any]]) -> list[list[list[int]]]:
    """The prompt of each turn of each task, from what a loop made of it."""
    found = []
    for task in sorted(made):
        prompt, response, mask = made[task]["prompt_ids"], made[task]["response_ids"], made[task]["mask"]
        starts = [at for at, is_sampled in enumerate(mask) if is_sampled and (at == 0 or not mask[at - 1])]
        found.append([prompt + response[:start] for start in starts])
    return found
