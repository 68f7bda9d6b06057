"""Steps of veRL's own supervised trainer under several settings, in a process of their own: veRL patches classes.

`python verl_steps.py SETTINGS.json OUT.json`: SETTINGS maps names to Hydra overrides; OUT gets for each the loss of
every step, and from before the first step the log-probability of each token of the first batch, at the place before it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils
from verl.utils.distributed import initialize_global_process_group


def first_log_probs(trainer: SFTTrainer) -> list[list[float]]:
    """By row, in the order of the loader's first batch."""
    config = trainer.config
    rows = [trainer.train_dataset[index] for index in list(trainer.train_sampler)[: config.data.train_batch_size]]
    meta = {
        "use_remove_padding": config.model.use_remove_padding,
        "use_dynamic_bsz": config.data.use_dynamic_bsz,
        "max_token_len_per_gpu": config.data.max_token_len_per_gpu,
        "micro_batch_size_per_gpu": config.data.micro_batch_size_per_gpu,
        "temperature": 1.0,
        "global_batch_size": config.data.train_batch_size,
        "pad_mode": config.data.pad_mode,
        "pad_token_id": trainer.model_config.tokenizer.pad_token_id,
    }
    data = tensordict_utils.get_tensordict(tensor_dict=trainer.collate_fn(rows), non_tensor_dict=meta)
    output = trainer.training_client.infer_batch(data)
    return [row.tolist() for row in output["log_probs"].unbind()]


def main(settings: str, out: str) -> None:
    initialize_global_process_group()
    found: dict[str, Any] = {}
    for name, overrides in json.loads(Path(settings).read_text()).items():
        log = Path(f"{out}.{name}.jsonl")
        os.environ["VERL_FILE_LOGGER_PATH"] = str(log)
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("sft_trainer_engine", overrides=overrides)
        trainer = SFTTrainer(config)
        before = first_log_probs(trainer)
        trainer.fit()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        steps = [line["data"]["train/loss"] for line in lines if "train/loss" in line["data"]]
        val = [line["data"]["val/loss"] for line in lines if "val/loss" in line["data"]]
        found[name] = {"losses": steps, "val": val, "log_probs": before}
    Path(out).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
