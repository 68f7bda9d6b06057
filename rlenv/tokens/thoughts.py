"""How a chat template takes thinking, and the marks that it writes around it: found by rendering made-up turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rlenv.errors import UnsupportedTemplate
from rlenv.tokens.chat_template import ChatTemplate
from rlenv.tokens.dummies import (
    ANY_MARK,
    KEYS,
    Form,
    Marks,
    Turn,
    Way,
    answer_messages,
    shared_marks,
    thought_mark,
    turn_message,
)

__all__ = ["thinking_of"]

_NAMED_END: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>$")  # as Kimi K3 writes: three tokens, one of them a word
_NAMED_BEGIN: Final = re.compile(r"<\|\w+\|>(\w+)<\|\w+\|>")
_LONGEST_NAME: Final = 20


def thinking_of(
    template: ChatTemplate, marks: Marks, given: Sequence[tuple[str, str]]
) -> tuple[Way, tuple[tuple[str, str], ...], str]:
    """How the template is given thinking, the marks around it, and what stands before an assistant's turn."""
    asked = "qzuzq"
    user = {"role": "user", "content": asked}
    now = datetime(2000, 1, 1)

    def render(*messages: Mapping[str, Any], generate: bool) -> str:
        try:
            return template.render([user, *messages], add_generation_prompt=generate, now=now)
        except UnsupportedTemplate:
            return ""

    opening = render(generate=True)
    # Behind the user's words: what stands before them may be another with a prompt than without.
    tail, ended = (text.rpartition(asked)[2] for text in (opening, render(generate=False)))
    header = tail[len(shared_marks(tail, ended)) :]
    pairs = tuple((open, close) for open, close in given)
    form = Form()
    for key in KEYS:
        for turn in (Turn("some", "before", ("user",)), Turn("some", "before", ("tool",)), Turn("some", "", ("tool",))):
            said = turn_message(form, Way(key), turn, 0, 0)
            answers = answer_messages(form, turn, ["r"] * len(turn.roles), 0) if turn.calls else []
            text = render(said, *answers, generate=bool(answers))
            before, mark, behind = text.partition(thought_mark(0))
            if not mark:
                continue
            bare = render(
                turn_message(form, Way(key), turn._replace(thinking="none"), 0, 0), *answers, generate=bool(answers)
            )
            pair = _pair(before, behind, opening, bare, marks)
            if pair is not None:
                pairs = tuple(dict.fromkeys((pair, *pairs)))
                header = header.partition(pair[0])[0]
            return Way(key), pairs, header.strip()
    first = pairs[0] if pairs else ("<think>", "</think>")
    for open, _ in pairs:
        header = header.partition(open)[0]
    return Way("", *first), pairs, header.strip()


def _pair(before: str, behind: str, opening: str, bare: str, marks: Marks) -> tuple[str, str] | None:
    """The marks around thinking, from the text before and behind it."""
    named = _NAMED_END.search(before.rstrip()), _NAMED_BEGIN.match(behind.lstrip())
    if named[0] and named[1] and named[0][1] == named[1][1]:
        return named[0][0], named[1][0]
    start = before[len(opening) :].strip() if before.startswith(opening) else ""
    if not start:
        shared = shared_marks(before, bare)
        start = before[len(shared) :].strip()
    if not start:
        found = marks.find(before[-100:].rstrip()) or Marks().find(before[-100:].rstrip())
        start = before[-100:].rstrip()[found[-1][0] :] if found else ""
        if len(start) > len(found[-1][1]) + _LONGEST_NAME if found else True:
            start = ""
    end = marks.first(behind.lstrip()) or behind.lstrip().partition("\n")[0][:40]
    end = ANY_MARK.split(end)[0].strip()
    return (start, end) if start and end else None
