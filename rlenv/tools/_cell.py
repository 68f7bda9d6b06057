"""One piece of a model's code: how it is run, and what that gave, whatever sandbox ran it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlenv._base.bounded import encodable
from rlenv.concurrency.processes import Work
from rlenv.errors import Whose
from rlenv.tools._zygote import is_plain

_MAX_SHOWN, _MAX_ERROR = 10_000, 2_000


class CodeLimits(Protocol):
    """The limits of a piece of code: its own seconds, its memory and disk, and the characters kept of its output."""

    @property
    def time_s(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CodeRequest:
    """The code to run: `message` with its `mode` (see `_zygote.run`); `fds` are its input and its end of a socket, or
    nothing.

    `sent` is called once a sandbox has them, with what gives the seconds since then in which the sandbox and its code
    were ready and got no processor; `beside` gives those of whoever the code waits for. Once `unasked` is set, nobody
    waits for it any more, and it is stopped. `patience_s` is how long it is waited for where that is more than the time
    that the limits give to the code itself. `is_retry` says that the same has ended as `late` before, or that
    there is no time to try it again.
    """

    message: Mapping[str, Any]
    fds: tuple[int, ...] = ()
    sent: Callable[[Callable[[], float]], None] = lambda _: None
    beside: Callable[[], float] = float
    unasked: asyncio.Event | None = None
    patience_s: float = 0.0
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a piece of code.

    `output` is what it printed, `shown` its last expression as text (None without one), `result` that as JSON.
    `error` says why it did not end well, None where it did; `reason` is then a word of `rlenv.errors.WHOSE`, and
    `whose` whose doing it was where the word alone does not tell. `calls` are the tools that it called, in order:
    `{"tool", "arguments", "outcome"}`. `cpu_s` and `lived_s` are its time at the processor and from start to end;
    `delayed_s` of that it, its sandbox or whoever it waited for was ready and got no processor.
    """

    output: str = ""
    is_cut: bool = False
    shown: str | None = None
    result: Any = None
    error: str | None = None
    reason: str = "failed"
    whose: Whose | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    cpu_s: float = 0.0
    lived_s: float = 0.0
    delayed_s: float = 0.0


def stop_reason(
    work: Work | None, time_s: float, elapsed_s: float, beside_s: float, *, is_last: bool
) -> tuple[str, float]:
    """The reason to stop code that has not ended, "" where it was kept from the processor and has time left, and that
    time.

    Args:
        beside_s: for so long whoever it waits for was kept from the processor.
        is_last: the time of whoever asks is over, whatever the code had of it.
    """
    if work is None or work.is_stopped or work.has_ended:
        return "stalled", 0.0  # it has ended or not begun, and whoever started it does nothing about it
    own_s = max(work.cpu_s, min(work.own_s, elapsed_s) - beside_s)
    if own_s < time_s - 0.01:
        if not is_last:
            return "", max(time_s - own_s, 0.01)
        if own_s < elapsed_s / 2:
            return "stalled", 0.0
    # It waits for a disk, or for its own memory: `Sandboxes.run` finds out for whose sake.
    return ("late" if work.state == "D" and work.cpu_s < time_s / 2 else "timeout"), 0.0


def plain_copy(value: Any) -> Any:
    """A copy of what `is_plain` of `_zygote` took, each text such that any reader takes it."""
    kind = type(value)
    if kind is str:
        return encodable(value)
    if kind is list:
        return [plain_copy(item) for item in value]
    return {encodable(key): plain_copy(item) for key, item in value.items()} if kind is dict else value


def read_result(said: bytes, token: str) -> tuple[str | None, Any, str | None] | None:
    """The last message of a code's process that ran to its end; None for anything else than exactly that."""
    line, newline, _ = said.partition(b"\n")
    if not newline or not line.startswith(token.encode()):
        return None
    try:
        told = json.loads(line[len(token) :])
    except (ValueError, RecursionError):
        return None
    if type(told) is not dict or told.keys() != {"shown", "result", "error"}:
        return None
    shown, error = told["shown"], told["error"]
    if type(shown) not in (str, type(None)) or type(error) not in (str, type(None)) or not is_plain(told["result"]):
        return None
    return _cut_text(shown, _MAX_SHOWN), plain_copy(told["result"]), _cut_text(error, _MAX_ERROR)


def _cut_text(text: str | None, most: int) -> str | None:
    return None if text is None else encodable(text[:most])
