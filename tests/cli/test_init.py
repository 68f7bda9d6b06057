"""`rlenv init --from`: configurations of other programs become specs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.cli.init import read_servers
from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.language.loader import load_spec

PYDATA = """
[
    {'mcpServers': {
        'time': {'command': 'python', 'args': ['-m', 'mcp_server_time', '--local-timezone=Asia/Shanghai']},
    }},
    {'mcpServers': {
        'search': {'type': 'streamable_http', 'url': 'http://127.0.0.1:8000/mcp', 'sse_read_timeout': 30},
        'old search': {'url': 'http://127.0.0.1:8001/sse'},
    }},
    'code_interpreter',
]
"""


def read(tmp_path: Path, text: str) -> dict[str, dict[str, Any]]:
    file = tmp_path / "servers.txt"
    file.write_text(text, encoding="utf-8")
    return read_servers(file)


def test_rl_factorys_file_becomes_entries(tmp_path: Path) -> None:
    assert read(tmp_path, PYDATA) == {
        "time": {"kind": "mcp", "command": ["python", "-m", "mcp_server_time", "--local-timezone=Asia/Shanghai"]},
        "search": {"kind": "mcp", "url": "http://127.0.0.1:8000/mcp", "timeout_s": 30.0},
        "old_search": {"kind": "mcp", "url": "http://127.0.0.1:8001/sse", "transport": "sse"},
    }


def test_the_common_json_becomes_entries_and_holds_no_secret(tmp_path: Path) -> None:
    servers = {
        "git": {"command": "mcp-server-git", "args": ["--repository", "${HOME}/work"], "env": {"API_KEY": "sk-123"}},
        "far": {"type": "http", "url": "https://example.org/mcp", "headers": {"Authorization": "Bearer abc", "X": "1"}},
        "sse": {"type": "sse", "url": "https://example.org/events"},
    }
    assert read(tmp_path, json.dumps({"mcpServers": servers})) == {
        "git": {
            "kind": "mcp",
            "command": ["mcp-server-git", "--repository", "${env:HOME}/work"],
            "env": {"API_KEY": "${env:API_KEY}"},
        },
        "far": {
            "kind": "mcp",
            "url": "https://example.org/mcp",
            "headers": {"Authorization": "${env:AUTHORIZATION}", "X": "1"},
        },
        "sse": {"kind": "mcp", "url": "https://example.org/events", "transport": "sse"},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "neither JSON"),
        ("[{'mcpServers': {'a': {'args': []}}}]", "expected 'command' or 'url'"),
        ("[{'other': {}}]", "expected 'mcpServers'"),
        ("[]", "names no servers"),
        ("[3]", "found a int"),
        ('{"mcpServers": []}', "'mcpServers' is a list"),
        ('{"mcpServers": {"a": {"command": ["x", {}]}}}', "where a text is expected"),
    ],
)
def test_what_is_no_configuration_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"servers\.txt") as raised:
        read(tmp_path, text)
    assert message in str(raised.value)


def test_init_writes_a_spec_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mcp_tools.pydata").write_text(PYDATA)
    folder = tmp_path / "moved"
    assert main(["init", str(folder), "--from", str(tmp_path / "mcp_tools.pydata")]) == 0
    assert "rlenv validate" in capsys.readouterr().out
    loaded = load_spec(folder / "moved.yaml")
    assert list(loaded.spec.tools) == ["time", "search", "old_search"]
    assert loaded.spec.tools["time"].kind == "mcp"
    assert [file.name for file in folder.iterdir()] == ["moved.yaml"]


@pytest.mark.parametrize("place", ["mcp.json", ".vscode/mcp.json", ".cursor/mcp.json"])
def test_what_a_server_names_beside_its_file_is_there_from_the_spec(tmp_path: Path, place: str) -> None:
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "server.py").write_text("")
    (tmp_path / "run").mkdir()
    servers = {
        "own": {"command": "python", "args": ["support/server.py", "--root=.", "run", "@scope/name", "-v1.0"]},
        "beside": {"command": "${workspaceFolder}/support/server.py", "args": ["${input:api-key}", "~/x"]},
        "within": {"command": "python3.11", "cwd": "support", "args": ["server.py"], "env": {"HOME_OF": "./support"}},
    }
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"servers": servers}))
    found = read_servers(file, folder=tmp_path / "made" / "here")
    assert found["own"]["command"] == [
        "python",
        "../../support/server.py",
        "--root=../..",
        "run",
        "@scope/name",
        "-v1.0",
    ]
    assert found["beside"]["command"] == [
        str(tmp_path / "support" / "server.py"),
        "${env:API_KEY}",
        str(Path.home() / "x"),
    ]
    assert found["within"] == {
        "kind": "mcp",
        "command": ["python3.11", "../../support/server.py"],
        "env": {"HOME_OF": "../../support"},
    }


def test_of_many_files_the_first_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "box"), "--from", "shell"]) == 0
    written = [path for path in (tmp_path / "box").rglob("*") if path.is_file()]
    named, _, more = capsys.readouterr().out.partition("\n")[0].partition(" and ")
    assert named.startswith(f"wrote {tmp_path}/box/box.yaml, ")
    assert (named.count(", "), more) == (5, f"{len(written) - 6} more files")
