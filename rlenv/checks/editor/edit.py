"""Changes to one entry of a spec's text that leave the rest of the text as its author wrote it.

    edit(text, group="tools", name="sum", values={"kind": "calculator", "retries": 2, "timeout_s": None})
    rename(text, group="tools", name="sum", to="add")
    delete(text, group="tools", name="sum")

Changes are found through the places of the tree; no text is written anew that has not changed. The result is read again
before it is handed out, so that an edit that cannot be made exactly is refused and never half made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import KeyPath, parts_of, strings_in
from rlenv.errors import SpecError, UsageError
from rlenv.language.yamltree import Node, parse_text

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("tool", "tools"),
    "resources": ("resource", "inject"),
    "endpoints": ("endpoint",),
}
_DATA: Final = frozenset(("tasks", "vars", "dialect"))
_OTHERS: Final = frozenset(("kind", "rule", "pattern", "parameters"))
_HEAD: Final = frozenset(("name", "extends", "roots"))
_TEMPLATE: Final = re.compile(r"\{\{|\{%")


@dataclass(frozen=True, slots=True)
class Reference:
    """A place that names an entry: a key, a whole text, or the only match of `pattern` in a text, the name itself."""

    path: KeyPath
    node: Node
    is_key: bool = False
    pattern: re.Pattern[str] | None = None


def dotted(path: KeyPath) -> str:
    """A path as messages show it: `rewards.calls.tools.0`."""
    return ".".join(map(str, path))


def references(root: Node, *, group: str, name: str) -> Iterator[Reference]:
    """The places that name the entry and would name nothing without it; the entry's own key is none of them."""
    word = re.escape(name)
    in_expression = re.compile(rf"(?<![\w.]){word}(?!\w)")
    in_template = re.compile(rf"(?<=\bresources\.){word}(?!\w)")
    for path, node in _places(root):
        is_call = group == "tools" and path[0] == "oracle" and len(path) in (4, 5) and path[2] == "call"
        if is_call and path[-1] == name and node.key is not None:
            yield Reference(path, node, is_key=True)
        if not isinstance(node.value, str) or path[0] in _DATA or not _OTHERS.isdisjoint(map(str, path)):
            continue
        last = next((part for part in reversed(path) if isinstance(part, str)), "")
        if node.value == name and path[0] != "oracle" and _names(group, path, last):
            yield Reference(path, node)
        elif group == "rewards" and (path == ("success",) or last == "gate") and in_expression.search(node.value):
            yield Reference(path, node, pattern=in_expression)
        elif group == "resources" and _TEMPLATE.search(node.value) and in_template.search(node.value):
            yield Reference(path, node, pattern=in_template)


def _names(group: str, path: KeyPath, last: str) -> bool:
    return (last in _KEYS.get(group, ()) and len(path) > 1) or (path[-2:-1] == ("inject",) and group == "resources")


def mentions(root: Node, *, name: str) -> Iterator[KeyPath]:
    """The texts outside of the data in which the name stands as a word: prompts, descriptions, other templates."""
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    for path, node in _places(root):
        is_looked_at = path[0] not in _DATA | _HEAD and path[-1] not in _OTHERS
        if is_looked_at and isinstance(node.value, str) and word.search(node.value):
            yield path


def _places(node: Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
    if path:
        yield path, node
    for key, child in parts_of(node.value):
        yield from _places(child, (*path, key))


_MOST_COLUMNS: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z_./][\w./-]*(?: [\w./-]+)*", re.ASCII)
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")  # YAML forbids these, or takes them for line breaks
_COLON: Final = re.compile(r"\s*:")
_ALIAS: Final = re.compile(r"\s*:\s+\*[^\s,\]}]+")
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
_HEADER: Final = re.compile(r"[|>][-+0-9]*")


@dataclass(frozen=True, slots=True)
class _Change:
    start: int
    end: int
    text: str


def edit(text: str, *, group: str, name: str, values: Mapping[str, Any], order: Iterable[str] = ()) -> str:
    """The text with the keys of one entry set; an entry or a group that is not there is added.

    A value of None removes its key, and with it the comment on its line; every other comment stays, and so does what
    `values` does not name. `order` are the keys at the top in the language's order: a new group is put in its place.

    Raises:
        SpecError: the text cannot be read.
        UsageError: the entry is no mapping, or stands where it cannot be changed without changing something else (an
            alias or an anchor).
    """
    root = parse_text(text, file="", base=Path())
    before = root.plain()
    entries = before.get(group)
    if entries is not None and not isinstance(entries, dict):
        raise UsageError(f"'{group}' is no mapping", key=group, hint="make it one in the text first")
    entry = (entries or {}).get(name)
    if entry is not None and not isinstance(entry, dict):
        raise UsageError("the entry is no mapping", key=f"{group}.{name}", hint="make it one in the text first")
    new = {key: value for key, value in {**(entry or {}), **values}.items() if value is not None}
    wanted = {**before, group: {**(entries or {}), name: new}}
    changes: list[_Change] = []
    if _content(wanted) != _content(before):
        _Surgeon(text, changes, tuple(order)).mapping(root, wanted)
    made = _applied(text, changes)
    if not _says(made, wanted):
        raise _not_alone(group, name, "change")
    return made


@dataclass(frozen=True, slots=True)
class Edited:
    """A text, and the dotted places in it that still name the entry as it was called before."""

    text: str
    left: tuple[str, ...]


def rename(text: str, *, group: str, name: str, to: str) -> Edited:
    """The text with an entry under another name, and with it whatever refers to it: lists of tools, `resource`,
    `endpoint`, `inject`, the calls of the oracle, the terms in `success` and `gate`, `resources.NAME` in templates.

    What may mean the name, such as a prompt that tells a model of a tool, stays and is among the places left.

    Raises:
        SpecError: the text cannot be read.
        UsageError: there is no such entry in this text, another has the new name, or it cannot be changed alone.
    """
    root, child, before = _entry(text, group, name)
    if not to.strip() or to in before[group]:
        said = f"'{to}' is an entry already" if to.strip() else "found no name"
        raise UsageError(f"{said}; expected a new name", key=f"{group}.{name}", hint="choose another")
    own = Reference((group, name), child, is_key=True)
    made = _renamed(text, [own], before, to)
    if made is None:
        raise _not_alone(group, name, "change", done="renamed")
    # Each alone first: an alias names its place's anchor, whose other uses would change with it.
    found = [one for one in references(root, group=group, name=name) if _renamed(text, [one], before, to) is not None]
    made = _renamed(text, [own, *found], before, to) or made
    return Edited(made, _left(made, group, name))


def delete(text: str, *, group: str, name: str) -> Edited:
    """The text without an entry; its group stays, empty where that was the last, and so do the comments around it.

    Raises:
        SpecError: the text cannot be read.
        UsageError: there is no such entry in this text, or it cannot be removed alone.
    """
    root, child, before = _entry(text, group, name)
    wanted = {**before, group: {key: value for key, value in before[group].items() if key != name}}
    changes: list[_Change] = []
    surgeon = _Surgeon(text, changes, ())
    if wanted[group]:
        surgeon.mapping(root, wanted)
    else:
        surgeon.empty(_keys(root)[group], child)
    made = _applied(text, changes)
    if not _says(made, wanted):
        raise _not_alone(group, name, "remove")
    return Edited(made, _left(made, group, name))


def _not_alone(group: str, name: str, to_do: str, *, done: str = "") -> UsageError:
    said = f"it cannot be {done or f'{to_do}d'} without changing something else"
    return UsageError(said, key=f"{group}.{name}", hint=f"{to_do} it in the text")


def _entry(text: str, group: str, name: str) -> tuple[Node, Node, dict[str, Any]]:
    """The tree of a text, an entry in it, and the content of the whole."""
    root = parse_text(text, file="", base=Path())
    held = _keys(root).get(group)
    entries = held.value if held is not None and isinstance(held.value, dict) else {}
    if name not in entries:
        hint = "where the text extends another, change that one"
        raise UsageError("there is no such entry in this text", key=f"{group}.{name}", hint=hint)
    return root, entries[name], root.plain()


def _renamed(text: str, places: list[Reference], before: dict[str, Any], to: str) -> str | None:
    """The text with the name at these places replaced; None where it would say something else than that."""
    wanted = json.loads(json.dumps(before))
    changes = []
    # The deepest first: a key that is renamed takes what is below it to another path.
    for one in sorted(places, key=lambda one: -len(one.path)):
        *above, last = one.path
        holder = wanted
        for part in above:
            holder = holder[part]
        if one.is_key:
            assert one.node.key is not None
            if to in holder:
                return None
            holder[to] = holder.pop(last)
            changes.append(_Change(one.node.key.start, one.node.key.end, _scalar(to)))
        elif one.pattern is None:
            holder[last] = to
            changes.append(_Change(one.node.span.start, one.node.span.end, _scalar(to)))
        elif not to.isidentifier():
            return None
        else:
            holder[last] = one.pattern.sub(to, holder[last])
            span = one.node.span
            changes.append(_Change(span.start, span.end, one.pattern.sub(to, text[span.start : span.end])))
    made = _applied(text, list(dict.fromkeys(changes)))
    return made if _says(made, wanted) else None


def _left(text: str, group: str, name: str) -> tuple[str, ...]:
    root = parse_text(text, file="", base=Path())
    paths = [one.path for one in references(root, group=group, name=name)]
    return tuple(dict.fromkeys(map(dotted, [*paths, *mentions(root, name=name)])))


def _applied(text: str, changes: list[_Change]) -> str:
    parts, at = [], 0
    for change in sorted(changes, key=lambda one: (one.start, one.end)):
        parts += [text[at : change.start], change.text]
        at = max(at, change.end)
    return "".join([*parts, text[at:]])


def _says(text: str, wanted: Any) -> bool:
    try:
        return _content(parse_text(text, file="", base=Path()).plain()) == _content(wanted)
    except SpecError:
        return False


def _content(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _keys(node: Node) -> dict[str, Node]:
    """The values of a mapping by key."""
    assert isinstance(node.value, dict)
    return node.value


class _Surgeon:
    """Collects the changes of a text that give its mappings other values."""

    def __init__(self, text: str, changes: list[_Change], order: tuple[str, ...]) -> None:
        self._text, self._changes, self._order = text, changes, order
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def mapping(self, node: Node, new: Mapping[str, Any]) -> None:
        """Changes what differs in a mapping; at least one key stays."""
        held = _keys(node)
        in_flow = self._is_flow(node)
        for key, child in held.items():
            if key not in new:
                self._remove(node, key, new, in_flow=in_flow)
            elif _content(child.plain()) != _content(new[key]):
                self._set(child, new[key], in_flow=in_flow)
        added = {key: value for key, value in new.items() if key not in held}
        kept = [child for key, child in held.items() if key in new]
        for key, value in added.items():
            self._add(node, key, value, kept, in_flow=in_flow)

    def empty(self, node: Node, last: Node) -> None:
        """Takes the last entry out of a mapping."""
        assert last.key is not None
        if self._is_flow(node) or self._is_alias(node):
            self._set(node, {}, in_flow=False)
            return
        colon = self._after_colon(node)
        self._change(colon, colon, " {}")
        end = self._line_end(self._span(last)[1], is_whole=True)
        self._change(self._line_start(last.key.start), end, "")

    def _set(self, child: Node, value: Any, *, in_flow: bool) -> None:
        is_own = not self._is_alias(child)
        if is_own and isinstance(child.value, dict) and isinstance(value, dict) and child.value.keys() & value.keys():
            self.mapping(child, value)
            return
        assert child.key is not None
        start, end = self._span(child)
        column = child.key.column - 1
        if in_flow:
            self._change(start, end, _flow(value))
        elif self._text[child.key.end : start].count("\n"):  # the value begins below its key
            colon = self._after_colon(child)
            self._change(colon, colon, _written(value, column))
            self._change(self._line_start(start), self._line_end(end, is_whole=True), "")
        else:
            found = _HEADER.match(self._text, start) if child.span.style in ("|", ">") else None
            tail = self._text[found.end() : self._line_end(found.end())] if found is not None else ""
            first, *rest = _written(value, column).split("\n")
            colon = self._after_colon(child)
            self._change(colon, end, "\n".join([first + tail.rstrip(), *rest]))

    def _remove(self, node: Node, key: str, new: Mapping[str, Any], *, in_flow: bool) -> None:
        names, children = list(_keys(node)), list(_keys(node).values())
        at = names.index(key)
        child = children[at]
        assert child.key is not None
        end = self._span(child)[1]
        if not in_flow:
            self._change(self._line_start(child.key.start), self._line_end(end, is_whole=True), "")
        elif any(name in new for name in names[at:]):
            following = children[at + 1].key
            assert following is not None
            self._change(child.key.start, following.start, "")
        else:  # none stays behind it, so the comma before it goes
            self._change(self._span(children[at - 1])[1], end, "")

    def _add(self, node: Node, key: str, value: Any, kept: list[Node], *, in_flow: bool) -> None:
        after = self._before(node, key) if node.key is None else kept[-1]
        end = self._span(after)[1]
        if in_flow:
            self._change(end, end, f", {_scalar(key)}: {_flow(value)}")
            return
        assert after.key is not None
        column = after.key.column - 1
        place = self._line_end(end)
        line = f"\n{' ' * column}{_scalar(key)}:{_written(value, column, is_deep=node.key is None)}"
        self._change(place, place, f"\n{line}" if node.key is None else line)

    def _before(self, root: Node, key: str) -> Node:
        """The section after which a new one stands."""
        earlier = self._order[: self._order.index(key)] if key in self._order else tuple(_keys(root))
        found = [child for name, child in _keys(root).items() if name in earlier]
        return found[-1] if found else list(_keys(root).values())[-1]

    def _change(self, start: int, end: int, text: str) -> None:
        self._changes.append(_Change(start, end, text.replace("\n", self._newline)))

    def _is_flow(self, node: Node) -> bool:
        found = _PROPERTIES.match(self._text, node.span.start)
        return found is not None and self._text[found.end() : found.end() + 1] in ("{", "[")

    def _is_alias(self, child: Node) -> bool:
        return child.key is not None and _ALIAS.match(self._text, child.key.end) is not None

    def _after_colon(self, child: Node) -> int:
        assert child.key is not None
        found = _COLON.match(self._text, child.key.end)
        return found.end() if found is not None else child.key.end

    def _span(self, child: Node) -> tuple[int, int]:
        """The extent of a value as it is written, without the text that follows it."""
        assert child.key is not None
        alias = _ALIAS.match(self._text, child.key.end)
        if alias is not None:
            return self._text.rindex("*", 0, alias.end()), alias.end()
        return child.span.start, self._end(child)

    def _end(self, node: Node) -> int:
        span = node.span
        is_block = isinstance(node.value, (dict, list)) and not self._is_flow(node)
        if not is_block:
            return (
                span.start + len(self._text[span.start : span.end].rstrip()) if span.style in ("|", ">") else span.end
            )
        if isinstance(node.value, dict):
            return self._span(list(node.value.values())[-1])[1] if node.value else span.end
        last = node.value[-1] if node.value else None
        if last is not None and span.start <= last.span.start < span.end:
            return self._end(last)
        return self._last_line(span.start, span.end)  # the last item is an alias, whose place is its anchor's

    def _last_line(self, start: int, end: int) -> int:
        """The end of the last line of a block that is no comment."""
        lines = self._text[start:end].split("\n")
        while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
            lines.pop()
        return start + len("\n".join(lines).rstrip())

    def _line_start(self, offset: int) -> int:
        return self._text.rfind("\n", 0, offset) + 1

    def _line_end(self, offset: int, *, is_whole: bool = False) -> int:
        """The end of a line, its break included where the line `is_whole`."""
        at = self._text.find("\n", offset)
        if at < 0:
            return len(self._text)
        if is_whole:
            return at + 1
        return at - 1 if at > offset and self._text[at - 1] == "\r" else at


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and parse_text(value, file="", base=Path(), is_override=True).plain() == value:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found.group()):04x}", quoted)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]" if isinstance(value, list) else _scalar(value)


def _written(value: Any, column: int, *, is_deep: bool = False) -> str:
    """The text behind the colon of a key at a column, with the space or the line break before it."""
    if isinstance(value, str) and "\n" in value and _fits_block(value):
        inner = " " * (column + 2)
        lines = [inner + line if line else "" for line in value.removesuffix("\n").split("\n")]
        return " |" + ("" if value.endswith("\n") else "-") + "\n" + "\n".join(lines)
    flow = _flow(value)
    is_short = column + len(flow) <= _MOST_COLUMNS and not _has_lines(value) and not is_deep
    if not isinstance(value, dict) or not value or is_short:
        return " " + flow
    inner = " " * (column + 2)
    return "".join(f"\n{inner}{_scalar(key)}:{_written(item, column + 2)}" for key, item in value.items())


def _has_lines(value: Any) -> bool:
    return any("\n" in text for _, text in strings_in(value, ()))


def _fits_block(text: str) -> bool:
    """True if a literal block holds a text exactly: no odd breaks, no leading space, one line break at most behind."""
    is_plain = all(character >= " " or character in "\n\t" for character in text) and not _ESCAPED.search(text)
    return is_plain and text[0] not in " \t\n" and not text.endswith("\n\n") and bool(text.strip())
