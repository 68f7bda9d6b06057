"""Results of gold calls, computed once per task and state of the resources."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any

import orjson

from rlenv.rewards.base import RewardContext
from rlenv.rewards.comparators import Side

__all__ = ["GoldCache"]

Compute = Callable[[Mapping[str, Any], RewardContext], Awaitable[Side]]
_Key = tuple[bytes, tuple[Hashable, ...]]


class GoldCache:
    """The last `size` gold results of one term, shared by all episodes of a process.

    A result is kept only where it is known what it depends on: the arguments and the task, as JSON, and each opened
    resource by the public attribute `version` of its handle. With a resource that has none (or None, for one whose
    state may have changed) every episode computes its own. Callers that ask at once share one computation; a failure
    is never kept, and one caller's failure or cancellation is not another's.
    """

    def __init__(self, size: int = 4096) -> None:
        self._size = size
        self._known: OrderedDict[_Key, Side] = OrderedDict()
        self._running: dict[tuple[_Key, asyncio.AbstractEventLoop], asyncio.Future[Side | None]] = {}

    async def get(self, arguments: Mapping[str, Any], context: RewardContext, compute: Compute) -> Side:
        """The gold result for `arguments`; raises what `compute` raises."""
        key = _key(arguments, context)
        if key is None:
            return await compute(arguments, context)
        place = (key, asyncio.get_running_loop())
        while (side := self._known.get(key)) is None:
            running = self._running.get(place)
            if running is None:
                return await self._compute(key, place, arguments, context, compute)
            # Shielded: this caller's cancellation must not reach the others that wait for the same result.
            if (shared := await asyncio.shield(running)) is not None:
                return shared
        # Another thread may have dropped it in between; the result in hand stays right.
        with contextlib.suppress(KeyError):
            self._known.move_to_end(key)
        return side

    async def _compute(
        self,
        key: _Key,
        place: tuple[_Key, asyncio.AbstractEventLoop],
        arguments: Mapping[str, Any],
        context: RewardContext,
        compute: Compute,
    ) -> Side:
        shared: asyncio.Future[Side | None] = place[1].create_future()
        self._running[place] = shared
        side: Side | None = None
        try:
            side = await compute(arguments, context)
        finally:
            # None tells those who wait to compute for themselves, on resources of their own.
            del self._running[place]
            shared.set_result(side)
        self._known[key] = side
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return side


def _key(arguments: Mapping[str, Any], context: RewardContext) -> _Key | None:
    versions: list[Hashable] = []
    for name, handle in context.resources.items():
        version = getattr(handle, "version", None)
        if version is None or not isinstance(version, Hashable):
            return None
        versions.append((name, version))
    try:
        data = orjson.dumps((dict(arguments), dict(context.task)), option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None
    return data, tuple(versions)
