"""The rollout server of a rehearsal: answers with the tokens that it is told, and keeps account of the weights."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from rlenv_verl.cpu.rollout import actor_name
from rlenv_verl.rehearse.checks import SCRIPT_KEY

__all__ = ["FOLDER_VARIABLE", "RehearsalReplica", "RehearsalServer", "digest"]

FOLDER_VARIABLE = "RLENV_REHEARSAL"
"""The environment variable that names the folder in which a rehearsal's processes keep their accounts."""


def digest(named: Mapping[str, torch.Tensor]) -> str:
    """A checksum of float32 weights that depends on names, shapes and values, and not on their order.

    An output layer that is tied to the embeddings counts once, whether it is among them or not.
    """
    total = 0
    head, table = named.get("lm_head.weight"), named.get("model.embed_tokens.weight")
    is_tied = head is not None and table is not None and torch.equal(head, table)
    for name in sorted(named):
        if is_tied and name == "lm_head.weight":
            continue
        tensor = named[name].detach().to("cpu", torch.float32).contiguous()
        total = zlib.crc32(f"{name}{tuple(tensor.shape)}".encode(), total)
        total = zlib.crc32(tensor.numpy().tobytes(), total)
    return f"{total:08x}"


class RehearsalServer:
    """What veRL calls on a rollout server. Answers stand in the sampling parameters (`rlenv_verl.rehearse.loop`).

    A request that a real engine would refuse is refused: no weights yet, an answer beyond `max_tokens`, a sequence
    beyond what the engine holds.
    """

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        self.config = config
        self.longest = config.max_model_len or config.prompt_length + config.response_length
        self.guess = -math.log(max(2, int(getattr(model_config.hf_config, "vocab_size", 2))))
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        self.replica_rank = replica_rank
        self.version: int | None = None
        self.weights: dict[str, torch.Tensor] = {}
        self.has_weights = False
        self.is_paused = False

    async def ready(self) -> bool:
        """True: there is nothing to load."""
        return True

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: dict[str, Any], request_id: str, **_other: Any
    ) -> TokenOutput:
        """The scripted answer of one request."""
        if not self.has_weights:
            raise RuntimeError("generation was asked for before the first weights came")
        script = sampling_params.get(SCRIPT_KEY)
        if script is None:
            raise RuntimeError(f"request {request_id} brings no scripted answer: another agent loop asked for it")
        ids = list(script["ids"])
        most = int(sampling_params["max_tokens"])
        if len(ids) > most or len(prompt_ids) + len(ids) > self.longest:
            raise RuntimeError(
                f"an answer of {len(ids)} tokens behind {len(prompt_ids)}: at most {most}, {self.longest} together"
            )
        return TokenOutput(
            token_ids=ids,
            # As of a policy that knows nothing; the tiny network starts near it.
            log_probs=[self.guess] * len(ids) if sampling_params.get("logprobs") else None,
            stop_reason="aborted" if script["aborted"] else "completed",
            num_preempted=0,
            extra_fields={"global_steps": self.version},
        )

    async def update_weights(
        self, named: Sequence[tuple[str, torch.Tensor]], is_last: bool, global_steps: int | None
    ) -> None:
        """A part of the new weights; with the last one their checksum is written down."""
        self.weights.update(named)
        if not is_last:
            return
        self.version, self.has_weights = global_steps, True
        entry = {"version": global_steps, "tensors": len(self.weights), "digest": digest(self.weights)}
        self.weights = {}
        with (self.folder / f"weights.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    async def _nothing(self, *_given: Any, **_options: Any) -> None:
        """There is no device memory, no cache and no profile."""

    abort_all_requests = resume_generation = wake_up = sleep = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class RehearsalReplica(RolloutReplica):
    """One server of a rehearsal, a Ray actor that needs no GPU."""

    async def launch_servers(self) -> None:
        """Starts the server; veRL calls this once."""
        remote: Any = ray.remote  # its overloads do not know actor options
        name = actor_name(self.replica_rank)
        actor = remote(num_cpus=0, max_concurrency=self.max_concurrency, name=name)(RehearsalServer)
        model_config: Any = self.model_config
        server = actor.remote(self.config, omega_conf_to_dataclass(model_config), self.replica_rank)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name
