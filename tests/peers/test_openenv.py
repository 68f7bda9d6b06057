"""OpenEnv 0.10.0: its clients play a server of ours, and its validator passes the server and what is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.cli.main import main
from rlenv.hosts.serve import Limits
from tests.hosts.serving import DOWN, serving
from tests.peers.places import play, run
from tests.support.environments import BASE, Make

pytestmark = pytest.mark.peers


def test_its_clients_play_a_server_of_ours(make_environment: Make, tmp_path: Path) -> None:
    with serving(make_environment(), limits=Limits(sessions=4, queue_s=0)) as served:
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
