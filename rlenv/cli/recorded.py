"""The environment of recorded episodes that a command takes."""

from __future__ import annotations

from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.trajectory import Trajectory

__all__ = ["environment_of"]


def environment_of(trajectories: list[Trajectory], *, spec: str | None, set: dict[str, str]) -> Environment:
    """The environment that recorded the trajectories: `spec`, or the shipped one of their name.

    Raises:
        UsageError: the name is no shipped one's and no spec is given.
    """
    names = sorted({one.environment for one in trajectories})
    if spec is None:
        from rlenv.language.shipped import shipped

        short = names[0].removeprefix("rlenv/").rpartition("-v")[0]
        if len(names) > 1 or short not in shipped():
            raise UsageError(f"recorded in {', '.join(names)}", hint="name the spec with --spec FILE")
        spec = short
    return load(spec, set=set or None)
