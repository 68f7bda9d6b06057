"""Python's calls and literals, read without Python: f(x=1, y=["a"]); total, linear and without recursion limits."""

from __future__ import annotations

import re
from typing import Any, Final

from rlenv.dialects.json_text import MAX_DEPTH
from rlenv.dialects.reading import Reading, skip_space

NAME: Final = re.compile(r"[^\W\d][\w.\-]*")
_KEYWORD: Final = re.compile(r"([^\W\d]\w*)[ \t\r\n]*=(?!=)[ \t\r\n]*")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?(?![\w.])")
_MOST_DIGITS: Final = 400
_NOT_FINITE: Final = re.compile(r"[+-]?(?i:nan|inf|infinity)\b|[+-]?float\(")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WORDS: Final = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_STRICT: Final = {
    quote: re.compile(rf"{quote}((?:[^{quote}\\\x00-\x08\n\r\x0b-\x1f]++|\\(?:\r\n|[^\x00]))*+){quote}")
    for quote in "'\""
}
_INSIDE: Final = {
    quote: re.compile(rf"{quote}(?>(?:[^{quote}\\\x00-\x08\n\r\x0b-\x1f]++|\\(?:\r\n|[^\x00]|\Z))*)") for quote in "'\""
}
_TRIPLE: Final = {
    quote * 3: re.compile(rf"{quote * 3}((?>[^{quote}\\]+|\\[\s\S]|{quote}(?!{quote * 2}))*){quote * 3}")
    for quote in "'\""
}
_RAW: Final = {quote: re.compile(rf"{quote}((?:[^{quote}\\]++|\\[\s\S])*+){quote}") for quote in "'\""}
_GOES_ON: Final = r"(?![ \t\n]{0,8}(?:,[ \t\n]{0,8}\w{1,64}[ \t\n]{0,8}=|\)[ \t\n]{0,8}(?:\]|,|\n|$|<)))"
# Atomic and not possessive: see json_body.until.
_INNER: Final = {
    quote: re.compile(rf"{quote}((?>(?:[^{quote}\\]++|\\[\s\S]|{quote}{_GOES_ON})*)){quote}") for quote in "'\""
}
_BRACKET: Final = re.compile(r"'(?>(?:[^'\\]|\\.)*)('?)|\"(?>(?:[^\"\\]|\\.)*)(\"?)|[][(){}]", re.DOTALL)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|([0-7]{1,3})|([\s\S]))"
)
_SIMPLE: Final = {
    "n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "a": "\a", "b": "\b", "f": "\f",
    "v": "\v",
}  # fmt: skip


class Broken(Exception):
    """The reason why a text cannot be read, and its position; caught by the grammar that asked.

    `is_open` is true where a string begins at `at` that runs to the text's end: all behind it is the string's.
    """

    def __init__(self, reason: str, at: int, *, is_open: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at
        self.is_open = is_open


def _show_near(text: str, at: int) -> str:
    return repr(text[at : at + 12]) if at < len(text) else "the end"


def call_at(reading: Reading, at: int) -> tuple[str, dict[str, Any], int]:
    """The name, the arguments and the end of the call at `at`.

    Raises:
        Broken: there is none.
    """
    text = reading.text
    match = NAME.match(text, at)
    if match is None:
        raise Broken(f"expected a call such as f(x=1); found {_show_near(text, at)}", at)
    name = match[0]
    at = skip_space(text, match.end())
    if not text.startswith("(", at):
        raise Broken(f"expected ( after {name[:40]}; found {_show_near(text, at)}", at)
    at = skip_space(text, at + 1)
    arguments: dict[str, Any] = {}
    while not text.startswith(")", at):
        if text.startswith("**", at):
            at = _named_by_dict(reading, at, arguments)
            continue
        keyword = _KEYWORD.match(text, at)
        if keyword is None:
            raise Broken(f"expected an argument by name, such as x=1; found {_show_near(text, at)}", at)
        if keyword[1] in arguments:
            raise Broken(f"the argument {keyword[1][:40]} is given twice; expected it once", at)
        value, end = value_at(reading, keyword.end())
        end = skip_space(text, end)
        if not text.startswith((",", ")"), end):
            value, end = _read_inner(reading, keyword.end(), end)
        arguments[keyword[1]] = value
        at = skip_space(text, end + 1) if text.startswith(",", end) else end
    return name, arguments, at + 1


def _named_by_dict(reading: Reading, at: int, arguments: dict[str, Any]) -> int:
    """Reads **{"key": value}, as Python gives arguments whose names it could not write, and what parts it from more."""
    value, end = value_at(reading, at + 2)
    if not isinstance(value, dict):
        raise Broken("expected a dict behind **", at)
    twice = next((key for key in value if key in arguments), None)
    if twice is not None:
        raise Broken(f"the argument {twice[:40]} is given twice; expected it once", at)
    arguments.update(value)
    end = skip_space(reading.text, end)
    if not reading.text.startswith((",", ")"), end):
        raise Broken(f"expected , or ) after the value; found {_show_near(reading.text, end)}", end)
    return skip_space(reading.text, end + 1) if reading.text.startswith(",", end) else end


def _read_inner(reading: Reading, start: int, end: int) -> tuple[str, int]:
    """A string with quotes of its own kind inside, where that leniency is on."""
    text = reading.text
    pattern = _INNER.get(text[start : start + 1])
    if pattern is not None and "inner_quotes" in reading.lenient:
        match = pattern.match(text, start, reading.limit)
        if match is not None:
            after = skip_space(text, match.end())
            if text.startswith((",", ")"), after):
                reading.used.append("inner_quotes")
                return _unescape(match[1], start), after
    raise Broken(f"expected , or ) after the value; found {_show_near(text, end)}", end)


def literal(text: str) -> tuple[Any] | str:
    """The Python literal that `text` is, in a tuple of one, or the reason why it is none; never raises."""
    try:
        value, end = value_at(Reading(text, None, frozenset()), 0)
    except Broken as error:
        return error.reason
    return "something stands behind the value" if text[end:].strip() else (value,)


def value_at(reading: Reading, at: int) -> tuple[Any, int]:
    """The literal at `at` and its end; strings, numbers, lists, tuples and dicts with text as keys.

    Raises:
        Broken: there is none, or it is nested more than `MAX_DEPTH` levels deep.
    """
    text = reading.text
    stack: list[tuple[str, list[Any], list[str]]] = []  # the closing bracket, values so far, keys so far
    while True:
        at = skip_space(text, at)
        opener = text[at : at + 1]
        if opener and opener in "[({":
            if len(stack) >= MAX_DEPTH:
                raise Broken(f"the value is nested more than {MAX_DEPTH} levels deep; expected a flatter one", at)
            stack.append(({"[": "]", "(": ")", "{": "}"}[opener], [], []))
            at = skip_space(text, at + 1)
            if not text.startswith(stack[-1][0], at):
                at = _key(reading, at, stack[-1])
                continue
            value: Any = None
        else:
            value, at = _scalar(reading, at)
            if not stack:
                return value, at
            stack[-1][1].append(value)
        # Behind a value: the next one, or the end of one bracket after the other.
        while True:
            at = skip_space(text, at)
            close, values, keys = stack[-1]
            if text.startswith(",", at):
                at = skip_space(text, at + 1)
                if not text.startswith(close, at):
                    at = _key(reading, at, stack[-1])
                    break
            if not text.startswith(close, at):
                raise Broken(f"expected , or {close}; found {_show_near(text, at)}", at)
            at += 1
            stack.pop()
            if close == "}" and values and not keys:
                if not reading.allows("sets_as_lists"):
                    raise Broken("found a set; expected a list in [ and ]", at)
                value = values
            elif close == "}":
                if len(set(keys)) < len(keys):
                    raise Broken("a key stands twice in one dict; expected it once", at)
                value = dict(zip(keys, values, strict=True))
            else:
                value = values
            if not stack:
                return value, at
            stack[-1][1].append(value)


def _key(reading: Reading, at: int, frame: tuple[str, list[Any], list[str]]) -> int:
    """Reads `key:` in a dict; where a first item has none it is a set, and nothing is read."""
    close, values, keys = frame
    if close != "}" or (values and not keys):
        return at
    key, end = _scalar(reading, at)
    end = skip_space(reading.text, end)
    if not reading.text.startswith(":", end):
        if keys or values:
            raise Broken(f"expected : after the key; found {_show_near(reading.text, end)}", end)
        return at
    if not isinstance(key, str):
        raise Broken("a key is no text; expected it in quotes", at)
    keys.append(key)
    return end + 1


def missing_closes(text: str, begin: int) -> str:
    """The characters that close the strings and brackets left open at the text's end, from `begin` on; "" for none."""
    stack: list[str] = []
    for match in _BRACKET.finditer(text, begin):
        token = match[0]
        if token[0] in "'\"":
            if not (match[1] or match[2]):
                stack.append(token[0])
        elif token in "[({":
            stack.append({"[": "]", "(": ")", "{": "}"}[token])
        elif stack:
            stack.pop()
    return "".join(reversed(stack))


def _scalar(reading: Reading, at: int) -> tuple[Any, int]:
    text = reading.text
    first = text[at : at + 1]
    if first in ("'", '"') and first:
        triple = _TRIPLE.get(text[at : at + 3])
        match = _STRICT[first].match(text, at) if triple is None else triple.match(text, at)
        if match is None and "raw_strings" in reading.lenient:
            match = _RAW[first].match(text, at, reading.limit)
            if match is not None:
                reading.used.append("raw_strings")
        if match is None:
            raise _open_string(text, first, at)
        return _unescape(match[1], at), match.end()
    number = _NUMBER.match(text, at)
    if number is not None:
        digits = number[0].replace("_", "")
        if len(digits) > _MOST_DIGITS:
            raise Broken(f"the number is out of range, or longer than {_MOST_DIGITS} characters", at)
        if digits.lstrip("+-").isdigit():
            if len(digits) > 308:
                raise Broken("the number is out of range", at)
            return int(digits), number.end()
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            raise Broken("the number is out of range", at)
        return value, number.end()
    if _NOT_FINITE.match(text, at) is not None:
        raise Broken(f"{_show_near(text, at)} is no number that JSON has; expected a finite one", at)
    word = _WORD.match(text, at)
    if word is not None and word[0] in _WORDS:
        return _WORDS[word[0]], word.end()
    raise Broken(f"expected a value; found {_show_near(text, at)}", at)


def _open_string(text: str, quote: str, at: int) -> Broken:
    """The fault of the string at `at` that does not close: the sign that breaks it off, or the text's end."""
    match = _INSIDE[quote].match(text, at)
    end = match.end() if match is not None else at + 1
    near = _show_near(text, at)
    if end >= len(text):
        return Broken(f"the string {near} is not closed; expected the closing {quote} of it", at, is_open=True)
    if text[end] in "\r\n":
        return Broken(f"a raw line break stands in the string {near}; write it as \\n, or close the string", end)
    return Broken(f"a control character stands in the string {near}; write it escaped, such as \\x00", end)


def _unescape(inner: str, at: int) -> str:
    if "\\" in inner:
        inner = _ESCAPE.sub(_escape, inner)
    try:
        inner.encode()
    except UnicodeEncodeError as error:
        raise Broken("a string is not valid Unicode (a lone surrogate)", at) from error
    return inner


def _escape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code:
        return chr(int(code, 16))
    if match[4]:
        return chr(int(match[4], 8))
    return _SIMPLE.get(match[5], match[0])  # Python keeps a backslash that escapes nothing
