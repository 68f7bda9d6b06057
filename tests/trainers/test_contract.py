"""What the adapter stands on in veRL: a release that changes it fails here first, and says what to look at."""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from rlenv_verl import VERL_RANGE
from rlenv_verl.names import GRPO, GRPO_SHUFFLED
from rlenv_verl.preset import compose, load_preset, preset_names


def expect(found: set[str], needed: set[str], *, what: str, used_by: str) -> None:
    missing = sorted(needed - found)
    version = importlib.metadata.version("verl")
    assert not missing, (
        f"{what} of veRL {version} lacks {', '.join(missing)}; it has {', '.join(sorted(found))}. "
        f"Adapt rlenv_verl/{used_by}, or keep to a release within {VERL_RANGE}."
    )


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_installed_verl_is_within_the_covered_range() -> None:
    installed = importlib.metadata.version("verl")
    assert installed in SpecifierSet(VERL_RANGE), f"veRL {installed} is outside of {VERL_RANGE}"


def test_agent_loop_is_built_and_run_as_the_adapter_expects(verl: Any) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    expect(
        parameters(AgentLoopBase.__init__),
        {
            "trainer_config",
            "server_manager",
            "tokenizer",
            "processor",
            "dataset_cls",
            "data_config",
            "hf_model_type",
            "kwargs",
        },
        what="AgentLoopBase.__init__",
        used_by="agent_loop.py",
    )
    expect(
        parameters(AgentLoopBase.run), {"sampling_params", "kwargs"}, what="AgentLoopBase.run", used_by="agent_loop.py"
    )
    assert inspect.iscoroutinefunction(AgentLoopBase.run)


def test_agent_loop_output_has_the_fields_that_the_adapter_fills(verl: Any) -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    expect(
        set(AgentLoopOutput.model_fields),
        {
            "prompt_ids",
            "response_ids",
            "response_mask",
            "response_logprobs",
            "reward_score",
            "num_turns",
            "metrics",
            "extra_fields",
        },
        what="AgentLoopOutput",
        used_by="agent_loop.py",
    )
    expect(
        set(AgentLoopMetrics.model_fields),
        {"generate_sequences", "tool_calls"},
        what="AgentLoopMetrics",
        used_by="agent_loop.py",
    )


def test_rollout_server_is_asked_as_the_adapter_asks(verl: Any) -> None:
    from verl.workers.rollout.llm_server import LLMServerClient
    from verl.workers.rollout.replica import TokenOutput

    expect(
        parameters(LLMServerClient.generate),
        {"request_id", "prompt_ids", "sampling_params"},
        what="LLMServerClient.generate",
        used_by="agent_loop.py",
    )
    expect(
        set(TokenOutput.model_fields),
        {"token_ids", "log_probs", "stop_reason", "num_preempted", "extra_fields"},
        what="TokenOutput",
        used_by="cpu/replica.py",
    )


def test_rollout_replica_calls_only_what_the_cpu_server_has(verl: Any) -> None:
    from verl.workers.rollout.replica import RolloutReplica

    from rlenv_verl.cpu.replica import CpuServerActor

    source = inspect.getsource(RolloutReplica)
    controls = {name for name in vars(CpuServerActor) if f".{name}.remote(" in source}
    expect(
        {name for name in dir(CpuServerActor) if not name.startswith("_")},
        controls | {"generate", "update_weights", "abort_all_requests", "resume_generation", "wake_up", "sleep"},
        what="the CPU server, as RolloutReplica",
        used_by="cpu/replica.py",
    )


def test_registries_know_the_cpu_backend_and_the_advantages(verl: Any) -> None:
    from verl.plugin.platform import PlatformRegistry
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import get_rollout_replica_class

    from rlenv_verl.cpu.adapter import CpuServerAdapter
    from rlenv_verl.cpu.registries import ROLLOUT_NAME
    from rlenv_verl.cpu.replica import CpuReplica

    assert get_rollout_replica_class(ROLLOUT_NAME) is CpuReplica
    assert get_rollout_class(ROLLOUT_NAME) is CpuServerAdapter
    assert get_adv_estimator_fn(GRPO) is not get_adv_estimator_fn(GRPO_SHUFFLED)
    expect(set(dir(EngineRegistry)), {"register"}, what="EngineRegistry", used_by="cpu/registries.py")
    expect(set(dir(PlatformRegistry)), {"register"}, what="PlatformRegistry", used_by="cpu/platform.py")


def test_workarounds_still_find_what_they_work_around(verl: Any) -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.utils.distributed import initialize_global_process_group_ray
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    expect(parameters(ReplayBuffer.__init__), {"poll_interval"}, what="ReplayBuffer", used_by="sampler.py")
    expect(
        parameters(initialize_global_process_group_ray),
        {"timeout_second", "backend"},
        what="initialize_global_process_group_ray",
        used_by="cpu/platform.py",
    )
    expect(set(dir(FSDPEngineWithLMHead)), {"_build_fsdp_module"}, what="FSDPEngine", used_by="cpu/registries.py")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", preset_names())
def test_preset_resolves_in_verls_configuration(name: str) -> None:
    preset = load_preset(name)
    config = compose([*preset.overrides(), "data.train_files=a", "data.val_files=b"])
    assert config["algorithm"]["adv_estimator"] == GRPO
    assert "file" in config["trainer"]["logger"]
