"""TRL trains through both doors: what is sampled is trained on as sampled, and an outage is in no group's mean."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rlenv
from tests.peers.places import play, run

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = play("trl", "trl_steps.py", tmp_path_factory.mktemp("trl"), limit_s=800)
    return found


@pytest.mark.parametrize("door", ["tokens", "sampled", "tools"])
def test_three_steps_move_the_policy(steps: dict[str, Any], door: str) -> None:
    found = steps[door]
    assert (found["steps"], found["moved"]) == (3, True)
    assert all(entry["grad_norm"] > 0 for entry in found["log"])


def test_rows_are_those_of_an_episode_that_is_played_by_itself(steps: dict[str, Any]) -> None:
    """Ids and mask of `TokenTrajectory`, for each sample of all three steps."""
    assert steps["tokens"]["different"] == 0


@pytest.mark.parametrize("door", ["tokens", "sampled"])
def test_the_sample_without_a_reward_is_masked_and_no_other(steps: dict[str, Any], door: str) -> None:
    found = steps[door]
    assert [at for at, reward in enumerate(found["rewards"]) if reward is None] == [1]
    assert [at for at, masked in enumerate(found["masked"]) if masked] == [1]
    known = [reward for reward in found["rewards"][:4] if reward is not None]
    assert found["log"][0]["reward"] == pytest.approx(sum(known) / 3)
    assert found["log"][0]["rlenv/sums/invalid"] == 1


def test_its_own_sampling_takes_ids_that_no_token_has(steps: dict[str, Any]) -> None:
    found = steps["sampled"]
    assert found["padded"]
    assert set(found["ends"]) <= {"turn_tokens", "response_tokens", "answer", "template", "invalid_actions", "turns"}


def test_a_tool_is_shown_to_trl_as_it_is(steps: dict[str, Any]) -> None:
    found = steps["tools"]
    assert found["schema"]
    assert [entry.get("rlenv/invalid") for entry in found["log"]] == [1, 0, 0]
    assert all(entry["tools/call_frequency"] == 1 for entry in found["log"])
    assert all(entry["tools/failure_frequency"] == 0 for entry in found["log"])


def test_what_would_learn_from_an_outage_or_from_nothing_is_refused(steps: dict[str, Any]) -> None:
    said = steps["refused"]
    for name, function in (("second", "rlenv_reward"), ("second tool", "environment_reward")):
        assert said[name].startswith(f"reward_funcs: reward_funcs has polite beside rlenv_trl.{function}")
    assert "the trainer never called its rollout_func" in said["deaf"]


def test_a_run_of_the_command_is_kept_as_others_are_and_goes_on(tmp_path: Path) -> None:
    """A tiny policy that knows nothing, one step, and then one more: episodes, figures and policy are in its folder."""
    model, folder = play("trl", "trl_model.py", tmp_path, limit_s=300)["model"], tmp_path / "run"

    def trained(*more: str) -> str:
        done = run("trl", ["python", "-m", "rlenv", "train", "--trainer", "trl", *more], tmp_path, limit_s=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    command = ["arithmetic", "--model", model, "-o", "run", "--save-every", "1"]
    sizes = ["per_device_train_batch_size=8", "num_generations=4", "--steps", "1", "--validation-tasks", "4"]
    command += [*sizes, "run.turn_tokens=8", "max_completion_length=32"]
    assert "  max_completion_length=32" in trained(*command, "--dry-run")
    assert not folder.exists()
    trained(*command)
    assert (folder / "trained" / "model.safetensors").is_file()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert any('"rlenv/arithmetic/episodes": 8.0' in line for line in lines)
    shown = run("trl", ["python", "-m", "rlenv", "runs", "show", "run"], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"episodes +│ 16 ", shown.stdout)

    said = trained("--resume", "run", "--steps", "2")
    assert "goes on from step 1" in said
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], len(summary["attempts"]), summary["ending"]) == (2, 2, {"how": "finished"})
    assert [step for step, _ in summary["training_reward"]] == [1, 2]
    assert (summary["failed_episodes"], summary["held_out_success"][0]["step"]) == (0, 0)
    assert summary["attempts"][1]["from_step"] == 1


def test_two_processes_make_one_run_in_which_each_sample_is_played_once(tmp_path: Path) -> None:
    """Six samples a process and four a group, so that one group is of both; nine held-out tasks, of which eight fit."""
    model = play("trl", "trl_model.py", tmp_path, limit_s=300)["model"]
    command = ["torchrun", "--nproc_per_node", "2", "-m", "rlenv", "train", "arithmetic", "--trainer", "trl"]
    command += ["--model", model, "-o", "run", "--steps", "2", "--validation-tasks", "9", "max_completion_length=32"]
    sizes = ["per_device_train_batch_size=6", "num_generations=4", "per_device_eval_batch_size=8", "run.turn_tokens=8"]
    done = run("trl", [*command, *sizes], tmp_path, limit_s=500, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(rlenv.open_run(tmp_path / "run").rows())
    played = Counter((row["step"], row["split"], row["task"], row["group"], row["sample"]) for row in rows)
    assert set(played.values()) == {1}
    groups = Counter((row["step"], row["group"]) for row in rows if row["split"] == "train")
    assert list(groups.values()) == [4] * 6
    assert sum(row["split"] == "test" for row in rows) == 2 * 8
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["kept_episodes"], len(summary["attempts"]), summary["held_out_tasks"]) == (40, 1, 8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["arithmetic", "--lora", "8"], "peft"),
        (["arithmetic", "--preset", "gpu"], "keys of GRPOConfig"),
        (["--resume", "nowhere"], "holds no run of TRL"),
        (["arithmetic", "--resume", "nowhere", "--seed", "1"], "leave out SPEC and key=value, --seed"),
    ],
)
def test_an_option_that_it_has_not_is_refused_with_what_it_would_need(
    words: list[str], said: str, tmp_path: Path
) -> None:
    done = run("trl", ["python", "-m", "rlenv", "train", "--trainer", "trl", *words], tmp_path, limit_s=200)
    assert done.returncode != 0
    assert said in done.stderr.replace("\n", " ")
