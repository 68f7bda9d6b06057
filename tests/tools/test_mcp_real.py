"""Real MCP servers from the registries: `make servers` installs them, and each test runs where its server is there."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")

from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.testing.tools import call, context, kept
from rlenv.tools.base import Tool
from rlenv.tools.mcp import KIND, McpSpec

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(os.environ.get("RLENV_SERVERS", ROOT / ".servers"))
FOR_NODE = ("mcp-server-everything", "mcp-server-filesystem", "mcp-server-memory")
FOLDERS = ("py/bin", "py1/bin", "node/node_modules/.bin")

pytestmark = [pytest.mark.timeout(240), pytest.mark.servers]


def program(name: str) -> str:
    for folder in FOLDERS:
        if (INSTALLED / folder / name).exists():
            return str(INSTALLED / folder / name)
    # `make servers` leaves those written for Node out where there is no npm.
    left_out = "CI" not in os.environ or (name in FOR_NODE and shutil.which("npm") is None)
    why = f"{name} is not installed; run: make servers"
    if left_out:
        pytest.skip(why)
    pytest.fail(why)


def tools_of(name: str, *arguments: str, **keys: Any) -> dict[str, Tool]:
    spec = McpSpec(kind="mcp", command=(program(name), *arguments), timeout_s=100, start_timeout_s=90, **keys)
    return {tool.name: tool for tool in KIND.factory(name, spec, CompileContext(base=ROOT))}


def results(tools: dict[str, Tool], *calls: tuple[str, dict[str, Any]]) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        async with kept(lambda: context(seconds=120)) as make:
            return [await call(tools[name], arguments, within=make()) for name, arguments in calls]

    return asyncio.run(asyncio.wait_for(main(), 200))


def test_everything_gives_text_images_links_and_structured_content() -> None:
    tools = tools_of("mcp-server-everything", "stdio")
    assert len(tools) >= 13
    total, image, weather, links, resource, annotated, long, task = results(
        tools,
        ("get-sum", {"a": 2, "b": 40}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "New York"}),
        ("get-resource-links", {"count": 2}),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
        ("get-annotated-message", {"messageType": "error", "includeImage": True}),
        ("trigger-long-running-operation", {"duration": 0.2, "steps": 3}),
        ("simulate-research-query", {"topic": "x"}),
    )
    assert total.text == "The sum of 2 and 40 is 42."
    assert [one.mime for one in image.images] == ["image/png"]
    assert set(weather.value) == {"temperature", "conditions", "humidity"}
    assert links.text.count("[resource ") == 2
    assert "plaintext resource" in resource.text
    assert (annotated.outcome, len(annotated.images)) == ("ok", 1)
    assert long.text.startswith("Long running operation completed")
    assert task.outcome == "failed"


def test_everything_sees_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_SECRET", "never-to-be-seen")
    (result,) = results(tools_of("mcp-server-everything", "stdio", env={"SEEN": "yes"}), ("get-env", {}))
    assert "never-to-be-seen" not in result.text
    assert '"SEEN": "yes"' in result.text


def test_memory_keeps_what_it_was_told_for_a_session(tmp_path: Path) -> None:
    tools = tools_of("mcp-server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "graph.json")}, scope="episode")
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    made, graph = results(tools, ("create_entities", {"entities": [entity]}), ("read_graph", {}))
    assert made.outcome == "ok"
    assert graph.value["entities"] == [entity]
    assert tools["create_entities"].mutates
    assert not tools["read_graph"].mutates


def test_the_filesystem_is_kept_to_its_folder(tmp_path: Path) -> None:
    tools = tools_of("mcp-server-filesystem", str(tmp_path))
    wrote, read, refused = results(
        tools,
        ("write_file", {"path": str(tmp_path / "note.txt"), "content": "hello"}),
        ("read_text_file", {"path": str(tmp_path / "note.txt")}),
        ("read_text_file", {"path": "/etc/hostname"}),
    )
    assert (wrote.outcome, read.text) == ("ok", "hello")
    assert refused.outcome == "failed"


def test_the_time_server_converts_and_refuses() -> None:
    tools = tools_of("mcp-server-time", "--local-timezone", "UTC", include=("convert_time",))
    noon, nowhere = results(
        tools,
        ("convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
        ("convert_time", {"source_timezone": "Nowhere", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
    )
    assert "21:00" in noon.text
    assert nowhere.outcome == "failed"


def test_git_reads_a_repository(tmp_path: Path) -> None:
    program("mcp-server-git")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True, timeout=60)
    (tmp_path / "new.txt").write_text("x")
    tools = tools_of("mcp-server-git", "--repository", str(tmp_path))
    (status,) = results(tools, ("git_status", {"repo_path": str(tmp_path)}))
    assert "new.txt" in status.text


def test_a_server_of_the_first_protocol_versions_works_too(tmp_path: Path) -> None:
    tools = tools_of("mcp-server-sqlite", "--db-path", str(tmp_path / "toy.db"))
    made, wrote, rows = results(
        tools,
        ("create_table", {"query": "CREATE TABLE toy (name TEXT)"}),
        ("write_query", {"query": "INSERT INTO toy VALUES ('kite')"}),
        ("read_query", {"query": "SELECT name FROM toy"}),
    )
    assert (made.outcome, wrote.outcome) == ("ok", "ok")
    assert rows.text == "[{'name': 'kite'}]"


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_client_of_the_first_versions_plays_an_episode_of_ours(way: str) -> None:
    program("mcp-server-sqlite")  # it is there, and so is the SDK that it stands on
    script = ROOT / "tests" / "peers" / "scripts" / "mcp_first_client.py"
    command = [str(INSTALLED / "py1" / "bin" / "python"), str(script), sys.executable]
    serve = [sys.executable, "-m", "rlenv", "mcp", "arithmetic", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            url, token = re.findall("http://[0-9.:]+", said)[0], said.split()[-1]
            command += [url, token] if way == "http" else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("prompt").startswith("What is")
    assert told == {
        "tools": ["calculate", "clock", "finish_episode"], "made": ["1", "2", "3", "4"], "late": True,
        "outcome": {"total": 0.0, "reason": "final_message"},
    }  # fmt: skip
