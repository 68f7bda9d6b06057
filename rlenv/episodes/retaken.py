"""The state that a recorded episode left, made anew: its calls are taken once more on fresh resources.

Rewards that look at resources, or run tools on them, measure what the policy did only where that state is there again.
Where it cannot be had, such a term is invalid and says which call stood in the way; it never gives a number that was
read from something else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rlenv._base.bounded import cut_end
from rlenv.dialects.base import without_note
from rlenv.episodes.tools import end_of
from rlenv.errors import EpisodeError, RewardError
from rlenv.language.spec import RewardSpec
from rlenv.messages import MalformedCall, Message, ToolCall, ToolResult
from rlenv.rewards.base import Measured, RewardContext, Term
from rlenv.rewards.scorer import Scorer
from rlenv.secrets import redact
from rlenv.tools.base import Tool
from rlenv.trajectory import Turn

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment
    from rlenv.episodes.episode import Episode

_NEVER_RUN = frozenset({"breaker_open", "busy", "injected", "malformed", "skipped", "unknown_tool"})
_SHORT = 80
_HINT = "; 'idempotent: true' in its entry says that its calls change nothing"


def left_out() -> MalformedCall:
    """The result in the place of a call that is not run, so that the other calls of its turn keep theirs."""
    return MalformedCall("", "This call is not run.")


class Retaken:
    """Takes the calls of one recorded episode again, turn by turn.

    `lost` says why the state is not what it was, "" as long as it is. Calls that can have changed nothing and depend on
    nothing but their arguments are left out, and so are those that never reached their tool.
    """

    def __init__(self, episode: Episode, *, prompt: Sequence[Message]) -> None:
        """
        Args:
            episode: open, and not stepped; its messages are the prompt as it is now.
            prompt: the recorded messages, which begin with the prompt as it was.
        """
        self.lost = ""
        self._taken = 0
        self._episode = episode
        if _shows_resources(episode.environment) and tuple(prompt[: len(episode.messages)]) != episode.messages:
            self.lost = "the prompt shows other resources than it did when it was recorded"
        if episode.environment.players is not None and episode.environment.parts.resources:
            self.lost = "the other players' calls are not taken again; `rlenv replay` takes them"
        self._asks_user = _user_changes_state(episode.environment)

    async def take(self, turn: Turn, *, is_last: bool, reason: str, deadline: float) -> None:
        """Takes the calls of `turn`, the next one, and asks the user for the reply that followed it.

        Args:
            is_last: whether the episode ended with it, for `reason`.
            deadline: on the clock of `time.monotonic()`.
        """
        if self.lost:
            return
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                if turn.results:
                    await self._take_calls(turn, deadline)
                elif self._asks_user and not turn.parsed.calls:
                    await self._reply(turn, is_last=is_last, reason=reason, deadline=deadline)
        except TimeoutError:
            self.lost = f"turn {turn.index + 1}: taking its calls again took longer than the episode may"
        except EpisodeError as error:
            self.lost = f"turn {turn.index + 1}: its calls could not be taken again: {redact(str(error)):.200}"

    async def _take_calls(self, turn: Turn, deadline: float) -> None:
        if self._episode.environment.toolsets.changes:
            self._episode.tools.offer(sum(not one.parsed.calls for one in self._episode.turns))
        calls: list[ToolCall | MalformedCall] = []
        for index, (call, result) in enumerate(zip(turn.parsed.calls, turn.results, strict=False)):
            again = self._is_taken_again(f"turn {turn.index + 1}, call {index + 1}", call, result)
            calls.append(call if again else left_out())
        taken = sum(isinstance(call, ToolCall) for call in calls)
        if self.lost or not taken:
            return
        limits = self._episode.limits
        taken -= end_of(turn.results)[0] >= 0  # what ends is run beyond the limits too
        self._taken += taken
        if taken > limits.calls_per_turn or self._taken > limits.tool_calls:
            self.lost = f"turn {turn.index + 1}: more calls were recorded than the limits let a policy make"
            return
        index = len(self._episode.turns)
        now = await self._episode.tools.run_again(calls, turn=index, deadline=deadline)
        for index, (call, then, found) in enumerate(zip(calls, turn.results, now, strict=False)):
            if any(getattr(one, "boots", 0) for one in self._episode.resources.values()):
                self.lost = f"turn {turn.index + 1}: its calls ran in a machine, and are not taken again"
                return
            if isinstance(call, ToolCall) and (then.outcome, then.text) != (found.outcome, found.text):
                self.lost = f"turn {turn.index + 1}, call {index + 1}: {_result_change(call.name, then, found)}"
                return

    def _is_taken_again(self, place: str, call: ToolCall | MalformedCall, result: ToolResult) -> bool:
        """True where a call is to be taken again; sets `lost` where it matters and cannot be."""
        if isinstance(call, MalformedCall) or _was_not_run(result):
            return False
        tool = self._episode.toolset.tools.get(call.name)
        if tool is None:
            self.lost = f"{place}: there is no tool '{call.name}' any more"
            return False
        named = getattr(self._episode.environment.spec.tools.get(tool.entry), "resource", "")
        is_put_back = getattr(self._episode.resources.get(named), "is_put_back", None)
        if is_put_back is not None:  # a machine: its files say what the call did, and again it might do something else
            if not is_put_back:
                self.lost = f"{place}: the files of the machine '{named}' were not recorded; `eval --record` keeps them"
            return False
        if tool.idempotent and not tool.mutates:
            return not (tool.depends_on == "arguments" or tool.reaches_out or result.outcome == "timeout")
        if tool.reaches_out:
            self.lost = f"{place}: the tool '{call.name}' reaches out of the environment and is not called again"
            self.lost += "" if tool.mutates else _HINT
            return False
        if shared := shared_by(self._episode.environment, tool):
            self.lost = f"{place}: the tool '{call.name}' may change {shared}"
            self.lost += "" if tool.mutates else _HINT
            return False
        if result.outcome == "timeout":
            self.lost = f"{place}: the tool '{call.name}' did not end, and what it had done by then is not known"
            return False
        return True

    async def _reply(self, turn: Turn, *, is_last: bool, reason: str, deadline: float) -> None:
        shown = turn.observation.messages if turn.observation is not None else ()
        if not shown and not (is_last and reason == "user"):
            return
        then = without_note(shown[0].content) if shown else None
        now = await self._episode.reply(turn.parsed, deadline=deadline)
        if now != then:
            self.lost = (
                f"turn {turn.index + 1}: the user said {_quote(then)} when it was recorded and {_quote(now)} now"
            )


def shared_by(environment: Environment, tool: Tool) -> str:
    """Things that other episodes share and this tool may change, as text; "" where there is nothing."""
    if not tool.mutates and (tool.idempotent or tool.depends_on != "episode"):
        return ""
    resources = environment.parts.resources.values()
    found = next((resource.name for resource in resources if resource.scope == "process"), "")
    return f"'{found}', which episodes share (scope: process)" if found else tool.shares


def _was_not_run(result: ToolResult) -> bool:
    if result.outcome == "ok":
        return False
    if result.outcome in _NEVER_RUN or result.reason in _NEVER_RUN:
        return True
    faults = (result.details or {}).get("faults")
    return not result.reason and isinstance(faults, (list, tuple)) and faults[-1:] in (["error"], ["hang"])


def _result_change(name: str, then: ToolResult, now: ToolResult) -> str:
    if then.whose == "infrastructure" and now.outcome == "ok":
        return f"the tool '{name}' could not be had when it was recorded ({then.reason}) and answers now"
    before, after = f"{then.outcome} {_quote(then.text)}", f"{now.outcome} {_quote(now.text)}"
    return f"the tool '{name}' gave {before} when it was recorded and {after} now"


def _quote(text: str | None) -> str:
    return "nothing" if text is None else repr(cut_end(text, _SHORT))


def _user_changes_state(environment: Environment) -> bool:
    user, spec = environment.parts.simulated, environment.spec.user
    if user is None or spec is None or spec.kind == "scripted" or not environment.parts.resources:
        return False
    if spec.kind == "model":
        return bool(getattr(spec, "tools", ()))
    given: Sequence[str] | None = getattr(user, "parameters", None)
    return given is None or any(name in environment.parts.resources for name in given)


def _shows_resources(environment: Environment) -> bool:
    return any("resources" in template.names for template in environment.parts.prompted)


def reads_state(terms: Sequence[Term]) -> bool:
    """True where one of the terms may look at resources or run a tool; True where that cannot be told from the spec."""
    return any(may_read_state(term.spec) for term in terms)


def may_read_state(spec: RewardSpec) -> bool:
    if spec.kind in ("judge", "group"):
        return False  # they see texts and values alone
    if spec.kind != "rule" or not type(spec).__module__.startswith("rlenv."):
        return True
    if getattr(spec, "rule", "python") == "python" or getattr(spec, "tool", None) is not None:
        return True
    return "resources" in spec.model_dump_json()


class _Lost(Mapping[str, Any]):
    """Resources that are not what they were: looking at them is noted, and raises."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.was_asked = False

    def refuse(self) -> NoReturn:
        self.was_asked = True
        raise RewardError(self.reason)

    def __getitem__(self, key: str) -> Any:
        self.refuse()

    def __contains__(self, key: object) -> bool:
        self.refuse()

    def __iter__(self) -> Iterator[str]:
        self.refuse()

    def __len__(self) -> int:
        self.refuse()


def guarded_scorer(environment: Environment, terms: Sequence[Term], lost: str) -> Scorer:
    """A scorer of the terms where the state is lost: one that asks for it is invalid for that reason."""
    reason = f"the state that the episode left cannot be had again: {lost}"
    guarded = [_guard_term(term, reason, environment.parts.tools) for term in terms]
    return Scorer(guarded, success=environment.spec.success)


def _guard_term(term: Term, reason: str, tools: Mapping[str, Tool]) -> Term:
    @contextmanager
    def sure(context: RewardContext) -> Iterator[RewardContext]:
        """A context that tells what is lost; an author's function may catch that, and give a number all the same."""
        lost = _Lost(reason)

        async def call(name: str, arguments: Mapping[str, Any]) -> ToolResult:
            tool = tools.get(name)
            if tool is None or tool.mutates or not tool.idempotent or tool.depends_on != "arguments":
                lost.refuse()
            return await context.call(name, arguments)

        resources = lost if context.resources else context.resources
        try:
            yield dataclasses.replace(context, resources=resources, call=call)
        except Exception as error:
            if lost.was_asked:
                raise RewardError(reason) from error
            raise
        if lost.was_asked:
            raise RewardError(reason)

    measure, measure_async = term.measure, term.measure_async
    if measure is not None:

        def quick(context: RewardContext) -> Measured:
            with sure(context) as context:
                return measure(context)

        return dataclasses.replace(term, measure=quick)
    if measure_async is not None:

        async def slow(context: RewardContext) -> Measured:
            with sure(context) as context:
                return await measure_async(context)

        return dataclasses.replace(term, measure_async=slow)
    return term
