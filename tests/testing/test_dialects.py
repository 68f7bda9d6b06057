"""The laws of dialects say what was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from rlenv import dialects
from rlenv.messages import MalformedCall, ParsedAction, ToolCall
from rlenv.testing import check_dialect

HERMES = dialects.get("hermes")
Read = Callable[[str, ParsedAction], ParsedAction]


class Other:
    """A dialect that writes as HERMES does, and makes something else of what that reads."""

    def __init__(self, read: Read = lambda text, action: action, name: str = "other") -> None:
        self.name = name
        self._read = read

    def parse(self, text: str, tools: Mapping[str, Any] | None = None) -> ParsedAction:
        return self._read(text, HERMES.parse(text, tools))

    def __getattr__(self, name: str) -> Any:
        return getattr(HERMES, name)


def louder(text: str, action: ParsedAction) -> ParsedAction:
    return replace(action, content=action.content.upper(), content_at=())


def elsewhere(text: str, action: ParsedAction) -> ParsedAction:
    return replace(action, content_at=((0, 1),))


def calls_of_nothing(text: str, action: ParsedAction) -> ParsedAction:
    return action if text else replace(action, calls=(ToolCall("look", {}),))


def raising(text: str, action: ParsedAction) -> ParsedAction:
    raise ValueError("a bug")


def unexplained(text: str, action: ParsedAction) -> ParsedAction:
    calls = [replace(one, reason="") if isinstance(one, MalformedCall) else one for one in action.calls]
    return replace(action, calls=tuple(calls))


def renamed(text: str, action: ParsedAction) -> ParsedAction:
    calls = [replace(one, name="found") if isinstance(one, ToolCall) else one for one in action.calls]
    return replace(action, calls=tuple(calls))


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        (Other(name=""), r"a dialect has a name; ''"),
        (Other(louder), "text without a call is content; other: 'Just words.' as 'JUST WORDS.'"),
        (Other(elsewhere), "the content is what stands where it is said to; other: 'Just words.'"),
        (Other(calls_of_nothing), "; other: ''"),
        (Other(raising), r"reading never raises; other: ValueError\('a bug'\) for 'Just words.'"),
        (Other(unexplained), "a malformed call has a reason; other: '<tool_call>"),
        (Other(renamed), "the name reads back; other: .*name='found'"),
    ],
    ids=["name", "content", "places", "empty", "raises", "reason", "renamed"],
)
def test_a_law_that_a_dialect_breaks_says_what_was_found(dialect: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s)^law: .*{said}"):
        check_dialect(dialect)
