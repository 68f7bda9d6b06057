"""Rules over what the policy called, and in how many turns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from rlenv._base.bounded import cut_end
from rlenv.concurrency.deadline import share_of_time
from rlenv.errors import RewardError, UnknownEntry
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, Int, Text
from rlenv.messages import MalformedCall, ToolCall, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.outages import SHARE, Lost, count_against, lost_calls, run_again, settling
from rlenv.rewards.rule import RuleSpec, UnfitGold, check_range, compile_for_context
from rlenv.tools.arguments import callable_name
from rlenv.tools.base import Tool
from rlenv.trajectory import Turn, Where

_REFUSED = ("unknown_tool", "bad_arguments", "malformed")
_IGNORED = " ,./-_*^"
_MOST_PLACES = 64
_MOST_OF_CODE = 64
"""Calls that a piece of code may have made that was lost."""


class ValidCallsSpec(RuleSpec):
    """The share of calls, in [0, 1], that could be read, named a tool and fitted its schema.

    A call that a tool accepted counts as valid even if it failed while running, by an outage say; one that was never
    looked at (over a limit, or beside an answer) does not count at all. Where there are no calls there is nothing to
    measure.
    """

    rule: Literal["valid_calls"]


class CallsMatchSpec(RuleSpec):
    """1 if the policy's calls are those of the gold and no other, 0 otherwise; a call that is refused is none of them.

    A gold call is `{name, arguments}`, also as OpenAI writes it, and its arguments are to be equal. Or it is of BFCL's
    form, `{name: {argument: [accepted, …]}}`, compared as BFCL's checker does: texts without case, white space and
    `,./-_*^`; an argument may be left out where "" is accepted. A whole number may stand for a fraction that is one.
    """

    rule: Literal["calls_match"]
    expect: Any = "{{ task.answer }}"
    """The gold calls: a template that gives a list, or JSON text of one; [] where nothing is to be called."""
    order: Bool = False
    """Only in this order; otherwise each gold call takes the first call that fits and is left."""


class ToolCalledSpec(RuleSpec):
    """1 if a tool was called as often as asked for, 0 otherwise; by the policy, or by code that it wrote.

    With `succeeded`, a call that failed, and not surely by the policy's doing, is asked again where it matters: it
    counts where it goes well then, and the term is invalid where nobody can tell whose failure it was.
    """

    rule: Literal["tool_called"]
    tool: Text
    """The tool's name."""
    min: Annotated[Int, Field(ge=0)] = 1
    """At least this often."""
    max: Annotated[Int, Field(ge=0)] | None = None
    """At most this often."""
    succeeded: Bool = True
    """Count only calls that ran and returned."""


class ToolCallCountSpec(RuleSpec):
    """1 if the number of calls is within bounds, 0 otherwise; malformed and refused calls count too.

    The calls that a piece of code made count beside the one that ran it.

    Calls that failed by an outage count for `min` and not for `max`: making them again is no fault. With a negative
    weight, which is paid for being within the bounds, it is the other way round. Whether it was one is found out where
    it matters, by asking them again.
    """

    rule: Literal["tool_call_count"]
    max: Annotated[Int, Field(ge=0)] | None = None
    """The most calls."""
    min: Annotated[Int, Field(ge=0)] | None = None
    """The least calls."""


class TurnCountSpec(RuleSpec):
    """1 if the number of actions is within bounds, 0 otherwise."""

    rule: Literal["turn_count"]
    max: Annotated[Int, Field(ge=0)] | None = None
    """The most actions."""
    min: Annotated[Int, Field(ge=0)] | None = None
    """The least actions."""


def _results_of(context: RewardContext, *, last_only: bool) -> Iterator[ToolResult]:
    for turn in context.turns[-1:] if last_only else context.turns:
        yield from turn.results


def _made_by_code(result: ToolResult) -> Iterator[tuple[str, str, int]]:
    """Tool, outcome and number of the calls that this call made; see the `code` tool.

    Where a call failed and not by the policy's doing, whose doing it was stands for the outcome.
    """
    called = (result.details or {}).get("called")
    if not isinstance(called, Mapping):
        return
    for tool, outcomes in called.items():
        if isinstance(outcomes, Mapping):
            for outcome, count in outcomes.items():
                if type(count) is int:
                    yield tool, outcome, count


def _compile_valid_calls(name: str, spec: ValidCallsSpec, context: TermCompileContext) -> Term:
    last_only = spec.when == "turn"

    def measure(context: RewardContext) -> Measured:
        seen = refused = 0
        reason, at = "", (0, 0)
        first = len(context.turns) - 1 if last_only else 0
        for number, turn in enumerate(context.turns[first:], first):
            for index, result in enumerate(turn.results):
                if result.outcome == "skipped":
                    continue
                seen += 1
                if result.outcome in _REFUSED:
                    refused += 1
                    reason, at = result.text, (number, index)
            # A limit may end the turn before its calls are run; those that cannot be read are still the policy's.
            for index, call in enumerate(turn.parsed.calls[len(turn.results) :], len(turn.results)):
                if isinstance(call, MalformedCall):
                    seen += 1
                    refused += 1
                    reason, at = call.reason, (number, index)
        if not seen:
            return Measured(None)
        where = context.where_call(*at) if refused else ()
        return Measured((seen - refused) / seen, reason, {"calls": seen, "refused": refused}, where)

    return Term(name=name, spec=spec, measure=measure)


def _compile_tool_called(name: str, spec: ToolCalledSpec, context: TermCompileContext) -> Term:
    if spec.tool not in context.tools:
        raise UnknownEntry("tools", spec.tool, context.tools, key="tool")
    check_range(spec.min, spec.max)
    last_only = spec.when == "turn"
    callers, tools = _callers(spec.tool, context.tools), context.tools

    costs = spec.usual_weight < 0
    least = spec.min if not costs else 0 if spec.max is None else spec.max + 1

    def fits(count: int, again: int = 0) -> bool:
        """For what is better for the policy, where so many of the calls may have been made once before."""
        counts = (spec.min <= one and (spec.max is None or one <= spec.max) for one in range(count, count + again + 1))
        return all(counts) if costs else any(counts)

    def measured(count: int, again: int = 0) -> Measured:
        return Measured(float(fits(count, again)), f"{count} calls of {spec.tool}", {"calls": count})

    where = partial(_call_places, tool=spec.tool, last_only=last_only)
    of_code = partial(_count_made, tool=spec.tool, is_well=spec.succeeded)

    def measure(context: RewardContext) -> Measured:
        return measured(sum(map(of_code, _results_of(context, last_only=last_only))))

    if not spec.succeeded and not callers:
        return Term(name=name, spec=spec, measure=measure, where=where)

    async def measure_async(context: RewardContext) -> Measured:
        limit, found = share_of_time(SHARE), sum(map(of_code, _results_of(context, last_only=last_only)))
        maybe = lost_calls(context, tools, last_only=last_only)
        of_tool = _lost_of(spec.tool, maybe, callers) if spec.succeeded else []
        if costs and last_only and spec.max is None:
            return measured(found)  # what is made again in a later turn costs there
        repeated, lost = _count_repeated(of_code, of_tool, context)
        counted, once = Counter(id(one.code) for one in of_tool) - Counter(id(one.code) for one in lost), set[str]()
        left, error, unsettled = sum(_MOST_OF_CODE if one.tool in callers else 1 for one in lost), None, iter(lost)
        async for result in settling(lost if _could_change(fits, found, left, repeated) else (), tools, context):
            one = next(unsettled)
            if isinstance(result, RewardError):
                error = error or result
                continue
            left -= _MOST_OF_CODE if one.tool in callers else 1
            made, key = of_code(result), f"{one.tool} {one.arguments!r}"
            is_again = key in once and one.arguments is not None
            repeated, found = (repeated + made, found) if is_again else (repeated, found + made)
            counted[id(one.code)] += made
            once |= {key} if made else set()
            if not _could_change(fits, found, left, repeated):
                break
        if _could_change(fits, found, left, repeated):
            raise error or RewardError(f"{left} calls of '{spec.tool}' failed by no fault of the policy's")
        for code in _lost_code(maybe, callers):
            if found + repeated < least:  # what was never made counts against nobody
                again = of_code(await run_again(code, tools, context, limit))
                repeated += max(0, again - of_code(code.result) - counted[id(code)])
        return measured(found, repeated)

    return Term(name=name, spec=spec, measure_async=measure_async, where=where)


def _callers(tool: str, tools: Mapping[str, Tool]) -> set[str]:
    """The tools whose code can call a tool."""
    return {name for name, one in tools.items() if one.kind == "code" and tool in one.options.get("tools", ())}


def _lost_of(tool: str, lost: Sequence[Lost], callers: Set[str]) -> list[Lost]:
    """The lost calls of a tool; and code that was lost and says nothing of its calls, of which nobody knows any."""
    return [one for one in lost if one.tool == tool or (one.tool in callers and not any(_made_by_code(one.result)))]


def _lost_code(lost: Sequence[Lost], callers: Set[str]) -> Collection[Lost]:
    """The code that made the lost calls."""
    return {id(one.code): one.code for one in lost if one.code is not None and one.code.tool in callers}.values()


def _count_made(result: ToolResult, tool: str | None = None, *, is_well: bool = False) -> int:
    """The number of calls of a tool, all or those that went well, in a call that is one, or made some; None for any."""
    made = _made_by_code(result)
    inside = sum(count for called, how, count in made if tool in (None, called) and (how == "ok" or not is_well))
    return (result.name == tool and (result.outcome == "ok" or not is_well)) + inside


def _call_places(context: RewardContext, *, tool: str | None, last_only: bool) -> Where:
    """The places of the calls, of one tool or all, the first ones of very many; calls that code made have none."""
    found: list[tuple[int, int, int]] = []
    first = len(context.turns) - 1 if last_only else 0
    for number, turn in enumerate(context.turns[first:], first):
        for index, call in enumerate(turn.parsed.calls):
            if len(found) >= _MOST_PLACES:
                return tuple(found)
            if tool is None or call.name == tool:
                found += context.where_call(number, index)
    return tuple(found)


def _count_repeated(
    count: Callable[[ToolResult], int], lost: Sequence[Lost], context: RewardContext
) -> tuple[int, list[Lost]]:
    """How many calls that the lost ones may have made went well when made again; and the other lost ones."""
    well = list(_successful_calls(context)) if lost else ()
    repeated, left = 0, list[Lost]()
    for one in lost:
        again = [count(result) for name, given, result in well if (name, given) == (one.tool, one.arguments)]
        if again:
            repeated += max(again)
        else:
            left.append(one)
    return repeated, left


def _successful_calls(context: RewardContext) -> Iterator[tuple[str | None, Any, ToolResult]]:
    """The calls that went well, with their arguments and results; those that code made have no more than that."""
    for turn in context.turns:
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall) and result.outcome == "ok":
                yield call.name, call.arguments, result
            kept = (result.details or {}).get("calls")
            for one in kept if isinstance(kept, Sequence) else ():
                if isinstance(one, Mapping) and one.get("outcome") == "ok" and not one.get("is_cut"):
                    yield str(one.get("tool")), one.get("arguments"), ToolResult(str(one.get("tool")), "", "ok")


def _could_change(fits: Callable[[int, int], bool], found: int, lost: int, repeated: int) -> bool:
    """True if it would be another verdict had some of the lost calls succeeded."""
    return any(fits(found + more, repeated) != fits(found, repeated) for more in range(1, lost + 1))


def _compile_tool_call_count(name: str, spec: ToolCallCountSpec, context: TermCompileContext) -> Term:
    check_range(spec.min, spec.max)
    last_only, tools = spec.when == "turn", context.tools
    codes = {name for name, one in tools.items() if one.kind == "code"}

    def count(context: RewardContext) -> int:
        turns = context.turns[-1:] if last_only else context.turns
        own = sum(max(len(turn.results), len(turn.parsed.calls)) for turn in turns)
        return own + sum(map(_count_made, _results_of(context, last_only=last_only)))

    # It is better for the policy to have made no more than `most`, or at least `least`.
    most, least, costs = spec.max, spec.min, spec.usual_weight < 0
    if costs:
        most, least = None if least is None else least - 1, None if most is None else most + 1

    def measured(found: int, lost: int = 0) -> Measured:
        for_min, for_max = (found - lost, found) if costs else (found, found - lost)
        fits = (spec.min is None or for_min >= spec.min) and (spec.max is None or for_max <= spec.max)
        return Measured(float(fits), f"{found} calls", {"calls": found} | ({"lost": lost} if lost else {}))

    async def measure_async(context: RewardContext) -> Measured:
        limit, found, more = share_of_time(SHARE), count(context), 0
        lost = lost_calls(context, tools, last_only=last_only)
        if most is not None and found > most:
            too_many = most - (found - len(lost)) + 1
            against = await count_against(lost, tools, context, most=too_many) if too_many > 0 else 0
            away = len(lost) - against
            if not costs or found - away <= most:
                return measured(found, away)
        for code in _lost_code(lost, codes):
            if found + more < (least or 0):
                more += max(0, _count_made(await run_again(code, tools, context, limit)) - _count_made(code.result))
        return measured(found + more, more)

    where = partial(_call_places, tool=None, last_only=last_only)
    if most is None and not codes:
        return Term(name=name, spec=spec, measure=lambda context: measured(count(context)), where=where)
    return Term(name=name, spec=spec, measure_async=measure_async, where=where)


def _compile_turn_count(name: str, spec: TurnCountSpec, context: TermCompileContext) -> Term:
    check_range(spec.min, spec.max)

    def measure(context: RewardContext) -> Measured:
        found = len(context.turns)
        fits = (spec.min is None or found >= spec.min) and (spec.max is None or found <= spec.max)
        return Measured(float(fits), f"{found} turns", {"turns": found})

    return Term(name=name, spec=spec, measure=measure)


@dataclass(frozen=True, slots=True)
class _Gold:
    """A gold call, by the name that models call it by; `accepts` are the values of each argument, or its only ones."""

    name: str
    arguments: Mapping[str, Any]
    is_exact: bool

    def fits(self, call: ToolCall | MalformedCall) -> bool:
        if isinstance(call, MalformedCall) or call.name != self.name:
            return False
        return _is_equal(call.arguments, self.arguments) if self.is_exact else _like(call.arguments, self.arguments)


def _read_golds(given: Any) -> list[_Gold]:
    try:
        found = json.loads(given) if isinstance(given, str) else given
        return [_read_gold(one) for one in found]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UnfitGold(f"expect: {cut_end(repr(given), 200)} is no list of calls ({error})") from error


def _read_gold(given: Mapping[str, Any]) -> _Gold:
    body = given.get("function", given)
    if isinstance(body.get("name"), str) and "arguments" in body:
        arguments = body["arguments"]
        written = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(written, Mapping):
            raise TypeError("its arguments are no mapping")
        return _Gold(callable_name(body["name"]), written, is_exact=True)
    ((name, accepted),) = given.items()
    return _Gold(callable_name(name), {key: _as_list(values) for key, values in accepted.items()}, is_exact=False)


def _is_equal(value: Any, gold: Any) -> bool:
    if isinstance(gold, Mapping):
        return (
            isinstance(value, Mapping)
            and value.keys() == gold.keys()
            and all(_is_equal(value[key], gold[key]) for key in gold)
        )
    if isinstance(gold, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(gold) and all(map(_is_equal, value, gold))
    return isinstance(value, bool) == isinstance(gold, bool) and bool(value == gold)


def _like(value: Any, gold: Any) -> bool:
    """As BFCL's checker compares: gorilla, bfcl_eval/eval_checker/ast_eval/ast_checker.py at 6ea57973."""
    if isinstance(gold, str):
        return isinstance(value, str) and _bare_text(value) == _bare_text(gold)
    if isinstance(gold, Mapping):
        return (
            isinstance(value, Mapping)
            and all(key in gold and any(_like(part, one) for one in _as_list(gold[key])) for key, part in value.items())
            and all(key in value or "" in _as_list(accepted) for key, accepted in gold.items())
        )
    if isinstance(gold, (list, tuple)):
        return isinstance(value, (list, tuple)) and len(value) == len(gold) and all(map(_like, value, gold))
    return _is_equal(value, gold)


def _usable_calls(turn: Turn) -> Iterator[ToolCall | MalformedCall]:
    """The calls of a turn; one that was refused is malformed, whatever it says."""
    results = turn.results
    for index, call in enumerate(turn.parsed.calls):
        is_refused = index < len(results) and results[index].outcome in _REFUSED
        yield MalformedCall("", results[index].text) if is_refused else call


def _as_list(accepted: Any) -> Sequence[Any]:
    return accepted if isinstance(accepted, (list, tuple)) else (accepted,)


def _bare_text(text: str) -> str:
    for sign in _IGNORED:  # a policy's text may be long, and is compared with every value that is accepted
        text = text.replace(sign, "")
    return text.lower().replace("'", '"')


def _compile_calls_match(name: str, spec: CallsMatchSpec, context: TermCompileContext) -> Term:
    expected, last_only = compile_for_context(spec.expect, where="expect"), spec.when == "turn"

    def measure(context: RewardContext) -> Measured:
        golds = _read_golds(expected(context))
        turns = context.turns[-1:] if last_only else context.turns
        calls = [call for turn in turns for call in _usable_calls(turn)]
        if len(calls) != len(golds):
            return Measured(0.0, f"{len(calls)} calls; expected {len(golds)}")
        for gold in golds:
            at = next((at for at, call in enumerate(calls[:1] if spec.order else calls) if gold.fits(call)), None)
            if at is None:
                return Measured(0.0, f"no call is {gold.name}({cut_end(repr(gold.arguments), 200)})")
            del calls[at]
        return Measured(1.0)

    where = partial(_call_places, tool=None, last_only=last_only)
    return Term(name=name, spec=spec, measure=measure, where=where)


CALLS_MATCH = Kind(CallsMatchSpec, _compile_calls_match, values=(0, 1), gold="expect", of_calls=True)
VALID_CALLS = Kind(ValidCallsSpec, _compile_valid_calls, values=(0, 1), form="all")
TOOL_CALLED = Kind(ToolCalledSpec, _compile_tool_called, values=(0, 1), form="all")
TOOL_CALL_COUNT = Kind(ToolCallCountSpec, _compile_tool_call_count, values=(0, 1), form="all")
TURN_COUNT = Kind(TurnCountSpec, _compile_turn_count, values=(0, 1), form="all")
