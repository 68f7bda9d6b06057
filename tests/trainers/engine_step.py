"""Steps of veRL's FSDP2 engine on samples with images, in a process of its own: veRL patches the model's classes.

`python engine_step.py MODEL_FOLDER SAMPLES.json OUT.json` writes the loss of each step. The samples are what the agent
loop gave: ids, mask and images, as base64.
"""

from __future__ import annotations

import base64
import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import PIL.Image
import torch
import verl  # noqa: F401
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.base import EngineRegistry
from verl.workers.utils.losses import sft_loss

import rlenv_verl.cpu.registries  # noqa: F401

NO_CONFIG: Any = None  # veRL's loss looks at it for images alone
FP32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def fields_of(processor: Any, sample: dict[str, Any]) -> dict[str, Any]:
    """A row as veRL's agent loop worker puts it into its queue (trainer/ppo/v1/agent_loop_tq.py)."""
    images = [PIL.Image.open(io.BytesIO(base64.b64decode(text))) for text in sample["images"]]
    output: Any = SimpleNamespace(multi_modal_data={"images": images}, mm_processor_kwargs=None)
    worker: Any = SimpleNamespace(processor=processor, tokenizer=processor.tokenizer, mm_processor_kwargs={})
    worker._get_mm_processor_kwargs = lambda audio=None: {}
    ids = torch.tensor(sample["prompt_ids"] + sample["response_ids"])
    inputs = AgentLoopWorker._compute_multi_modal_inputs(worker, output, ids)
    ones = torch.ones(1, len(ids), dtype=torch.int64)
    positions = AgentLoopWorker._compute_position_ids(worker, ids.unsqueeze(0), ones, inputs).squeeze(0)
    mask = torch.tensor([0] * len(sample["prompt_ids"]) + sample["response_mask"])
    return {"input_ids": ids, "position_ids": positions, "loss_mask": mask, "multi_modal_inputs": inputs}


def main(model: str, samples: str, out: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}.store", rank=0, world_size=1)
    config = HFModelConfig(
        path=model,
        trust_remote_code=True,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    config.model_type = "language_model"
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=config,
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", use_torch_compile=False, model_dtype="fp32", mixed_precision=FP32
        ),
        optimizer_config=FSDPOptimizerConfig(lr=3e-3, total_training_steps=8),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    with open(samples, encoding="utf-8") as file:
        rows = [fields_of(config.processor, sample) for sample in json.load(file)]
    losses = []
    for _ in range(3):
        batch = tensordict_utils.list_of_dict_to_tensordict(rows)
        tensordict_utils.assign_non_tensor(
            batch,
            use_remove_padding=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=2,
            pad_token_id=config.tokenizer.pad_token_id,
            temperature=1.0,
        )
        with engine.train_mode():
            done = engine.train_batch(
                batch, loss_function=lambda model_output, data, dp_group=None: sft_loss(NO_CONFIG, model_output, data)
            )
        losses.append(sum(done["loss"]))
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"engine": type(engine).__name__, "losses": losses}, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
