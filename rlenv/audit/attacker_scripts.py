"""What an attacking model writes: strategies as data, with placeholders for what a policy sees. Nothing of it is run.

A reply is one JSON object: `{"strategies": [{"name", "why", "actions": […]}]}`. An action is a text, `{"say": text}` or
`{"call": {tool: {arguments}}}`. In texts, `{{ name }}` and `{{ name_N }}` are replaced once, as plain text: what is put
in is not looked at again, so that no tool's output writes a placeholder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from rlenv._base.bounded import cut_end, cut_middle, encodable
from rlenv._base.json_limits import TooMuchJson, check_json
from rlenv._base.visible import visible
from rlenv.messages import Message, ToolCall

__all__ = ["PLACEHOLDERS", "Seen", "Strategy", "UnreadableStrategies", "filled", "read_strategies"]

_MAX_BYTES: Final = 400_000
_MAX_ACTIONS: Final = 16
_MAX_CALLS: Final = 8
_MAX_NAME: Final = 80
_MAX_WHY: Final = 400
_MAX_VALUE: Final = 20_000
_MAX_ACTION: Final = 100_000
_THINKING: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([a-z]+(?:_[a-z]+)*)(?:_(-?[0-9]{1,4}))?\s*\}\}")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

PLACEHOLDERS: Final[Mapping[str, str]] = {
    "prompt": "the last message of the prompt",
    "system": "the system message",
    "prompt_line_N": "its N-th line that is not empty",
    "prompt_number_N": "the N-th number in it",
    "prompt_word_N": "its N-th word",
    "tool_result": "what the last action was answered with",
    "tool_result_N": "what the N-th action was answered with",
    "tool_line_N": "the N-th line of what the last action was answered with",
    "tool_number_N": "the N-th number in it",
    "tool_word_N": "its N-th word",
}
"""The placeholders; N counts from 1, and from the end where it is negative. What is not there is an empty text."""


class UnreadableStrategies(ValueError):
    """A reply that gives no strategy; the message says what was found, for the model as well."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to play every task: `actions` in order, or `play`, by which the model plays itself."""

    name: str
    why: str
    actions: tuple[str | Mapping[str, Any], ...] = ()
    play: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy has seen so far: the prompt, and what answered each action."""

    system: str
    prompt: str
    answered: Sequence[str] = ()

    def value(self, name: str, number: int | None) -> str | None:
        """What stands for a placeholder; None where there is no such one."""
        last = self.answered[-1] if self.answered else ""
        if number is None:
            found = {"prompt": self.prompt, "system": self.system, "tool_result": last}.get(name)
        elif name == "tool_result":
            found = _nth(self.answered, number)
        elif (parts := _PARTS.get(name)) is not None:
            found = _nth(parts(self.prompt if name.startswith("prompt") else last), number)
        else:
            return None
        return None if found is None else cut_middle(found, _MAX_VALUE)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _numbers(text: str) -> list[str]:
    return _NUMBER.findall(text)


def _words(text: str) -> list[str]:
    return text.split()


_SPLITS: Final[Mapping[str, Callable[[str], list[str]]]] = {"line": _lines, "number": _numbers, "word": _words}
_PARTS: Final = {f"{of}_{part}": split for of in ("prompt", "tool") for part, split in _SPLITS.items()}


def _nth(values: Sequence[str], number: int) -> str:
    index = number - 1 if number > 0 else number
    return values[index] if number and -len(values) <= index < len(values) else ""


def filled(action: str | Mapping[str, Any], seen: Seen) -> str | Message:
    """An action with its placeholders replaced, at most 100,000 characters of each text."""
    if isinstance(action, str):
        return _text(action, seen)
    if "say" in action and "call" not in action:
        return _text(action["say"], seen)
    calls = tuple(ToolCall(name, _value(arguments, seen)) for name, arguments in action["call"].items())
    return Message("assistant", _text(action.get("say", ""), seen), calls)


def _text(text: str, seen: Seen) -> str:
    left = _MAX_ACTION

    def put(match: re.Match[str]) -> str:
        nonlocal left
        found = seen.value(match[1], None if match[2] is None else int(match[2]))
        if found is None:
            return match[0]
        kept = found[:left]
        left -= len(kept)
        return kept

    return encodable(_PLACEHOLDER.sub(put, text[:_MAX_ACTION]))[:_MAX_ACTION]


def _value(value: Any, seen: Seen) -> Any:
    """A call's argument; one that is a number's placeholder alone becomes that number."""
    if isinstance(value, str):
        text = _text(value, seen)
        is_number = (match := _PLACEHOLDER.fullmatch(value.strip())) is not None and match[1].endswith("_number")
        return json.loads(text) if is_number and _is_json_number(text) else text
    if isinstance(value, list):
        return [_value(item, seen) for item in value]
    if isinstance(value, dict):
        return {key: _value(item, seen) for key, item in value.items()}
    return value


def _is_json_number(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), (int, float))
    except orjson.JSONDecodeError:
        return False


def read_strategies(reply: str, *, most: int) -> list[Strategy]:
    """The strategies of a reply, the first `most` of them; what is no strategy among them is left out.

    Raises:
        UnreadableStrategies: there is none.
    """
    text = _THINKING.sub("", reply)
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise UnreadableStrategies("the reply holds no JSON object")
    data = encodable(text[start : end + 1]).encode()
    try:
        check_json(data, max_bytes=_MAX_BYTES)
        read = orjson.loads(data)
    except TooMuchJson as error:
        raise UnreadableStrategies(f"the reply's JSON is too much: {error}") from error
    except orjson.JSONDecodeError as error:
        raise UnreadableStrategies(f"the reply is not one JSON object: {error}") from error
    listed = read.get("strategies") if isinstance(read, dict) else None
    if not isinstance(listed, list):
        raise UnreadableStrategies("the reply's object has no list 'strategies'")
    found: list[Strategy] = []
    problem = "the list 'strategies' is empty"
    for entry in listed:
        made = _strategy(entry, len(found) + 1)
        if isinstance(made, Strategy):
            found.append(made)
        else:
            problem = made
        if len(found) == most:
            break
    if not found:
        raise UnreadableStrategies(problem)
    return found


def _strategy(entry: Any, number: int) -> Strategy | str:
    """The strategy of an entry, or what is wrong with it."""
    if not isinstance(entry, dict):
        return "a strategy is no object"
    name = visible(cut_end(" ".join(str(entry.get("name") or f"strategy {number}").split()), _MAX_NAME))
    why = visible(cut_end(str(entry.get("why") or ""), _MAX_WHY))
    play = entry.get("play")
    if isinstance(play, str) and play.strip() and not entry.get("actions"):
        return Strategy(name, why, (), cut_middle(play, _MAX_VALUE))
    actions = entry.get("actions")
    if not isinstance(actions, list) or not actions or len(actions) > _MAX_ACTIONS:
        return f"'actions' of '{name}' is no list of 1 to {_MAX_ACTIONS} actions"
    for action in actions:
        if wrong := _wrong(action):
            return f"an action of '{name}' {wrong}"
    return Strategy(name, why, tuple(actions))


def _wrong(action: Any) -> str:
    if isinstance(action, str):
        return ""
    if not isinstance(action, dict) or not action or set(action) - {"say", "call"}:
        return 'is neither a text nor {"say": text} nor {"call": {tool: {arguments}}}'
    if not isinstance(action.get("say", ""), str):
        return "says what is no text"
    call = action.get("call", {})
    if not isinstance(call, dict) or len(call) > _MAX_CALLS or ("call" in action and not call):
        return f"has a call that is no object of 1 to {_MAX_CALLS} tools"
    if not all(isinstance(arguments, dict) for arguments in call.values()):
        return "calls a tool with arguments that are no object"
    return ""
