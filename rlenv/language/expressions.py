"""The comparisons of `gate:` and `success:`, such as `correct >= 1 and not format < 0.5`.

    expression = either { "or" either }
    either     = one { "and" one }
    one        = "not" one | "(" expression ")" | side ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) side
    side       = a number or the name of a term

A term without a value makes a comparison unknown. Unknown spreads as in Kleene's three-valued logic: it stays unless
the rest decides (`a >= 1 or b >= 1` holds as soon as one of them does).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rlenv._base.nearest import did_you_mean
from rlenv.errors import UsageError

__all__ = ["Expression", "ExpressionError", "compile_expression"]

Values = Mapping[str, float | None]
_Node = Callable[[Values], bool | None]
_Side = Callable[[Values], float | None]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))|(?P<name>[A-Za-z_][\w-]*)"
    r"|(?P<symbol><=|>=|==|!=|<|>|\(|\)))",
    re.ASCII,
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_WORDS = ("and", "or", "not")
_MAX_DEPTH = 64
_MAX_CHARS = 4_000


class ExpressionError(UsageError):
    """An expression cannot be read. `position` is the 0-based character where it goes wrong."""

    def __init__(self, message: str, *, source: str, position: int, hint: str = "") -> None:
        self.position = position
        super().__init__(f"{message}, at character {position + 1} of '{source}'", hint=hint)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled comparison. `names` are the terms that it reads, in the order in which they first stand."""

    source: str
    names: tuple[str, ...]
    _evaluate: _Node

    def __call__(self, values: Values) -> bool | None:
        """True or False, or None where terms without a value leave it open."""
        return self._evaluate(values)


def compile_expression(source: str, *, names: Collection[str] | None = None, flags: Collection[str] = ()) -> Expression:
    """Compiles `source`; where `names` is given, the terms that it may read.

    Args:
        flags: those of the names that are 1 or 0, and may stand without a comparison: `success and turns <= 3`.

    Raises:
        ExpressionError: a syntax error or an unknown name; the message has the place and the nearest fix.
    """
    parser = _Parser(source, names, flags)
    node = parser.either(0)
    parser.expect_end()
    return Expression(source, tuple(parser.seen), node)


class _Parser:
    """A recursive descent over tokens of (kind, text, position)."""

    def __init__(self, source: str, names: Collection[str] | None, flags: Collection[str]) -> None:
        self.source = source
        self.names = names
        self.flags = flags
        self.seen: dict[str, None] = {}
        self.tokens: list[tuple[str, str, int]] = []
        self.index = 0
        position = 0
        if len(source) > _MAX_CHARS:
            raise ExpressionError(f"more than {_MAX_CHARS} characters", source=f"{source[:40]}…", position=0)
        while source[position:].strip():
            match = _TOKEN.match(source, position)
            if match is None:
                place = position + len(source[position:]) - len(source[position:].lstrip())
                found = source[place : place + 2] if source[place] in "&|=" else source[place]
                hint = {"&&": "write and", "||": "write or", "= ": "write =="}.get(found, "")
                raise self._error(f"cannot read '{found.strip()}'", place, hint)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            position = match.end()
        self.tokens.append(("end", "", len(source)))

    def either(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels deep", self.tokens[self.index][2])
        nodes = [self.both(depth)]
        while self._take("or"):
            nodes.append(self.both(depth))
        return nodes[0] if len(nodes) == 1 else _any(tuple(nodes))

    def both(self, depth: int) -> _Node:
        nodes = [self.one(depth)]
        while self._take("and"):
            nodes.append(self.one(depth))
        return nodes[0] if len(nodes) == 1 else _all(tuple(nodes))

    def one(self, depth: int) -> _Node:
        negated = False
        while self._take("not"):
            negated = not negated
        if self._take("("):
            node = self.either(depth + 1)
            if not self._take(")"):
                raise self._unexpected("')'")
        else:
            node = self.comparison()
        return _not(node) if negated else node

    def comparison(self) -> _Node:
        _, first, _ = self.tokens[self.index]
        left = self.side()
        kind, text, _ = self.tokens[self.index]
        if first in self.flags and (kind != "symbol" or text not in _COMPARE):
            return _comparison(operator.ne, left, lambda values: 0.0)
        if kind != "symbol" or text not in _COMPARE:
            raise self._unexpected("a comparison such as >= 1")
        self.index += 1
        return _comparison(_COMPARE[text], left, self.side())

    def side(self) -> _Side:
        kind, text, position = self.tokens[self.index]
        if kind == "number":
            self.index += 1
            constant = float(text)
            return lambda values: constant
        if kind != "name" or text in _WORDS:
            raise self._unexpected("a number or the name of a term")
        if self.names is not None and text not in self.names:
            raise self._error(f"no term is called '{text}'", position, did_you_mean(text, self.names, "there are"))
        self.index += 1
        self.seen[text] = None
        return lambda values: values.get(text)

    def expect_end(self) -> None:
        if self.tokens[self.index][0] != "end":
            raise self._unexpected("'and', 'or' or the end")

    def _take(self, text: str) -> bool:
        kind, found, _ = self.tokens[self.index]
        if found != text or kind not in ("name", "symbol"):
            return False
        self.index += 1
        return True

    def _unexpected(self, expected: str) -> ExpressionError:
        kind, text, position = self.tokens[self.index]
        return self._error(f"expected {expected}, found {'the end' if kind == 'end' else repr(text)}", position)

    def _error(self, message: str, position: int, hint: str = "") -> ExpressionError:
        return ExpressionError(message, source=self.source, position=position, hint=hint)


def _comparison(compare: Callable[[float, float], bool], left: _Side, right: _Side) -> _Node:
    def node(values: Values) -> bool | None:
        a, b = left(values), right(values)
        return None if a is None or b is None else compare(a, b)

    return node


def _not(inner: _Node) -> _Node:
    def node(values: Values) -> bool | None:
        value = inner(values)
        return None if value is None else not value

    return node


def _all(nodes: tuple[_Node, ...]) -> _Node:
    def node(values: Values) -> bool | None:
        found = [inner(values) for inner in nodes]
        return False if False in found else None if None in found else True

    return node


def _any(nodes: tuple[_Node, ...]) -> _Node:
    def node(values: Values) -> bool | None:
        found = [inner(values) for inner in nodes]
        return True if True in found else None if None in found else False

    return node
