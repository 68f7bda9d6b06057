"""tinker-cookbook, skyrl-gym and GEM as they are installed play an episode, and none counts an outage as a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.peers.places import play, run

pytestmark = [pytest.mark.peers, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = play("gem", "gem_faces.py", tmp_path_factory.mktemp("gem"), limit_s=300)
    return found


def test_gem_plays_an_episode_alone_and_three_at_once(faces: dict[str, Any]) -> None:
    gem = faces["gem"]
    assert gem["rewards"] == [0.0, 1.5]
    assert gem["ends"] == [[False, False], [True, False]]
    assert gem["several"] == [[1.0] * 3, [True] * 3]
    assert "What is 2 + 3?" in gem["prompt"]


def test_gem_shows_an_outage_as_nan(faces: dict[str, Any]) -> None:
    is_nan, is_truncated, failure = faces["gem"]["lost"]
    assert (is_nan, is_truncated, failure["reason"]) == (True, True, "reward")


def test_skyrl_gym_plays_an_episode_whose_tools_stand_in_its_prompt(faces: dict[str, Any]) -> None:
    skyrl = faces["skyrl"]
    assert (skyrl["rewards"], skyrl["done"], skyrl["roles"]) == ([0.0, 1.5], [False, True], ["user"])
    assert [message["role"] for message in skyrl["prompt"]] == ["system", "user"]
    assert '"name": "calculate"' in skyrl["prompt"][0]["content"]
    assert skyrl["prompt"][1]["content"] == "What is 2 + 3?"
    assert skyrl["metrics"]["success"] == 1.0


def test_skyrl_gym_ends_where_there_is_no_reward(faces: dict[str, Any]) -> None:
    assert faces["skyrl"]["refused"].startswith("the episode has no reward: ")


def test_tinker_trains_on_what_was_sampled(tmp_path: Path) -> None:
    found = play("tinker", "tinker_group.py", tmp_path, limit_s=300)
    plain, compared = found["plain"], found["compared"]
    assert sorted(plain["rewards"]) == [0.0, 0.0, 1.0, 1.0]
    assert plain["stops"] == ["completed"] * 4
    assert plain["trained"] == plain["sampled"] > 0
    assert plain["metrics"].keys() >= {"success", "term/correct", "stop/completed"}
    assert sorted(compared["rewards"]) == [0.0, 1.5]
    assert found["down"].startswith("InvalidReward: the episode has no reward: ")


PACKAGES = {"gem": "gem skyrl_gym", "inspect": "inspect_ai", "tinker": "tinker_cookbook", "trl": "trl"}


@pytest.mark.parametrize(("name", "packages"), (PACKAGES | {"verifiers": "verifiers"}).items())
def test_a_host_has_what_its_face_stands_on(name: str, packages: str, tmp_path: Path) -> None:
    done = run(name, ["python", "-m", "tests.support.hosts_contract", *packages.split()], tmp_path, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
