"""Positions: lines as YAML counts them, columns in characters and in UTF-16 units. Sections of a text that stand."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv._base.text import parts_of
from rlenv.checks.editor.tree import LineIndex, from_utf16, read_tree, to_utf16


def test_lines_are_those_of_yaml_or_those_of_the_protocol() -> None:
    text = "a\r\nb\u2028c\rd"
    assert [LineIndex(text).line(number) for number in range(1, 6)] == ["a", "b", "c", "d", ""]
    assert [LineIndex(text, is_lsp=True).line(number) for number in range(1, 4)] == ["a", "b\u2028c", "d"]


def test_a_character_outside_of_the_first_plane_is_two_units() -> None:
    line = "a😀b"
    assert [to_utf16(line, column) for column in (1, 2, 3, 4)] == [0, 1, 3, 4]
    assert [from_utf16(line, units) for units in (0, 1, 2, 3, 4, 99)] == [1, 2, 2, 3, 4, 4]


def test_a_position_that_is_nowhere_is_the_nearest_one() -> None:
    lines = LineIndex("ab\nc")
    assert [lines.offset(*at) for at in ((0, 1), (1, 9), (2, 0), (9, 9))] == [0, 2, 3, 4]
    assert lines.place(-1) == (1, 1)
    assert lines.place(99) == (2, 2)


@given(st.text(alphabet="a\n\r\u2028😀", max_size=12))
def test_a_place_leads_back_to_its_character(text: str) -> None:
    lines = LineIndex(text)
    for offset in range(len(text) + 1):
        line, column = lines.place(offset)
        back = lines.offset(line, column)
        assert back == offset or text[back : offset + 1] == "\r\n"
        assert from_utf16(lines.line(line), to_utf16(lines.line(line), column)) == column


def test_what_stands_beside_a_broken_section_has_its_places_in_the_whole_text() -> None:
    text = "é: [1\nodd: {\n\u2028b:\n  c: 'x'\n  d: 'x' y\ne: 2\n"
    tree = read_tree(text)
    assert tree.plain() == {"b": {"c": "x"}, "e": 2}
    place = dict(parts_of(dict(parts_of(tree.value))["b"].value))["c"].span
    assert (place.line, place.column, text[place.start : place.end]) == (5, 6, "'x'")
    assert place.quote(5) == "  c: 'x'"


@pytest.mark.parametrize("section", ["ab{}: [\n", 'ab{}: "x\n', "ab{}: x\n", "ab{}: \x01\n"])
def test_a_text_of_unreadable_sections_is_read_in_proportion_to_its_length(section: str) -> None:
    def calls(count: int) -> int:
        seen = 0

        def called(*_: object) -> None:
            nonlocal seen
            seen += 1

        text = "a: {\n" + "".join(map(section.format, range(count)))
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            read_tree(text)
        finally:
            sys.setprofile(before)
        return seen

    assert calls(400) < 5 * calls(100)
