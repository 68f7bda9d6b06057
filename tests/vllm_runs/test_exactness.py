"""Twenty steps with vLLM as rollout engine: ids, probabilities and weights are the trainer's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kept import held_out
from tests.vllm_runs.checksums import checksums
from tests.vllm_runs.driving import ROOT, answers, lines, recorded, sampled_turns, train

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(4000)]

STEPS = 20
BLOCK = 32
"""Tokens that vLLM shares at least of a prompt that it knows; its own on a CPU are longer than these prompts."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained on what. `policy` names the fixture of the folder."""

    spec: str
    policy: str
    more: tuple[str, ...]


CASES = {
    # As large a rate as the tiny policy's own: its weights shall have moved.
    "tiny": Case("arithmetic", "policy", ("actor_rollout_ref.actor.optim.lr=5e-4",)),
    "135M": Case(
        str(ROOT / "examples" / "words" / "env.yaml"),
        "real_policy",
        (
            "actor_rollout_ref.actor.optim.lr=3e-5",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=640",
            "data.max_response_length=64",
            "run.turn_tokens=32",
            "run.validation_split=dev",
        ),
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Case, Path]:
    """What is trained, and the folder of the policy that it starts from."""
    found = CASES[request.param]
    return found, request.getfixturevalue(found.policy)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, case: tuple[Case, Path]) -> tuple[Path, Path]:
    """A run of twenty steps, and the folder of its records."""
    wanted, policy = case
    out = tmp_path_factory.mktemp("exactness") / "run"
    more = [f"++actor_rollout_ref.rollout.engine_kwargs.vllm.block_size={BLOCK}", "--validation-tasks", "8"]
    more += ["--save-every", "10", "trainer.max_actor_ckpt_to_keep=9", f"trainer.test_freq={STEPS}", *wanted.more]
    return out, recorded(out, wanted.spec, policy, *more, steps=STEPS, seconds=3600)


def figures(out: Path) -> dict[int, Mapping[str, Any]]:
    return {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl") if entry["step"] > 0}


def test_what_is_trained_on_is_what_vllm_sampled_from_the_ids_before_it(run: tuple[Path, Path]) -> None:
    _, records = run
    known = answers(lines(records / "sampled.jsonl"))
    rows = lines(records / "rows.jsonl")
    trained = [row["step"] for row in rows if row["partition"] == "train"]
    assert [trained.count(step) for step in range(1, STEPS + 1)] == [16] * STEPS
    turns = tokens = 0
    for row in rows:
        for prompt, ids, logprobs in sampled_turns(row):
            (first, *_) = found = [one for one in known[tuple(prompt)] if one["ids"] == ids]
            assert any(one["logprobs"] == pytest.approx(logprobs, abs=1e-6) for one in found), first
            turns, tokens = turns + 1, tokens + len(ids)
    assert turns > len(rows), "no episode had a second turn"
    assert tokens == sum(sum(row["response_mask"]) for row in rows)


def test_records_of_validation_hold_what_vllm_sampled(run: tuple[Path, Path]) -> None:
    out, records = run
    ids = {tuple(one["ids"]) for one in lines(records / "sampled.jsonl") if one["greedy"]}
    seen = held_out(out, step=0, mode="greedy")
    assert len(seen) == 8
    assert all(tuple(turn.token_ids or ()) in ids for trajectory in seen for turn in trajectory.turns)


def test_vllms_probabilities_are_the_trainers(run: tuple[Path, Path]) -> None:
    found = figures(run[0])
    assert sorted(found) == list(range(1, STEPS + 1))
    assert max(entry["training/rollout_probs_diff_max"] for entry in found.values()) < 1e-4
    assert max(entry["training/rollout_probs_diff_mean"] for entry in found.values()) < 1e-5


def test_vllm_holds_the_trainers_weights_after_each_sync(run: tuple[Path, Path]) -> None:
    sent, held = lines(run[1] / "trainer.jsonl"), lines(run[1] / "engine.jsonl")
    assert [entry["step"] for entry in sent] == list(range(STEPS + 1))
    assert len(held) == STEPS + 1
    for one, other in zip(sent, held, strict=True):
        # A head that is tied to the embedding is sent, and held once.
        assert set(one["tensors"]) - set(other["tensors"]) <= {"lm_head.weight"}
        assert other["tensors"] == {name: one["tensors"][name] for name in other["tensors"]}
    assert len({entry["tensors"]["model.embed_tokens.weight"] for entry in held}) == STEPS + 1


@pytest.mark.parametrize("step", [10, 20])
def test_they_are_those_of_the_checkpoint(run: tuple[Path, Path], step: int) -> None:
    from safetensors import safe_open

    out, records = run
    (file,) = (out / "checkpoints" / f"global_step_{step}").rglob("model.safetensors")
    with safe_open(file, framework="pt") as opened:
        names = sorted(opened.keys(), key=lambda name: name.replace("q_proj", "k_0").replace("gate_proj", "up_0"))
        kept = checksums((name, opened.get_tensor(name)) for name in names)
    held = lines(records / "engine.jsonl")[step]["tensors"]
    assert held == {name: kept[name] for name in held}


def test_later_turns_are_read_from_the_prefix_cache(run: tuple[Path, Path]) -> None:
    requests = lines(run[1] / "sampled.jsonl")
    shared = [one for one in requests if one["cached"]]
    assert shared
    assert all(one["cached"] % BLOCK == 0 and one["cached"] < len(one["prompt"]) for one in shared)


def test_greedy_validation_is_that_of_the_server_on_transformers(
    run: tuple[Path, Path], case: tuple[Case, Path], tmp_path: Path
) -> None:
    wanted, policy = case
    out, log = tmp_path / "other", tmp_path / "log"
    arguments = [wanted.spec, "--preset", "cpu-lm", "--model", str(policy), "--eval", "-o", str(out)]
    assert train([*arguments, "--validation-tasks", "8", *wanted.more], log, seconds=900) == 0, log.read_text()[-3000:]
    ours, theirs = (
        {
            trajectory.task_index: [turn.action for turn in trajectory.turns]
            for trajectory in held_out(folder, step=0, mode="greedy")
        }
        for folder in (run[0], out)
    )
    assert len(ours) == 8
    assert ours == theirs
    held_out = [json.loads((folder / "summary.json").read_text())["held_out_success"][0] for folder in (run[0], out)]
    assert held_out[0]["greedy"] == held_out[1]["greedy"]
