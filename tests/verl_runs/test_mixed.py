"""One run on several specs, each row routed to its own environment, tools and rewards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.kept import held_out
from tests.verl_runs.driving import lines, make_policy, train

pytestmark = [pytest.mark.verl_runs, pytest.mark.timeout(900)]

WORDS = """
rlenv: 1
name: words
tasks:
  train: {rows: [{question: "Say one", answer: 1}, {question: "Say two", answer: 2}, {question: "Say six", answer: 6}]}
  test: {rows: [{question: "Say one", answer: 1}, {question: "Say two", answer: 2}]}
prompt: {user: "{{ task.question }}"}
tools: {number: {kind: calculator}}
answer: {from: tag, tag: answer}
limits: {turns: 2}
rewards:
  right: {kind: rule, rule: numeric_match}
  brief: {kind: rule, rule: answered, weight: 0.5}
oracle:
  - call: {number: {expression: "{{ task.answer }}"}}
  - say: "<answer>{{ task.answer }}</answer>"
"""


SQL = str(Path(__file__).resolve().parents[2] / "examples" / "curves" / "nl2sql-toy.yaml")


def test_three_specs_train_one_policy_by_their_weights(tmp_path: Path) -> None:
    words, out = tmp_path / "words.yaml", tmp_path / "run"
    words.write_text(WORDS)
    policy = make_policy(tmp_path / "policy", "arithmetic", SQL, str(words))
    arguments = ["arithmetic", SQL, str(words), "--weight", "arithmetic=2", "--model", str(policy), "--steps", "2"]
    arguments += ["--validation-tasks", "3", "-o", str(out), "--set", "arithmetic:tasks.train.limit=30"]
    arguments += ["--set", "nl2sql-toy:tasks.train.limit=15", "data.max_response_length=200"]
    arguments += ["trainer.test_freq=2", "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8"]
    arguments += ["actor_rollout_ref.rollout.n=2", "data.shuffle=false", "trainer.logger=[file,console,tensorboard]"]
    assert train(arguments, tmp_path / "log") == 0, (tmp_path / "log").read_text()[-3000:]

    # Without a shuffle the rows come as they were mixed: four of one and two of each other in every step.
    trained = lines(out / "trained.jsonl")
    shares = Counter((entry["step"], entry["spec"]) for entry in trained)
    counts = (("arithmetic", 4), ("nl2sql-toy", 2), ("words", 2))
    assert shares == {(step, name): count for step in (1, 2) for name, count in counts}

    steps = {entry["step"]: entry["data"] for entry in lines(out / "metrics.jsonl")}
    assert {"rlenv/arithmetic/term/correct", "rlenv/words/term/right", "rlenv/words/term/brief"} <= set(steps[1])
    assert "rlenv/words/term/correct" not in steps[1]
    assert steps[2]["rlenv/arithmetic/episodes"] == 8.0
    assert steps[2]["rlenv/nl2sql-toy/episodes"] == 4.0
    assert steps[2]["rlenv/words/episodes"] == 4.0

    # Validation by spec and mode, with each one's own terms and as many tasks as it has.
    summary = json.loads((out / "summary.json").read_text())
    labels = {f"{name}/{mode}" for name, _ in counts for mode in ("greedy", "sampled")}
    assert [set(entry) - {"step"} for entry in summary["held_out_success"]] == [labels, labels]
    assert set(summary["held_out_terms"]["words/greedy"]) == {"right", "brief"}
    assert set(summary["held_out_terms"]["arithmetic/sampled"]) == {"correct", "format"}
    episodes = held_out(out, step=2, mode="greedy")
    assert len(episodes) == 3 + 3 + 2

    # veRL's other loggers have rlenv's figures too.
    assert "rlenv/words/reward" in (out / "verl.log").read_text(errors="replace")
    assert any((out / "tensorboard").glob("events.*"))
    assert b"rlenv/words/reward" in next((out / "tensorboard").glob("events.*")).read_bytes()
