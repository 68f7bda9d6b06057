"""The environment of recorded episodes that a command takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlenv.cli.terminal import say
from rlenv.episodes.environment import Environment, load
from rlenv.errors import UsageError
from rlenv.language.shipped import shipped
from rlenv.runs.folder import read_info
from rlenv.trajectory import Trajectory

__all__ = ["environment_of"]


def environment_of(
    trajectories: Sequence[Trajectory], *, run: str, spec: str | None = None, set: Mapping[str, Any]
) -> Environment:
    """The environment that recorded the trajectories of a run: `spec`, or the one that the run names with what was set
    over it, or the shipped one of their name.

    Raises:
        UsageError: the name is no shipped one's and no spec is given.
    """
    info = None if spec else read_info(run)
    if info is not None and info.spec and not Path(info.spec).is_file():
        say(f"rlenv: {info.spec}, which the run names, is not there: --spec names another")
    elif info is not None and info.spec:
        spec, set = info.spec, {**info.facts.get("set", {}), **set}
    if not spec:
        names = sorted({one.environment for one in trajectories})
        spec = names[0].removeprefix("rlenv/").rpartition("-v")[0]
        if len(names) > 1 or spec not in shipped():
            raise UsageError(f"recorded in {', '.join(names)}", hint="name the spec with --spec FILE")
    return load(spec, set=set)
