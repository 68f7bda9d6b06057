"""What a process of a run keeps of its episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.concurrency.lanes import Event
from rlenv.runs.events import Reel
from rlenv.runs.folder import open_run
from rlenv.runs.schema import Facts
from rlenv_train.keeping import Keeper
from tests.support.kept import episode
from tests.trainers.groups import RIGHT, SPEC, TOOLS, WRONG, play_group
from tests.trainers.loops import CALL, kept


def test_rows_say_which_attempt_they_are_of(tmp_path: Path) -> None:
    attempts = [{"number": 1, "from_step": 0}, {"number": 2, "from_step": 3, "lock": "abc"}]
    (tmp_path / "run.json").write_text(json.dumps({"kind": "train", "attempts": attempts}))
    keeper = Keeper(tmp_path)
    keeper.keep(episode(), Facts(step=4))
    (row,) = open_run(tmp_path).table.to_pylist()
    assert (row["attempt"], row["lock"]) == (2, "abc")
    keeper.close()


def test_events_have_the_lock_of_their_own_environment(tmp_path: Path) -> None:
    """Whatever was kept before, and from the first episode on."""
    attempt = {"number": 1, "from_step": 0, "lock": "one", "locks": {"toy-v0": "one", "other-v0": "two"}}
    (tmp_path / "run.json").write_text(json.dumps({"kind": "train", "attempts": [attempt]}))
    keeper = Keeper(tmp_path)
    for name in ("other-v0", "toy-v0"):
        lane = keeper.recorder.lane()
        event = keeper.recorder.look(lane, Event(kind="tool", name="ask", request=name))
        keeper.recorder.keep(lane, event.ended("ok"))
        keeper.keep(episode(environment=name), Facts(), lane)
    reel, rows = Reel.of(tmp_path), list(open_run(tmp_path).rows())
    assert [(row["lock"], reel.events(row["id"])[0].lock) for row in rows] == [("two",) * 2, ("one",) * 2]
    keeper.close()


def test_a_run_keeps_so_many_bodies_whatever_its_processes_are(tmp_path: Path) -> None:
    """A process that comes later counts what lies there."""
    facts = [Facts(step=step, mode="train") for step in range(40)]
    first = Keeper(tmp_path, keep_gb=1e-5)
    for one in facts:
        first.keep(episode(), one)
    first.close()
    second = Keeper(tmp_path, keep_gb=1e-5, writers=2)
    for one in facts:
        second.keep(episode(), one)
    second.close()
    rows = open_run(tmp_path).table.to_pylist()
    assert len(rows) == 80
    with_body = sum(row["has_body"] for row in rows)
    assert 8 <= with_body < 40
    assert second.keep(episode(), Facts(mode="greedy")) in {
        row["id"] for row in open_run(tmp_path).table.to_pylist() if row["has_body"]
    }
    second.close()


def test_what_cannot_be_written_is_told_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    run.write_text("a file is in the way")
    keeper = Keeper(run)
    assert [keeper.keep(episode(), Facts()) for _ in range(3)] == [""] * 3
    keeper.append_late("", fate="trained")
    assert (keeper.lost, len(caplog.records)) == (3, 1)
    run.unlink()
    assert keeper.keep(episode(), Facts())
    keeper.close()


def test_a_groups_terms_come_later_than_its_episodes(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    outputs = play_group(tmp_path, tokenizer, [[RIGHT], [CALL, WRONG]], spec=SPEC, files={"tools.py": TOOLS})
    rewards = [output.reward_score for output in outputs]
    reader = open_run(tmp_path / "records")
    assert sorted(row["reward"] for row in reader.rows()) == [0.0, 1.0]
    found = {row["id"]: (row, trajectory) for row, trajectory in kept(tmp_path / "records")}
    for output, reward in zip(outputs, rewards, strict=True):
        row, trajectory = found[output.extra_fields["rlenv"]["id"]]
        assert (row["reward"], trajectory.reward.total, row["group"]) == (reward, reward, "u1")


@pytest.mark.parametrize("says", ["required: true", "on_invalid: raise"])
def test_an_episode_that_fails_with_its_group_has_failed(verl: Any, tmp_path: Path, tokenizer: Any, says: str) -> None:
    spec = SPEC.replace("of: correct, by: rank,", f'function: "tools.py:refuses", {says},')
    play_group(tmp_path, tokenizer, [[RIGHT], [WRONG]], spec=spec, files={"tools.py": TOOLS})
    found = kept(tmp_path / "records")
    assert [(row["failure"], row["reward"], row["success"]) for row, _ in found] == [("reward", None, None)] * 2
    assert all(one.failure is not None and one.failure.reason == "reward" for _, one in found)
    assert all(row["failure_message"] for row, _ in found)


def test_an_episode_whose_server_is_gone_is_kept_as_far_as_it_came(verl: Any, tmp_path: Path, tokenizer: Any) -> None:
    play_group(tmp_path, tokenizer, [[CALL, ConnectionError("gone")]], spec=SPEC, files={"tools.py": TOOLS})
    ((row, trajectory),) = kept(tmp_path / "records")
    assert (row["failure"], row["turns"], row["reward"]) == ("server", 1, None)
    assert trajectory.failure is not None
    assert "gone" in trajectory.failure.message
