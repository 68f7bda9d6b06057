"""OpenEnv 0.10.0: its clients play a server of ours, its validator passes the server and what is exported, and its own
servers are worlds of our specs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rlenv
from rlenv.cli.main import main
from rlenv.hosts.serve import ServerLimits
from rlenv.messages import Message, ToolCall
from rlenv.trajectory import Trajectory
from tests.hosts.serving import DOWN, serving
from tests.peers.places import SCRIPTS, peer, play, run
from tests.support.environments import BASE, Make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.peers


def test_its_clients_play_a_server_of_ours(make_environment: Make, tmp_path: Path) -> None:
    with serving(make_environment(), limits=ServerLimits(sessions=4, queue_s=0)) as served:
        seen = play("openenv", "openenv_client.py", tmp_path, served.url, "4")
        served.wait_for(lambda: served.server.slots.active == 0)
    assert seen["prompt"] == "What is 2 + 3?"
    assert seen["step"] == ["5", 0.0, False]
    assert seen["state"] == ["e1", 1]
    assert "VALIDATION_ERROR" in seen["bad action"]
    assert seen["last"] == [1.0, True, {"correct": 1.0}]
    assert seen["capacity"][:4] == ["ok"] * 4
    assert "CAPACITY_REACHED" in seen["capacity"][4]
    assert (seen["many"], seen["sync"]) == (100.0, False)


def test_its_validator_passes_a_server_of_ours(make_environment: Make, tmp_path: Path) -> None:
    with serving(make_environment()) as served:
        done = run("openenv", ["openenv", "validate", "--url", served.url], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS  ") == 6


@pytest.mark.parametrize("text", [BASE, DOWN])
def test_its_validator_passes_an_exported_folder(text: str, make_environment: Make, tmp_path: Path) -> None:
    path, folder = make_environment(text).loaded.path, tmp_path / "exported"
    assert main(["export", "openenv", str(path), str(folder)]) == 0
    done = run("openenv", ["openenv", "validate", str(folder), "--level", "static", "--skip-build"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: PASS" in done.stdout


WORLD = """
rlenv: 1
name: outer
tasks: {train: {rows: [{secret: 7}]}}
resources: {world: {kind: openenv, url: "URL", arguments: {secret: "{{ task.secret }}"}, start_timeout_s: 0}}
prompt: {user: "{{ resources.world.text }}"}
tools: {act: {kind: openenv, resource: world}}
rewards: {paid: {kind: rule, rule: value, value: "{{ resources.world.total }}"}}
success: paid >= 0.5
limits: {turns: 9}
"""


@contextmanager
def theirs(folder: Path) -> Iterator[dict[str, str]]:
    """The addresses of servers of their own, which run meanwhile."""
    file = folder / "addresses.json"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(peer("openenv")), str(SCRIPTS / "openenv_server.py"), str(file)]
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            wait_until(lambda: file.exists() or process.poll() is not None, what="the servers", seconds=90)
            yield json.loads(file.read_text())
        finally:
            process.kill()


def played(url: str, folder: Path, *calls: tuple[str, dict[str, object]]) -> Trajectory:
    """An episode of these calls, a turn each; then the policy stops."""
    (folder / "env.yaml").write_text(WORLD.replace("URL", url))

    async def main() -> Trajectory:
        async with rlenv.load(folder / "env.yaml") as environment, environment.start() as episode:
            for name, arguments in calls:
                if not episode.is_ended:
                    await episode.step(Message("assistant", "", (ToolCall(name, arguments),)))
            if not episode.is_ended:
                await episode.step("I stop here.")
            return episode.trajectory

    return asyncio.run(main())


def texts(trajectory: Trajectory) -> list[str]:
    return [result.text for turn in trajectory.turns for result in turn.results]


def test_a_server_of_theirs_is_a_world(tmp_path: Path) -> None:
    with theirs(tmp_path) as urls:
        won = played(urls["guessing"], tmp_path, ("act", {"number": 5}), ("act", {"number": 7}))
        assert won.messages[-1].content == '{"hint":"Guess."}'
        assert texts(won) == ['{"hint":"Higher."}', '{"hint":"Right."}']
        assert (won.terminated, won.reason, won.reward.total, won.success) == (True, "tool", 0.75, True)

        told = played(urls["guessing"], tmp_path, ("act", {"number": -1}), ("act", {"number": "x"}))
        assert (texts(told)[0], told.reward.total) == ("the action failed: out of order", 0.0)

        tools = played(urls["tools"], tmp_path, ("divide", {"a": 1, "b": 4}), ("divide", {"a": 1, "b": 0}))
        assert texts(tools)[0] == "0.25"
        assert "division by zero" in texts(tools)[1]
        assert [result.outcome for turn in tools.turns for result in turn.results] == ["ok", "failed"]

        lost = played(urls["guessing"], tmp_path, ("act", {"number": 9}), ("act", {"number": -2}))
    assert (lost.reward.total, lost.truncated, lost.reason) == (None, True, "resource")
