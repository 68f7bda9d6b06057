"""The parts of veRL that the adapter stands on, as a table, and a check of any veRL against it.

    python tests/support/verl_contract.py           # the installed one
    python tests/support/verl_contract.py FOLDER    # one that lies unpacked in a folder (a wheel's content, a checkout)

A name that is gone is told in one line each: what it is, where rlenv uses it, and since which release veRL has it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from rlenv.cli.terminal import write
from rlenv_verl import VERL_RANGE

Kind = Literal["parameters", "coroutine", "members", "fields", "names", "says", "source"]


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that veRL has to have.

    `kind` says what `needs` are: names of `parameters` that a function is called with (`coroutine`: the same, of an
    async function), `members` of a class or module, `fields` of a dataclass or pydantic model, `names` that stand there
    in any of these ways, or texts that the
    source of a module `says` (file names, environment variables, keys of metrics). `source` is the same of a module
    that is read and not imported: vLLM is not installed beside every veRL.
    """

    module: str
    name: str
    kind: Kind
    needs: tuple[str, ...]
    used_by: str
    since: str
    """The first release from which on it was there, of those looked at: 0.7.1, 0.8.0, 0.9.0, 0.9.1."""
    adapter: str = "rlenv_verl"
    covers: str = f"veRL {VERL_RANGE}"
    """What the adapter is made for."""

    @property
    def id(self) -> str:
        """A name for people: the last part of the module and what is in it."""
        place = self.module.removeprefix("verl.")
        return f"{place}.{self.name}" if self.name else place


def _clause(where: str, kind: Kind, needs: str, used_by: str, since: str) -> Clause:
    module, _, name = where.partition(":")
    return Clause(module, name, kind, tuple(needs.split()), used_by, since)


_LOOP = "verl.experimental.agent_loop.agent_loop"
_ROWS = "verl.utils.dataset.rl_dataset"
_OURS, _LOST = "loop/replay_buffer.py", "loop/__init__.py"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"
_BASE = "verl.trainer.ppo.v1.trainer_base"
_FSDP = "verl.workers.engine.fsdp.transformer_impl"
_VLLM = "verl.workers.rollout.vllm_rollout"
_SAVES = "verl.utils.checkpoint.fsdp_checkpoint_manager"

CLAUSES: tuple[Clause, ...] = (
    # the agent loop
    _clause(
        f"{_LOOP}:AgentLoopBase.__init__",
        "parameters",
        "trainer_config server_manager tokenizer processor dataset_cls data_config hf_model_type kwargs",
        "loop/agent_loop.py",
        "0.9.1",
    ),
    _clause(f"{_LOOP}:AgentLoopBase.run", "coroutine", "sampling_params kwargs", "loop/agent_loop.py", "0.7.1"),
    _clause(
        f"{_LOOP}:AgentLoopOutput",
        "fields",
        "prompt_ids response_ids response_mask response_logprobs multi_modal_data reward_score num_turns metrics "
        "extra_fields",
        "loop/agent_loop.py",
        "0.7.1",
    ),
    _clause(f"{_LOOP}:AgentLoopOutput", "members", "as_dict", "loop/process.py (rewards of turns)", "0.8.0"),
    _clause(f"{_LOOP}:AgentLoopMetrics", "fields", "generate_sequences tool_calls", "loop/agent_loop.py", "0.7.1"),
    _clause("verl.utils.profiler:simple_timer", "parameters", "name timing_raw", "loop/agent_loop.py", "0.7.1"),
    _clause("verl.utils.tokenizer:get_processor_token_id", "parameters", "processor", "loop/process.py", "0.8.0"),
    # advantages
    _clause(
        "verl.trainer.ppo.core_algos:register_adv_est",
        "parameters",
        "name_or_enum",
        "estimators/__init__.py",
        "0.7.1",
    ),
    _clause(
        "verl.trainer.ppo.core_algos:get_adv_estimator_fn",
        "parameters",
        "name_or_enum",
        "estimators/__init__.py",
        "0.7.1",
    ),
    _clause(
        "verl.trainer.ppo.ray_trainer:compute_advantage",
        "says",
        '"token_level_rewards" "response_mask" "config" adv_kwargs["index"]',
        "estimators/__init__.py (what estimators are called with)",
        "0.7.1",
    ),
    # the rollout's servers
    _clause(
        "verl.workers.rollout.llm_server:LLMServerClient.generate",
        "coroutine",
        "request_id prompt_ids sampling_params image_data",
        "loop/agent_loop.py",
        "0.8.0",
    ),
    _clause(
        "verl.workers.rollout.replica:TokenOutput",
        "fields",
        "token_ids log_probs stop_reason num_preempted extra_fields",
        "cpu/rollout.py",
        "0.7.1",
    ),
    _clause("verl.workers.rollout.replica:RolloutReplica", "members", "launch_servers", "cpu/rollout.py", "0.7.1"),
    _clause("verl.workers.rollout.replica:RolloutReplicaRegistry", "members", "register", "cpu/registries.py", "0.7.1"),
    _clause(
        "verl.workers.rollout.base:BaseRollout", "members", "resume update_weights release", "cpu/rollout.py", "0.7.1"
    ),
    _clause(
        "verl.workers.rollout.base", "members", "_ROLLOUT_REGISTRY get_rollout_class", "cpu/registries.py", "0.7.1"
    ),
    _clause("verl.workers.rollout.utils:ensure_async_iterator", "parameters", "iterable", "cpu/rollout.py", "0.7.1"),
    _clause("verl.utils.config:omega_conf_to_dataclass", "parameters", "config", "cpu/rollout.py", "0.7.1"),
    # vLLM as rollout engine on a CPU
    _clause(
        f"{_VLLM}.utils:vLLMColocateWorkerExtension",
        "source",
        "vLLMColocateWorkerExtension update_weights_from_ipc(self, _update_weights( self._update_weights( peft_config "
        "base_sync_done use_shm",
        "cpu/vllm_worker.py",
        "0.9.1",
    ),
    _clause(
        f"{_VLLM}.bucketed_weight_transfer",
        "source",
        "on_bucket_received(weights, self.buffer[offset",
        "cpu/vllm_worker.py",
        "0.9.1",
    ),
    _clause(f"{_VLLM}.vllm_async_server", "source", "worker_extension_cls **engine_kwargs", "presets", "0.9.1"),
    _clause("verl.third_party.vllm.__init__", "source", "get_version(package_name)", "cpu/__init__.py", "0.9.1"),
    # sampling and step metrics
    _clause(
        f"{_BUFFER}:ReplayBuffer.__init__",
        "parameters",
        "poll_interval sampler_kwargs refill_fn filter_groups_metric train_batch_size gen_batch_size "
        "max_inflight_gen_batches sync_refill_failed_groups",
        _OURS,
        "0.9.0",
    ),
    _clause(f"{_BUFFER}:ReplayBufferAsync.__init__", "parameters", "poll_interval", _OURS, "0.9.0"),
    _clause(f"{_BUFFER}:ReplayBuffer.sample", "parameters", "global_steps partition_id batch_size", _OURS, "0.9.0"),
    _clause(_BUFFER, "members", "FILTER_GROUPS_REWARD_METRIC", _OURS, "0.9.1"),
    _clause(
        f"{_BUFFER}:ReplayBuffer", "members", "_dapo_filtered_keys _sync_metadata_from_transfer_queue", _OURS, "0.9.0"
    ),
    _clause(_BASE, "says", "self.agent_loop_manager self.llm_server_manager self.reward_loop_manager", _LOST, "0.9.0"),
    _clause("verl.trainer.ppo.v1.agent_loop_tq", "says", "self.agent_loop_workers", _LOST, "0.9.0"),
    _clause("verl.trainer.ppo.v1.trainer_separate_async", "says", "self.standalone_server_manager", _LOST, "0.9.0"),
    _clause("verl.workers.rollout.llm_server", "says", "self.server_handles self.global_load_balancer", _LOST, "0.9.0"),
    _clause("verl.experimental.reward_loop.reward_loop", "says", "self.reward_loop_workers", _LOST, "0.9.0"),
    _clause("transfer_queue.interface", "members", "_TQ_CONTROLLER _TQ_STORAGE", _LOST, "0.9.0"),
    _clause(_BUFFER, "says", "_dapo_classification_cache finished_keys partitions", _OURS, "0.9.0"),
    _clause(f"{_ROWS}:RLHFDataset", "parameters", "data_files tokenizer config processor max_samples", _OURS, "0.9.0"),
    _clause(f"{_ROWS}:get_dataset_class", "parameters", "data_config", f"{_OURS} (data.custom_cls)", "0.9.0"),
    _clause(_BASE, "says", "custom_sampler sampler_kwargs", "loop/replay_buffer.py, presets", "0.9.0"),
    # several rows an episode
    _clause(
        "verl.trainer.ppo.v1.agent_loop_tq",
        "says",
        'f"{uid}_{session_id}_{i}" outputs[-1]',
        "loop/agent_loop.py (rows)",
        "0.9.0",
    ),
    _clause(
        _BASE,
        "says",
        "refill_fn=self._add_prompts_to_generate _get_required_batch_multiple "
        "self.config.actor_rollout_ref.actor.ppo_mini_batch_size self.config.critic.ppo_mini_batch_size "
        'data.non_tensor_batch["uid"]',
        "loop/replay_buffer.py (rows)",
        "0.9.0",
    ),
    _clause(
        "verl.utils.import_utils:load_extern_type", "parameters", "file_path type_name", "settings/checks.py", "0.8.0"
    ),
    _clause(
        "verl.utils.tensordict_utils:get_tensordict",
        "parameters",
        "tensor_dict",
        "loop/replay_buffer.py (rows)",
        "0.8.0",
    ),
    _clause(
        "transfer_queue:kv_batch_put", "parameters", "keys partition_id fields", "loop/replay_buffer.py (rows)", "0.7.1"
    ),
    _clause("transfer_queue:kv_batch_get", "parameters", "keys partition_id select_fields", _OURS, "0.7.1"),
    _clause("transfer_queue:KVBatchMeta", "fields", "keys tags", _OURS, "0.7.1"),
    _clause(_BASE, "says", "val-aux", "run/figures.py, export/__init__.py (names of figures)", "0.9.0"),
    _clause("verl.utils.tracking", "says", "VERL_FILE_LOGGER_PATH", "run/prepare.py", "0.7.1"),
    _clause("verl", "says", "VERL_USE_EXTERNAL_MODULES", "presets", "0.7.1"),
    # checkpoints
    _clause(
        _BASE,
        "says",
        'latest_checkpointed_iteration.txt global_step_ "actor" data.pt',
        "export/__init__.py, run/resume.py",
        "0.9.0",
    ),
    _clause(_SAVES, "says", "model_world_size_ fsdp_config.json huggingface", "export/__init__.py", "0.7.1"),
    _clause(_SAVES, "says", "lora_train_meta.json", "export/__init__.py (LoRA)", "0.8.0"),
    _clause("verl.model_merger.fsdp_model_merger:FSDPModelMerger", "members", "merge_and_save", "tests alone", "0.7.1"),
    _clause(
        f"{_FSDP}:FSDPEngine.get_per_tensor_param", "parameters", "base_sync_done", "cpu/rollout.py (LoRA)", "0.7.1"
    ),
    _clause("verl.workers.engine_workers", "says", "peft_config= base_sync_done=", "cpu/rollout.py (LoRA)", "0.7.1"),
    # training on a CPU
    _clause("verl.plugin.platform:PlatformRegistry", "members", "register", "cpu/platform.py", "0.9.0"),
    _clause("verl.plugin.platform:PlatformBase", "members", "current_device device_count", "cpu/platform.py", "0.9.0"),
    _clause(
        "verl.workers.engine.base:EngineRegistry.register",
        "parameters",
        "model_type backend device",
        "cpu/registries.py",
        "0.7.1",
    ),
    _clause(f"{_FSDP}:FSDPEngineWithLMHead", "members", "_build_fsdp_module", "cpu/registries.py", "0.7.1"),
    _clause(f"{_FSDP}:FSDPEngineWithValueHead", "members", "_build_module", "cpu/registries.py", "0.7.1"),
    _clause(
        "verl.utils.model:load_valuehead_model",
        "parameters",
        "local_path torch_dtype model_config trust_remote_code",
        "cpu/registries.py",
        "0.7.1",
    ),
    _clause(
        "verl.utils.distributed:initialize_global_process_group_ray",
        "parameters",
        "timeout_second backend",
        "cpu/platform.py",
        "0.7.1",
    ),
    _clause("verl.checkpoint_engine:CheckpointEngineRegistry", "members", "register", "cpu/registries.py", "0.7.1"),
    _clause(
        "verl.checkpoint_engine:CheckpointEngine",
        "members",
        "prepare build_topology init_process_group send_weights receive_weights finalize",
        "cpu/registries.py",
        "0.7.1",
    ),
    # supervised training
    _clause(
        "verl.trainer.sft_trainer:create_sft_dataset",
        "parameters",
        "data_paths data_config tokenizer processor max_samples",
        "sft/__init__.py",
        "0.9.1",
    ),
    _clause(
        "verl.trainer.sft_trainer",
        "says",
        "custom_cls parquet_files train/global_tokens val/loss drop_last=True",
        "sft/__init__.py",
        "0.9.1",
    ),
    _clause(
        "verl.utils.distributed:initialize_global_process_group",
        "parameters",
        "timeout_second",
        "cpu/platform.py",
        "0.9.1",
    ),
    _clause(
        "verl.utils.checkpoint.checkpoint_handler",
        "says",
        "global_step_ lora_train_meta.json",
        "export/__init__.py",
        "0.9.1",
    ),
    # the generative reward model
    _clause(
        "verl.experimental.reward_loop.reward_loop",
        "says",
        "reward_loop_worker_ reward_router_address",
        "loop/__init__.py",
        "0.7.1",
    ),
)


def breach(clause: Clause) -> str | None:
    """The breach of a clause by the importable veRL, in one line; None where it keeps it."""
    try:
        found, is_coroutine = _found(clause)
    except _Gone as gone:
        return _line(clause, str(gone))
    if clause.kind == "coroutine" and not is_coroutine:
        return _line(clause, f"{clause.id} is no coroutine function")
    missing = [name for name in clause.needs if name not in found]
    if not missing:
        return None
    lacks = {
        "says": "does not mention",
        "source": "does not mention",
        "members": "has no",
        "fields": "has no field",
    }.get(clause.kind, "takes no")
    return _line(clause, f"{clause.id} {lacks} {', '.join(missing)}")


def _line(clause: Clause, what: str) -> str:
    package = clause.module.partition(".")[0]
    return (
        f"{'veRL' if package == 'verl' else package} {verl_version(package)}: {what}. "
        f"Used by {clause.adapter}/{clause.used_by}; there since {clause.covers.split()[0]} {clause.since}, "
        f"rlenv covers {clause.covers.partition(' ')[2]}"
    )


class _Gone(Exception):
    """A module or a name in it is not there; the text says which."""


def _found(clause: Clause) -> tuple[Iterable[str] | str, bool]:
    """The names or source text that a clause asks for, and whether it is a coroutine function."""
    if clause.kind == "source":
        return _source(clause), True
    module = _module(clause.module, wanted=clause.id)
    target: Any = module
    for part in clause.name.split(".") if clause.name else ():
        if not hasattr(target, part):
            raise _Gone(f"{clause.id} is gone")
        target = getattr(target, part)
    if clause.kind == "says":
        return Path(str(module.__file__)).read_text(encoding="utf-8"), True
    if clause.kind == "members":
        return dir(target), True
    if clause.kind == "names":
        own = [*dir(target), *getattr(target, "model_fields", ()), *getattr(target, "__dataclass_fields__", ())]
        if not isinstance(target, type):
            return [*own, *inspect.signature(target).parameters], True
        return [*own, *(name for base in target.__mro__ for name in getattr(base, "__annotations__", ()))], True
    if clause.kind == "fields":
        named: Mapping[str, Any] = getattr(target, "model_fields", None) or getattr(target, "__dataclass_fields__", {})
        return list(named), True
    return list(inspect.signature(target).parameters), inspect.iscoroutinefunction(target)


def _source(clause: Clause) -> str:
    package, *rest = clause.module.split(".")
    root = Path(str(_module(package, wanted=clause.id).__file__)).parent
    try:
        return root.joinpath(*rest).with_suffix(".py").read_text(encoding="utf-8")
    except OSError as error:
        raise _Gone(f"{clause.id} is gone: there is no file {'/'.join(rest)}.py") from error


def _module(name: str, *, wanted: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _Gone(f"{wanted} is gone: there is no module {error.name}") from error
        raise _Gone(f"{name} cannot be imported here: {error}") from error
    except Exception as error:  # another release may fail on import in any way; the line says how
        raise _Gone(f"{name} cannot be imported here: {type(error).__name__}: {str(error).splitlines()[0]}") from error


def verl_version(package: str = "verl") -> str:
    """The version of the package that would be imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def main(argv: list[str] | None = None) -> int:
    """Print every breach, one a line; exit code 1 where there is one."""
    parser = argparse.ArgumentParser(prog="verl_contract.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a folder that holds the package verl")
    arguments = parser.parse_args(argv)
    if arguments.folder is not None:
        if not (arguments.folder / "verl" / "__init__.py").is_file():
            parser.error(f"{arguments.folder} holds no package verl; give the folder in which verl/ lies")
        # A process of its own: whatever this one has imported of another veRL stays out of it.
        roots = [str(arguments.folder.resolve()), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(root for root in roots if root)}
        command = [sys.executable, __file__]
        return subprocess.run(command, env=environment, check=False).returncode
    found = [line for line in map(breach, CLAUSES) if line is not None]
    kept = len(CLAUSES) - len(found)
    for line in found:
        write(f"- {line}\n")
    write(f"veRL {verl_version()} has {kept} of the {len(CLAUSES)} things that rlenv_verl stands on\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
