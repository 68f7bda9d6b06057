"""Trainers that cannot be installed here, called as their sources call: the same rows, and no number for an outage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.peers.places import ROOT, SCRIPTS

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = os.pathsep.join(str(ROOT / name) for name in (".", "trainers"))
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "token_trainers.py")],
        cwd=tmp_path_factory.mktemp("trainers"), env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    ends: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return ends


def test_areal_gets_the_rows_of_an_episode_and_rejects_one_without_a_reward(found: dict[str, Any]) -> None:
    alone, made = found["alone"], found["areal"]
    assert made[1] is None
    for one in (made[0], made[2]):
        assert one["input_ids"] == alone["ids"]
        assert one["loss_mask"] == [0] * alone["prompt"] + alone["mask"]
        assert one["versions"] == [7 if trained else -1 for trained in one["loss_mask"]]
        assert one["logprobs"] == [-0.5 if trained else 0.0 for trained in one["loss_mask"]]
        assert one["rewards"] == 1.5


def test_slime_gets_the_rows_of_an_episode_and_no_advantage_for_one_without_a_reward(found: dict[str, Any]) -> None:
    alone, slime = found["alone"], found["slime"]
    for at, one in enumerate(slime["samples"]):
        assert one["tokens"] == alone["ids"]
        assert one["response_length"] == len(alone["mask"])
        assert one["loss_mask"] == ([0] * len(alone["mask"]) if at == 1 else alone["mask"])
        assert (one["remove_sample"], one["status"], one["weight_versions"]) == (at == 1, "completed", ["7", "7"])
    assert slime["raw"] == [1.5, None, 1.5]
    assert slime["advantages"] == [0.0, 0.0, 0.0]


def test_slime_without_the_hook_for_rewards_is_refused(found: dict[str, Any]) -> None:
    assert found["slime"]["refused"].startswith("--custom-reward-post-process-path: ")


def test_skyrl_gets_the_rows_of_an_episode_and_the_others_mean_for_one_without_a_reward(
    found: dict[str, Any],
) -> None:
    alone, skyrl = found["alone"], found["skyrl"]
    # SkyRL's are played together, and any of them may be the second to ask.
    (lost,) = (at for at, mask in enumerate(skyrl["loss_masks"]) if not any(mask))
    for at in range(3):
        assert [*skyrl["prompt_token_ids"][at], *skyrl["response_ids"][at]] == alone["ids"]
        assert skyrl["loss_masks"][at] == ([0] * len(alone["mask"]) if at == lost else alone["mask"])
        assert len(skyrl["rewards"][at]) == len(alone["mask"])
    assert [sum(one) for one in skyrl["rewards"]] == [1.5, 1.5, 1.5]
    # one that has failed counts as cut
    assert skyrl["stop_reasons"] == [
        "length" if at == lost else "stop" for at in range(3)
    ]  # one that has failed counts as cut
