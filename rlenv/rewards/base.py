"""The seam of reward terms: what a term is given, what it measures, and where in the episode that stands."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlenv.concurrency.scope import Scope
from rlenv.endpoints.account import Account
from rlenv.errors import RewardError
from rlenv.language.kinds import CompileContext
from rlenv.language.spec import AnswerSpec, RewardSpec
from rlenv.messages import Message, ToolResult
from rlenv.resources.base import Folder
from rlenv.rewards.answer import GivenAnswer
from rlenv.tools.base import Tool
from rlenv.trajectory import Trajectory, Turn, Where

__all__ = ["GroupContext", "Measured", "RewardContext", "Term", "TermCompileContext", "TermFactory", "checked"]
__all__ += ["message_of", "where_of_call", "where_of_content", "where_of_quotes", "where_of_result"]

_SHOWN_CHARS = 80
_MOST_QUOTES = 16
_OF_FILES = ("command", "python")
"""Kinds of tools that stand on nothing of the episode's but what their entry names."""
_QUOTE = re.compile(r'"([^"]{4,400})"|“([^”]{4,400})”|`([^`]{4,400})`')


def message_of(messages: Sequence[Message], turns: Sequence[Turn], turn: int) -> int:
    """The number of the message that is the action of a turn, counted from 0."""
    number = len(messages)
    for one in turns[:turn]:
        number += 1 if one.observation is None else 1 + len(one.observation.messages)
    return number


def where_of_content(turn: Turn, *, message: int, start: int = 0, end: int | None = None) -> Where:
    """The places of a part of an action's content in the action, one for each part that the reader cut it into.

    Args:
        message: the number of the action's message.
        start: the part's first character, in `turn.parsed.content`.
        end: the one behind its last; None for the content's end.

    Returns:
        The places in order; () where the reader does not say, or the part is empty.
    """
    parsed, action = turn.parsed, turn.action
    content = parsed.content
    end = len(content) if end is None else end
    at = parsed.content_at
    if not at or start >= end:
        return ()
    if len(at) == 1:  # most messages: what stands around the content is white space
        first, last = at[0]
        part = action[first:last]
        begin = first + len(part) - len(part.lstrip())
        found = [(begin + start, begin + end)]
    else:
        whole = "".join([action[first:last] for first, last in at])
        shift = len(whole) - len(whole.lstrip())
        found = _cut_parts(at, start + shift, end + shift)
    # A reader that is not ours may say anything, and a place that holds another text is none.
    if "".join([action[first:last] for first, last in found]) != content[start:end]:
        return ()
    return tuple([(message, first, last) for first, last in found])


def _cut_parts(parts: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of a text between two characters of what they are joined to."""
    found, offset = [], 0
    for first, last in parts:
        low, high = max(start - offset, 0), min(end - offset, last - first)
        if low < high:
            found.append((first + low, first + high))
        offset += last - first
    return found


def where_of_call(turn: Turn, index: int, *, message: int) -> Where:
    """The place of a call in an action; all of the action where the call came as data, () where there is none."""
    if not 0 <= index < len(turn.parsed.calls):
        return ()
    call = turn.parsed.calls[index]
    start, end = (call.start, call.end) if call.start >= 0 else (0, len(turn.action))
    return ((message, start, end),) if start < end else ()


def where_of_result(turn: Turn, index: int, *, message: int) -> Where:
    """The message that shows a call's result, as a whole; () where none does.

    Args:
        message: the number of the action's message.
    """
    shown = turn.observation.messages if turn.observation is not None else ()
    if len(shown) != len(turn.results) or not 0 <= index < len(shown):
        return ()
    return ((message + 1 + index, 0, len(shown[index].content)),)


def where_of_quotes(said: str, messages: Sequence[Message], turns: Sequence[Turn], *, all_turns: bool) -> Where:
    """The places of a text's quotes, sign by sign, in the text of policy, tools and users; thinking is left out.

    A quote that stands nowhere or more than once has no place: which of them was meant is not to be guessed.

    Args:
        all_turns: look in all turns, and not in the last action alone.
    """
    first = 0 if all_turns else len(turns) - 1
    found: list[tuple[int, int, int]] = []
    for match in list(_QUOTE.finditer(said))[:_MOST_QUOTES]:
        quote = next(filter(None, match.groups()))
        hits: list[Where] = []
        for index in range(max(first, 0), len(turns)):
            turn, number = turns[index], message_of(messages, turns, index)
            for start in _find_quote(turn.parsed.content, quote):
                hits.append(where_of_content(turn, message=number, start=start, end=start + len(quote)))
            shown = turn.observation.messages if all_turns and turn.observation is not None else ()
            for place, message in enumerate(shown, number + 1):
                hits += [((place, start, start + len(quote)),) for start in _find_quote(message.content, quote)]
        if len(hits) == 1:
            found += hits[0]
    return tuple(found)


def _find_quote(text: str, quote: str) -> list[int]:
    """The first two places of a quote."""
    first = text.find(quote)
    second = text.find(quote, first + 1) if first >= 0 else -1
    return [start for start in (first, second) if start >= 0]


def checked(where: Any, messages: Sequence[Message], turns: Sequence[Turn]) -> Where:
    """The places that an author's function gave.

    Raises:
        RewardError: they are no places, or one is none of these messages.
    """
    try:
        found = tuple([(message, start, end) for message, start, end in where])
    except (TypeError, ValueError):
        found = ((None, None, None),)
    if any(type(number) is not int for place in found for number in place):
        raise RewardError(f"gave where {where!r:.{_SHOWN_CHARS}}; expected (message, start, end) for each place")
    sizes = [len(message.content) for message in messages]
    for turn in turns:
        shown = turn.observation.messages if turn.observation is not None else ()
        sizes += [len(turn.action), *[len(message.content) for message in shown]]
    for message, start, end in found:
        if not 0 <= message < len(sizes):
            raise RewardError(f"gave a place in message {message}; there are {len(sizes)}, counted from 0")
        if not 0 <= start <= end <= sizes[message]:
            raise RewardError(
                f"gave the place {start} to {end} in message {message}, which has {sizes[message]} characters"
            )
    return found


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


Look = Callable[[Mapping[str, Any]], None]
"""Sees opened resources, by name."""


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
    found: GivenAnswer | None = None
    """`answer` with its place in the last action, as it was read there."""
    after: Callable[[Any, Look], AbstractAsyncContextManager[Mapping[str, Any]]] | None = None
    """The episode's resources opened once more, after gold calls (`rlenv.policies.base.read_calls`) were run on them;
    the function is called with them before these. None where there is no environment. A gold call that infrastructure
    failed raises RewardError."""
    call_anew: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]] | None = None
    """As `call`, over resources that are opened once more, and closed with it. None where there is no environment."""

    def call_known(
        self, tool: Tool, known: Mapping[str, Any]
    ) -> Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]:
        """`call` for one that is known to work; `call_anew` where what the policy left in a folder could break that."""
        handles = [self.resources.get(name) for name in tool.resources]
        is_of_files = tool.kind in _OF_FILES and bool(handles) and all(isinstance(one, Folder) for one in handles)
        return self.call_anew if is_of_files and known is tool.example and self.call_anew is not None else self.call

    @property
    def final_text(self) -> str:
        """The policy's last text, outside thinking and calls ("" before the first turn)."""
        return self.turns[-1].parsed.content if self.turns else ""

    @property
    def said(self) -> str:
        """All that the policy said, a message a line, outside thinking and calls."""
        return "\n".join(turn.parsed.content for turn in self.turns)

    @property
    def answer_at(self) -> Where:
        """The place of `answer`: its text in the last action, or the call that gave it; () where that is not known."""
        found = self.found
        if found is None or not self.turns:
            return ()
        last = len(self.turns) - 1
        if found.call >= 0:
            return self.where_call(last, found.call)
        return self.where_final(found.start, found.end) if found.start >= 0 else ()

    def where_final(self, start: int = 0, end: int | None = None) -> Where:
        """The place of the characters `start` to `end` (exclusive; None for all that follow) of `final_text`."""
        if not self.turns:
            return ()
        return where_of_content(self.turns[-1], message=self._message(len(self.turns) - 1), start=start, end=end)

    def where_call(self, turn: int, index: int) -> Where:
        """The place of a call in the action of a turn, both counted from 0; the whole action for one given as data."""
        return where_of_call(self.turns[turn], index, message=self._message(turn))

    def where_result(self, turn: int, index: int) -> Where:
        """The message that shows the result of a call, as a whole; () where none does."""
        return where_of_result(self.turns[turn], index, message=self._message(turn))

    def _message(self, turn: int) -> int:
        return message_of(self.messages, self.turns, turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """The values that a term over all answers to one task may use beside them.

    `accounts` are those of the answers, in order: what is asked of models is counted in them.
    """

    vars: Mapping[str, Any]
    shared: Callable[[], Scope]
    accounts: Sequence[Account]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A compiled term. Exactly one of `measure` (quick, on the loop), `measure_async` and the two of a group is set.

    `measure_group` takes the trajectories of all answers to one task and gives one Measured for each, in order; it is
    called once the whole group has ended (see `rlenv.rewards.group`), and until then the term is skipped.
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
    row_weight: Callable[[Mapping[str, Any]], float] | None = None
    """Gives a row's weight where the spec's is a template."""

    @property
    def is_of_group(self) -> bool:
        """True if it is measured once all answers to a task are there."""
        return self.measure_group is not None or self.ask_group is not None


def weighing(term: Term, weight: float | None) -> Term:
    """The term with another weight; as it is for None."""
    return term if weight is None else replace(term, spec=term.spec.model_copy(update={"weight": weight}))


@dataclass(frozen=True, slots=True)
class TermCompileContext(CompileContext):
    """The values that a term's factory may use beside the rest: the compiled tools and the answer rule."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    answer: AnswerSpec = field(default_factory=AnswerSpec)


class TermFactory(Protocol):
    """Compiles one entry under `rewards:`; author mistakes raise `rlenv.errors.UsageError`."""

    def __call__(self, name: str, spec: Any, context: TermCompileContext) -> Term: ...
