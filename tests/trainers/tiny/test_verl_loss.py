"""veRL's supervised trainer against the loss written out: per token, per step, and whatever a batch is parted into.

Its loss function alone is held against the same in `test_masks.py`, in every run of the tests.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlenv.collect import EncodedRow
from rlenv.collect.data import rows_of
from rlenv_verl.settings.presets import load_sft_preset, override
from rlenv_verl.sft import HELD_OUT, process_variables, shuffle_rows
from rlenv_verl.sft.command import lone_variables
from rlenv_verl.tiny import batch_of, take_step, token_losses

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
BATCH, STEPS, SEED = 6, 3, 5
RATE = 1e-3
PARTS = {
    "packed": {"model.use_remove_padding": True, "data.max_token_len_per_gpu": 256},
    "padded": {"model.use_remove_padding": False, "data.max_token_len_per_gpu": 300},
    "by_two": {"model.use_remove_padding": True, "data.use_dynamic_bsz": False, "data.micro_batch_size_per_gpu": 2},
}


def line(row: EncodedRow) -> str:
    return json.dumps({"input_ids": row.input_ids, "loss_mask": row.loss_mask})


def random_rows(count: int, *, vocabulary: int) -> list[EncodedRow]:
    """Rows of one to three turns, of lengths between 12 and 120."""
    generator = torch.Generator().manual_seed(0)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = []
    for _ in range(count):
        mask: list[int] = []
        for _ in range(number(1, 4)):
            mask += [0] * number(4, 24) + [1] * number(2, 16)
        mask += [0] * number(0, 3)
        ids = torch.randint(5, vocabulary, (len(mask),), generator=generator).tolist()
        rows.append(EncodedRow(tuple(ids), tuple(mask)))
    return rows


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n".join(line(row) for row in random_rows(3 * BATCH, vocabulary=200)) + "\n")
    return path


@pytest.fixture(scope="module")
def verl_found(tiny_folder: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What veRL's own trainer computes, by how its batches are parted."""
    folder = tmp_path_factory.mktemp("verl")
    preset = load_sft_preset("cpu")
    keys = {
        "model.path": str(tiny_folder),
        "data.train_files": [str(rows_file)],
        "data.val_files": [f"{HELD_OUT}{rows_file}"],
        "data.custom_cls.path": "pkg://rlenv_verl.sft",
        "data.custom_cls.name": "RowsDataset",
        "data.train_batch_size": BATCH,
        "optim.lr": RATE,
        "trainer.total_training_steps": STEPS,
        "trainer.total_epochs": 1,
        "trainer.save_freq": 1000,
        "checkpoint.save_contents": [],
        "trainer.project_name": "rlenv",
    }
    added = [override("data.rlenv_seed", SEED, add=True), override("data.rlenv_skip_long", False, add=True)]
    settings = {
        name: [
            *preset.overrides(),
            *(override(key, value) for key, value in {**keys, **own}.items()),
            *added,
            override("trainer.default_local_dir", str(folder / name)),
        ]
        for name, own in PARTS.items()
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, str(HERE / "verl_steps.py"), "settings.json", str(folder / "out.json")],
        cwd=folder,
        env={
            **os.environ,
            **process_variables(preset, processes=1),
            **lone_variables(folder / "store"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'trainers'}",
            "HF_HOME": str(folder / "hf"),
        },
        capture_output=True,
        text=True,
        timeout=350,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


def drawn(rows: Sequence[EncodedRow]) -> list[list[EncodedRow]]:
    """The batches in the order in which veRL's loader gives them: the seed's order, shuffled by its sampler."""
    there: Any = shuffle_rows(rows, seed=SEED)
    order: list[int] = list(
        torch.utils.data.DistributedSampler(there, num_replicas=1, rank=0, shuffle=True, drop_last=True)
    )
    return [[there[index] for index in order[at : at + BATCH]] for at in range(0, BATCH * STEPS, BATCH)]


def model_of(folder: Path) -> Any:
    import transformers

    library: Any = transformers
    return library.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def plain_losses(model: Any, row: EncodedRow) -> list[float]:
    """The textbook's: one row by itself, all its logits, the trained ones of their negative log-likelihoods."""
    ids = torch.tensor([row.input_ids])
    with torch.no_grad():
        likely = torch.log_softmax(model(input_ids=ids).logits[0].double(), dim=-1)
    return [-float(likely[at - 1, row.input_ids[at]]) for at, flag in enumerate(row.loss_mask) if flag]


@pytest.mark.parametrize("name", PARTS)
def test_each_trained_token_has_the_same_loss_in_verl_in_the_shared_code_and_by_the_textbook(
    verl_found: dict[str, Any], tiny_folder: Path, rows_file: Path, name: str
) -> None:
    model = model_of(tiny_folder)
    batch = drawn(list(rows_of([rows_file])))[0]
    with torch.no_grad():
        shared = token_losses(model, batch_of(batch, pad_id=0)).tolist()
    plain = [loss for row in batch for loss in plain_losses(model, row)]
    verls = [
        -likely[at - 1]
        for row, likely in zip(batch, verl_found[name]["log_probs"], strict=True)
        for at, flag in enumerate(row.loss_mask)
        if flag
    ]
    assert len(shared) == len(plain) == len(verls) == sum(sum(row.loss_mask) for row in batch)
    assert shared == pytest.approx(plain, abs=1e-5)
    assert verls == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("name", PARTS)
def test_steps_of_verl_are_those_of_the_shared_code_however_a_batch_is_parted(
    verl_found: dict[str, Any], tiny_folder: Path, rows_file: Path, name: str
) -> None:
    model = model_of(tiny_folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), weight_decay=0.01)
    losses = []
    for rows in drawn(list(rows_of([rows_file]))):
        parts = [batch_of(rows[at : at + 2], pad_id=0) for at in range(0, len(rows), 2)]
        loss, _ = take_step(model, optimiser, parts, tokens=sum(part.trained for part in parts))
        losses.append(loss)
    assert verl_found[name]["losses"] == pytest.approx(losses, abs=1e-5)
    assert losses[0] != pytest.approx(losses[-1], abs=1e-3)


def test_the_held_out_loss_counts_every_row(verl_found: dict[str, Any]) -> None:
    found = [verl_found[name]["val"] for name in PARTS]
    assert all(len(values) == 1 and math.isfinite(values[0]) for values in found)
    assert found[1:] == [pytest.approx(found[0], abs=1e-5)] * 2
