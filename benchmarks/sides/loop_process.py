"""Both loops in this process, with the parts that veRL's worker hands them."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import time
from typing import Any

import hydra
import torch
from omegaconf import OmegaConf
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from benchmarks import workload
from benchmarks.sides.loop_bare import BareLoop
from benchmarks.sides.loop_rig import AGENTS, Rig, row
from benchmarks.sides.scripted_model import ScriptedModel
from rlenv_verl.loop.agent_loop import RlenvAgentLoop

__all__ = ["Process"]

_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


class Process:
    """Plays episodes of one kind of tool. A loop object is built for each, by its constructor and not by Hydra."""

    def __init__(self, rig: Rig, *, latency_s: float, places: int) -> None:
        torch.set_num_threads(1)
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._model = ScriptedModel(rig.tokenizer, latency_s=latency_s, places=places)
        self._worker = agent_loop.AgentLoopWorker(OmegaConf.create(dict(rig.config)), self._model)  # type: ignore[arg-type]

    def play(self, side: str, episodes: int) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """The figures of `episodes` at once, and what was made of each task."""
        self._model.reset()
        cpu, wall = time.process_time(), time.perf_counter()
        outputs = self._loop.run_until_complete(self._all(side, episodes))
        figures = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        load = self._model.load()
        assert load.generations == episodes * workload.TURNS, f"{load.generations} generations"
        made = {
            task: {"prompt_ids": output.prompt_ids, "response_ids": output.response_ids, "mask": output.response_mask}
            for task, output in enumerate(outputs[: workload.VARIANTS])
        }
        return figures | {"idle": load.idle, "empty": load.empty}, made

    def hydra_us(self) -> dict[str, float]:
        """CPU microseconds that Hydra takes on top of a constructor, for each loop object that veRL builds."""

        async def measure(side: str) -> float:
            registered = agent_loop._agent_loop_registry[AGENTS[side]]
            took = [
                _cpu_us(lambda: hydra.utils.instantiate(config=registered, **self._parts()), 50)
                - _cpu_us(lambda: self._build(side), 50)
                for _ in range(3)
            ]
            return sorted(took)[1]

        return {side: self._loop.run_until_complete(measure(side)) for side in ("verl", "rlenv")}

    def profile(self, episodes: int) -> None:
        """Prints where rlenv's loop spends its time."""
        self.play("rlenv", episodes)
        profiler = cProfile.Profile()
        profiler.enable()
        self.play("rlenv", episodes)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(60)

    def _parts(self) -> dict[str, Any]:
        worker = self._worker
        return {
            "trainer_config": agent_loop.DictConfigWrap(config=worker.config),
            "server_manager": worker.llm_client,
            "tokenizer": worker.tokenizer,
            "processor": worker.processor,
            "hf_model_type": worker.hf_model_type,
            "dataset_cls": worker.dataset_cls,
            "data_config": agent_loop.DictConfigWrap(worker.config.data),
            "tools": agent_loop.ToolListWrap(worker.tools),
        }

    def _build(self, side: str) -> Any:
        entry = dict(agent_loop._agent_loop_registry[AGENTS[side]])
        options = {key: value for key, value in entry.items() if key not in ("name", "_target_")}
        loop: Any = {"bare": BareLoop, "verl": ToolAgentLoop, "rlenv": RlenvAgentLoop}[side]
        return loop(**self._parts(), **options)

    async def _all(self, side: str, episodes: int) -> list[Any]:
        async def episode(index: int) -> Any:
            return await self._build(side).run(dict(_SAMPLING), **row(index))

        return list(await asyncio.gather(*(asyncio.create_task(episode(index)) for index in range(episodes))))


def _cpu_us(call: Any, times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - begun) / times * 1e6
