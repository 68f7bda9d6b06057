"""An entry is renamed with all that refers to it, or deleted; the rest of the text stays as it was written."""

from __future__ import annotations

import difflib

import pytest

from rlenv.checks.editor.edit import delete, rename
from rlenv.errors import UsageError

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
