"""What the policy said in a turn, as a message that a chat template writes into a later prompt."""

from __future__ import annotations

from collections.abc import Sequence

from rlenv.messages import Message, ParsedAction, ToolCall

__all__ = ["said_of"]


def said_of(text: str, parsed: ParsedAction, *, thinking: Sequence[tuple[str, str]]) -> Message:
    """The assistant's message of an action, as a server that reads the family's text would give it back.

    Content, thinking and calls are what the dialect read. A call that cannot be read has no structured form: the whole
    text behind the thinking is the content then, as it is with such a server.

    Args:
        text: the action.
        parsed: its reading.
        thinking: the marks around thinking.
    """
    if all(isinstance(call, ToolCall) for call in parsed.calls):
        return Message("assistant", parsed.content, parsed.calls, thinking=parsed.thinking)
    if parsed.thinking:
        for _, close in thinking:
            text = text.partition(close)[2] or text
    return Message("assistant", text.strip(), thinking=parsed.thinking)
