"""The body grammar `pythonic`: calls as Python would write them, in a list, or one a line."""

from __future__ import annotations

import re
from typing import Final

from rlenv.dialects.json_body import marks_of
from rlenv.dialects.literals import Broken, call_at, missing_closes
from rlenv.dialects.quick import tool_call
from rlenv.dialects.reading import Call, Outcome, Reading, malformed
from rlenv.language.dialect import CallSpec
from rlenv.messages import ToolCall

__all__ = ["PythonForm"]

_SPACE: Final = re.compile(r"\s*")
# The second and third are the beginning of one, where the message ends with it.
_BARE: Final = re.compile(r"\s*\[\s*(?:[^\W\d][\w.\-]{0,255}\s*(?:\(|\Z)|\Z)")
# Nothing but the rest of a word or a number: what is missing there is what comes next.
_IS_END: Final = re.compile(r"[\w.+\-]*\s*[=:]?\s*\Z")
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
        match = _SPACE.match(text, begin)
        at = match.end() if match is not None else begin
        return not self._starts or (at < len(text) and text[at] in self._starts)

    def read(self, reading: Reading, start: int, begin: int) -> Outcome:
        text = reading.text
        calls: list[Call] = []
        is_cut = False
        begin = at = start if self._anywhere else begin
        again, _ = reading.first(self._stops, begin)
        reading.limit = again if again >= 0 else len(text)
        try:
            at = self._skip(text, at)
            if self._is_list:
                if not text.startswith("[", at):
                    raise Broken("expected a list of calls, such as [f(x=1)]", at)
                at = self._skip(text, at + 1)
            first = start
            while True:
                name, arguments, at = call_at(reading, at)
                calls.append(tool_call(name, arguments, None, first, at))
                first = at
                at = self._skip(text, at)
                if self._is_list:
                    if text.startswith(",", at):
                        at = self._skip(text, at + 1)
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
                    wanted = [missing, " or ".join(self._closes)]
                    reason = f"the call ends too early; expected {' and '.join(filter(None, wanted))} to close it"
            return [malformed(text, reason, start, end)], end, is_cut
        end = self._skip(text, at)
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

    def _skip(self, text: str, at: int) -> int:
        match = _SPACE.match(text, at)
        return match.end() if match is not None else at
