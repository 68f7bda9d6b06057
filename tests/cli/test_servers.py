"""`rlenv editor lsp` as editors start it: a process that speaks the Language Server Protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.editor.server import frame
from rlenv.checks.editor.tree import LineIndex, to_utf16
from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.errors import MissingExtra
from rlenv.tools import search as bm25
from tests.support.editing import SMALL, SPEC, cursor
from tests.support.lsp import Client, client

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "faults"


def at(text: str) -> tuple[str, dict[str, int]]:
    """The text without its cursor, and the cursor's place as the protocol counts it."""
    whole, line, column = cursor(text)
    return whole, {"line": line - 1, "character": to_utf16(LineIndex(whole).line(line), column)}


def labels(one: Client, path: Path, text: str) -> list[str]:
    whole, place = at(text)
    uri = one.open(path, whole)
    answer = one.ask("textDocument/completion", textDocument={"uri": uri}, position=place)
    return [item["label"] for item in answer["result"]["items"]]


@pytest.mark.slow
def test_a_session_from_its_start_to_its_end(tmp_path: Path) -> None:
    with client(tmp_path) as one:
        path = tmp_path / "spec.yaml"
        assert "question" in labels(one, path, SPEC.replace("{{ task.question }}", "{{ task.‸ }}"))
        whole, place = at(SPEC.replace("success:", "suc‸cess:"))
        uri = one.open(path, whole)
        said = one.ask("textDocument/hover", textDocument={"uri": uri}, position=place)["result"]
        assert "What eval counts as success" in said["contents"]["value"]
        assert said["range"]["end"]["character"] == 7
        symbols = one.ask("textDocument/documentSymbol", textDocument={"uri": uri})["result"]
        tools = next(symbol for symbol in symbols if symbol["name"] == "tools")
        assert [child["name"] for child in tools["children"]] == ["query", "sum"]
        assert one.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unknown_column", "missing_keys", "duplicate_key"])
def test_diagnostics_are_the_faults_of_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    path = GOLDEN / f"{name}.yaml"
    faults = validate([path]).faults
    with client(GOLDEN, "--full", "0.3") as one:
        uri = one.open(path, path.read_text(encoding="utf-8"))
        found = one.diagnostics(uri, len(faults))
        starts = [diagnostic["range"]["start"] for diagnostic in found]
        assert starts == [{"line": fault.line - 1, "character": fault.column - 1} for fault in faults]
        assert [one["message"] for one in found] == [f"{fault.message}; {fault.hint}" for fault in faults]


@pytest.mark.slow
def test_a_text_is_looked_at_in_two_tiers_and_again_when_it_changes(tmp_path: Path) -> None:
    with client(tmp_path, "--pause", "0", "--full", "0.2") as one:
        broken = SMALL.replace("name: small", "name: Small").replace("task.answer", "task.answr")
        uri = one.open(tmp_path / "spec.yaml", broken)
        (quick,) = one.diagnostics(uri, 1)
        assert quick["range"]["start"]["line"] == 1
        assert len(one.diagnostics(uri, 2)) == 2
        name = {"start": {"line": 1, "character": 6}, "end": {"line": 1, "character": 7}}
        one.notify(
            "textDocument/didChange",
            textDocument={"uri": uri, "version": 2},
            contentChanges=[{"range": name, "text": "s"}],
        )
        (left,) = one.diagnostics(uri, 1)
        assert "answr" in left["message"]
        one.notify("textDocument/didChange", textDocument={"uri": uri, "version": 3}, contentChanges=[{"text": SMALL}])
        assert one.diagnostics(uri, 0) == []


@pytest.mark.slow
def test_columns_are_units_of_utf_16(tmp_path: Path) -> None:
    with client(tmp_path, "--pause", "0") as one:
        path = tmp_path / "spec.yaml"
        text = SMALL.replace("name: small", 'name: small\nvars: {"😀😀": 1, }}')
        uri = one.open(path, text)
        (found,) = one.diagnostics(uri, 1)
        assert found["range"]["start"] == {"line": 2, "character": 19}
        # An edit behind the two astral characters, counted as an editor does.
        span = {"start": {"line": 2, "character": 18}, "end": {"line": 2, "character": 20}}
        one.notify(
            "textDocument/didChange",
            textDocument={"uri": uri, "version": 2},
            contentChanges=[{"range": span, "text": "}"}],
        )
        assert one.diagnostics(uri, 0) == []
        assert "question" in labels(one, path, SMALL.replace("{{ task.question }}", "😀 {{ task.‸ }}"))


@pytest.mark.slow
def test_lines_that_only_yaml_breaks_are_one_line_of_the_editor(tmp_path: Path) -> None:
    with client(tmp_path, "--pause", "0") as one:
        uri = one.open(tmp_path / "spec.yaml", SMALL.replace("rlenv: 1", "# a\u2028rlenv: 2"))
        (found,) = one.diagnostics(uri, 1)
        assert found["range"]["start"] == {"line": 0, "character": 11}


_BAD = (
    (b"Content-Length: 3\r\n\r\n{{{", -32700),
    (b"Content-Length: x\r\n\r\n", -32700),
    (b"Content-Length: 2\r\n\r\n[]", -32600),
    (b'Content-Length: 8\r\n\r\n{"id":1}', -32600),
    (frame({"jsonrpc": "2.0", "id": 1, "method": "textDocument/unknown"}), -32601),
    (frame({"jsonrpc": "2.0", "id": 1, "method": "textDocument/hover", "params": {}}), -32602),
    (frame({"jsonrpc": "2.0", "id": 1, "method": "textDocument/hover", "params": [1]}), -32602),
    (
        frame({"jsonrpc": "2.0", "id": 1, "method": "textDocument/completion",
               "params": {"textDocument": {"uri": "file:///nowhere"}, "position": {"line": 0, "character": 0}}}),
        -32602,
    ),
)  # fmt: skip


@pytest.mark.slow
def test_messages_that_are_none_are_told_and_the_session_goes_on(tmp_path: Path) -> None:
    with client(tmp_path) as one:
        for sent, code in _BAD:
            one.raw(sent)
            assert one.wait(lambda message: "error" in message)["error"]["code"] == code
        assert labels(one, tmp_path / "a.yaml", "succ‸")


@pytest.mark.slow
def test_notifications_that_do_not_fit_are_passed_over(tmp_path: Path) -> None:
    with client(tmp_path) as one:
        uri = one.open(tmp_path / "a.yaml", "succ")
        bad: list[Any] = [{"text": 1}, {}, 7, {"range": {"start": {}, "end": {}}, "text": ""}]
        for change in bad:
            one.notify("textDocument/didChange", textDocument={"uri": uri}, contentChanges=[change])
        one.notify("textDocument/didChange", textDocument={"uri": "nowhere"}, contentChanges=[])
        one.notify("$/setTrace", value="off")
        one.notify("workspace/didChangeConfiguration", settings={})
        place = {"line": 0, "character": 4}
        answer = one.ask("textDocument/completion", textDocument={"uri": uri}, position=place)
        assert "success" in [item["label"] for item in answer["result"]["items"]]


@pytest.mark.slow
def test_a_file_that_prints_does_not_reach_the_client(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("print('Content-Length: 1')\ndef rows():\n    return 3\n", encoding="utf-8")
    with client(tmp_path, "--full", "0") as one:
        uri = one.open(
            tmp_path / "a.yaml", SMALL.replace("{rows: [{question: a, answer: b}]}", '{function: "rows.py:rows"}')
        )
        (found,) = one.diagnostics(uri, 1)
        assert "rows" in found["message"]
        assert one.end() == 0


@pytest.mark.slow
def test_requests_before_the_start_and_after_the_end_are_refused(tmp_path: Path) -> None:
    with client(tmp_path, starts=False) as one:
        assert one.ask("textDocument/hover")["error"]["code"] == -32002
        one.notify("exit")
        assert one.process.wait(timeout=60) == 1
    with client(tmp_path) as one:
        assert one.ask("shutdown")["result"] is None
        assert one.ask("textDocument/hover")["error"]["code"] == -32600


@pytest.mark.slow
def test_a_client_that_goes_away_ends_the_server(tmp_path: Path) -> None:
    with client(tmp_path) as one:
        assert one.process.stdin is not None
        one.process.stdin.close()
        assert one.process.wait(timeout=60) == 1


# `rlenv serve-search` as a process: it says where it listens, answers, and ends when it is told to

try:
    bm25._import_bm25()
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "\\"Kite\\"\\nA kite flies."}\n', encoding="utf-8")
    return path


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "rlenv", "serve-search", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_and_ends_cleanly_when_told_to(corpus: Path, tmp_path: Path, signum: signal.Signals) -> None:
    with started(str(corpus), "--port", "0", "--index", str(tmp_path / "index")) as (process, line):
        assert line.startswith("1 documents (bm25")
        url = line.split(" at ")[1].strip()
        body = json.dumps({"queries": ["kite"], "topk": 1, "return_scores": True}).encode()
        request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as response:
            answer = json.loads(response.read())
        assert answer["result"][0][0]["document"]["contents"] == '"Kite"\nA kite flies.'
        process.send_signal(signum)
        assert process.wait(20) == 0
    assert list((tmp_path / "index").iterdir())  # the next start reads it


def test_a_taken_port_is_named(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with started(str(corpus), "--port", "0", "--index", str(tmp_path / "index")) as (_, line):
        port = line.split(" at ")[1].split(":")[2].split("/")[0]
        assert main(["serve-search", str(corpus), "--port", port, "--index", str(tmp_path / "index")]) == 2
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["CORPUS", "--top-k", "0"], "--top-k is 1 to 1000"),
        (["CORPUS", "--port", "70000"], "--port 0 to 65535"),
    ],
)
def test_wrong_use_is_named(corpus: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    given = [str(corpus) if word == "CORPUS" else word for word in arguments]
    assert main(["serve-search", *given]) == 2
    assert words in capsys.readouterr().err
