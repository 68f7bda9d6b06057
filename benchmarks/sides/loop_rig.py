"""What veRL needs to play the workload with its own tool loop and with rlenv's: files, configuration, workers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import workload
from benchmarks.sides.tokenizer import TEMPLATE, path
from rlenv_verl.settings import compose
from rlenv_verl.settings.presets import Preset, load_preset, override

__all__ = ["AGENTS", "Rig", "make_rig", "row"]

AGENTS = {"bare": "bare", "verl": "tool_agent", "rlenv": "rlenv"}
"""The loops' names in veRL's registry."""

_SPEC = """\
rlenv: 1
name: loops
tasks:
  train: {{rows: [{rows}]}}
prompt: {{system: "{system}", user: "{{{{ task.question }}}}"}}
tools:
  calculator: {{kind: python, function: "tools.py:calculator"{run_in}}}
calls: {{timeout_s: 10, concurrency: 1024}}
limits: {{turns: 10, tool_calls: 20}}
rewards:
  correct: {{kind: rule, rule: exact_match}}
"""
_TOOLS = '''\
import asyncio
import time


{define} calculator(a: float, b: float, op: str) -> str:
    """Calculate a op b.

    Args:
        a: left operand
        b: right operand
        op: one of add, sub, mul
    """
    {wait}
    return str(a + b if op == "add" else a - b if op == "sub" else a * b)
'''
# How the tool is written and where rlenv runs it: what is quickest for each side. veRL runs a plain function always in
# a thread, so it gets a coroutine function where nothing blocks.
_WAITS = {
    "fast": ("def", "pass", ", run_in: loop"),
    "async": ("async def", f"await asyncio.sleep({workload.DELAY_S})", ""),
    "blocking": ("def", f"time.sleep({workload.DELAY_S})", ""),
}


@dataclass(frozen=True, slots=True)
class Rig:
    """Files of one kind of tool, and veRL's configuration that names them."""

    preset: Preset
    config: Mapping[str, Any]
    tokenizer: Any
    prompts: Path
    """Where the bare loop looks for the prompts of all turns, once some loop has made them."""


def row(index: int) -> dict[str, Any]:
    """What veRL hands a loop for an episode; each takes what it needs."""
    task = index % workload.VARIANTS
    return {
        "raw_prompt": [
            {"role": "system", "content": workload.SYSTEM},
            {"role": "user", "content": workload.question(task)},
        ],
        "extra_info": {"index": task, "split": "train", "task": task, "greedy": False, "is_validation": False},
        "index": task,
        "data_source": "loops",
        "reward_model": {"style": "rule", "ground_truth": ""},
    }


def make_rig(kind: str, *, workers: int) -> Rig:
    """Writes a policy's folder, a spec and a tool's file, and composes veRL's configuration."""
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    import rlenv

    folder = Path(tempfile.mkdtemp(prefix="rlenv-loops-"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path()), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8, eos_token_id=tokenizer.eos_token_id, architectures=["Qwen3ForCausalLM"],
    ).save_pretrained(folder / "model")  # fmt: skip

    define, wait, run_in = _WAITS[kind]
    rows = ", ".join(
        f'{{question: "{workload.question(i)}", answer: "{workload.answer(i)}"}}' for i in range(workload.VARIANTS)
    )
    (folder / "spec.yaml").write_text(_SPEC.format(rows=rows, system=workload.SYSTEM, run_in=run_in))
    (folder / "tools.py").write_text(_TOOLS.format(define=define, wait=wait))
    ours = {"name": AGENTS["rlenv"], "_target_": "rlenv_verl.loop.agent_loop.RlenvAgentLoop"}
    none = {"name": AGENTS["bare"], "_target_": "benchmarks.sides.loop_bare.BareLoop", "waits": kind != "fast"}
    prompts = folder / "prompts.json"
    loops = [{**ours, "spec": str(folder / "spec.yaml")}, {**none, "file": str(prompts)}]
    (folder / "agent_loop.yaml").write_text(yaml.safe_dump(loops))
    # veRL is shown the same schema, so that both loops write the same prompt.
    schema = dict(rlenv.load(folder / "spec.yaml").tool_schemas[0])
    theirs = _TOOLS.format(define="async def" if kind == "fast" else define, wait=wait)
    mark = f"from verl.tools.function_tool import function_tool\n\nfunction_tool('calculator', schema={schema!r})"
    (folder / "verl_tools.py").write_text(f"{theirs}\n\n{mark}(calculator)\n")

    preset = load_preset("cpu")
    keys = {
        "actor_rollout_ref.model.path": str(folder / "model"),
        "actor_rollout_ref.rollout.prompt_length": 4096,
        "actor_rollout_ref.rollout.response_length": 4096,
        "actor_rollout_ref.rollout.n": 1,
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(folder / "agent_loop.yaml"),
        "actor_rollout_ref.rollout.agent.num_workers": workers,
        "actor_rollout_ref.rollout.multi_turn.function_tool_path": str(folder / "verl_tools.py"),
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": 10,
        "actor_rollout_ref.rollout.multi_turn.max_user_turns": 10,
        "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": 4,
        "actor_rollout_ref.rollout.multi_turn.format": "hermes",
    }
    config = compose([*preset.overrides(), *(override(key, value) for key, value in keys.items())])
    return Rig(preset, config, tokenizer, prompts)
