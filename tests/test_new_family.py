"""The page that declares a family from nothing: all that it shows is run, and says what it shows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlenv.checks.validate import validate
from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.messages import Message, ToolCall

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extend" / "new-family.md"
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
WHOLE = next(text for kind, text in BLOCKS if kind == "yaml")
TEMPLATE = next(text for kind, text in BLOCKS if kind == "jinja")
FRAGMENTS = [text for kind, text in BLOCKS if kind == "yaml"][1:]
MISTAKES = [
    (text, BLOCKS[index + 1][1].strip())
    for index, (kind, text) in enumerate(BLOCKS[:-1])
    if kind == "yaml" and BLOCKS[index + 1][0] == "text"
]
SOUND = [text for text in FRAGMENTS if text not in dict(MISTAKES)]


def with_dialect(fragment: str) -> str:
    """The page's spec with another dialect."""
    spec = yaml.safe_load(WHOLE)
    spec["dialect"] = yaml.safe_load(fragment)["dialect"]
    return yaml.safe_dump(spec, allow_unicode=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tern.yaml").write_text(WHOLE)
    (tmp_path / "tern.jinja").write_text(TEMPLATE)
    (tmp_path / "tags.yaml").write_text(with_dialect(SOUND[0]))
    return tmp_path


def model(folder: Path) -> None:
    """A tokenizer that has the family's marks."""
    tokenizers = pytest.importorskip("tokenizers")
    from rlenv.testing.tokens import small_tokenizer

    marks = ["<go>", "<~>", "<~system~>", "<~user~>", "<~tern~>", "<~results~>", "<run>", "</run>", "<muse>", "</muse>"]
    tokenizer = tokenizers.Tokenizer.from_str(small_tokenizer().to_str())
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=False, normalized=False) for mark in marks])
    (folder / "tern-model").mkdir()
    tokenizer.save(str(folder / "tern-model" / "tokenizer.json"))


def test_the_page_has_what_these_tests_look_for() -> None:
    assert len(MISTAKES) == 9
    assert len(SOUND) == 2


@pytest.mark.slow
def test_the_commands_run(folder: Path) -> None:
    ran = []
    for kind, text in BLOCKS:
        for line in text.splitlines() if kind == "sh" else ():
            words = shlex.split(line, comments=True)
            if words[1] == "tokens":
                model(folder)
            assert words[0] == "rlenv"
            assert main(words[1:]) == 0, line
            ran.append(words[1])
    assert ran == ["validate", "list", "eval", "tokens"]


def test_the_python_runs(folder: Path) -> None:
    codes = [text for kind, text in BLOCKS if kind == "python"]
    assert len(codes) == 2
    for code in codes:
        exec(compile(code, PAGE.name, "exec"), {})


@pytest.mark.parametrize("fragment", SOUND)
def test_other_dialects_of_the_page_are_sound(fragment: str, folder: Path) -> None:
    path = folder / "other.yaml"
    path.write_text(with_dialect(fragment))
    assert validate([path]).faults == ()
    assert main(["eval", str(path), "--policy", "oracle", "--min-success", "1"]) == 0


@pytest.mark.parametrize(("fragment", "said"), MISTAKES, ids=[said.partition(":")[0] for _, said in MISTAKES])
def test_a_mistake_is_told_in_the_words_of_the_page(fragment: str, said: str, folder: Path) -> None:
    path = folder / "other.yaml"
    path.write_text(with_dialect(fragment))
    faults = validate([path]).faults
    assert [f"{fault.path}: {fault.message}; {fault.hint}" for fault in faults] == [said]


@pytest.mark.parametrize("by", ["row", "template"])
def test_row_and_template_write_the_conversation_of_the_page(by: str, folder: Path) -> None:
    path = folder / "tern.yaml"
    if by == "template":
        path.write_text(with_dialect(SOUND[1]))
    environment = load(path)
    dialect = environment.parts.dialect
    call = ToolCall("calculate", {"expression": "17 * 23"})
    start = [Message("system", "Be brief."), Message("user", "What is 17 * 23?")]
    thought = "<muse>\nBetter calculate.\n</muse>\n\n" + dialect.render_action(Message("assistant", "", (call,)))
    text = dialect.render_prompt(start, environment.tool_schemas) + thought
    text += dialect.render_observation([Message("tool", "391", name="calculate")])
    text += "<answer>391</answer>" + dialect.render_observation([Message("user", "-")]).partition("\n")[0] + "\n"
    shown = next(text for kind, text in BLOCKS if kind == "text")
    before, _, behind = shown.partition(" …")
    assert text.startswith(before)
    assert text.endswith(behind)
    action = environment.parse(thought)[1]
    assert (action.thinking, action.content) == ("Better calculate.", "")
    assert [dict(one.arguments) for one in action.calls if isinstance(one, ToolCall)] == [{"expression": "17 * 23"}]


def test_both_forms_of_the_page_are_read(folder: Path) -> None:
    parse = load(folder / "tern.yaml").parse
    written: dict[str, Any] = {"tool": "calculate", "with": {"expression": "1 + 1"}}
    for text in (f"<run>{json.dumps(written)}</run>", '<run>[calculate(expression="1 + 1")]</run>'):
        (call,) = parse(text)[1].calls
        assert isinstance(call, ToolCall)
        assert (call.name, call.arguments) == ("calculate", {"expression": "1 + 1"})
