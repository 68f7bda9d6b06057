"""The hostile policy, model, server and tool, and the check that an environment stands up to them.

check_hostile(spec)      attacks an environment with a hostile policy and states what gave way
HostilePolicy            the policy: actions that hang, fill, void, mask and forge, made for the spec's tools
HostileEndpoint          a model server for `endpoints:`, in the OpenAI wire format
HostileMcpServer         an MCP server for `tools: kind: mcp`, over stdio or HTTP
hostile_tool             a Python tool for `tools: kind: python`
hostile_actions          texts for any parser, without an environment

An MCP server that misbehaves, to be put into a spec: over stdio, or over HTTP on loopback.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rlenv.episodes.environment import Environment
from rlenv.episodes.rollout import Job, drive, play
from rlenv.messages import ParsedAction
from rlenv.policies.base import Policy, PolicyContext, PolicySession
from rlenv.runs import files as record
from rlenv.testing import hostile_mcp_server
from rlenv.testing.endpoint import HostileEndpoint
from rlenv.testing.hostile_mcp_server import HTTP_MODES, LISTING, MODES
from rlenv.testing.hostile_policy import HostileAction, HostilePolicy, HostileSession, hostile_actions
from rlenv.testing.hostile_tool import hostile_tool
from rlenv.testing.laws import environment_of
from rlenv.trajectory import Trajectory

__all__ = ["HTTP_MODES", "LISTING", "MODES", "HostileAction", "HostileEndpoint", "HostileMcpServer", "HostilePolicy"]
__all__ += ["HostileReport", "attack", "check_hostile", "hostile_actions", "hostile_tool"]


class HostileMcpServer:
    """A hostile server to put into a spec; what it does is in `rlenv.testing.hostile_mcp_server`.

    Over stdio, give its `command`; over HTTP, enter it and give its `url`:

        server = {"kind": "mcp", "command": HostileMcpServer("garbage").command}
        check_hostile("env.yaml", set={"tools.odd": server})

        with HostileMcpServer("gzip bomb") as server:
            check_hostile("env.yaml", set={"tools.odd": {"kind": "mcp", "url": server.url}})

    Args:
        mode: a name of MODES, LISTING or (over HTTP) HTTP_MODES, or `any`.
    """

    def __init__(self, mode: str = "any") -> None:
        known = {"any", *MODES, *LISTING, *HTTP_MODES}
        if mode not in known:
            raise ValueError(f"mode: found '{mode}'; expected one of {', '.join(sorted(known))}")
        self.mode = mode
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def command(self) -> list[str]:
        """The server's command line over stdio."""
        return [sys.executable, "-B", str(Path(hostile_mcp_server.__file__).resolve()), self.mode]

    @property
    def url(self) -> str:
        """The server's address over HTTP."""
        assert self._port, "use `with HostileMcpServer(...) as server`"
        return f"http://127.0.0.1:{self._port}/mcp"

    def __enter__(self) -> HostileMcpServer:
        command = [*self.command, "--http", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._port = 0


_NOTED_S: Final = 0.02  # shorter passes of the loop are nobody's stall
_KEPT: Final = 8
# A call without a turn in its time says how busy the machine is; whether it is held against anybody, the reward says.
_SLOW: Final = frozenset({"busy", "late", "stalled"})


@dataclass(frozen=True, slots=True)
class HostileReport:
    """The outcome of an attack.

    `stall_s` is the longest pass of the event loop in CPU seconds of its thread; `stalls` are the longest ones with
    the actions that were in flight, worst first. `growth_mb` is how far the process's memory rose above what it held
    before. `record_mb` is the largest record of an episode, its policy's own words left out. `invalid` names each
    hostile episode without a reward with the action it had given last, `raised` each exception that left an
    environment, `disturbed` each honest episode that did not earn what it earns alone. `rewarded` counts hostile
    episodes that were a success, which is right where they found an answer. `ends` counts how episodes ended.
    """

    spec: str
    actions: int
    episodes: int
    honest: int
    stall_s: float
    growth_mb: float
    record_mb: float
    rewarded: int
    stalls: Sequence[tuple[float, str]] = ()
    invalid: Sequence[str] = ()
    raised: Sequence[str] = ()
    disturbed: Sequence[str] = ()
    ends: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def faults(self, *, stall_s: float = 0.1, growth_mb: float = 256.0, record_mb: float = 4.0) -> list[str]:
        """The laws that are broken, each with its evidence; none where the environment held."""
        found = []
        if self.stall_s > stall_s:
            seen = "\n    ".join(f"{taken * 1e3:.0f} ms: {what}" for taken, what in self.stalls[:3])
            found.append(f"law: no action holds the loop for more than {stall_s * 1e3:g} ms of CPU time\n    {seen}")
        if self.growth_mb > growth_mb:
            found.append(f"law: memory grows by at most {growth_mb:g} MB; found {self.growth_mb:.0f} MB")
        if self.record_mb > record_mb:
            found.append(f"law: an episode's record holds at most {record_mb:g} MB; found {self.record_mb:.1f} MB")
        for law, seen_ in (
            ("no action makes its own reward invalid", self.invalid),
            ("no action raises out of the environment", self.raised),
            ("no action touches another episode", self.disturbed),
        ):
            if seen_:
                found.append(f"law: {law}; found {len(seen_)}\n    " + "\n    ".join(seen_[:5]))
        return found


def check_hostile(
    spec: str | Path | Environment,
    *,
    actions: int = 1_000,
    seed: int = 0,
    set: Mapping[str, Any] | None = None,
    policy: Callable[[Environment], Policy] | None = None,
    split: str | None = None,
    at_once: int = 4,
    stall_s: float = 0.1,
    growth_mb: float = 256.0,
    record_mb: float = 4.0,
) -> HostileReport:
    """Attacks an environment with `actions` hostile actions; a law that is broken is an AssertionError that states it.

    No action holds the loop longer than `stall_s` of CPU time, memory grows by at most `growth_mb`, no reward of a
    hostile episode is invalid, nothing raises, no record is larger than `record_mb` beyond the policy's own words,
    and the oracle's episodes beside earn what they earn alone. Call it outside of an event loop: it runs one of its
    own, whose passes it measures.

    Args:
        spec: a spec's file or name, or an environment, which is closed at the end.
        set: values that replace keys of the spec; shorter time limits make an attack shorter.
        policy: what attacks; a HostilePolicy with `seed` by default.
        split: whose tasks are played; the first split by default.

    Raises:
        AssertionError: with every law that is broken and the actions that broke it.
    """
    environment = environment_of(spec, set=set)
    attacker = policy(environment) if policy is not None else HostilePolicy(environment, seed=seed)
    beside = environment.oracle() if environment.spec.oracle else None
    report = attack(environment, attacker, beside, actions=actions, seed=seed, split=split, at_once=at_once)
    faults = report.faults(stall_s=stall_s, growth_mb=growth_mb, record_mb=record_mb)
    assert not faults, f"{report.spec} gave way under {report.actions} hostile actions\n" + "\n".join(faults)
    return report


def attack(
    environment: Environment,
    attacker: Policy,
    beside: Policy | None = None,
    *,
    actions: int = 1_000,
    seed: int = 0,
    split: str | None = None,
    at_once: int = 4,
) -> HostileReport:
    """Plays hostile episodes and honest ones beside them until `actions` are given, and closes the environment."""
    meter = _Meter()
    siege = _Siege(environment, attacker, beside, meter, actions, seed, split or next(iter(environment.spec.tasks)))
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(meter)) as runner:
        return runner.run(siege.run(at_once))


class _Meter(selectors.DefaultSelector):
    """Measures each pass of the loop that waits on it: the CPU time of its thread between two waits."""

    def __init__(self) -> None:
        super().__init__()
        self.on_pass: Callable[[float], None] | None = None
        self._began = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        if self.on_pass is not None:
            self.on_pass(time.thread_time() - self._began)
        ready = super().select(timeout)
        self._began = time.thread_time()
        return ready


@dataclass(slots=True, eq=False)
class _Kept:
    """A policy of one episode that remembers its session, so that what it did last can be named."""

    policy: Policy
    seed: int
    session: PolicySession | None = None
    acted: int = 0
    name: str = "hostile"

    def start(self, context: PolicyContext) -> PolicySession:
        self.session = self.policy.start(context)
        return self

    async def act(self, messages: Sequence[Any]) -> Any:
        assert self.session is not None
        self.acted += 1
        return await self.session.act(messages)

    async def aclose(self) -> None: ...

    def __str__(self) -> str:
        last = self.session.last if isinstance(self.session, HostileSession) else None
        return f"seed {self.seed}, action {self.acted}: {last if last is not None else type(self.session).__name__}"


class _Siege:
    def __init__(
        self,
        environment: Environment,
        attacker: Policy,
        beside: Policy | None,
        meter: _Meter,
        actions: int,
        seed: int,
        split: str,
    ) -> None:
        self.environment, self.attacker, self.beside, self.meter = environment, attacker, beside, meter
        self.actions, self.seed, self.split = actions, seed, split
        self.live: dict[int, _Kept] = {}
        self.was_live = False
        self.stalls: list[tuple[float, str]] = []
        self.worst = 0.0
        self.given = self.episodes = self.honest = self.rewarded = 0
        self.largest = 0.0
        self.invalid: list[str] = []
        self.raised: list[str] = []
        self.disturbed: list[str] = []
        self.ends: Counter[str] = Counter()
        self.alone: dict[int, tuple[Any, ...]] = {}

    async def run(self, at_once: int) -> HostileReport:
        tasks = len(self.environment.tasks(self.split))
        rng = random.Random(self.seed)
        begun = time.monotonic()
        async with self.environment:
            # Imports, workers and indices are paid for by whoever comes first, not by an attack.
            async with self.environment.start(task=0, split=self.split, seed=self.seed) as first:
                await first.step("")
            if self.beside is not None:
                for task in rng.sample(range(tasks), min(tasks, _KEPT)):
                    # Twice: what the first one earns may stand on a worker that is only starting.
                    await self._earned_alone(task)
                    self.alone[task] = await self._earned_alone(task)
            gc.collect()
            gc.freeze()  # what the process held before is not walked through again at an attack's cost
            try:
                before = _memory_mb(starts=True)
                self.meter.on_pass = self._note_pass
                await self._fight_all(at_once, tasks)
                self.meter.on_pass = None
                growth = _memory_mb() - before
            finally:
                gc.unfreeze()
            for task in self.alone:  # nor is anything changed for who comes later
                await self._compare(task)
        self.stalls.sort(key=lambda stall: -stall[0])
        return HostileReport(
            self.environment.spec.name,
            self.given,
            self.episodes,
            self.honest,
            self.worst,
            max(growth, 0.0),
            self.largest,
            self.rewarded,
            self.stalls[:_KEPT],
            self.invalid,
            self.raised,
            self.disturbed,
            dict(self.ends.most_common()),
            time.monotonic() - begun,
        )

    async def _fight_all(self, at_once: int, tasks: int) -> None:
        beside = asyncio.ensure_future(self._stand_beside())
        try:
            seeds = iter(range(self.seed * 1_000_003, 2**62))
            async with asyncio.TaskGroup() as group:
                for place in range(at_once):
                    group.create_task(self._attack_place(place, seeds, tasks))
        finally:
            beside.cancel()
            with suppress(asyncio.CancelledError):
                await beside

    async def _attack_place(self, place: int, seeds: Iterator[int], tasks: int) -> None:
        while self.given < self.actions:
            seed = next(seeds)
            player = self.live[place] = _Kept(self.attacker, seed)
            self.was_live = True
            episode = self.environment.start(task=seed % tasks, split=self.split, seed=seed)
            try:
                async with episode:
                    trajectory = await drive(episode, player, limit_s=episode.limits.episode_s)
            except Exception as error:  # whatever leaves an environment is what is looked for
                self.raised.append(f"{type(error).__name__}: {error!s:.200}; {player}")
                continue
            finally:
                self.given += player.acted
                self.episodes += 1
            await self._judge_record(trajectory, str(player))

    async def _judge_record(self, trajectory: Trajectory, what: str) -> None:
        self.ends[trajectory.reason] += 1
        self.rewarded += bool(trajectory.success)
        if trajectory.reward.total is None:
            failure = trajectory.failure
            self.invalid.append(f"{failure.reason}: {failure.message:.300}; {what}" if failure else what)
        try:
            taken = await asyncio.to_thread(_recorded_mb, trajectory)
        except Exception as error:
            self.raised.append(f"recording: {type(error).__name__}: {error!s:.200}; {what}")
        else:
            self.largest = max(self.largest, taken)

    async def _stand_beside(self) -> None:
        while self.alone:
            for task in self.alone:
                await self._compare(task)
                await asyncio.sleep(0.02)

    async def _compare(self, task: int) -> None:
        self.honest += 1
        earned = await self._earned_alone(task)
        if earned != self.alone[task]:
            self.disturbed.append(f"task {task} earned {earned}, alone {self.alone[task]}; beside {self._players()}")

    async def _earned_alone(self, task: int) -> tuple[Any, ...]:
        assert self.beside is not None
        try:
            trajectory = await play(self.environment, self.beside, Job(self.split, task, self.seed))
        except Exception as error:  # also a way of being disturbed
            return (type(error).__name__, str(error)[:300])
        failure = trajectory.failure.message if trajectory.failure is not None else ""
        failed = tuple(
            f"{result.name}: {result.reason}"
            for turn in trajectory.turns
            for result in turn.results
            if result.is_error and result.reason not in _SLOW
        )
        return (trajectory.reward.total, trajectory.success, trajectory.reason, failure[:300], failed)

    def _note_pass(self, taken: float) -> None:
        was_live, self.was_live = self.was_live, bool(self.live)
        if not (was_live or self.live):  # first imports, honest episodes alone: no action is being taken
            return
        self.worst = max(self.worst, taken)
        if taken > _NOTED_S and (len(self.stalls) < _KEPT or taken > self.stalls[-1][0]):
            self.stalls.append((taken, self._players()))
            self.stalls.sort(key=lambda stall: -stall[0])
            del self.stalls[_KEPT:]

    def _players(self) -> str:
        return " | ".join(str(player) for player in self.live.values())


def _recorded_mb(trajectory: Trajectory) -> float:
    """Megabytes of the episode's line without what the policy itself wrote."""
    mute = ParsedAction("")
    turns = tuple(replace(turn, action="", parsed=mute) for turn in trajectory.turns)
    return len(record.dump(replace(trajectory, turns=turns, answer=None))) / 1e6


def _memory_mb(*, starts: bool = False) -> float:
    """The most megabytes that this process held; with `starts`, what it holds now, and the most is counted anew."""
    if starts:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
