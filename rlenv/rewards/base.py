"""The seam between reward terms and scoring."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Account
from rlenv.errors import RewardError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import AnswerSpec, RewardSpec
from rlenv.messages import Message, ToolResult
from rlenv.rewards import places
from rlenv.rewards.answer import Answer
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory, Turn, Where

__all__ = ["GroupContext", "Measured", "RewardContext", "Term", "TermCompileContext", "TermFactory"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A term's value with the text it was read from.

    `value` is None where there was nothing to measure (a turn without calls, say): the term is skipped, not zero.
    A value that is not finite makes the term invalid. `where` are the places that it was read from, where they are not
    those of `Term.where`; the numbers of messages and the units are those of `rlenv.trajectory.Where`.
    """

    value: float | None
    evidence: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    where: Where = ()


@dataclass(frozen=True, slots=True)
class RewardContext:
    """All that a term may read. `turns` holds what the policy wrote, and where; nothing else is the policy's.

    For a turn term, `turns` ends with the turn that is measured. `answer` is None where the policy gave none.
    `reason` is why the episode ended ("" while it runs).
    """

    task: Mapping[str, Any]
    messages: Sequence[Message]
    turns: Sequence[Turn]
    answer: str | None
    resources: Mapping[str, Any]
    vars: Mapping[str, Any]
    call: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
    """Runs a tool of the spec under its own policies (for verify); the result's `outcome` tells whose fault it was."""
    reason: str = ""
    shared: Callable[[], Scope] = Scope
    """What is kept as long as the environment (an endpoint's connections, say) and closed with it."""
    seed: int = 0
    found: Answer | None = None
    """`answer` with its place in the last action, as it was read there."""

    @property
    def final_text(self) -> str:
        """What the policy wrote last, outside thinking and calls ("" before the first turn)."""
        return self.turns[-1].parsed.content if self.turns else ""

    @property
    def answer_at(self) -> Where:
        """Where `answer` stands: its text in the last action, or the call that gave it; () where that is not known."""
        found = self.found
        if found is None or not self.turns:
            return ()
        last = len(self.turns) - 1
        if found.call >= 0:
            return self.where_call(last, found.call)
        return self.where_final(found.start, found.end) if found.start >= 0 else ()

    def where_final(self, start: int = 0, end: int | None = None) -> Where:
        """Where the characters `start` to `end` (exclusive; None for all that follow) of `final_text` stand."""
        if not self.turns:
            return ()
        return places.of_content(self.turns[-1], message=self._message(len(self.turns) - 1), start=start, end=end)

    def where_call(self, turn: int, index: int) -> Where:
        """Where a call stands in the action of a turn, both counted from 0; the whole action for one given as data."""
        return places.of_call(self.turns[turn], index, message=self._message(turn))

    def where_result(self, turn: int, index: int) -> Where:
        """The message that shows the result of a call, as a whole; () where none does."""
        return places.of_result(self.turns[turn], index, message=self._message(turn))

    def _message(self, turn: int) -> int:
        return places.message_of(self.messages, self.turns, turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """What a term that asks about all answers to one task may use beside them.

    `accounts` are those of the answers, in order: what is asked of models is counted in them.
    """

    vars: Mapping[str, Any]
    shared: Callable[[], Scope]
    accounts: Sequence[Account]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A compiled term. Exactly one of `measure` (quick, on the loop), `measure_async` and the two of a group is set.

    `measure_group` takes the trajectories of all answers to one task and gives one Measured for each, in order; it is
    called once the whole group has ended (see `rlenv.rewards.group_terms`), and until then the term is skipped.
    `ask_group` is one that has to be awaited; it takes those whose gate is open, and may say of each why it could not
    be measured.

    Each raises RewardError where the term could not be measured; any other exception makes the term invalid too,
    and is reported as the author's.
    """

    name: str
    spec: RewardSpec
    measure: Callable[[RewardContext], Measured] | None = None
    measure_async: Callable[[RewardContext], Awaitable[Measured]] | None = None
    measure_group: Callable[[Sequence[Trajectory]], Sequence[Measured]] | None = None
    ask_group: Callable[[Sequence[Trajectory], GroupContext], Awaitable[Sequence[Measured | RewardError]]] | None = None
    reads: tuple[str, ...] = ()
    """The other terms whose values `measure_group` reads."""
    where: Callable[[RewardContext], Where] | None = None
    """Where the evidence stands of what the term measured, if its `Measured` does not say."""
    check_gold: Callable[[RewardContext], None] | None = None
    """Reads the task's gold values, in any time, while a spec is validated; raises RewardError where one cannot be
    compared with. Without it a quick term's `measure` is asked instead."""

    @property
    def is_of_group(self) -> bool:
        """Whether it is measured once all answers to a task are there."""
        return self.measure_group is not None or self.ask_group is not None


@dataclass(frozen=True, slots=True)
class TermCompileContext(CompileContext):
    """What a term's factory may use beside the rest: the compiled tools and the answer rule."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    answer: AnswerSpec = field(default_factory=AnswerSpec)


class TermFactory(Protocol):
    """Compiles one entry under `rewards:`; author mistakes raise `rlenv.errors.UsageError`."""

    def __call__(self, name: str, spec: Any, context: TermCompileContext) -> Term: ...
