"""The stage of a run that is played: its policy, its folder, its tape, its prices and its budget."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from rlenv.concurrency.lanes import Lane, entered, here, offline
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.players import play_by_chance
from rlenv.errors import RunStopped, UsageError, disk_told
from rlenv.language.spec import SamplingSpec
from rlenv.models import adapter, local_model, local_tokenizer
from rlenv.policies.base import Policy
from rlenv.policies.scripted import Act, FunctionPolicy, RandomPolicy, ScriptPolicy
from rlenv.runs.cassettes import Player, Recorder
from rlenv.runs.events import Reel
from rlenv.runs.folder import STOP, KeptRun, Kind, RunInfo, read_info
from rlenv.runs.locks.files import Say, kept_settings, tree_sha256
from rlenv.runs.locks.lock import FOLDER, Lock, changed_since, lock_of
from rlenv.runs.schema import Facts, Mode
from rlenv.runs.usage import Budget, Prices, as_prices, cost_of, count_spending
from rlenv.runs.writer import RunWriter
from rlenv.secrets import leave_open, logger
from rlenv.trajectory import Trajectory

_EACH_S: Final = 1.0
_T = TypeVar("_T")
log: Final[Say] = logger("rlenv.runs").warning
"""Tells the log what a command tells on standard error."""


@dataclass(slots=True, eq=False, kw_only=True)
class Stage:
    """The folder that a run is kept in, the tape that it is answered from or recorded on, and the limit of its cost.

    Args:
        out: the folder; None keeps nothing.
        record: keep also what tools of this process give. What leaves the process is kept with every episode.
        tape: the recorded run that answers tools and models; with `record` they are asked for what it lacks.
        prices: what tokens cost, or the file that says it.
        say: is told what a person should know while the run is played, line by line.

    Raises:
        UsageError: arguments that do not go together, or a tape that is none.
    """

    kind: Kind
    out: str | Path | None = None
    resume: bool = False
    overwrite: bool = False
    record: bool = False
    tape: str | Path | None = None
    prices: str | Path | Prices | None = None
    max_cost: float | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    say: Say = log
    costs: Prices | None = field(init=False)
    budget: Budget = field(init=False)
    _recorder: Recorder | None = field(init=False)
    _player: Player | None = field(init=False, default=None)
    _flush: Callable[[], None] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.overwrite and self.resume:
            raise UsageError(
                "--resume goes on with the run that --overwrite would replace", hint="leave one of them out"
            )
        for name in ("overwrite", "resume"):
            if getattr(self, name) and not self.out:
                raise UsageError(f"--{name} is about the run in the folder of -o, and none is named", hint="add -o DIR")
        if self.record and not self.out and not self.tape:
            raise UsageError("--record needs a folder to keep the run in", hint="add -o DIR")
        if self.tape and self.out and self.overwrite:
            tape = Path(self.tape).resolve()
            if Path(self.out).resolve() in (tape, *tape.parents):
                raise UsageError(
                    f"--overwrite would delete {self.out}, which holds the tape that --tape reads",
                    hint="name another folder with -o",
                )
        self.costs = as_prices(self.prices)
        self.budget = Budget(self.max_cost, self.costs, self.say)
        self._recorder = Recorder(wants_local=self.record) if self.record or self.out else None
        if self.tape:
            keeps: dict[str, Any] = {"recorder": self._recorder, "copies": bool(self.out), "asks": self.record}
            self._player = Player(Reel.of(self.tape), by_content=True, **keeps)

    def load(self, spec: str | Path | Environment) -> Environment:
        """The environment of a spec, whose servers are asked for their tools on the tape; itself where it is one.

        Where all is answered by the tape, no key is needed.
        """
        if isinstance(spec, Environment):
            return spec
        tape = self._player or self._recorder
        with entered(None if tape is None else Lane(tape, "")), self._without_keys():
            return load(spec, set=self.set)

    def _without_keys(self) -> AbstractContextManager[object]:
        return leave_open() if self._player is not None and self._player.is_offline else nullcontext()

    @property
    def lane(self) -> Callable[[int], Lane] | None:
        """Gives each episode its lane; None without a tape."""
        tape = self._player or self._recorder
        return None if tape is None else lambda index: tape.lane()

    def facts_of(self, trajectory: Trajectory, *, mode: Mode, **facts: Any) -> Facts:
        """The facts that the run keeps beside the record of the episode in the lane of this task, which has just
        ended.
        """
        began, cost, lane = time.time() - trajectory.seconds, cost_of(trajectory.usage, self.costs), here()
        events = None if self._recorder is None or lane is None else self._recorder.take_events(lane)
        return Facts(mode=mode, started=began, cost=cost, events=events, **facts)

    @contextmanager
    def open(
        self, environment: Environment, actor: Actor, facts: Mapping[str, Any], **made_of: Any
    ) -> Iterator[KeptRun | None]:
        """The run while it is played; None where none is kept. Nothing is let out that the tape is to answer.

        Args:
            facts: what the run says of itself, its `split` among them.
            made_of: what its lock says beside (`lock_of`): seed, seeds, k.

        What came of the tape, what could not be written, and what a run that fails had asked for is told.

        Raises:
            UsageError: see `KeptRun`; or the tape cannot be written.
        """
        lock = None
        if self.out or self.record:
            who: dict[str, Any] = {"policy": actor.facts, "tokenizer": actor.tokenizer}
            lock = lock_of(environment, splits=[facts["split"]], say=self.say, **who, **made_of)
        with ExitStack() as stack:
            kept = self.keep_run(environment, lock=lock, policy=actor.name, model=actor.model, **facts)
            out = stack.enter_context(kept)
            stack.enter_context(self._on_tape(out, lock, environment))
            stack.enter_context(count_spending(self.costs, self.say))
            yield out

    @contextmanager
    def keep_run(
        self, environment: Environment, *, lock: Lock | None, policy: str = "", model: str = "", **facts: Any
    ) -> Iterator[KeptRun | None]:
        """The run in its folder until it ends; None where none is kept.

        Raises:
            UsageError: see `KeptRun`.
        """
        if not self.out:
            yield None
            return
        priced = {} if self.costs is None else {"prices": self.costs.as_fact()}
        program = Path(sys.argv[0]).name
        info = RunInfo(
            kind=self.kind,
            command=("rlenv" if program == "__main__.py" else program, *sys.argv[1:]),
            spec=environment.address or os.path.abspath(environment.loaded.path),
            environment=environment.id,
            policy=policy,
            model=model,
            facts={**facts, **priced, "set": kept_settings(self.set)},
        )
        before = read_info(self.out) if self.resume else None
        out = KeptRun(self.out, info, lock=lock, resume=self.resume, overwrite=self.overwrite)
        old = before.lock if before is not None else ""
        if lock is not None and old not in ("", lock.hash12):
            files = [str(out.path / FOLDER / f"{one}.json") for one in (old, lock.hash12)]
            self.say(f"the run goes on, but not with what it began with: rlenv runs lock diff {' '.join(files)}")
        try:
            with out:
                yield out
        finally:
            if out.lost:
                self.say(f"{out.path}: {out.lost} writes failed, and what they held of the run is not kept")

    @contextmanager
    def _on_tape(self, out: KeptRun | None, lock: Lock | None, environment: Environment) -> Iterator[None]:
        with ExitStack() as stack:
            if self._recorder is not None:
                stack.enter_context(self._recording(self._recorder, out, lock))
            if self._player is not None and self._player.is_offline:
                stack.enter_context(offline())
                stack.enter_context(self._without_keys())
            yield
        for hash12 in dict.fromkeys(self._player.missed_locks.values() if self._player is not None else ()):
            if since := changed_since(self.tape or "", hash12, environment):
                self.say(f"{self.tape} lacks what is asked: {since}")

    @contextmanager
    def _recording(self, recorder: Recorder, out: KeptRun | None, lock: Lock | None) -> Iterator[None]:
        """Has kept what no episode takes: what was asked before the first, and what is left at the end."""
        hash12 = recorder.lock = lock.hash12 if lock is not None else ""
        with ExitStack() as stack:
            late = None if out is None else out.append_late
            if late is None:  # what the tape lacks is added to it
                folder = Path(self.tape or "")
                with disk_told(folder, "written"):
                    writer = RunWriter(folder, lock=hash12)
                    stack.callback(writer.close)
                    if lock is not None:
                        lock.write(folder)
                late = writer.append_late

            def flush() -> None:
                try:
                    if events := recorder.take_rest():
                        late("", {"events": events})
                except OSError as error:
                    self.say(f"{self.tape}: what was asked could not be added: {error.strerror or error}")

            flush()
            stack.callback(flush)
            self._flush = flush if out is None else None
            yield

    def keep_asked(self) -> None:
        """Has kept what was asked until now, where no run's episodes hold it: a run that is killed loses none."""
        if self._flush is not None:
            self._flush()

    async def run_stoppable(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, which is cancelled once a file `stop` is in the run's folder, or the budget is spent.

        Raises:
            RunStopped: it was.
        """
        task, spent = asyncio.ensure_future(work), asyncio.ensure_future(self.budget.is_spent.wait())
        stop = os.path.join(self.out or "", STOP)
        try:
            while (
                task not in (await asyncio.wait((task, spent), timeout=_EACH_S, return_when=asyncio.FIRST_COMPLETED))[0]
            ):
                if spent.done():
                    raise RunStopped(self.budget.stop_reason())
                if self.out and os.path.exists(stop):  # noqa: ASYNC240 - a look at a name takes no time
                    raise RunStopped(f"{stop} asks for the end")
            return task.result()
        finally:  # Ctrl-C itself cancels this one: what is played ends before the run is closed
            spent.cancel()
            task.cancel()
            await asyncio.wait((task,))


KEY_VARIABLE = "OPENAI_API_KEY"
"""The variable that holds a server's key by default."""
NAMES = "oracle, random, script:FILE, openai, or hf:MODEL (as `rlenv train --model` takes it, with the verl extra)"
_WEIGHTS = (".safetensors", ".bin", ".json")


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by its name: `oracle`, `random`, `script:FILE`, `openai` or `hf:MODEL`; the others are what two of these
    take, None where their own default holds.

    `openai` takes all but `chat_template`, `hf` that one, `temperature`, `top_p` and `max_tokens`.
    """

    name: str = "oracle"
    base_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    mode: Literal["tools", "text"] | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    request_timeout: float | None = None
    retries: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    chat_template: str | None = None

    def make(self, environment: Environment, *, concurrency: int = 64) -> Policy:
        """The policy.

        Args:
            concurrency: the most requests at once to a server.

        Raises:
            UsageError: no such policy, or what it needs is missing.
        """
        kind, _, rest = self.name.partition(":")
        if kind == "oracle":
            return environment.oracle()
        if kind == "random":
            return RandomPolicy(environment.parts.dialect, environment.spec.answer)
        if kind == "script":
            return ScriptPolicy(rest)
        if kind == "openai":
            return self._openai_policy(concurrency)
        if kind == "hf":
            place = local_model(rest, chat_template=self.chat_template)
            load = adapter("hf", wanted_by="--policy hf:MODEL").load_policy
            sampling = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens")}
            policy: Policy = load(place, environment, **sampling)
            return policy
        raise UsageError(f"no policy '{self.name}'; expected {NAMES}")

    def _openai_policy(self, concurrency: int) -> Policy:
        from rlenv.policies.openai import OpenAIPolicy

        if not self.base_url or not self.model:
            raise UsageError("--policy openai needs --base-url and --model")
        sampling = {name: getattr(self, name) for name in ("temperature", "top_p", "max_tokens", "extra")}
        given = {"mode": self.mode, "timeout_s": self.request_timeout, "retries": self.retries}
        return OpenAIPolicy(
            self.base_url,
            self.model,
            api_key=os.environ.get(self.api_key_env or KEY_VARIABLE),
            sampling=SamplingSpec(**sampling),
            concurrency=concurrency,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class Actor:
    """The player of a run: the policy, its name for people, and what a lock keeps of it (`lock_of`)."""

    policy: Policy
    name: str
    facts: Mapping[str, Any]
    tokenizer: Any = None

    @property
    def model(self) -> str:
        """The model at a server; "" for any other policy."""
        return str(self.facts.get("model") or "") if "host" in self.facts else ""

    @property
    def mode(self) -> Mode:
        """The mode of its sampling."""
        return "greedy" if self.facts.get("sampling", {}).get("temperature") == 0 else "sampled"

    def with_opponent(self, other: Actor, environment: Environment) -> Actor:
        """This one, with the other players of the environment played by `other`.

        Raises:
            UsageError: the spec has one player.
        """
        if environment.players is None:
            raise UsageError("an opponent is for a spec with several players", hint="leave it out")
        environment.opponent = play_by_chance if isinstance(other.policy, RandomPolicy) else other.policy
        facts = {**self.facts, "opponent": dict(other.facts)}
        return replace(self, name=f"{self.name} against {other.name}", facts=facts)


def actor_of(
    policy: str | PolicyChoice | Policy | Act,
    environment: Environment,
    *,
    concurrency: int = 64,
    say: Say | None = None,
) -> Actor:
    """The policy that is named, or the one that is given, with what is known of it.

    Args:
        policy: a name, a choice, a policy, or an async function of the messages so far that gives the next action.

    Raises:
        UsageError: as `PolicyChoice.make`; or the function is not async.
    """
    if not isinstance(policy, str | PolicyChoice):
        given: Any = policy if hasattr(policy, "start") else FunctionPolicy(policy)
        return Actor(given, given.name, {"kind": given.name, **getattr(given, "facts", {})})
    choice = PolicyChoice(policy) if isinstance(policy, str) else policy
    kind, _, rest = choice.name.partition(":")
    made = choice.make(environment, concurrency=concurrency)
    facts = {"kind": kind, **getattr(made, "facts", {})}
    if kind != "hf":
        return Actor(made, choice.name, facts)
    folder = Path(local_model(rest, chat_template=choice.chat_template))
    is_here = folder.is_dir()
    facts |= {
        "model": folder.name if is_here else rest,  # a path is no part of what a model is
        "weights": tree_sha256(folder, suffixes=_WEIGHTS, say=say) if is_here else None,
        "sampling": {"temperature": choice.temperature, "top_p": choice.top_p, "max_tokens": choice.max_tokens},
    }
    return Actor(made, choice.name, facts, local_tokenizer(rest, chat_template=choice.chat_template))
