"""The faults of a text while it is typed: those of `rlenv validate`, at the same places."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.checks.editor.faults import diagnose, marks
from rlenv.checks.validate import validate, validate_text
from tests.support.editing import SMALL as SPEC

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "faults"
SPECS = Path(__file__).resolve().parents[3] / "specs"
PLANTED = sorted(GOLDEN.glob("*.yaml"))


@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_the_faults_of_a_text_are_those_of_its_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    text = file.read_text(encoding="utf-8")
    whole = validate([file.name])
    assert validate_text(text, path=file.name).faults == whole.faults
    quick = diagnose(text, path=file.name)
    assert [fault for fault in whole.faults if fault in quick] == list(quick)


@pytest.mark.parametrize("file", PLANTED, ids=lambda file: file.stem)
def test_a_mark_stands_where_its_fault_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
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
    assert diagnose(SPEC, path=path) == ()
    (fault,) = diagnose(SPEC.replace("name: small", "name: Small"), path=path)
    assert (fault.file, fault.line, fault.column) == (str(path), 2, 7)


def test_what_a_text_extends_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SPEC, encoding="utf-8")
    assert diagnose("extends: base.yaml\nlimits: {turns: 2}\n", path=tmp_path / "above.yaml") == ()


def test_a_fault_of_an_extended_file_is_marked_where_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SPEC + "limits: {turns: none}\n", encoding="utf-8")
    text = "name: above\nextends: base.yaml\n"
    faults = diagnose(text, path=tmp_path / "above.yaml")
    (mark,) = marks(faults, text, path=tmp_path / "above.yaml")
    assert (mark.line, mark.column, mark.end_column) == (2, 1, 19)
    assert mark.message.startswith("base.yaml:8:17: ")


# Text that is broken in the ways of somebody who types: pieces of a spec, cut and joined anywhere.
_PIECES = st.sampled_from(
    [SPEC, SPEC[:70], "tools:\n  a: {kind: python", "- ", "{", "}", '"', "'", ": ", "\n", "  ", "*a", "&a ", "<<: ",
     "|", "\t", "\u2028", "\U0001f600", "\x00", "\ufeff", "!!int ", "---\n", "extends: x.yaml\n",
     "kind: sql\n", "\ud800"]
)  # fmt: skip


@given(st.lists(_PIECES | st.text(max_size=8), max_size=8).map("".join))
def test_any_text_is_taken(text: str) -> None:
    faults = diagnose(text, path="any.yaml")
    for mark in marks(faults, text, path="any.yaml"):
        assert mark.line >= 1
        assert mark.column < mark.end_column
