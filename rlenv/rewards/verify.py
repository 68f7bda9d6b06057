"""The kind `verify`: runs a tool on what the policy produced and compares the result with the gold one.

Source: eq. 3 of RL-Factory, R = g(T_verify(a), y_expected). A failure of the policy's call is worth the least where it
is the policy's; a failure of the gold call, or of what both stand on, leaves the term invalid. Where nobody can say
from that call alone whose failure it is, it is asked again (`rlenv.rewards.outages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlenv.concurrency.lanes import entered, here
from rlenv.concurrency.scope import cancel_all
from rlenv.errors import RewardError, UnknownEntry, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Float, Int, RewardSpec, Spec, Text
from rlenv.rewards import comparators
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.outages import Lost, known_call, may_be_lost, settled
from rlenv.rewards.rule import UnfitGold, compile_for_context, unshaped_worst_of, where_answer
from rlenv.tools.base import Tool, asked_again

# What is kept of each result in the trajectory, beside the evidence.
_KEPT_CHARS = 512
_KEPT_GOLDS = 4
_NOT_GOLD = ("task", "vars", "resources", "item")


class ExpectSpec(Spec):
    """The expected value: the result of a gold call (`arguments`), or a constant (`value`)."""

    arguments: Mapping[str, Any] | None = None
    """Run the same tool with these arguments; strings are templates. A list where the tool takes none gives
    alternatives: any one matching is right."""
    value: Any = None
    """Compare with this value; strings in it are templates."""
    any_of: Text | None = None
    """A template that gives a list of alternatives; `arguments` or `value` is filled once for each, as `item`."""


class VerifySpec(RewardSpec):
    """Runs a tool on what the policy produced and compares the result with the expected one.

    No answer is worth 0. One that the arguments cannot be filled from, and a call that the tool refuses, that fails or
    that uses up its time, are worth the least that the term can be, or with a negative weight the most: 0 or 1, or an
    end of `clip`. Where the gold call fails in any way, or the policy's for a reason that is not its own (a server that
    is down, an open breaker), the term is invalid.
    """

    kind: Literal["verify"]
    tool: Text
    """The tool to run; its own limits hold."""
    arguments: Mapping[str, Any]
    """The policy's arguments; strings are templates, over `answer` too."""
    expect: Text | Int | Float | ExpectSpec
    """The expected result: `{arguments: …}`, `{value: …}`, or a template or number as a short form of `{value: …}`."""
    compare: comparators.Named | comparators.CompareSpec = "equal"
    """`equal`, `number`, `text`, `rows` or `json`, or a mapping with options: `{by: rows, columns: any_order}`."""


@dataclass(frozen=True, slots=True)
class _Verify:
    """A compiled verify term."""

    tool: Tool
    tools: Mapping[str, Tool]
    arguments: Callable[..., Any]
    alternatives: Callable[[RewardContext], Sequence[Any]]
    expected: Callable[..., Any]
    is_call: bool
    spread: frozenset[str]
    compare: comparators.Comparator
    reads_answer: bool
    cache: comparators.GoldCache
    is_left: bool
    """Whether the arguments of a gold call are read from what the policy may have left."""
    failed: float
    """The worst that the term can be: what a call is worth that fails by the policy's doing."""
    is_own: bool
    """Whether the comparator is a function of the author's, which may not be made for threads."""
    told_apart: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The arguments of at most two sure golds, by what they gave: of a yes or no, half are as the tool's example."""

    async def measure(self, context: RewardContext) -> Measured:
        if context.answer is None and self.reads_answer:
            return Measured(0.0, "no answer")
        arguments = self.arguments(context)
        gold = asyncio.ensure_future(self._gold_sides(context))
        try:
            result = await context.call(self.tool.name, arguments)
            golds = await gold
            known = None if result.outcome == "ok" else next(iter(self._gold_calls(context)), None)
            if may_be_lost(result, self.tools, known=known):
                result = await settled(Lost(self.tool.name, arguments, result), self.tool, context, known=known)
        finally:
            await cancel_all(gold)
        seen = {
            "verified_results": {
                "tool": self.tool.name,
                "outcome": result.outcome,
                "text": result.text[:_KEPT_CHARS],
                "expected": [gold.text[:_KEPT_CHARS] for gold in golds[:_KEPT_GOLDS]],
            }
        }
        if result.outcome == "ok":
            mine = comparators.Side(result.text, result.value, arguments)
            if self.is_own or not any(map(comparators.is_large, golds)):
                best = self._find_best(mine, golds)
            else:
                best = await asyncio.to_thread(self._find_best, mine, golds)
            return replace(best, details={**best.details, **seen})
        # A result that does not say whose it is was made by other hands than the executor's, and by what it declares.
        if result.whose in ("policy", "") and result.outcome in ("failed", "timeout", "bad_arguments"):
            failure = {"outcome": result.outcome} | ({"reason": result.reason} if result.reason else {})
            return Measured(self.failed, result.text, {**failure, **seen})
        raise RewardError(
            f"the tool '{self.tool.name}' was not run: {result.outcome} ({result.reason or 'no reason'}): "
            f"{result.text:.200}"
        )

    def _gold_calls(self, context: RewardContext) -> list[Mapping[str, Any]]:
        """The arguments of the gold calls, in order."""
        values = (self.expected(context, item=item) for item in self.alternatives(context) if self.is_call)
        return [call for arguments in values for call in self._spread_calls(arguments)]

    def _find_best(self, mine: comparators.Side, golds: Sequence[comparators.Side]) -> Measured:
        best = Measured(0.0, mine.text)
        for index, gold in enumerate(golds):
            found = self.compare(mine, gold)
            measured = found if isinstance(found, Measured) else Measured(found, mine.text)
            value = measured.value
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise RewardError(f"the comparator gave {value!r:.80}; expected a number")
            if index == 0 or best.value is None or value > best.value:
                best = measured
            if value >= 1:
                break
        return best

    async def _gold_sides(self, context: RewardContext) -> Sequence[comparators.Side]:
        if not self.is_call:
            values = [self.expected(context, item=item) for item in self.alternatives(context)]
            if any(value is None for value in values):
                raise UnfitGold("expect: the task gives no value to compare with")
            return [comparators.Side(value if isinstance(value, str) else str(value), value) for value in values]
        if not (calls := self._gold_calls(context)):
            raise UnfitGold("expect: the task gives no alternative to compare with")
        # In order and not at once: most tasks have one, the rest are few, and each is computed once per task.
        is_sure = self._is_sure if self.tool.reaches_out else None
        return [await self.cache.get(arguments, context, self._run_gold, is_sure) for arguments in calls]

    def _spread_calls(self, arguments: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        several = [name for name in self.spread if isinstance(arguments.get(name), (list, tuple))]
        if not several:
            return [arguments]
        if len(several) > 1:
            raise RewardError(f"expect: {' and '.join(sorted(several))} both give alternatives; use any_of")
        (name,) = several
        return [{**arguments, name: value} for value in arguments[name]]

    async def _run_gold(self, arguments: Mapping[str, Any], context: RewardContext) -> comparators.Side:
        result = await known_call(self.tool, arguments, context)
        if self.is_left and result.reason == "refused" and may_be_lost(result, self.tools):
            result = await settled(Lost(self.tool.name, arguments, result), self.tool, context)
        if result.outcome != "ok":
            error = UnfitGold if result.whose == "policy" else RewardError
            raise error(f"the gold call of '{self.tool.name}' ended as {result.outcome}: {result.text:.200}")
        return comparators.Side(result.text, result.value, arguments)

    async def _is_sure(self, gold: comparators.Side, context: RewardContext) -> bool:
        """True if the server gives it twice, and something else to the example, or to another gold, in between. A page
        that a proxy shows for a while in place of every answer would make numbers wrong for as long as it is kept."""
        known, lane, tool = self.tool.example, here(), self.tool
        if lane is not None and lane.tape.is_offline:
            return True
        differs = known in (None, gold.arguments)
        others = [known or {}, *(one for text, one in self.told_apart.items() if text != gold.text)]
        token = asked_again.set("refused")  # no cache has the answer
        try:
            with entered("beside"):  # a replay does not ask these
                while others and not differs:
                    other = await context.call(tool.name, others.pop(0))
                    differs = other.outcome == "ok" and other.text != gold.text
                again = await context.call(tool.name, gold.arguments)
        finally:
            asked_again.reset(token)
        is_sure = differs and (again.outcome, again.text) == ("ok", gold.text)
        if is_sure and len(self.told_apart) < 2 and not self.is_left:
            self.told_apart.setdefault(gold.text, gold.arguments)
        return is_sure


def _compile(name: str, spec: VerifySpec, context: TermCompileContext) -> Term:
    tool = context.tools.get(spec.tool)
    if tool is None:
        raise UnknownEntry("tools", spec.tool, context.tools, key="tool")
    expect = spec.expect if isinstance(spec.expect, ExpectSpec) else ExpectSpec(value=spec.expect)
    is_call = expect.arguments is not None
    if is_call == ("value" in expect.model_fields_set):
        raise UsageError("give either arguments or value", key="expect", hint="name one of them")
    others = (one for one in context.tools.values() if one.entry == tool.entry != "" or one.resources & tool.resources)
    if is_call and (one := next((one for one in (tool, *others) if one.mutates), None)):
        message = f"'{one.name}' changes state, so the policy could choose what a gold call of '{spec.tool}' gives"
        raise UsageError(message, key="expect", hint="expect a value, or use kind: state")
    properties = tool.parameters.get("properties", {})
    for key, given in (("arguments", spec.arguments), ("expect.arguments", expect.arguments or {})):
        if unknown := [argument for argument in given if properties and argument not in properties]:
            message = f"'{spec.tool}' takes no '{unknown[0]}'"
            raise UsageError(message, key=key, hint=f"it takes: {', '.join(properties)}")
    names = frozenset(_NOT_GOLD if expect.any_of is not None else _NOT_GOLD[:-1])
    expected = compile_for_context(
        dict(expect.arguments) if expect.arguments is not None else expect.value,
        where="expect.arguments" if is_call else "expect.value" if expect is spec.expect else "expect",
        names=names,
    )
    verify = _Verify(
        tool=tool,
        tools=context.tools,
        arguments=compile_for_context(
            dict(spec.arguments), where="arguments", names=frozenset(("task", "vars", "resources", "answer"))
        ),
        alternatives=_compile_alternatives(expect),
        expected=expected,
        is_call=is_call,
        spread=frozenset(key for key, schema in properties.items() if _takes_no_list(schema)),
        compare=comparators.compile_comparator(spec.compare, context),
        reads_answer=_reads_answer(spec.arguments),
        cache=comparators.GoldCache(),
        is_left=is_call and UnfitGold.is_left(expect.model_dump()),
        failed=unshaped_worst_of(spec),
        is_own=isinstance(spec.compare, comparators.PythonComparatorSpec),
    )
    return Term(name=name, spec=spec, measure_async=verify.measure, where=where_answer if verify.reads_answer else None)


def _compile_alternatives(expect: ExpectSpec) -> Callable[[RewardContext], Sequence[Any]]:
    if expect.any_of is None:
        return lambda context: (None,)
    fill = compile_for_context(expect.any_of, where="expect.any_of", names=frozenset(_NOT_GOLD[:-1]))
    is_left = UnfitGold.is_left(expect.any_of)

    def alternatives(context: RewardContext) -> Sequence[Any]:
        found = fill(context)
        items = found if isinstance(found, (list, tuple)) else (found,)
        if not items:
            raise (UnfitGold if is_left else RewardError)("expect.any_of: the task gives an empty list")
        return items

    return alternatives


def _takes_no_list(schema: Any) -> bool:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    listed = kinds if isinstance(kinds, list) else [kinds]
    return bool(kinds) and "array" not in listed


def _reads_answer(value: Any) -> bool:
    if isinstance(value, str):
        return "answer" in value and "{" in value
    if isinstance(value, Mapping):
        return any(_reads_answer(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_reads_answer(item) for item in value)


KIND = Kind(VerifySpec, _compile, gold="expect")
