"""Episodes that somebody plays in the browser: by hand, or watching the oracle or a model at a server."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlenv._base.bounded import plain
from rlenv._base.paths import forget_files
from rlenv.concurrency.scope import cancel_all
from rlenv.episodes.environment import Environment
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import advance, start_policy
from rlenv.errors import EpisodeError, UsageError
from rlenv.language.document import read_source
from rlenv.language.loader import loaded_of
from rlenv.messages import Message, ParsedAction, ToolCall, ToolResult
from rlenv.policies.base import Policy, PolicySession
from rlenv.runs.stage import PolicyChoice
from rlenv.runs.usage import spending_of_usage, spending_page
from rlenv.trajectory import Turn

MOST: Final = 8
"""Sessions at once."""
IDLE_S: Final = 600.0
"""Seconds after its last step that a session is closed."""

_COMPILES_S: Final = 60.0


@dataclass(slots=True, eq=False)
class LiveEpisode:
    """One episode that is being played."""

    id: str
    environment: Environment
    episode: Episode
    policy: Policy | None
    touched: float
    messages: list[Message] = field(default_factory=list)
    acting: PolicySession | None = None
    running: asyncio.Task[None] | None = None

    @property
    def is_stepping(self) -> bool:
        """True while a step is taken."""
        return self.running is not None and not self.running.done()

    async def step(self, action: str | None) -> None:
        """Takes one action: the one given, or the policy's own.

        Raises:
            UsageError: the episode has ended, or whose turn it is does not fit.
        """
        if self.episode.is_ended:
            raise UsageError("the episode has ended", hint="start another")
        if self.policy is None:
            if action is None:
                raise UsageError("you play this episode; an action is missing", hint='send {"action": "…"}')
            self.messages.append(Message("assistant", action))
            self.messages.extend((await self.episode.step(action)).observation.messages)
            return
        if action is not None:
            raise UsageError(f"the {self.policy.name} plays this episode; it takes no action of yours", hint="send {}")
        try:
            if self.acting is None:
                self.acting = start_policy(self.episode, self.policy)
            await advance(self.episode, self.acting, self.messages)
        except EpisodeError as error:
            self.episode.fail(error.reason, str(error))

    async def aclose(self) -> None:
        """Ends a step that is taken, and closes the episode with all that it opened."""
        await cancel_all(self.running)
        try:
            await self.episode.aclose()
            if self.policy is not None:
                await self.policy.aclose()
        finally:
            await self.environment.aclose()

    def state(self) -> dict[str, Any]:
        """The state of the episode for the page, as JSON."""
        episode = self.episode
        ended = episode.trajectory.outcome() if episode.is_ended else {}
        return {
            "environment": self.environment.id,
            "policy": self.policy.name if self.policy is not None else "you",
            "split": episode.split,
            "task": episode.task_index,
            "seed": episode.seed,
            "row": plain(episode.task),
            "tools": [plain(schema) for schema in episode.tool_schemas],
            "messages": [_message_json(message) for message in self.messages or episode.messages],
            "turns": [_turn_json(turn) for turn in episode.turns],
            "ended": episode.is_ended,
            "reason": ended.get("reason", ""),
            "answer": episode.trajectory.answer if ended else None,
            "success": ended.get("success"),
            "failure": ended.get("failure"),
            "reward": _reward_json(self),
            "spending": spending_page(spending_of_usage(episode.record()["usage"])),
        }


@dataclass(slots=True, eq=False)
class Plays:
    """The sessions of one server."""

    most: int = MOST
    idle_s: float = IDLE_S
    clock: Callable[[], float] = time.monotonic
    _sessions: dict[str, LiveEpisode] = field(default_factory=dict)
    _starting: int = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def start(
        self,
        path: Path,
        *,
        text: str | None = None,
        split: str | None = None,
        task: int = 0,
        seed: int | None = None,
        policy: PolicyChoice | None = None,
    ) -> LiveEpisode:
        """Opens an episode of the spec at `path`, or of a text that stands there unsaved; you play it without a policy.

        Raises:
            SpecError: the spec has faults.
            UsageError: there is no such policy, split or task, or so many sessions are open that none may be added.
        """
        await self.close_idle()
        if len(self._sessions) + self._starting >= self.most:
            raise UsageError(f"{self.most} episodes are played at once already", hint="close one of them")
        self._starting += 1
        try:
            environment = await asyncio.to_thread(_compile_spec, path, text)
            session = await self._open_live(environment, policy, task=task, split=split, seed=seed)
        finally:
            self._starting -= 1
        self._sessions[session.id] = session
        return session

    async def _open_live(self, environment: Environment, policy: PolicyChoice | None, **place: Any) -> LiveEpisode:
        try:
            acting = None if policy is None else policy.make(environment)
            episode = environment.start(**place)
            await episode.open()
        except BaseException:
            await environment.aclose()
            raise
        session = LiveEpisode(secrets.token_urlsafe(9), environment, episode, acting, self.clock())
        session.messages = list(episode.messages)
        return session

    async def step(self, id: str, action: str | None) -> LiveEpisode:
        """Takes one action in a session.

        Raises:
            UsageError: there is no such session, another step of it is running, or see `LiveEpisode.step`.
        """
        session = self.get(id)
        if session.is_stepping:
            raise UsageError("another step of this episode is running", hint="wait for it, or close the session")
        session.running = asyncio.create_task(session.step(action))
        try:
            await session.running
        except asyncio.CancelledError:
            if session.running.cancelled():
                raise UsageError("the session was closed while it took a step") from None
            raise
        finally:
            session.touched = self.clock()
        return session

    def get(self, id: str) -> LiveEpisode:
        """The session with an id.

        Raises:
            UsageError: there is none.
        """
        if id not in self._sessions:
            minutes = f"{self.idle_s / 60:g} minutes"
            raise UsageError(f"no session '{id[:40]}'", hint=f"it is closed after {minutes} without a step")
        return self._sessions[id]

    async def close(self, id: str) -> None:
        """Closes a session; one that is not there is closed."""
        session = self._sessions.pop(id, None)
        if session is not None:
            await session.aclose()

    async def close_idle(self) -> None:
        """Closes the sessions that nobody has stepped for `idle_s` seconds."""
        last = self.clock() - self.idle_s
        for session in list(self._sessions.values()):
            if session.touched <= last and not session.is_stepping:
                await self.close(session.id)

    async def aclose(self) -> None:
        """Closes all sessions."""
        for id in list(self._sessions):
            await self.close(id)


_compiling = threading.Lock()


def _compile_spec(path: Path, text: str | None) -> Environment:
    """The spec, with its author's files as they are now: they are edited while the server runs."""
    if not _compiling.acquire(timeout=_COMPILES_S):
        raise UsageError("another spec is still being compiled", hint="a file that it imports may hang: restart")
    try:
        forget_files()
        return Environment(loaded_of(read_source(path, text=text)))
    except SystemExit as error:
        raise UsageError(f"a function of the spec ended the program (SystemExit: {error})") from error
    finally:
        _compiling.release()


def _message_json(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        shown["thinking"] = message.thinking
    if message.tool_calls:
        shown["tool_calls"] = [plain(call) for call in message.tool_calls]
    if message.name is not None:
        shown["name"] = message.name
    if message.images:
        shown["images"] = [{"mime": image.mime, "chars": len(image.base64)} for image in message.images]
    return shown


def _parsed_json(parsed: ParsedAction) -> dict[str, Any]:
    calls = [{**plain(call), "well_formed": isinstance(call, ToolCall)} for call in parsed.calls]
    return {**plain(parsed), "calls": calls}


def _turn_json(turn: Turn) -> dict[str, Any]:
    return {
        "index": turn.index,
        "action": turn.action,
        "parse": _parsed_json(turn.parsed),
        "results": [_result_json(result) for result in turn.results],
        "observation": turn.observation.text if turn.observation is not None else "",
        "calls_malformed": turn.calls_malformed,
        "seconds": turn.seconds,
        "schedule": [_schedule_entry(result) for result in turn.results],
    }


def _result_json(result: ToolResult) -> dict[str, Any]:
    kept: Mapping[str, Any] = plain(result)
    return {key: kept[key] for key in ("name", "text", "outcome", "value", "seconds", "details", "reason")}


_SCHEDULED: Final = ("outcome", "started", "waited", "seconds")


def _schedule_entry(result: ToolResult) -> dict[str, Any]:
    """The start and the duration of a call; None and 0 where the record does not say."""
    return {"tool": result.name, **{name: getattr(result, name) for name in _SCHEDULED}}


def _reward_json(session: LiveEpisode) -> dict[str, Any]:
    """The terms so far: those of each turn as they were measured, the others pending until the end."""
    if session.episode.is_ended:
        reward = session.episode.trajectory.reward
        return {"total": reward.total, "terms": [plain(term) for term in reward.terms.values()]}
    measured, weights = session.episode.turn_terms, session.environment.parts.scorer.of(session.episode.task).weights
    terms = []
    for name, spec in session.environment.spec.rewards.items():
        values = [results[name].value for results in measured if name in results]
        known = [value for value in values if value is not None]
        terms.append(
            {
                "name": name,
                "status": "so far" if values else "pending",
                "value": (sum(known) / len(known) if spec.over_turns == "mean" else sum(known)) if known else None,
                "weight": weights[name],
                "turn_values": values,
            }
        )
    return {"total": None, "terms": terms}
