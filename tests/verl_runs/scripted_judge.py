"""A generative reward model for runs without a GPU: veRL starts it as it starts vLLM, and it gives a scripted verdict.

Named by `actor_rollout_ref.model.external_lib`, so that every process of the run knows the name `scripted_judge`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, RolloutReplicaRegistry

import rlenv_verl.cpu.registries  # noqa: F401  the policy's own server
from rlenv.testing.endpoint import FakeEndpoint

NAME = "scripted_judge"
SCORE = 4


class _Server:
    async def start(self) -> str:
        def verdict(body: Mapping[str, Any]) -> str:
            assert body["response_format"]["type"] == "json_schema"
            return json.dumps({"reasoning": "as scripted", "score": SCORE})

        self._endpoint = FakeEndpoint(verdict)
        await self._endpoint.__aenter__()
        return self._endpoint.base_url.removeprefix("http://").removesuffix("/v1")

    async def sleep(self) -> None:
        raise AssertionError("a reward model that sleeps answers nobody")


class ScriptedJudge(RolloutReplica):
    """Needs no workers of the placement group that veRL reserved for it."""

    async def init_colocated(self, resource_pool: Any) -> None:
        self.rollout_mode = RolloutMode.COLOCATED
        self.resource_pool = resource_pool
        await self.launch_servers()

    async def launch_servers(self) -> None:
        make: Any = ray.remote
        server = make(num_cpus=0)(_Server).remote()
        self._server_address = await server.start.remote()
        self._server_handle = server
        self.servers = [server]


RolloutReplicaRegistry.register(NAME, lambda: ScriptedJudge)
