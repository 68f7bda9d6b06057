"""No text of a model, a tool, a server, a row or a record acts on the terminal, whatever command shows it."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlenv
from rlenv._base.text import visible
from rlenv.cli.console import Console
from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.errors import InvalidReward, PolicyError, SpecError, UsageError
from rlenv.rewards.rules.queries import UnreadableQuery, structure
from rlenv.runs import files as record
from rlenv.secrets import logger

EVIL = (
    "\x1b]0;TITLE\x07\x1b[2J\x1b]52;c;cm0=\x07\x1b[8mhidden\x1b[0m\r\x08\x9b31m\u202egnp.exe\u2066\x7f\u061c\ud800 "
    "[/b] [link=file:///x]y"
)
SPEC = """
rlenv: 1
name: toy
tasks: {{train: {{rows: [{{question: {evil}, answer: "1", group: {evil}}}], report_by: group}}}}
prompt: {{user: "{{{{ task.question }}}}"}}
tools: {{echo: {{kind: python, function: "t.py:echo", run_in: loop}}}}
rewards: {{correct: {{kind: rule, rule: exact_match}}}}
oracle:
  - call: {{echo: {{text: "{{{{ task.question }}}}"}}}}
  - say: "<answer>{{{{ task.question }}}}</answer>"
"""
# What a console of ours may write itself: colours and weights (SGR), and a progress bar's line.
_OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\r?\x1b\[(2K|1A)")
_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def acting(text: str) -> list[str]:
    """The characters of an output that a terminal would obey, colours left out."""
    assert "\x1b[8m" not in text  # hidden text is a colour to a terminal
    return _ACTING.findall(_OWN.sub("", text))


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text('def echo(text: str) -> str:\n    """Says it again."""\n    return text\n')
    path = tmp_path / "toy.yaml"
    path.write_text(SPEC.format(evil=json.dumps(EVIL.replace("\ud800", ""))))
    return path


@pytest.fixture
def recorded(spec: Path, tmp_path: Path) -> Path:
    async def play() -> Any:
        async with load(spec) as environment, environment.start() as episode:
            call = {"name": "echo", "arguments": {"text": EVIL}}
            await episode.step(f"<tool_call>{json.dumps(call)}</tool_call>")
            await episode.step("<answer>1</answer>")
            return episode.trajectory

    line = json.loads(record.dump(asyncio.run(play())))
    evil = json.loads(json.dumps(line))
    evil["turns"][0]["action"] = EVIL
    evil["turns"][0]["results"][0] |= {"text": EVIL, "name": EVIL}
    evil |= {"split": EVIL, "answer": EVIL, "reason": EVIL}
    evil["messages"][0]["content"] = EVIL
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (line, evil)))
    return path


COMMANDS = [
    ["view", "{recorded}"],
    ["view", "{recorded}", "--full"],
    ["eval", "{spec}"],
    ["eval", "{spec}", "--json"],
    ["play", "{spec}", "--policy", "oracle"],
    ["tools", "{spec}"],
    ["tools", "{spec}", "call", "echo", json.dumps({"text": EVIL})],
    ["tools", "{spec}", "call", "echo", json.dumps({EVIL: 1})],
    ["validate", "{spec}"],
    ["validate", "{spec}", "--set", "answer.tag=\x1b]0;x\x07"],
    ["validate", "{spec}", "--set", "oracle.0.call.echo={te\u202ext: 1}", "--json"],
    ["validate", "--machine", "{spec}"],
    ["replay", "{recorded}", "--spec", "{spec}"],
    ["rescore", "{recorded}", "--spec", "{spec}"],
    ["audit", "{spec}", "--attacked", "1"],
]


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("colours", [False, True], ids=["plain", "colours"])
@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(argv[:1] + argv[2:3])[:20])
def test_no_command_lets_text_through_to_the_terminal(
    argv: list[str],
    colours: bool,
    spec: Path,
    recorded: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    main([word.replace("{spec}", str(spec)).replace("{recorded}", str(recorded)) for word in argv])
    out, err = capsys.readouterr()
    assert out + err
    assert acting(out) == []
    assert acting(err) == []


RAISED = [
    UsageError(EVIL),
    PolicyError(EVIL),
    ExceptionGroup("many", [InvalidReward(EVIL), ExceptionGroup("more", [InvalidReward(EVIL), UsageError("two")])]),
    OSError(2, "No such file", "/tmp/" + EVIL),
    SystemExit(EVIL),
    SystemExit(0),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_a_command_raises_on_purpose_is_told_in_words_and_leaves_as_an_exit_code(
    error: BaseException, spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(args: object) -> int:
        raise error

    monkeypatch.setattr("rlenv.cli.validate.MachineCommand.execute", run)
    assert main(["validate", "--machine", str(spec)]) in (1, 2)
    err = capsys.readouterr().err
    assert err.startswith("rlenv: ")
    assert err.count("Traceback") == 0
    assert acting(err) == []


def test_a_bug_leaves_as_itself(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> int:
        raise ExceptionGroup("many", [UsageError("known"), ZeroDivisionError()])

    monkeypatch.setattr("rlenv.cli.validate.MachineCommand.execute", run)
    with pytest.raises(ExceptionGroup):
        main(["validate", "--machine", str(spec)])


def test_commands_write_through_one_module() -> None:
    """No command prints by itself: what is written passes `rlenv.cli.terminal` or `rlenv.cli.console`."""
    root = Path(rlenv.__file__).parent
    files = [*(root / "cli").glob("*.py"), *(root.parent / "trainers").rglob("*.py")]
    found = []
    for path in files:
        if path.name in ("terminal.py", "console.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.unparse(node) if isinstance(node, (ast.Call, ast.ImportFrom)) else ""
            if re.match(r"sys\.std(out|err)\.write|print\(|from rich\.console import .*\bConsole\b", text):
                found.append(f"{path.name}:{node.lineno}: {text}")  # type: ignore[attr-defined]
    assert found == []


def test_the_log_lets_nothing_through(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("rlenv.attack")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log.addHandler(handler)
    try:
        log.warning("a server said %s", EVIL)
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("a tool raised")
    finally:
        log.removeHandler(handler)
    assert acting(stream.getvalue()) == []
    assert "\\x1b]0;TITLE" in stream.getvalue()


def test_a_library_that_quotes_a_policys_query_lets_nothing_through(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("sqlglot")
    with pytest.raises(UnreadableQuery):
        structure(f"if {EVIL}", dialect="sqlite")
    assert "unsupported syntax" in caplog.text
    assert acting(caplog.text) == []


def test_a_fault_shows_a_hostile_line_as_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text('rlenv: 1\nname: "\\e]0;x\\a \u202e"\n', encoding="utf-8")
    assert main(["validate", str(path)]) == 1
    assert main(["eval", str(path)]) == 1
    out, err = capsys.readouterr()
    assert acting(out + err) == []
    with pytest.raises(SpecError):
        load(path)


@given(st.text(st.characters(), max_size=50))
def test_whatever_is_shown_has_no_acting_character_and_reads_as_before_otherwise(text: str) -> None:
    shown = visible(text)
    assert acting(shown) == []
    shown.encode()
    if not _ACTING.search(text):
        assert shown == text or any(unicodedata.category(one) == "Cf" or 0xE0000 <= ord(one) < 0xE0080 for one in text)
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=40).print(text, markup=False)
    assert acting(stream.getvalue()) == []


@given(st.text("[]/\\abclink=bold:* ", max_size=30))
def test_markup_of_others_never_fails(text: str) -> None:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=40).print(f"[bold]x[/bold] {text}")
    assert "\x1b]8" not in stream.getvalue()
