"""What else reaches vLLM from a run: stop texts, adapters, aborts, a fault of the weights, a run that goes on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.verl_runs.driving import marked, started, trained
from tests.vllm_runs.driving import (
    RECORDING,
    RECORDS,
    SMALL,
    WORKER,
    answers,
    lines,
    recorded,
    sampled_turns,
    train,
)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2000)]

ONE_TEXT = Path(__file__).with_name("one_text.yaml")


def text_of(policy: Path, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_file(str(policy / "tokenizer.json")).decode(ids, skip_special_tokens=False))


def figures(out: Path) -> list[dict[str, Any]]:
    """veRL's figures of each training step."""
    return [entry["data"] for entry in lines(out / "metrics.jsonl") if entry["step"] > 0]


def test_stop_texts_stay_in_the_ids_of_one_growing_text(tmp_path: Path, policy: Path) -> None:
    out = tmp_path / "run"
    # As the preset has it: vLLM's probabilities are the old ones of the update.
    bypass = "algorithm.rollout_correction.bypass_mode=true"
    records = recorded(out, str(ONE_TEXT), policy, bypass, "trainer.test_freq=-1", steps=2)
    known = answers(lines(records / "sampled.jsonl"))
    stopped = 0
    for row in lines(records / "rows.jsonl"):
        for prompt, ids, logprobs in sampled_turns(row):
            found = [one for one in known[tuple(prompt)] if one["ids"] == ids]
            assert found
            assert len(logprobs) == len(ids)
            for stop in {one["stop"] for one in found} & {"</tool_call>", "</answer>"}:
                stopped += 1
                assert text_of(policy, ids).endswith(stop)
                assert sum(text_of(policy, ids[:end]).count(stop) for end in range(len(ids))) == 0
    assert stopped > 0, "no turn ended at a stop text"
    # veRL compares its own old probabilities with the sampler's wherever it computes any.
    assert not [key for entry in figures(out) for key in entry if "rollout_probs_diff" in key]
    # The trainer's probabilities at the update are the ones that were taken for its old ones.
    assert all(abs(entry["actor/ppo_kl"]) < 1e-5 and entry["actor/pg_clipfrac"] == 0.0 for entry in figures(out))


def test_an_adapter_is_sampled_with_and_changes_alone(tmp_path: Path, policy: Path) -> None:
    out = tmp_path / "run"
    more = ["--lora", "8", "actor_rollout_ref.actor.optim.lr=5e-3", "trainer.test_freq=-1"]
    records = recorded(out, "arithmetic", policy, *more, steps=3)
    requests, sent = lines(records / "sampled.jsonl"), lines(records / "trainer.jsonl")
    assert {one["lora"] for one in requests} == {123}  # veRL's name for the policy's adapter
    adapters = [entry["tensors"] for entry in sent if entry["adapter"]]
    assert len(adapters) >= 3
    assert all("lora_" in name for entry in adapters for name in entry)
    assert len({json.dumps(entry, sort_keys=True) for entry in adapters}) == len(adapters)
    held = [entry["tensors"] for entry in lines(records / "engine.jsonl")]
    base = {json.dumps({name: one for name, one in entry.items() if "lora_" not in name}) for entry in held[-3:]}
    assert len(base) == 1
    assert max(entry["training/rollout_probs_diff_max"] for entry in figures(out)) < 1e-4


@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_what_a_change_of_weights_aborts_goes_on_or_is_left_out(tmp_path: Path, policy: Path, mode: str) -> None:
    out = tmp_path / "run"
    arguments = ["arithmetic", "--preset", "cpu-vllm", "--model", str(policy), "--mode", mode, "--steps", "3", *SMALL]
    arguments += ["--time-limit", "700", "trainer.test_freq=3", "trainer.val_before_train=false", "-o", str(out)]
    log = tmp_path / "log"
    assert train(arguments, log, seconds=800) == 0, log.read_text()[-3000:]
    assert json.loads((out / "summary.json").read_text())["failed_episodes"] == 0
    assert all(entry["rlenv/arithmetic/episodes"] == 16 for entry in figures(out))
    stale = [entry["training/off_policy/trajectory_staleness/max"] for entry in figures(out)]
    assert stale[0] == 0
    assert max(stale) >= 1


def test_weights_that_cannot_be_loaded_end_the_run_with_the_reason(tmp_path: Path, policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = ["arithmetic", "--preset", "cpu-vllm", "--model", str(policy), "--steps", "3", *SMALL, "-o", str(out)]
    arguments += ["--time-limit", "600", "trainer.val_before_train=false", f"{WORKER}=recording_worker.FailingWorker"]
    assert train(arguments, log, seconds=700) == 1
    ending = json.loads((out / "summary.json").read_text())["ending"]
    assert ending["how"] == "failed", log.read_text()[-3000:]
    assert "nrom" in (out / "verl.log").read_text(errors="replace")


def test_a_killed_run_leaves_nothing_and_goes_on_with_the_weights_of_its_checkpoint(
    tmp_path: Path, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, log, records = tmp_path / "run", tmp_path / "log", tmp_path / "records"
    records.mkdir()
    monkeypatch.setenv(RECORDS, str(records))
    arguments = ["arithmetic", "--preset", "cpu-vllm", "--model", str(policy), "--steps", "6", "--save-every", "2"]
    arguments += ["-o", str(out), *SMALL, "trainer.test_freq=-1", "trainer.val_before_train=false", *RECORDING]
    with started(arguments, log) as (driver, mark):
        wait_until(lambda: len(lines(out / "metrics.jsonl")) >= 3, what="the third step", seconds=900)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        wait_until(lambda: marked(mark) == [], what="the end of the run's processes", seconds=60)
    before = {entry["step"]: entry["tensors"] for entry in lines(records / "trainer.jsonl")}
    os.rename(records, tmp_path / "before")
    records.mkdir()

    assert train(["--resume", str(out)], log, seconds=900) == 0, log.read_text()[-3000:]
    step = json.loads((out / "run.json").read_text())["attempts"][1]["from_step"]
    assert step >= 2
    # vLLM starts anew and samples from the weights that the trainer had at the checkpoint.
    (first, *_) = lines(records / "engine.jsonl")
    assert first["tensors"] == {name: before[step][name] for name in first["tensors"]}
    assert [step for step, _ in trained(out)] == [1, 2, 3, 4, 5, 6]


def test_an_interrupt_ends_vllms_processes(tmp_path: Path, policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = ["arithmetic", "--preset", "cpu-vllm", "--model", str(policy), "--steps", "50", *SMALL, "-o", str(out)]
    with started(arguments, log) as (driver, mark):
        wait_until(lambda: len(lines(out / "metrics.jsonl")) >= 2, what="the first step", seconds=900)
        engines = [one for one in marked(mark) if "EngineCore" in one.name() or "VLLM" in " ".join(one.cmdline())]
        driver.send_signal(signal.SIGINT)
        assert driver.wait(timeout=60) == 130
        assert marked(mark) == []
    assert engines
    assert json.loads((out / "summary.json").read_text())["ending"]["how"] == "interrupted"


def test_a_run_whose_engine_is_killed_ends_and_says_so(tmp_path: Path, policy: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    arguments = ["arithmetic", "--preset", "cpu-vllm", "--model", str(policy), "--steps", "500", *SMALL, "-o", str(out)]
    arguments += ["trainer.test_freq=-1", "trainer.val_before_train=false"]
    with started(arguments, log) as (driver, mark):
        wait_until(lambda: len(lines(out / "metrics.jsonl")) >= 1, what="the first step", seconds=900)
        (engine,) = [one for one in marked(mark) if "EngineCore" in " ".join(one.cmdline())]
        engine.kill()
        assert driver.wait(timeout=600) == 1
        assert marked(mark) == []
    assert json.loads((out / "summary.json").read_text())["ending"]["how"] == "failed"
    assert "EngineDead" in (out / "verl.log").read_text(errors="replace")
