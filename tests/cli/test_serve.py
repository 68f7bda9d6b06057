"""`rlenv mcp` and `rlenv gateway` as programs: one episode over standard input, and an agent's over HTTP, both kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import rlenv
from rlenv.cli.serve import GatewayCommand, McpCommand
from rlenv.errors import UsageError
from rlenv.testing.endpoint import FakeEndpoint
from tests.support.asked import Asks, Speaker, plays
from tests.support.hosts import CALLS, RIGHT, SPEC

ROOT = Path(__file__).resolve().parents[2]


def command(*words: str) -> dict[str, Any]:
    path = f"{ROOT}{os.pathsep}{ROOT / 'trainers'}"
    return {"args": [sys.executable, "-m", "rlenv", *words], "env": {**os.environ, "PYTHONPATH": path}}


@pytest.mark.slow
def test_a_process_is_an_episode_of_mcp(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(SPEC, encoding="utf-8")
    said = {"name": "finish_episode", "arguments": {"answer": "<answer>1</answer>"}}
    asked = [("initialize", {"protocolVersion": "2025-11-25"}), ("tools/list", {}), ("tools/call", said)]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": id, "method": one[0], "params": one[1]}) for id, one in enumerate(asked)
    ]
    words = ["mcp", "sums.yaml", "--task", "1", "-o", "run"]
    done = subprocess.run(
        **command(*words), cwd=tmp_path, input="\n".join(lines), text=True, capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    answers = {one["id"]: one["result"] for one in map(json.loads, done.stdout.splitlines())}
    assert answers[2]["structuredContent"]["success"] is True
    assert json.loads(done.stderr.splitlines()[-1])["success"] is True
    (row,) = rlenv.open_run(tmp_path / "run").rows()
    assert (row["success"], row["task"]) == (True, 1)


@pytest.mark.slow
def test_an_agent_plays_through_the_gateway_that_the_command_serves(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(SPEC, encoding="utf-8")

    async def main() -> Any:
        async with FakeEndpoint(Speaker([CALLS, RIGHT])) as model, aiohttp.ClientSession() as http:
            words = ["gateway", "sums.yaml", "--base-url", model.base_url, "--model", "m", "--port", "0", "-o", "run"]
            made = command(*words)
            process = await asyncio.create_subprocess_exec(
                *made["args"], env=made["env"], cwd=tmp_path, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                said = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
                root = said.partition(" at ")[2].partition(";")[0]
                driver = {"Authorization": said.rpartition("Authorization: ")[2].strip()}
                ask = Asks(http, root)
                assert (await ask("POST", "/episodes", {}))[0] == 401
                _, seat = await ask("POST", "/episodes", {"task": 0}, **driver)
                await plays(ask, seat)
                _, ended = await ask("POST", f"/episodes/{seat['episode']}/finish", {}, **driver)
            finally:
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), 60)
            return ended, process.returncode

    ended, code = asyncio.run(main())
    assert (ended["total"], code) == (pytest.approx(1.3), 0)
    (row,) = rlenv.open_run(tmp_path / "run").rows()
    assert row["reward"] == pytest.approx(1.3)


@pytest.mark.slow
def test_an_agent_that_knows_the_servers_address_opens_no_episode_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sums.yaml").write_text(SPEC, encoding="utf-8")
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}

    async def main(server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        said = server.stdout.readline()
        root, token = said.partition(" at ")[2].partition("/mcp;")[0], said.split()[-1]
        async with aiohttp.ClientSession() as http:
            ask = Asks(http, root)
            assert (await ask("POST", "/episodes", {}))[0] == 401
            assert (await ask("POST", "/mcp?task=0", hello))[0] == 401
            assert (await ask("POST", f"/mcp?task=0&token={token}", hello))[0] == 200
            status, seat = await ask("POST", "/episodes", {}, Authorization=f"Bearer {token}")
            assert (status, (await ask.rpc(seat["mcp_url"], "tools/list"))[0]) == (201, 200)

    with subprocess.Popen(
        **command("mcp", "sums.yaml", "--port", "0"), cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            asyncio.run(main(server))
        finally:
            server.terminate()


@pytest.mark.parametrize("kind", [McpCommand, GatewayCommand])
def test_an_address_that_others_reach_needs_a_token(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--token-env"):
        kind(host="0.0.0.0").token()
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    with pytest.raises(UsageError, match="expected 16 or more"):
        kind(token_env="SHORT_TOKEN").token()
