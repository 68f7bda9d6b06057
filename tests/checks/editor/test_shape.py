"""Forms are what the schema says of each kind."""

from __future__ import annotations

import pytest

from rlenv.checks.editor.shape import form
from rlenv.errors import UsageError
from rlenv.language.schema import json_schema
from tests.support.editing import SPEC


def test_every_kind_of_tool_has_a_form_with_the_keys_of_its_schema() -> None:
    defs = json_schema()["$defs"]
    kinds = form(SPEC, "tools")["kinds"]
    assert set(kinds) == {name.removeprefix("tools.") for name in defs if name.startswith("tools.")}
    for kind, told in kinds.items():
        shape = defs[f"tools.{kind}"]
        assert {field["name"] for field in told["fields"]} == set(shape["properties"]) - {"kind"}
        required = {field["name"] for field in told["fields"] if field["required"]}
        assert required == set(shape["required"]) - {"kind"}
        assert told["doc"] == shape["description"]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("sql", "max_rows", {"input": "integer", "shared": False}),
        ("sql", "resource", {"input": "text", "required": True}),
        ("sql", "timeout_s", {"input": "number", "shared": True}),
        ("sql", "mutates", {"input": "choice", "choices": [True, False]}),
        ("code", "tools", {"input": "json"}),
        ("http", "body", {"input": "any"}),
        ("mcp", "command", {"input": "json"}),
    ],
)
def test_a_field_asks_for_what_its_schema_takes(kind: str, name: str, expected: dict[str, object]) -> None:
    (field,) = (one for one in form(SPEC, "tools")["kinds"][kind]["fields"] if one["name"] == name)
    assert {key: field[key] for key in expected} == expected
    assert field["doc"]
    assert field["type"] or field["input"] == "any"


def test_entries_are_those_that_can_be_read() -> None:
    entries = form(SPEC.replace("success: correct", "success: [correct"), "tools")["entries"]
    assert entries == {"query": {"kind": "sql", "resource": "db"}, "sum": {"kind": "calculator"}}


def test_a_group_without_kinds_has_no_form() -> None:
    with pytest.raises(UsageError, match="have no kinds; such as tools"):
        form(SPEC, "limits")
