"""Validation reports everything in one go and never dies, whatever a spec and the files that it names say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlenv.checks.validate import UNEXPECTED, validate
from rlenv.cli.main import main
from rlenv.episodes.environment import load
from rlenv.errors import Fault, SpecError, UsageError
from rlenv.language.templates import TemplateError, compile_template
from tests.attack.spec_mutations import HOSTILE, as_text, base_specs, hostile_folder, mutations

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
rlenv: 1
name: small
tasks: {train: {rows: [{question: a, answer: b}]}}
prompt: {user: "{{ task.question }}"}
rewards: {correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}}
"""


def sound(faults: tuple[Fault, ...]) -> None:
    """Each fault has a place and words, and none is validation's own."""
    for fault in faults:
        assert UNEXPECTED not in fault.message, str(fault)
        assert "cannot be compiled: " not in fault.message, str(fault)
        assert fault.file
        assert fault.message
        assert fault.line >= 1 or fault.file.startswith("--set ")
        assert len(str(fault)) < 20_000


def _spec(folder: Path, more: str = "", head: str = HEAD) -> Path:
    path = folder / "spec.yaml"
    path.write_text(textwrap.dedent(head) + textwrap.dedent(more), encoding="utf-8")
    return path


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore:::hostile")
def test_a_hostile_spec_gives_faults_with_their_places_and_nothing_else(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile_folder(tmp_path)
    path = tmp_path / "spec.yaml"
    for _, text in mutations(ROOT, seed=seed, count=6):
        path.write_text(text)
        report = validate([path])
        sound((*report.faults, *report.warnings))
        json.dumps(report.as_dict())
        if report.is_valid:
            continue
        with contextlib.suppress(SpecError, UsageError):
            load(path)


_SECTIONS = (
    "vars",
    "dialect",
    "roots",
    "tools",
    "resources",
    "endpoints",
    "oracle",
    "success",
    "user",
    "prompt",
    "calls",
)


@pytest.mark.slow(but=20)
@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_no_value_of_any_kind_ends_validation_in_an_exception(index: int, tmp_path: Path) -> None:
    hostile_folder(tmp_path)
    base = {
        "rlenv": 1,
        "name": "small",
        "tasks": {"train": {"rows": [{"question": "a", "answer": "b"}]}},
        "prompt": {"user": "{{ task.question }}"},
        "rewards": {"correct": {"kind": "rule", "rule": "exact_match", "expect": "{{ task.answer }}"}},
    }
    for key in (_SECTIONS[index % len(_SECTIONS)], _SECTIONS[index * 7 % len(_SECTIONS)]):
        path = tmp_path / "spec.yaml"
        path.write_text(as_text(base | {key: HOSTILE[index]}))
        sound(validate([path]).faults)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "/dev/random", "folder", "circle", "x" * 300, "a\0b", "binary"])
def test_what_is_no_spec_file_is_told_at_once(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)
    path = str(tmp_path / name)
    report = validate([path])
    assert len(report.faults) == 1
    sound(report.faults)
    assert main(["validate", path]) in (1, 2)
    for place in (f"extends: {json.dumps(path)}\n", f"tasks: {{train: {{path: {json.dumps(path)}}}}}\n"):
        (tmp_path / "on.yaml").write_text(f"rlenv: 1\nname: on\n{place}", encoding="utf-8")
        report = validate([tmp_path / "on.yaml"])
        assert not report.is_valid
        sound(report.faults)


def test_faults_at_the_root_hide_none_below(tmp_path: Path) -> None:
    text = HEAD.replace("rlenv: 1", "rlenv: 7").replace("name: small", "nme: small").replace("task.an", "task.")
    more = "success: corect >= 1\ntools: {look: {kind: calculater}}\n"
    found = {fault.path for fault in validate([_spec(tmp_path, more, text)]).faults}
    assert found == {"rlenv", "name", "nme", "rewards.correct.expect", "success", "tools.look.kind"}


@pytest.mark.parametrize("section", ["tasks", "prompt", "rewards", "name", "rlenv"])
def test_a_missing_section_hides_no_fault_of_the_others(section: str, tmp_path: Path) -> None:
    lines = [line for line in HEAD.splitlines() if not line.startswith(f"{section}:")]
    more = "limits: {turns: 0}\ntools: {look: {kind: python, function: 'no.py:f'}}\n"
    report = validate([_spec(tmp_path, more, "\n".join(lines) + "\n")])
    found = {fault.path for fault in report.faults}
    assert found == {section, "limits.turns", "tools.look.function"}


def test_an_entry_at_fault_makes_no_fault_of_those_that_use_it(tmp_path: Path) -> None:
    more = """
    resources: {data: {kind: python, function: "nowhere.py:make"}}
    endpoints: {other: {base_url: "${env:NOT_SET_AT_ALL}", model: 5}}
    tools:
      a: {kind: python, function: "json:dumps", inject: [data], parameters: {obj: string}}
      b: {kind: model, endpoint: other, prompt: "{{ args.q }}", parameters: {q: string}}
    oracle: [{call: {a: {obj: x}}}, {say: "<answer>{{ task.answer }}</answer>"}]
    """
    report = validate([_spec(tmp_path, more)])
    assert {fault.path for fault in report.faults} == {"resources.data.function", "endpoints.other.model"}


def test_a_fault_of_an_override_comes_first(tmp_path: Path) -> None:
    path = _spec(tmp_path, "success: corect >= 1\n")
    first, *_ = validate([path], set={"limits.turns": 0}).faults
    assert first.file == "--set limits.turns"


@pytest.mark.slow
@pytest.mark.parametrize(
    "ends", ["import sys; sys.exit(0)", "import argparse as a; a.ArgumentParser().parse_args(['-x'])"]
)
def test_a_file_that_ends_the_program_at_import_is_a_fault_of_every_command(ends: str, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(f"{ends}\ndef f(): pass\n")
    path = _spec(tmp_path, 'tools: {t: {kind: python, function: "f.py:f"}}\n')
    for command in ("validate", "eval"):
        done = subprocess.run(
            [sys.executable, "-m", "rlenv", command, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1, done
        assert "it ends the program while it is imported" in done.stdout + done.stderr


def test_a_kind_that_is_extended_by_another_is_replaced(tmp_path: Path) -> None:
    base = HEAD + "user: {kind: scripted, replies: [hello], stop: bye}\n"
    _spec(tmp_path, "", base).rename(tmp_path / "base.yaml")
    (tmp_path / "f.py").write_text("def say(message): return None\n")
    (tmp_path / "top.yaml").write_text('rlenv: 1\nextends: base.yaml\nuser: {kind: python, function: "f.py:say"}\n')
    assert validate([tmp_path / "top.yaml"]).faults == ()
    same = "rlenv: 1\nextends: base.yaml\nuser: {kind: scripted, replies: [bye]}\n"
    (tmp_path / "same.yaml").write_text(same)
    user = load(tmp_path / "same.yaml").spec.user
    assert user is not None
    assert user.stop == "bye"


def test_an_oracle_may_leave_the_answer_to_a_user_who_ends_the_talk(tmp_path: Path) -> None:
    more = """
    user: {kind: scripted, replies: ["###STOP###"]}
    tools: {submit: {kind: calculator}}
    answer: {from: tool, tool: submit}
    oracle: [{call: {submit: {expression: "1"}}}, {say: Goodbye.}]
    """
    assert validate([_spec(tmp_path, more)]).faults == ()


KEYS = ["sk-abcdefghijklmnopqrstuvwx", "hf_" + "a" * 34, "a-long-random-looking-token-of-ours"]


@pytest.mark.parametrize("key", KEYS)
def test_a_secret_in_a_spec_is_a_fault_that_does_not_show_it(key: str, tmp_path: Path) -> None:
    more = f'endpoints: {{e: {{base_url: "http://127.0.0.1:1/v1", model: m, api_key: {key}}}}}\n'
    (fault,) = validate([_spec(tmp_path, more)]).faults
    assert fault.path == "endpoints.e.api_key"
    assert key not in str(fault)
    named = more.replace(key, '"${env:A_KEY_THAT_IS_NOT_SET}"')
    assert validate([_spec(tmp_path, named)]).faults == ()


POSSIBLE = [
    ("correct >= 1", True),
    ("correct > 1", False),
    ("not correct <= 1", False),
    ("correct < 0 or correct == 2", False),
    ("correct > 0.5 and correct < 0.4", False),
    ("correct > 0.4 and correct < 0.5", True),
    ("other >= 100", True),
    ("scaled >= 3", False),
    ("correct > scaled and scaled > other and other > 5", False),
]


@pytest.mark.parametrize(("success", "holds"), POSSIBLE)
def test_a_success_that_no_values_can_give_is_a_fault(success: str, holds: bool, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(context): return 1\n")
    head = HEAD.replace(
        '}"}}\n',
        '}"}, other: {kind: rule, function: "f.py:f"}, scaled: {kind: rule, function: "f.py:f", clip: [0, 2]}}\n',
    )
    faults = validate([_spec(tmp_path, f"success: {success}\n", head)]).faults
    assert [fault.path for fault in faults] == ([] if holds else ["success"])


TEMPLATES = [
    "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 2 ** 999999999 }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ ['x'] * 10 ** 10 }}",
    "{{ 10 ** 10 * 'x' }}",
    "{% set ns = namespace(x=10 ** 1000) %}" + "{% set ns.x = ns.x * ns.x %}" * 60 + "{{ ns.x }}",
    "{{ " + "9" * 5_000 + " }}",
    "{{ range(10 ** 12) | list }}",
    "{{ task.x }}",
    "{{ 1 // 0 }}",
    "{{ {}['x'] }}",
    "{{ [].pop() }}",
    "{{ ''.__class__ }}",
    "{{ 1 | nothing }}",
    "{% extends 'x' %}",
    "{{ '%d' | format('x') }}",
]


@pytest.mark.parametrize("source", TEMPLATES, ids=lambda source: source[:20])
def test_a_template_fails_as_a_template(source: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(source).text(task={})


def test_the_shipped_specs_are_what_is_made_hostile() -> None:
    assert len(base_specs(ROOT)) > 10
