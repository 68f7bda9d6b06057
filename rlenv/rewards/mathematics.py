"""Mathematical equality in processes that can be killed.

What goes wrong is told apart by whose it is. An answer that uses up its processor time or memory, or that brings
its process down, is a wrong one. An accepted answer that does so is a fault of the data. A process that has no
processor (stopped, starved) or that somebody ends says nothing about the answer: the comparison is made again in
another process, and where that does not go either, nothing is known.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.pool import Pool
from rlenv.concurrency.processes import Gone, Process, Program, StartFailed
from rlenv.concurrency.served import ENDED_FULL
from rlenv.errors import MissingExtra, RewardError

__all__ = ["Verdict", "Workers", "shared_workers"]

_TRIES: Final = 3
# How long a process may be without an answer beside the processor time that it may use: the machine is busy.
_STALL_S: Final = 30.0
_STALL_FACTOR: Final = 8.0
_CRASHES: Final = 2
"""Once may be anything; what ends its process again does so itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer equals an accepted one, and why not where that is not a matter of mathematics."""

    is_equal: bool
    note: str = ""


class Workers:
    """A few processes that compare expressions; started when needed, ended with the interpreter or by `pool.close`.

    Args:
        size: how many at once; as many as there are processors where it is not given, two at least.
        stall_s: how many seconds a process may give no answer beside the processor time that it may use.
        program: what compares; see `_math_worker`.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(
        self, *, size: int | None = None, stall_s: float = _STALL_S, program: str = "rlenv.rewards._math_worker:serve"
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra("the rule math_equal", extra="math")
        self.pool = Pool(Program(program, is_bare=True), limit=size)
        self._stall_s = stall_s

    async def compare(self, mine: str | None, golds: Sequence[str], *, limit_s: float) -> Verdict:
        """Compares in a process; where there is no answer (None) the accepted ones are only read.

        An answer that cannot be read, or that takes more than `limit_s` seconds of processor time or more memory than
        a process has, is not equal.

        Raises:
            RewardError: an accepted answer cannot be read within the same limits, or nothing became known because
                the process was stopped, starved or ended from outside.
        """
        patience_s = self._stall_s + _STALL_FACTOR * limit_s
        asked = {"golds": list(golds), "mine": mine, "cpu_s": limit_s, "wall_s": patience_s}

        async def work(process: Process) -> dict[str, Any]:
            async with asyncio.timeout(patience_s):
                body, _ = await process.ask(json.dumps(asked).encode())
            said: dict[str, Any] = json.loads(body)
            return said

        error: Exception | None = None
        crashes = 0
        for _ in range(_TRIES):
            try:
                said = await self.pool.run(work)
            except Expired as late:
                raise RewardError(
                    f"the process that compares expressions gave no answer for {patience_s:g} s and had "
                    "not used up its processor time: the machine stopped or starved it"
                ) from late
            except StartFailed as failed:
                raise RewardError(f"the process that compares expressions did not start: {failed}") from failed
            except Gone as gone:
                error = gone
                crashes += gone.cause in ("crash", "exit")
                ends = {"used_up": gone.cause == "processor", "memory": gone.status == ENDED_FULL}
                ends["crash"] = crashes >= _CRASHES
                if not any(ends.values()):
                    continue
                if mine is not None:  # by itself, or the accepted answers did it
                    await self.compare(None, golds, limit_s=limit_s)
                said = {"of_gold" if mine is None else "of_mine": ends}
            _refuse(said.get("of_gold", {}), golds, limit_s)
            return _verdict(said.get("of_mine", {}), limit_s)
        raise RewardError(f"the process that compares expressions was ended from outside: {error}") from error

    def check(self, golds: Sequence[str], *, limit_s: float) -> None:
        """Reads accepted answers, from any thread; an event loop that runs in it waits.

        Raises:
            RewardError: one of them cannot be read within `limit_s` seconds of processor time.
        """
        raised: list[BaseException] = []

        def read() -> None:
            try:
                asyncio.run(self.compare(None, golds, limit_s=limit_s))
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=read, name="rlenv-math")
        thread.start()
        thread.join()
        if raised:
            raise raised[0]


def _verdict(said: Mapping[str, Any], limit_s: float) -> Verdict:
    if said.get("used_up"):
        return Verdict(False, f"not decided within {limit_s:g} s of processor time")
    if said.get("memory"):
        return Verdict(False, "it takes more memory than there is to compare")
    if said.get("crash"):
        return Verdict(False, "it brings down the process that reads it")
    note = said.get("error") or ("cannot be read as one expression" if said.get("unreadable") else "")
    return Verdict(bool(said.get("equal")), note)


def _refuse(said: Mapping[str, Any], golds: Sequence[str], limit_s: float) -> None:
    """Raises RewardError where an accepted answer cannot be compared with."""
    gold = said.get("gold", golds[0] if golds else "")
    for key, why in (
        ("used_up", f"takes more than {limit_s:g} s"),
        ("memory", "takes more memory than there is"),
        ("crash", "brings down the process that reads it"),
    ):
        if said.get(key):
            raise RewardError(f"expect: reading the gold value {gold!r:.80} {why}")
    if said.get("unreadable"):
        raise RewardError(f"expect: the gold value {gold!r:.80} cannot be read as mathematics")


@lru_cache(maxsize=1)
def shared_workers() -> Workers:
    """The workers of this process.

    Raises:
        MissingExtra: the library is not installed.
    """
    return Workers()
