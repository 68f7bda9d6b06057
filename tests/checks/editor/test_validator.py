"""The full validation of a text, in a process that ends when it is pointless."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.checks.editor.validator import Validator, diagnose, marks
from rlenv.checks.validate import validate, validate_text
from rlenv.errors import Fault
from tests.support.editing import SMALL

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "faults"

SPEC = """\
rlenv: 1
name: small
tasks:
  train: {function: "rows.py:rows"}
prompt: {user: "{{ task.question }} Write <answer>…</answer>."}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""
ROWS = """
import os, pathlib, time
pathlib.Path(__file__).with_name("seen").write_text(str(os.getpid()))
print("said by the author's file")
{}
def rows():
    return [{{"question": "a", "answer": "b"}}]
"""


def _author(folder: Path, line: str) -> Path:
    (folder / "rows.py").write_text(ROWS.format(line), encoding="utf-8")
    return folder / "spec.yaml"


async def _once(text: str, path: Path | str, limit_s: float = 60.0) -> tuple[Fault, ...] | None:
    validator = Validator(limit_s=limit_s)
    try:
        return await validator.validate(text, path=path)
    finally:
        await validator.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unknown_column", "rows_from_bad_function", "duplicate_key"])
def test_faults_are_those_of_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    text = (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    assert asyncio.run(_once(text, f"{name}.yaml")) == validate([f"{name}.yaml"]).faults


@pytest.mark.slow
def test_what_an_author_s_file_prints_is_not_the_answer(tmp_path: Path) -> None:
    assert asyncio.run(_once(SPEC, _author(tmp_path, ""))) == ()


@pytest.mark.slow
def test_a_file_that_ends_the_program_is_a_fault(tmp_path: Path) -> None:
    found = asyncio.run(_once(SPEC, _author(tmp_path, "os._exit(3)")))
    assert found is not None
    assert "without an answer (exit code 3)" in found[0].message


@pytest.mark.slow
def test_a_file_that_hangs_is_a_fault_and_its_process_is_ended(tmp_path: Path) -> None:
    found = asyncio.run(_once(SPEC, _author(tmp_path, "time.sleep(3600)"), limit_s=4.0))
    assert found is not None
    assert "longer than 4 s" in found[0].message
    seen = tmp_path / "seen"
    if seen.exists():  # on a machine that is busy it may not have come so far
        with pytest.raises(ProcessLookupError):
            os.kill(int(seen.read_text()), 0)


@pytest.mark.slow
def test_a_newer_text_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = _author(tmp_path, "time.sleep(3600)")

    async def play() -> None:
        validator = Validator()
        try:
            async with asyncio.timeout(60):
                first = asyncio.create_task(validator.validate(SPEC, path=path))
                while not (tmp_path / "seen").exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                _author(tmp_path, "")
                assert await validator.validate(SPEC, path=path) == ()
                assert await first is None
        finally:
            await validator.aclose()

    asyncio.run(play())


# The faults of a text while it is typed: those of `rlenv validate`, at the same places

FAULTS_GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "faults"
SPECS = Path(__file__).resolve().parents[3] / "specs"
PLANTED = sorted(FAULTS_GOLDEN.glob("*.yaml"))


@pytest.mark.slow(but=20)
@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_the_faults_of_a_text_are_those_of_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FAULTS_GOLDEN)
    text = file.read_text(encoding="utf-8")
    whole = validate([file.name])
    assert validate_text(text, path=file.name).faults == whole.faults
    quick = diagnose(text, path=file.name)
    assert [fault for fault in whole.faults if fault in quick] == list(quick)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_a_mark_stands_where_its_fault_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FAULTS_GOLDEN)
    text = file.read_text(encoding="utf-8")
    faults = validate_text(text, path=file.name).faults
    for fault, mark in zip(faults, marks(faults, text, path=file.name), strict=True):
        if fault.file == file.name:
            assert (mark.line, mark.column, mark.message) == (fault.line, fault.column, fault.message)
            assert mark.quote.rstrip() == fault.quote
        assert mark.end_line == mark.line
        assert mark.column < mark.end_column


@pytest.mark.parametrize("file", sorted(SPECS.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_ships_has_no_fault(file: Path) -> None:
    assert diagnose(file.read_text(encoding="utf-8"), path=file) == ()


def test_a_text_need_not_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there.yaml"
    assert diagnose(SMALL, path=path) == ()
    (fault,) = diagnose(SMALL.replace("name: small", "name: Small"), path=path)
    assert (fault.file, fault.line, fault.column) == (str(path), 2, 7)


def test_what_a_text_extends_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL, encoding="utf-8")
    assert diagnose("extends: base.yaml\nlimits: {turns: 2}\n", path=tmp_path / "above.yaml") == ()


def test_a_fault_of_an_extended_file_is_marked_where_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SMALL + "limits: {turns: none}\n", encoding="utf-8")
    text = "name: above\nextends: base.yaml\n"
    faults = diagnose(text, path=tmp_path / "above.yaml")
    (mark,) = marks(faults, text, path=tmp_path / "above.yaml")
    assert (mark.line, mark.column, mark.end_column) == (2, 1, 19)
    assert mark.message.startswith("base.yaml:8:17: ")


# Text that is broken in the ways of somebody who types: pieces of a spec, cut and joined anywhere.
_PIECES = st.sampled_from(
    [SMALL, SMALL[:70], "tools:\n  a: {kind: python", "- ", "{", "}", '"', "'", ": ", "\n", "  ", "*a", "&a ", "<<: ",
     "|", "\t", "\u2028", "\U0001f600", "\x00", "\ufeff", "!!int ", "---\n", "extends: x.yaml\n",
     "kind: sql\n", "\ud800"]
)  # fmt: skip


@given(st.lists(_PIECES | st.text(max_size=8), max_size=8).map("".join))
def test_any_text_is_taken(text: str) -> None:
    faults = diagnose(text, path="any.yaml")
    for mark in marks(faults, text, path="any.yaml"):
        assert mark.line >= 1
        assert mark.column < mark.end_column
