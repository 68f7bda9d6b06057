"""Specs in verifiers, by its own commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from tests.peers.places import ROOT, play
from tests.peers.specs import COMPARED, FIRST, HEAD, HEARD, JUDGED, RIGHT, SEARCHED, written

pytestmark = pytest.mark.peers


def run(folder: Path, answers: Any, command: str, spec: Path | str, *options: str) -> Any:
    spec = written(folder, spec)
    taskset = "--env.taskset" if command == "vf-eval" else "--taskset"
    given = ["rlenv_verifiers", f"{taskset}.spec", str(spec), *options]
    return play("verifiers", "verifiers_run.py", folder, json.dumps(answers), command, *given)


def test_each_rollout_earns_what_the_spec_gives(tmp_path: Path) -> None:
    done = run(tmp_path, None, "vf-eval", FIRST, "-r", "2")
    assert [trace["rewards"] for trace in done["traces"]] == [{"rlenv": {"score": 1.0, "weight": 1.0}}] * 6, done["out"]
    assert {trace["key"] for trace in done["traces"]} == {f"rlenv/first-v0:train:{index}" for index in range(3)}
    assert all(trace["ok"] and trace["metrics"]["success"] == 1.0 for trace in done["traces"])


def test_the_oracle_is_valid_and_doing_nothing_is_not(tmp_path: Path) -> None:
    done = run(tmp_path, None, "vf-validate", FIRST, "--runtime.type", "subprocess")
    assert [result["valid"] for result in done["results"]] == [True] * 3, done["out"]


def test_an_exported_package_is_found_by_its_name(tmp_path: Path) -> None:
    assert main(["export", "verifiers", str(FIRST), str(tmp_path / "made")]) == 0
    path = f"{tmp_path / 'made'}:{ROOT}:{ROOT / 'trainers'}"
    given = ["null", "vf-validate", "rlenv-first", "--runtime.type", "subprocess"]
    done = play("verifiers", "verifiers_run.py", tmp_path, *given, PYTHONPATH=path)
    assert [result["valid"] for result in done["results"]] == [True] * 3, done["out"]


def test_a_judge_that_is_down_leaves_no_number(tmp_path: Path) -> None:
    done = run(tmp_path, None, "vf-eval", JUDGED)
    for trace in done["traces"]:
        assert (trace["ok"], trace["rewards"], trace["metrics"]) == (False, {"rlenv": None}, {}), done["out"]
        assert trace["errors"] == ["TaskError"]
        assert trace["end"]["failure"]["reason"] == "reward"
    assert len(done["traces"]) == 3


def test_an_endpoint_that_refuses_is_the_providers_error(tmp_path: Path) -> None:
    done = run(tmp_path, [401], "vf-eval", f"{HEAD}rewards: {{{RIGHT}}}\n")
    (trace,) = done["traces"]
    assert (trace["ok"], trace["errors"]) == (False, ["ProviderError"]), done["out"]
    assert not any(trace["rewards"].values())


def test_terms_that_compare_answers_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, ["<answer>5</answer>"], "vf-eval", COMPARED)
    assert done["rc"] != 0
    assert "the terms best of made compare the answers to one task" in done["out"]


def test_terms_that_compare_answers_are_left_out_where_asked(tmp_path: Path) -> None:
    done = run(tmp_path, ["<answer>5</answer>"], "vf-eval", COMPARED, "--env.taskset.group-terms", "drop")
    assert done["traces"][0]["rewards"]["rlenv"]["score"] == 1.0, done["out"]
    assert "term/best" not in done["traces"][0]["metrics"]


def test_a_simulated_user_is_heard(tmp_path: Path) -> None:
    done = run(tmp_path, ["What?", "<answer>5</answer>"], "vf-eval", HEARD)
    assert done["traces"][0]["end"]["turns"] == 2, done["out"]
    assert done["asked"][-1] == ["user", "assistant", "user"]


def test_calls_in_the_text_of_a_dialect_are_run(tmp_path: Path) -> None:
    done = run(tmp_path, ["<search>2+3</search>", "<answer>5</answer>"], "vf-eval", SEARCHED)
    assert done["traces"][0]["rewards"]["rlenv"]["score"] == 1.0, done["out"]


def test_a_rollout_that_a_limit_of_the_host_stops_is_scored(tmp_path: Path) -> None:
    done = run(tmp_path, ["What?"], "vf-eval", HEARD, "--env.agent.max-turns", "1")
    (trace,) = done["traces"]
    assert trace["rewards"]["rlenv"]["score"] == 0.0, done["out"]
    assert trace["end"]["failure"] is None
