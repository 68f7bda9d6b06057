"""`rlenv tools` with its actions, and `rlenv validate --machine`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlenv.cli.main import main

SPEC = """
rlenv: 1
name: toy
tasks:
  train: {rows: [{question: "What is 2 + 3?", answer: 5}]}
prompt: {user: "{{ task.question }}"}
tools:
  calculate: {kind: calculator, example: {expression: "6 * 7"}, cache: {ttl_s: 60}}
  plain: {kind: calculator}
calls: {retries: 2, faults: {error: 1.0}, coerce: [number]}
rewards:
  correct: {kind: rule, rule: numeric_match, expect: "{{ task.answer }}"}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_tools_lists_policies(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", str(spec), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["policy"]["cache"]["ttl_s"] == 60
    assert first["policy"]["coerce"] == ["number"]
    assert second["policy"] == {key: value for key, value in first["policy"].items() if key != "cache"}
    assert second["policy"]["retries"] == 2
    assert main(["tools", str(spec)]) == 0
    assert "retries: 2" in capsys.readouterr().out


def test_tools_call_runs_one_in_both_forms(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["call", "plain", '{"expression": "2 + 3"}'], ["--call", "plain", '{"expression": "2 + 3"}']):
        assert main(["tools", str(spec), *words]) == 0
        assert capsys.readouterr().out == "5\n"
    assert main(["tools", str(spec), "call", "plain"]) == 2
    assert "expected nothing, 'call NAME ARGUMENTS' or 'check'" in capsys.readouterr().err


def test_tools_check_calls_each_example_without_faults(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", str(spec), "check"]) == 0
    out = capsys.readouterr().out
    assert "42" in out
    assert "plain  has no example" in out
    assert main(["tools", str(spec), "check", "--set", "tools.plain.example={expression: 1 +}"]) == 1
    assert "failed: cannot calculate" in capsys.readouterr().out


def test_doctor_says_what_is_there_and_what_is_lacking(
    spec: Path, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("IS_SET", "a-secret-value")
    assert main(["validate", "--machine", str(spec)]) == 0
    capsys.readouterr()
    with spec.open("a") as file:
        file.write(
            "endpoints:\n"
            f"  here: {{base_url: 'http://127.0.0.1:{port}/v1', model: m, api_key: '${{env:IS_SET}}'}}\n"
            "  gone: {base_url: 'http://127.0.0.1:1/v1', model: m, api_key: '${env:NOT_SET}'}\n"
        )
    assert main(["validate", "--machine", str(spec), "--json"]) == 1
    text = capsys.readouterr().out
    found = {one["what"]: one for one in json.loads(text)}
    assert found["variable IS_SET"]["lacks"] == ""
    assert "is not set" in found["variable NOT_SET"]["lacks"]
    assert found["variable NOT_SET"]["needed_by"] == "endpoints.gone.api_key"
    assert found[f"server http://127.0.0.1:{port}"]["lacks"] == ""
    assert "cannot be reached" in found["server http://127.0.0.1:1"]["lacks"]
    assert "a-secret-value" not in text


def test_doctor_names_a_program_that_is_not_there(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mcp", reason="needs the extra mcp")
    text = spec.read_text().replace("plain: {kind: calculator}", "s: {kind: mcp, command: [no-such-program-here]}")
    spec.write_text(text)
    assert main(["validate", "--machine", str(spec)]) == 1
    assert "program no-such-program-here is not on PATH" in capsys.readouterr().out


def test_retries_of_a_tool_that_may_not_be_repeated_are_a_fault_of_the_spec(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.py").write_text('def f(n: int) -> int:\n    "Gives n."\n    return n\n')
    entry = 'plain: {kind: python, function: "tools.py:f", retries: 1}'
    spec.write_text(spec.read_text().replace("plain: {kind: calculator}", entry))
    assert main(["validate", str(spec)]) == 1
    assert "tools.plain.retries: calls of this tool may not be repeated" in capsys.readouterr().out
