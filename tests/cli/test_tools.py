"""`rlenv tools` with its actions, and `rlenv validate --machine`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlenv import dialects
from rlenv.cli.main import main
from rlenv.cli.tools import environment_row
from rlenv.dialects.built_in import FAMILIES, family_text
from rlenv.language.shipped import shipped
from rlenv.messages import ToolCall
from tests.support.plug_ins import plug_in_dialect

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


def test_the_tools_that_a_row_declares_are_listed_called_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.yaml"
    rows = "[{question: a, tools: [{name: a.b}]}, {question: b, tools: [{name: c}]}]"
    entry = '{kind: python, function: "tools.py:api", schemas: "{{ task.tools }}"}'
    path.write_text(
        SPEC.replace('[{question: "What is 2 + 3?", answer: 5}]', rows).replace("{kind: calculator}", entry)
    )
    (tmp_path / "tools.py").write_text("def api(name: str, arguments: dict) -> str:\n    return name\n")
    for task, name, word in (("0", "a_b", "a.b"), ("1", "c", "c")):
        assert main(["tools", str(path), "--json", "--task", task]) == 0
        assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["calculate", name]
        assert main(["tools", str(path), "call", name, "{}", "--task", task]) == 0
        assert capsys.readouterr().out == f"{word}\n"
        main(["tools", str(path), "check", "--task", task])
        assert f"-     {name}" in capsys.readouterr().out


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


def test_the_environments_that_ship_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["path"] for name, row in listed.items()} == {name: str(path) for name, path in shipped().items()}
    assert listed["arithmetic"]["tasks"] == {"train": 2000, "test": 500, "warmup": 4921}
    assert listed["arithmetic"]["tools"] == ["calculate", "clock"]
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, row in listed.items():
        (line,) = [line for line in lines if f" {name} " in line.partition("│")[0]]
        assert row["description"] in line
        assert all(tool in line for tool in row["tools"][:4])


def test_a_list_says_what_an_environment_lacks_here(tmp_path: Path) -> None:
    spec = tmp_path / "toy.yaml"
    spec.write_text(DIALECT_SPEC.replace("{calculate: {kind: calculator}}", "{far: {kind: mcp, command: [no-such]}}"))
    row = environment_row("toy", spec)
    assert row["tasks"] == {}
    assert row["tools"] == ["far"]
    assert "is not on PATH" in row["needs"]["program no-such"]
    code = "{code: {kind: code, sandbox: bubblewrap}}"
    spec.write_text(DIALECT_SPEC.replace("{calculate: {kind: calculator}}", code))
    assert "program bwrap" in environment_row("toy", spec)["needs"]


# `rlenv list dialects`: the list, and one dialect as the model sees it

DIALECT_SPEC = """
rlenv: 1
name: toy
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}]}}
prompt: {user: "{{ task.question }}"}
dialect:
  calls: [{open: "<do>", close: "</do>"}, {body: pythonic, open: "<py>", close: "</py>"}]
  chat: {turn: "[{role}]{content}[/]", result: "seen: {content}", tools: "{tools}"}
tools: {calculate: {kind: calculator}}
rewards: {correct: {kind: rule, rule: numeric_match, expect: "{{ task.answer }}"}}
"""


def test_all_dialects_are_listed_with_their_marks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "dialects", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(FAMILIES) <= set(listed)
    assert listed["hermes"] == [["json", "<tool_call>"]]
    assert main(["list", "dialects"]) == 0
    assert "json <tool_call>" in capsys.readouterr().out


@pytest.mark.slow(but=12)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_dialect_can_be_shown_and_its_calls_read_back(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "dialects", name, "--json"]) == 0
    texts = json.loads(capsys.readouterr().out)
    assert "USER" in texts["prompt"]
    assert "RESULT 1" in texts["what follows one call"]
    (call,) = dialects.get(name).parse(texts["a call"]).calls
    assert isinstance(call, ToolCall)
    assert (call.name, dict(call.arguments)) == ("search", {"query": "VALUE"})


@pytest.mark.parametrize("name", ["glm45", "GLM4.5"])
def test_what_a_family_is_is_printed_as_its_file_has_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "dialects", name, "--yaml"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == family_text("glm45").rstrip("\n")
    assert main(["list", "dialects", "glm4", "--yaml"]) == 2
    assert "of that family there is glm45" in capsys.readouterr().err


def test_the_dialect_of_a_spec_is_shown_with_its_tools_and_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(DIALECT_SPEC)
    assert main(["list", "dialects", str(path), "--json"]) == 0
    texts = json.loads(capsys.readouterr().out)
    assert texts["prompt"].startswith('[system]SYSTEM\n\n{"type": "function", "function": {"name": "calculate"')
    assert texts["a call"] == '<do>{"name": "calculate", "arguments": {"expression": "VALUE"}}</do>'
    assert texts["a call by form 2"] == '<py>[calculate(expression="VALUE")]</py>'
    assert texts["what follows two calls"] == "[/][user]seen: RESULT 1\nseen: RESULT 2[/][assistant]"


def test_line_breaks_and_control_characters_are_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(DIALECT_SPEC.replace("seen: {content}", "seen:\\n\\x07{content}"))
    assert main(["list", "dialects", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\x07" not in shown
    assert "[/][user]seen:⏎\n" in shown


def test_an_unknown_name_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "dialects", "qwen3_code"]) == 2
    assert "there is no dialect 'qwen3_code', and no spec at 'qwen3_code'; did you mean 'qwen3_coder'?" in (
        capsys.readouterr().err
    )
    assert main(["list", "dialects", "arithmetc"]) == 2
    assert "did you mean 'arithmetic'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--yaml"], "--yaml prints one dialect, and none is named; rlenv list dialects NAME --yaml"),
        (["hermes", "--yaml", "--json"], "not allowed with argument"),
        (["--set", "dialect=hermes"], "--set replaces keys of a spec, and none is shown; name a spec, or"),
        (["qwen3", "--set", "name=a"], "--set replaces keys of a spec"),
        (["hermes", "--yaml", "--set", "name=a"], "--set replaces keys of a spec"),
        (["foreign", "--yaml"], "'foreign' is of a plug-in, whose code says what it is; leave --yaml out"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plug_in_dialect(tmp_path, "foreign", factory="inline")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert status(["list", "dialects", *options]) == 2
    assert said in capsys.readouterr().err


def status(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as left:  # argparse's own way to refuse
        return int(left.code or 0)


def test_a_dialect_is_shown_by_any_of_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for name in ("glm45", "GLM4-5"):
        assert main(["list", "dialects", name]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
