"""The state machine of one episode: it is opened, stepped until it ends, and closed.

    open                     the resources, then the prompt
    step -> _step            reads the action and runs its calls, or
              -> _converse   lets the simulated user answer it, and then
              -> _go_on      goes on to the next turn, or where a limit was reached or nothing is left to do
              -> _finish     ends the episode
    every end is _end (scored) or _end_failed (without a reward); `Trajectory` says what the episode has ended as

What calls run on and what is earned is in `episodes.tools`, what the user hears in `users.base`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rlenv._base.bounded import quick
from rlenv.concurrency.deadline import Expired, drive
from rlenv.concurrency.lanes import entered, here
from rlenv.concurrency.threads import ThreadPool
from rlenv.dialects.base import CHARS_PER_TOKEN, Cut, result_messages, told_of_cut
from rlenv.endpoints.account import counted
from rlenv.episodes.tools import EpisodeReward, EpisodeTools, end_of, length_of
from rlenv.errors import CassetteError, EpisodeError, PolicyError, UsageError
from rlenv.messages import Message, Observation, ParsedAction, Sampled, ToolResult
from rlenv.rewards import answer as answers
from rlenv.rewards.answer import GivenAnswer
from rlenv.secrets import redact_value
from rlenv.trajectory import Failure, Record, Step, TermResult, Trajectory, Turn
from rlenv.users.base import Conversation, UserContext

if TYPE_CHECKING:
    from rlenv.calls.toolsets import ToolSet
    from rlenv.episodes.environment import Environment
    from rlenv.language.expressions import EpisodeLimits

__all__ = ["Episode", "Step"]

_INVALID: Final = frozenset({"unknown_tool", "bad_arguments", "malformed"})
_NOTHING: Final = Observation()
_UNSAID: Final = Sampled("")
_CUT: Final = "length"
"""What a sampler says of an action that a limit of tokens has cut."""
_READ_AT_ONCE, _LONG = 8_192, 65_536
"""Characters of an action that are read on the event loop, where the slowest family takes 20 ms; and in 0.1 s."""
_reader, _long_reader = ThreadPool(size=1), ThreadPool(size=1)
"""More threads would only take Python's lock from each other, and from the event loop. Actions that are long wait for
each other alone: the slowest of them would keep all others waiting for seconds."""
_observation, _turn, _step = quick(Observation), quick(Turn), quick(Step)


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
    opening: str | None = None
    """The words of a user who speaks first, where nobody shall be asked for them."""
    limits: EpisodeLimits = field(init=False)
    tools: EpisodeTools = field(init=False)
    """What calls run on."""
    now: Callable[[], float] = time.monotonic
    """The clock by which an action is in time; a transcript's actions were taken before it was read."""
    _reward: EpisodeReward = field(init=False)
    _user: Conversation | None = None
    _chars: int = 0
    _replies: int = 0
    """The number of the user's replies, where these bring tools."""
    _invalid_streak: int = 0
    _heard: int = 0
    """The number of turns when the user replied last."""
    _started: float = 0.0
    _trajectory: Trajectory | None = None
    _is_open: bool = False
    _is_stepping: bool = False
    _is_ending: bool = False
    _sampled: Sampled = _UNSAID
    """The sampler's facts of the action that is being taken."""

    def __post_init__(self) -> None:
        parts, self.limits = self.environment.parts, self.environment.limits
        scorer = parts.scorer
        try:
            self.limits, scorer = parts.limits.of(self.task), scorer.of(self.task)
        except EpisodeError as error:
            self.refused = self.refused or str(error)
        self.tools = EpisodeTools(self.environment, self.task, self.seed, self.limits)
        self._reward = EpisodeReward(self.environment, self.tools, scorer)

    async def __aenter__(self) -> Episode:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Opens the resources and renders the prompt. Where a resource fails, the episode has ended on return."""
        if self._is_open:
            raise UsageError("the episode is open already", hint="start a new one with environment.start()")
        self._is_open = True
        self._started = self.tools.begun = time.monotonic()
        if self.refused:
            self._end_failed("task", self.refused)
            return
        try:
            if self.environment.toolsets.is_by_row:
                self.tools.offer(0)
            if self.environment.parts.resources:
                await self.tools.open()
            self.messages = self.environment.prompt(self.task, self.tools.resources)
            if self.environment.speaks_first(self.messages):
                said = self.opening if self.opening is not None else await self._ask_user(None)
                if said is None:
                    raise EpisodeError("the user has nothing to say to begin with", reason="user")
                self.messages = (*self.messages, Message("user", said))
        except EpisodeError as error:
            self._end_failed(error.reason, str(error))
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Closes the episode's resources in reverse order; may be called twice."""
        await self.tools.aclose()

    @property
    def resources(self) -> Mapping[str, Any]:
        """The opened resources by name."""
        return self.tools.resources

    @property
    def toolset(self) -> ToolSet:
        """The tools that the episode has now; a user's reply may bring more."""
        return self.tools.toolset

    @property
    def tool_schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The tools of the prompt as JSON schemas, in OpenAI's form."""
        return self.tools.first.schemas

    @property
    def prompt_text(self) -> str:
        """The prompt as a policy of raw text sees it."""
        return self.environment.prompt_text(self.messages, self.tools.first)

    @property
    def is_open(self) -> bool:
        """True once the episode was opened, also where that failed."""
        return self._is_open

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
            raise UsageError("the episode has not ended", hint="step until step.is_last, or call truncate()")
        return self._trajectory

    @property
    def failure(self) -> Failure | None:
        """The reason why the reward is invalid; None while the episode runs or where it is valid."""
        return self._trajectory.failure if self._trajectory is not None else None

    @property
    def turn_terms(self) -> tuple[Mapping[str, TermResult], ...]:
        """Results of the terms that are measured at every turn so far, turn by turn."""
        return self._reward.so_far

    async def step(self, action: str | Message | Sampled) -> Step:
        """Takes one action: parses it, runs its calls, and answers or ends.

        Args:
            action: the policy's text, or an assistant message with structured calls; as `Sampled` where the sampler
                knows more. The record keeps what it says, and an action that a limit of tokens has cut is told so in
                the observation that answers it.

        Raises:
            UsageError: the episode is not open, has ended, or another step is running.
        """
        if not self._is_open:
            raise UsageError("the episode is not open", hint="use `async with environment.start(...) as episode`")
        if self._is_stepping:
            ended = "the episode has ended" if self._trajectory is not None else "another step is still running"
            raise UsageError(ended, hint="start a new one with environment.start()")
        self._is_stepping = True
        if self._trajectory is not None:  # opening failed; the first step reports it
            return self._last_step()
        try:
            if isinstance(action, Sampled):
                self._sampled, action = action, action.action
            else:
                self._sampled = _UNSAID
            return await self._step(action)
        except EpisodeError as error:
            self._end_failed(error.reason, str(error))
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
                self._sampled = action if isinstance(action, Sampled) else _UNSAID
                text, parsed = await self.read(action.action if isinstance(action, Sampled) else action)
                self._add_turn(text, parsed, time.monotonic())
            await self._end(terminated=False, reason=reason)
        return self.trajectory

    def fail(self, reason: str, message: str) -> Trajectory:
        """Ends the episode with an invalid reward, as a driver does when its policy or its own code failed."""
        if self._trajectory is None:
            self._end_failed(reason, message)
        return self.trajectory

    async def _ask_user(self, parsed: ParsedAction | None) -> str | None:
        """The user's reply. It has a whole episode's time from now; a user who needs more is an EpisodeError."""
        environment = self.environment
        own_s = max(self.limits.episode_s, getattr(environment.parts.simulated, "reply_s", 0.0))
        try:
            said: str | None = await drive(self.reply(parsed, deadline=time.monotonic() + own_s), own_s)
        except Expired as error:
            raise EpisodeError(f"the user did not reply within {own_s:g} s", reason="user") from error
        return said

    async def reply(self, parsed: ParsedAction | None, *, deadline: float) -> str | None:
        """The simulated user's reply to an action behind the turns so far; None where it ends the episode.

        Args:
            parsed: the action; None where the user speaks first.
            deadline: on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: the user cannot be asked.
        """
        environment = self.environment
        if self._user is None:
            user = environment.parts.simulated
            assert user is not None
            held = (self.task, self.resources, environment.spec.vars, self.seed, environment.scope)
            self._user = Conversation(user, UserContext(*held, self.tools.run_for_user), self.cut)
        # What stands before the spec's own question are examples; what stands in its place is the dialogue so far.
        before = self.messages[-1:] if environment.spec.prompt.asks else self.messages
        at = "opening" if parsed is None else len(self.turns)
        with entered(f"user {at}"), counted(self.tools.counting):
            return await self._user.reply(before, self.turns, parsed, deadline=deadline)

    def record(self, *, answer: str | None = None) -> Record:
        """The record of the episode so far, however it ends."""
        spec = self.environment.spec
        return {
            "environment": f"{spec.name}-v{spec.version}",
            "split": self.split,
            "task_index": self.task_index,
            "seed": self.seed,
            "task": redact_value(self.task),
            "messages": self.messages,
            "turns": tuple(self.turns),
            "answer": answer,
            "seconds": time.monotonic() - self._started,
            "usage": self.tools.account.entries(),
        }

    async def _step(self, action: str | Message) -> Step:
        environment = self.environment
        begun, deadline = self.now(), self._started + self.limits.episode_s
        if type(action) is str and len(action) <= _READ_AT_ONCE:
            text, parsed = environment.parse(action, self.tools.toolset)
        else:
            text, parsed = await self.read(action)
        self._chars += len(text)
        if begun >= deadline:
            self._add_turn(text, parsed, begun)
            return await self._finish(terminated=False, reason="time")

        calls, is_explicit = parsed.calls, environment.answer_is_explicit
        found = answers.extract(environment.answer, parsed) if is_explicit or not calls else None
        found = None if found is not None and found.call >= 0 else found  # the call is run first
        if environment.parts.simulated is not None and not calls and not (found and is_explicit):
            return await self._converse(text, parsed, begun, deadline)
        if found is not None or not calls:
            self._add_turn(text, parsed, begun, self.tools.beside_answer(calls) if calls else ())
            if self._sampled.finish_reason == _CUT and (found is None or not is_explicit):
                # It was not the policy that ended its message here. What it has written is scored all the same.
                return await self._finish(terminated=False, reason="turn_tokens")
            await self._end(terminated=True, reason="final_message" if found is None else "answer", found=found)
            return self._last_step()

        results = await self.tools.run(calls, turn=len(self.turns), deadline=deadline)
        malformed = 0
        for result in results:
            malformed += result.outcome in _INVALID
        self._invalid_streak = self._invalid_streak + 1 if malformed else 0
        if environment.has_ends and (end := end_of(results))[1]:
            self._add_turn(text, parsed, begun, results, None, malformed)
            found = answers.submitted(environment.answer, calls[end[0]], end[0])
            reason = "tool" if found is None else "answer"
            return await self._finish(terminated=end[1] == "ended", reason=reason, found=found)
        shown = environment.show, self.cut, self.task, len(self.turns), environment.keeps_images
        observation = self._observe(result_messages(results, *shown), results)
        self._add_turn(text, parsed, begun, results, observation, malformed)
        if (reason := self._limit_reached(observation, deadline)) or self._reward.scorer.has_turn_terms:
            return await self._go_on(observation, reason)
        return _step(observation, 0.0)

    async def read(self, action: str | Message) -> tuple[str, ParsedAction]:
        """The action's text and its reading; the slowest text of a megabyte takes seconds, and several come at once."""
        length = len(action) if isinstance(action, str) else length_of(action, _LONG)
        if length <= _READ_AT_ONCE:
            return self.environment.parse(action, self.tools.toolset)
        reader = _reader if length <= _LONG else _long_reader
        read: tuple[str, ParsedAction] = await reader.call(self.environment.parse, action, self.tools.toolset)
        return read

    async def _converse(self, text: str, parsed: ParsedAction, begun: float, deadline: float) -> Step:
        """Lets the simulated user answer an action that is meant for it."""
        self._invalid_streak = 0
        environment = self.environment
        said, reason = None, "user"
        if len(self.turns) + 1 >= self.limits.turns:  # nobody would read the reply
            reason = "turns"
        else:
            said = await self._ask_user(parsed)
            reason = "time" if self.now() >= deadline else "user"
        if said is None:
            self._add_turn(text, parsed, begun)
            return await self._finish(terminated=reason == "user", reason=reason)
        if environment.toolsets.changes:
            self._replies += 1
            said += self.tools.offer(self._replies)
        observation = self._observe((Message("user", said),))
        self._add_turn(text, parsed, begun, (), observation)
        self._heard = len(self.turns)
        return await self._go_on(observation, self._limit_reached(observation, deadline))

    def _limit_reached(self, observation: Observation, deadline: float) -> str:
        """The limit that ends the episode behind this observation; "" where it goes on."""
        limits, turns = self.limits, len(self.turns)
        per_reply, most = limits.turns_per_reply, limits.response_tokens
        self._chars += len(observation.text)
        if turns >= limits.turns or (per_reply is not None and turns - self._heard >= per_reply):
            return "turns"
        if self._invalid_streak >= limits.invalid_actions:
            return "invalid_actions"
        if self.now() >= deadline:
            return "time"
        is_over = most is not None and self._chars >= most * CHARS_PER_TOKEN
        return "response_tokens" if is_over and self.environment.is_text_only(self.cut) else ""

    async def _go_on(self, observation: Observation, reason: str) -> Step:
        """The step of a turn that was not the last, or the end where it reached a limit."""
        if reason:
            return await self._finish(terminated=False, reason=reason, observation=observation)
        scores = self._reward.scorer.has_turn_terms
        return _step(observation, await self._reward.score_turn(self.messages, self.turns) if scores else 0.0)

    def _observe(self, messages: tuple[Message, ...], results: tuple[ToolResult, ...] = ()) -> Observation:
        if self._sampled.finish_reason == _CUT:
            messages = told_of_cut(messages)
        # With a tokenizer bound, the chat template's own ids are what the policy sees; nobody reads the text.
        is_read = self.environment.is_text_only(self.cut)
        return _observation(messages, self.environment.observation_text(messages) if is_read else "", results)

    def _add_turn(
        self,
        text: str,
        parsed: ParsedAction,
        begun: float,
        results: tuple[ToolResult, ...] = (),
        observation: Observation | None = None,
        malformed: int = 0,
    ) -> None:
        took, started, said = self.now() - begun, begun - self._started, self._sampled
        told = (said.finish_reason, said.token_ids, started, said.logprobs, said.prompt_token_ids)
        self.turns.append(_turn(len(self.turns), text, parsed, results, observation, malformed, took, *told))

    async def _finish(
        self, *, terminated: bool, reason: str, observation: Observation = _NOTHING, found: GivenAnswer | None = None
    ) -> Step:
        await self._end(terminated=terminated, reason=reason, found=found)
        return self._last_step(observation)

    async def _end(self, *, terminated: bool, reason: str, found: GivenAnswer | None = None) -> None:
        self._is_ending = True
        lasted_s = min(time.monotonic() - self._started, self.limits.episode_s) if reason == "time" else 0.0
        if why := self.tools.account.barred(lasted_s):  # the time was not the policy's
            self._end_failed(PolicyError.reason, why)
            return
        try:
            answer, reward, success = await self._reward.score(self.messages, self.turns, reason=reason, found=found)
        except CassetteError as error:
            self._end_failed(error.reason, str(error))
            return
        if (lane := here()) is not None and (missed := lane.tape.missed_request(lane.episode)):
            self._end_failed(CassetteError.reason, missed)  # whoever asked has made something else of it
            return
        made = self.record(answer=answer)
        self._trajectory = Trajectory.ended(made, terminated=terminated, reason=reason, reward=reward, success=success)

    def _end_failed(self, reason: str, message: str) -> None:
        failure = Failure(reason, message)
        reward = self._reward.scorer.failed(failure, turns=len(self.turns))
        self._trajectory = Trajectory.failed(failure=failure, reward=reward, **self.record())

    def _last_step(self, observation: Observation = _NOTHING) -> Step:
        total = self.trajectory.reward.total
        reward = None if total is None else total - self._reward.paid
        return Step.last(self.trajectory, reward=reward, observation=observation)
