"""Notices that a process died which a run waits for.

Expected: a trainer that waits for episodes fails when who plays them is gone. Actual (veRL 0.9.1): prompts are handed to
`AgentLoopWorkerTQ` and forgotten (`generate_sequences` returns at once), and `ReplayBuffer.sample` asks the queue until
they are finished. Where Ray's memory monitor, the kernel or anybody else kills a worker, its prompts are never finished
and the run stands still for ever, without a word in its log. Remove when veRL watches its workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LostWorker", "Watched", "watched_of"]

_EVERY_S = 5.0
"""How often a process is asked whether it is there."""


class LostWorker(RuntimeError):
    """A process that the run needs died."""


@dataclass(slots=True)
class Watched:
    """The actors that a trainer's episodes need, each asked now and then whether it is there.

    An answer is never waited for: a worker may be busy for minutes. What tells is that Ray answers in its place.

    Args:
        actors: the handles by what they are, looked up anew each time, since a trainer makes them late and may add some.
        clock: seconds that only grow.
    """

    actors: Callable[[], Iterator[tuple[str, Any]]]
    clock: Callable[[], float] = time.monotonic
    _asked: dict[Any, str] = field(default_factory=dict)  # the open questions, and whom they are for
    _next: float = 0.0

    def check(self, *, at_once: bool = False) -> None:
        """Ask those that have answered, every few seconds however often it is called; never waits for an answer.

        Args:
            at_once: look at what was answered although it is not yet time to.

        Raises:
            LostWorker: one of them died; it says which, and why as far as Ray knows.
        """
        if self.clock() < self._next and not at_once:
            return
        self._next = self.clock() + _EVERY_S
        import ray

        if self._asked:
            answered, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
            for one in answered:
                name = self._asked.pop(one)
                try:
                    ray.get(one)
                except ray.exceptions.RayError as error:
                    raise LostWorker(f"{name} died, and the episodes that it played are lost. {error}") from error
        open_for = set(self._asked.values())
        for name, actor in self.actors():
            if name not in open_for:
                self._asked[actor.__ray_ready__.remote()] = name


def watched_of(refill_fn: Callable[[int], None] | None) -> Watched:
    """The actors of the trainer whose method a replay buffer is handed; none where there is no trainer."""
    trainer = getattr(refill_fn, "__self__", None)

    def actors() -> Iterator[tuple[str, Any]]:
        manager = getattr(trainer, "agent_loop_manager", None)
        for number, worker in enumerate(getattr(manager, "agent_loop_workers", ())):
            yield f"the agent loop worker {number}", worker
        servers = getattr(trainer, "llm_server_manager", None)
        for number, server in enumerate(getattr(servers, "server_handles", ())):
            yield f"the rollout server {number}", server

    return Watched(actors)
