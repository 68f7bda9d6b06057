r"""Reads the answer out of one action.

Only what the policy wrote outside thinking and calls is read (for `from: tool`, the arguments of its own well-formed
call), so text that a tool, a user or the prompt put there can never be an answer. Every rule takes time linear in the
text's length; an author's pattern sees a bounded part of it.

Regular expressions of a spec's author, run on text that a policy wrote: in linear time, by RE2.

Python's own engine cannot be interrupted, and on a text made for it a harmless looking pattern takes longer than the
run. RE2 takes time linear in the text and in the pattern for any pattern that it accepts; what it cannot do in such
time (looking around, references back) it refuses, and so does `compile_pattern`, when the spec is compiled.

The language is RE2's, which is Python's without those; where the two read the same words differently:

    ``\d \w \s \b``   are of ASCII; ``\p{Nd}`` and ``\p{L}`` are the digits and letters of every script
    ``$``               here as in Python: the end, or before a line feed that ends the text
    ``\Z`` ``{,n}``      here as in Python: the end, and at most n times
"""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import orjson

from rlenv._base.bounded import encodable, quick
from rlenv.errors import UsageError, under
from rlenv.language.spec import AnswerSpec
from rlenv.messages import MalformedCall, ParsedAction, ToolCall

SEARCHED_CHARS = 16_384
"""A pattern sees at most this many characters, counted from the end of the text, where answers stand."""

# One step is one character of a text under one instruction of a pattern; where RE2's automaton has too many states to
# keep, a step takes some 5 ns. One search takes at most this many, which bounds the time that it holds the loop.
_MAX_STEPS = 2_000_000
_MAX_PROGRAM = 4_096
_CONTEXT_CHARS = 64

_ESCAPE = "put a backslash before a character that is meant as it stands"
_ADVICE = {
    "invalid perl operator: (?=": "match what follows as well, and put a group around what is meant",
    "invalid perl operator: (?!": "write what may follow as a class, such as [^x], or use `rule: python`",
    "invalid perl operator: (?<": "match what stands before as well, and put a group around what is meant",
    "invalid perl operator: (?>": "write (?:…): no repeat can blow up here",
    "invalid perl operator: (?P": "write out what may repeat, or use `rule: python`",
    "invalid escape sequence: \\": "write out what may repeat, or the character itself",
    "invalid repetition size": "a repeat, and repeats in each other, may go up to 1000",
    **{f"bad repetition operator: {one}+": f"write {one}: no repeat can blow up here" for one in "+*?"},
}
_PREFIX = re.compile(r"[A-Za-z0-9#:=<>/ _-]+")


class Match(Protocol):
    """The match of a search: the whole by 0, groups by number or name; None for a group that took no part."""

    def __getitem__(self, group: int | str) -> str | None: ...
    def start(self, group: int | str = 0) -> int: ...


class Pattern:
    """A compiled pattern. Each method takes a bounded time, whatever the text.

    `groups` is how many groups it has; `sees` how many characters of a text's end it looks at: `SEARCHED_CHARS`, and
    fewer where the pattern compiles to so much that this would take too long; `sees_most` how many where a policy would
    gain by writing on behind a match.
    """

    __slots__ = ("_prefix", "_regexp", "_size", "groups", "sees", "sees_most", "source")

    def __init__(self, source: str, regexp: Any, *, prefix: str = "") -> None:
        self.source = source
        self.groups: int = regexp.groups
        self._regexp = regexp
        self._size = max(regexp.programsize, 1)
        self.sees = min(SEARCHED_CHARS, _MAX_STEPS // self._size)
        self.sees_most = min(16 * SEARCHED_CHARS, 4 * _MAX_STEPS // self._size)
        self._prefix = prefix

    def search(self, text: str, sees: int = 0) -> Match | None:
        """The first match in the last `sees` characters of `text`, by default the pattern's own; None for none."""
        text = text[-(sees or self.sees) :]
        if self._prefix not in text:
            return None
        found: Match | None = self._regexp.search(encodable(text))
        return found

    def fullmatch(self, text: str) -> Match | None:
        """The match of all of `text`; None for a text that is longer than `sees`."""
        if len(text) > self.sees:
            return None
        found: Match | None = self._regexp.fullmatch(encodable(text))
        return found

    def last(self, text: str) -> Match | None:
        """The last of the matches that follow each other in the last `sees` characters, None where there is none."""
        return self.last_at(text)[0]

    def last_at(self, text: str) -> tuple[Match | None, int]:
        """The same, and where in `text` begins what it was found in: a match's `start` is counted from there.

        A match may look at all that follows it, so that going through all of them is quadratic. Where there are more
        than are looked at in bounded time, the last one is looked for from half-way on, and so on.
        """
        before = max(len(text) - self.sees, 0)
        text = text[-self.sees :]
        if self._prefix not in text:
            return None, 0
        text = encodable(text)
        low, high = 0, len(text)  # from `low` on there are too many, from `high` on there is none
        start = 0
        while True:
            found, begin, is_last = self._last_from(text, start)
            if found is not None and is_last:
                return found, before + begin
            if found is None:
                if start == 0:
                    return None, 0
                high = start
            else:
                low = start
            if high - low <= 1:
                found, begin, _ = self._last_from(text, low)
                return found, before + begin
            start = (low + high) // 2

    def _last_from(self, text: str, start: int) -> tuple[Match | None, int, bool]:
        """The last match that begins at `start` or behind it, from where it is counted, and whether all were looked
        at."""
        # Some of what stands before is seen too, so that nothing is cut in two: `\d+` takes the whole number.
        begin = max(0, start - _CONTEXT_CHARS)
        most = 1 + _MAX_STEPS // (self._size * max(len(text) - begin, 1))
        last: Match | None = None
        for number, match in enumerate(self._regexp.finditer(text[begin:]), 1):
            if match.start() + begin >= start:
                last = match
            if number >= most and last is not None:
                return last, begin, False
        return last, begin, True


@lru_cache(maxsize=256)
def compile_pattern(source: str, *, dot_all: bool = True, ignore_case: bool = False) -> Pattern:
    """Compiles an author's pattern; the dot matches line ends too where `dot_all` (an answer may have several lines).

    Raises:
        UsageError: it does not compile, asks for what takes more than linear time, or is too large.
    """
    # Loaded here, since most specs have no pattern of their own.
    re2: Any = importlib.import_module("re2")
    options = re2.Options()
    options.dot_nl = dot_all
    options.case_sensitive = not ignore_case
    options.log_errors = False
    try:
        regexp = re2.compile(_as_re2(source), options)
    except re2.error as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        advice = next((advice for start, advice in _ADVICE.items() if reason.startswith(start)), _ESCAPE)
        raise UsageError(f"pattern {source!r} does not compile: {reason}", hint=advice) from error
    except UnicodeEncodeError as error:
        message = f"pattern {source!r} does not compile: it holds half of a surrogate pair"
        raise UsageError(message, hint=_ESCAPE) from error
    if regexp.programsize > _MAX_PROGRAM:
        raise UsageError(
            f"pattern {source[:80]!r} is too large ({regexp.programsize} instructions, {_MAX_PROGRAM} are allowed)",
            hint="repeat less often, and ask for a length by `rule: length`",
        )
    return Pattern(source, regexp, prefix="" if ignore_case else _prefix(source))


def _as_re2(source: str) -> str:
    """The pattern in RE2's words where the same words mean something else there."""
    parts: list[str] = []
    # With (?m) the dollar is the end of every line, there as here.
    is_multiline = re.search(r"\(\?[a-zA-Z]*m", source) is not None
    index, in_class = 0, False
    while index < len(source):
        char = source[index]
        two = source[index : index + 2]
        index += 1
        if char == "\\":
            index += 1
            parts.append("\\z" if two == "\\Z" and not in_class else two)
        elif in_class:
            in_class = char != "]"
            parts.append("\\[" if char == "[" else char)  # RE2 would read [[:alpha:]]
        elif char == "[":
            in_class = True
            parts.append(char)
            for first in ("^", "]"):  # a bracket right after the opening one is meant as it stands
                if source[index : index + 1] == first:
                    parts.append("\\]" if first == "]" else first)
                    index += 1
        elif char == "$" and not is_multiline:
            parts.append(r"(?:\n?\z)")
        elif two == "{," and re.match(r"\d+\}", source[index + 1 :]):
            parts.append("{0")
        else:
            parts.append(char)
    return "".join(parts)


def _prefix(source: str) -> str:
    """A text that stands in everything that the pattern matches, "" where none is known."""
    match = _PREFIX.match(source)
    if match is None or "|" in source or "(?" in source:
        return ""
    end = match.end()
    # What is repeated, or may be left out, is not part of it.
    return match[0][: -1 if source[end : end + 1] in ("?", "*", "{") else None]


_NUMBER = re.compile(r"(?<![\w.])[-\u2212+]?[$€£]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?%?", re.ASCII)
# Boxes and numbers are looked for in so many characters from the end.
_SEARCHED_CHARS = 65_536
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """The policy's answer: `text`, without white space around it; "" where it marked nothing.

    `start` and `end` (exclusive) are its place in the action's content; -1 where it came in a call, which `call` then
    counts from 0 (-1 elsewhere).
    """

    text: str
    start: int = field(default=-1, compare=False)
    end: int = field(default=-1, compare=False)
    call: int = field(default=-1, compare=False)


_answer = quick(GivenAnswer)


def is_explicit(spec: AnswerSpec) -> bool:
    """True if an answer is marked as one.

    A marked answer (`tag`, `boxed`, `regex`, `tool`) ends the episode wherever it stands, calls beside it or not, as
    long as every call can be read.
    The others (`last_number`, `final_message`) are read only from a message without calls, which ends the episode
    by itself.
    """
    return spec.from_ in ("tag", "boxed", "regex", "tool")


def check(spec: AnswerSpec) -> None:
    """Checks what the types alone do not: that the keys which the rule needs are there and the pattern compiles.

    Raises:
        UsageError: the message names the key.
    """
    if spec.from_ == "regex":
        if spec.pattern is None:
            raise UsageError(
                "from is regex but there is no pattern", key="answer.pattern", hint="add `pattern:` with one group"
            )
        with under("answer.pattern"):
            compile_pattern(spec.pattern)
    if spec.from_ == "tool" and spec.tool is None:
        raise UsageError(
            "from is tool but no tool is named", key="answer.tool", hint="add `tool:` with the submit tool's name"
        )
    if spec.from_ == "tag" and not re.fullmatch(r"[^\s<>/]+", spec.tag):
        name = re.sub(r"[\s<>/]+", "", spec.tag) or "answer"
        raise UsageError(f"'{spec.tag}' is not a tag's name", key="answer.tag", hint=f"write it alone: tag: {name}")


def extract(spec: AnswerSpec, action: ParsedAction) -> GivenAnswer | None:
    """The answer that one action gives, or None where it gives none.

    The answer of an episode is that of its last action: pass that one. A tag, box or pattern counts once it is
    closed, and the last one of the message counts; an empty tag is the answer "". The only argument of a submit
    call is its answer where `argument` names none; a value that is not text is given as JSON.

    An action with a malformed call gives no answer, whatever stands beside it: the policy meant to go on, and what was
    to stand in the call may stand outside. The same holds for what is written beside a call that was cut.

    Raises:
        UsageError: the spec would not pass `check`.
    """
    if spec.from_ == "tag" and "</" not in action.content:  # most turns: nothing below finds an answer there
        return None
    for call in action.calls:
        if type(call) is MalformedCall:
            return None
    return None if action.is_cut and action.calls and spec.from_ != "tool" else _find_answer(spec, action)


def _find_answer(spec: AnswerSpec, action: ParsedAction) -> GivenAnswer | None:
    content = action.content
    match spec.from_:
        case "tag":
            found = _find_tag(content, spec.tag)
        case "boxed":
            found = _find_box(content)
        case "last_number":
            found = _find_last_number(content) if _is_final(action) else None
        case "final_message":
            found = (0, len(content)) if content.strip() and _is_final(action) else None
        case "tool":
            return _find_submitted(action, spec)
        case "regex":
            if spec.pattern is None:
                raise UsageError("from is regex but there is no pattern", key="answer.pattern")
            return _match_pattern(content, spec.pattern)
    return None if found is None else _strip_answer(content[found[0] : found[1]], found[0])


def _strip_answer(text: str, start: int) -> GivenAnswer:
    """The answer that stands at `start` of the content, white space around it included."""
    bare = text.lstrip()
    start += len(text) - len(bare)
    bare = bare.rstrip()
    return _answer(bare, start, start + len(bare))


def _is_final(action: ParsedAction) -> bool:
    return not action.calls and not action.is_cut


def _find_tag(text: str, tag: str) -> tuple[int, int] | None:
    opening, closing = f"<{tag}>", f"</{tag}>"
    # Tags pair from the left, as in the pattern `<answer>(.*?)</answer>` of verl and Search-R1, so that an opening
    # tag inside an answer is part of the answer there and here.
    end = text.rfind(closing)
    if end < 0:
        return None
    found: tuple[int, int] | None = None
    position = 0
    while (start := text.find(opening, position, end)) >= 0:
        start += len(opening)
        stop = text.find(closing, start)
        if stop < 0:
            break
        found = start, stop
        position = stop + len(closing)
    return found


def _find_box(text: str) -> tuple[int, int] | None:
    if "\\boxed" not in text:
        return None
    open_braces: list[int] = []  # where a box's content starts; -1 for any other brace
    best_start = best_end = -1
    for token in _BRACES.finditer(text, max(len(text) - _SEARCHED_CHARS, 0)):
        symbol = token[0]
        if symbol == "}":
            start = open_braces.pop() if open_braces else -1
            if start > best_start:
                best_start, best_end = start, token.start()
        elif symbol == "{":
            open_braces.append(-1)
        elif len(symbol) > 2:
            open_braces.append(token.end())
    return None if best_start < 0 else (best_start, best_end)


def _match_pattern(text: str, source: str) -> GivenAnswer | None:
    pattern = compile_pattern(source)
    match, begin = pattern.last_at(text)
    group = 1 if pattern.groups else 0
    found = None if match is None else match[group]
    if match is None or found is None:
        return None
    start = begin + match.start(group)
    # Halves of a surrogate pair beside each other are one character to the pattern, and all behind them is moved.
    return _strip_answer(found, start) if text.startswith(found, start) else _answer(found.strip())


def _find_last_number(text: str) -> tuple[int, int] | None:
    last: tuple[int, int] | None = None
    begin = max(len(text) - _SEARCHED_CHARS, 0)
    for token in _NUMBER.finditer(text[begin:]):  # cut off, so that nothing before it is looked back at
        last = begin + token.start(), begin + token.end()
    return last


def _find_submitted(action: ParsedAction, spec: AnswerSpec) -> GivenAnswer | None:
    for index in range(len(action.calls) - 1, -1, -1):
        call = action.calls[index]
        if isinstance(call, ToolCall) and call.name == spec.tool:
            return submitted(spec, call, index)
    return None


def submitted(spec: AnswerSpec, call: ToolCall | MalformedCall, index: int) -> GivenAnswer | None:
    """The answer that a call of its action submits; None where it is another tool's, or lacks the argument."""
    if not isinstance(call, ToolCall) or call.name != spec.tool:
        return None
    if spec.argument is None and len(call.arguments) != 1:
        return None
    name = spec.argument if spec.argument is not None else next(iter(call.arguments))
    if name not in call.arguments:
        return None
    value = call.arguments[name]
    return _answer(value.strip() if isinstance(value, str) else _as_json(value), call=index)


def _as_json(value: Any) -> str:
    """A value as JSON; "" for what no JSON text can hold, or nested too deep: an answer that states nothing."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # an integer beyond 64 bit, half of a surrogate pair, many levels
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return ""
