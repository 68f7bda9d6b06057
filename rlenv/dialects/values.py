"""Values without an escape for the format's own marks: written for tags, Gemma and one text, and read where nested."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv.dialects.base import calls_of
from rlenv.dialects.json_body import marks_of
from rlenv.dialects.json_text import MAX_DEPTH
from rlenv.dialects.literals import Broken
from rlenv.dialects.reading import Reading, as_text, typed
from rlenv.dialects.schema import Shape
from rlenv.language.dialect import CallSpec, DialectSpec
from rlenv.messages import ToolCall

Element = str | list[tuple[str, "Element"]]
"""What stands between two tags: a text, or the tags inside with their names."""

ITEM: Final = "item"
"""How the tag around an item of a list is called."""


def tree_at(reading: Reading, spec: CallSpec, key: str, at: int) -> tuple[Element, int]:
    """The element in the tag of `key`, whose content starts at `at`, and the end of its closing tag.

    Raises:
        Broken: a tag is not closed, text stands beside tags, or they are nested more than `MAX_DEPTH` levels deep.
    """
    text, opening_mark = reading.text, spec.key_open if isinstance(spec.key_open, str) else spec.key_open[0]
    ending = spec.value_close.partition("{key}")[0]
    stack: list[tuple[str, list[tuple[str, Element]], int]] = [(key, [], at)]
    while True:
        name, inside, begin = stack[-1]
        close_mark = spec.value_close.replace("{key}", name)
        mark = reading.find(opening_mark, at)
        close = reading.find(ending, at)
        # `opened` may be the beginning of `ending`; then both stand where a tag is closed.
        if 0 <= mark < close:
            _require_space(text, at, mark)
            end = reading.find(spec.key_close, mark + len(opening_mark))
            child = text[mark + len(opening_mark) : end] if 0 <= end <= mark + len(opening_mark) + 512 else ""
            if not child.strip() or "<" in child or "\n" in child:
                raise Broken(f"{child[:40]!r} is no name of a tag", mark)
            if len(stack) >= MAX_DEPTH:
                raise Broken(f"the tags are nested more than {MAX_DEPTH} levels deep", mark)
            at = end + len(spec.key_close)
            stack.append((child, [], at))
            continue
        if close < 0 or not text.startswith(close_mark, close):
            raise Broken(f"the value of {name[:40]!r} is not closed; expected {close_mark}", at)
        value: Element = inside
        if inside:
            _require_space(text, at, close)
        else:
            value = text[begin:close]
        at = close + len(close_mark)
        stack.pop()
        if not stack:
            return value, at
        stack[-1][1].append((name, value))


def value_of(reading: Reading, element: Element, shape: Shape | None) -> Any:
    """The value that an element stands for, in the type of its shape.

    Tags are an object, or a list where the shape says so or all of them are called `item`.

    Raises:
        Broken: a name stands twice in an object.
    """
    kinds = shape.kinds if shape is not None else ()
    if isinstance(element, str):
        if not element.strip() and "string" not in kinds:
            for kind, empty in (("object", {}), ("array", [])):
                if kind in kinds:
                    return empty
        return typed(element, shape)
    is_list = "array" in kinds if ("array" in kinds) != ("object" in kinds) else all(n == ITEM for n, _ in element)
    if is_list:
        return [value_of(reading, item, shape and shape.at_index(i)) for i, (_, item) in enumerate(element)]
    out: dict[str, Any] = {}
    several: set[str] = set()
    for name, item in element:
        value = value_of(reading, item, shape and shape.at_key(name))
        if name not in out:
            out[name] = value
            continue
        if not reading.allows("repeated_tags"):
            raise Broken(f"{name[:40]!r} stands twice in one object; expected it once", 0)
        if name not in several:
            several.add(name)
            out[name] = [out[name]]
        out[name].append(value)
    return out


def _require_space(text: str, at: int, end: int) -> None:
    if text[at:end].strip():
        raise Broken(f"text stands beside tags ({text[at:end].strip()[:20]!r}); expected tags alone", at)


_PLAIN_KEY: Final = re.compile(r"[\w.\-$]+")


class ValueWriter:
    """Writes the contents of a call as one family does."""

    def __init__(self, spec: DialectSpec) -> None:
        forms = calls_of(spec)
        self._call = row = forms[0]
        marks = {mark for form in forms for mark in (*marks_of(form.open), *marks_of(form.close))}
        marks |= {*marks_of(row.key_open), row.key_close, row.name_close, row.type_open, row.quote}
        marks |= {row.value_close.partition("{key}")[0], spec.section_open, spec.section_close, *spec.drop}
        marks |= {*row.value_open, spec.thinking_marks.open, spec.thinking_marks.close}
        # Of a mark such as "> alone every text has some; what stands in a value is ended by longer ones.
        self._marks = re.compile("|".join(sorted((re.escape(mark) for mark in marks if len(mark) > 2), key=len)[::-1]))
        self._names = re.compile(r"[\w.\-]{1,256}")

    def may_be_broken(self, call: ToolCall) -> bool:
        """True if a text in the call might not read back as it is."""
        row = self._call
        if self._names.fullmatch(call.name) is None or row.body == "text":
            return True
        return any(
            self._marks.search(text) is not None or (is_key and _PLAIN_KEY.fullmatch(text) is None)
            or (row.trim != "nothing" and text != text.strip()) or (row.cdata and "]]>" in text)
            for text, is_key in _argument_texts(call.arguments, not row.nested and row.body != "gemma")
        )  # fmt: skip

    def as_broken(self, call: ToolCall) -> str:
        """The text between the marks of a call that the format cannot hold: it is read as malformed."""
        if self._call.body == "text":
            return ""
        text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=True)
        return text.replace("<", "\\u003c").replace(">", "\\u003e")

    def body(self, call: ToolCall, index: int) -> str:
        """The text between the marks of a call; `index` is its place among the message's calls."""
        row = self._call
        if row.body == "gemma":
            inside = ",".join(f"{self._gemma_key(key)}:{self._gemma(value)}" for key, value in call.arguments.items())
            return f"{row.before_name}{call.name}{{{inside}}}"
        if row.body == "text":
            return as_text(next(iter(call.arguments.values()), ""))
        skipped = row.skipped.replace("{index}", str(index + 1)) + row.skip_to
        parts = [row.before_name, call.name, row.name_close, skipped, row.name_pad]
        for key, value in call.arguments.items():
            close = row.value_close.replace("{key}", key)
            parts += [next(iter(marks_of(row.key_open)), ""), key, row.key_close, self._open_mark(value)]
            parts += [row.value_pad, self._value_text(value), row.value_pad, close, row.name_pad]
        return "".join(parts)

    def _open_mark(self, value: Any) -> str:
        marks = self._call.value_open
        if len(marks) < 2:
            return next(iter(marks), "")
        kind = _KINDS.get(type(value), "number")
        reading = "text" if kind == "string" else "json"
        fitting = [mark for mark, how in marks.items() if how == reading]
        return next((mark for mark in fitting if kind in mark), fitting[0] if fitting else next(iter(marks)))

    def _value_text(self, value: Any) -> str:
        row = self._call
        if isinstance(value, str):
            in_cdata = row.cdata and any(sign in value for sign in "<&\n") and "]]>" not in value
            if row.trim == "lines" and value[:1] == value[-1:] == "\n":
                return f"\n{value}\n"
            return f"<![CDATA[{value}]]>" if in_cdata else value
        if row.nested:
            return self._nested_text(value)
        if row.values == "python" or (row.values == "scalars" and not isinstance(value, (Mapping, list, tuple))):
            text, escape = repr(value), "\\x3c"
        else:
            text, escape = json.dumps(value, ensure_ascii=False), "\\u003c"
        return text.replace("<", escape) if self._marks.search(text) else text

    def _nested_text(self, value: Any) -> str:
        """Objects and lists as tags inside the tag."""
        if isinstance(value, Mapping):
            inside = [(str(key), item) for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            inside = [(ITEM, item) for item in value]
        else:
            return as_text(value)
        row = self._call
        opening_mark = next(iter(marks_of(row.key_open)), "")
        return "".join(
            opening_mark + key + row.key_close + self._nested_text(item) + row.value_close.replace("{key}", key)
            for key, item in inside
        )

    def _gemma(self, value: Any) -> str:
        quote = self._call.quote
        if isinstance(value, str):
            return quote + value + quote
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{self._gemma_key(key)}:{self._gemma(item)}" for key, item in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(map(self._gemma, value)) + "]"
        return json.dumps(value, ensure_ascii=False)

    def _gemma_key(self, key: Any) -> str:
        """A key as it is, or between quote marks where it holds a sign of the grammar."""
        quote = self._call.quote
        return str(key) if _PLAIN_KEY.fullmatch(str(key)) else f"{quote}{key}{quote}"


_KINDS: Final = {
    str: "string", bool: "boolean", int: "number", float: "number", type(None): "null", dict: "object", list: "array",
    tuple: "array",
}  # fmt: skip


def _argument_texts(value: Any, in_all: bool) -> Iterator[tuple[str, bool]]:
    """The texts in a call's arguments, and whether each is a key; without `in_all` those inside lists and objects too,
    which stand there as they are."""
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(key, str):
            yield key, True
        if isinstance(item, str):
            yield item, False
        elif not in_all and isinstance(item, (Mapping, list, tuple)):
            yield from _argument_texts(item, in_all)
