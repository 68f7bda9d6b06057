"""The resources of an episode's calls, how many of them are left, and what its turns and its end earn."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from rlenv._base.bounded import quick, size
from rlenv.calls.taped import not_run
from rlenv.calls.toolsets import ToolSet
from rlenv.concurrency.lanes import entered, here
from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Account, counted
from rlenv.errors import EpisodeError, PolicyError, RewardError, told_as
from rlenv.language.expressions import EpisodeLimits
from rlenv.messages import MalformedCall, Message, ToolCall, ToolResult
from rlenv.policies.base import parameters_of, read_calls
from rlenv.resources.base import ResourceContext
from rlenv.rewards import answer as answers
from rlenv.rewards.answer import GivenAnswer
from rlenv.rewards.base import RewardContext
from rlenv.rewards.measure import TurnResults
from rlenv.rewards.scorer import Scorer
from rlenv.tools.base import ToolContext
from rlenv.trajectory import RewardBreakdown, Turn

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

_MOST_LEFT_OUT: Final = 64
"""Calls over a limit that are answered one by one."""
_CALL_CHARS: Final = 64
"""What a call takes beside its name and its arguments, in characters that take as long to read."""
_CALL_SHARE: Final = 0.3
_NOT_MADE: Final = "Not run: the call was written and not made."
_BESIDE: Final = "Not run: an answer in the same action ended the episode."
_OVER: Final = "Not run: the episode is over."
_NEW: Final = "More tools are available now:"
_tool_context = quick(ToolContext)


class EpisodeTools:
    """Runs the calls of one episode on its own resources, within `limits.tool_calls` and `limits.calls_per_turn`."""

    def __init__(self, environment: Environment, task: Mapping[str, Any], seed: int, limits: EpisodeLimits) -> None:
        self.limits = limits
        self.resources: Mapping[str, Any] = {}
        """The opened resources by name."""
        self.made = 0
        """The number of the policy's calls that were run; those over a limit are not."""
        self.task = task
        self.seed = seed
        self.begun = 0.0
        """When the episode began, on the clock of `time.monotonic()`."""
        self.account = Account()
        """What the episode asks of models, its policy included."""
        self.counting = self.account if environment.spec.endpoints else None
        """The account where tools, terms or the user may ask; None where there is no endpoint, and nothing to count."""
        self.answered: Sequence[ToolResult | None] | None = None
        """What the next turn's calls gave where they were run before it (`ToolSession`), None for one that was not."""
        self.toolset = self.first = environment.toolsets.all
        """The tools that the policy may call now, and those that the prompt shows."""
        self._environment = environment
        self._end = ""
        """The end of the episode by a call that a tool made."""
        self._made_in_turn = 0
        self._scope: Scope | None = None
        self._stack: AsyncExitStack | None = None

    async def open(self) -> None:
        """Opens the resources.

        Raises:
            EpisodeError: one of them cannot be had, or not within `limits.episode_s`.
        """
        environment = self._environment
        self._stack = AsyncExitStack()
        context = ResourceContext(self.task, environment.spec.vars, self.seed)
        limit_s = self.limits.episode_s
        opened: dict[str, Any] = {}
        try:
            async with asyncio.timeout(limit_s):
                for name, resource in environment.parts.resources.items():
                    opened[name] = await environment.open_resource(resource, context, self._stack)
        except TimeoutError as error:
            raise EpisodeError(f"the resources did not open within {limit_s:g} s", reason="resource") from error
        self.resources = opened

    def offer(self, replies: int) -> str:
        """Offers the row's tools, as they are after so many replies of the user; the new ones in words for the policy.

        Raises:
            EpisodeError: the row does not say which.
        """
        before, self.toolset = self.toolset, self._environment.toolsets.of(self.task, replies)
        if not replies:
            self.first = self.toolset
            return ""
        shown = [json.dumps(one) for one in self.toolset.schemas if one["function"]["name"] not in before.tools]
        return "".join(("\n\n", _NEW, *("\n" + text for text in shown))) if shown else ""

    async def aclose(self) -> None:
        """Closes what tools keep, then the resources in reverse order; may be called twice."""
        scope, self._scope = self._scope, None
        stack, self._stack = self._stack, None
        try:
            if scope is not None:  # tools may use resources, so what they keep goes first
                await scope.aclose()
        finally:
            if stack is not None:
                await stack.aclose()

    def scope(self) -> Scope:
        """Things that tools keep for this episode; closed with it."""
        if self._scope is None:
            self._scope = Scope()
        return self._scope

    def run(
        self, calls: Sequence[ToolCall | MalformedCall], *, turn: int, deadline: float
    ) -> Coroutine[Any, Any, tuple[ToolResult, ...]]:
        """The results of the policy's calls, in their order, to be awaited; those over a limit are not run, and say so.

        A call that ends the episode is run though the limit is reached, as an answer would be taken, and the details
        of its result say so (`ends`).

        Args:
            turn: the episode's, 0-based.
            deadline: when the episode's time is up, on the clock of `time.monotonic()`.
        """
        limits = self.limits
        allowed, left_in_all = limits.calls_per_turn, limits.tool_calls - self.made
        if left_in_all < allowed:
            allowed = max(left_in_all, 0)
        context = self._context(deadline, turn=turn)
        if self.answered is not None or len(calls) > allowed:
            return self._some(calls, allowed, context)
        self._made_in_turn = len(calls)
        self.made += len(calls)
        if self.counting is None and not self._environment.has_ends and here() is None:  # most specs: nothing to add
            return self.toolset.executor.run(calls, context)
        return self._run(calls, context)

    async def _some(
        self, calls: Sequence[ToolCall | MalformedCall], allowed: int, context: ToolContext
    ) -> tuple[ToolResult, ...]:
        """The results of calls of which some were answered elsewhere, or are more than a limit allows."""
        if self.answered is not None:
            return tuple([await self._given(*pair, context) for pair in zip(calls, self.answered, strict=True)])
        self._made_in_turn = allowed
        self.made += allowed
        left = calls[allowed:]
        at = next((at for at, call in enumerate(left) if self._may_end(call)), len(left))
        results = await self._run((*calls[:allowed], *left[at : at + 1]), context)
        # In the order of the calls.
        told = self._left_out(left[:at], most=_MOST_LEFT_OUT)
        return (*results[:allowed], *told, *results[allowed:], *self._left_out(left[at + 1 :], most=_MOST_LEFT_OUT))

    async def _run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        if here() is not None or self.counting is not None:
            with entered(f"turn {context.turn}"), counted(self.counting):
                results = await self.toolset.executor.run(calls, context)
        else:
            results = await self.toolset.executor.run(calls, context)
        if self._end and results:  # by a call that one of these made
            results = (*results[:-1], replace(results[-1], details={**(results[-1].details or {}), "ends": self._end}))
        return results

    def _may_end(self, call: ToolCall | MalformedCall) -> bool:
        tool = self.toolset.tools.get(call.name) if call.name else None
        return tool is not None and tool.ends is not None

    async def _given(
        self, call: ToolCall | MalformedCall, result: ToolResult | None, context: ToolContext
    ) -> ToolResult:
        if result is not None:
            return replace(result, call_id=call.id)
        if isinstance(call, MalformedCall) or call.name not in self.toolset.tools:  # nothing is run
            return (await self.toolset.executor.run((call,), context))[0]
        return not_run((call,), _NOT_MADE)[0]

    async def run_again(
        self, calls: Sequence[ToolCall | MalformedCall], *, turn: int, deadline: float
    ) -> tuple[ToolResult, ...]:
        """The results of recorded calls on this episode's resources, as calls of `turn`; they count for no limit."""
        with counted(self.counting):
            return await self.toolset.executor.run(calls, self._context(deadline, turn=turn))

    @asynccontextmanager
    async def after(self, calls: Any, look: Callable[[Mapping[str, Any]], None]) -> AsyncIterator[Mapping[str, Any]]:
        """The resources opened once more for the same row and seed, after gold calls were run on them.

        Args:
            look: called with them before the calls.

        Raises:
            RewardError: the row gives no calls, or one of them failed by infrastructure.
            EpisodeError: a resource cannot be had.
        """
        other = self._other()
        with told_as(RewardError, "the gold calls cannot be read:", PolicyError):
            actions = read_calls(calls, parameters_of([tool.schema for tool in other.toolset.tools.values()]))
        try:
            await other.open()
            look(other.resources)
            deadline = time.monotonic() + self.limits.reward_s
            for action in actions:
                results = await other.run_again(action, turn=-1, deadline=deadline)  # faults are the policy's to meet
                for call, result in zip(action, results, strict=True):
                    if result.is_error and result.whose != "policy":
                        raise RewardError(f"the gold call of '{call.name}' failed: {result.reason}: {result.text:.200}")
            yield other.resources
        finally:
            await other.aclose()

    def _other(self) -> EpisodeTools:
        """The same tools over resources that are yet to be opened."""
        environment = self._environment
        tools = {**environment.parts.tools, **self.toolset.tools}
        other = EpisodeTools(environment, self.task, self.seed, self.limits)
        executor = environment.executor.with_tools(tools, self.toolset.executor)
        other.toolset, other.begun = ToolSet(tools, executor, executor), time.monotonic()
        return other

    async def run_anew(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a reward's call over resources in which the policy has left nothing."""
        other = self._other()
        try:
            await other.open()
            return await other.run_for_reward(name, arguments)
        finally:
            await other.aclose()

    async def run_for_reward(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """The result of a call that a reward term makes."""
        # A reward is measured after the episode's own time is over, so its calls get a budget of their own. Three fit
        # into it one after the other: the policy's, one that is known to work, and the policy's again, so that a call
        # that never ends cannot use up the time in which its fault is found.
        deadline = time.monotonic() + _CALL_SHARE * self.limits.reward_s
        # Rewards have every tool of the spec, and those of the row.
        executor = self._environment.executor if name in self._environment.parts.tools else self.toolset.executor
        (result,) = await executor.run((ToolCall(name, arguments),), self._context(deadline, turn=-1))
        return result

    async def run_for_user(self, name: str, arguments: Any, deadline: float) -> ToolResult:
        """The result of a call that the simulated user makes; it counts for no limit of the policy's."""
        calls = (ToolCall(name, arguments),)
        (result,) = await self._environment.executor.run(calls, self._context(deadline, turn=-1))
        return result

    async def _run_for_tool(self, calls: Sequence[ToolCall], context: ToolContext) -> tuple[ToolResult, ...]:
        """Runs calls that a tool makes for the policy: they count as the policy's own, in the turn and the episode."""
        limits = self.limits
        left = min(limits.calls_per_turn - self._made_in_turn, limits.tool_calls - self.made)
        if self._end:
            return not_run(calls, _OVER)
        allowed = calls[: max(left, 0)]
        self.made += len(allowed)
        self._made_in_turn += len(allowed)
        with entered(">"):
            results = await self.toolset.for_code.run(allowed, context) if allowed else ()
        self._end = self._end or end_of(results)[1]
        return results + self._left_out(calls[len(allowed) :])

    def beside_answer(self, calls: Sequence[ToolCall | MalformedCall]) -> tuple[ToolResult, ...]:
        """The record of the calls beside an answer in text: none of them is run."""
        return not_run(calls[:_MOST_LEFT_OUT], _BESIDE)

    def _left_out(
        self, calls: Sequence[ToolCall | MalformedCall], *, most: int | None = None
    ) -> tuple[ToolResult, ...]:
        limits = self.limits
        text = f"Not run: at most {limits.calls_per_turn} calls a turn and {limits.tool_calls} an episode are run."
        left_out = list(not_run(calls[:most], text))
        if left_out and most is not None and len(calls) > most:
            # One action may write ten thousand calls in the tokens of one answer.
            left_out[-1] = replace(left_out[-1], text=f"{text} {len(calls) - most:,} more are left out.")
        return tuple(left_out)

    def _context(self, deadline: float, *, turn: int) -> ToolContext:
        environment = self._environment
        bounded_by: Literal["episode", "turn"] = "episode"
        turn_s = self.limits.turn_s
        if turn_s is not None and turn >= 0 and (turn_ends := time.monotonic() + turn_s) < deadline:
            deadline, bounded_by = turn_ends, "turn"
        return _tool_context(
            self.task,
            self.resources,
            deadline,
            self.seed,
            self.scope,
            environment.scope,
            turn,
            bounded_by,
            environment.executor.run if turn < 0 else self._run_for_tool,
            self.begun,
        )


_context = quick(RewardContext)


def end_of(results: Sequence[ToolResult]) -> tuple[int, str]:
    """The place of the call that ended the episode, and how: `ended` or `truncated`; -1 and "" where none did."""
    for at, result in enumerate(results):
        if result.details and (end := result.details.get("ends")):
            return at, end
    return -1, ""


def length_of(message: Message, limit: int) -> int:
    """About how many characters a message with its calls takes as text; looking ends past `limit`."""
    length = len(message.content)
    for call in message.tool_calls:
        length += _CALL_CHARS + size((call.name, getattr(call, "arguments", ""), getattr(call, "text", "")), limit)
        if length > limit:
            break
    return length


class EpisodeReward:
    """Measures the reward terms of one episode, each within `limits.reward_s`."""

    __slots__ = ("_environment", "_tools", "_turns", "paid", "scorer")

    def __init__(self, environment: Environment, tools: EpisodeTools, scorer: Scorer) -> None:
        self.paid = 0.0
        """What the turns so far have settled of the total."""
        self.scorer = scorer
        self._environment = environment
        self._tools = tools
        self._turns: list[TurnResults] = []

    @property
    def so_far(self) -> tuple[TurnResults, ...]:
        """Results of the terms that are measured at every turn, turn by turn."""
        return tuple(self._turns)

    async def score_turn(self, messages: Sequence[Message], turns: Sequence[Turn]) -> float:
        """Measures the last of `turns`; the share of the total that is settled by it."""
        context = self._context(messages, turns)
        with counted(self._tools.counting):
            results = await self.scorer.score_turn(context, limit_s=self._tools.limits.reward_s)
        self._turns.append(results)
        paid = self.scorer.paid_at_once(results)
        self.paid += paid
        return paid

    async def score(
        self, messages: Sequence[Message], turns: Sequence[Turn], *, reason: str, found: GivenAnswer | None = None
    ) -> tuple[str | None, RewardBreakdown, bool | None]:
        """Measures the whole episode, which ended for `reason`, its last turn included.

        Args:
            found: the last turn's answer where it was read before; None: it is read here.

        Returns:
            The answer that was read from the last turn, what the episode earned, and whether it was a success.

        Raises:
            InvalidReward: a term with `on_invalid: raise` could not be measured.
        """
        context = self._context(messages, turns, found=found or self._answer(turns), reason=reason)
        limit_s = self._tools.limits.reward_s
        with counted(self._tools.counting):
            if self.scorer.has_turn_terms and len(self._turns) < len(turns):
                self._turns.append(await self.scorer.score_turn(context, limit_s=limit_s))
            reward, success = await self.scorer.score(context, self._turns, limit_s=limit_s)
        return context.answer, reward, success

    def _answer(self, turns: Sequence[Turn]) -> GivenAnswer | None:
        if not turns or (turns[-1].parsed.calls and not self._environment.answer_is_explicit):
            return None
        spec, turn = self._environment.spec.answer, turns[-1]
        if spec.from_ != "tool":
            return answers.extract(spec, turn.parsed)
        at, _ = end_of(turn.results)
        return answers.submitted(spec, turn.parsed.calls[at], at) if at >= 0 else None

    def _context(
        self, messages: Sequence[Message], turns: Sequence[Turn], *, found: GivenAnswer | None = None, reason: str = ""
    ) -> RewardContext:
        return _context(
            self._tools.task,
            messages,
            turns,
            None if found is None else found.text,
            self._tools.resources,
            self._environment.spec.vars,
            self._tools.run_for_reward,
            reason,
            self._environment.scope,
            self._tools.seed,
            found,
            self._tools.after,
            self._tools.run_anew,
        )
