"""One episode whose tools somebody else's loop calls, one by one or at once; its transcript is scored once."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlenv._base.bounded import size
from rlenv.calls.taped import not_run
from rlenv.dialects.base import result_messages
from rlenv.endpoints.account import UnreadableAnswer, read_chat
from rlenv.episodes.environment import Environment, sound_call
from rlenv.episodes.tools import end_of
from rlenv.errors import EpisodeError, UsageError, told_as
from rlenv.messages import MalformedCall, Message, ToolCall, ToolResult
from rlenv.trajectory import Trajectory

_MOST_CALLS = 10_000
_MOST_CHARS = 32_000_000
_OVER = "Not run: the episode is over."
_STOPPED = "Stopped by the caller before it had ended."


class ToolSession:
    """An episode for a loop that calls single tools, as an MCP client or another framework's agent does.

        async with rlenv.ToolSession(environment, task=3) as session:
            result = await session.call("calculate", {"expression": "6 * 7"})  # result.text is what the model reads
            trajectory = await session.finish("<answer>42</answer>")

    Calls run at once, unless a tool of the spec mutates: then one after another. Each counts for `limits.tool_calls`.
    `finish` makes turns of the loop's transcript, with the results that its calls had, and scores them as if they had
    been played by `Episode.step`, each when its calls were made. A tool knows each call as a turn of its own. What
    infrastructure does to a call ends the episode with an invalid reward, and the loop reads that it is over. So it
    is, and is scored, behind 10,000 calls or 32 MB of arguments, since all are kept until the end.

    Args:
        task: the row's index in the split, or a row of its own.
        split: by default the first of the spec.
        seed: of the episode; see `Environment.start`.

    Attributes:
        episode: the episode; its `messages` are the prompt.
        covered: how many messages of the transcript were scored; behind the episode's end none is.

    Raises:
        UsageError: no such split or row, or the spec has a simulated user, whom a transcript cannot ask.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        task: int | Mapping[str, Any] = 0,
        split: str | None = None,
        seed: int | None = None,
    ) -> None:
        if environment.parts.simulated is not None:
            raise UsageError("a session of tools has no simulated user", hint="play the spec by environment.start()")
        self._environment = environment
        self._made: list[_Made] = []
        self._is_over = False
        self._chars = self.covered = 0
        mutates = any(tool.mutates for tool in environment.parts.tools.values())
        self._alone = asyncio.Lock() if mutates else None
        self.episode = environment.start(task=task, split=split, seed=seed)

    async def __aenter__(self) -> ToolSession:
        await self.open()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Opens the episode; one that fails over it has ended on return."""
        await self.episode.open()

    async def aclose(self) -> None:
        """Closes the episode; may be called twice."""
        await self.episode.aclose()

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools as JSON schemas, in OpenAI's form."""
        return self.episode.tool_schemas

    @property
    def is_over(self) -> bool:
        """True once no call is run any more: one has ended the episode, or it has ended otherwise."""
        return self._is_over or self.episode.is_ending

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, *, id: str | None = None) -> ToolResult:
        """The result of a call, its text and images as the model sees them; never raises for what a model wrote.

        Args:
            id: the loop's own, by which its transcript is read; equal calls are told apart by it.

        Raises:
            UsageError: the session is not open.
        """
        if not self.episode.is_open:
            raise UsageError("the session is not open", hint="use `async with rlenv.ToolSession(...) as session`")
        call = sound_call(ToolCall(name, arguments, id))  # type: ignore[arg-type]  # None becomes {} there
        name = call.name or ""
        self._chars += size(arguments, _MOST_CHARS)
        self._is_over = self._is_over or self._chars > _MOST_CHARS or len(self._made) >= _MOST_CALLS
        async with AsyncExitStack() as stack:
            if self._alone is not None:
                await stack.enter_async_context(self._alone)
            episode, environment = self.episode, self._environment
            if episode.is_ending or self._is_over:
                return not_run((call,), _OVER)[0]
            at = len(self._made)  # its place in the order is that of its beginning
            stopped = ToolResult(name, _STOPPED, "timeout", call_id=id, reason="late", whose="unclear")
            self._made.append(_Made(call, stopped, episode.now()))
            try:
                deadline = episode.tools.begun + episode.limits.episode_s
                (result,) = await episode.tools.run((call,), turn=at, deadline=deadline)
            except EpisodeError as error:
                episode.fail(error.reason, str(error))
                return not_run((call,), _OVER)[0]
            self._made[at].result = result
            self._is_over = self._is_over or bool(end_of((result,))[1])
            keeps = environment.keeps_images
            (shown,) = result_messages((result,), environment.show, episode.cut, episode.task, at, images=keeps)
            return replace(result, text=shown.content, images=shown.images)

    async def finish(self, transcript: str | Sequence[Message | Mapping[str, Any]]) -> Trajectory:
        """Scores the episode.

        Args:
            transcript: the conversation behind the prompt, as messages or as OpenAI's mappings, of which those of the
                assistant count; or the last message's text alone. Calls that are missing in it are a turn of their own
                before the last message.

        A transcript without an end, whose last message has calls, ends the episode as truncated (`host`).

        Raises:
            UsageError: the transcript is no list of messages.
        """
        episode = self.episode
        said = [Message("assistant", transcript)] if isinstance(transcript, str) else _assistant_messages(transcript)
        if not episode.is_ended:
            turns, left = await self._pair(said)
            if left:
                turns.insert(len(turns) - bool(said), (Message("assistant", "", tuple(one.call for one in left)), left))
            ended, taken = episode.now(), episode.tools.begun
            for index, (message, made) in enumerate(turns):
                episode.tools.answered = [one.result if one else None for one in made]
                # What the loop took its time for behind a turn does not undo it; its last word comes when it ends.
                taken = min((one.begun for one in made if one), default=ended if index == len(turns) - 1 else taken)
                episode.now = partial(float, taken)
                self.covered += made is not left
                if (await episode.step(message)).is_last:
                    break
            else:
                await episode.truncate("host")
        await self.aclose()
        return episode.trajectory

    async def _pair(self, said: Sequence[Message]) -> tuple[list[tuple[Message, Sequence[_Made | None]]], list[_Made]]:
        """Each message with what was made of its calls (None for one that was not run), and the calls of no message."""
        pile = Pile((call.id, asked_by(call)) for call in (one.call for one in self._made))
        turns: list[tuple[Message, Sequence[_Made | None]]] = []
        for message in said:
            made: list[_Made | None] = []
            for call in (await self.episode.read(message))[1].calls:  # its text may hold them too
                at = pile.take(call.id, asked_by(call))
                made.append(None if at is None else self._made[at])
            turns.append((message, made))
        return turns, [one for at, one in enumerate(self._made) if at not in pile.gone]


class Pile:
    """The places of calls by what they may be asked for by; None is nothing. Each is taken once, the first first.

    However many there are, each is looked at a few times: a policy writes a thousand calls in a message.
    """

    def __init__(self, calls: Iterable[tuple[Hashable, ...]]) -> None:
        self.gone = set[int]()
        self._places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for at, names in enumerate(calls):
            for name in names:
                self._places[name].append(at)

    def take(self, *names: Hashable) -> int | None:
        """The place of the first call that is left under the first of the names that has one."""
        for name in names:
            places = self._places.get(name, ()) if name is not None else ()
            while places:
                if (at := places.popleft()) not in self.gone:
                    self.gone.add(at)
                    return at
        return None


def asked_by(call: ToolCall | MalformedCall) -> Hashable:
    """A key that is equal for calls that ask the same: name, and arguments in any order (1 is 1.0)."""
    return (call.name or "", _freeze(call.arguments) if isinstance(call, ToolCall) else None)


def _freeze(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return frozenset((key, _freeze(held)) for key, held in value.items())
    if isinstance(value, int) and abs(value) >= 1 << 53:  # hashes of large integers are equal by design, not of texts
        return int, hex(value)
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


@dataclass(slots=True)
class _Made:
    """A call that the loop made. `begun` is on the clock of the episode."""

    call: ToolCall | MalformedCall
    result: ToolResult | None
    begun: float


def _assistant_messages(transcript: Sequence[Message | Mapping[str, Any]]) -> list[Message]:
    """The assistant's messages of a transcript."""
    messages = []
    for index, one in enumerate(transcript):
        if isinstance(one, Message):
            messages += [one] if one.role == "assistant" else []
        elif not isinstance(one, Mapping):
            raise UsageError(f"message {index} of the transcript is {type(one).__name__}; expected a mapping")
        elif one.get("role") == "assistant":
            with told_as(UsageError, f"message {index} of the transcript cannot be read:", UnreadableAnswer):
                messages.append(read_chat({"choices": [{"message": dict(one)}]}).message)
    return messages
