"""The generated JSON Schema: fresh, valid, and of one mind with the typed spec."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.cli.main import main
from rlenv.errors import SpecError
from rlenv.language import kinds as registry
from rlenv.language.document import parse_source, read_source
from rlenv.language.loader import type_document
from rlenv.language.schema import FILE_NAME, as_text, is_fresh, json_schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json_schema()
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)

WHOLE: dict[str, Any] = {
    "rlenv": 1,
    "name": "whole",
    "version": 2,
    "description": "Everything at once.",
    "vars": {"data": "x"},
    "tasks": {
        "train": {"path": "a.jsonl", "limit": 3, "shuffle": 7},
        "test": {"rows": [{"question": "a"}]},
        "more": {"function": "a.py:rows"},
    },
    "prompt": {"system": "s", "user": "u"},
    "dialect": "hermes",
    "tools": {"calculate": {"kind": "calculator", "timeout_s": 2.5, "mutates": False, "concurrency": 3}},
    "resources": {"db": {"kind": "sqlite", "path": "a.sqlite", "scope": "episode"}},
    "calls": {"timeout_s": 1.5, "concurrency": 2},
    "observation": {"format": "text", "max_chars": 100, "keep": "tail"},
    "answer": {"from": "regex", "pattern": "(a)"},
    "limits": {"turns": 3, "episode_s": 10.5},
    "rewards": {
        "correct": {"kind": "rule", "rule": "exact_match", "expect": "{{ task.a }}", "weight": 1.0, "when": "episode"},
        "calls": {"kind": "rule", "rule": "valid_calls", "gate": "correct >= 1", "required": False},
        "checked": {"kind": "verify", "tool": "calculate", "arguments": {"expression": "1"}, "expect": "1"},
    },
    "success": "correct >= 1",
    "oracle": [
        {"call": {"calculate": {"expression": "1+1"}}, "for_each": "task.a"},
        {"call": [{"calculate": {"expression": "1+1"}}, {"calculate": {}}]},
        {"say": "done"},
    ],
}


def model_accepts(data: dict[str, Any]) -> bool:
    try:
        type_document(parse_source(json.dumps(data)))
    except SpecError:
        return False
    return True


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.extend(paths_of(inner, (*at, key)))
    return found


def parent_of(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        data = data[key]
    return data


# Whole numbers written as floats are left out: JSON has no other numbers, YAML and the typed spec tell them apart.
_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 3, 0, -1, 2.5, "text", "", [], {}, ["a"], {"a": 1}, [[]], [{}], "correct >= 1"]
)
_KINDS = {("tools", "calculate", "kind"), ("resources", "db", "kind")}
_KINDS |= {("rewards", name, key) for name in WHOLE["rewards"] for key in ("kind", "rule")}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    data = copy.deepcopy(WHOLE)
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from(paths_of(data)))
        parent = parent_of(data, path)
        change = draw(st.sampled_from(["replace", "remove", "add"]))
        if change == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(["extra", "timeout", "path", "rows", "python", "tag", "say"]))] = draw(_VALUES)
        elif change == "remove":
            del parent[path[-1]]
        elif path not in _KINDS:  # unknown kinds are left to plug-ins by the schema
            parent[path[-1]] = draw(_VALUES)
    return data


def test_the_schema_is_valid_json_schema() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_a_document_that_uses_every_section_is_accepted_by_both() -> None:
    assert model_accepts(WHOLE)
    assert [error.message for error in VALIDATOR.iter_errors(WHOLE)] == []


@pytest.mark.slow
@given(documents())
@settings(max_examples=150, deadline=None)
def test_schema_and_model_agree_on_changed_documents(data: dict[str, Any]) -> None:
    errors = [f"{list(error.instance_path)}: {error.message}" for error in VALIDATOR.iter_errors(data)]
    try:
        type_document(parse_source(json.dumps(data)))
        faults = []
    except SpecError as error:
        faults = [str(fault) for fault in error.faults]
    assert bool(errors) == bool(faults), f"the schema says {errors}, the model {faults}"


@pytest.mark.parametrize("file", sorted((ROOT / "specs").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_specs_that_ship_fit_the_schema(file: Path) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(dict(read_source(file).data))] == []


def test_an_error_points_at_the_key_of_the_kind_that_is_named() -> None:
    data = copy.deepcopy(WHOLE)
    data["tools"]["calculate"]["timeout"] = 3
    (error,) = VALIDATOR.iter_errors(data)
    assert list(error.instance_path) == ["tools", "calculate"]
    assert "timeout" in error.message


def test_a_file_that_extends_another_may_leave_keys_out() -> None:
    assert VALIDATOR.is_valid({"extends": "./base.yaml", "limits": {"turns": 3}})
    assert not VALIDATOR.is_valid({"limits": {"turns": 3}})


def test_every_key_of_the_language_has_a_description() -> None:
    bare = [
        name for name, inner in SCHEMA["properties"].items() if not inner.get("description") and "$ref" not in inner
    ]
    assert bare == []
    for group in ("tools", "resources", "rewards", "rules"):
        for kind in registry.BUILT_IN[group]:
            name = f"{group}.{kind}"
            if name == "rewards.rule":
                continue
            properties = SCHEMA["$defs"][name]["properties"]
            assert [
                key for key in properties if "description" not in properties[key] and key not in ("kind", "rule")
            ] == [], name


def test_the_schema_in_the_repository_is_fresh() -> None:
    assert is_fresh(ROOT / "schemas"), "run: rlenv editor schema"


def test_the_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["editor", "schema", "--check", str(tmp_path)]) == 1
    assert main(["editor", "schema", str(tmp_path)]) == 0
    assert (tmp_path / FILE_NAME).read_text(encoding="utf-8") == as_text(SCHEMA)
    assert main(["editor", "schema", "--check", str(tmp_path)]) == 0
    capsys.readouterr()
