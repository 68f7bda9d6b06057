"""Specs in Inspect, by its function and by its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.places import play
from tests.peers.specs import COMPARED, FIRST, HEAD, HEARD, JUDGED, RIGHT, SEARCHED, written

pytestmark = pytest.mark.peers
NESTED = f"{HEAD}rewards: {{{RIGHT}}}\ntools: {{look: {{kind: python, function: 'tools.py:look'}}}}\n"
PLAYED = """
rlenv: 1
name: pair
tasks: {test: {rows: [{}]}}
prompt: {user: "You are the {{ task.player }}."}
user: {kind: players, roles: {asker: {}, helper: {}}}
tools:
  asks: {kind: calculator, offered: "{{ task.player == 'asker' }}"}
  helps: {kind: calculator, offered: "{{ task.player == 'helper' }}"}
rewards: {right: {kind: rule, rule: exact_match, expect: "yes"}}
"""
LOOK = '''
from pydantic import BaseModel


class Place(BaseModel):
    name: str


def look(places: list[Place], first: Place) -> str:
    """Looks at places.

    Args:
        places: where.
        first: where first.
    """
    return first.name
'''


def run(folder: Path, way: str, spec: Path | str, answers: Any, *options: str) -> Any:
    spec = written(folder, spec)
    return play("inspect", "inspect_run.py", folder, way, str(spec), json.dumps(answers), *options)


def test_the_mock_of_inspect_earns_what_the_spec_gives(tmp_path: Path) -> None:
    log = run(tmp_path, "mockllm", FIRST, None)
    assert (log["status"], log["task"], log["means"]) == ("success", "first", {"reward": 1.0, "success": 1.0})
    assert [sample["roles"] for sample in log["samples"]] == [["system", "user", "assistant", "tool", "assistant"]] * 6


def test_a_judge_that_is_down_leaves_every_sample_unscored(tmp_path: Path) -> None:
    log = run(tmp_path, "mockllm", JUDGED, None)
    assert (log["means"], log["unscored"]) == ({"reward": None, "success": None}, {"reward": 3, "success": 3})
    assert all("the judge did not answer" in sample["why"]["reward"] for sample in log["samples"])


@pytest.mark.parametrize("answer", ["writes on", "hangs"])
def test_a_model_that_hangs_until_the_episodes_time_is_over_leaves_no_number(tmp_path: Path, answer: str) -> None:
    spec = f"{HEAD}rewards: {{{RIGHT}}}\nlimits: {{episode_s: 2}}\n"
    log = run(tmp_path, "cli", spec, [answer])
    is_scored = answer == "writes on"
    assert (log["means"]["reward"], log["unscored"]["reward"]) == ((0.0, 0) if is_scored else (None, 1)), log["out"]


def test_each_player_is_shown_its_own_tools_and_the_log_has_those_messages_alone(tmp_path: Path) -> None:
    log = run(tmp_path, "mockllm", PLAYED, ["one", "two", "three", "four", "<answer>yes</answer>"] * 2)
    shown = {(prompt.partition(".")[0], *tools) for prompt, tools in log["shown"]}
    assert shown == {("You are the asker", "asks"), ("You are the helper", "helps")}
    for sample in log["samples"]:
        assert sample["roles"] == ["user", "assistant"] * (len(sample["roles"]) // 2)


def test_the_command_finds_the_task_by_its_name(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", FIRST, None, "--epochs", "2")
    assert (log["rc"], log["means"]) == (0, {"reward": 1.0, "success": 1.0}), log["out"]


def test_an_endpoint_that_refuses_is_an_error_of_the_sample(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", f"{HEAD}rewards: {{{RIGHT}}}\n", [401], "--no-fail-on-error")
    (sample,) = log["samples"]
    assert sample["error"], log["out"]
    assert sample["scores"] == {}


def test_terms_that_compare_answers_are_refused(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", COMPARED, ["<answer>5</answer>"])
    assert "the terms best of made compare the answers to one task" in log["out"]


def test_terms_that_compare_answers_are_left_out_where_asked(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", COMPARED, ["<answer>5</answer>"], "-T", "group_terms=drop")
    assert log["means"]["reward"] == 1.0, log["out"]


def test_a_simulated_user_is_heard(tmp_path: Path) -> None:
    log = run(tmp_path, "mockllm", HEARD, ["What?", "<answer>5</answer>"])
    assert log["samples"][0]["roles"] == ["user", "assistant", "user", "assistant"]
    assert log["means"]["reward"] == 1.0


def test_calls_in_the_text_of_a_dialect_are_run(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", SEARCHED, ["<search>2+3</search>", "<answer>5</answer>"])
    assert log["means"] == {"reward": 1.0, "success": 1.0}, log["out"]


def test_a_limit_of_inspect_ends_the_episode_and_it_is_scored(tmp_path: Path) -> None:
    log = run(tmp_path, "cli", HEARD, ["What?"], "--message-limit", "2")
    assert log["samples"][0]["scores"]["reward"] == 0.0, log["out"]


def test_schemas_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(LOOK, encoding="utf-8")
    log = run(tmp_path, "cli", NESTED, ["<answer>5</answer>"])
    parameters = log["tools"][0]["function"]["parameters"]
    assert parameters["properties"]["first"]["properties"]["name"]["type"] == "string", log["out"]
    assert parameters["properties"]["places"]["items"]["properties"]["name"]["type"] == "string"
