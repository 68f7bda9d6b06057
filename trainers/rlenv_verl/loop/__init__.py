"""The agent loop that veRL runs for each sample, one episode of rlenv each, and its replay buffer.

Here: an endpoint of a spec that veRL's own generative reward model serves. With `reward.reward_model.enable` veRL
starts a model beside the policy, on devices of their own, and hands the address of its OpenAI-compatible router to the
workers of its reward loop. An episode's judge asks there like any other server: while its siblings still generate, with
the spec's own limits, retries and rules for what could not be measured.

And what notices that a process died which a run waits for, and ends the run.

Expected: a trainer that waits for somebody fails when that one is gone. Actual (veRL 0.9.1, TransferQueue beside it):
prompts are handed to `AgentLoopWorkerTQ` and forgotten (`generate_sequences` returns at once), `ReplayBuffer.sample`
asks the queue until they are finished, and the queue's storage is asked over a socket that nobody answers any more.
Where Ray's memory monitor, the kernel or anybody else kills one of them, the run stands still for ever without a word
in its log. Remove when veRL watches its workers.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlenv.cli.terminal import write_error
from rlenv.errors import UsageError, told_as

_WORKER = "reward_loop_worker_0"
"""The name of veRL's first reward loop worker among Ray's actors (experimental/reward_loop/reward_loop.py)."""

_TIMEOUT_S = 60.0


def check_reward_model(config: Mapping[str, Any]) -> None:
    """Raises unless the reward model of veRL's configuration can answer while episodes are played.

    Raises:
        UsageError: it is off, or it sleeps during the rollout.
    """
    model = config["reward"]["reward_model"]
    wanted = {
        "enable": (True, "nothing would answer"),
        # A colocated model is woken only after the rollout, and then veRL 0.9.1 hands it nothing but token ids
        # (PPOTrainer._compute_reward_colocate).
        "enable_resource_pool": (True, "a reward model on the policy's own devices sleeps while episodes are played"),
        # RewardModelManager puts such a model to sleep when it has started; only a colocated one is ever woken.
        "rollout.free_cache_engine": (False, "veRL puts the model to sleep at the start and does not wake it"),
    }
    for key, (expected, why) in wanted.items():
        found: Any = model
        for part in key.split("."):
            found = found[part]
        if bool(found) is not expected:
            raise UsageError(
                f"reward.reward_model.{key} is {str(found).lower()}, so {why}",
                key="run.reward_model",
                hint=f"add reward.reward_model.{key}={str(expected).lower()}",
            )
    if not model["model_path"]:
        raise UsageError("reward.reward_model.model_path names no model", key="run.reward_model")


def served_by_reward_model(config: Mapping[str, Any], *, endpoint: str, ask: Callable[[], str]) -> dict[str, Any]:
    """The settings by dotted path that make a spec's endpoint the reward model of this run.

    Args:
        ask: gives the address of veRL's router, as `ask_for_router`.

    Raises:
        UsageError: the configuration cannot serve it, or whatever `ask` raises.
    """
    check_reward_model(config)
    return {
        f"endpoints.{endpoint}.base_url": f"http://{ask()}/v1",
        # The name under which veRL's servers know it.
        f"endpoints.{endpoint}.model": str(config["reward"]["reward_model"]["model_path"]),
    }


def ask_for_router() -> str:
    """The address of the router, by veRL's reward loop; it holds up the event loop for that moment.

    Raises:
        UsageError: no reward loop runs in this Ray job, or it has no reward model.
    """
    import ray

    problem = f"run.reward_model: no actor '{_WORKER}' runs in this Ray job; veRL starts it for a training run"
    if not ray.is_initialized():  # asking would start a cluster
        raise UsageError(problem)
    with told_as(UsageError, problem, ValueError):
        worker: Any = ray.get_actor(_WORKER)
    address = ray.get(worker.__ray_call__.remote(_router_address), timeout=_TIMEOUT_S)
    if not address:
        raise UsageError(f"veRL's '{_WORKER}' has no address of a reward model", key="run.reward_model")
    return str(address)


def _router_address(worker: Any) -> str | None:
    # The public way leads through a custom reward function, which is called with this value; but it is called for one
    # sample at a time and only where an agent loop left the reward open.
    address: str | None = worker.reward_router_address
    return address


SAID = "rlenv_verl.loop.LostWorker: "
"""How the line of a log begins that names who died, by whichever way the trainer ended."""

_EVERY_S = 5.0
"""Seconds between two looks at whether a process is there."""

_LEFT_S = 30.0
"""Seconds that a running trainer is given to end by itself."""

LAST_S = 10.0
"""Seconds that a trainer whose batch has failed waits to hear who died: Ray answers within a second or two."""

_ON_PURPOSE = "ray.kill"
"""What stands in Ray's reason where the trainer itself ended an actor, as it does at its own end; Ray's error
(`ActorDiedError`, ray 2.60) says it nowhere but in its text."""

_SHOWN, _WIDTH = 25, 300


class LostWorker(RuntimeError):
    """A process that the run needs died."""


def _leave(error: LostWorker) -> None:
    write_error(f"{SAID}{error}\n")
    sys.stderr.flush()
    # Ray copies a worker's words into the log every half second at most.
    threading.Event().wait(2.0)
    # An exception would not reach a main thread that waits in a socket for an answer that never comes.
    os._exit(1)


@dataclass(slots=True)
class Watched:
    """The actors that a trainer needs, each asked now and then whether it is there, by a thread of its own.

    An answer is never waited for: a worker may be busy for minutes. What tells is that Ray answers in its place.

    Args:
        actors: the handles by what they are, looked up anew each time: a trainer makes them late and may add some.
        leave: ends this process where the main thread cannot.
        left_s: how long the main thread is given to end by itself.
    """

    actors: Callable[[], Iterator[tuple[str, Any]]]
    leave: Callable[[LostWorker], None] = _leave
    every_s: float = _EVERY_S
    left_s: float = _LEFT_S
    lost: LostWorker | None = None
    _asked: dict[Any, str] = field(default_factory=dict)  # the open questions, and whom they are for
    _gone: set[str] = field(default_factory=set)
    _thread: threading.Thread | None = None
    # The thread looks, and so does the main one when its batch has failed.
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Raise what was found so far; looks from the first call on at which there is anybody.

        Raises:
            LostWorker: an actor died; it says which, and why as far as Ray knows.
        """
        if self.lost is not None:
            raise self.lost
        if self._thread is None and next(self.actors(), None) is not None:
            self._thread = threading.Thread(target=self._watch, name="rlenv-lost", daemon=True)
            self._thread.start()

    def look(self, *, within_s: float = 0.0) -> None:
        """Read the answers that are there, and ask again those that have answered.

        Args:
            within_s: how long answers may take, for a trainer whose batch has failed already; 0 returns at once.
        """
        with self._turn:
            self._read(within_s=0.0)
            asked = {*self._asked.values(), *self._gone}
            for name, actor in self.actors() if self.lost is None else ():
                if name not in asked:
                    self._asked[actor.__ray_ready__.remote()] = name
            if within_s:
                # One that died since its last answer has only now been asked again.
                self._read(within_s=within_s)

    def _read(self, *, within_s: float) -> None:
        """Reads each open question's answer as it comes: one that stays busy or hangs holds up none of a dead one."""
        import ray

        until = time.monotonic() + within_s
        waiting = list(self._asked)
        while waiting and self.lost is None:
            answered, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, until - time.monotonic()))
            if not answered:
                return
            name = self._asked.pop(answered[0])
            try:
                ray.get(answered[0])
            except ray.exceptions.RayError as error:
                if _ON_PURPOSE in str(error):
                    self._gone.add(name)
                else:
                    self.lost = LostWorker(f"{name} died, and what it had is lost. {error}")

    def _watch(self) -> None:
        waiting = threading.Event()
        while self.lost is None:
            self.look()
            waiting.wait(self.every_s)
        # The main thread raises it where it asks the queue; where it waits for something else, it cannot.
        waiting.wait(self.left_s)
        self.leave(self.lost)


def watched_of(refill_fn: Callable[[int], None] | None) -> Watched:
    """The processes of the trainer whose method a replay buffer is handed; none where there is no trainer.

    Its own workers are left out: each call of them is waited for, and fails.
    """
    trainer = getattr(refill_fn, "__self__", None)

    def actors() -> Iterator[tuple[str, Any]]:
        if trainer is None:
            return
        from transfer_queue import interface  # type: ignore[import-untyped]

        manager = getattr(trainer, "agent_loop_manager", None)
        rewards = getattr(trainer, "reward_loop_manager", None)
        for what, found in (
            ("agent loop worker", getattr(manager, "agent_loop_workers", None)),
            ("reward loop worker", getattr(rewards, "reward_loop_workers", None)),
        ):
            for number, actor in enumerate(found or ()):
                yield f"the {what} {number}", actor
        # `separate_async` has servers of its own beside those of the trainer's devices.
        for kind, name in (("", "llm_server_manager"), ("separate ", "standalone_server_manager")):
            servers = getattr(trainer, name, None)
            for number, actor in enumerate(getattr(servers, "server_handles", None) or ()):
                yield f"the {kind}rollout server {number}", actor
            balancer = getattr(servers, "global_load_balancer", None)
            if balancer is not None:
                yield f"the router of the {kind}rollout servers", balancer
        if interface._TQ_CONTROLLER is not None:
            yield "the controller of the queue of episodes", interface._TQ_CONTROLLER
        for units in (interface._TQ_STORAGE or {}).values():
            for name, actor in units.items() if isinstance(units, dict) else ():
                if hasattr(actor, "__ray_ready__"):
                    yield f"the queue's storage {name}", actor

    return Watched(actors)


def told_at_the_end(log: Path, *, since: int = 0) -> Iterator[str]:
    """The last lines of a failed run's log, indented, and below them who died where that is not among them.

    A process that died is named once, and those that outlived it may write thousands of lines after.

    Args:
        since: the byte at which this start of the run began to write; who died in an earlier one is not told again.
    """
    lines = log.read_bytes()[since:].decode("utf-8", errors="replace").splitlines()
    for line in lines[-_SHOWN:]:
        yield "  " + line[:_WIDTH]
    if any(SAID in line for line in lines[-_SHOWN:]):
        return
    for line in [one for one in lines if SAID in one][-1:]:
        yield line[line.index(SAID) + len(SAID) :][:_WIDTH]
