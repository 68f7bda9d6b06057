"""The parts of other trainers and hosts that the adapters stand on, as a table, and a check of what is installed.

    python tests/support/hosts_contract.py trl gem     # each by its package; without a name all that are installed

A name that is gone is told in one line each, as by `verl_contract.py`. `since` is the release that was read.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from rlenv.cli.terminal import write
from tests.support.verl_contract import Clause, Kind, breach


def _clauses(package: str, adapter: str, covers: str, *rows: tuple[str, Kind, str, str]) -> Iterator[Clause]:
    since = covers.split()[1].lstrip(">=").split(",")[0]
    for where, kind, needs, used_by in rows:
        module, _, name = where.partition(":")
        yield Clause(f"{package}.{module}" if module else package, name, kind, tuple(needs.split()), used_by, since,
                     adapter, covers)  # fmt: skip


_GRPO: Final = "trainer.grpo_trainer"

CLAUSES: Final[Mapping[str, tuple[Clause, ...]]] = {
    "trl": tuple(
        _clauses(
            "trl", "rlenv_trl", "TRL >=1.16,<1.17",
            (f"{_GRPO}:GRPOTrainer", "parameters", "model reward_funcs args train_dataset eval_dataset "
             "processing_class callbacks rollout_func environment_factory", "train.py"),
            (f"{_GRPO}:GRPOTrainer._generate_single_turn", "parameters",
             "prompt_ids images multimodal_fields num_generations", "rollout.py"),
            (_GRPO, "says", "self.rollout_func(prompts, self) env_mask self.num_generations_eval "
             "self.generation_config self.use_vllm self.tools unscorable_mask .all(dim=1)", "rollout.py"),
            (_GRPO, "says", 'reward_kwargs["log_metric"] reward_kwargs["environments"] "get_reward" "reset" '
             "self._environment_pool", "tools.py"),
            ("trainer.grpo_config:GRPOConfig", "fields", "num_generations num_generations_eval max_completion_length "
             "beta per_device_train_batch_size bf16 use_cpu vllm_max_model_length max_steps eval_on_start", "train.py"),
        )
    ),
    "tinker_cookbook": tuple(
        _clauses(
            "tinker_cookbook", "rlenv_hosts", "tinker-cookbook 0.6.1",
            ("rl.types:Env", "members", "initial_observation step", "tinker.py"),
            ("rl.types:Env.step", "coroutine", "action extra", "tinker.py"),
            ("rl.types:EnvGroupBuilder", "members", "make_envs compute_group_rewards cleanup logging_tags",
             "tinker.py"),
            ("rl.types:StepResult", "fields", "reward episode_done next_observation next_stop_condition metrics",
             "tinker.py"),
            ("rl.types:StopReason", "members", "COMPLETED MAX_TURNS MAX_TOKENS MAX_TOOL_CALLS CONTEXT_OVERFLOW "
             "PARSE_ERROR ROLLOUT_TIMEOUT", "tinker.py"),
        )
    ),
    "skyrl_gym": tuple(
        _clauses(
            "skyrl_gym", "rlenv_hosts", "skyrl-gym 0.4.0",
            ("envs.base_text_env:BaseTextEnv", "members", "init step close get_metrics", "skyrl.py"),
            ("envs.base_text_env", "says", "observations reward done metadata", "skyrl.py"),
        )
    ),
    "skyrl": tuple(
        _clauses(
            "skyrl", "rlenv_hosts", "SkyRL 2026-08-21",
            ("train.generators.base", "source", "GeneratorInterface generate(self, input_batch env_extras "
             "trajectory_ids prompt_token_ids response_ids rewards loss_masks rollout_logprobs stop_reasons",
             "skyrl.py"),
            ("backends.skyrl_train.inference_servers.base", "source", "prompt_token_ids sampling_params session_ids "
             "response_ids response_logprobs", "skyrl.py"),
        )
    ),
    "slime": tuple(
        _clauses(
            "slime", "rlenv_hosts", "slime 2026-08-21",
            ("rollout.sglang_rollout", "source", "GenerateState load_function(custom_func_path) "
             "output_token_logprobs", "slime.py"),
            ("ray.rollout", "source", "custom_reward_post_process_func sample.remove_sample", "slime.py"),
            ("utils.types", "source", "loss_mask rollout_log_probs response_length remove_sample get_reward_value",
             "slime.py"),
        )
    ),
    "areal": tuple(
        _clauses(
            "areal", "rlenv_hosts", "AReaL 2026-05-21",
            ("api:RolloutWorkflow.arun_episode", "coroutine", "engine data", "areal.py"),
            ("api:ModelRequest", "fields", "rid input_ids gconfig tokenizer", "areal.py"),
        )
    ),
    "gem": tuple(
        _clauses("gem", "rlenv_hosts", "gem-llm 0.1.0", ("core:Env", "members", "reset step spawn", "gem.py"))
    ),
    "verifiers": tuple(
        _clauses(
            "verifiers", "rlenv_verifiers", "verifiers >=0.4,<0.5",
            ("v1:Taskset", "names", "load bounded INFINITE", "__init__.py"),
            ("v1:TasksetConfig", "names", "id task system_prompt", "__init__.py"),
            ("v1:Task", "names", "key score validate", "__init__.py"),
            ("v1:Task.validate", "names", "runtime", "__init__.py"),
            ("v1:TaskData", "names", "name prompt", "__init__.py"),
            ("v1:Trace", "names", "info nodes stop_condition", "__init__.py"),
            ("v1:Harness", "names", "launch APPENDS_SYSTEM_PROMPT EXECUTES_CODE NEEDS_CONTAINER", "__init__.py"),
            ("v1:Harness.launch", "names", "ctx trace runtime endpoint secret mcp_urls data", "__init__.py"),
            ("v1:HarnessConfig", "names", "id env forward_env mcp_header_env disabled_tools", "__init__.py"),
            ("v1:ProgramResult", "names", "exit_code stdout stderr", "__init__.py"),
            ("v1:ModelContext", "names", "model", "__init__.py"),
            ("v1:TaskError", "names", "", "__init__.py"),
            ("v1:reward", "names", "weight", "__init__.py"),
            ("v1:metric", "names", "", "__init__.py"),
        )
    ),
    "inspect_ai": tuple(
        _clauses(
            "inspect_ai", "rlenv_inspect", "Inspect 0.3",
            (":Task", "names", "", "__init__.py"),
            (":Task.__init__", "names", "dataset solver scorer name", "__init__.py"),
            ("dataset:Sample", "names", "input id metadata", "__init__.py"),
            ("dataset:MemoryDataset.__init__", "names", "samples name", "__init__.py"),
            ("model:Model.generate", "names", "input tools", "__init__.py"),
            ("model:ModelOutput", "names", "message stop_reason", "__init__.py"),
            ("model:ChatMessageTool", "names", "content tool_call_id function", "__init__.py"),
            ("model:ChatMessageAssistant", "names", "content tool_calls", "__init__.py"),
            ("model:ContentImage", "names", "image", "__init__.py"),
            ("scorer:Score.unscored", "names", "reason explanation metadata", "__init__.py"),
            ("scorer:scorer", "names", "metrics", "__init__.py"),
            ("solver:TaskState", "names", "messages metadata output epoch", "__init__.py"),
            ("tool:ToolCall", "names", "id function arguments parse_error", "__init__.py"),
            ("tool:ToolInfo", "names", "name description parameters", "__init__.py"),
            ("tool:ToolParams", "names", "properties required additionalProperties", "__init__.py"),
            ("util:LimitExceededError", "names", "", "__init__.py"),
        )
    ),
}  # fmt: skip
"""By the package of the host."""


def main(argv: list[str]) -> int:
    """Prints every breach, one a line; exit code 1 where there is one, or where a package that is named is missing."""
    packages = argv or [name for name in CLAUSES if importlib.util.find_spec(name) is not None]
    lines = [line for name in packages for line in map(breach, CLAUSES[name]) if line is not None]
    write("".join(f"- {line}\n" for line in lines))
    write(f"looked at {', '.join(packages) or 'nothing'}: {len(lines)} breaches\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
