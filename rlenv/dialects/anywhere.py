"""Calls of JSON without marks that may stand anywhere in a message: behind text, and one behind another."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from rlenv.dialects.json_body import JsonForm, marks_of
from rlenv.dialects.json_call import missing_brackets
from rlenv.dialects.reading import Call, Outcome, Reading, malformed, skip_space
from rlenv.language.dialect import CallSpec
from rlenv.messages import MalformedCall

__all__ = ["AnywhereForm"]

_DECODER: Final = json.JSONDecoder()
_RAW_DECODER: Final = json.JSONDecoder(strict=False)
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
        self._decoder = _RAW_DECODER if "raw_strings" in lenient else _DECODER
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
                again = self._head.search(text, end)
                stop = again.start() if again is not None else len(text)
                reason = self._inner._body(reading, at, stop)
                is_cut = stop == len(text) and missing_brackets(text[at:]) != ""
                reason = reason if isinstance(reason, str) else "the call cannot be read"
                calls.append(malformed(text, reason, start, stop, self._inner._named(text, at, stop)))
                return calls, stop, is_cut
            calls += self._inner._calls(reading, start, at, end, end)
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
