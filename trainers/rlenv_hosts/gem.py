"""GEM's face of an environment, by text alone; ROLL takes environments that are registered with GEM.

    gem.register("rlenv", entry_point="rlenv_hosts.gem:RlenvGem")
    env = gem.make("rlenv", spec="arithmetic", split="train")

An invalid reward is NaN with `truncated`, and `info["failure"]` says why: a loop has to leave such a sample out. Tried
with gem-llm 0.1.0.
"""

from __future__ import annotations

from typing import Any, SupportsFloat

from gem.core import Env

import rlenv


class RlenvGem(Env):
    """One environment of GEM's; `options` are those of `rlenv.make`, `seed` is that of a first reset without one."""

    def __init__(self, spec: str, *, split: str | None = None, seed: int | None = None, **options: Any) -> None:
        super().__init__()
        self._seed = seed
        self._given = {"spec": spec, "split": split, **options}
        self._inner = rlenv.make(spec, split=split, **options)

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode; equal seeds give equal ones."""
        seed, self._seed = (self._seed if seed is None else seed), None
        super().reset(seed)
        return self._inner.reset(seed=seed)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """One turn of the policy's."""
        return self._inner.step(action)

    def spawn(self, same_state: bool = False, **given: Any) -> RlenvGem:
        """Another environment with the same options.

        Raises:
            NotImplementedError: with the same state, which an episode cannot be copied with.
        """
        if same_state:
            raise NotImplementedError("an episode of rlenv cannot be copied; spawn with same_state=False and reset it")
        return RlenvGem(**{**self._given, **given})

    def close(self) -> None:
        """Closes the episode."""
        self._inner.close()
