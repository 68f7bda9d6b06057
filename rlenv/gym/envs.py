"""The Gymnasium face: text in, text out, one event loop for all environments of a process."""

from __future__ import annotations

import math
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv

from rlenv._base.text import visible
from rlenv.concurrency.threads import run_sync
from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import gather_all
from rlenv.errors import UsageError
from rlenv.hosts.session import Opened, Session
from rlenv.messages import Message
from rlenv.tasks.rows import seed_of
from rlenv.trajectory import Step, Trajectory

_ALPHABET = string.ascii_letters + string.digits + " .,:;!?<>/{}[]\"'()+-*=\n"
_LONGEST_SAMPLE = 64


class TextSpace(Space[str]):
    """All texts of at most `max_length` characters, whatever they hold.

    `gymnasium.spaces.Text` lists its characters one by one: an all-Unicode space takes seconds and tens of megabytes
    to make, pickle and batch. Membership here is a length check; samples come from a small alphabet.
    """

    def __init__(self, max_length: int, *, seed: int | None = None) -> None:
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: a text has no fixed shape."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short random text."""
        length = int(self.np_random.integers(min(_LONGEST_SAMPLE, self.max_length) + 1))
        return "".join(_ALPHABET[i] for i in self.np_random.integers(len(_ALPHABET), size=length))

    def contains(self, x: Any) -> bool:
        """True for a str within the length."""
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """Texts are JSON already."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """Texts are JSON already."""
        return [str(sample) for sample in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((TextSpace, self.max_length))

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"


_MAX_ACTION = 1 << 24  # characters; an action longer than this is no policy's


def make(
    spec: str | Path, *, split: str | None = None, set: Mapping[str, Any] | None = None, render_mode: str | None = None
) -> TextEnv:
    """A `gymnasium.Env` over a spec.

    Args:
        spec: the YAML file, or the name of an environment that ships with rlenv.
        split: which tasks; by default the first split of the spec.
        set: values that replace keys of the file, by dotted path.
        render_mode: `ansi` (render returns the conversation), `human` (it is written to stdout) or None.

    Raises:
        SpecError: with every fault at once.
    """
    return TextEnv(spec, split=split, set=set, render_mode=render_mode)


def make_vec(
    spec: str | Path, *, num_envs: int = 1, split: str | None = None, set: Mapping[str, Any] | None = None
) -> TextVectorEnv:
    """`num_envs` environments stepped at once on one event loop; arguments as for `make`."""
    return TextVectorEnv(spec, num_envs=num_envs, split=split, set=set)


class TextEnv(gymnasium.Env[str, str]):
    """One episode at a time, as text.

    `reset` gives the prompt as the spec's dialect writes it; `step` takes what the policy wrote and gives what is
    appended after it. `reset(options={"task": i})` chooses a task; otherwise the seed does. An invalid reward is NaN,
    with `truncated=True` and `info["failure"]`. `info` always has the same keys: messages, task, task_index,
    rewards, success, reason, failure.
    """

    metadata = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012 - the name and type Gymnasium reads

    def __init__(
        self,
        spec: str | Path | Environment,
        *,
        split: str | None = None,
        set: Mapping[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UsageError(f"render_mode is one of ansi and human, not '{render_mode}'")
        self.environment = spec if isinstance(spec, Environment) else load(spec, set=set)
        self.split = split if split is not None else next(iter(self.environment.spec.tasks))
        self._count = len(self.environment.tasks(self.split))
        self.render_mode = render_mode
        self.observation_space = TextSpace(_MAX_ACTION)
        self.action_space = TextSpace(_MAX_ACTION)
        self._session = Session(self.environment)
        self._text: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Raises:
            UsageError: `options["task"]` is not an index of the split, or there is another option.
        """
        super().reset(seed=seed)
        task, episode_seed = _choose(self.np_random, self.split, self._count, options)
        opened = run_sync(self._open, task, episode_seed)
        self._text = [opened.text]
        return opened.text, _info(self._session, opened.messages)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Takes one action.

        Raises:
            UsageError: before `reset`, or after the episode ended.
        """
        if self._session.is_reported:
            raise UsageError("the episode has ended", hint="call reset()")
        step = run_sync(self._session.step, action)
        self._text += (action, step.observation.text)
        return (
            step.observation.text,
            _reward_or_nan(step.reward),
            step.terminated,
            step.truncated,
            _info(self._session, step.observation.messages),
        )

    @property
    def trajectory(self) -> Trajectory:
        """The record of the episode that ended last; UsageError while it runs."""
        return self._session.trajectory

    def render(self) -> Any:
        """The conversation so far: as text for `ansi`, written to stdout for `human`."""
        text = "".join(self._text)
        if self.render_mode == "human":
            sys.stdout.write(visible(text) + "\n")
            return None
        return text if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Closes the episode and shared resources; may be called twice."""
        run_sync(self._session.aclose)
        run_sync(self.environment.aclose)

    async def _open(self, task: int, seed: int) -> Opened:
        return await self._session.reset(task=task, split=self.split, seed=seed)


class TextVectorEnv(VectorEnv[tuple[str, ...], Sequence[str], np.ndarray[Any, Any]]):
    """Many episodes stepped at once on one event loop; a slow tool delays its own step's batch only up to its timeout.

    Autoreset is disabled: an environment that ended is left alone until
    `reset(options={"reset_mask": mask})`, so that no step is wasted and no transition is made up.
    Observations are a tuple of texts, rewards float64 of shape (num_envs,).
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 - read by Gymnasium

    def __init__(
        self,
        spec: str | Path | Environment,
        *,
        num_envs: int = 1,
        split: str | None = None,
        set: Mapping[str, Any] | None = None,
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs is at least 1, not {num_envs}")
        self.environment = spec if isinstance(spec, Environment) else load(spec, set=set)
        self.split = split if split is not None else next(iter(self.environment.spec.tasks))
        self._count = len(self.environment.tasks(self.split))
        self.num_envs = num_envs
        self.single_observation_space = TextSpace(_MAX_ACTION)
        self.single_action_space = TextSpace(_MAX_ACTION)
        self.observation_space = gymnasium.spaces.Tuple([TextSpace(_MAX_ACTION)] * num_envs)
        self.action_space = gymnasium.spaces.Tuple([TextSpace(_MAX_ACTION)] * num_envs)
        self._generators: list[np.random.Generator] = [np.random.default_rng() for _ in range(num_envs)]
        self._sessions = [Session(self.environment) for _ in range(num_envs)]
        self._observations: list[str] = [""] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts episodes: all of them, or those of `options["reset_mask"]` (bool, shape (num_envs,)).

        Args:
            seed: one for all (environment i gets seed + i), or one each.

        Raises:
            UsageError: seeds or mask of another length, or no such task.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", None)
        mask = np.ones(self.num_envs, dtype=np.bool_) if mask is None else np.asarray(mask)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise UsageError(f"reset_mask is bool of shape ({self.num_envs},), not {mask.dtype} of {mask.shape}")
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise UsageError(f"{self.num_envs} environments need as many seeds, not {len(seeds)}")
        chosen: dict[int, tuple[int, int]] = {}
        for index in np.flatnonzero(mask).tolist():
            own = seeds[index] if seeds is not None else None
            if own is not None:
                self._generators[index] = np.random.default_rng(own)
            chosen[index] = _choose(self._generators[index], self.split, self._count, options)
        infos: dict[str, Any] = {}
        for index, opened in run_sync(self._open, chosen).items():
            self._observations[index] = opened.text
            infos = self._add_info(infos, _info(self._sessions[index], opened.messages), index)
        return tuple(self._observations), infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """Takes one action each; an environment that has ended gives its flags, an empty observation and reward 0,
        or NaN again where it is invalid.

        Raises:
            UsageError: another number of actions, or before `reset`.
        """
        if len(actions) != self.num_envs:
            raise UsageError(f"{self.num_envs} environments need as many actions, not {len(actions)}")
        steps = run_sync(self._step, actions)
        infos: dict[str, Any] = {}
        for index, step in enumerate(steps):
            self._observations[index] = step.observation.text
            infos = self._add_info(infos, _info(self._sessions[index], step.observation.messages), index)
        return (
            tuple(self._observations),
            np.array([_reward_or_nan(step.reward) for step in steps], dtype=np.float64),
            np.array([step.terminated for step in steps], dtype=np.bool_),
            np.array([step.truncated for step in steps], dtype=np.bool_),
            infos,
        )

    def trajectory(self, index: int) -> Trajectory:
        """The record of an environment's episode; UsageError while it runs."""
        return self._sessions[index].trajectory

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all episodes and shared resources."""
        run_sync(self._close)

    async def _open(self, chosen: Mapping[int, tuple[int, int]]) -> dict[int, Opened]:
        async def reset(index: int, task: int, seed: int) -> Opened:
            return await self._sessions[index].reset(task=task, split=self.split, seed=seed)

        return dict(zip(chosen, await gather_all([reset(index, *at) for index, at in chosen.items()]), strict=True))

    async def _step(self, actions: Sequence[str]) -> list[Step]:
        return await gather_all([one.step(action) for one, action in zip(self._sessions, actions, strict=True)])

    async def _close(self) -> None:
        for session in self._sessions:
            await session.aclose()
        await self.environment.aclose()


def _choose(
    generator: np.random.Generator, split: str, count: int, options: Mapping[str, Any] | None
) -> tuple[int, int]:
    """A task and its episode's seed, which differs by task where all tasks are reset with one seed."""
    task = (options or {}).get("task")
    if others := sorted({*(options or {})} - {"task"}):
        raise UsageError(f"reset() has no option {others[0]!r}", hint="options={'task': INDEX} chooses a task")
    drawn, seed = int(generator.integers(count)), int(generator.integers(1 << 31))
    task = drawn if task is None else task
    return task, seed_of(seed, split, task)


def _reward_or_nan(reward: float | None) -> float:
    return math.nan if reward is None else reward


def _info(session: Session, messages: Sequence[Message]) -> dict[str, Any]:
    """Fixed keys, and nothing that differs between equal runs (no clocks)."""
    episode = session.episode
    assert episode is not None
    outcome = dict.fromkeys(("success", "failure"), None) | {"reason": ""}
    terms = dict.fromkeys(episode.environment.spec.rewards)
    if session.is_ended:
        outcome = session.trajectory.outcome()
        terms = outcome.pop("terms")
        del outcome["total"]
    return {
        "messages": [message.as_dict() for message in messages],
        "task": deepcopy(dict(episode.task)),  # a caller may keep it, and change it
        "task_index": episode.task_index,
        "rewards": terms,
        **outcome,
    }
