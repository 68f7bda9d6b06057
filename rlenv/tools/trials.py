"""A policy's code under tests that it cannot reach: the code in one sandbox, what tests it in another.

The two share a socket over which only plain values pass (see `_exchange`). The tests' sandbox runs nothing of the
policy's, and says itself whether a test passed; what the code prints, writes and ends with counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlenv.errors import EpisodeError, ToolFailed
from rlenv.tools._cell import CodeLimits, CodeRequest, Outcome
from rlenv.tools._exchange import encode_value
from rlenv.tools._process import sealed_file
from rlenv.tools._sandbox import Sandboxes, check_sandbox

__all__ = ["CodeLimits", "TrialVerdict", "Trials", "check_sandbox", "encode_value", "open_trials"]

_NOT_THE_CODE = frozenset(("worker", "stalled", "late", "busy", "sandbox"))
_FORKS_S = 30.0  # so long beyond the code's own time its process may be kept from the processor
_LETTING_GO_S = 0.1  # the code's process ends by itself when nobody asks any more; one that does not is stopped


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The verdict of a test. `is_ours` says that sandbox, machine or test failed: nothing is known about the code.

    `why` is "" for one that passed; it may hold what the test expected. `own_s` is the time that was the code's own: at
    work, or waiting for what it asked for itself; `delayed_s` that in which it, or what tests it, was ready and got no
    processor.
    """

    passed: bool
    why: str = ""
    is_ours: bool = False
    own_s: float = 0.0
    delayed_s: float = 0.0


class Trials:
    """At most `limit` tests at once, each in a fresh process of the code and one of the tests."""

    def __init__(self, limit: int) -> None:
        self._places = asyncio.Semaphore(limit)
        # Apart, so that no sandbox that a policy's code ran in ever runs a test.
        self._codes, self._judges = Sandboxes(limit), Sandboxes(limit)

    def close(self) -> None:
        """Ends all sandboxes and what runs in them."""
        self._codes.close()
        self._judges.close()

    async def run_program(
        self, code: str, given: str, *, limits: CodeLimits, seed: int, is_retry: bool = False
    ) -> tuple[str, TrialVerdict]:
        """The output of the code as a program with `given` on its standard input, and whether it ended well."""
        input_fd = sealed_file(given.encode("utf-8", "surrogatepass"))
        try:
            wanted = CodeRequest({"mode": "program", "code": code}, (input_fd, input_fd), is_retry=is_retry)
            async with self._places:
                outcome = await _run_code(self._codes, wanted, limits, seed)
        finally:
            os.close(input_fd)
        return outcome.output, _add_times(_code_verdict(outcome), outcome)

    async def run_test(
        self,
        sources: Sequence[str],
        test: Mapping[str, Any],
        *,
        limits: CodeLimits,
        seed: int,
        in_place: bool,
        is_retry: bool = False,
    ) -> TrialVerdict:
        """The verdict of one test of the code.

        Args:
            sources: what runs one after another in the code's process before it is called.
            test: `{"setup", "program", "names"}`, or `{"entry", "args", "kwargs", "expected", "compare"}` with values
                of `encode_value`; see `_exchange.judge_test`.
            limits: of the code's process, and of the tests' own work too.
            in_place: what the code changes in its arguments is changed for the tests too.
            is_retry: the machine failed the same test before; see `Sandboxes.run`.
        """
        told = {"mode": "serve", "sources": list(sources), "in_place": in_place}
        async with self._places:
            return await self._run_pair(told, {"mode": "judge", **test, "in_place": in_place}, limits, seed, is_retry)

    async def _run_pair(
        self, told: Mapping[str, Any], test: Mapping[str, Any], limits: CodeLimits, seed: int, is_retry: bool
    ) -> TrialVerdict:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        nothing = sealed_file(b"")
        has_begun, unasked = asyncio.Event(), asyncio.Event()
        delays: dict[str, Callable[[], float]] = {"judge": float, "code": float}

        def judge_sent(delayed: Callable[[], float]) -> None:
            ours.close()  # whoever holds an end keeps the other side from hearing that this one has ended
            delays["judge"] = delayed
            has_begun.set()

        def code_sent(delayed: Callable[[], float]) -> None:
            theirs.close()
            delays["code"] = delayed

        async def serve_code() -> Outcome:
            await has_begun.wait()  # a tests' sandbox that starts slowly takes no time of the code's
            fds = (nothing, theirs.fileno())
            wanted = CodeRequest(told, fds, code_sent, lambda: delays["judge"](), unasked, is_retry=is_retry)
            return await _run_code(self._codes, wanted, limits, seed)

        code = asyncio.ensure_future(serve_code())
        try:
            fds, patience_s = (nothing, ours.fileno()), limits.time_s + _FORKS_S
            wanted = CodeRequest(test, fds, judge_sent, lambda: delays["code"](), patience_s=patience_s)
            judge = asyncio.ensure_future(_run_code(self._judges, wanted, limits, seed))
            try:
                await asyncio.wait((judge, code), return_when=asyncio.FIRST_COMPLETED)
                if code.done():
                    theirs.close()  # of a code that was never begun
                verdict = await judge
                delays["judge"] = partial(float, verdict.delayed_s)  # its sandbox may run another's test by now
                is_gone = isinstance(verdict.result, dict) and verdict.result["gone"]  # why, its sandbox will tell
                await asyncio.wait((code,), timeout=None if is_gone else _LETTING_GO_S)
                unasked.set()
                outcome = await code if has_begun.is_set() else Outcome()
                return _add_times(_test_verdict(verdict, outcome), outcome, verdict.cpu_s)
            finally:
                await _cancel_task(judge)
        finally:
            await _cancel_task(code)
            ours.close()
            theirs.close()
            os.close(nothing)


async def _run_code(sandboxes: Sandboxes, wanted: CodeRequest, limits: CodeLimits, seed: int) -> Outcome:
    deadline = time.monotonic() + max(limits.time_s, wanted.patience_s) + _FORKS_S
    try:
        return await sandboxes.run(wanted, limits, deadline=deadline, seed=seed)
    except (EpisodeError, ToolFailed) as error:
        return Outcome(error=str(error), reason="sandbox")


async def _cancel_task(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))


def _code_verdict(outcome: Outcome) -> TrialVerdict:
    return TrialVerdict(outcome.error is None, outcome.error or "", outcome.reason in _NOT_THE_CODE)


def _add_times(verdict: TrialVerdict, code: Outcome, cpu_s: float = 0.0) -> TrialVerdict:
    own_s = max(cpu_s, code.cpu_s, code.lived_s - code.delayed_s)
    return replace(verdict, own_s=own_s, delayed_s=code.delayed_s)


def _test_verdict(judged: Outcome, code: Outcome) -> TrialVerdict:
    said = judged.result
    if judged.error is not None:
        # Of the tests' process; its time and memory go where the code's values lead.
        return TrialVerdict(False, f"the test did not end: {judged.error}", judged.reason in _NOT_THE_CODE)
    if not isinstance(said, dict):
        return TrialVerdict(False, "the test said nothing", is_ours=True)
    if not said["asked"]:
        why = said["why"] or "every answer passes it; call its functions, or unittest.main()"
        return TrialVerdict(False, f"it ended without asking anything of the code: {why}", is_ours=True)
    if said["gone"] and code.error is not None:
        return _code_verdict(code)
    return TrialVerdict(said["passed"], said["why"])


@asynccontextmanager
async def open_trials(limit: int) -> AsyncIterator[Trials]:
    """Trials for as long as they are wanted."""
    with contextlib.closing(Trials(limit)) as trials:
        yield trials
