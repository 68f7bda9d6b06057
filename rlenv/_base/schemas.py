"""JSON Schemas from outside, compiled so that checking with them is bounded.

A schema is a program that whoever wrote it runs on this machine: it can name addresses to fetch, patterns that take
for ever, and references that double the work with every level. Here none is fetched, patterns run in an engine with
linear time, and the work of one check is counted before it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from rlenv._base.bounded import size

MAX_CHARS: Final = 262_144
MAX_STEPS: Final = 150_000
"""Schemas applied to values in one check; a step is about a quarter of a microsecond."""
_MAX_WIDTH: Final = 10_000
_MAX_DEPTH: Final = 100
_MAX_PATTERNS: Final = 100

_ONE: Final = ("if", "then", "else", "not")
_LIST: Final = ("allOf", "anyOf", "oneOf")
_ITEMS: Final = ("items", "additionalItems", "contains", "unevaluatedItems")
_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_NOTES: Final = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples")
)
_PATTERN_OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=1 << 18, dfa_size_limit=1 << 20)

_Edge = tuple[str, str, "_Node"]


class _Node:
    """One schema: what it costs, what applies to the same value, and what applies to a value's parts."""

    __slots__ = ("height", "here", "own", "parts", "patterns", "place", "repeats", "total_patterns", "width")

    def __init__(self, place: str) -> None:
        self.place = place
        self.own = 1
        self.repeats = 1
        """How often a check goes through what applies to the same value: `unevaluated…` looks a second time."""
        self.patterns = 0
        self.here: list[_Node] = []
        self.parts: list[_Edge] = []
        """(`named`, key, schema) for one member; (`member`, "", …) for any; (`item`, "", …) for an element."""
        self.width = -1
        """Steps at one value: its own, and those of every schema that applies to the same value."""
        self.total_patterns = 0
        self.height = 0


class _Reader:
    """Reads a schema into nodes; every reference leads to a place in the schema itself."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.root = schema
        self.nodes: dict[int, _Node] = {}
        self.patterns: list[str] = []
        self.has_choice = False
        self.has_fraction = False
        self._anchors: dict[str, Any] | None = None

    def node(self, schema: Any, place: str, depth: int = 0) -> _Node:
        if not isinstance(schema, Mapping):
            if isinstance(schema, bool):
                return _Node(place)
            raise ValueError(f"'{place}' is no schema")
        found = self.nodes.get(id(schema))
        if found is not None:
            return found
        if depth > _MAX_DEPTH:
            raise ValueError(f"'{place[:100]}' is nested too deep, or behind too many references")
        made = self.nodes[id(schema)] = _Node(place)
        self._fill(made, schema, depth + 1)
        return made

    def _fill(self, node: _Node, schema: Mapping[str, Any], depth: int) -> None:
        place = node.place
        for key, value in schema.items():
            if key in _NOTES:
                if key == "$id" and schema is not self.root:
                    raise ValueError(f"'{place}' has an '$id' of its own; only the whole schema may have one")
                continue
            if key.startswith("unevaluated"):
                node.repeats = 2
            self.has_fraction = self.has_fraction or (isinstance(value, float) and not value.is_integer())
            node.own += len(value) if isinstance(value, (list, Mapping)) else 1
            here = f"{place}/{key}"
            if key in ("$ref", "$dynamicRef", "$recursiveRef"):
                node.here.append(self.node(self._resolve(value, here), f"{here}({value})"[-200:], depth))
            elif key == "pattern" and isinstance(value, str):
                self.patterns.append(value)
                node.patterns += 1
            elif key in _ONE:
                node.here.append(self.node(value, here, depth))
            elif key in _LIST and isinstance(value, list):
                self.has_choice = self.has_choice or key != "allOf"
                node.here.extend(self.node(one, f"{here}/{index}", depth) for index, one in enumerate(value))
            else:
                self._fill_parts(node, key, value, here, depth)

    def _fill_parts(self, node: _Node, key: str, value: Any, here: str, depth: int) -> None:
        if key == "properties" and isinstance(value, Mapping):
            node.parts += [("named", name, self.node(one, f"{here}/{name}", depth)) for name, one in value.items()]
        elif key == "patternProperties" and isinstance(value, Mapping):
            self.patterns += value
            node.patterns += len(value)
            node.parts += [("member", "", self.node(one, f"{here}/{name}", depth)) for name, one in value.items()]
        elif key in ("dependentSchemas", "dependencies") and isinstance(value, Mapping):
            node.here += [
                self.node(one, f"{here}/{name}", depth) for name, one in value.items() if not isinstance(one, list)
            ]
        elif key in _MEMBERS:
            node.parts.append(("member", "", self.node(value, here, depth)))
        elif key == "propertyNames":
            node.parts.append(("name", "", self.node(value, here, depth)))
        elif key == "prefixItems" or (key == "items" and isinstance(value, list)):
            listed = value if isinstance(value, list) else []
            node.parts += [("item", "", self.node(one, f"{here}/{index}", depth)) for index, one in enumerate(listed)]
        elif key in _ITEMS:
            node.parts.append(("item", "", self.node(value, here, depth)))

    def _resolve(self, reference: Any, place: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            shown = str(reference)[:100]
            raise ValueError(
                f"'{place}' refers to '{shown}', outside of the schema; nothing is fetched: write it under '$defs'"
            )
        rest = unquote(reference[1:])
        found: Any = self.root
        if rest and not rest.startswith("/"):
            found = self._by_anchor().get(rest)
        else:
            for step in rest.split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                if isinstance(found, list) and step.isdecimal() and len(step) < 6 and int(step) < len(found):
                    found = found[int(step)]
                else:
                    found = found.get(step) if isinstance(found, Mapping) else None
        if not isinstance(found, (Mapping, bool)):
            raise ValueError(f"'{place}' refers to '{reference[:100]}', which is not there")
        return found

    def _by_anchor(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors = {}
            rest: list[Any] = [self.root]
            while rest:
                item = rest.pop()
                if isinstance(item, Mapping):
                    for key in ("$anchor", "$dynamicAnchor"):
                        if isinstance(item.get(key), str):
                            self._anchors[item[key]] = item
                    rest.extend(item.values())
                elif isinstance(item, list):
                    rest.extend(item)
        return self._anchors


def _measure(node: _Node, under_way: set[int]) -> None:
    """Fills in `width`.

    Raises ValueError: the schema applies itself to the same value again, or too many schemas apply to one value.
    """
    if node.width >= 0:
        return
    if id(node) in under_way:
        raise ValueError(f"{_name_of(node)} refers to itself for the same value, which never ends")
    under_way.add(id(node))
    width, patterns = node.own, node.patterns
    for one in node.here:
        _measure(one, under_way)
        width += node.repeats * one.width
        patterns += node.repeats * one.total_patterns
    under_way.discard(id(node))
    if width > _MAX_WIDTH:
        raise ValueError(
            f"{_name_of(node)} stands for more than {_MAX_WIDTH:,} checks of one value; its references multiply"
        )
    node.width, node.total_patterns = width, patterns


def _weigh(node: _Node, known: dict[int, int], under_way: set[int]) -> int:
    """The steps of a check that takes every way once; `MAX_STEPS` where a way comes back. Fills in `height`.

    Raises ValueError: a way through the schema and its references is too long.
    """
    if (found := known.get(id(node))) is not None:
        return found
    if id(node) in under_way:
        return MAX_STEPS
    under_way.add(id(node))
    total, height = node.own, 0
    for one in (*node.here, *(part for _, _, part in node.parts)):
        total += _weigh(one, known, under_way)
        height = max(height, one.height)
    under_way.discard(id(node))
    node.height = height + 1
    if node.height > _MAX_DEPTH:
        raise ValueError(f"{_name_of(node)} is nested too deep, or behind too many references")
    known[id(node)] = total = min(total, MAX_STEPS)
    return total


def _name_of(node: _Node) -> str:
    return f"'{node.place[:100]}'" if node.place else "the whole"


class BoundedValidator:
    """A compiled schema. One check takes at most `MAX_STEPS` steps; a value that takes more does not fit.

    Raises:
        ValueError: the schema is not valid; is longer than 262,144 characters or nested deeper than 100; names
            anything outside of itself; applies more than 10,000 checks to one value; or has a pattern that needs more
            than linear time (look-around, back-references).
    """

    __slots__ = ("_has_choice", "_has_fraction", "_is_light", "_root", "_rust", "is_valid")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if size(schema, MAX_CHARS) > MAX_CHARS:
            raise ValueError(f"it takes more than {MAX_CHARS:,} characters, or is nested deeper than {_MAX_DEPTH}")
        reader = _Reader(schema)
        self._root = reader.node(schema, "")
        self._has_choice = reader.has_choice
        if len(reader.patterns) > _MAX_PATTERNS:
            raise ValueError(f"it has more than {_MAX_PATTERNS} patterns")
        try:
            for node in reader.nodes.values():
                _measure(node, set())
            weight = _weigh(self._root, {}, set())
        except RecursionError:
            raise ValueError("it is nested too deep, or behind too many references") from None
        try:
            self._rust = jsonschema_rs.validator_for(
                dict(schema), retriever=_refuse, pattern_options=_PATTERN_OPTIONS, validate_formats=False
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            for pattern in reader.patterns:
                if not _is_linear(pattern):
                    raise ValueError(
                        f"the pattern {pattern[:200]!r} cannot be checked in linear time; write it without look-around "
                        "and back-references, and shorter"
                    ) from error
            raise ValueError(str(error)[:1_000]) from error
        # Below these a check is quick whatever the arguments are, and nothing is counted.
        self._has_fraction = reader.has_fraction
        self._is_light = weight <= 100 and len(reader.patterns) <= 4 and not reader.has_fraction
        self.is_valid = self._rust.is_valid if self._is_light else self._is_valid_counted
        """Whether a value fits."""

    def _is_valid_counted(self, value: Any) -> bool:
        return self.steps(value) <= MAX_STEPS and self._rust.is_valid(value)

    def fault(self, value: Any) -> str:
        """What is wrong with a value, "" where it fits."""
        try:
            if self.is_valid(value):
                return ""
            found = next(self.errors(value), None)
        except ValueError as error:  # nested deeper than the library shows it
            return str(error)
        return "it has too many parts to say what does not fit" if found is None else found.message

    def errors(self, value: Any) -> Iterator[jsonschema_rs.ValidationError]:
        """The errors of a value: all of a small value, the first one of a large one; none where that holds too many.

        The library makes every error before it gives the first, at some twenty microseconds each. That of a choice
        holds all those of its branches, and each of them the part that it is about.
        """
        if self._has_choice and self.steps(value, most=_CHOICE_STEPS, for_each_level=True) > _CHOICE_STEPS:
            return
        is_small = size(value, _ALL_ERRORS_CHARS) <= _ALL_ERRORS_CHARS
        if is_small and self.steps(value, most=_ALL_ERRORS_STEPS) <= _ALL_ERRORS_STEPS:
            yield from self._rust.iter_errors(value)
        elif self._is_light or self.steps(value) <= MAX_STEPS:
            try:
                self._rust.validate(value)
            except jsonschema_rs.ValidationError as error:
                yield error

    def steps(self, value: Any, *, most: int = MAX_STEPS, for_each_level: bool = False) -> int:
        """The number of schemas that a check of `value` applies; counting stops a little beyond `most`.

        Args:
            for_each_level: what applies to a part counts for each of the values that it stands in too.
        """
        total = 0
        rest: list[tuple[Any, dict[int, tuple[_Node, int]], int]] = [(value, {id(self._root): (self._root, 1)}, 1)]
        while rest:
            item, applied, level = rest.pop()
            inner = level + for_each_level
            is_text, is_map, is_list = isinstance(item, str), isinstance(item, Mapping), isinstance(item, (list, tuple))
            each = level * (_steps_of(item) if self._has_fraction and type(item) in (int, float) else 1)
            for node, times in applied.values():
                total += node.width * times * each
                if is_text and node.total_patterns:
                    total += node.total_patterns * times * (len(item) // 16)  # characters a step
            if total > most:
                break
            if (is_map or is_list) and item:
                total += len(item) * level
                named, common = _split(applied, is_map=is_map)
                total += sum(map(len, named.values())) + len(common)
                if total > most:
                    break
                if is_map:
                    rest += [(held, _merged(common, named.get(key, ())), inner) for key, held in item.items()]
                elif common:
                    met = _merged(common, ())
                    rest += [(held, met, inner) for held in item]
        return total


_ALL_ERRORS_CHARS: Final = 8_000
_ALL_ERRORS_STEPS: Final = 2_000
_CHOICE_STEPS: Final = 5_000

_Applied = list[tuple[_Node, int]]


def _steps_of(number: float) -> int:
    """How many steps one takes with a number that it compares with a fraction: exactly, in all its digits."""
    if isinstance(number, int):
        return 1 + number.bit_length() // 50 + number.bit_length() ** 2 // 20_000
    return 1 if not number or 1e-12 < abs(number) < 1e12 else 3 if 1e-60 < abs(number) < 1e60 else 40


def _split(applied: Mapping[int, tuple[_Node, int]], *, is_map: bool) -> tuple[dict[str, _Applied], _Applied]:
    """The schemas that apply to members by name, and those that may apply to every part."""
    named: dict[str, _Applied] = {}
    common: _Applied = []
    pending = list(applied.values())
    while pending:
        node, times = pending.pop()
        for kind, key, part in node.parts:
            if kind == "named":
                if is_map:
                    named.setdefault(key, []).append((part, times))
            elif (kind == "item") is not is_map:
                common.append((part, times))
        pending += [(one, times) for one in node.here]
    return named, common


def _merged(one: _Applied, other: Any) -> dict[int, tuple[_Node, int]]:
    met: dict[int, tuple[_Node, int]] = {}
    for node, times in (*one, *other):
        known = met.get(id(node))
        met[id(node)] = (node, times + (known[1] if known else 0))
    return met


def _refuse(uri: str) -> Any:
    raise ValueError(f"'{uri[:100]}' is outside of the schema; nothing is fetched")


def _is_linear(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=_PATTERN_OPTIONS)
    except ValueError:
        return False
    return True


def without_unreadable_patterns(schema: Any) -> Any:
    """`schema` without each `pattern` that no engine with linear time can run, for a check that somebody else repeats.

    Left in place are those below `not`, `if`, `oneOf` and `contains`, where leaving one out would refuse what fits.
    """
    if isinstance(schema, Mapping):
        kept = {}
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str) and not _is_linear(value):
                continue
            is_turned = key in ("not", "if", "oneOf", "contains", "enum", "const", "default", "examples")
            kept[key] = value if is_turned else without_unreadable_patterns(value)
        return kept
    if isinstance(schema, list):
        return [without_unreadable_patterns(one) for one in schema]
    return schema
