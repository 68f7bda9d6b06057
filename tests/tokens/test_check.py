"""The exactness linter: what it finds on every template that is there, and what it says where ids differ."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rlenv import record
from rlenv.cli.main import main
from rlenv.errors import UsageError
from rlenv.testing.tokens import CHAT_TEMPLATE, small_tokenizer
from rlenv.tokens import TokenEncoder
from rlenv.tokens.check import check, compare
from rlenv.tokens.load import load_tokenizer
from tests.tokens import real
from tests.tokens.test_families import FAMILIES, REWRITING, bound

SMALL = TokenEncoder(small_tokenizer(), chat_template=CHAT_TEMPLATE)
# A template that closes a turn in one way for its own text and in another for history.
MOVING = CHAT_TEMPLATE.replace(
    "'<|im_start|>assistant\\n' + (message.content", "'<|im_start|>assistant \\n' + (message.content"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer as models publish it."""
    (tmp_path / "tokenizer.json").write_text(small_tokenizer().to_str())
    config = {"chat_template": CHAT_TEMPLATE, "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_template_that_only_grows_is_exact() -> None:
    report = check(lambda: SMALL, name="small", dialogues=60)
    assert report.is_exact
    assert {finding.status for finding in report.findings} == {"ok"}
    assert next(f for f in report.findings if f.name == "generated dialogues").cases == 60


@pytest.mark.skipif(not FAMILIES, reason=f"{real.TEMPLATES} is not there: it holds the chat templates")
@pytest.mark.parametrize("family", FAMILIES or ["none"])
def test_every_template_is_exact_or_named(family: str) -> None:
    report = check(lambda: bound(family), name=family, dialogues=12)
    by_name = {finding.name: finding for finding in report.findings}
    assert report.is_exact, report
    expected = "split" if family.removeprefix("tool_chat_template_") in REWRITING else "ok"
    assert by_name["results"].status == expected
    assert by_name["hostile results"].status == "ok"


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5"])
def test_the_real_tokenizers_are_exact(family: str) -> None:
    encoder = TokenEncoder(real.qwen(family), chat_template=real.template(family))
    report = check(lambda: encoder, name=family, dialogues=40)
    assert report.is_exact
    assert next(f for f in report.findings if f.name == "hostile results").cases > 60


def test_a_template_that_rewrites_turns_is_named() -> None:
    encoder = TokenEncoder(small_tokenizer(), chat_template=MOVING)
    report = check(lambda: encoder, name="moving", dialogues=5)
    by_name = {finding.name: finding for finding in report.findings}
    assert by_name["results"].status == "split"
    assert "after turn 1 it writes" in by_name["results"].detail


def test_a_difference_is_shown_as_ids_and_texts_side_by_side() -> None:
    ids = SMALL.encode_text("the quick brown fox")
    difference = compare(SMALL, ids, [*ids[:2], 5, *ids[3:]])
    assert difference is not None
    assert difference.at == 2
    assert difference.found[2] == (5, SMALL.decode([5]))
    assert compare(SMALL, ids, ids) is None


def test_the_command_reports_for_people_and_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokens", "check", str(folder), "--dialogues", "10"]) == 0
    assert "exact" in capsys.readouterr().out
    assert main(["tokens", "check", str(folder), "arithmetic", "--dialogues", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_exact"]
    played = next(finding for finding in report["findings"] if finding["name"] == "dialogues of the environment")
    assert played["cases"] == 20


def test_the_command_fails_where_results_cannot_be_exact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upper = folder / "upper.jinja"
    changed = "'\\n<tool_response>\\n' + message.content | upper"
    upper.write_text(CHAT_TEMPLATE.replace("'\\n<tool_response>\\n' + message.content", changed))
    assert main(["tokens", "check", str(folder), "--template", str(upper), "--dialogues", "5"]) == 1
    shown = capsys.readouterr().out
    assert "refused" in shown
    assert "not exact" in shown


def test_files_of_a_tokenizer_may_be_packed(folder: Path) -> None:
    (folder / "tokenizer.json.gz").write_bytes(gzip.compress((folder / "tokenizer.json").read_bytes()))
    (folder / "tokenizer.json").unlink()
    loaded = load_tokenizer(str(folder))
    assert (loaded.eos_token, loaded.chat_template) == ("<|im_end|>", CHAT_TEMPLATE)
    assert TokenEncoder(loaded).stop == "<|im_end|>"
    with pytest.raises(UsageError, match="holds no tokenizer"):
        load_tokenizer(str(folder.parent))
    (folder / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match="is no tokenizer"):
        load_tokenizer(str(folder / "broken.json"))


def test_a_trajectory_is_shown_by_mask_and_turn(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "out"
    assert main(["eval", "arithmetic", "--policy", "oracle", "-n", "1", "-o", str(out)]) == 0
    capsys.readouterr()
    path = out / "trajectories.jsonl"
    assert main(["tokens", "explain", str(path), "--tokenizer", str(folder), "--ids"]) == 0
    shown = capsys.readouterr().out
    assert "[turn 1]" in shown
    assert "⟨" in shown
    turns = len(next(iter(record.read(path))).turns)
    assert f"{turns} turns" in shown
    assert main(["tokens", "explain", str(path), "--tokenizer", str(folder), "--index", "999999"]) == 2
