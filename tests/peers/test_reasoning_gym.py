"""Tasks that reasoning-gym generates are scored as it scores them, and no answer is run as a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.places import play, run

pytestmark = pytest.mark.peers

SPEC = """
rlenv: 1
name: generated
tasks:
  train:
    reasoning_gym:
      name: [chain_sum, countdown, binary_matrix, string_insertion, simple_integration, propositional_logic]
      limit: 6
      seed: 3
      config: {chain_sum: {max_terms: 3}}
    when: task.answer is not none
prompt: {user: "{{ task.question }} Write the answer between <answer> and </answer>."}
rewards: {score: {kind: rule, rule: reasoning_gym, cpu_s: 2}}
oracle: [{say: "<answer>{{ task.answer }}</answer>"}]
"""


@pytest.mark.timeout(300)
def test_each_generators_own_answer_is_worth_what_the_library_says_and_programs_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "generated.yaml").write_text(SPEC, encoding="utf-8")
    said = play("reasoning-gym", "reasoning_gym_scores.py", tmp_path, "generated.yaml", limit_s=250)
    assert len(said["own"]) >= 5
    assert {name: (status, value) for name, (status, value, _) in said["own"].items()} == {
        name: ("valid", pytest.approx(library)) for name, (_, _, library) in said["own"].items()
    }
    assert all(status == "valid" and value < 0.2 for status, value in said["other"].values())
    assert all(status == "valid" and value < 0.2 for ended in said["programs"].values() for status, value in ended)
    assert said["ran"] is False


def test_what_a_generator_does_not_take_is_a_fault_with_its_place(tmp_path: Path) -> None:
    spec = tmp_path / "generated.yaml"
    for wrong, told in (
        ("name: chain_sums", "has no generator 'chain_sums'; did you mean 'chain_sum'"),
        ("name: chain_sum, config: {bogus: 1}", "does not take its settings"),
        ("name: [chain_sum, countdown], config: {bogus: {}}", "no generator 'bogus'"),
    ):
        rows = f"tasks: {{train: {{reasoning_gym: {{{wrong}}}}}}}"
        rest = "prompt: {user: q}\nrewards: {score: {kind: rule, rule: reasoning_gym}}\n"
        spec.write_text(f"rlenv: 1\nname: generated\n{rows}\n{rest}", encoding="utf-8")
        done = run("reasoning-gym", ["python", "-m", "rlenv", "validate", "generated.yaml"], tmp_path)
        assert done.returncode != 0
        assert told in done.stdout + done.stderr
        assert "generated.yaml:3:" in done.stdout + done.stderr
