"""Comparison of a tool's result with the expected one, as `verify` does it, and gold calls that episodes share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rlenv._base.bounded import size
from rlenv.concurrency.lanes import Kept
from rlenv.errors import EpisodeError, RewardError, UsageError, told_as
from rlenv.language.spec import Float, Spec, Text
from rlenv.rewards.base import Measured, RewardContext, TermCompileContext
from rlenv.rewards.normalise import MAX_JSON, NORMALISERS, Normalisation, holds, loads, numbers, same_json
from rlenv.rewards.rows import order_keys, orders_rows, read_table, row_key, same_rows
from rlenv.rewards.rule import UnfitGold, is_async, load_function, raised
from rlenv.rewards.rules.text import is_near

_LARGE_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: what a tool gave, or a constant of the spec.

    `value` is the structured value behind `text` (None where there is none). `arguments` are those of the call, empty
    for a constant.
    """

    text: str
    value: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> Any:
        """The structured value where there is one, the text otherwise."""
        return self.text if self.value is None else self.value


Comparator = Callable[[Side, Side], float | Measured]
"""Takes the policy's side and the gold side; raises RewardError where the gold side cannot be compared."""


class EqualSpec(Spec):
    """The same JSON value: 1 is 1.0, true is not 1."""

    by: Literal["equal"]


class NumberSpec(Spec):
    """The same number, exactly unless a tolerance is given; one in a text is read as numeric_match reads it."""

    by: Literal["number"]
    tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this much."""
    relative_tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Accept a difference of at most this share of the gold number."""


class TextSpec(Spec):
    """The same text."""

    by: Literal["text"]
    normalise: Normalisation = "none"
    """`none`: white space around the text is dropped; `case`: case is folded too; `qa`: as SQuAD does."""


class RowsSpec(Spec):
    """The same rows, as often as each other."""

    by: Literal["rows"]
    order: Literal["auto", "always", "never"] = "auto"
    """Whether the order of rows counts; `auto`: where the gold query has a top-level ORDER BY. What it orders by is
    looked for in the result: rows that are equal there may stand in any order among themselves."""
    columns: Literal["in_order", "any_order"] = "in_order"
    """`any_order`: some order of the columns has to fit."""
    tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    """Fractions may differ by this share, or by a thousandth of it near zero; whole numbers are equal or not."""
    query: Text | None = None
    """The argument that holds the query; by default the only one that is text."""


class JsonSpec(Spec):
    """The same JSON, read from a text where the tool gives no structured value."""

    by: Literal["json"]
    mode: Literal["equal", "subset"] = "equal"
    """`subset`: objects of the policy's result may have keys that the gold ones lack."""
    tolerance: Annotated[Float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Fractions may differ by this share, or by this much near zero; whole numbers are equal or not."""


class PythonComparatorSpec(Spec):
    """A function of your own: it takes the policy's side and the gold side and returns a number or a Measured."""

    by: Literal["python"]
    function: Text
    """`file.py:function`, relative to the spec, or `module:function`."""


Named = Literal["equal", "number", "text", "rows", "json"]
CompareSpec = Annotated[
    EqualSpec | NumberSpec | TextSpec | RowsSpec | JsonSpec | PythonComparatorSpec, Field(discriminator="by")
]

_BY_NAME: dict[str, type[EqualSpec | NumberSpec | TextSpec | RowsSpec | JsonSpec]] = {
    "equal": EqualSpec,
    "number": NumberSpec,
    "text": TextSpec,
    "rows": RowsSpec,
    "json": JsonSpec,
}


def is_large(gold: Side) -> bool:
    """True if comparing with `gold` takes more than a few milliseconds, which the event loop is not held for."""
    return size(gold.best, _LARGE_CHARS) > _LARGE_CHARS


def compile_comparator(spec: Any, context: TermCompileContext) -> Comparator:
    """Compiles a comparator from its name or its mapping.

    Raises:
        UsageError: a function cannot be loaded, or is a coroutine function.
    """
    if isinstance(spec, str):
        spec = _BY_NAME[spec].model_validate({"by": spec})
    if isinstance(spec, NumberSpec):
        return _compare_numbers(spec)
    if isinstance(spec, TextSpec):
        normalise = NORMALISERS[spec.normalise]
        return lambda mine, gold: float(normalise(mine.text) == normalise(gold.text))
    if isinstance(spec, RowsSpec):
        return _compare_rows(spec)
    if isinstance(spec, JsonSpec):
        return _compare_json(spec)
    if isinstance(spec, PythonComparatorSpec):
        function = load_function(spec.function, key="compare.function", gives=["mine", "gold"], context=context)
        if is_async(function):
            raise UsageError(
                f"{spec.function} is a coroutine function; a plain one was expected",
                key="compare.function",
                hint="write def",
            )
        return _compare_by_function(function, spec.function)
    return lambda mine, gold: float(same_json(mine.best, gold.best))


def _compare_by_function(function: Callable[..., Any], target: str) -> Comparator:
    def compare(mine: Side, gold: Side) -> float | Measured:
        try:
            found: float | Measured = function(mine, gold)
        except EpisodeError:
            raise
        except (Exception, SystemExit) as error:
            raise raised(target, error) from error
        return found

    return compare


def _compare_numbers(spec: NumberSpec) -> Comparator:
    tolerance, relative = Decimal(repr(spec.tolerance)), Decimal(repr(spec.relative_tolerance))

    def compare(mine: Side, gold: Side) -> float:
        targets = numbers(gold.best)
        if not targets:
            raise UnfitGold(f"the gold result {gold.best!r:.80} is not a number")
        return float(
            any(
                is_near(found, target, tolerance=tolerance, relative=relative)
                for found in numbers(mine.best)
                for target in targets
            )
        )

    return compare


def _compare_rows(spec: RowsSpec) -> Comparator:
    def compare(mine: Side, gold: Side) -> float | Measured:
        target = read_table(gold.best)
        if target is None:
            raise UnfitGold(f"the gold result is a {type(gold.best).__name__}, not rows")
        if target.is_cut:
            # Equal so far proves nothing, and unequal so far neither: without an order any part may be shown.
            raise RewardError("the gold result was cut at the tool's row limit and cannot be compared; raise the limit")
        query = _query_of(spec, gold)
        ordered = spec.order == "always" or (spec.order == "auto" and orders_rows(query))
        try:
            found = read_table(mine.best)
            if found is None:
                return Measured(0.0, f"a {type(mine.best).__name__}, not rows")
            if found.is_cut:
                # The gold result is whole under the same limits, so that one which had to be cut is another.
                return Measured(0.0, "cut at the tool's limit, which the gold result is within")
            same = same_rows(
                found.rows,
                target.rows,
                ordered=ordered,
                order_keys=order_keys(query, target.columns) if ordered and spec.order == "auto" else (),
                tolerance=spec.tolerance,
                any_column_order=spec.columns == "any_order",
            )
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            for row in target.rows:
                row_key(row)  # raises where it is the gold rows whose cells cannot be compared
            return Measured(0.0, f"cells that cannot be compared: {type(error).__name__}")
        details = {"rows": len(found.rows), "gold_rows": len(target.rows), "ordered": ordered}
        return Measured(float(same), mine.text, details)

    return compare


def _query_of(spec: RowsSpec, gold: Side) -> str:
    if spec.query is not None:
        query = gold.arguments.get(spec.query, "")
        return query if isinstance(query, str) else ""
    texts = [value for value in gold.arguments.values() if isinstance(value, str)]
    if len(texts) > 1:
        raise RewardError(
            "several arguments are text; name the one that holds the query: compare: {by: rows, query: …}"
        )
    return texts[0] if texts else ""


def _compare_json(spec: JsonSpec) -> Comparator:
    compare = same_json if spec.mode == "equal" else holds

    def read(side: Side) -> Any:
        return side.value if side.value is not None else loads(side.text)

    def measure(mine: Side, gold: Side) -> float | Measured:
        with told_as(UnfitGold, "the gold result is not JSON:", ValueError):
            target = read(gold)
        if mine.value is None and len(mine.text) > MAX_JSON:
            return Measured(0.0, f"longer than the {MAX_JSON} characters that are read as JSON")
        try:
            found = read(mine)
        except ValueError as error:
            return Measured(0.0, f"not JSON: {error}")
        return float(compare(found, target, tolerance=spec.tolerance))

    return measure


Compute = Callable[[Mapping[str, Any], RewardContext], Awaitable[Side]]
IsSure = Callable[[Side, RewardContext], Awaitable[bool]]
_Key = tuple[bytes, tuple[Hashable, ...]]


class GoldCache:
    """The last `size` gold results of one term.

    A result is kept only where it is known what it depends on: the arguments and the task, as JSON, and each opened
    resource by the public attribute `version` of its handle. With a resource that has none (or None, for one whose
    state may have changed) every episode computes its own.
    """

    def __init__(self, size: int = 4096) -> None:
        self._kept: Kept[_Key, Side] = Kept(size)

    async def get(
        self, arguments: Mapping[str, Any], context: RewardContext, compute: Compute, is_sure: IsSure | None = None
    ) -> Side:
        """The gold result for `arguments`, kept no longer than it takes to see that it is not sure; raises what
        `compute` raises."""
        key = _key_of(arguments, context)
        if key is None:
            return await compute(arguments, context)
        side, stays = await self._kept.get(key, lambda: compute(arguments, context))
        try:
            stays = stays or is_sure is None or await is_sure(side, context)
        finally:
            if not stays:
                self._kept.drop(key)
        return side


def _key_of(arguments: Mapping[str, Any], context: RewardContext) -> _Key | None:
    versions: list[Hashable] = []
    for name, handle in context.resources.items():
        version = getattr(handle, "version", None)
        if version is None or not isinstance(version, Hashable):
            return None
        versions.append((name, version))
    try:
        data = orjson.dumps((dict(arguments), dict(context.task)), option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None
    return data, tuple(versions)
