"""Builds what a reward term reads, so that a term can be tested without a policy or a server; and the laws of terms.

Run them on your own:

    from rlenv.testing.rewards import check_reward, reward_context

    def test_my_reward_keeps_the_laws():
        check_reward(my_term, [reward_context(answer="4", task={"answer": 4})], within=(0, 1))
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Account
from rlenv.errors import RewardError, UsageError
from rlenv.messages import MalformedCall, ParsedAction, ToolCall, ToolResult
from rlenv.rewards.base import GroupContext, Measured, RewardContext, Term
from rlenv.testing import laws
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory, Turn

__all__ = ["check_reward", "check_reward_async", "compile_term", "measure", "reward_context", "turn"]

_Bounds: TypeAlias = Sequence[tuple[float, float]]


async def _no_call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    raise UsageError(f"the term called the tool '{name}'", hint="pass `call` to reward_context")


def turn(
    content: str = "",
    *,
    index: int = 0,
    thinking: str = "",
    calls: Sequence[ToolCall | MalformedCall] = (),
    results: Sequence[ToolResult] = (),
    is_cut: bool = False,
) -> Turn:
    """A turn whose action a dialect read as `content`, `thinking` and `calls`."""
    return Turn(index, content, ParsedAction(content, thinking, tuple(calls), is_cut), tuple(results))


def reward_context(
    *,
    answer: str | None = None,
    task: Mapping[str, Any] | None = None,
    turns: Sequence[Turn] | None = None,
    call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] = _no_call,
    resources: Mapping[str, Any] | None = None,
    reason: str = "",
) -> RewardContext:
    """The context of a term; `turns` is by default the one turn that holds the answer as its text."""
    if turns is None:
        turns = (turn(answer or ""),)
    return RewardContext(task or {}, (), turns, answer, resources or {}, {}, call, reason)


def compile_term(
    kind: str = "rule", *, name: str = "term", tools: Mapping[str, Tool] | None = None, base: Path = Path(), **keys: Any
) -> Term:
    """A compiled term from the keys of its entry under `rewards:`.

    Raises:
        UsageError: the factory refuses the entry.
        pydantic.ValidationError: a key does not fit.
    """
    if kind == "rule":
        keys.setdefault("rule", "python")
    term = laws.compiled("rewards", {"kind": kind, **keys}, name=name, base=base, tools=tools or {})
    assert isinstance(term, Term)
    return term


def measure(rule: str, context: RewardContext, *, tools: Mapping[str, Tool] | None = None, **keys: Any) -> Measured:
    """The measure of a rule in `context`; one that waits for something is run in an event loop of its own.

    Raises:
        RewardError: it cannot be measured.
        UsageError: the factory refuses the entry.
        RuntimeError: the rule waits for something, and this is called from within a loop; await
            `compile_term(...).measure_async(context)` there.
    """
    term = compile_term(rule=rule, tools=tools, **keys)
    if term.measure is not None:
        return term.measure(context)
    assert term.measure_async is not None
    return asyncio.run(_awaited(term.measure_async(context)))


async def _awaited(measured: Awaitable[Measured]) -> Measured:
    return await measured


async def check_reward_async(
    term: Term | Mapping[str, Any],
    contexts: Sequence[RewardContext] = (),
    *,
    groups: Sequence[Sequence[Trajectory]] = (),
    invalid: Sequence[RewardContext] | Sequence[Sequence[Trajectory]] = (),
    within: tuple[float, float] | None = None,
    base: Path = Path(),
    limit_s: float = laws.LIMIT_S,
    **parts: Any,
) -> None:
    """Runs the laws of reward terms on `term`; a law that is broken is an AssertionError that states it.

    Args:
        term: a compiled term, or an entry under `rewards:`.
        contexts: episodes that it can measure.
        groups: for a term that compares, the trajectories of all answers to one task, several times.
        invalid: episodes that it cannot measure, for want of the infrastructure or of a gold value; groups of
            trajectories for a term that compares.
        within: the least and the greatest value. The `range` that its spec names bounds it too, unless it has a
            `clip` for what lies outside.
        base: the folder that an entry's paths are relative to.
        limit_s: how long a measurement that is awaited may take, in seconds: a bound for what hangs.
        parts: what an entry is compiled with beside it (`tools`, `resources`, `endpoints`, `answer`).

    Raises:
        AssertionError: a law is broken.
        UsageError: there is nothing to measure, or it is not of the kind that the term measures.
    """
    term = laws.compiled("rewards", term, name="term", base=base, **parts)
    assert isinstance(term, Term)
    ways = [one for one in (term.measure, term.measure_async, term.measure_group, term.ask_group) if one is not None]
    laws.law(
        "exactly one of measure, measure_async, measure_group and ask_group is set", len(ways) == 1, f"{len(ways)} are"
    )
    laws.law("a term has a name", bool(term.name), repr(term.name))
    _check_material(term, contexts, groups, invalid)
    declared = term.spec.range if term.spec.clip is None else None
    bounds = [one for one in (declared, within) if one is not None]
    for group in groups:
        await _check_group(term, group, bounds, limit_s)
    async with aclosing(Scope()) as scope:
        if contexts:
            await _check_alone(term, [_in_scope(scope, one) for one in contexts], bounds, limit_s)
        for one in invalid:
            await _check_invalid(term, _in_scope(scope, one) if isinstance(one, RewardContext) else one, limit_s)


check_reward = laws.in_own_loop(check_reward_async)


def _check_material(term: Term, contexts: Sized, groups: Sized, invalid: Sequence[object]) -> None:
    compares = term.is_of_group
    if not (groups if compares else contexts):
        raise UsageError("there is nothing to measure", hint=f"pass {'groups' if compares else 'contexts'}")
    if contexts if compares else groups:
        what = "compares the answers to a task" if compares else "measures one episode"
        raise UsageError(
            f"{'contexts' if compares else 'groups'} were given, and the term {what}",
            hint=f"pass {'groups' if compares else 'contexts'} alone",
        )
    if any(isinstance(one, RewardContext) == compares for one in invalid):
        expected = "a group, as the term compares" if compares else "a RewardContext, as the term measures one episode"
        raise UsageError("what stands under invalid is not of the term's kind", hint=f"pass {expected}")


def _in_scope(scope: Scope, context: RewardContext) -> RewardContext:
    """The context with an environment's scope, where it has none of its own."""
    return replace(context, shared=lambda: scope) if context.shared is Scope else context


async def _check_alone(term: Term, contexts: Sequence[RewardContext], bounds: _Bounds, limit_s: float) -> None:
    first = [await _measured_once(term, context, bounds, limit_s) for context in contexts]
    again = [await _value(term, context, limit_s) for context in reversed(contexts)][::-1]
    for context, before, after in zip(contexts, first, again, strict=True):
        rule = "equal episodes are measured equally, whatever was measured in between"
        laws.law(rule, _is_same(before, after), f"{_text_of(context)}: {laws.short(before)}, then {laws.short(after)}")
    together = await asyncio.gather(*(_value(term, context, limit_s) for context in contexts))
    for context, before, after in zip(contexts, first, together, strict=True):
        rule = "terms that are measured at once do not disturb each other"
        laws.law(rule, _is_same(before, after), f"{_text_of(context)}: {laws.short(before)}, then {laws.short(after)}")
    if term.measure_async is not None:
        await laws.ends_when_cancelled(_awaited(term.measure_async(contexts[0])), "a measurement", limit_s)


async def _measure_term(term: Term, what: RewardContext | Sequence[Trajectory], limit_s: float) -> Any:
    """The measure of the term, or its exception."""
    if not isinstance(what, RewardContext):
        if term.ask_group is not None:
            return await laws.in_time(_asked_group(term, what), "a term measures in time", limit_s)
        assert term.measure_group is not None
        return list(term.measure_group(what))
    if term.measure is not None:
        return term.measure(what)
    assert term.measure_async is not None
    return await laws.in_time(term.measure_async(what), "a term measures in time", limit_s)


async def _asked_group(term: Term, group: Sequence[Trajectory]) -> list[Measured]:
    assert term.ask_group is not None
    async with aclosing(Scope()) as scope:
        context = GroupContext(vars={}, shared=lambda: scope, accounts=[Account() for _ in group])
        found = await term.ask_group(group, context)
    for one in found:
        if isinstance(one, RewardError):
            raise one
    return [one for one in found if isinstance(one, Measured)]


async def _value(term: Term, what: RewardContext | Sequence[Trajectory], limit_s: float) -> Any:
    with laws.raises_only("what can be measured is", where=f"{_text_of(what)}: "):
        return await _measure_term(term, what, limit_s)


async def _measured_once(term: Term, context: RewardContext, bounds: _Bounds, limit_s: float) -> Measured:
    before = _read(context)
    found = await _value(term, context, limit_s)
    _check_unchanged(before, _read(context), _text_of(context))
    return _check_measured(found, bounds, _text_of(context))


def _check_measured(found: object, bounds: _Bounds, where: str) -> Measured:
    if not isinstance(found, Measured):
        raise laws.broken("a term gives a Measured", f"{where}: {laws.short(found)}")
    laws.law("evidence is a text", isinstance(found.evidence, str), f"{where}: {laws.short(found.evidence)}")
    try:
        json.dumps(dict(found.details), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise laws.broken("details are JSON, so that trajectories can keep them", f"{where}: {error}") from error
    value = found.value
    if value is None:
        return found
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    laws.law(
        "a value is a number, or None where there is nothing to measure", is_number, f"{where}: {laws.short(value)}"
    )
    laws.law("a value is finite", math.isfinite(value), f"{where}: {value}")
    for least, most in bounds:
        laws.law(f"a value is within {least:g} and {most:g}", least <= value <= most, f"{where}: {value}")
    return found


def _check_unchanged(before: str, after: str, where: str) -> None:
    laws.law("measuring leaves the episode as it is", after == before, f"{where}: {laws.difference(before, after)}")


async def _check_invalid(term: Term, what: RewardContext | Sequence[Trajectory], limit_s: float) -> None:
    rule = "what cannot be measured raises RewardError, and is no number"
    with suppress(RewardError), laws.raises_only(rule, RewardError, where=f"{_text_of(what)}: "):
        found = await _measure_term(term, what, limit_s)
        raise laws.broken(rule, f"{_text_of(what)}: {laws.short(found)}")


async def _check_group(term: Term, group: Sequence[Trajectory], bounds: _Bounds, limit_s: float) -> None:
    before = laws.kept_as_json(group)
    given = await _value(term, group, limit_s)
    laws.law(
        "a group's term gives one Measured for each answer", len(given) == len(group), f"{len(given)} of {len(group)}"
    )
    found = [_check_measured(one, bounds, f"answer {index}") for index, one in enumerate(given)]
    _check_unchanged(before, laws.kept_as_json(group), _text_of(group))
    turned = (await _value(term, group[::-1], limit_s))[::-1]
    for index, (one, other) in enumerate(zip(found, turned, strict=True)):
        rule = "an answer's value does not hang on its place in the group"
        laws.law(rule, one.value == other.value, f"answer {index}: {one.value}, from behind {other.value}")


def _read(context: RewardContext) -> str:
    return laws.kept_as_json(
        [context.task, context.messages, context.turns, context.answer, context.vars, context.reason]
    )


def _is_same(one: Measured, other: Measured) -> bool:
    return one.value == other.value and one.evidence == other.evidence


def _text_of(what: RewardContext | Sequence[Trajectory]) -> str:
    if not isinstance(what, RewardContext):
        return f"answers {laws.short([one.answer for one in what])}"
    return f"answer {laws.short(what.answer)} to task {laws.short(dict(what.task))}"
