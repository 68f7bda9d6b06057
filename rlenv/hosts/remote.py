"""An environment that a server plays: `rlenv serve` at one end, every policy, trainer and host of rlenv at the other.

The server's card makes a spec of what a driver reads (dialect, limits, answer, terms), and the episode is asked step
by step. What stays with the driver: token ids, the chat template, cuts by tokens. What never comes: rows, gold, oracle.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import aiohttp
import orjson

from rlenv._base.bounded import adapter_of
from rlenv.calls.executor import Executor
from rlenv.calls.toolsets import ToolSet
from rlenv.concurrency.threads import run_sync
from rlenv.dialects.base import Cut, told_of_cut, without_note
from rlenv.episodes.environment import MAX_ACTION, Environment
from rlenv.episodes.episode import Episode
from rlenv.errors import EpisodeError, SpecError, UsageError, told_as
from rlenv.hosts import wire
from rlenv.hosts.link import REASON, Door, RemoteLink, Socket
from rlenv.language.document import read_source
from rlenv.language.expressions import EpisodeLimits
from rlenv.language.loader import LoadedSpec, loaded_of
from rlenv.messages import Message, Observation, Sampled
from rlenv.tasks.rows import Tasks, load_tasks
from rlenv.tools.base import Tool
from rlenv.trajectory import Failure, RewardBreakdown, Step, Trajectory, Turn

VARIABLE: Final = "RLENV_TOKEN"


class RemoteEnvironment(Environment):
    """The environment of a server, played as one of this process: `rollout`, `TokenEpisode`, veRL's loop, Gymnasium.

        environment = rlenv.RemoteEnvironment("http://10.0.0.7:8000", token=os.environ["TOKEN"])
        played = await rlenv.rollout(environment, policy, [rlenv.Job("train", 3)])

    A server that is full or is being started again is asked again, with growing waits, for `patience_s` seconds. One
    that dies in an episode fails that episode (`remote`): its reward is invalid, its sample masked, nothing else.
    Records have the messages, turns, terms and rewards, without evidence and what was asked of models; and rows where
    the spec is here too, without which an episode can be neither replayed nor scored again.

    Args:
        url: of the server, or of one of its environments (`http://HOST:PORT/env/NAME`).
        spec: the environment that the server plays, as it is here; a loaded spec need not compile here.
        token: sent as `Authorization: Bearer`; that of the variable `RLENV_TOKEN` where none is given.
        patience_s: how long an episode waits for a server that is not there, or is full.
        longest_s: the most seconds that the server's limits may give an episode with its reward. One that the server
            holds for longer than they say fails (`remote`).

    Raises:
        UsageError: no such server, none of rlenv, a wrong token, a card that is too long, or limits that are; or it
            serves another state of `spec`.
    """

    def __init__(
        self,
        url: str,
        *,
        spec: Environment | LoadedSpec | None = None,
        token: str | None = None,
        patience_s: float = 600.0,
        longest_s: float = 86_400.0,
    ) -> None:
        self.url = url.rstrip("/")
        token = os.environ.get(VARIABLE, "") if token is None else token
        self.door = Door(self.url, {"Authorization": f"Bearer {token}"} if token else {}, patience_s)
        self.longest_s = longest_s
        self._card = run_sync(self._fetch_card)
        super().__init__(loaded_of(read_source(_PLACE, text=json.dumps(_spec_of(self._card)))))
        self.loaded, self.address = replace(self.loaded, digest=self._card.digest), self.url
        self._here = spec.loaded if isinstance(spec, Environment) else spec
        if self._here is not None and self._here.digest != self._card.digest:
            hint = "serve the same file with the same --set"
            raise UsageError(f"{self.url} serves another state of {self._here.spec.name}", hint=hint)
        if too_long := self.too_long(self.limits):
            raise UsageError(too_long, hint="give longest_s=… where that is meant")
        self.toolsets.all = self._shown_tools(self._card.tools)
        self.has_tools = bool(self.toolsets.all.tools)
        self._idle: dict[asyncio.AbstractEventLoop, list[Socket]] = {}
        self._clients: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    async def _fetch_card(self) -> _Card:
        with told_as(UsageError, f"{self.url} serves no environment of this version of rlenv", ValueError):
            card: _Card = _read(_Card, await self.door.fetched("/card"))
        if not card.rewards or not card.splits:
            raise UsageError(f"{self.url} serves an environment without rewards or tasks")
        return card

    def too_long(self, limits: EpisodeLimits) -> str:
        """Says that limits give an episode more time than `longest_s`; "" where they do not."""
        most_s = limits.episode_s + limits.reward_s
        long = f"an episode may take {most_s:g} s at {self.url}, and longest_s is {self.longest_s:g}"
        return long if most_s > self.longest_s else ""

    def _shown_tools(self, schemas: Sequence[_Schema]) -> ToolSet:
        """Tools that only show their schemas: calls are the server's."""
        made = {
            one.name: Tool(
                name=one.name, description=one.description, parameters=one.parameters, run=_refuse_call, mode="inline"
            )
            for one in (schema.function for schema in schemas)
        }
        executor = Executor({}, calls=self.spec.calls)
        return ToolSet(made, executor, executor)

    def tasks(self, split: str) -> Tasks:
        """As many empty rows as the split has tasks: the server keeps what stands in them, unless the spec is here."""
        rows = self._tasks.get(split)
        if rows is None:
            splits = self._card.splits
            if split not in splits:
                raise UsageError(f"no split '{split}' in {self.spec.name}", hint=f"it has {', '.join(splits)}")
            held = splits[split]
            rows = Tasks(lambda index: {}, range(held.size), source=self.url, is_endless=held.is_endless)
            if self._here is not None:
                rows = load_tasks(self._here, split)
            self._tasks[split] = rows
        return rows

    def start(
        self,
        *,
        task: int | Mapping[str, Any] = 0,
        split: str | None = None,
        seed: int | None = None,
        cut: Cut | None = None,
        opening: str | None = None,
        others: Any = None,
    ) -> Episode:
        """A new episode; see `Environment.start`. The opening and other players are the server's.

        Raises:
            UsageError: no such split or task, or a row of one's own.
        """
        if not isinstance(task, int):
            raise UsageError("a server plays the tasks of its own splits", hint="give the task's number")
        split = split if split is not None else next(iter(self._card.splits))
        rows = self.tasks(split)
        row: Mapping[str, Any] = {}
        if not rows.has(task):
            raise UsageError(f"split '{split}' of {self.spec.name} has tasks 0 to {len(rows) - 1}")
        with suppress(SpecError):  # one that cannot be read fails as the server opens it
            row = rows[task]
        # Without a seed the server takes the task's own, and says which.
        episode = _RemoteEpisode(self, row, split, task, 0 if seed is None else seed, cut or self._cut)
        episode.link = RemoteLink(self, seed)
        return episode

    async def connected(self, until: float) -> Socket:
        """A socket without an episode: an idle one, or a new one once the server is there and has a slot.

        Args:
            until: how long the server is waited for, on the clock of `time.monotonic()`.

        Raises:
            EpisodeError: it was not there until then.
        """
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(loop, [])
        while idle:
            if not (socket := idle.pop()).is_closed:
                return socket
        return await self.door.connected(self._client_of(loop), until)

    def put_back(self, socket: Socket) -> None:
        """Keeps a socket for the next episode of its event loop."""
        loop = asyncio.get_running_loop()
        if not socket.is_closed and loop in self._clients:
            self._idle.setdefault(loop, []).append(socket)
            socket.close_later(self._idle[loop])

    def _client_of(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
        client = self._clients.get(loop)
        if client is None or client.closed:
            for gone in [one for one in self._clients if one.is_closed()]:
                del self._clients[gone]
            connector = aiohttp.TCPConnector(limit=0)
            client = self._clients[loop] = aiohttp.ClientSession(headers=self.door.headers, connector=connector)
        return client

    async def aclose(self) -> None:
        """Closes the connections of this event loop; may be called twice."""
        loop = asyncio.get_running_loop()
        for socket in self._idle.pop(loop, []):
            await socket.aclose()
        if (client := self._clients.pop(loop, None)) is not None:
            await client.close()
        await super().aclose()


_PLACE: Final = "remote.yaml"


# What a server says, as it is read: nothing of it is believed.


@dataclass(frozen=True, slots=True)
class _Weighed:
    weight: float
    required: bool


@dataclass(frozen=True, slots=True)
class _Rows:
    size: int
    is_endless: bool


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Schema:
    function: _Function


@dataclass(frozen=True, slots=True)
class _Card:
    """`rlenv.hosts.wire.card_of`, as a client reads it."""

    spec: dict[str, Any]
    rewards: dict[str, _Weighed]
    splits: dict[str, _Rows]
    tools: list[_Schema]
    digest: str


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an episode."""

    reason: str
    success: bool | None
    failure: Failure | None
    terminated: bool
    truncated: bool
    answer: str | None
    reward: RewardBreakdown


def _refuse_call(arguments: Any, context: Any) -> Any:
    raise AssertionError("the tools of a remote environment are called by its server")


def _spec_of(card: _Card) -> dict[str, Any]:
    """The spec of a card: what drivers read, with terms that no episode measures here."""
    term = {"kind": "rule", "rule": "exact_match", "expect": ""}
    rewards = {name: {**term, "weight": held.weight, "required": held.required} for name, held in card.rewards.items()}
    empty: list[dict[str, Any]] = [{}]
    splits = {split: {"rows": empty} for split in card.splits}
    success = f"{next(iter(rewards))} >= 1"
    return {
        "rlenv": 1, **card.spec, "tasks": splits, "prompt": {"user": ""}, "rewards": rewards, "success": success
    }  # fmt: skip


class _RemoteEpisode(Episode):
    """An episode whose calls, user and reward are the server's; see `Episode` for what its driver may rely on."""

    link: RemoteLink
    _prompt_text = ""

    async def open(self) -> None:
        """Opens the episode at the server; one that cannot be opened has ended on return."""
        if self._is_open:
            raise UsageError("the episode is open already", hint="start a new one with environment.start()")
        self._is_open = True
        self._started = self.tools.begun = time.monotonic()
        try:
            data = await self.link.reset(self, counts_tokens=not self.environment.is_text_only(self.cut))
            meta, ours = data["metadata"], data["metadata"][wire.OURS]
            self._started = self.tools.begun = time.monotonic()  # the wait for a slot is no part of it
            seed = _read(int, meta["seed"])
            if (meta["split"], meta["task"]) != (self.split, self.task_index) or self.link.seed not in (None, seed):
                raise ValueError("it is of another episode")
            if ours["digest"] != self._remote.loaded.digest:
                raise ValueError("the server was started again with another state of its spec; connect to it anew")
            self.seed, self._prompt_text = seed, _read(str, ours["text"])
            self.messages = tuple(_read(Message, one) for one in ours["prompt"])
            self.limits = _read(EpisodeLimits, ours["limits"])
            if too_long := self._remote.too_long(self.limits):
                raise ValueError(too_long)
            if ours["tools"] != list(self.environment.tool_schemas):
                self.tools.toolset = self.tools.first = self._remote._shown_tools(_read(list[_Schema], ours["tools"]))
            if _read(bool, data["done"]):
                self._end_as(meta)
        except (KeyError, TypeError, ValueError) as error:
            self._end_failed(REASON, f"the server's answer cannot be read: {type(error).__name__}: {error}")
        except EpisodeError as error:
            self._end_failed(error.reason, str(error))

    async def aclose(self) -> None:
        """Gives the connection back; may be called twice."""
        await self.link.aclose(is_whole=self._is_ended_there)

    @property
    def prompt_text(self) -> str:
        """The prompt as a policy of raw text sees it, as the server's dialect writes it."""
        return self._prompt_text

    @property
    def _remote(self) -> RemoteEnvironment:
        return self.link.environment

    _is_ended_there = False

    async def _step(self, action: str | Message) -> Step:
        begun = self.now()
        self._sampled = sampled = Sampled(action, self._sampled.finish_reason, self._sampled.token_ids)
        data = await self.link.ask("step", wire.action_data(sampled), self)
        return self._step_of(data, begun)

    def _step_of(self, data: Mapping[str, Any], begun: float) -> Step:
        """The step that an answer of the server's says, with its turn in the record."""
        try:
            meta, reward, is_last = data["metadata"], _read(float | None, data["reward"]), _read(bool, data["done"])
            ours = meta[wire.OURS]
            if (reward is None) != (is_last and meta["failure"] is not None):
                raise ValueError("a reward is a number, unless the episode has failed")
            turn = _read(Turn | None, ours["turn"])
            if turn is not None and turn.index == len(self.turns):
                self._take_turn(turn, _read(str, ours["text"]), begun)
            elif not is_last or (turn is not None and turn.index != len(self.turns) - 1):
                raise ValueError("it is of another turn")
            observation = self.turns[-1].observation if self.turns else None
            if not is_last:
                return Step(observation or Observation(), reward)
            self._end_as(meta)
            return Step.last(self.trajectory, reward=reward, observation=observation or Observation())
        except (KeyError, TypeError, ValueError) as error:
            raise EpisodeError(f"the server's answer cannot be read: {error}", reason=REASON) from error

    def _take_turn(self, turn: Turn, text: str, begun: float) -> None:
        observation = turn.observation
        if observation is not None:
            messages = tuple(self._cut_message(message) for message in observation.messages)
            observation = Observation(messages, text, turn.results)
        sampled, seconds = self._sampled, self.now() - begun
        # The wire has no lone surrogates; the record keeps what the policy wrote.
        action = sampled.action[:MAX_ACTION] if isinstance(sampled.action, str) else turn.action
        own: dict[str, Any] = {"action": action, "token_ids": sampled.token_ids, "seconds": seconds}
        turn = replace(turn, observation=observation, started=begun - self._started, **own)
        self.turns.append(turn)

    def _cut_message(self, message: Message) -> Message:
        """A message cut as its driver measures; the server has cut it by characters."""
        if self.environment.is_text_only(self.cut):
            return message
        bare = without_note(message.content)
        cut = replace(message, content=self.cut(bare))
        return cut if bare == message.content else told_of_cut([cut])[0]

    def _end_as(self, meta: Mapping[str, Any]) -> None:
        told = {key: meta[key] for key in ("reason", "success", "failure")}
        end: _End = _read(_End, {**told, **meta[wire.OURS]["end"]})
        if (end.failure is None) == (end.reward.total is None):
            raise ValueError("a reward is valid, or it has failed")
        self._is_ended_there = True
        record = self.record(answer=end.answer)
        if end.failure is not None:
            failed = Trajectory.failed(failure=end.failure, reward=end.reward, **record)
            self._trajectory = replace(failed, reason=end.reason)
            return
        self._trajectory = Trajectory.ended(
            record, terminated=end.terminated, reason=end.reason, reward=end.reward, success=end.success
        )

    async def truncate(self, reason: str, *, action: str | Message | Sampled | None = None) -> Trajectory:
        """Ends the episode from outside; the server scores it as it stands. See `Episode.truncate`."""
        if self._trajectory is None:
            if isinstance(action, Sampled):
                self._sampled = action
            data: dict[str, Any] = {"reason": reason, "turns": len(self.turns)}
            data |= {} if action is None else {"action": wire.action_data(action)}
            try:
                self._step_of(await self.link.ask("end", data, self), self.now())
            except EpisodeError as error:
                self._end_failed(error.reason, str(error))
        return self.trajectory


def _read(kind: Any, value: Any) -> Any:
    """A value of the wire as its type; raises ValueError where it is of another. JSON has no number but finite ones."""
    return adapter_of(kind).validate_json(orjson.dumps(value), strict=True)
