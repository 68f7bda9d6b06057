"""Rules over answers that are JSON: json_schema and json_match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.schemas import BoundedValidator
from rlenv.errors import RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.compare import MAX_CHARS, DuplicateKey, holds, loads, same_json
from rlenv.rewards.rule import Reads, RuleSpec, read, scored, where_of
from rlenv.rewards.templating import compile_for_context

__all__ = ["JSON_MATCH", "JSON_SCHEMA", "JsonMatchSpec", "JsonSchemaSpec"]

_SAID_CHARS = 4_096
_THAT = "that are read as JSON"


class JsonSchemaSpec(RuleSpec):
    """1 if the answer is JSON that fits a JSON Schema, 0 otherwise."""

    rule: Literal["json_schema"]
    schema_: Annotated[Mapping[str, Any], Field(alias="schema")]
    """The JSON Schema."""
    of: Reads = "answer"
    """Read the `answer`, or the whole last `message` outside thinking and calls."""


class JsonMatchSpec(RuleSpec):
    """1 if the answer is JSON equal to the expected value, 0 otherwise.

    The order of keys and the way a number is written do not count (1 is 1.0); the order of a list does.
    """

    rule: Literal["json_match"]
    expect: Any = "{{ task.answer }}"
    """The expected value; strings in it are templates. Where the whole is one text, the text may be JSON itself."""
    mode: Literal["equal", "subset"] = "equal"
    """`subset`: objects of the answer may have keys that the expected ones lack."""
    of: Reads = "answer"
    """Read the `answer`, or the whole last `message` outside thinking and calls."""


def _json_schema(name: str, spec: JsonSchemaSpec, context: TermCompileContext) -> Term:
    try:
        validator = BoundedValidator(spec.schema_)
    except ValueError as error:
        raise UsageError(f"not a valid JSON Schema: {error}", key="schema") from error

    def fits(text: str) -> Measured:
        try:
            value = loads(text)
            if validator.is_valid(value):
                return Measured(1.0, text)
            # What is wrong is said for a short text: the message holds all of it.
            fault = next(validator.errors(value), None) if len(text) <= _SAID_CHARS else None
        except (ValueError, RecursionError, OverflowError) as error:  # what is no JSON, or nested too deep to check
            return Measured(0.0, f"not JSON: {error}")
        return Measured(0.0, text if fault is None else fault.message)

    def measure(context: RewardContext) -> Measured:
        return scored(read(context, spec.of), fits, most=MAX_CHARS, that=_THAT)

    return Term(name=name, spec=spec, measure=measure, where=where_of(spec.of))


def _json_match(name: str, spec: JsonMatchSpec, context: TermCompileContext) -> Term:
    fill = compile_for_context(spec.expect, where="expect", names=frozenset(("task", "vars", "resources")))
    compare = same_json if spec.mode == "equal" else holds

    def measure(context: RewardContext) -> Measured:
        gold = fill(context)
        if isinstance(gold, str):
            # A plain text is a JSON string that needs no quotes in the data.
            try:
                gold = loads(gold)
            except DuplicateKey as error:
                raise RewardError(f"expect: {error}") from error
            except ValueError:
                pass
        if gold is None:
            raise RewardError("expect: the task gives no value to match")

        def matches(text: str) -> Measured:
            try:
                mine = loads(text)
            except ValueError as error:
                return Measured(0.0, f"not JSON: {error}")
            return Measured(float(compare(mine, gold)), text)

        return scored(read(context, spec.of), matches, most=MAX_CHARS, that=_THAT)

    return Term(name=name, spec=spec, measure=measure, where=where_of(spec.of))


JSON_SCHEMA = Kind(JsonSchemaSpec, _json_schema)
JSON_MATCH = Kind(JsonMatchSpec, _json_match)
