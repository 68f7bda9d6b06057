"""Where in an episode's messages stands what a term read; see `rlenv.trajectory.Where`.

Places come from what the reader of an action said of it (`ParsedAction.content_at`, a call's `start` and `end`) and
never from looking for a text: what a policy writes twice, or a tool repeats, moves no place. The one exception is what
a judge quotes, which nothing else can place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlenv.errors import RewardError
from rlenv.messages import Message
from rlenv.trajectory import Turn, Where

__all__ = ["checked", "message_of", "of_call", "of_content", "of_quotes", "of_result"]

_SHOWN_CHARS = 80
_MOST_QUOTES = 16
_QUOTE = re.compile(r'"([^"]{4,400})"|“([^”]{4,400})”|`([^`]{4,400})`')


def message_of(messages: Sequence[Message], turns: Sequence[Turn], turn: int) -> int:
    """The number of the message that is the action of a turn, counted from 0."""
    number = len(messages)
    for one in turns[:turn]:
        number += 1 if one.observation is None else 1 + len(one.observation.messages)
    return number


def of_content(turn: Turn, *, message: int, start: int = 0, end: int | None = None) -> Where:
    """Where a part of an action's content stands in the action, one place for each part that the reader cut it into.

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
        found = _cut(at, start + shift, end + shift)
    # A reader that is not ours may say anything, and a place that holds another text is none.
    if "".join([action[first:last] for first, last in found]) != content[start:end]:
        return ()
    return tuple([(message, first, last) for first, last in found])


def _cut(parts: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of a text between two characters of what they are joined to."""
    found, passed = [], 0
    for first, last in parts:
        low, high = max(start - passed, 0), min(end - passed, last - first)
        if low < high:
            found.append((first + low, first + high))
        passed += last - first
    return found


def of_call(turn: Turn, index: int, *, message: int) -> Where:
    """Where a call stands in an action; all of the action where the call came as data, () where there is none."""
    if not 0 <= index < len(turn.parsed.calls):
        return ()
    call = turn.parsed.calls[index]
    start, end = (call.start, call.end) if call.start >= 0 else (0, len(turn.action))
    return ((message, start, end),) if start < end else ()


def of_result(turn: Turn, index: int, *, message: int) -> Where:
    """The message that shows a call's result, as a whole; () where none does.

    Args:
        message: the number of the action's message.
    """
    shown = turn.observation.messages if turn.observation is not None else ()
    if len(shown) != len(turn.results) or not 0 <= index < len(shown):
        return ()
    return ((message + 1 + index, 0, len(shown[index].content)),)


def of_quotes(said: str, messages: Sequence[Message], turns: Sequence[Turn], *, all_turns: bool) -> Where:
    """Where the quotes of a text stand, sign by sign, in what policy, tools and users said; thinking is left out.

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
            for start in _starts(turn.parsed.content, quote):
                hits.append(of_content(turn, message=number, start=start, end=start + len(quote)))
            shown = turn.observation.messages if all_turns and turn.observation is not None else ()
            for place, message in enumerate(shown, number + 1):
                hits += [((place, start, start + len(quote)),) for start in _starts(message.content, quote)]
        if len(hits) == 1:
            found += hits[0]
    return tuple(found)


def _starts(text: str, quote: str) -> list[int]:
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
