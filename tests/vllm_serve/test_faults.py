"""Requests that nobody waits for any more, and a server that dies and comes back."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from rlenv.runs import files as record
from tests.support.waiting import wait_until
from tests.vllm_serve.conftest import SPEC
from tests.vllm_serve.playing import as_template, evaluate, line
from tests.vllm_serve.serving import Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("mode", ["text", "tools"])
def test_an_episode_that_is_out_of_time_leaves_no_request_running(
    server: Server, model: Path, problems: Path, tmp_path: Path, mode: str
) -> None:
    given = ["--set", f"tasks.test.path={problems}", "--set", as_template(model), "-n", "4"]
    # Without end the model writes to the end of its window, far beyond the episode's time.
    given += ["--extra", "ignore_eos=true", "--extra", "min_tokens=800", "--max-tokens", "800"]
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.append(server.in_flight())
            time.sleep(0.1)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        played, _ = evaluate(server, SPEC, tmp_path / "out", "--mode", mode, "--set", "limits.episode_s=3", *given)
        at_end = time.monotonic()
        wait_until(lambda: server.in_flight() == 0, what="the server's requests are given up", seconds=60)
    finally:
        done.set()
        watching.join()
    assert max(seen) > 0
    assert [(one.reason, one.turns) for one in played] == [("time", ())] * 4
    assert time.monotonic() - at_end < 60


def test_a_server_that_dies_in_the_middle_costs_no_episode_a_number(
    model: Path, problems: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = [
        "--set",
        f"tasks.test.path={problems}",
        "--set",
        as_template(model),
        "--mode",
        "text",
        "--max-tokens",
        "96",
    ]
    given += ["--concurrency", "4", "--retries", "12", "--max-invalid", "1", "-n", "40"]
    with Server(model, tmp_path / "vllm.log") as server:
        episodes = out / "trajectories.jsonl"
        running = subprocess.Popen(line(server, SPEC, out, *given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: _lines(episodes) >= 4, what="four episodes are over", seconds=900)
            wait_until(lambda: server.in_flight() > 0, what="the server is at work", seconds=60)
            server.kill()
            before = _lines(episodes)
            wait_until(lambda: _lines(episodes) >= before + 4, what="episodes end without a server", seconds=300)
            server.start()
            said, _ = running.communicate(timeout=1800)
        finally:
            running.kill()
            running.wait()
    assert running.returncode == 0, said.decode()
    played = list(record.read(episodes))
    assert len(played) == 40
    lost = [one for one in played if one.reward.total is None]
    assert len(lost) >= 4
    for one in lost:
        assert one.failure is not None
        assert one.failure.reason == "policy"
        assert "no answer from the server" in one.failure.message
    assert len(played) - len(lost) > before  # later ones go on
    # Each of the others was played to its own end, by the server before or by the one after.
    assert all((one.failure is None and one.terminated) or one.reason == "turns" for one in played if one not in lost)


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
