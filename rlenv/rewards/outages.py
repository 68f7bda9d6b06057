"""The calls of an episode that were lost, and what they give once it is known whose failure it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

from rlenv.concurrency.deadline import Countdown, left_s, running_under, share_of_time
from rlenv.errors import CassetteError, EpisodeError, RewardError, Whose
from rlenv.messages import ToolCall, ToolResult
from rlenv.rewards.asking_again import ROUNDS, Answered, InLine, Known, Refused, Untold
from rlenv.rewards.base import RewardContext
from rlenv.secrets import host_of
from rlenv.tools.base import FELLED, Tool, asked_again

_T = TypeVar("_T")
SHARE: Final = 0.6
"""Of the time for the reward, for all that is asked again: nobody's batch waits for a tool that hangs."""
_FIRST_SHARE: Final = 2 / 3
"""Of that, for each tool's calls until one is known to be the policy's: with less, nothing is found out of many."""
_LEAST_S: Final = 1.0
"""What one call has beside twice its own time, however many there are: with less, nothing is found out of any."""
_DEATHS: Final = (*FELLED, "server_died")
_REFUSED: Final = "refused"
_BY_CODE: Final[Mapping[str, Whose]] = {"infrastructure": "infrastructure", "unclear": "unclear", _REFUSED: "policy"}
"""The outcomes of calls that code made and that may be lost (`rlenv.tools.code`), and whose failure each is."""
_OF_SERVERS: Final = ("agent", "http", "mcp")
"""Kinds that may change what a server holds where they are not idempotent; an agent has tools of its own."""
_BY_ASKING: Final = ("busy", "rate_limited")
"""What asking alone brings about: of a known call, it tells of no outage in which everything is refused."""
_OWN_STATE: Final = ("bash", "code", "files", "gymnasium", "sql")
"""Kinds that change nothing but what is the episode's own; the tools that code calls are looked at themselves."""
_ALWAYS_KNOWN: Final[Mapping[str, Mapping[str, Any]]] = {"code": {"code": "1"}, "sql": {"sql": "SELECT 1"}}
"""What tools of these kinds have an answer to without an `example`, whatever they stand on."""


def is_lost(result: ToolResult) -> bool:
    """True if a call failed, and not surely by what the policy did."""
    return result.whose in ("infrastructure", "unclear")


def may_be_lost(result: ToolResult, tools: Mapping[str, Tool], *, known: Mapping[str, Any] | None = None) -> bool:
    """True if a call was lost, or if its server refused it and may have refused every call, as in some outages.

    The second where the tool has a call that is known to work, and no tool can change what it answers: who could take
    away what is known to work, or make a call of its own valid later, would choose which of them were lost.
    """
    tool = tools.get(result.name)
    if result.reason != _REFUSED or tool is None:
        return is_lost(result)
    # One example of what reads the row may fail in another row, where a policy would be masked by any refusal.
    has_known = known is not None or (tool.example is not None and tool.depends_on != "task")
    return has_known and tool.idempotent and not any(_may_change(one, tool) for one in tools.values())


def _may_change(one: Tool, answers: Tool) -> bool:
    """True if a call of one tool may change what another answers."""
    if one.kind in _OWN_STATE and answers.depends_on != "episode":
        return False
    return one.mutates or one.may_write or (one.kind in _OF_SERVERS and not one.idempotent)


def _own_s(result: ToolResult) -> float:
    """The seconds that a call took, less those in which it waited for its turn or for a process to start."""
    return max(0.0, result.seconds - result.waited)


class TooFewRounds(RewardError):
    """A call failed again each time, and what is known to work never, for as long as there was time."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A call of the episode that failed, and not surely by what the policy did.

    `arguments` are None where they were not kept, as of very many or very long calls of code, which is `code`.
    """

    tool: str
    arguments: Mapping[str, Any] | None
    result: ToolResult
    code: Lost | None = None


def lost_calls(context: RewardContext, tools: Mapping[str, Tool], *, last_only: bool = False) -> list[Lost]:
    """The calls of the episode, or of its last turn, that may be lost: the policy's own, and those that its code made.
    `tools` are all that the spec has."""
    lost: list[Lost] = []
    for turn in context.turns[-1:] if last_only else context.turns:
        for index, result in enumerate(turn.results):
            call = turn.parsed.calls[index] if index < len(turn.parsed.calls) else None
            one = Lost(result.name, call.arguments if isinstance(call, ToolCall) else None, result)
            lost += [one] if may_be_lost(result, tools) else []
            if result.details is not None and "called" in result.details:
                lost += _of_code(one, tools)
    return lost


def _of_code(code: Lost, tools: Mapping[str, Tool]) -> list[Lost]:
    """Those among the calls that a call of the `code` tool made."""
    result, details = code.result, code.result.details or {}
    kept, called = details.get("calls"), details.get("called")
    found: list[Lost] = []
    for tool, outcomes in called.items() if isinstance(called, Mapping) else ():
        for outcome, whose in _BY_CODE.items():
            count = outcomes.get(outcome, 0) if isinstance(outcomes, Mapping) else 0
            arguments = [
                None if one.get("is_cut") else one.get("arguments")
                for one in (kept if isinstance(kept, Sequence) else ())
                if isinstance(one, Mapping) and (one.get("tool"), one.get("outcome")) == (tool, outcome)
            ]
            reason = _REFUSED if outcome == _REFUSED else result.reason
            failed = replace(result, name=tool, outcome="failed", reason=reason, whose=whose, details=None)
            count = count if type(count) is int and may_be_lost(failed, tools) else 0
            found += [Lost(tool, arguments[at] if at < len(arguments) else None, failed, code) for at in range(count)]
    return found


async def known_call(tool: Tool, arguments: Mapping[str, Any], context: RewardContext) -> ToolResult:
    """The result of a call that has to go well; one that was lost is made again, until it does or a few times.

    So an outage that is over before the time for the reward is takes no sample from those whom it met.
    """
    first = await context.call(tool.name, arguments)
    if not is_lost(first) or tool.mutates:
        return first
    try:
        return await settled(Lost(tool.name, arguments, first), tool, context, known=arguments)
    except RewardError:
        return first


async def settling(
    lost: Sequence[Lost], tools: Mapping[str, Tool], context: RewardContext
) -> AsyncIterator[ToolResult | RewardError]:
    """As `settled`, for one call after the other, each with its share of the time that there is, or what it needs.

    A policy gains nothing by making more such calls than there is time for: the rest counts as those did that failed
    again, one that an outage took among them. Were the rest invalid, by whatever rule, a policy that has met one such
    loss could choose to be masked, or that has made one (`busy` by calls at once, `server_died` by one beside a call
    that fells the server): it chooses how many calls of its own fail slowly.
    """
    again: ToolResult | None = None
    known: dict[str, ToolResult | RewardError] = {}
    limit = share_of_time(SHARE)
    for at, one in enumerate(lost):
        key = f"{one.tool} {one.arguments!r}"
        if key not in known:
            left, least = limit.left_s, 2 * _own_s(one.result) + _LEAST_S
            if again is not None and left < least:
                known[key] = again
            else:
                try:
                    rest = lost[at:]
                    share = max(left / len(rest), least)
                    if again is None and len(rest) > 1:
                        share = max(share, _FIRST_SHARE * left / len({other.tool for other in rest}))
                    with running_under(limit):
                        result = await settled(one, tools.get(one.tool), context, within_s=min(left, share))
                        known[key] = await _with_its_calls(replace(one, result=result), tools, context)
                except RewardError as error:
                    known[key] = again if again is not None and isinstance(error, TooFewRounds) else error
        found = known[key]
        if isinstance(found, ToolResult) and found.outcome != "ok":
            again = found
        yield found


async def run_again(code: Lost, tools: Mapping[str, Tool], context: RewardContext, limit: Countdown) -> ToolResult:
    """The result of code that failed over a lost call: of another run, where that call goes well now.

    Its own where nobody can tell: its policy brings losses about as it likes (`busy`), and would be masked by it.
    """
    lost = {id(one.arguments): one for one in _of_code(code, tools) if one.arguments is not None}
    if not lost or code.result.outcome == "ok" or code.arguments is None or tools[code.tool].mutates:
        return code.result
    # What code fails over is the last one that it made: others it has caught, such as what is refused each time.
    made = (id(one.get("arguments")) for one in (code.result.details or {})["calls"] if isinstance(one, Mapping))
    last = [lost[at] for at in made if at in lost][-1]
    token = asked_again.set(code.result.reason or code.result.outcome)
    try:
        async with asyncio.timeout(limit.left_s):
            with running_under(limit):
                if (await settled(last, tools.get(last.tool), context)).outcome == "ok":
                    run = await context.call(code.tool, code.arguments)
                    return await _with_its_calls(replace(code, result=run), tools, context)
    except (EpisodeError, TimeoutError) as error:
        if isinstance(error, CassetteError):
            raise
    finally:
        asked_again.reset(token)
    return code.result


async def _with_its_calls(code: Lost, tools: Mapping[str, Tool], context: RewardContext) -> ToolResult:
    """The result of code that was run again, once those of its calls are settled that were lost this time.

    Raises RewardError: nobody can tell of one of them.
    """
    lost, found = _of_code(code, tools), code.result
    if not lost:
        return found
    details = found.details or {}
    called = {tool: Counter(outcomes) for tool, outcomes in details["called"].items()}
    at = iter(lost)
    async for result in settling(lost, tools, context):
        if isinstance(result, RewardError):
            raise result
        one = next(at)
        called[one.tool][_REFUSED if one.result.reason == _REFUSED else one.result.whose] -= 1
        called[one.tool][result.outcome] += 1
    return replace(found, details={**details, "called": called})


async def count_against(lost: Sequence[Lost], tools: Mapping[str, Tool], context: RewardContext, *, most: int) -> int:
    """The number of lost calls that are the policy's failures after all; no more than `most` are looked for.

    A call that was lost by an outage is made again by no fault, so it counts against no limit; neither does one of
    which nobody can tell.
    """
    found = 0
    unclear = [one for one in lost if one.result.whose != "infrastructure"]
    async for result in settling(unclear, tools, context):
        found += isinstance(result, ToolResult) and result.outcome != "ok"
        if found >= most:
            break
    return found


async def settled(
    lost: Lost,
    tool: Tool | None,
    context: RewardContext,
    *,
    known: Mapping[str, Any] | None = None,
    within_s: float | None = None,
) -> ToolResult:
    """The result of a lost call once it is known whose failure it was: an answer, or a failure that is the policy's.

    Args:
        known: arguments that the tool has an answer to; by default its `example`, or those of a call of this episode
            that went well.

    Raises:
        RewardError: nobody can tell, or it was the infrastructure's.
    """
    failed = lost.result
    known = _known(tool, context) if known is None and tool is not None else known
    if tool is None or tool.mutates or known is None:
        raise _untried(lost, tool)
    asking = _Asking(tool, lost.arguments, known, context, failed)
    ask = partial(asking.asked, failed, share_of_time(1.0, most_s=SHARE * left_s() if within_s is None else within_s))
    if isinstance(found := await _once(context, f"{tool.name} {lost.arguments!r}", ask), RewardError):
        told = f"a call of '{lost.tool}' failed by no fault of the policy's ({failed.reason or failed.outcome})"
        raise type(found)(f"{told}, or nobody can tell: {found}") from found
    return replace(failed, whose="policy") if found is None else found


@dataclass(slots=True)
class _Asking:
    """A lost call and one that is known to work, asked in turn, and what is seen of their server meanwhile."""

    tool: Tool
    arguments: Mapping[str, Any] | None
    known: Mapping[str, Any]
    context: RewardContext
    well: ToolResult
    """The latest answer to the known call, the failure of the lost one before there is one."""
    turns: InLine[ToolResult] = field(init=False)
    is_doubtful: bool = False
    """True if the known call failed by more than asking alone brings about."""
    failures: set[str] = field(default_factory=set)
    """Reasons for which the lost call failed beside a known one that went well."""

    def __post_init__(self) -> None:
        self.turns = InLine(self.ask_known, self.ask_again, _line(self.tool, self.context))

    async def ask_known(self) -> Answered[ToolResult] | Refused | Untold:
        found = await self.context.call_known(self.tool, self.known)(self.tool.name, self.known)
        if found.outcome == "ok":
            self.well = found
            return Answered(found)
        self.is_doubtful = self.is_doubtful or found.reason not in _BY_ASKING
        why = f"{found.reason or found.outcome}: {found.text:.200}"
        is_there = found.reason == _REFUSED or (found.whose == "unclear" and found.reason != "late")
        return Refused(why) if is_there else Untold(why, is_last=found.reason != _REFUSED and not is_lost(found))

    async def ask_again(self) -> Answered[ToolResult] | Refused | Untold:
        if self.arguments is None:
            return Refused("it was not kept")
        if self.arguments == self.known and self.context.call_known(self.tool, self.known) == self.context.call:
            return Answered(self.well) if self.well.outcome == "ok" else Untold("it is what is known to work")
        found = await self.context.call(self.tool.name, self.arguments)
        seems_to_fell = found.reason in FELLED and not self.turns.may_fell
        if seems_to_fell or (found.reason != _REFUSED and not is_lost(found)):
            return Answered(found)
        if self.well.outcome == "ok" and found.whose != "infrastructure":
            self.failures.add(found.reason)
        return (Untold if found.whose == "infrastructure" else Refused)(f"{found.reason}: {found.text:.200}")

    async def asked(self, failed: ToolResult, limit: Countdown) -> ToolResult | RewardError | None:
        """What the lost call gives; None where it fails by what it asks, an error where nobody can tell."""
        token, turns = asked_again.set(failed.reason or failed.outcome), self.turns

        def tries() -> Known:
            return _known_tries(self.tool, failed, self.context, fells=failed.reason in _DEATHS or turns.fells)

        # One that hangs may hold up its server, which is then away for the known call too, as one that it fells.
        turns.may_fell = turns.fells or failed.reason in (*_DEATHS, "late")
        # Of a call that was not kept, that the tool is well has to do.
        keys: dict[str, Any] = {"most": ROUNDS if self.arguments is not None else 1, "took_s": _own_s(failed)}
        if failed.reason in _DEATHS:  # in turn with those who keep theirs until it is back, and would find it away
            keys["keeps_turn"] = 1
        try:
            found = await turns.given(lambda: limit.left_s, tries, **keys)
            if found is None or not (found.reason == _REFUSED or is_lost(found)):
                return found
        except RewardError as error:
            # Refused beside a known one that went well, and then had no place: who asks so much would be masked by it.
            told = None if _REFUSED in self.failures else TooFewRounds(str(error))
            return error if self.is_doubtful or not self.failures else told
        finally:
            asked_again.reset(token)
        # What failed otherwise at first, as it found the server away, may fell it all the same.
        return await self.asked(found, limit)


def _untried(lost: Lost, tool: Tool | None) -> RewardError:
    why = "give the tool an `example`" if tool is not None and not tool.mutates else "it changes state"
    found = f"a call of '{lost.tool}' failed ({lost.result.reason}: {lost.result.text:.200})"
    return RewardError(f"{found}, and whether the call or the tool is at fault cannot be tried: {why}")


@dataclass(slots=True)
class _Shared(Generic[_T]):
    """The answer that several terms share about one call of their episode while one of them finds it out."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    found: list[_T] = field(default_factory=list)


async def _once(context: RewardContext, call: str, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The result of `ask`, asked by the first of the terms of an episode that wait for it at once."""
    kept: dict[tuple[int, str], _Shared[_T]] = context.shared().keep(("outages", ""), dict)
    key = (id(context), call)
    shared = kept.setdefault(key, _Shared())
    shared.waiting += 1
    try:
        async with shared.lock:
            if not shared.found:
                shared.found.append(await ask())
        return shared.found[0]
    finally:
        shared.waiting -= 1
        if not shared.waiting:
            del kept[key]


def _known_tries(tool: Tool, failed: ToolResult, context: RewardContext, *, fells: bool) -> Known:
    """The tries of what is known to work, of all who wait for a shared server that one of their calls may have felled.

    Each of them needs them in such a number, and together they would take as many times as long.
    """
    if failed.reason == _REFUSED and tool.depends_on == "arguments" and not fells:
        # Policies make many such calls, and each settles sooner by the tries of all. What an outage takes, each meets
        # by itself: the failures of many would ask for more rounds than there is time for.
        newest = context.shared().keep(("outages", tool.name, _REFUSED), list[Known])
        newest[:] = [one for one in newest if not one.failed] or [Known()]
        return newest[0]
    if fells and (tool.reaches_out or tool.shares):
        return context.shared().keep(("outages", tool.name), lambda: Known(_line(tool, context).alone))
    return Known(_line(tool, context).alone, holds=False) if failed.reason == "server_error" else Known()


def _line(tool: Tool, context: RewardContext) -> Known:
    """Those who may fell one server, one after the other, whichever of its tools they call."""
    if tool.kind == "mcp" and not tool.shares:  # a server of each episode's own
        return Known(asyncio.Lock())
    server = host_of(str(tool.options.get("url", ""))) or tool.entry
    return context.shared().keep(("outages", "line", server), lambda: Known(asyncio.Lock()))


def _known(tool: Tool, context: RewardContext) -> Mapping[str, Any] | None:
    """Arguments to which the tool has an answer: its example, or those of a call of this episode's own."""
    if tool.example is not None or tool.kind in _ALWAYS_KNOWN:
        return tool.example if tool.example is not None else _ALWAYS_KNOWN[tool.kind]
    for turn in reversed(context.turns):
        for call, result in zip(turn.parsed.calls, turn.results, strict=False):
            if isinstance(call, ToolCall) and call.name == tool.name and result.outcome == "ok":
                return call.arguments
    return None
