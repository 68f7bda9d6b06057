"""A schema, whoever wrote it, fetches nothing, and checks in bounded time whatever a policy writes."""

from __future__ import annotations

import time
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv._base.schemas import MAX_STEPS, BoundedValidator
from rlenv._base.strict_json import TooMuchJson, check_json, read_json
from rlenv.errors import UsageError
from rlenv.tools.arguments import ArgumentCheck

MOST_CPU_S = 2.0  # a collection of a large process takes half a second by itself
"""Generous: what is refused here took from one second to for ever."""


def doubled(levels: int) -> dict[str, Any]:
    made = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**made, f"a{levels}": {"type": "string"}}}


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = {"x": value}
    return value


def unevaluated(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


@pytest.mark.parametrize("bound", [{"multipleOf": 0.01}, {"minimum": 0.5}, {"anyOf": [{"maximum": 0.5}, True]}])
@pytest.mark.parametrize("far", [1e308, -1e308, 1e-300, 5e-324, 10**300])
def test_numbers_of_many_digits_beside_a_fraction_are_counted_as_what_they_take(bound: Any, far: float) -> None:
    """Each takes ten microseconds and more; nothing is compared where there are too many."""
    validator = BoundedValidator({"type": "array", "items": {"type": "number", **bound}})
    assert validator.steps([far] * 10_000) > MAX_STEPS
    assert not validator.is_valid([far] * 10_000)
    assert "too many parts" in validator.fault([far] * 10_000)
    assert validator.is_valid([0.5] * 10_000)
    assert validator.is_valid([1, 0.5, 0.0]) == ("anyOf" in bound or "multipleOf" in bound)
    assert BoundedValidator({"type": "array", "items": {"type": "number", "minimum": -1e308}}).is_valid([far] * 10_000)
    near = [validator.steps([one] * 1_000) for one in (7, 0.5, 0.0, True, -1e9)]
    assert max(near) < min(validator.steps([one] * 1_000) for one in (1e20, 10**20, 1e-20, 10**60, 1e59))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"properties": {"x": {"$ref": "http://127.0.0.1:9/secret"}}}, "nothing is fetched"),
        ({"properties": {"x": {"$ref": "file:///etc/hostname"}}}, "nothing is fetched"),
        ({"properties": {"x": {"$ref": "../other.json"}}}, "nothing is fetched"),
        ({"$id": "http://127.0.0.1:9/", "properties": {"x": {"$ref": "a.json"}}}, "nothing is fetched"),
        ({"properties": {"x": {"$dynamicRef": "http://127.0.0.1:9/"}}}, "nothing is fetched"),
        ({"properties": {"x": {"$recursiveRef": "http://127.0.0.1:9/"}}}, "nothing is fetched"),
        ({"properties": {"x": {"$id": "http://127.0.0.1:9/", "$ref": "#/a"}}}, "of its own"),
        ({"$schema": "http://127.0.0.1:9/meta"}, "meta-schema"),
        ({"properties": {"x": {"$ref": "#/nowhere"}}}, "which is not there"),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, "never ends"),
        (doubled(28), "references multiply"),
        (unevaluated(40), "references multiply"),
        ({"properties": {"x": {"pattern": "^(?=a)(a+)+$"}}}, "linear time"),
        ({"properties": {"x": {"pattern": r"(a)\1"}}}, "linear time"),
        ({"properties": {"x": {"pattern": "((a{1,100}){1,100}){1,100}"}}}, "linear time"),
        ({"patternProperties": {"^(?!a)": {}}}, "linear time"),
        ({"properties": {"x": nested({}, 300)}}, "nested deeper"),
        ({"properties": {"x": {"description": "d" * 300_000}}}, "more than 262,144"),
        ({"properties": {"x": {"allOf": [{"pattern": f"{n}"} for n in range(200)]}}}, "more than 100 patterns"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused_with_the_rule(schema: dict[str, Any], says: str) -> None:
    before = time.thread_time()
    with pytest.raises(UsageError, match=says):
        ArgumentCheck(schema, tool="t")
    assert time.thread_time() - before < MOST_CPU_S


def test_a_chain_of_references_as_long_as_a_schema_is_refused() -> None:
    links = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(4_000)} | {"a4000": {}}
    for first in ([0], range(3_950, -1, -50)):  # also where each piece of the chain is short when it is met
        schema = {"properties": {f"p{n}": {"$ref": f"#/$defs/a{n}"} for n in first}, "$defs": links}
        with pytest.raises(UsageError, match=r"nested too deep|references multiply|nested deeper|262,144"):
            ArgumentCheck(schema, tool="t")


ANY_JSON = {
    "properties": {"x": {"$ref": "#/$defs/any"}},
    "$defs": {
        "any": {
            "anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {"$ref": "#/$defs/any"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/any"}},
            ]
        }
    },
}
TWICE = {
    "properties": {"x": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}},
}
INTEGERS = {"properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
EITHER = {"properties": {"x": {"type": "array", "items": {"anyOf": [{"type": "integer"}] * 30}}}}
WORDS = {"properties": {"x": {"type": "array", "items": {"enum": [f"w{n}" for n in range(5_000)]}}}}
PATTERNS = {"properties": {"x": {"allOf": [{"pattern": f"([ab]{{{n}}}c|x)[a-z]{{50}}"} for n in range(50, 99)]}}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (INTEGERS, {"x": ["a"] * 64_000}),
        (EITHER, {"x": ["a"] * 64_000}),
        (WORDS, {"x": ["w4999"] * 64_000}),
        (TWICE, nested({}, 60)),
        (ANY_JSON, {"x": [[]] * 64_000}),
        (PATTERNS, {"x": "ab" * 50_000 + "!"}),
        ({"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}, {"x": "a" * 100_000 + "!"}),
        ({"properties": {"a": {}}}, {f"k{n}": 1 for n in range(20_000)}),
        ({"properties": {"a": {}}}, {"k" * 100_000 + str(n): 1 for n in range(20)}),
        ({"properties": {f"p{n}": {} for n in range(3_000)}, "additionalProperties": False}, {"p" * 90: 1}),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_explained_in_bounded_time(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    check = ArgumentCheck(schema, tool="t")
    before = time.thread_time()
    assert not check.fits(arguments)
    said = check.explain(arguments)
    assert said
    assert len(said) < 5_000
    check.type_faults(arguments)
    assert time.thread_time() - before < MOST_CPU_S


OPTIONAL = {"properties": {"x": {"anyOf": [INTEGERS["properties"]["x"], {"type": "null"}]}}}


@pytest.mark.parametrize("count", [1, 1_000, 4_000, 64_000])
@pytest.mark.parametrize("schema", [OPTIONAL, EITHER])
def test_an_error_of_a_choice_holds_no_more_than_some_thousand_others(
    schema: dict[str, Any], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    init = jsonschema_rs.ValidationError.__init__

    def counted(self: Any, message: str, *given: Any) -> None:
        made.append(message)
        init(self, message, *given)

    monkeypatch.setattr(jsonschema_rs.ValidationError, "__init__", counted)
    check = ArgumentCheck(schema, tool="t")
    arguments = {"x": ["a"] * count}
    assert check.explain(arguments)
    check.type_faults(arguments)
    assert len(made) < 10_000


TREE = {"anyOf": [{"type": "integer"}, {"type": "object", "additionalProperties": {"$ref": "#"}}]}


@pytest.mark.parametrize(("depth", "is_said"), [(4, True), (100, False), (200, False)])
def test_errors_of_choices_within_choices_are_made_only_where_they_hold_little(depth: int, is_said: bool) -> None:
    # Each level's holds those of all below it with what they are about: the square of the depth in all.
    validator, misfit = BoundedValidator(TREE), nested("no integer", depth)
    assert bool(list(validator.errors(misfit))) is ("no integer" in validator.fault(misfit)) is is_said
    assert validator.fault(misfit)
    assert validator.fault(nested(1, depth)) == ""


@pytest.mark.parametrize("schema", [TREE, {"required": ["y"]}, {"maxProperties": 0}])
def test_a_misfit_of_any_depth_has_a_fault(schema: dict[str, Any]) -> None:
    assert BoundedValidator(schema).fault(nested("no integer", 400))


def test_ordinary_recursive_schemas_still_work() -> None:
    check = ArgumentCheck(ANY_JSON, tool="t")
    assert check.fits({"x": [1, {"a": [None, "b"] * 100}]})
    assert ArgumentCheck(TWICE, tool="t").fits(nested({}, 6))
    deep: Any = 1
    for _ in range(60):
        deep = [deep]
    assert check.fits({"x": deep})


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda one: st.lists(one, max_size=6), max_leaves=50)
)
def test_counting_never_says_less_than_one_step_a_value_that_a_schema_reaches(value: Any) -> None:
    validator = BoundedValidator({"type": "object", **ANY_JSON})

    def size(item: Any) -> int:
        return 1 + sum(map(size, item)) if isinstance(item, list) else 1

    assert size(value) <= validator.steps({"x": value}) <= MAX_STEPS
    assert validator.is_valid({"x": value})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b'"' + b"a" * 2_000_000 + b'"', "longer than"),
        (b"[" + b"{}," * 200_000 + b"1]", "values"),
        (b"[" + b'"a",' * 200_000 + b"1]", "values"),
        (b'["' + b'\\",' * 100 + b'",' + b"1," * 200_000 + b"1]", "values"),
        (b"[" * 101 + b"]" * 101, "nested deeper"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested deeper"),
        (b"[" * 900_000, "values"),
        (b"9" * 1_001, "digits"),
        (b'{"a":1.' + b"5" * 1_001 + b"}", "digits"),
    ],
)
def test_json_over_a_limit_is_refused_before_it_is_parsed(data: bytes, says: str) -> None:
    with pytest.raises(TooMuchJson, match=says):
        check_json(data, max_bytes=1_500_000)


def test_what_stands_in_texts_is_not_counted() -> None:
    text = '[{"a,": "\\"[[[{{{,,,\\\\"}, "' + "[," * 300_000 + '"]'
    assert read_json(text.encode(), max_bytes=1_000_000)[0] == {"a,": '"[[[{{{,,,\\'}
    check_json(b'"' + b"9" * 5_000 + b'"', max_bytes=10_000)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_looking_at_anything_raises_nothing_but_the_limits(data: bytes) -> None:
    check_json(data, max_bytes=1_000)
