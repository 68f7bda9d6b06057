"""A run of `rlenv sft` once more without veRL, on the same rows in the same order: is the loss of every step the same?

    python benchmarks/cold_start.py OUT

Trains all weights of the run's model in float32 with `rlenv_verl.tiny`, as the tiny policy's warm start does,
by the settings of OUT/config.yaml, and prints both losses of each step. Exit status 1 where they are 1e-4 apart.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml

from rlenv.collect.data import rows_of
from rlenv_verl.sft import SftRun, read_steps, shuffle_rows
from rlenv_verl.tiny import batch_of, take_step

BAR = 1e-4


def main(out: Path) -> int:
    run, config = SftRun.load(out), yaml.safe_load((out / "config.yaml").read_text())
    optim = config["optim"]
    assert run.lora is None, "adapters are drawn at random by peft; compare a run of all weights"
    assert optim["lr_scheduler_type"] == "constant"
    assert optim["lr_warmup_steps_ratio"] == 0.0
    assert optim["clip_grad"] == 1.0, "a step of rlenv_verl.tiny clips to a norm of 1"
    torch.set_num_threads(int(run.environment["OMP_NUM_THREADS"]))
    library: Any = transformers
    model = library.AutoModelForCausalLM.from_pretrained(run.model, dtype=torch.float32, attn_implementation="sdpa")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=optim["lr"], betas=tuple(optim["betas"]), weight_decay=optim["weight_decay"]
    )
    rows: Any = shuffle_rows(list(rows_of(config["data"]["train_files"])), seed=run.seed)
    sampler: Any = torch.utils.data.DistributedSampler(rows, num_replicas=1, rank=0, shuffle=True, drop_last=True)
    verls = {step.number: step.loss for step in read_steps(run.metrics)}
    worst, number = 0.0, 0
    for epoch in range(-(-run.steps // run.steps_an_epoch)):
        sampler.set_epoch(epoch)
        order = list(sampler)
        for place in range(run.steps_an_epoch):
            if number == run.steps:
                break
            number += 1
            drawn = [rows[index] for index in order[place * run.batch : (place + 1) * run.batch]]
            began = time.monotonic()
            batch = batch_of(drawn, pad_id=0)
            loss, norm = take_step(model, optimiser, [batch], tokens=batch.trained)
            worst = max(worst, abs(loss - verls[number]))
            print(
                f"step {number:>3}  veRL {verls[number]:.6f}  here {loss:.6f}  apart {abs(loss - verls[number]):.1e}  "
                f"gradient {norm:.2f}  {time.monotonic() - began:.1f} s",
                flush=True,
            )
    print(f"{number} steps, at most {worst:.1e} apart; the bar is {BAR}")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
