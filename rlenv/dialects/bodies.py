"""The body grammars `pythonic` (calls as Python writes them, in a list or a line each), `gemma` and `text`, and calls
of JSON that stand anywhere.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rlenv.dialects.base import tool_call
from rlenv.dialects.json_body import JsonForm, marks_of
from rlenv.dialects.json_text import DECODER, MAX_DEPTH, RAW_DECODER, missing_brackets
from rlenv.dialects.literals import Broken, call_at, literal, missing_closes
from rlenv.dialects.reading import Call, Outcome, Reading, RefusedValue, malformed, skip_blank, skip_space, typed
from rlenv.dialects.schema import Shape
from rlenv.language.dialect import CallSpec
from rlenv.messages import MalformedCall, ToolCall

# The second and third are the beginning of one, where the message ends with it.
_BARE: Final = re.compile(r"\s*\[\s*(?:[^\W\d][\w.\-]{0,255}\s*(?:\(|\Z)|\Z)")
# Nothing but the rest of a word or a number: what is missing there is what comes next.
_IS_END: Final = re.compile(r"[\w.+\-]*+\s*+[=:]?\s*\Z")
# In text it is a call only with arguments by name, or without any; the text's end may cut it behind its bracket.
_IN_TEXT: Final = re.compile(
    r"\[\s*[^\W\d][\w.\-]{0,255}\s*\(\s*(?:[^\W\d]\w{0,255}\s*(?:=(?!=)|\Z)|\)\s*(?:[],]|\Z)|\Z)"
)


class PythonForm:
    """[f(x=1), g(y="a")] between marks or alone, or a call a line where `separator` is a line break."""

    def __init__(self, spec: CallSpec, *, stops: tuple[str, ...], lenient: frozenset[str]) -> None:
        self.opens = marks_of(spec.open) + (spec.spellings if "spellings" in lenient else ())
        self.at_start = spec.at_start
        self._closes = marks_of(spec.close)
        self._stops = tuple(dict.fromkeys((*self.opens, *stops)))
        self._anywhere = spec.anywhere
        if spec.anywhere:
            self.opens = ("[",)
        self._needs_close = bool(self._closes) and not spec.close_is_optional
        self._is_list = spec.separator != "\n"
        self._starts = spec.starts

    def begins(self, text: str, begin: int) -> bool:
        if self._anywhere and begin and text[begin - 1] == "[":
            return _IN_TEXT.match(text, begin - 1) is not None
        if self.at_start:
            return _BARE.match(text, begin) is not None
        at = skip_blank(text, begin)
        return not self._starts or (at < len(text) and text[at] in self._starts)

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text = reading.text
        calls: list[Call] = []
        is_cut = False
        begin = at = start if self._anywhere else begin
        next_call, _ = reading.first(self._stops, begin)
        reading.limit = next_call if next_call >= 0 else len(text)
        try:
            at = skip_blank(text, at)
            if self._is_list:
                if not text.startswith("[", at):
                    raise Broken("expected a list of calls, such as [f(x=1)]", at)
                at = skip_blank(text, at + 1)
            first = start
            while True:
                name, arguments, at = call_at(reading, at)
                calls.append(tool_call(name, arguments, None, first, at))
                first = at
                at = skip_blank(text, at)
                if self._is_list:
                    if text.startswith(",", at):
                        at = skip_blank(text, at + 1)
                        if not text.startswith("]", at):
                            continue
                    if not text.startswith("]", at):
                        raise Broken("expected , or ] after the call", at)
                    at += 1
                    break
                if at >= len(text) or any(text.startswith(mark, at) for mark in (*self._closes, *self._stops)):
                    break
        except Broken as error:
            # A string that the text's end leaves open holds whatever follows, marks too.
            closes, opens = ((), ()) if error.is_open else (self._closes, self._stops)
            end, is_cut = reading.recover(max(error.at, begin), closes, opens)
            reason = error.reason
            if is_cut:
                missing = missing_closes(text, begin)
                is_cut = bool(self._closes or missing)
                if not error.is_open and _IS_END.match(text, error.at) is not None:
                    ends = [missing, " or ".join(self._closes)]
                    reason = f"the call ends too early; expected {' and '.join(filter(None, ends))} to close it"
            return [malformed(text, reason, start, end)], end, is_cut
        end = skip_blank(text, at)
        for close in self._closes:
            if text.startswith(close, end):
                end += len(close)
                break
        else:
            if self._needs_close:
                is_cut = end >= reading.without_cut_mark(self._closes, at) and reading.allows("open_calls")
                if not is_cut:
                    reason = f"the calls are not closed; expected {' or '.join(self._closes)}"
                    end, is_cut = reading.recover(at, self._closes, self._stops)
                    return [malformed(text, reason, start, end)], end, is_cut
            end = len(text) if is_cut else at
        last = calls[-1]
        assert isinstance(last, ToolCall)
        calls[-1] = ToolCall(last.name, last.arguments, None, last.start, end)
        return calls, end, is_cut


_BARE_VALUE: Final = re.compile(r"[^,}\]]*")
_NAME: Final = re.compile(r"[\w.\-]{1,256}")


class _MarkedForm:
    """The shared part of forms between marks, which begin wherever their opening mark stands."""

    def __init__(self, spec: CallSpec, *, stops: tuple[str, ...], lenient: frozenset[str]) -> None:
        self.opens = marks_of(spec.open)
        self.at_start = False
        self._spec = spec
        self._closes = marks_of(spec.close)
        self._stops = tuple(dict.fromkeys((*self.opens, *stops)))

    def begins(self, text: str, begin: int) -> bool:
        return True


class GemmaForm(_MarkedForm):
    """A name, then parameters in braces; strings stand between `quote` marks, all else is read as JSON or text."""

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text = reading.text
        name = ""
        arguments: dict[str, Any] = {}
        try:
            at = skip_space(text, begin)
            prefix = self._spec.before_name
            if text.startswith(prefix, at):
                at += len(prefix)
            elif text.startswith(prefix[-1:], at) and reading.allows("spellings"):
                at += 1
            else:
                raise Broken(f"expected {prefix} and the name of a tool", at)
            stop, _ = reading.first((*self._closes, *self._stops), at)
            stop = stop if stop >= 0 else len(text)
            brace = reading.find("{", at)
            name = text[at : brace if 0 <= brace < stop else stop].strip()
            if not 0 <= brace < stop:
                if not name or "<" in name or not reading.allows("missing_arguments"):
                    raise Broken("the arguments are missing; expected { after the name", stop)
                at = stop
            else:
                if _NAME.fullmatch(name) is None:
                    raise Broken(f"{name[:40]!r} is no name; expected the name of a tool", at)
                arguments, at = self._read_object(reading, name, brace)
            at = skip_space(text, at)
            close = next((mark for mark in self._closes if text.startswith(mark, at)), None)
            if close is None and not (at >= len(text) and reading.allows("open_calls")):
                raise Broken(f"the call is not closed; expected {' or '.join(self._closes)}", at)
        except Broken as error:
            # A string that the text's end leaves open holds whatever follows, marks too.
            closes, opens = ((), ()) if error.is_open else (self._closes, self._stops)
            end, is_cut = reading.recover(max(error.at, begin), closes, opens)
            return [malformed(text, error.reason, start, end, name)], end, is_cut
        end = at + len(close or "")
        return [tool_call(name, arguments, None, start, end)], end, close is None

    def _read_object(self, reading: Reading, name: str, at: int) -> tuple[dict[str, Any], int]:
        value, end = self._value(reading, at)
        assert isinstance(value, dict)
        out: dict[str, Any] = {}
        for key, item in value.items():
            try:
                out[key] = self._typed_value(reading, item, reading.parameter(name, key))
            except RefusedValue as error:
                raise Broken(f"in the value of {key[:40]!r}: {error}", at) from error
        return out, end

    def _typed_value(self, reading: Reading, item: tuple[Any, bool], shape: Shape | None) -> Any:
        """A value in the type of its shape. A quoted one is a text; any other is JSON, or a text where it is none."""
        value, is_quoted = item
        if isinstance(value, dict):
            return {key: self._typed_value(reading, inner, shape and shape.at_key(key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._typed_value(reading, inner, shape and shape.at_index(i)) for i, inner in enumerate(value)]
        if not is_quoted:
            return None if value in ("None", "null") else typed(value, shape, untyped="json", none=True)
        if shape is None or not shape.kinds or "string" in shape.kinds:
            return value
        if self._spec.values == "python":
            return typed(value, shape, none=True, other=literal)
        if "typed_strings" in reading.lenient:
            converted = typed(value, shape)
            if converted != value and reading.allows("typed_strings"):
                return converted
        return value

    def _value(self, reading: Reading, at: int) -> tuple[Any, int]:
        """The value at `at`; texts come as (text, whether it was quoted), one level inside dicts and lists."""
        text, quote = reading.text, self._spec.quote
        stack: list[tuple[str, Any, str]] = []
        while True:
            at = skip_space(text, at)
            value: Any
            if text.startswith(("{", "["), at):
                if len(stack) >= MAX_DEPTH:
                    raise Broken(f"the value is nested more than {MAX_DEPTH} levels deep", at)
                is_dict = text[at] == "{"
                stack.append(("}" if is_dict else "]", {} if is_dict else [], ""))
                at = skip_space(text, at + 1)
                if not text.startswith(stack[-1][0], at) and at < len(text):
                    at = self._read_key(reading, at, stack)
                    continue
            else:
                if text.startswith(quote, at):
                    end = reading.find(quote, at + len(quote))
                    if end < 0:
                        if not reading.allows("open_bodies"):
                            raise Broken(f"a string is not closed; expected {quote}", at, is_open=True)
                        end = len(text)
                    value, at = (text[at + len(quote) : end], True), min(end + len(quote), len(text))
                else:
                    match = _BARE_VALUE.match(text, at)
                    end = match.end() if match is not None else at
                    value, at = (text[at:end].strip(), False), end
                self._put(stack, value)
            while True:
                at = skip_space(text, at)
                close, inner, _ = stack[-1]
                if text.startswith(",", at):
                    at = skip_space(text, at + 1)
                    if not text.startswith(close, at):
                        at = self._read_key(reading, at, stack)
                        break
                if not text.startswith(close, at):
                    if at < len(text) or not reading.allows("open_bodies"):
                        raise Broken(f"expected , or {close}; found {text[at : at + 12]!r}", at)
                else:
                    at += 1
                stack.pop()
                if not stack:
                    return inner, at
                self._put(stack, (inner, True))

    def _read_key(self, reading: Reading, at: int, stack: list[tuple[str, Any, str]]) -> int:
        close, inner, _ = stack[-1]
        if close != "}":
            return at
        text, quote = reading.text, self._spec.quote
        if text.startswith(quote, at):
            end = reading.find(quote, at + len(quote))
            key = text[at + len(quote) : end] if end >= 0 else ""
            colon = skip_space(text, end + len(quote)) if end >= 0 else -1
            if colon < 0 or not text.startswith(":", colon):
                raise Broken("a key has no value; expected : after it", at)
            if key in inner:
                raise Broken(f"the key {key[:40]!r} stands twice; expected it once", at)
            stack[-1] = (close, inner, key)
            return colon + 1
        colon = reading.find(":", at)
        if colon < 0 or colon - at > 512:
            raise Broken("a key has no value; expected : after it", at)
        key = text[at:colon].strip().replace(quote, "")
        if not key or any(sign in key for sign in "{}[],"):
            raise Broken(f"{key[:40]!r} is no key; expected a name before the colon", at)
        if key in inner:
            raise Broken(f"the key {key[:40]!r} stands twice in one object; expected it once", at)
        stack[-1] = (close, inner, key)
        return colon + 1

    def _put(self, stack: list[tuple[str, Any, str]], value: tuple[Any, bool]) -> None:
        _, inner, key = stack[-1]
        if isinstance(inner, dict):
            inner[key] = value
        else:
            inner.append(value)


class TextForm(_MarkedForm):
    """Everything between the marks is one argument of one tool, as in Search-R1."""

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text, spec = reading.text, self._spec
        close, mark = reading.first(self._closes, begin)
        next_call, _ = reading.first(self._stops, begin)
        if close < 0 or 0 <= next_call < close:
            end, is_cut = reading.recover(begin, (), self._stops)
            if is_cut and reading.allows("open_calls"):
                close, mark = len(text), ""
            else:
                reason = f"the call is not closed; expected {' or '.join(self._closes)}"
                return [malformed(text, reason, start, end, spec.tool)], end, is_cut
        end = close + len(mark)
        key = spec.argument or reading.only_parameter(spec.tool) or "query"
        value = text[begin:close].strip()
        if not value:
            reason = f"the call is empty; expected the text of {key!r}"
            return [malformed(text, reason, start, end, spec.tool)], end, False
        try:
            argument = typed(value, reading.parameter(spec.tool, key))
        except RefusedValue as error:
            return [malformed(text, f"in the value of {key!r}: {error}", start, end, spec.tool)], end, False
        return [tool_call(spec.tool, {key: argument}, None, start, end)], end, mark == ""


_PART: Final = 4096


class AnywhereForm:
    """{"name": …, "parameters": {…}} wherever the text has it.

    In text a call is what begins with its name and, behind it, its arguments: a JSON object with a name alone is
    content. At the start of a message any object with these keys is a call, in any order, a broken one too.
    """

    def __init__(self, spec: CallSpec, *, stops: tuple[str, ...], lenient: frozenset[str]) -> None:
        self.opens = ("{",)
        self.at_start = True
        self._inner = JsonForm(spec.model_copy(update={"separator": ""}), stops=stops, lenient=lenient)
        self._separator = spec.separator.strip()
        self._name = spec.name_key
        self._arguments = marks_of(spec.arguments_key)
        self._decoder = RAW_DECODER if "raw_strings" in lenient else DECODER
        keys = "|".join(map(re.escape, self._arguments))
        self._head = re.compile(
            r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?'
            rf'"{re.escape(spec.name_key)}"\s*:\s*"[^"\\\n]{{1,256}}'
            rf'(?:"\s*,\s*"(?:{keys})"\s*:|"\s*(?:,\s*(?:"\w{{0,32}}"?\s*)?)?\Z|\Z)'
        )
        """What a call in text begins with; the text's end may cut it off behind the beginning of the name."""

    def begins(self, text: str, begin: int) -> bool:
        if begin and text[begin - 1] == "{":
            return self._head.match(text, begin - 1) is not None
        at = skip_space(text, begin)
        if self._head.match(text, at) is not None:
            return True
        if not self._inner.begins(text, begin):
            return False
        read, _ = self._value(text, at)
        return not isinstance(read, dict) or (self._name in read and any(key in read for key in self._arguments))

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text = reading.text
        calls: list[Call] = []
        at = start if text.startswith("{", start) else skip_space(text, begin)
        while True:
            value, end = self._value(text, at)
            if value is None:
                next_call = self._head.search(text, end)
                stop = next_call.start() if next_call is not None else len(text)
                reason = self._inner._read_body(reading, at, stop)
                is_cut = stop == len(text) and missing_brackets(text[at:]) != ""
                reason = reason if isinstance(reason, str) else "the call cannot be read"
                calls.append(malformed(text, reason, start, stop, self._inner._name_in(text, at, stop)))
                return calls, stop, is_cut
            calls += self._inner._read_calls(reading, start, at, end, end)
            after = skip_space(text, end)
            if self._separator and text.startswith(self._separator, after):
                after = skip_space(text, after + len(self._separator))
                end = after if after >= len(text) else end
            # Behind a call another one begins as at the message's start.
            if isinstance(calls[-1], MalformedCall) or not self.begins(text, after):
                return calls, end, False
            start = at = after

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        """The JSON value at `at` and its end; None and how far reading came where there is none.

        A decoder's error costs time linear in what it was given, so that it is given a part, and more where that was
        too short.
        """
        size = _PART
        while True:
            part = text[at : at + size]
            try:
                value, end = self._decoder.raw_decode(part)
                return value, at + end
            except json.JSONDecodeError as error:
                is_short = error.pos > len(part) - 16 or error.msg.startswith("Unterminated")
                if not is_short or at + size >= len(text):
                    return None, at + max(error.pos, 1)
            except (ValueError, RecursionError):
                return None, len(text)
            size *= 4
