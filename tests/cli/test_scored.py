"""`rlenv replay` and `rlenv view` over recorded episodes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.episodes.rollout import Job, rollout
from rlenv.policies.scripted import OraclePolicy
from rlenv.runs import files as record
from rlenv.runs.recorded import recorded as recorded_at
from rlenv.tasks.rows import seed_of
from rlenv.trajectory import Failure, RewardBreakdown, Trajectory


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of the oracle and three of a policy that guesses."""
    folder = tmp_path_factory.mktemp("recorded")
    assert main(["eval", "arithmetic", "--policy", "oracle", "-n", "3", "-o", str(folder / "gold"), "--json"]) == 0
    assert main(["eval", "arithmetic", "--policy", "random", "-n", "3", "-o", str(folder / "guess"), "--json"]) == 0
    return folder


def changed(recorded: Path, target: Path, **fields: object) -> Path:
    first, *rest = recorded_at(recorded / "gold")
    record.write(target, [dataclasses.replace(first, **fields), *rest])  # type: ignore[arg-type]
    return target


def test_the_same_environment_answers_the_same(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gold", "guess"):
        assert main(["replay", str(recorded / name)]) == 0
        assert "3 of 3 episodes came out the same" in capsys.readouterr().out


def test_the_tasks_of_a_run_are_written_with_how_often_they_succeeded(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, success in (("gold", 1.0), ("guess", 0.0)):
        out = tmp_path / f"{name}.jsonl"
        assert main(["runs", "tasks", str(recorded / name), str(out)]) == 0
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        asked = sorted((one.task_index, one.task) for one in recorded_at(recorded / name))
        assert [{**row, "measured": 0} for row in rows] == [{**task, "measured": 0} for _, task in asked]
        assert [row["measured"]["success"] for row in rows] == [success] * 3
        assert [row["measured"]["episodes"] for row in rows] == [1] * 3
        assert {row["measured"]["split"] for row in rows} == {one.split for one in recorded_at(recorded / name)}
        assert main(["runs", "tasks", str(recorded / name), str(out)]) == 2  # it is there
    assert "File exists" in capsys.readouterr().err


def test_what_came_out_differently_is_named_with_both_values(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(recorded / "gold"), "--set", "rewards.format.weight=0.5"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("episode ")
    assert f", test/0 seed {seed_of(0, 'test', 0)}:\n  reward: 1.1 before, 1.5 now\n" in said
    assert main(["replay", str(recorded / "gold"), "--set", "limits.turns=1", "--json", "-n", "1"]) == 1
    (entry,) = json.loads(capsys.readouterr().out)["different"]
    assert "turns: 2 before, 1 now" in entry["differences"]
    assert "success: True before, False now" in entry["differences"]


def test_an_observation_that_changed_is_shown(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = recorded_at(recorded / "gold")
    turn = first.turns[0]
    assert turn.observation is not None
    message = dataclasses.replace(turn.observation.messages[0], content="another result")
    observation = dataclasses.replace(turn.observation, messages=(message,))
    turns = (dataclasses.replace(turn, observation=observation), *first.turns[1:])
    file = changed(recorded, tmp_path / "t.jsonl", turns=turns)
    assert main(["replay", str(file)]) == 1
    said = capsys.readouterr().out
    assert "turn 1, observation: 'another result' before, " in said
    assert "2 of 3 episodes came out the same, 1 differently" in said


def test_a_row_that_is_another_one_now_is_played_as_it_was_recorded(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = changed(recorded, tmp_path / "t.jsonl", task_index=1)
    assert main(["replay", str(file)]) == 1
    assert "  task: row 1 of split 'test' is another one now; the recorded row was played\n" in capsys.readouterr().out


def test_an_episode_that_failed_is_not_played(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"failure": Failure("endpoint", "gone"), "reward": RewardBreakdown(None, {}), "success": None}
    file = changed(recorded, tmp_path / "t.jsonl", **fields)
    assert main(["replay", str(file)]) == 0
    assert "2 of 3 episodes came out the same, 0 differently, 1 had failed" in capsys.readouterr().out
    assert main(["replay", str(file), "-n", "1"]) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("glod", "did you mean"),
        ("", "is no run and has no trajectories.jsonl; name what is in it, such as"),
        ("nowhere", "there are no recorded trajectories"),
    ],
)
@pytest.mark.parametrize("command", [["replay"], ["view", "--text"]])
def test_a_file_that_is_not_there_is_told_with_the_nearest(
    recorded: Path, command: list[str], name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(recorded / name)]) == 2
    assert message in capsys.readouterr().err


def test_an_environment_that_does_not_ship_has_to_be_named(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = recorded_at(recorded / "gold")
    record.write(tmp_path / "t.jsonl", [dataclasses.replace(first, environment="rlenv/mine-v0")])
    assert main(["replay", str(tmp_path / "t.jsonl")]) == 2
    assert "recorded in rlenv/mine-v0; name the spec with --spec FILE" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "t.jsonl"), "--spec", "arithmetic"]) == 0


def test_view_shows_turns_calls_results_and_terms(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(recorded / "gold"), "--line", "2"]) == 0
    said = capsys.readouterr().out
    for part in ("test/1 · line 2", "turn 1", "calculate · ok ·", "<answer>", "correct", "1.100", "terminated"):
        assert part in said


def test_view_picks_episodes(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(recorded / "gold"), "-n", "2"]) == 0
    assert "2 of 3 episodes; -n shows more" in capsys.readouterr().out
    assert main(["view", str(recorded / "gold"), "--wrong"]) == 1
    assert "no episode is as asked" in capsys.readouterr().out
    fields = {"failure": Failure("endpoint", "[gone]"), "reward": RewardBreakdown(None, {}), "success": None}
    file = changed(recorded, tmp_path / "t.jsonl", **fields)
    assert main(["view", str(file), "--failed"]) == 0
    said = capsys.readouterr().out
    assert "1 of 1 episodes" in said
    assert "[gone]" in said
    assert main(["view", str(file), "--line", "9"]) == 2


def test_a_call_that_failed_for_want_of_the_infrastructure_is_named_as_such(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = recorded_at(recorded / "gold")
    turn = first.turns[0]
    down = dataclasses.replace(
        turn.results[0], outcome="failed", text="gone", reason="server_down", whose="infrastructure"
    )
    turns = (dataclasses.replace(turn, results=(down,)), *first.turns[1:])
    assert main(["replay", str(changed(recorded, tmp_path / "t.jsonl", turns=turns))]) == 1
    said = capsys.readouterr().out
    assert "turn 1, call 1 of 'calculate': it failed for want of the infrastructure before (server_down)" in said


GROUPED = """
rlenv: 1
name: grouped
tasks: {test: {rows: [{q: a, answer: "5"}, {q: b, answer: "6"}]}}
prompt: {user: "{{ task.q }}"}
rewards:
  correct: {kind: rule, rule: exact_match}
  rel: {kind: group, of: correct, by: rank, weight: 0.1}
oracle: [{say: "<answer>{{ task.answer }}</answer>"}]
"""


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    """Two samples of each of two tasks, whose reward compares them."""
    (tmp_path / "env.yaml").write_text(GROUPED)
    assert main(["eval", str(tmp_path / "env.yaml"), "-k", "2", "-o", str(tmp_path / "run"), "--json"]) == 0
    return tmp_path


@pytest.mark.parametrize("name", ["run", "run.jsonl", "rescored"])
def test_terms_of_a_group_are_measured_over_the_replayed_group(
    grouped: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ["--spec", str(grouped / "env.yaml")]
    record.write(grouped / "run.jsonl", recorded_at(grouped / "run"))
    assert main(["rescore", str(grouped / "run"), *spec, "-o", str(grouped / "rescored"), "--json"]) == 0
    assert main(["replay", str(grouped / name), *spec]) == 0
    assert capsys.readouterr().out.endswith("\n4 of 4 episodes came out the same, 0 differently\n")
    assert main(["replay", str(grouped / name), *spec, "--set", "rewards.rel.by=best"]) == 1
    assert "  reward rel: 0.5 before, 1.0 now\n" in capsys.readouterr().out


@pytest.mark.parametrize("held", ["x", None, [1]])
def test_a_run_that_names_no_keys_as_set_replays_by_its_spec_alone(
    grouped: Path, held: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = grouped / "run" / "run.json"
    info = json.loads(file.read_text())
    info["facts"]["set"] = held
    file.write_text(json.dumps(info))
    assert main(["replay", str(grouped / "run")]) == 0


@pytest.mark.parametrize("name", ["run", "run.jsonl"])
def test_terms_of_a_group_of_which_a_part_is_replayed_are_not_compared_and_that_is_told(
    grouped: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write(grouped / "run.jsonl", recorded_at(grouped / "run"))
    argv = ["replay", str(grouped / name), "--spec", str(grouped / "env.yaml"), "-n", "3"]
    capsys.readouterr()
    assert main(argv) == 0
    assert capsys.readouterr().out == (
        "3 of 3 episodes came out the same, 0 differently\n"
        "rel and the reward with it are not compared in 1: only a part of their group was replayed\n"
    )
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"rel": 1}
    assert main([*argv, "--set", "rewards.correct.expect=7", "--json"]) == 1
    found = {one["line"]: one["differences"] for one in json.loads(capsys.readouterr().out)["different"]}
    assert found[1][:2] == ["reward correct: 1.0 before, 0.0 now", "reward: 1.05 before, 0.05 now"]
    assert found[3] == ["reward correct: 1.0 before, 0.0 now"]


def test_an_episode_that_was_kept_before_its_group_had_ended_replays_as_it_is(
    grouped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = load(str(grouped / "env.yaml"))

    async def played() -> list[Trajectory]:
        async with environment:
            policy = OraclePolicy(environment.spec, environment.parts.dialect)
            return await rollout(environment, policy, [Job("test", 0, seed) for seed in range(2)])

    record.write(grouped / "cut.jsonl", asyncio.run(played()))
    capsys.readouterr()
    assert main(["replay", str(grouped / "cut.jsonl"), "--spec", str(grouped / "env.yaml")]) == 0
    assert capsys.readouterr().out == "2 of 2 episodes came out the same, 0 differently\n"
