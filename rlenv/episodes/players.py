"""Several players in one episode: each has an episode of its own, on the same resources, and they wait for each other.

The `Seating` knows whose turn it is and what was said. `Seated` is the episode of one player: what answers its action
is there once it is its turn again. The episode that was asked for is driven as any other; those of the other players
are tasks beside it, and end with it. When one has ended all end, and a failure of one makes all of them invalid.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlenv.concurrency.lanes import entered
from rlenv.concurrency.scope import cancel_all
from rlenv.episodes.episode import Episode
from rlenv.episodes.rollout import drive
from rlenv.episodes.tools import EpisodeReward, EpisodeTools, end_of
from rlenv.errors import EpisodeError, UsageError
from rlenv.language.templates import TemplateError
from rlenv.messages import MalformedCall, Message, ParsedAction, ToolCall, ToolResult
from rlenv.policies.base import Policy
from rlenv.policies.scripted import FunctionPolicy, random_call
from rlenv.rewards.answer import GivenAnswer
from rlenv.secrets import redact
from rlenv.trajectory import Record, Trajectory
from rlenv.users.base import spoken, told, worded
from rlenv.users.kinds import Players

if TYPE_CHECKING:
    from rlenv.episodes.environment import Environment

Seat = Callable[["Seated"], Awaitable[object]]
"""Plays the episode of another player, which is not open yet, to its end."""

_MOST_DRAWN = 1000
"""Calls that are drawn by chance for one that was not refused yet."""
_BEGINS, _YOUR_TURN = "(The conversation begins.)", "(It is your turn.)"


def played_by(policy: Policy) -> Seat:
    """Lets a policy play the episodes of other players."""

    async def play(episode: Seated) -> None:
        async with episode:
            await drive(episode, policy, limit_s=episode.limits.episode_s)

    return play


async def play_by_chance(episode: Seated) -> None:
    """Plays another player's episode by chance, to the end of the game: it never answers, and calls as schemas allow.

    No call is made again once it was refused, unless no other can be drawn. It speaks where a message passes the turn
    on, or where there is no tool.
    """
    spec, rng = episode.environment.spec, random.Random(f"{episode.seed}:{episode.task_index}:{episode.task['player']}")
    speaks = episode.table.passes_by_speaking and spec.answer.from_ != "final_message"
    refused: list[ToolCall] = []

    async def act(messages: Sequence[Message]) -> str:
        turn, tools = episode.turns[-1:], episode.tool_schemas
        pairs = [pair for one in turn for pair in zip(one.parsed.calls, one.results, strict=False)]
        failed = (call for call, result in pairs if isinstance(call, ToolCall) and result.is_error)
        refused.extend(ToolCall(call.name, call.arguments) for call in failed)
        if not tools or (speaks and rng.random() < 0.5):
            return rng.choice(("Yes.", "No.", "Why?", "The river."))
        drawn = (random_call(tools, rng) for _ in range(_MOST_DRAWN))
        call = next((call for call in drawn if call not in refused), None) or random_call(tools, rng)
        return episode.environment.parts.dialect.render_action(Message("assistant", "", (call,)))

    chance: Any = FunctionPolicy(act)
    await played_by(chance)(episode)


def opponent_of(environment: Environment) -> Policy | Seat | None:
    """Who plays the other players by the spec; None where whoever plays the first does."""
    name = getattr(environment.spec.user, "opponent", "self")
    if name == "oracle":
        return environment.oracle()
    return play_by_chance if name == "random" else None


def seat_players(episode: Seated, others: Policy | Seat | None) -> Seated:
    """The episode of a row's player, with a table for it and the others.

    Raises:
        UsageError: the row, which was given itself, names no player.
    """
    environment, players = episode.environment, episode.environment.players
    assert players is not None
    if (name := episode.task.get("player")) not in players.roles:
        hint = f"give the row 'player': one of {', '.join(players.roles)}"
        raise UsageError(f"the row's player is {name!r}", hint=hint)
    play = others or environment.opponent or play_by_chance
    episode.table = Seating(players, episode, play if callable(play) else played_by(play))
    return episode


class _SeatTools(EpisodeTools):
    """The tools of one player, whose results come once it is the player's turn again."""

    __slots__ = ("seat",)
    seat: Seated

    async def open(self) -> None:
        if not self.resources:  # a table opens them before the prompt is written
            await super().open()

    async def run(
        self, calls: Sequence[ToolCall | MalformedCall], *, turn: int, deadline: float
    ) -> tuple[ToolResult, ...]:
        results = await super().run(calls, turn=turn, deadline=deadline)
        if self.seat.opening is not None or end_of(results)[1]:
            return results
        heard = await self.seat.table.turn(self.seat, None, zip(calls, results, strict=False))
        last = results[-1]
        if heard is None:
            last = replace(last, details={**(last.details or {}), "ends": "ended"})
        elif heard:
            last = replace(last, text=f"{last.text}\n\n{heard}")
        return (*results[:-1], last)


class Seated(Episode):
    """The episode of one player of several: an ordinary one, but for what answers its actions."""

    __slots__ = ("_news", "table")
    table: Seating
    _news: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tools = tools = _SeatTools(self.environment, self.task, self.seed, self.limits)
        tools.seat = self
        self._reward = EpisodeReward(self.environment, tools, self._reward.scorer)
        self._started = time.monotonic()
        self._news = None

    async def open(self) -> None:
        """Opens the resources of all players, and writes the prompt once it is this one's turn."""
        if self._is_open or self.refused or self.opening is not None:  # nobody plays
            await super().open()
            return
        try:
            self._news = await self.table.begin(self)
        except EpisodeError as error:
            self._is_open = True
            self._end_failed(error.reason, str(error))
            return
        except BaseException:
            await self.aclose()
            raise
        is_asked = self.environment.spec.prompt.asks
        await super().open()
        if self._trajectory is not None:
            return
        if self._news is None:
            await self._end(terminated=True, reason="user")
        elif self._news and is_asked:
            last = self.messages[-1]
            self.messages = (*self.messages[:-1], replace(last, content=f"{last.content}\n\n{self._news}"))

    async def aclose(self) -> None:
        """Ends the other players' episodes, where this is the one that was asked for, and closes the resources."""
        if self.table.first is self:
            await self.table.aclose()
        await super().aclose()

    def record(self, *, answer: str | None = None) -> Record:
        """The record of the episode so far, with those of the other players where they have ended."""
        others = self.table.ended if self.table.first is self else ()
        return {**super().record(answer=answer), "others": others}

    async def _ask_user(self, parsed: ParsedAction | None) -> str | None:
        if parsed is None:
            return self._news or _BEGINS
        heard = await self.table.turn(self, spoken(redact(parsed.content)))
        return None if heard is None else heard or _YOUR_TURN

    async def _end(self, *, terminated: bool, reason: str, found: GivenAnswer | None = None) -> None:
        self._is_ending = True
        self.table.leave()
        await super()._end(terminated=terminated, reason=reason, found=found)
        if self.table.first is self and self.failure is None:
            await self.table.finish(reason)

    def _end_failed(self, reason: str, message: str) -> None:
        self.table.fail(self, EpisodeError(message, reason=reason))
        super()._end_failed(reason, message)


class Seating:
    """The players of one episode: whose turn it is, what they have said, and their episodes.

    Args:
        first: the episode that was asked for; its driver plays it, and `play` those of the others.
    """

    def __init__(self, players: Players, first: Seated, play: Seat) -> None:
        self.first = first
        self._players, self._play, self._names = players, play, tuple(players.roles)
        self._others: dict[str, Seated] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._log: list[tuple[str, str]] = []
        """Every action so far: whose it was, and what the others hear of it."""
        self._read: dict[str, int] = {}
        self._next = 0
        self._is_over = False
        self._error: Exception | None = None
        self._moved = asyncio.Event()
        self._waiting: set[str] = set()

    @property
    def passes_by_speaking(self) -> bool:
        """True where a message without a call passes the turn on."""
        return self._players.next is None

    @property
    def ended(self) -> tuple[Trajectory, ...]:
        """The records of the other players whose episodes have ended."""
        return tuple(other.trajectory for other in self._others.values() if other.is_ended)

    async def begin(self, seat: Seated) -> str | None:
        """What was said before the player's first turn, once that has come; None where it never comes.

        Raises:
            EpisodeError: a resource cannot be had, or a player has failed.
        """
        if seat is self.first:
            await seat.tools.open()
            own, shared = self._names.index(seat.task["player"]), seat.tools
            for at, (name, role) in enumerate(self._players.roles.items()):
                if at == own:
                    continue
                index = seat.task_index - own + at if seat.task_index >= 0 else -1
                task = {**seat.task, **role, "player": name}
                self._others[name] = other = Seated(seat.environment, task, seat.split, index, seat.seed, seat.cut)
                other.table, other.tools.resources = self, shared.resources
                other.tools.account, other.tools.counting = shared.account, shared.counting
                with entered(f"player {name} >"):
                    self._tasks[name] = asyncio.create_task(self._run(name, other))
        heard = await self._await_turn(seat)
        return None if self._is_over else heard

    async def turn(self, seat: Seated, said: str | None, calls: Iterable[tuple[Any, ToolResult]] = ()) -> str | None:
        """Takes an action and gives what the player hears once it is its turn again; None where all is over.

        Args:
            said: a message to the others; None for calls, which pass no turn on.

        Raises:
            EpisodeError: a player has failed.
        """
        name, players = seat.task["player"], self._players
        if said is not None:
            self._next += 1
            if any(stop in said for stop in players.stop):
                self.leave()
            said = worded(said) if players.hears == "all" else said
        elif players.hears == "all":
            said = "\n".join(told(*pair) for pair in calls)
        self._log.append((name, said or ""))
        return await self._await_turn(seat)

    async def _await_turn(self, seat: Seated) -> str | None:
        name, limit_s = seat.task["player"], seat.limits.episode_s
        self._tell_moved()
        self._waiting.add(name)
        try:
            async with asyncio.timeout(max(0.0, seat._started + limit_s - time.monotonic())):
                while (whose := self._player_in_turn()) != name:
                    if whose is None:
                        return None
                    await self._moved.wait()
        except TimeoutError:  # the episode ends by its own limit
            self.leave()
        finally:
            self._waiting.discard(name)
        return self._news_for(seat, name)

    def _tell_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _player_in_turn(self) -> str | None:
        """The player whose turn it is; None where all is over."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        if self._players.next is None:
            return self._names[self._next % len(self._names)]
        names = {"resources": self.first.resources, "vars": self.first.environment.spec.vars}
        try:
            is_nobody = self._players.next.value(**names) is None
            name = "" if is_nobody else self._players.next.text(**names).strip()
        except TemplateError as error:
            if not (self._is_left() and error.is_unfit):
                raise EpisodeError(f"user.next cannot be written: {error}", reason="user") from error
            name = ""
        if name and name not in self._names:
            if not self._is_left():
                raise EpisodeError(f"user.next gives '{name}'; the players are {', '.join(self._names)}", reason="user")
            name = ""
        if not name:
            self.leave()
        return name or None

    def _is_left(self) -> bool:
        """True where a player's calls may have made `next` what it is: it is nobody's turn then, and all are scored."""
        return bool(self._log and self._players.next and "resources" in self._players.next.names)

    def _news_for(self, seat: Seated, name: str) -> str:
        start, self._read[name] = self._read.get(name, 0), len(self._log)
        news = [(player, text) for player, text in self._log[start:] if player != name]
        if not news:
            return ""
        said = [{"player": player, "text": text} for player, text in news if text.strip()]
        if (sees := self._players.sees) is None:  # further lines stand further in: nobody writes an entry of another's
            return seat.cut("\n\n".join("\n  ".join("{player}: {text}".format(**one).splitlines()) for one in said))
        known = {"task": seat.task, "resources": seat.resources, "vars": seat.environment.spec.vars}
        try:
            return seat.cut(redact(spoken(sees.text(**known, player=name, said=said))))
        except TemplateError as error:
            if error.is_unfit and sees.names & {"said", "resources"}:
                return ""  # a player's words, silence or calls may have done it, and must leave out nobody's sample
            raise EpisodeError(f"user.sees cannot be written: {error}", reason="user") from error

    async def _run(self, name: str, other: Seated) -> None:
        try:
            await self._play(other)
        except Exception as error:  # whoever plays the first episode is told
            self._error = self._error or error
        finally:
            self.leave()

    def leave(self) -> None:
        """Ends it for all: who waits for a turn waits no longer."""
        self._is_over = True
        self._tell_moved()

    def fail(self, seat: Seated, error: Exception) -> None:
        """Makes the episodes of all players invalid, since that of `seat` is."""
        if self._error is None:
            why = f"player '{seat.task['player']}': {error}"
            self._error = EpisodeError(why, reason=error.reason) if isinstance(error, EpisodeError) else error
        self.leave()
        if seat is self.first:
            for task in self._tasks.values():
                task.cancel()
            for other in self._others.values():
                if other.failure is None:
                    Episode._end_failed(other, getattr(self._error, "reason", "user"), str(self._error))

    async def finish(self, reason: str) -> None:
        """Waits for the others once the first episode has ended, and adds them to its record."""
        for name, task in self._tasks.items():
            if name not in self._waiting and not self._others[name].is_ending:
                task.cancel()  # nobody reads what it is about to say
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        for other in self._others.values():
            if not other.is_ended and self._error is None:
                await other.truncate(reason)
        if isinstance(self._error, EpisodeError):
            self.first._end_failed(self._error.reason, str(self._error))
        elif self._error is not None:
            raise self._error
        else:
            self.first._trajectory = replace(self.first.trajectory, others=self.ended)

    async def aclose(self) -> None:
        """Ends what the others still do."""
        await cancel_all(*self._tasks.values())
