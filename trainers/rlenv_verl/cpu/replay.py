"""veRL's replay buffer with a short poll, named by `trainer.v1.sampler.custom_sampler`."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

__all__ = ["FastPollReplayBuffer"]


class FastPollReplayBuffer(ReplayBuffer):
    """Looks for finished rollouts every 50 ms.

    Expected: a configuration key for the poll interval. Actual: `ReplayBuffer(poll_interval=2.0)`, which no caller
    sets; 2 s are a third of a step of a tiny policy. Remove when veRL reads it from the configuration. A custom
    sampler is not given DAPO's filter arguments by veRL, so group filtering is off with it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("poll_interval", 0.05)
        super().__init__(*args, **kwargs)
