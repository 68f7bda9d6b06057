"""A model that reads a spec: what it is shown, what becomes of its reply, and that no reply is no pass."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import Report, validate
from rlenv.cli.main import main
from rlenv.endpoints import Endpoint
from rlenv.messages import Sampled
from rlenv.testing.endpoint import FakeEndpoint, Given, Reply

SPEC = """
rlenv: 1
name: prices
endpoints:
  mine: {base_url: "${env:READER_URL}", model: small, api_key: "${env:READER_KEY}", retries: 0}
tasks:
  train: {rows: [{question: "A pear, in cents", answer: "120"}, {question: "A plum, in cents", answer: "35"}]}
prompt: {user: "{{ task.question }} Write <answer>CENTS</answer>."}
tools:
  price: {kind: python, function: "prices.py:price", example: {fruit: pear}}
limits: {turns: 3}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
oracle: [{say: "<answer>{{ task.answer }}</answer>"}]
"""
PRICES = '''
def price(fruit: str) -> str:
    """The price of a fruit in cents."""
    return {"pear": "1.20", "plum": "0.35"}.get(fruit, "unknown")
'''
KEY = "reader-secret-4711"
EURO = {"where": "tools.price.function", "what": "It gives euros,\n not cents.", "fix": "multiply by 100", "sure": 0.95}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("READER_KEY", KEY)
    monkeypatch.setenv("READER_URL", "http://127.0.0.1:9/v1")
    (tmp_path / "prices.py").write_text(PRICES, encoding="utf-8")
    file = tmp_path / "prices.yaml"
    file.write_text(SPEC, encoding="utf-8")
    return file


def _read(spec: Path, answers: Sequence[Given], *, context: int | None = None) -> tuple[Report, list[dict[str, Any]]]:
    """The report of a spec that a model read, and what its server was asked."""

    async def run() -> tuple[Report, list[dict[str, Any]]]:
        async with FakeEndpoint(answers, context=context) as server:
            endpoint = Endpoint(name="reader", base_url=server.base_url, model="big", retries=0)
            return await asyncio.to_thread(validate, [spec], reader=lambda loaded: endpoint), server.requests

    return asyncio.run(run())


def _reply(*findings: object) -> str:
    return json.dumps({"findings": findings})


def _told(report: Report) -> list[tuple[str, str, str]]:
    return [(one.code, one.path, one.message) for one in report.warnings if one.code in ("read", "not-read")]


def test_what_a_model_finds_is_a_warning_at_the_place_that_it_names(spec: Path) -> None:
    report, _ = _read(spec, [f"<think>cents {{?}}</think> Here it is: {_reply(EURO)}"])
    assert _told(report) == [("read", "tools.price.function", "big reads: It gives euros, not cents.")]
    warning = next(one for one in report.warnings if one.code == "read")
    assert (warning.level, warning.hint, warning.quote.strip()[:6]) == ("warning", "multiply by 100", "price:")
    assert report.is_valid


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ("rewards.correct.weight", "rewards.correct"),
        ("tasks.train.rows[1].answer", "tasks.train.rows.1.answer"),
        ("tasks.train.rows[7]", "tasks.train.rows"),
        ("prices.py", ""),
        (None, ""),
        (["limits"], ""),
    ],
)
def test_a_place_that_is_not_there_is_the_nearest_around_it(spec: Path, where: object, path: str) -> None:
    report, _ = _read(spec, [_reply({**EURO, "where": where})])
    assert [at for _, at, _ in _told(report)] == [path]


def test_what_it_is_not_sure_of_is_left_out_and_so_is_what_says_nothing(spec: Path) -> None:
    unsure, sure = {**EURO, "sure": 0.69}, {**EURO, "sure": 0.7, "what": "sure"}
    unsaid = [{"where": "limits"}, {**EURO, "what": "  "}, {**EURO, "what": 3}, "euros", None]
    report, _ = _read(spec, [_reply(unsure, *unsaid, sure)])
    assert [message for _, _, message in _told(report)] == ["big reads: sure"]
    assert _told(_read(spec, [_reply()])[0]) == []


def test_a_warning_is_taken_back_at_its_line_as_any_other(spec: Path) -> None:
    spec.write_text(SPEC.replace("example: {fruit: pear}}", "example: {fruit: pear}} # rlenv: allow read"))
    assert _told(_read(spec, [_reply(EURO)])[0]) == []


def test_it_is_shown_files_meanings_rows_prompts_tools_and_plays_without_secrets(spec: Path) -> None:
    spec.write_text(SPEC.replace("A pear", f"<|im_end|> {KEY} A pear"), encoding="utf-8")
    _, requests = _read(spec, [_reply()])
    (asked,) = requests
    shown = asked["messages"][1]["content"]
    for part in (
        "rule: exact_match",  # the file
        "turns: Actions of the policy",  # what a key means
        '"tool_calls"',  # a limit that is not written
        "train: 2 rows, 2 different",
        "A pear, in cents Write <answer>CENTS</answer>",
        "The price of a fruit in cents.",  # the tool's schema
        '"pear": "1.20"',  # the function's file
        "(no proof that the gold is right)\ntrain/0, train/1: reward 1.0",
        "an empty message\ntrain/0, train/1: reward 0.0",
    ):
        assert part in shown
    assert KEY not in shown
    assert "<|im_end|>" not in shown


def test_it_is_shown_no_file_but_those_below_the_spec_and_no_hidden_one(spec: Path) -> None:
    """A text may be a path inside of a machine, which this computer has too; a key may lie beside what is named."""
    (outside := spec.parent.parent / "outside").mkdir(exist_ok=True)
    (folder := spec.parent / "notes").mkdir()
    (sub := folder / ".cache").mkdir()
    for place in (outside / "far.txt", folder / ".env", sub / "x.txt", spec.parent / "beside.txt"):
        place.write_text(f"private {place.name}", encoding="utf-8")
    (folder / "fruits.txt").write_text("shown pears", encoding="utf-8")
    (folder / "link.txt").symlink_to(outside / "far.txt")
    (folder / "seen").symlink_to(".cache")
    (folder / "long.bin").write_bytes(b"a" * 1_000_000)
    names = f"[notes, {outside}, {outside}/far.txt, ../outside/far.txt, notes/link.txt, notes/.env, ., ./, .., /etc]"
    names = f"{names[:-1]}, notes/seen, notes/seen/x.txt, notes/.cache, notes/.cache/x.txt]"
    spec.write_text(SPEC.replace("prompt:", f"vars: {{files: {names}}}\nprompt:"), encoding="utf-8")
    _, requests = _read(spec, [_reply()])
    shown = requests[0]["messages"][1]["content"].partition("# Files that the spec names")[2]
    assert "shown pears" in shown
    assert "long.bin (1000000 bytes)" in shown
    assert len(shown) < 10_000
    assert "private" not in shown
    assert "root:" not in shown


def test_a_database_is_shown_by_its_tables_with_some_rows(spec: Path) -> None:
    with closing(sqlite3.connect(spec.parent / "stock.db")) as base, base:
        base.execute("CREATE TABLE fruits (name TEXT, cents INTEGER)")
        base.executemany("INSERT INTO fruits VALUES (?, ?)", [(f"fruit {n}", n) for n in range(9)])
    spec.write_text(SPEC.replace("prompt:", "vars: {file: stock.db}\nprompt:"), encoding="utf-8")
    _, requests = _read(spec, [_reply()])
    shown = requests[0]["messages"][1]["content"]
    assert "CREATE TABLE fruits (name TEXT, cents INTEGER)\n[('fruit 0', 0)" in shown
    assert "fruit 4" not in shown


def test_what_the_rules_say_is_shown_and_said_once(spec: Path) -> None:
    spec.write_text(SPEC.replace('answer: "35"', 'answer: "120"').replace("A plum", "A pear"))
    report, requests = _read(spec, [_reply()])
    known = [one for one in report.warnings if one.code != "read"]
    assert known
    assert known[0].message in requests[0]["messages"][1]["content"].partition("# Said already")[2]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Reply(503, {"error": "down"}), "503"),
        ("All is well.", "holds no JSON object"),
        ('{"findings": [', "no JSON object"),
        ('{"findings": {"a": }}', "not one JSON object"),
        ('{"found": []}', "no list 'findings'"),
        (Sampled('{"findings": []}', finish_reason="length"), "cut at its limit of tokens"),
    ],
)
def test_a_spec_that_was_not_read_has_not_passed(spec: Path, answer: Given, why: str) -> None:
    report, _ = _read(spec, [answer])
    ((code, _, message),) = _told(report)
    assert (code, why in message) == ("not-read", True), message


def test_a_server_without_room_for_all_is_asked_with_less(spec: Path) -> None:
    report, requests = _read(spec, [_reply(EURO)], context=1_400)
    sizes = [len(asked["messages"][1]["content"]) for asked in requests]
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert [code for code, _, _ in _told(report)] == ["read"]


def test_a_spec_with_a_fault_is_not_read(spec: Path) -> None:
    spec.write_text(SPEC.replace("exact_match", "exact_mach"), encoding="utf-8")
    report, requests = _read(spec, [_reply(EURO)])
    assert not report.is_valid
    assert requests == []


def test_the_command_reads_by_an_entry_of_the_spec_and_by_an_address(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*argv: str) -> tuple[int, list[str]]:
        async with FakeEndpoint([_reply(EURO)]) as server:
            monkeypatch.setenv("READER_URL", server.base_url)
            given = [server.base_url if one == "HERE" else one for one in argv]
            code = await asyncio.to_thread(main, ["validate", str(spec), *given])
            return code, [f"{asked['model']} {told.get('Authorization')}" for asked, told in _both(server)]

    assert asyncio.run(run("--reader", "mine")) == (0, [f"small Bearer {KEY}"])
    assert "small reads: It gives euros, not cents.; multiply by 100 [read]" in capsys.readouterr().out
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    there = ("--reader", "HERE", "--reader-model", "big")
    assert asyncio.run(run("--strict", *there)) == (1, ["big Bearer k"])


def _both(server: FakeEndpoint) -> list[tuple[dict[str, Any], Any]]:
    return list(zip(server.requests, server.headers, strict=True))


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--reader", "mina"], "did you mean 'mine'"),
        (["--reader", "http://127.0.0.1:9/v1"], "--reader-model"),
        (["--reader-model", "big"], "--reader-model is for --reader"),
    ],
)
def test_a_reader_that_is_not_there_is_refused(
    spec: Path, argv: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(spec), *argv]) == 2
    assert why in capsys.readouterr().err
