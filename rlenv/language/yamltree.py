"""YAML events to a tree of nodes with their places.

The tree is built from PyYAML's event stream with an explicit stack rather than with its composer, which recurses:
no text, however deeply nested, ends in a RecursionError, and aliases cannot blow up memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Never

import yaml

from rlenv.errors import Finding, SpecError
from rlenv.language.yamlwords import explain

MAX_DEPTH = 64
"""Mappings and lists may be nested this deeply."""
MAX_ALIASED = 100_000
"""All aliases of a document may stand for this many nodes together."""

# The set that PyYAML counts lines by, so that quoted lines are the lines it names.
YAML_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_MAX_DIGITS = 3_500
_WIDE_SPACE = re.compile(r" *(?! )([^\S\t\n\r])")  # such as the no-break space that copied text has
_SURROGATE = re.compile("[\ud800-\udfff]")

# YAML 1.2.2, section 10.3.2 (core schema).
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)(\.inf|\.Inf|\.INF)")
_NAN = re.compile(r"\.nan|\.NaN|\.NAN")


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a key or a value. `line` and `column` are 1-based; both are 0 for an override.

    `base` is the folder that relative paths in the value refer to. `start` and `end` are character offsets in the
    file's text.
    """

    file: str
    line: int
    column: int
    base: Path
    start: int = 0
    end: int = 0
    style: str = ""
    source: _Text | None = None
    was: str = ""
    """Of a key: the former name under which it was written."""

    def quote(self, line: int) -> str:
        """A line of the file without its newline, "" where there is none."""
        lines = self.source.lines if self.source is not None else ()
        return lines[line - 1].rstrip() if 0 < line <= len(lines) else ""

    def fault(self, path: str, message: str, hint: str = "", *, at: tuple[int, int] | None = None) -> Finding:
        """A fault here, or `at` another line and column of the same file; `path` is the dotted place to print."""
        line, column = at or (self.line, self.column)
        return Finding(
            "fault", message, hint, where=path, file=self.file, line=line, column=column, quote=self.quote(line)
        )

    def inside(self, find: str = "", line: int = 1) -> tuple[int, int]:
        """The line and column of a text in the value, or of a line of the value; its start where neither is there."""
        if self.source is None:
            return self.line, self.column
        if find:
            pattern = r"\s+".join(re.escape(word) for word in find.split())
            # A name is looked for as a whole: `task.a` must not be found in `task.abc`.
            match = re.compile(rf"(?<![\w.]){pattern}(?!\w)").search(self.source.text, self.start, self.end)
            if match is None:
                match = re.compile(re.escape(find)).search(self.source.text, self.start, self.end)
            if match is not None:
                breaks = list(YAML_BREAK.finditer(self.source.text[: match.start()]))
                last = breaks[-1].end() if breaks else 0
                return len(breaks) + 1, match.start() - last + 1
        if self.style == "|":
            number = self.line + line
            quoted = self.quote(number)
            return (number, len(quoted) - len(quoted.lstrip()) + 1) if quoted.strip() else (self.line, self.column)
        return self.line, self.column


def text_span(text: str, *, file: str, base: Path) -> Span:
    """The place of a whole file of text."""
    lines = tuple(YAML_BREAK.split(text))
    # What stands in line N of the text stands in line N of the file, as below a | in a document.
    return Span(file, 0, 1, base, 0, len(text), "|", _Text(text, lines))


@dataclass(slots=True)
class Node:
    """A value with its place, and the place of the key that names it (None in lists and at the root)."""

    value: dict[str, Node] | list[Node] | Any
    span: Span
    key: Span | None = None

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        return [child.plain() for child in self.value] if isinstance(self.value, list) else self.value


def parse_text(text: str, *, file: str, base: Path, is_override: bool = False) -> Node:
    """The tree of one YAML document.

    The root is a mapping, unless `is_override`, where any value is taken.

    Raises:
        SpecError: the text is not such a document; nothing else is ever raised.
    """
    return _Reader(text, file, base, is_override).read()


def parse_part(whole: Span, start: int, end: int, *, line: int) -> Node:
    """The mapping between two characters of a text, with its places there; `line` is that of the first.

    Raises:
        SpecError: see `parse_text`.
    """
    assert whole.source is not None
    reader = _Reader(whole.source.text[start:end], whole.file, whole.base, False)
    reader.source, reader.before = whole.source, (start, line - 1)
    return reader.read()


def _scalar(text: str) -> Any:
    """A plain scalar by the core schema. Raises ValueError for a number that is too long."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        if len(text) > _MAX_DIGITS:  # Python reads such a number and cannot write it
            raise ValueError(text[:20])
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _INF.fullmatch(text):
        return float(match[1] + "inf")
    return float("nan") if _NAN.fullmatch(text) else text


def _mark(mark: yaml.Mark | Any) -> Any:
    """A mark that is there: PyYAML's own reader sets one on every event."""
    assert mark is not None
    return mark


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not been read. `key` is the key that waits for its value."""

    node: Node
    key: str | None = None
    key_span: Span | None = None
    anchor: str | None = None


class _Reader:
    def __init__(self, text: str, file: str, base: Path, is_override: bool) -> None:
        self._file = file
        self._base = base
        self._text = text
        self.source = _Text(text, tuple(YAML_BREAK.split(text)))
        self.before = (0, 0)  # the characters and the lines of it that stand before what is read
        self._is_override = is_override
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node | None] = {}
        self._aliased = 0
        self._root: Node | None = None
        self._quoted: Span | None = None  # the last quoted text that spans lines

    def read(self) -> Node:
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(
                        _mark(event.start_mark), "found a second document; a spec is one", "remove the '---' line"
                    )
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event)
            elif isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._open(event)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._close(event)
        root = self._root
        if self._is_override:
            return root if root is not None else Node(None, self._span_at(1, 1))
        if root is None or root.value is None:
            self._fail(self._span_at(1, 1), "the file is empty", "start with 'rlenv: 1' and 'name: my-env'")
        if not isinstance(root.value, dict):
            kind = "a list" if isinstance(root.value, list) else "a single value"
            self._fail(root.span, f"found {kind}; expected a mapping of keys", "start with 'rlenv: 1'")
        return root

    def _events(self) -> Iterator[yaml.Event]:
        loader: yaml.SafeLoader | None = None
        try:
            loader = yaml.SafeLoader(self._text)
            loader.index, loader.line = self.before
            while loader.check_event():
                yield loader.get_event()  # type: ignore[no-untyped-call]
        except yaml.reader.ReaderError as error:
            lines = YAML_BREAK.split(self.source.text[: self.before[0] + error.position])
            code = error.character if isinstance(error.character, int) else ord(error.character)
            span = self._span_at(len(lines), len(lines[-1]) + 1)
            message = f"found the character U+{code:04X}, which YAML does not allow"
            self._fail(span, message, "remove it, or write it as an escape in double quotes")
        except yaml.MarkedYAMLError as error:
            message, hint, mark = explain(error)
            quoted = self._quoted
            if quoted is not None and mark is not None and 0 <= mark.index - quoted.end <= 1:
                last = self.source.text.count("\n", 0, quoted.end) + 1
                message = f"found a quoted text that opens here and closes on line {last}, before more text"
                self._fail(quoted, message, "close the quote where the text ends")
            if mark is None:
                self._fail(self._span_at(1, 1), message, hint)
            for number in (mark.line, mark.line + 1):  # it is told at the line below where a key goes on
                if match := _WIDE_SPACE.match(self._span_at(number, 1).quote(number)):
                    message = f"found the space U+{ord(match[1]):04X} in front of a line; YAML indents with plain ones"
                    self._fail(self._span_at(number, match.start(1) + 1), message, "replace it with spaces")
            self._refuse(mark, message, hint)
        except yaml.YAMLError as error:
            self._fail(self._span_at(1, 1), f"it cannot be read as YAML: {error}", "")
        except (ValueError, OverflowError, IndexError) as error:
            # PyYAML lets some broken escapes through to chr() and int().
            assert loader is not None
            mark = loader.get_mark()
            self._refuse(mark, f"found an escape that names no character ({error})", "write the character itself")
        finally:
            if loader is not None:
                loader.dispose()

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        text = event.value
        span = self._span(event)
        if event.style in ("'", '"') and _mark(event.start_mark).line != _mark(event.end_mark).line:
            self._quoted = span
        frame = self._stack[-1] if self._stack else None
        if _SURROGATE.search(text):
            self._fail(span, "found half of a character (a lone surrogate)", "write the whole character")
        if frame is not None and isinstance(frame.node.value, dict) and frame.key is None:
            self._name(frame, text, span, is_plain=not event.style)
            if event.anchor is not None:
                self._anchors[event.anchor] = Node(text, span)
            return
        is_text = bool(event.style) or event.tag in ("!", "tag:yaml.org,2002:str")
        if (event.tag is not None and not is_text) or event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self._fail(span, f"found the tag '{event.tag}'; tags are not part of the language", "remove it")
        try:
            value = text if is_text else _scalar(text)
        except ValueError:
            self._fail(span, f"found a number of {len(text)} digits, which is too long", "put it in quotes")
        self._add(Node(value, span), event.anchor)

    def _name(self, frame: _Open, text: str, span: Span, *, is_plain: bool) -> None:
        if text == "<<" and is_plain:
            self._fail(span, "found a merge key '<<', which is not part of YAML 1.2", "write the keys out")
        taken = frame.node.value
        assert isinstance(taken, dict)
        if text in taken:
            first = taken[text].key
            where = f" (first on line {first.line})" if first is not None else ""
            self._fail(span, f"the key '{text}' stands twice{where}", "remove or rename one of them", self._path(text))
        frame.key, frame.key_span = text, span

    def _add_alias(self, event: yaml.AliasEvent) -> None:
        span = self._span(event)
        if event.anchor not in self._anchors:
            known = ", ".join(f"*{name}" for name in self._anchors) or "there are none"
            self._fail(span, f"the alias '*{event.anchor}' names no anchor before it; known: {known}", "add the anchor")
        node = self._anchors[event.anchor]
        if node is None:
            self._fail(span, f"the alias '*{event.anchor}' stands inside its own anchor", "write the value out")
        frame = self._stack[-1] if self._stack else None
        if frame is not None and isinstance(frame.node.value, dict) and frame.key is None:
            self._fail(span, "found an alias as a key; keys are plain text", "write the key out")
        self._add(self._copy(node, span, len(self._stack)), None)

    def _copy(self, node: Node, span: Span, depth: int) -> Node:
        self._aliased += 1
        if self._aliased > MAX_ALIASED:
            self._fail(span, f"the aliases stand for more than {MAX_ALIASED} values", "write fewer aliases")
        if depth > MAX_DEPTH:
            self._fail(span, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        if isinstance(node.value, dict):
            inner = {key: self._copy(child, span, depth + 1) for key, child in node.value.items()}
            return Node(inner, node.span, node.key)
        if isinstance(node.value, list):
            return Node([self._copy(child, span, depth + 1) for child in node.value], node.span, node.key)
        return Node(node.value, node.span, node.key)

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        span = self._span(event)
        frame = self._stack[-1] if self._stack else None
        if len(self._stack) >= MAX_DEPTH:
            self._fail(span, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        if frame is not None and isinstance(frame.node.value, dict) and frame.key is None:
            hint = 'put a template in quotes: "{{ … }}"' if event.flow_style else "keys are plain text"
            self._fail(span, "found a mapping or a list where a key is expected", hint)
        if event.tag not in (None, "!"):
            self._fail(span, f"found the tag '{event.tag}'; tags are not part of the language", "remove it")
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        node = Node({} if isinstance(event, yaml.MappingStartEvent) else [], span)
        self._stack.append(_Open(node, anchor=event.anchor))

    def _close(self, event: yaml.Event) -> None:
        frame = self._stack.pop()
        node = frame.node
        node.span = replace(node.span, end=_mark(event.end_mark).index, style="", source=self.source)
        self._add(node, frame.anchor)

    def _add(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = Node(node.value, node.span)
        if not self._stack:
            self._root = node
            return
        frame = self._stack[-1]
        if isinstance(frame.node.value, list):
            frame.node.value.append(Node(node.value, node.span))
        else:
            assert frame.key is not None
            frame.node.value[frame.key] = Node(node.value, node.span, frame.key_span)
            frame.key = frame.key_span = None

    def _path(self, last: str) -> str:
        parts: list[str] = []
        for frame in self._stack[:-1]:
            value = frame.node.value
            parts.append(str(len(value)) if isinstance(value, list) else str(frame.key))
        return ".".join([*parts, last])

    def _span(self, event: yaml.Event) -> Span:
        start, end = _mark(event.start_mark), _mark(event.end_mark)
        style = getattr(event, "style", None) or ""
        return self._span_at(start.line + 1, start.column + 1, start.index, end.index, style)

    def _span_at(self, line: int, column: int, start: int = 0, end: int = 0, style: str = "") -> Span:
        if self._is_override:
            return Span(self._file, 0, 0, self._base)
        return Span(self._file, line, column, self._base, start, end, style, self.source)

    def _refuse(self, mark: yaml.Mark, message: str, hint: str) -> Never:
        self._fail(self._span_at(mark.line + 1, mark.column + 1), message, hint)

    def _fail(self, span: Span, message: str, hint: str = "", path: str = "") -> Never:
        raise SpecError([span.fault(path, message, hint)])
