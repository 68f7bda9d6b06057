"""veRL's side of the rollout servers for CPUs: replicas, their actors, and the adapter that sends weights."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rlenv_verl.cpu.server import CpuServer, read_sampling
from rlenv_verl.export.weights import LoraShape, merge, split


def actor_name(replica_rank: int) -> str:
    """The name under which the trainer's worker finds the server of a replica."""
    return f"rlenv_transformers_cpu_{replica_rank}"


class CpuServerActor:
    """The actor that veRL calls on a rollout server; the work is `CpuServer`'s."""

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        import transformers

        torch.set_num_threads(int(os.environ.get("RLENV_ROLLOUT_THREADS", "1")))
        self.config = config
        model_file: Any = transformers.AutoConfig.from_pretrained(model_config.path)
        self.processor = model_config.processor
        sees = self.processor is not None
        auto: Any = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
        model = auto.from_config(model_file, attn_implementation="sdpa").float().eval()
        model_file = model_file.get_text_config()
        ends = model_file.eos_token_id
        tokenizer = model_config.tokenizer
        self.stop_ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
        self.server = CpuServer(
            model,
            pad_id=model_file.pad_token_id or 0,
            max_batch=config.max_num_seqs,
            seed=config.seed + replica_rank,
            decode=tokenizer.decode,
            processor=self.processor,
        )

    async def ready(self) -> bool:
        """Starts serving; True once it does."""
        self.server.start()
        return True

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        **_other: Any,
    ) -> TokenOutput:
        """veRL's generate: token ids in, token ids and their log-probabilities out."""
        if video_data:
            raise ValueError("this server generates from text and images alone")
        config = self.config
        response = min(config.response_length, config.prompt_length + config.response_length - len(prompt_ids))
        sampling = read_sampling(
            sampling_params,
            prompt_tokens=len(prompt_ids),
            max_model_len=config.max_model_len or config.prompt_length + config.response_length,
            default_tokens=max(1, response),
            stop_ids=self.stop_ids,
        )
        generated, version = await self.server.generate(
            prompt_ids, sampling, images=image_data or (), processor_kwargs=mm_processor_kwargs
        )
        return TokenOutput(
            token_ids=list(generated.token_ids),
            log_probs=list(generated.logprobs) if sampling_params.get("logprobs") else None,
            # veRL's word for both a stop token and the length limit; an agent loop tells them apart by the last id.
            stop_reason="aborted" if generated.finish == "aborted" else "completed",
            num_preempted=0,
            extra_fields={"global_steps": version},
        )

    async def update_weights(
        self, named: Sequence[tuple[str, torch.Tensor]], is_last: bool, global_steps: int | None
    ) -> None:
        """A part of the new weights."""
        await self.server.load_weights(named, is_last=is_last, version=global_steps)

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Ends what runs; requests wait until `resume_generation`, or are turned away with `reject_request`."""
        await self.server.pause(rejects=reject_request)

    async def resume_generation(self) -> None:
        """Serves again."""
        self.server.resume()

    async def _nothing(self, *_given: Any, **_options: Any) -> None:
        """There is no device memory to take or give back, no cache that outlives its batch, and no profile.

        Serving is `resume_generation`'s alone: veRL wakes a server before it sends the new weights, and in the
        asynchronous modes requests that were aborted for these wait here.
        """

    wake_up = sleep = start_profile = stop_profile = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing


class CpuReplica(RolloutReplica):
    """One server of the CPU rollout, a Ray actor that needs no GPU."""

    async def launch_servers(self) -> None:
        """Starts the server; veRL calls this once."""
        if self.world_size != 1:
            raise ValueError(
                f"the CPU rollout runs one process a replica, not {self.world_size}; unset the parallel sizes"
            )
        await self.launch(CpuServerActor)

    async def launch(self, kind: type[Any]) -> None:
        """Starts a server of this kind under the name that the trainer's worker looks for."""
        name = actor_name(self.replica_rank)
        remote: Any = ray.remote  # its overloads do not know actor options
        actor = remote(num_cpus=0, max_concurrency=self.max_concurrency, name=name)(kind)
        model_config: Any = self.model_config
        server = actor.remote(self.config, omega_conf_to_dataclass(model_config), self.replica_rank)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = name  # only a key of veRL's load balancer


class CpuServerAdapter(BaseRollout):
    """Lives in the training worker and forwards weights through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_other: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ.get("RANK", "0")) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._found: Any = None
        self._base: dict[str, torch.Tensor] = {}

    @property
    def _find_server(self) -> Any:
        if self._found is None:
            self._found = ray.get_actor(actor_name(self.replica_rank))
        return self._found

    async def resume(self, tags: list[str]) -> None:
        """Lets the server serve."""
        await self._find_server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Nothing to give back."""
        await self._find_server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Mapping[str, Any] | None = None,
        base_sync_done: bool = False,
        **_other: Any,
    ) -> None:
        """Sends all weights in buckets of `checkpoint_engine.update_weights_bucket_megabytes`.

        With LoRA veRL hands over the base weights once (`base_sync_done` false) and the adapter's at every step. The
        server has plain weights: they are merged here, in float32, so that rollout and trainer agree. (veRL's own
        merging, `model.lora.merge`, rounds to bfloat16.)
        """
        if wire_format != "named_tensors":
            raise ValueError(f"the CPU rollout takes whole tensors, not {wire_format}")
        if peft_config is not None:
            given = {name: tensor.detach().cpu() async for name, tensor in _each_weight(weights)}
            if not base_sync_done:
                self._base = {name: tensor.clone() for name, tensor in split(given)[0].items()}
                return
            if not self._base:
                raise ValueError("the adapter came before the base weights; set rollout.load_format=dummy")
            weights = merge(self._base, split(given)[1], scaling=LoraShape.of(peft_config).scaling).items()
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        async for name, tensor in _each_weight(weights):
            # A copy: the trainer's next optimiser step must not reach into a bucket that is still on its way.
            bucket.append((name, tensor.detach().cpu().clone()))
            size += tensor.nbytes
            if size > limit:
                await self._find_server.update_weights.remote(bucket, False, None)
                bucket, size = [], 0
        await self._find_server.update_weights.remote(bucket, True, global_steps)


def _each_weight(weights: Any) -> AsyncIterator[tuple[str, torch.Tensor]]:
    iterate: Any = ensure_async_iterator
    each: AsyncIterator[tuple[str, torch.Tensor]] = iterate(weights)
    return each
