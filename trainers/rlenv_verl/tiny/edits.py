"""Edits of an oracle's actions: their calls, and the values in their texts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["call_text", "calls_of", "edit_calls", "exchange_operators", "has_operator", "random_digits", "reworded"]

_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\d\s)])[-+*/<>](?=[\d\s(])")
_VALUE = re.compile(r"\d+|[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def random_digits(text: str, rng: random.Random) -> str:
    """`text` with every number replaced by a random one of as many digits, without a leading zero."""
    return _NUMBER.sub(lambda match: _number(rng, len(match.group())), text)


def _number(rng: random.Random, digits: int) -> str:
    low = 10 ** (digits - 1)
    return str(rng.randrange(low if digits > 1 else 0, 10 * low))


def has_operator(text: str) -> bool:
    """Whether there is an arithmetic sign or a comparison between two operands."""
    return _OPERATOR.search(text) is not None


def exchange_operators(text: str, rng: random.Random) -> str:
    """`text` with each of its operators exchanged for another."""
    return _OPERATOR.sub(lambda match: rng.choice([sign for sign in "+-*" if sign != match.group()]), text)


def reworded(text: str, like: str) -> str | None:
    """The wording of `like` around the numbers and names of `text`.

    None where that cannot be: the two differ in how many numbers and names they hold, or not in their wording.
    """
    values, frame = _VALUE.findall(text), _VALUE.split(like)
    if len(frame) != len(values) + 1 or frame == _VALUE.split(text):
        return None
    return frame[0] + "".join(value + piece for value, piece in zip(values, frame[1:], strict=True))


def edit_calls(action: str, edit: Callable[[str], str]) -> str:
    """`action` with `edit` applied to the text arguments of its calls."""
    out, end = "", 0
    for start, stop, call in calls_of(action):
        arguments = {key: edit(value) if isinstance(value, str) else value for key, value in call["arguments"].items()}
        out += action[end:start] + call_text(call["name"], arguments)
        end = stop
    return out + action[end:]


def calls_of(action: str) -> Sequence[tuple[int, int, Mapping[str, Any]]]:
    """Start, end and JSON object of each call in an action that the oracle wrote."""
    found = []
    end = 0
    while (start := action.find(_OPEN, end)) >= 0:
        text = action[start + len(_OPEN) :]
        skipped = len(text) - len(text.lstrip())
        call, length = json.JSONDecoder().raw_decode(text.lstrip())
        end = action.index(_CLOSE, start + len(_OPEN) + skipped + length) + len(_CLOSE)
        found.append((start, end, call))
    return found


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the Hermes format, spaced as chat templates write it (`json.dumps` defaults)."""
    return (
        "<tool_call>\n"
        + json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        + "\n</tool_call>"
    )
