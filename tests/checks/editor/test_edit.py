"""Changes to an entry leave the rest of the text alone."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.checks.editor.edit import delete, edit, rename
from rlenv.errors import SpecError, UsageError
from rlenv.language.schema import json_schema
from rlenv.language.yamltree import parse_text
from tests.support.editing import SPEC

SPECS = Path(__file__).parents[3] / "specs"
ORDER = tuple(json_schema()["properties"])
COMMENTED = """\
# the head
rlenv: 1 # one
tools:   # all of them
  # asks
  query: {kind: sql, resource: db} # in flow
  sum: # in block
    kind: calculator   # exact
    # retries: 3
    cache: {scope: none, }
    example:
      # two lines
      expression: "2 + 2" # four

  prompted:
    kind: model
    prompt: | # a literal
      # Not a comment.
      Ask.
    endpoint: judge
  # the end of tools

# calls
calls: {parallel: 2}
"""


def changed(text: str, name: str, values: dict[str, Any]) -> list[str]:
    """The lines that went and came."""
    made = edit(text, group="tools", name=name, values=values, order=ORDER)
    lines = difflib.ndiff(text.splitlines(), made.splitlines())
    return [line for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(
    ("name", "values", "lines"),
    [
        ("sum", {"retries": 2}, ["+     retries: 2"]),
        ("sum", {"kind": "calculator"}, []),
        ("sum", {"kind": "sql"}, ["-     kind: calculator   # exact", "+     kind: sql   # exact"]),
        ("sum", {"cache": {"scope": "run"}}, ["-     cache: {scope: none, }", "+     cache: {scope: run, }"]),
        ("sum", {"cache": None}, ["-     cache: {scope: none, }"]),
        (
            "sum",
            {"example": {"expression": "1"}},
            ['-       expression: "2 + 2" # four', '+       expression: "1" # four'],
        ),
        ("prompted", {"endpoint": None}, ["-     endpoint: judge"]),
        ("prompted", {"prompt": "B\nC\n"}, ["-       # Not a comment.", "-       Ask.", "+       B", "+       C"]),
        ("prompted", {"system": "yes: no"}, ['+     system: "yes: no"']),
        ("new", {"kind": "calculator"}, ["+   new: {kind: calculator}"]),
        (
            "new",
            {"kind": "model", "prompt": "a\nb"},
            ["+   new:", "+     kind: model", "+     prompt: |-", "+       a", "+       b"],
        ),
    ],
)
def test_only_the_lines_of_the_key_change(name: str, values: dict[str, Any], lines: list[str]) -> None:
    assert changed(COMMENTED, name, values) == lines


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_tool_is_added_to_every_spec_that_ships_and_no_line_goes(path: Path) -> None:
    lines = changed(path.read_text(encoding="utf-8"), "another", {"kind": "calculator"})
    assert "+   another: {kind: calculator}" in lines
    assert all(line.startswith("+") for line in lines)


def test_an_entry_in_flow_stays_in_flow() -> None:
    made = edit(COMMENTED, group="tools", name="query", values={"max_rows": 5, "resource": None})
    assert "  query: {kind: sql, max_rows: 5} # in flow\n" in made
    made = edit(COMMENTED, group="tools", name="query", values={"kind": None, "resource": "a b: c"})
    assert '  query: {resource: "a b: c"} # in flow\n' in made


def test_a_new_group_stands_where_the_language_has_it() -> None:
    text = "rlenv: 1\nprompt: {user: a} # asked\n\n# what counts\nrewards: {}\n"
    made = edit(text, group="tools", name="sum", values={"kind": "calculator"}, order=ORDER)
    expected = "prompt: {user: a} # asked\n\ntools:\n  sum: {kind: calculator}\n\n# what counts\n"
    assert made == text.replace("prompt: {user: a} # asked\n\n# what counts\n", expected)


@pytest.mark.parametrize("empty", ["", " {}", " # none yet", " {} # none yet"])
def test_an_empty_group_is_filled(empty: str) -> None:
    text = f"rlenv: 1\ntools:{empty}\nname: a\n"
    made = edit(text, group="tools", name="sum", values={"kind": "calculator"})
    assert parse_text(made, file="", base=Path()).plain() == {
        "rlenv": 1,
        "tools": {"sum": {"kind": "calculator"}},
        "name": "a",
    }
    assert ("# none yet" in made) == ("# none yet" in empty)


def test_line_breaks_stay_those_of_the_text() -> None:
    made = edit(COMMENTED.replace("\n", "\r\n"), group="tools", name="sum", values={"retries": 2})
    assert "    retries: 2\r\n" in made
    assert made.count("\n") == made.count("\r\n")


def test_an_alias_is_replaced_and_its_anchor_stays() -> None:
    text = "rlenv: 1\nvars: &v {scope: none}\ntools:\n  a:\n    kind: sql\n    cache: *v\n"
    made = edit(text, group="tools", name="a", values={"cache": {"scope": "run"}})
    assert made == text.replace("*v", "{scope: run}")


@pytest.mark.parametrize(
    "text",
    ["rlenv: 1\ntools: []\n", "rlenv: 1\ntools: {a: 1}\n", "rlenv: 1\ntools: {a: &x {kind: sql}, b: *x}\n"],
)
def test_what_cannot_be_changed_alone_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="in the text"):
        edit(text, group="tools", name="a", values={"kind": "python"})
    with pytest.raises(SpecError):
        edit(text + "]", group="tools", name="a", values={})


_VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from([SPEC, COMMENTED]),
    name=st.sampled_from(["query", "sum", "prompted", "other"]),
    values=st.dictionaries(st.sampled_from(["kind", "prompt", "cache", "example", "more"]), _VALUES, min_size=1),
)
def test_any_value_is_read_back(text: str, name: str, values: dict[str, Any]) -> None:
    made = edit(text, group="tools", name=name, values=values, order=ORDER)
    before = parse_text(text, file="", base=Path()).plain()
    after = parse_text(made, file="", base=Path()).plain()
    entry = {**before["tools"].get(name, {}), **values}
    assert after == {**before, "tools": {**before["tools"], name: entry}}
    kept = {line.strip() for line in text.splitlines() if line.strip().startswith("#") and "Not" not in line}
    assert kept <= {line.strip() for line in made.splitlines()} | {"# two lines", "# Not a comment."}


# An entry is renamed with all that refers to it, or deleted; the rest of the text stays as it was written

TEXT = """\
rlenv: 1 # one
name: sum
tasks:
  train: {rows: [{question: sum, answer: 4}]}
prompt:
  user: "Call sum. {{ resources.db.schema }} {{ task.sum }}"
resources:
  # the data
  db: {kind: sqlite, init: rows.sql} # small
tools: # all
  query: {kind: sql, resource: db}
  # adds
  sum: # exact
    kind: calculator
endpoints:
  judge: {base_url: "http://localhost", model: judge}
rewards:
  correct: {kind: rule, rule: numeric_match}
  calls: {kind: rule, rule: valid_calls, tools: [sum, query], gate: correct > 0.5}
  good: {kind: judge, endpoint: judge, prompt: good}
success: correct >= 1 and not calls < correct # both
oracle:
  - call: {sum: {expression: "2 + 2"}}
  - call: [{query: {sql: sum}}]
"""


def lines(made: str) -> list[str]:
    found = difflib.ndiff(TEXT.splitlines(), made.splitlines())
    return [line for line in found if line[0] in "+-"]


@pytest.mark.parametrize(
    ("group", "name", "changed", "left"),
    [
        (
            "tools",
            "sum",
            ["  new: # exact", "valid_calls, tools: [new, query], gate", '- call: {new: {expression: "2 + 2"}}'],
            ("prompt.user", "oracle.1.call.0.query.sql"),
        ),
        (
            "tools",
            "query",
            ["  new: {kind: sql, resource: db}", "tools: [sum, new]", "- call: [{new: {sql: sum}}]"],
            (),
        ),
        (
            "resources",
            "db",
            ["{{ resources.new.schema }}", "  new: {kind: sqlite, init: rows.sql} # small", "resource: new}"],
            (),
        ),
        ("endpoints", "judge", ["  new: {base_url", "endpoint: new,"], ("endpoints.new.model",)),
        (
            "rewards",
            "correct",
            ["  new: {kind: rule", "gate: new > 0.5", "success: new >= 1 and not calls < new # both"],
            (),
        ),
    ],
)
def test_a_rename_follows_what_refers_to_the_entry_and_tells_the_rest(
    group: str, name: str, changed: list[str], left: tuple[str, ...]
) -> None:
    made = rename(TEXT, group=group, name=name, to="new")
    came = [line for line in lines(made.text) if line.startswith("+")]
    assert len(came) == len(changed)
    assert all(any(part in line for line in came) for part in changed)
    assert made.left == left
    assert rename(made.text, group=group, name="new", to=name).text == TEXT


def test_a_name_that_an_expression_cannot_hold_leaves_the_expression() -> None:
    made = rename(TEXT, group="rewards", name="correct", to="is-correct")
    assert "  is-correct: {kind" in made.text
    assert made.left == ("rewards.calls.gate", "success")


def test_an_entry_goes_with_its_lines_and_what_names_it_is_told() -> None:
    made = delete(TEXT, group="tools", name="sum")
    assert lines(made.text) == ["-   sum: # exact", "-     kind: calculator"]
    assert made.left == ("rewards.calls.tools.0", "oracle.0.call.sum", "prompt.user", "oracle.1.call.0.query.sql")


def test_the_last_entry_leaves_its_group_and_comments() -> None:
    made = delete(TEXT, group="resources", name="db")
    assert "resources: {}\n  # the data\ntools:" in made.text
    assert delete("tools: {a: {}} # all\n", group="tools", name="a").text == "tools: {} # all\n"
    assert made.left == ("prompt.user", "tools.query.resource")


def test_what_cannot_be_done_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="no such entry"):
        rename(TEXT, group="tools", name="gone", to="new")
    with pytest.raises(UsageError, match="is an entry already"):
        rename(TEXT, group="tools", name="sum", to="query")
    with pytest.raises(UsageError, match="no such entry"):
        delete(TEXT, group="user", name="kind")
    anchored = TEXT.replace("query: {", "query: &one {").replace("  # adds", "  more: *one")
    with pytest.raises(UsageError, match="without changing something else"):
        delete(anchored, group="tools", name="query")
