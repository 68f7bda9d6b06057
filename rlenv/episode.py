"""The state machine of one rollout: the only thing that changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from rlenv._hosted import Scope
from rlenv._quick import quick
from rlenv.errors import EpisodeError, UsageError
from rlenv.messages import MalformedCall, Message, Observation, ParsedAction, Sampled, ToolCall, ToolResult
from rlenv.observe import CHARS_PER_TOKEN, Cut, told_of_cut, without_note
from rlenv.resources.base import ResourceContext
from rlenv.rewards import answer as answers
from rlenv.rewards.base import RewardContext
from rlenv.secrets import redact
from rlenv.tools.base import ToolContext
from rlenv.trajectory import Failure, RewardBreakdown, Trajectory, Turn
from rlenv.users.base import UserContext, UserSession

if TYPE_CHECKING:
    from rlenv.environment import Environment
    from rlenv.scoring import Scorer

__all__ = ["Episode", "Step"]

_MOST_LEFT_OUT = 64
"""Calls over a limit that are answered one by one."""
_INVALID = frozenset({"unknown_tool", "bad_arguments", "malformed"})
_NOTHING = Observation()
_CALL_SHARE = 0.3
_READ_AT_ONCE = 65_536
"""Characters of an action that are read on the event loop."""
_message, _observation, _turn, _tool_context = quick(Message), quick(Observation), quick(Turn), quick(ToolContext)


@dataclass(frozen=True, slots=True)
class Step:
    """What one action led to.

    `reward` is what this turn earned: the shares of `RewardBreakdown.turn_rewards` that are known by now; over an
    episode the rewards of all steps sum to its total. It is None where the reward is invalid. `reason` says why the
    episode ended ("" while it runs). `observation` is empty where the episode terminated.
    """

    observation: Observation
    reward: float | None
    terminated: bool = False
    truncated: bool = False
    reason: str = ""

    @property
    def is_last(self) -> bool:
        """True where the episode ended with this step."""
        return self.terminated or self.truncated


_made_step = quick(Step)


@dataclass(slots=True, eq=False)
class Episode:
    """One rollout. Made by `Environment.start`, entered with `async with`, driven by `step`.

    An infrastructure fault, while opening too, ends the episode as truncated with an invalid reward and `failure`
    set; it is never raised out of `step`. What the policy writes can never raise.
    """

    environment: Environment
    task: Mapping[str, Any]
    split: str
    task_index: int
    seed: int
    cut: Cut
    messages: tuple[Message, ...] = ()
    """The prompt; set by opening."""
    turns: list[Turn] = field(default_factory=list)
    refused: str = ""
    """Why the row cannot be read; such an episode fails as it opens."""
    _stack: AsyncExitStack | None = None
    _scope: Scope | None = None
    _resources: Mapping[str, Any] = field(default_factory=dict)
    _turn_values: list[Mapping[str, Any]] = field(default_factory=list)
    _paid: float = 0.0
    _calls: int = 0
    _calls_in_turn: int = 0
    _chars: int = 0
    _invalid_streak: int = 0
    _started: float = 0.0
    _trajectory: Trajectory | None = None
    _is_open: bool = False
    _is_stepping: bool = False
    _user: UserSession | None = None
    _is_ending: bool = False
    _sampled: Sampled | None = None
    """What the sampler said of the action that is being taken."""
    _lost: str = ""
    """Why resources are not what the recorded episode left; only ever set while it is rescored."""

    async def __aenter__(self) -> Episode:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Opens the resources and renders the prompt. Where a resource fails, the episode has ended on return."""
        if self._is_open:
            raise UsageError("the episode is open already; start a new one with environment.start()")
        self._is_open = True
        self._started = time.monotonic()
        environment = self.environment
        if self.refused:
            self._fail(Failure("task", self.refused))
            return
        try:
            if environment.parts.resources:
                self._stack = AsyncExitStack()
                context = ResourceContext(self.task, environment.spec.vars, self.seed)
                opened: dict[str, Any] = {}
                async with asyncio.timeout(environment.spec.limits.episode_s):
                    for name, resource in environment.parts.resources.items():
                        opened[name] = await environment.open_resource(resource, context, self._stack)
                self._resources = opened
            self.messages = environment.prompt(self.task, self._resources)
        except TimeoutError:
            limit = environment.spec.limits.episode_s
            self._fail(Failure("resource", f"the resources did not open within {limit:g} s"))
        except EpisodeError as error:
            self._fail(Failure(error.reason, str(error)))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Closes the episode's resources in reverse order; may be called twice."""
        scope, self._scope = self._scope, None
        stack, self._stack = self._stack, None
        try:
            if scope is not None:  # tools may use resources, so what they keep goes first
                await scope.aclose()
        finally:
            if stack is not None:
                await stack.aclose()

    @property
    def resources(self) -> Mapping[str, Any]:
        """The opened resources by name."""
        return self._resources

    @property
    def is_ended(self) -> bool:
        """True once the episode terminated or was truncated."""
        return self._trajectory is not None

    @property
    def is_ending(self) -> bool:
        """True once nothing but the reward is missing: no action will be taken and no tool called for one."""
        return self._is_ending or self._trajectory is not None

    @property
    def is_reported(self) -> bool:
        """True once a step has returned the episode's end."""
        return self._trajectory is not None and self._is_stepping

    @property
    def trajectory(self) -> Trajectory:
        """The frozen record.

        Raises:
            UsageError: the episode has not ended.
        """
        if self._trajectory is None:
            raise UsageError("the episode has not ended; step until step.is_last, or call truncate()")
        return self._trajectory

    @property
    def failure(self) -> Failure | None:
        """Why the reward is invalid; None while the episode runs or where it is valid."""
        return self._trajectory.failure if self._trajectory is not None else None

    async def step(self, action: str | Message | Sampled) -> Step:
        """Takes one action: parses it, runs its calls, and answers or ends.

        Args:
            action: the policy's text, or an assistant message with structured calls; as `Sampled` where the sampler
                knows more. The record keeps what it says, and an action that a limit of tokens has cut is told so in
                the observation that answers it.

        Raises:
            UsageError: the episode is not open, has ended, or another step is running.
        """
        self._check_can_step()
        if self._trajectory is not None:  # opening failed; the first step reports it
            self._is_stepping = True
            return self._last_step()
        self._is_stepping = True
        try:
            if isinstance(action, Sampled):
                self._sampled, action = action, action.action
            else:
                self._sampled = None
            return await self._step(action)
        except EpisodeError as error:
            self._fail(Failure(error.reason, str(error)))
            return self._last_step()
        finally:
            if self._trajectory is None:
                self._is_stepping = False

    async def truncate(self, reason: str, *, action: str | Message | Sampled | None = None) -> Trajectory:
        """Ends the episode from outside, as a trainer does at its token budget, and scores it as it stands.

        Args:
            reason: what the trajectory says of its end.
            action: one that the policy has taken and that was interrupted; recorded as a last turn without results.
        """
        if self._trajectory is None:
            if action is not None:
                self._sampled = action if isinstance(action, Sampled) else None
                text, parsed = self.environment.parse(action.action if isinstance(action, Sampled) else action)
                self._add_turn(text, parsed, 0.0)
            try:
                await self._end(terminated=False, reason=reason)
            except EpisodeError as error:
                self._fail(Failure(error.reason, str(error)))
        return self.trajectory

    async def rescore(self, recorded: Trajectory) -> Trajectory:
        """Scores recorded turns with this environment's rewards; no policy acts.

        Turns, results and replies stay the recorded ones. Where a term may look at resources or run a tool, recorded
        calls that bear on state are taken again first, on this episode's own resources; where they give something
        else now, or cannot be repeated, a term that asks for state is invalid and names the call. The answer is read
        again, by this environment's rule, from the last turn as it was parsed then. An episode that failed for another
        reason than its reward stays failed.

        Raises:
            UsageError: the episode is not open, has been stepped or has ended.
        """
        self._check_can_step()
        if self.turns:
            raise UsageError("this episode has turns of its own; start a new one for each recorded trajectory")
        failure = recorded.failure
        if self._trajectory is None and failure is not None and failure.reason != "reward":
            self.messages, self.turns = recorded.messages, list(recorded.turns)
            self._fail(failure)
        if self._trajectory is not None:  # opening failed, or the recording did
            return self.trajectory
        # Found late: what takes calls again knows episodes.
        from rlenv.retaken import Retaken, reads_state

        state = Retaken(self, prompt=recorded.messages) if reads_state(self.environment) else None
        self._lost = state.lost if state is not None else ""
        self.messages = recorded.messages
        deadline = self._started + self.environment.spec.limits.episode_s
        try:
            for index, turn in enumerate(recorded.turns, 1):
                is_last = index == len(recorded.turns)
                if state is not None:
                    await state.take(turn, is_last=is_last, reason=recorded.reason, deadline=deadline)
                    self._lost = state.lost
                self.turns.append(turn)
                if self.environment.parts.scorer.has_turn_terms and not is_last:
                    await self._score_turn()
            # A reward that could not be measured overwrote how its episode had ended.
            was_cut = failure is None and recorded.truncated
            await self._end(terminated=not was_cut, reason=recorded.reason if failure is None else "answer")
        except EpisodeError as error:
            self._fail(Failure(error.reason, str(error)))
        return self.trajectory

    async def call_again(self, calls: Sequence[ToolCall | MalformedCall], *, deadline: float) -> tuple[ToolResult, ...]:
        """What recorded calls give on this episode's resources, as calls of the next turn; nothing of it is kept."""
        return await self.environment.executor.run(calls, self._tool_context(deadline, turn=len(self.turns)))

    async def reply_again(self, parsed: ParsedAction, *, deadline: float) -> str | None:
        """What the simulated user says to an action behind the turns so far, as the policy would see it."""
        said = await self._reply(parsed, deadline)
        return None if said is None else self.cut(redact(said))

    def fail(self, reason: str, message: str) -> Trajectory:
        """Ends the episode with an invalid reward, as a driver does when its policy or its own code failed."""
        if self._trajectory is None:
            self._fail(Failure(reason, message))
        return self.trajectory

    def _check_can_step(self) -> None:
        if not self._is_open:
            raise UsageError("the episode is not open; use `async with environment.start(...) as episode`")
        if self._is_stepping:
            ended = "the episode has ended" if self._trajectory is not None else "another step is still running"
            raise UsageError(f"{ended}; start a new one with environment.start()")

    async def _step(self, action: str | Message) -> Step:
        environment = self.environment
        spec = environment.spec
        limits = spec.limits
        begun = time.monotonic()
        deadline = self._started + limits.episode_s
        if len(action if isinstance(action, str) else action.content) <= _READ_AT_ONCE:
            text, parsed = environment.parse(action)
        else:  # a megabyte takes tens of milliseconds, and several of them may come at once
            text, parsed = await asyncio.to_thread(environment.parse, action)
        self._chars += len(text)
        calls = parsed.calls
        index = len(self.turns)
        if begun >= deadline:
            self._add_turn(text, parsed, 0.0)
            return await self._finish(terminated=False, reason="time")

        found = answers.extract(spec.answer, parsed) if environment.answer_is_explicit or not calls else None
        if environment.parts.simulated is not None and not calls and not (found and environment.answer_is_explicit):
            return await self._converse(index, text, parsed, begun, deadline)
        if found is not None or not calls:
            self._add_turn(text, parsed, time.monotonic() - begun)
            if self._was_cut and (found is None or not environment.answer_is_explicit):
                # It was not the policy that ended its message here. What it has written is scored all the same.
                return await self._finish(terminated=False, reason="turn_tokens")
            return await self._finish(terminated=True, reason="final_message" if found is None else "answer")

        results = await self._invoke(calls, deadline)
        malformed = 0
        for result in results:
            if result.outcome in _INVALID:
                malformed += 1
        self._invalid_streak = self._invalid_streak + 1 if malformed else 0
        observation = self._observe(results, index)
        self._chars += len(observation.text)
        self._add_turn(text, parsed, time.monotonic() - begun, results, observation, malformed)
        return await self._go_on(index, observation, deadline)

    async def _converse(self, index: int, text: str, parsed: ParsedAction, begun: float, deadline: float) -> Step:
        """Lets the simulated user answer an action that is meant for it."""
        self._invalid_streak = 0
        if index + 1 >= self.environment.spec.limits.turns:  # nobody would read the reply
            self._add_turn(text, parsed, time.monotonic() - begun)
            return await self._finish(terminated=False, reason="turns")
        reason = "user"
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                said = await self._reply(parsed, deadline)
        except TimeoutError:
            said, reason = None, "time"
        if said is None:
            self._add_turn(text, parsed, time.monotonic() - begun)
            return await self._finish(terminated=reason == "user", reason=reason)
        messages: tuple[Message, ...] = (Message("user", self.cut(redact(said))),)
        if self._was_cut:
            messages = told_of_cut(messages)
        observation = Observation(messages, self._rendered(messages))
        self._chars += len(observation.text)
        self._add_turn(text, parsed, time.monotonic() - begun, (), observation)
        return await self._go_on(index, observation, deadline)

    async def _reply(self, parsed: ParsedAction, deadline: float) -> str | None:
        user = self.environment.parts.simulated
        assert user is not None
        if self._user is None:
            vars, shared = self.environment.spec.vars, self.environment.scope
            self._user = user.start(UserContext(self.task, self._resources, vars, self.seed, shared))
        said = await self._user.reply(self._dialogue(parsed), deadline=deadline)
        return None if said is None or (user.stop is not None and user.stop in said) else said

    def _dialogue(self, parsed: ParsedAction) -> list[Message]:
        """What the user has heard and said: no system message, no calls, no results, no thinking."""
        heard = [message for message in self.messages if message.role == "user"]
        for turn in self.turns:
            if turn.parsed.content.strip():
                heard.append(Message("assistant", turn.parsed.content))
            if turn.observation is not None:
                said = [message for message in turn.observation.messages if message.role == "user"]
                heard += [replace(message, content=without_note(message.content)) for message in said]
        heard.append(Message("assistant", parsed.content))
        joined: list[Message] = []
        for message in heard:  # a model on the other side expects the two to take turns
            if joined and joined[-1].role == message.role:
                joined[-1] = Message(message.role, f"{joined[-1].content}\n\n{message.content}".strip())
            else:
                joined.append(message)
        return joined

    async def _go_on(self, index: int, observation: Observation, deadline: float) -> Step:
        """The step of a turn that was not the last, or the end where it reached a limit."""
        limits, environment = self.environment.spec.limits, self.environment
        reason = ""
        if index + 1 >= limits.turns:
            reason = "turns"
        elif self._calls >= limits.tool_calls:
            reason = "tool_calls"
        elif self._invalid_streak >= limits.invalid_actions:
            reason = "invalid_actions"
        elif time.monotonic() >= deadline:
            reason = "time"
        elif (
            limits.response_tokens is not None
            and environment.is_text_only(self.cut)
            and self._chars >= limits.response_tokens * CHARS_PER_TOKEN
        ):
            reason = "response_tokens"
        if reason:
            return await self._finish(terminated=False, reason=reason, observation=observation)
        reward = 0.0
        if environment.parts.scorer.has_turn_terms:
            reward = await self._score_turn()
            self._paid += reward
        return _made_step(observation, reward)

    async def _invoke(self, calls: Sequence[ToolCall | MalformedCall], deadline: float) -> tuple[ToolResult, ...]:
        limits = self.environment.spec.limits
        allowed = min(limits.calls_per_turn, limits.tool_calls - self._calls)
        context = self._tool_context(deadline, turn=len(self.turns))
        self._calls += len(calls)
        self._calls_in_turn = len(calls)
        if len(calls) <= allowed:
            return await self.environment.executor.run(calls, context)
        results = await self.environment.executor.run(calls[:allowed], context)
        return results + self._left_out(calls[allowed:], most=_MOST_LEFT_OUT)

    def _left_out(
        self, calls: Sequence[ToolCall | MalformedCall], *, most: int | None = None
    ) -> tuple[ToolResult, ...]:
        limits = self.environment.spec.limits
        text = f"Not run: at most {limits.calls_per_turn} calls a turn and {limits.tool_calls} an episode are run."
        left_out = [
            ToolResult(call.name or "", text, "skipped", call_id=call.id, reason="skipped", whose="policy")
            for call in calls[:most]
        ]
        if left_out and most is not None and len(calls) > most:
            # One action may write ten thousand calls in the tokens of one answer.
            left_out[-1] = replace(left_out[-1], text=f"{text} {len(calls) - most:,} more are left out.")
        return tuple(left_out)

    async def _run_for_tool(self, calls: Sequence[ToolCall], context: ToolContext) -> tuple[ToolResult, ...]:
        """Runs calls that a tool makes for the policy: they count as the policy's own, in the turn and the episode."""
        limits = self.environment.spec.limits
        left = min(limits.calls_per_turn - self._calls_in_turn, limits.tool_calls - self._calls)
        allowed = calls[: max(left, 0)]
        self._calls += len(allowed)
        self._calls_in_turn += len(allowed)
        results = await self.environment.executor.run(allowed, context) if allowed else ()
        return results + self._left_out(calls[len(allowed) :])

    def _observe(self, results: Sequence[ToolResult], turn: int) -> Observation:
        show, cut, task = self.environment.show, self.cut, self.task
        keeps = self.environment.spec.observation.images == "keep"
        messages = tuple(
            _message(
                "tool", cut(show(result, task, turn)), (), result.name, result.call_id, result.images if keeps else ()
            )
            for result in results
        )
        if self._was_cut:
            messages = told_of_cut(messages)
        return _observation(messages, self._rendered(messages), tuple(results))

    @property
    def _was_cut(self) -> bool:
        """Whether a limit of tokens has cut the action that is being taken."""
        return self._sampled is not None and self._sampled.finish_reason == "length"

    def _add_turn(
        self,
        text: str,
        parsed: ParsedAction,
        seconds: float,
        results: tuple[ToolResult, ...] = (),
        observation: Observation | None = None,
        malformed: int = 0,
    ) -> None:
        index, sampled = len(self.turns), self._sampled
        if sampled is None:
            self.turns.append(_turn(index, text, parsed, results, observation, malformed, seconds))
            return
        said = (sampled.finish_reason, sampled.token_ids)
        self.turns.append(_turn(index, text, parsed, results, observation, malformed, seconds, *said))

    def _rendered(self, messages: Sequence[Message]) -> str:
        # With a tokenizer bound, the chat template's own ids are what the policy sees; nobody reads the text.
        if not self.environment.is_text_only(self.cut):
            return ""
        return self.environment.observation_text(messages)

    def _context(self, *, answer: str | None, reason: str) -> RewardContext:
        return RewardContext(
            self.task,
            self.messages,
            self.turns,
            answer,
            self._resources,
            self.environment.spec.vars,
            self._call_for_reward,
            reason,
            self.environment.scope,
            self.seed,
        )

    async def _call_for_reward(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        # A reward is measured after the episode's own time is over, so its calls get a budget of their own. Three fit
        # into it one after the other: the policy's, one that is known to work, and the policy's again, so that a call
        # that never ends cannot use up the time in which its fault is found.
        deadline = time.monotonic() + _CALL_SHARE * self.environment.spec.limits.reward_s
        context = self._tool_context(deadline)
        (result,) = await self.environment.executor.run((ToolCall(name, arguments),), context)
        return result

    def _tool_context(self, deadline: float, *, turn: int = -1) -> ToolContext:
        bounded_by: Literal["episode", "turn"] = "episode"
        turn_s = self.environment.spec.limits.turn_s
        if turn_s is not None and turn >= 0 and (turn_ends := time.monotonic() + turn_s) < deadline:
            deadline, bounded_by = turn_ends, "turn"
        environment = self.environment
        return _tool_context(
            self.task,
            self._resources,
            deadline,
            self.seed,
            self.scope,
            environment.scope,
            turn,
            bounded_by,
            environment.executor.run if turn < 0 else self._run_for_tool,
        )

    def scope(self) -> Scope:
        """What tools keep for this episode; closed with it."""
        if self._scope is None:
            self._scope = Scope()
        return self._scope

    def _scorer(self) -> Scorer:
        if not self._lost:
            return self.environment.parts.scorer
        from rlenv.retaken import guarded_scorer

        return guarded_scorer(self.environment, self._lost)

    async def _score_turn(self) -> float:
        scorer = self._scorer()
        values = await scorer.score_turn(
            self._context(answer=None, reason=""), limit_s=self.environment.spec.limits.reward_s
        )
        self._turn_values.append(values)
        return scorer.paid_at_once(values)

    async def _finish(self, *, terminated: bool, reason: str, observation: Observation = _NOTHING) -> Step:
        await self._end(terminated=terminated, reason=reason)
        return self._last_step(observation)

    async def _end(self, *, terminated: bool, reason: str) -> None:
        self._is_ending = True
        scorer = self._scorer()
        last: ParsedAction | None = self.turns[-1].parsed if self.turns else None
        found = None
        if last is not None and (self.environment.answer_is_explicit or not last.calls):
            found = answers.extract(self.environment.spec.answer, last)
        answer = found.text if found is not None else None
        context = self._context(answer=answer, reason=reason)
        limit_s = self.environment.spec.limits.reward_s
        if scorer.has_turn_terms and len(self._turn_values) < len(self.turns):
            self._turn_values.append(await scorer.score_turn(context, limit_s=limit_s))
        breakdown, success = await scorer.score(context, self._turn_values, limit_s=limit_s)
        failure = None
        if breakdown.total is None:
            bad = [term for term in breakdown.terms.values() if term.status == "invalid"]
            failure = Failure("reward", redact("; ".join(f"{term.name}: {term.error}" for term in bad)))
        self._record(terminated, reason, answer, breakdown, success, failure)

    def _fail(self, failure: Failure) -> None:
        failure = Failure(failure.reason, redact(failure.message))
        breakdown = self.environment.parts.scorer.failed(failure, turns=len(self.turns))
        self._record(False, failure.reason, None, breakdown, None, failure)

    def _record(
        self,
        terminated: bool,
        reason: str,
        answer: str | None,
        breakdown: RewardBreakdown,
        success: bool | None,
        failure: Failure | None,
    ) -> None:
        spec = self.environment.spec
        is_invalid = failure is not None
        self._trajectory = Trajectory(
            f"{spec.name}-v{spec.version}",
            self.split,
            self.task_index,
            self.seed,
            self.task,
            self.messages,
            tuple(self.turns),
            answer,
            terminated and not is_invalid,
            is_invalid or not terminated,
            reason if terminated is False or not is_invalid else "reward",
            breakdown,
            success,
            failure,
            time.monotonic() - self._started,
        )

    def _last_step(self, observation: Observation = _NOTHING) -> Step:
        trajectory = self.trajectory
        total = trajectory.reward.total
        reward = None if total is None else total - self._paid
        return Step(observation, reward, trajectory.terminated, trajectory.truncated, trajectory.reason)
