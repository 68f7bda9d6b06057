"""The `calculator` tool: arithmetic as people write it, exact and bounded.

Numbers may have thousands commas (`1,200`) and currency signs; `×`, `÷`, `−` and `^` (power) are read as they are
meant. `%` is the remainder where a number follows (`17 % 5`), a percentage otherwise (`15% * 80`, `15% of 80`).
Within a function's parentheses a comma separates arguments: `max(1000, 2000)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from rlenv.errors import ToolFailed
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import ToolSpec
from rlenv.tools._arithmetic import MAX_CHARS, CannotCalculate, calculate, format_number
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

_DESCRIPTION = "Calculate an arithmetic expression, such as (12.5 + 3) * 4 / 2."
_EXPRESSION = "Numbers with + - * / // % ** and parentheses; functions such as sqrt, round, min, max."
_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"expression": {"type": "string", "description": _EXPRESSION}},
    "required": ["expression"],
}


class CalculatorSpec(ToolSpec):
    """Calculates arithmetic expressions, exactly."""

    kind: Literal["calculator"]


@lru_cache(maxsize=1_024)
def _calculate(expression: str) -> ToolOutput:
    value = calculate(expression)
    text = format_number(value)
    if isinstance(value, Fraction):
        try:
            return ToolOutput(text, float(value))
        except OverflowError:
            return ToolOutput(text, round(value))
    return ToolOutput(text, value)


def _run_calculator(arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    expression = arguments["expression"]
    try:
        # Long texts are refused at once and not kept.
        return _calculate(expression) if len(expression) <= MAX_CHARS else _calculate.__wrapped__(expression)
    except CannotCalculate as error:
        raise ToolFailed(f"cannot calculate: {error}") from None


def compile_calculator(name: str, spec: CalculatorSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `expression`; its value is an int or a float."""
    return (
        Tool(
            name=name,
            description=spec.description or _DESCRIPTION,
            parameters=_PARAMETERS,
            run=_run_calculator,
            mode="inline",
            depends_on="arguments",
            **common(spec, idempotent=True),
        ),
    )


KIND = Kind(CalculatorSpec, compile_calculator, is_local=True)
