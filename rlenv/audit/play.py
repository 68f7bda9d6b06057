"""Plays what adversaries have written, with tools as they are, with changed results or with faults put in."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from rlenv.audit.report import Hole
from rlenv.audit.subject import Action, AuditSubject
from rlenv.calls.executor import Executor
from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import gather_all
from rlenv.errors import EpisodeError
from rlenv.language.spec import FaultsSpec
from rlenv.messages import MalformedCall, Message, ToolCall, ToolResult
from rlenv.policies.scripted import resume_with
from rlenv.tools.base import Tool, ToolContext, policy_of
from rlenv.trajectory import Trajectory, Turn


@dataclasses.dataclass(slots=True)
class Planting:
    """Puts `text` before what every call gives, however it ended; a value that is text gets it too."""

    text: str
    succeeded: int = 0
    """Calls that went well, so that the text stood in what a tool gave."""

    def change_result(self, result: ToolResult) -> ToolResult:
        """The result with the text in it."""
        self.succeeded += result.outcome == "ok"
        value = f"{self.text}\n{result.value}" if isinstance(result.value, str) else result.value
        return dataclasses.replace(result, text=f"{self.text}\n{result.text}", value=value)


@dataclasses.dataclass(slots=True)
class Muting:
    """Takes out of what every call gives the texts that were `marked`, where a call says back what it was told."""

    BEGINS: ClassVar = "zqx-begins"
    ENDS: ClassVar = "zqx-ends"
    muted: int = 0
    """Results that held such a text."""

    @classmethod
    def mark(cls, text: str) -> str:
        """The text between marks that no tool knows."""
        return f"{cls.BEGINS}\n{text}\n{cls.ENDS}"

    def change_result(self, result: ToolResult) -> ToolResult:
        """The result without such texts; one that was cut in the middle goes to its end."""
        self.muted += self.BEGINS in result.text
        return dataclasses.replace(result, text=self._strip_marked(result.text), value=self._strip_marked(result.value))

    def _strip_marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(rf"{self.BEGINS}.*?(?:{self.ENDS}|\Z)", "", value, flags=re.DOTALL)
        if isinstance(value, Mapping):
            return {key: self._strip_marked(part) for key, part in value.items()}
        return [self._strip_marked(part) for part in value] if isinstance(value, (list, tuple)) else value


class _PlantingExecutor:
    """An executor of whose results those of a policy's calls are changed."""

    def __init__(self, inner: Executor, planting: Planting | Muting) -> None:
        self.inner = inner
        self.planting = planting

    async def run(self, calls: Sequence[ToolCall | MalformedCall], context: ToolContext) -> tuple[ToolResult, ...]:
        results = await self.inner.run(calls, context)
        if context.turn < 0:  # a reward's own call
            return results
        return tuple(self.planting.change_result(result) for result in results)

    def with_tools(self, tools: Mapping[str, Tool], *others: Executor) -> _PlantingExecutor:
        return _PlantingExecutor(self.inner.with_tools(tools, *others), self.planting)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@contextmanager
def planted(environment: Environment, planting: Planting | Muting) -> Iterator[None]:
    """While entered, what the calls of episodes of `environment` give has a text planted in it, or taken out."""
    tools, inner = environment.parts.tools, environment.executor
    environment.use_tools(tools, cast(Executor, _PlantingExecutor(inner, planting)))
    try:
        yield
    finally:
        environment.use_tools(tools, inner)


@contextmanager
def failing_calls(environment: Environment, share: float, *, seed: int) -> Iterator[None]:
    """While entered, so many of the calls fail, as with `calls.faults: {error: SHARE}`, and by the same code.

    It takes the place of the faults that the spec asks for itself. A tool with retries is tried again.
    """
    calls, inner, own = environment.spec.calls, environment.executor, environment.parts.tools
    faults = FaultsSpec(error=share, seed=seed)

    def with_faults(tool: Tool) -> Tool:
        policy = tool.policy or policy_of(calls, idempotent=tool.idempotent, mutates=tool.mutates)
        return dataclasses.replace(tool, policy=dataclasses.replace(policy, faults=faults))

    tools = {name: with_faults(tool) for name, tool in own.items()}
    environment.use_tools(tools, Executor(tools, calls=calls), of_rows=with_faults)
    try:
        yield
    finally:
        environment.executor.close()
        environment.use_tools(own, inner)


Key = tuple[str, int]
Way = dict[Key, Trajectory]
"""What one rule got, by split and task."""

Results = Sequence[ToolResult]
Adaptive = Generator[Action, Results, None]
"""Actions that are chosen by what the calls of the last one gave."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A place that shows golds, the rule that finds them there, and what it takes on each task (by its number)."""

    where: str
    rule: str
    taken: Mapping[int, str]
    hits: int


@dataclass(slots=True)
class Chapter:
    """The results of adversaries on one split, each way on its own."""

    split: str
    golds: Mapping[Key, Trajectory]
    answers: int
    """How many different answers the oracle gives."""
    hearts: Mapping[Key, str] = field(default_factory=dict)
    """What of each answer the reward compares, as far as that can be told; by split and task."""
    ways: dict[str, list[Way]] = field(default_factory=dict)
    """By the adversary's name."""
    controls: dict[str, list[Way]] = field(default_factory=dict)
    """The same ways without the right answer, of adversaries that earn."""
    worked: Way = field(default_factory=dict)
    """The oracle's actions without its last one, and then no answer: what is done and not what is said."""
    tried: dict[str, list[tuple[Any, Way]]] = field(default_factory=lambda: defaultdict(list))
    """By the name of what is tried (`verdicts.TRIED`): on or with what, and what came of it."""
    only_said: Way = field(default_factory=dict)
    """The oracle's last action without what it does before."""
    unsteady: dict[str, Hole] = field(default_factory=dict)
    """By the term that gives equal episodes other values."""
    channels: list[Hole] = field(default_factory=list)
    """What one episode tells another."""
    constants: list[tuple[str, Way]] = field(default_factory=list)
    choices: list[Way] = field(default_factory=list)
    """The first option of each task, its second, and so on."""

    def all_ways(self, name: str) -> list[Way]:
        """The ways of an adversary by its name."""
        others = [way for _, way in (self.constants if name == "constant_answer" else self.tried.get(name, []))]
        others += [way for _, way in self.tried.get("told", [])] if name == "talk" else []
        return [way for way in self.ways.get(name, others) if way]


class ScriptPlayer:
    """Plays scripts on tasks, so many at once; `seen` is told of each episode that has ended."""

    def __init__(self, environment: Environment, *, concurrency: int, seen: Callable[[Trajectory], None]):
        self.environment = environment
        self._places = asyncio.Semaphore(concurrency)
        self._seen = seen
        self._played: dict[tuple[Key, tuple[str, ...]], Trajectory] = {}

    async def way(
        self, subjects: Sequence[AuditSubject], write: Callable[[AuditSubject], Iterable[Action] | Adaptive]
    ) -> Way:
        """One rule on these tasks; those for which it writes nothing are left out."""
        scripts = [(subject, write(subject)) for subject in subjects]
        played = [(subject, script) for subject, script in scripts if script or not isinstance(script, (list, tuple))]
        ended = await gather_all([self._play_once(subject, script) for subject, script in played])
        keys = [(subject.gold.split, subject.gold.task_index) for subject, _ in played]
        return dict(zip(keys, ended, strict=True))

    async def _play_once(self, subject: AuditSubject, script: Iterable[Action] | Adaptive) -> Trajectory:
        """An episode; where the same was done on the same task before, what that gave: equal seeds play equally."""
        if not isinstance(script, (list, tuple)):
            return await self.play(subject.gold, script)
        key = ((subject.gold.split, subject.gold.task_index), tuple(map(subject.text_of, script)))
        if key not in self._played:
            self._played[key] = await self.play(subject.gold, script)
        return self._played[key]

    async def play(self, gold: Trajectory, script: Iterable[Action] | Adaptive, *, more: int = 0) -> Trajectory:
        """One episode, with a seed that is so much more; one that the script does not end is truncated behind it."""
        environment = self.environment
        async with (
            self._places,
            environment.start(task=gold.task_index, split=gold.split, seed=gold.seed + more) as episode,
        ):
            try:
                actions = _as_generator(script)
                action = next(actions, None)
                while action is not None and not episode.is_ended:
                    # As text, so that the dialect reads what an adversary would have had to write.
                    render = environment.parts.dialect.render_action
                    await episode.step(render(action) if isinstance(action, Message) else action)
                    action = resume_with(actions, _answer_to_action(episode.turns[-1]) if episode.turns else ())
                ended = episode.trajectory if episode.is_ended else await episode.truncate("script")
            except EpisodeError as error:
                ended = episode.fail(error.reason, str(error))
        self._seen(ended)
        return ended


def _as_generator(script: Iterable[Action] | Adaptive) -> Adaptive:
    if isinstance(script, Generator):
        return script

    def iterate() -> Adaptive:
        for action in script:  # noqa: UP028  # a list takes nothing that is sent to it
            yield action

    return iterate()


def _answer_to_action(turn: Turn) -> Results:
    """The answer to an action: its calls' results, or a user's reply as a result of its own."""
    if turn.results or turn.observation is None:
        return turn.results
    said = "\n".join(message.content for message in turn.observation.messages if message.role == "user")
    return (ToolResult("user", said, "ok"),)


def total_of(ended: Trajectory) -> float:
    """The reward of an episode, 0 where it is masked."""
    return ended.reward.total or 0.0


def script_of(
    made: Mapping[int, Mapping[Any, Sequence[Action] | Adaptive]], way: Any, subject: AuditSubject
) -> Sequence[Action] | Adaptive:
    """What was written for a task under the name of a way; () for nothing."""
    return made[subject.gold.task_index].get(way, ())
