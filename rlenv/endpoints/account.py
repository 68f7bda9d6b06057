"""The account of who asked which model for how much of an episode, and of whatever is played inside of a block.

Whoever asks says as whom (`asks("tool look_up")`), and a client adds what every try cost to the account of its task. A
context variable carries both, so that episodes that run at once on one client are never mixed, and a request that
several wait for is counted once: for the task that made it.

An account that is made inside of a role passes on what it counts: a nested episode's figures are also the outer one's,
under `agent NAME > policy`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

from rlenv.endpoints.wire import Usage
from rlenv.trajectory import ModelUsage

__all__ = ["Account", "Asking", "as_recorded", "asking", "asks", "counted", "merged"]

_COUNTS: Final = (
    "requests",
    "failed",
    "unknown",
    "cached",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "seconds",
)


class Account:
    """Sums by role and model. For one event loop."""

    __slots__ = ("_above", "_entries")

    def __init__(self) -> None:
        self._above = _asking.get()
        self._entries: dict[tuple[str, str, bool], ModelUsage] | None = None

    def entries(self) -> tuple[ModelUsage, ...]:
        """The entries so far, in the order in which a role first asked; () where nothing was."""
        return tuple(self._entries.values()) if self._entries else ()

    def add(self, usage: ModelUsage) -> None:
        """Adds to the sums of the usage's role and model."""
        if self._entries is None:
            self._entries = {}
        _add(self._entries, usage)
        if self._above is not None:
            self._above.account.add(replace(usage, role=_below(self._above.role, usage.role)))


class Asking:
    """An account, and the role that its requests are counted for."""

    __slots__ = ("account", "role")

    def __init__(self, account: Account, role: str) -> None:
        self.account = account
        self.role = role

    def tried(
        self, model: str, usage: Usage, *, failed: bool = False, seconds: float = 0.0, is_recorded: bool = False
    ) -> None:
        """Counts one try: with its tokens, as one of unknown tokens where a good answer does not say them."""
        self.account.add(
            ModelUsage(
                self.role,
                model,
                requests=1,
                failed=int(failed),
                unknown=int(not failed and not usage.is_known),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                reasoning_tokens=usage.reasoning_tokens,
                seconds=seconds,
                is_recorded=is_recorded,
            )
        )

    def unread(self, model: str, *, is_recorded: bool = False) -> None:
        """Counts a try that was taken for a good one as failed: what it said could not be read."""
        self.account.add(ModelUsage(self.role, model, failed=1, is_recorded=is_recorded))

    def known(self, model: str) -> None:
        """Counts a question whose answer was there already."""
        self.account.add(ModelUsage(self.role, model, cached=1))


_asking: Final[ContextVar[Asking | None]] = ContextVar("rlenv_asking", default=None)

asking: Final = _asking.get
"""For whom the task asks; None where nobody counts."""


class counted:
    """Counts what a block, and the tasks that it starts, ask for in `account`; None changes nothing."""

    __slots__ = ("_asking", "_token")

    def __init__(self, account: Account | None, role: str = "") -> None:
        self._asking = None if account is None else Asking(account, role)

    def __enter__(self) -> None:
        self._token = None if self._asking is None else _asking.set(self._asking)

    def __exit__(self, *_error: object) -> None:
        if self._token is not None:
            _asking.reset(self._token)


class asks(counted):
    """Names who asks in a block, below whoever does around it; where nobody counts it changes nothing."""

    __slots__ = ()

    def __init__(self, role: str) -> None:
        around = _asking.get()
        super().__init__(*((None,) if around is None else (around.account, _below(around.role, role))))


def as_recorded(entries: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """The usage of a recorded episode, as figures of one that is made of it: nobody asks for it again."""
    return merged(replace(one, is_recorded=True) for one in entries)


def merged(entries: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """One entry for each role and model, and for what was recorded apart."""
    found: dict[tuple[str, str, bool], ModelUsage] = {}
    for one in entries:
        _add(found, one)
    return tuple(found.values())


def _add(entries: dict[tuple[str, str, bool], ModelUsage], usage: ModelUsage) -> None:
    key = (usage.role, usage.model, usage.is_recorded)
    before = entries.get(key)
    if before is not None:
        usage = replace(before, **{name: getattr(before, name) + getattr(usage, name) for name in _COUNTS})
    entries[key] = usage


def _below(role: str, inner: str) -> str:
    return f"{role} > {inner}" if role and inner else role or inner
