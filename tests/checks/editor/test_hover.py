"""Hovers and the outline."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.checks.editor.hover import Symbol, complete, hover, outline
from tests.support.editing import SPEC, cursor

SPECS = Path(__file__).resolve().parents[3] / "specs"


def said(text: str) -> str:
    whole, line, column = cursor(text)
    found = hover(whole, line, column, path="spec.yaml")
    return found.markdown if found is not None else ""


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("success:", "suc‸cess:", ["**success** · text", "What eval counts as success"]),
        ("weight: 0.1", "wei‸ght: 0.1", ["**weight** · number", "default `1.0`", "factor"]),
        ("resource: db", "‸resource: db", ["**resource** · text", "required"]),
        ("kind: calculator", "kind: calc‸ulator", ["**calculator**", "Calculates arithmetic"]),
        ("rule: valid_calls", "rule: valid‸_calls", ["**valid_calls**", "share of calls"]),
        ("  sum:\n", "  s‸um:\n", ["**sum** · calculator"]),
        ("  calls: {kind", "  ‸calls: {kind", ["**calls** · rule valid_calls"]),
    ],
)
def test_a_key_or_kind_is_explained(old: str, new: str, parts: list[str]) -> None:
    assert SPEC.count(old) == 1
    text = said(SPEC.replace(old, new))
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(("old", "new"), [("small", "sm‸all"), ("Use the", "Use ‸the"), ("tools:\n", "tools:‸\n")])
def test_nothing_is_said_of_what_the_author_chose(old: str, new: str) -> None:
    assert said(SPEC.replace(old, new, 1)) == ""


def test_a_broken_section_leaves_the_others_explained() -> None:
    assert "**success**" in said(SPEC.replace("name: small", "name: {small").replace("success:", "suc‸cess:"))


def test_a_hover_covers_its_word() -> None:
    whole, line, column = cursor(SPEC.replace("success:", "suc‸cess:"))
    found = hover(whole, line, column, path="spec.yaml")
    assert found is not None
    assert (found.line, found.column, found.end_column) == (line, 1, 8)


def _named(symbols: tuple[Symbol, ...], name: str) -> Symbol:
    return next(symbol for symbol in symbols if symbol.name == name)


def test_the_outline_holds_sections_and_entries_with_their_kinds() -> None:
    sections = outline(SPEC)
    tools = _named(sections, "tools")
    assert [(entry.name, entry.detail) for entry in tools.children] == [("query", "sql"), ("sum", "calculator")]
    assert (tools.line, tools.column, tools.name_end) == (11, 1, 6)
    assert (tools.end_line, tools.end_column) == (14, 21)


def test_the_outline_of_a_broken_text_has_what_stands() -> None:
    names = [symbol.name for symbol in outline(SPEC.replace("name: small", "name: {small"))]
    assert "name" not in names
    assert {"tools", "rewards", "success"} <= set(names)


def _inside(symbols: tuple[Symbol, ...]) -> None:
    for symbol in symbols:
        start, end = (symbol.line, symbol.column), (symbol.end_line, symbol.end_column)
        assert start < end
        assert (symbol.line, symbol.name_end) <= end
        for child in symbol.children:
            assert start <= (child.line, child.column)
            assert (child.end_line, child.end_column) <= end
        _inside(symbol.children)


@pytest.mark.parametrize("file", sorted(SPECS.glob("*.yaml")), ids=lambda file: file.stem)
def test_what_an_entry_holds_stands_inside_of_it(file: Path) -> None:
    _inside(outline(file.read_text(encoding="utf-8")))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([SPEC, SPEC[:90], "{", '"', "\n", "&a ", "*a", "😀"]) | st.text(max_size=5), max_size=5)
)
def test_any_text_is_taken(pieces: list[str]) -> None:
    text = "".join(pieces)
    outline(text)
    for line in (0, 1, 7, 40):
        hover(text, line, 3, path="any.yaml")


# Completion: what can stand where the cursor is, in texts that are not whole


def offered(text: str, path: str | Path = "spec.yaml") -> list[str]:
    whole, line, column = cursor(text)
    return [item.label for item in complete(whole, line, column, path=path).items]


def within(old: str, new: str) -> str:
    assert SPEC.count(old) == 1
    return SPEC.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "some"),
    [
        ("success: correct >= 1", "succ‸", {"success", "dialect", "limits"}),
        ("kind: calculator", "kind: calc‸", {"calculator", "python", "mcp"}),
        ("kind: calculator", "kind: sql\n    ‸", {"resource", "max_rows", "timeout_s"}),
        ("kind: calculator", "ki‸", {"kind"}),
        ("kind: sqlite,", "kind: ‸,", {"sqlite", "duckdb", "tempdir"}),
        ("kind: sqlite,", "‸kind: sqlite,", {"access", "path", "scope"}),
        ("init: rows.sql", "access: ‸", {"read_only", "copy"}),
        ("rule: valid_calls", "rule: ‸", {"valid_calls", "sql_match"}),
        ("resource: db", "resource: ‸", {"db"}),
        ("correct >= 1", "corr‸", {"correct", "calls", "not"}),
        ("correct >= 1", "correct >= 1 and c‸", {"correct", "calls"}),
        ("{{ task.question }}", "{{ ta‸ }}", {"task", "vars", "resources"}),
        ("{{ task.question }}", "{{ task.‸ }}", {"question", "answer", "where"}),
        ("{{ task.question }}", "{{ task.where.‸ }}", {"page"}),
        ("{{ task.question }}", "{% if vars.‸ %}", {"most"}),
        ("{{ task.answer }}", "{{ task.an‸ }}", {"answer"}),
        ("call: {sum:", "call: {‸sum:", {"sum", "query"}),
        ("weight: 0.1", "required: ‸", {"true", "false"}),
        ("name: small", "name: small\ndialect: ‸", {"hermes", "qwen3", "llama3_json"}),
        ("name: small", "name: small\nlimits:\n  ‸", {"turns", "episode_s"}),
        ("name: small", "name: small\nextends: ‸", {"arithmetic", "nl2sql"}),
    ],
)
def test_what_fits_is_offered(old: str, new: str, some: set[str]) -> None:
    assert some <= set(offered(within(old, new)))


@pytest.mark.parametrize(
    "text",
    [
        within("kind: calculator", "kind: ‸\n    descr"),
        within("  query: {kind: sql, resource: db}", "  query: {kind: ‸"),
        within("  query: {kind: sql, resource: db}", "  query: {timeout_s: 5, kind: 's‸"),
        within("success: correct >= 1", "success: [").replace("kind: calculator", "kind: ‸"),
        within("name: small", "name: {small").replace("kind: calculator", "kind: ‸"),
        "tools:\n  a: {kind: ‸",
        "tools:\n  a:\n    kind: ‸\n  b: {kind: ]",
    ],
)
def test_a_text_that_cannot_be_read_is_completed_all_the_same(text: str) -> None:
    assert {"calculator", "sql"} <= set(offered(text))


def test_names_are_those_of_the_whole_text_though_parts_of_it_are_broken() -> None:
    text = within("correct >= 1", "‸").replace("name: small", "name: {small")
    assert {"correct", "calls"} <= set(offered(text))


def test_keys_that_stand_there_are_not_offered_again() -> None:
    found = offered(within("init: rows.sql", "init: rows.sql, ‸"))
    assert "init" not in found
    assert "scope" in found


def test_required_keys_come_first_and_say_so() -> None:
    whole, line, column = cursor(within("kind: calculator", "kind: http\n    ‸"))
    first = complete(whole, line, column, path="spec.yaml").items[0]
    assert (first.label, first.detail) == ("url", "text, required")
    assert first.doc


def test_a_key_brings_its_colon_unless_one_is_there() -> None:
    for text, insert in (("succ‸", "success: "), ("succ‸: a >= 1", "success:".rstrip(":"))):
        whole, line, column = cursor(text)
        item = next(item for item in complete(whole, line, column, path="x").items if item.label == "success")
        assert item.insert == insert


def test_an_item_replaces_the_word_that_is_being_typed() -> None:
    whole, line, column = cursor(within("resource: db", "resource: d‸"))
    found = complete(whole, line, column, path="spec.yaml")
    assert (found.line, found.column) == (line, column - 1)


@pytest.mark.parametrize("text", ["# ‸", "name: small # a ‸", "rlenv: 1\n# tools: ‸\nname: a"])
def test_nothing_is_offered_in_a_comment(text: str) -> None:
    assert offered(text) == []


def test_entries_of_what_a_text_extends_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(SPEC, encoding="utf-8")
    path = tmp_path / "above.yaml"
    assert {"correct", "calls"} <= set(offered("extends: base.yaml\nsuccess: ‸", path))
    assert "scope" in offered("extends: base.yaml\nresources:\n  db: {‸}", path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("rows.jsonl", '\n{"question": "a", "gold": 1}\n'), ("rows.csv", "question,gold\na,1\n")],
)
def test_columns_come_from_the_first_row_of_a_file(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    rows = f'vars: {{folder: .}}\ntasks: {{train: {{path: "{{{{ vars.folder }}}}/{name}"}}}}\n'
    text = rows + 'prompt:\n  user: "{{ task.‸'
    assert offered(text, tmp_path / "spec.yaml") == ["question", "gold"]


@pytest.mark.parametrize("content", ["", "[1]", "{", "\x00", "[" * 100_000])
def test_rows_that_cannot_be_read_have_no_columns(content: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(content, encoding="utf-8")
    text = 'tasks: {train: {path: rows.jsonl}}\nprompt: {user: "{{ task.‸ }}"}'
    assert offered(text, tmp_path / "spec.yaml") == []


@settings(max_examples=60)
@given(st.data())
def test_any_text_and_any_place_is_taken(data: st.DataObject) -> None:
    pieces = st.sampled_from(
        [SPEC, SPEC[: len(SPEC) // 2], "{", "]", '"', "\n", "  ", "- ", "a: ", "\x00", "😀", "\u2028"]
    )
    text = "".join(data.draw(st.lists(pieces | st.text(max_size=5), max_size=5)))
    line, column = data.draw(st.integers(-1, 60)), data.draw(st.integers(-1, 60))
    found = complete(text, line, column, path="any.yaml")
    assert found.line >= 1
    assert found.column >= 1
