"""Whether a judge's endpoint is worth asking, shared by all episodes of an environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

from rlenv.concurrency.breaker import Breaker
from rlenv.concurrency.scope import Scope
from rlenv.endpoints import REFUSED, Endpoint
from rlenv.errors import EndpointError
from rlenv.language.spec import BreakerSpec

__all__ = ["Health"]

_T = TypeVar("_T")
_HUNG_S = 10.0


class Health:
    """A breaker around the requests to one endpoint.

    What counts as a failure: no answer, or one that says that the server is not well. A server that refuses what it
    was sent is well, and so is one whose reply cannot be read: a policy could bring both about. A request that is
    cancelled, because the time for the reward was over, counts if it had waited for `hung_s` seconds and nobody got an
    answer meanwhile. Failures of one episode alone open nothing,
    unless one is enough.
    """

    def __init__(
        self, name: str, spec: BreakerSpec, *, hung_s: float = _HUNG_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._spec, self._clock, self._hung_s = name, spec, clock, hung_s
        self._breaker = Breaker(failures=spec.failures, reset_s=spec.reset_s, clock=clock)
        self._answers = 0

    @classmethod
    def of(cls, endpoint: Endpoint, spec: BreakerSpec, scope: Scope, *, limit_s: float | None) -> Health | None:
        """The one that all who share `scope` share; None where the spec wants no breaker.

        Args:
            limit_s: the seconds for one judge's verdict; None for no limit.
        """
        if not spec.failures:
            return None
        hung_s = _HUNG_S if limit_s is None else min(_HUNG_S, limit_s / 2)
        key = ("judge health", endpoint, spec.failures, spec.reset_s, hung_s)
        return scope.keep(key, lambda: cls(endpoint.name, spec, hung_s=hung_s))

    async def ask(self, request: Callable[[], Awaitable[_T]], *, caller: Hashable) -> _T:
        """What the request gives.

        Args:
            caller: the episode that asks; its material may be what a server breaks on.

        Raises:
            EndpointError: the breaker is open, or what the request raises.
        """
        breaker = self._breaker
        if not breaker.admits():
            spec = self._spec
            told = f"{spec.failures} failures in a row; it is tried again after {spec.reset_s:g} s"
            raise EndpointError(f"endpoint '{self._name}' is left alone: {told}")
        begun, answers = self._clock(), self._answers
        try:
            found = await request()
        except EndpointError as error:
            if error.status in REFUSED:
                breaker.succeeded()
            else:
                breaker.failed(caller)
            raise
        except asyncio.CancelledError:
            if self._answers == answers and self._clock() - begun >= self._hung_s:
                breaker.failed(caller)
            else:
                breaker.abandoned()
            raise
        except BaseException:
            breaker.abandoned()
            raise
        self._answers += 1
        breaker.succeeded()
        return found
