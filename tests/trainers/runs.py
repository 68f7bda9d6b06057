"""Run folders with checkpoints in veRL's layout, made without veRL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import torch
import yaml

from rlenv.runs.folder import Attempt
from rlenv_verl.export import LATEST
from rlenv_verl.run import Run, SpecEntry
from tests.trainers.conftest import quiet

ROOT = Path(__file__).resolve().parents[2]


def unstarted(folder: Path, *, model: str, attempts: tuple[Attempt, ...] = ()) -> Run:
    """A run of one spec, of which nothing is written."""
    return Run(
        folder=folder,
        specs=(SpecEntry("toy", "rlenv/toy-v0", "toy.yaml", {}, 1.0),),
        preset="gpu",
        algorithm="grpo",
        mode="sync",
        seed=0,
        shuffled_rewards=False,
        model=model,
        train_split="train",
        validation_split="test",
        validation_tasks=1,
        modes=("greedy",),
        time_limit_s=None,
        ray_address=None,
        validation_only=False,
        cwd=str(folder),
        overrides=(),
        environment={},
        attempts=attempts,
    )


def load(folder: Path) -> Any:
    import transformers

    with quiet():
        auto: Any = transformers.AutoModelForCausalLM
        return auto.from_pretrained(folder, dtype=torch.float32).eval()


def changed(folder: Path, *, seed: int) -> Any:
    """The model of a folder, a little changed, as by training."""
    model = load(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def with_adapter(folder: Path, *, targets: Any = "all-linear") -> Any:
    with quiet():
        import peft

        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
        model: Any = peft.get_peft_model(load(folder), config)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def make_run(folder: Path, *, base: Path, success: dict[int, float] | None = None, save_freq: int = 5) -> Path:
    """A run of `rlenv train` without checkpoints."""
    folder.mkdir(parents=True)
    config = {
        "actor_rollout_ref": {"model": {"path": str(base)}},
        "trainer": {"save_freq": save_freq},
        "algorithm": {"adv_estimator": "rlenv_grpo"},
        "data": {"seed": 0},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "agent_loop.yaml").write_text(yaml.safe_dump([{"spec": "arithmetic", "spec_set": {"version": 3}}]))
    lines = [
        {"step": step, "data": {f"val-aux/arithmetic/test/{mode}/success/mean@1": value + shift}}
        for step, value in (success or {}).items()
        for mode, shift in (("greedy", 0.0),)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "da')
    return folder


def add_checkpoint(
    run: Path, step: int, model: Any, *, base: Path, whole_weights: bool = False, shards: bool = True
) -> Path:
    """One step as a single rank leaves it; returns the actor's folder."""
    actor = run / "checkpoints" / f"global_step_{step}" / "actor"
    shutil.copytree(base, actor / "huggingface")
    for path in (actor / "huggingface").glob("*.safetensors"):
        path.unlink()
    config = json.loads((actor / "huggingface" / "config.json").read_text())
    # As veRL leaves it: rounded in name, and with the run's own attention.
    config |= {"dtype": "bfloat16", "attn_implementation": "sdpa"}
    (actor / "huggingface" / "config.json").write_text(json.dumps(config))
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    if shards:
        torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    if whole_weights:
        from safetensors.torch import save_file

        state = {name: tensor.clone() for name, tensor in model.state_dict().items() if "lm_head" not in name}
        save_file(state, actor / "huggingface" / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model, "peft_config"):
        meta = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
        (actor / "lora_train_meta.json").write_text(json.dumps(meta))
    (run / "checkpoints" / LATEST).write_text(str(step))
    return actor


_RANK = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import peft, transformers
actor, base = Path(sys.argv[1]), Path(sys.argv[2])
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{actor}/rendezvous", rank=rank, world_size=2)
model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
model = peft.get_peft_model(model, config)
model.load_state_dict(torch.load(actor / "one_rank.pt"))
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
for layer in model.base_model.model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
torch.save(model.state_dict(), actor / f"model_world_size_2_rank_{rank}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def shard_over_two_ranks(actor: Path, *, base: Path) -> None:
    """Replace a checkpoint's shard by those that two processes under FSDP2 write of the same model with adapter."""
    (actor / "model_world_size_1_rank_0.pt").rename(actor / "one_rank.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "trainers")])}
    environment |= {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_RANK), str(actor), str(base)],
            env={**environment, "RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said.decode()[-2000:]
    finally:
        for process in ranks:
            with process:  # closes its pipe and reaps it
                process.kill()
