"""Both loops under Ray: veRL's manager, workers, client, load balancer and TransferQueue, and a scripted server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import get_router_handle

from benchmarks import workload
from benchmarks.sides.loop_rig import AGENTS, Rig, row
from benchmarks.sides.scripted_model import ScriptedModel

__all__ = ["Cluster"]

_LIMIT_S = 120.0


class _Server:
    """A rollout server's interface around the scripted model."""

    def __init__(self, tokenizer: Any, latency_s: float, places: int) -> None:
        self._model = ScriptedModel(tokenizer, latency_s=latency_s, places=places)

    async def generate(self, **request: Any) -> Any:
        return await self._model.generate(**request)

    async def load(self) -> Any:
        return self._model.load()

    async def reset(self) -> None:
        self._model.reset()


class Cluster:
    """A Ray cluster of its own; nothing of it is left behind."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        root = Path(__file__).resolve().parents[2]
        path = f"{root}:{root / 'trainers'}"
        self._variables = {**environment, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
        self._folder = tempfile.TemporaryDirectory(prefix="ray-")
        self._has_queue = False

    def __enter__(self) -> Cluster:
        ray.init(
            address="local", num_cpus=12, include_dashboard=False, object_store_memory=300_000_000,
            _temp_dir=self._folder.name, log_to_driver=False, runtime_env={"env_vars": self._variables},
        )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_queue:
            tq.close()
        ray.shutdown()
        self._folder.cleanup()

    def start(self, rig: Rig, *, latency_s: float, places: int) -> None:
        """Starts a server and workers for one kind of tool."""
        config = OmegaConf.create(dict(rig.config))
        config.transfer_queue.enable = True
        if not self._has_queue:
            tq.init(config.transfer_queue)
            self._has_queue = True
        make: Any = ray.remote
        self._server = make(num_cpus=0, max_concurrency=1000)(_Server).remote(rig.tokenizer, latency_s, places)
        balancer = get_router_handle(servers={"scripted": self._server})
        client = LLMServerClient(config=config, load_balancer_handle=balancer)
        self._manager = AgentLoopManagerTQ.create(config=config, llm_client=client)

    def stop(self) -> None:
        """Ends the workers, whose processes hold the tools of their kind."""
        for actor in (*self._manager.agent_loop_workers, self._server):
            ray.kill(actor)

    def play(self, side: str, episodes: int) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """The figures of `episodes` at once, from the hand-over to the last output in the queue, and what was made.

        CPU is that of the workers' processes.
        """
        uids = [str(uuid4()) for _ in range(episodes)]
        rows = [row(index) for index in range(episodes)]
        columns: dict[str, Any] = {name: np.array([None] * episodes, dtype=object) for name in rows[0]}
        for name, column in columns.items():
            column[:] = [one[name] for one in rows]
        columns["uid"] = np.array(uids, dtype=object)
        columns["agent_name"] = np.array([AGENTS[side]] * episodes, dtype=object)
        batch = tensordict_utils.get_tensordict(columns)
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", 1)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": 1}] * episodes
        tq.kv_batch_put(keys=uids, partition_id="train", tags=tags)
        ray.get(self._server.reset.remote())
        cpu, wall = _worker_cpu_s(), time.perf_counter()
        self._manager.generate_sequences(batch)
        self._wait(uids)
        figures = {"wall_s": time.perf_counter() - wall, "cpu_s": _worker_cpu_s() - cpu}
        load = ray.get(self._server.load.remote())
        assert load.generations == episodes * workload.TURNS, f"{load.generations} generations"
        made = self._made(uids[: workload.VARIANTS])
        tq.kv_clear(keys=[*uids, *(f"{uid}_0_0" for uid in uids)], partition_id="train")
        return figures | {"idle": load.idle, "empty": load.empty}, made

    def _wait(self, uids: list[str]) -> None:
        ends = time.monotonic() + _LIMIT_S
        while time.monotonic() < ends:
            known: Mapping[str, Any] = tq.kv_list("train")["train"]
            states = [known[uid]["status"] for uid in uids]
            if "failure" in states:
                raise SystemExit("an episode failed; see Ray's logs")
            if all(state == "finished" for state in states):
                return
            time.sleep(0.02)
        raise SystemExit(f"not all episodes ended within {_LIMIT_S:.0f} s")

    def _made(self, uids: list[str]) -> dict[int, dict[str, Any]]:
        fields = tq.kv_batch_get(
            keys=[f"{uid}_0_0" for uid in uids],
            partition_id="train",
            select_fields=["prompts", "responses", "response_mask"],
        )
        return {
            task: {
                "prompt_ids": fields["prompts"][task].tolist(),
                "response_ids": fields["responses"][task].tolist(),
                "mask": fields["response_mask"][task].tolist(),
            }
            for task in range(len(uids))
        }


def _worker_cpu_s() -> float:
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "AgentLoopWorkerTQ" in "".join(process.cmdline()[:1]):
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total
