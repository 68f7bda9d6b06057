"""The comparisons of `gate:` and `success:`, such as `correct >= 1 and not format < 0.5`.

    disjunction = conjunction { "or" conjunction }
    conjunction = operand { "and" operand }
    operand     = "not" operand | "(" disjunction ")" | side ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) side
    side        = a number or the name of a term; in a gate also a column of the row, such as task.level, or a "text"

A column may stand without a comparison: `task.hard`. One that a row lacks is without a value.

A term without a value makes a comparison unknown. Unknown spreads as in Kleene's three-valued logic: it stays unless
the rest decides (`a >= 1 or b >= 1` holds as soon as one of them does).

What is wrong with `rewards` and `success` beside each other: weights, bounds, gates and the terms that they read.

Numbers that rows give: limits and weights.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from rlenv._base.text import did_you_mean
from rlenv.errors import EpisodeError, Finding, UsageError
from rlenv.language.document import SourceDocument
from rlenv.language.spec import EnvSpec, LimitsSpec, RewardSpec
from rlenv.language.templates import TemplateError, template_of
from rlenv.language.type_faults import describe

Values = Mapping[str, float | None]
_Node = Callable[[Mapping[str, Any]], bool | None]
_Side = Callable[[Mapping[str, Any]], Any]
_ROW: Final = "task."

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))|(?P<name>task(?:\.\w+)+|[A-Za-z_][\w-]*)"
    r"|(?P<text>\"[^\"]*\"|'[^']*')"
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
    """A compiled comparison. `names` are the terms that it reads, in the order in which they first stand, and
    `columns` those of the row."""

    source: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    _evaluate: _Node

    def __call__(self, values: Values, task: Mapping[str, Any] | None = None) -> bool | None:
        """True or False, or None where what has no value leaves it open."""
        return self._evaluate({**values, "task": task} if self.columns else values)


def compile_expression(
    source: str, *, names: Collection[str] | None = None, flags: Collection[str] = (), by_row: bool = False
) -> Expression:
    """Compiles `source`; where `names` is given, the terms that it may read.

    Args:
        flags: those of the names that are 1 or 0, and may stand without a comparison: `success and turns <= 3`.
        by_row: it may read columns.

    Raises:
        ExpressionError: a syntax error or an unknown name; the message has the place and the nearest fix.
    """
    parser = _Parser(source, names, flags, by_row=by_row)
    node = parser.disjunction(0)
    parser.expect_end()
    return Expression(source, tuple(parser.seen), tuple(parser.columns), node)


def open_on(gate: str | None) -> Callable[[Mapping[str, Any]], bool]:
    """Tells of a row whether a gate may be open on it, whatever the terms give; True for one that cannot be read."""
    try:
        expression = compile_expression(gate, by_row=True) if gate is not None else None
    except ExpressionError:
        expression = None
    if expression is None or not expression.columns:
        return lambda task: True
    unknown = dict.fromkeys(expression.names)
    return lambda task: expression(unknown, task) is not False


class _Parser:
    """A recursive descent over tokens of (kind, text, position)."""

    def __init__(self, source: str, names: Collection[str] | None, flags: Collection[str], *, by_row: bool) -> None:
        self.source = source
        self.names = names
        self.flags = flags
        self.by_row = by_row
        self.seen: dict[str, None] = {}
        self.columns: dict[str, None] = {}
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

    def disjunction(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels deep", self.tokens[self.index][2])
        nodes = [self.conjunction(depth)]
        while self._take("or"):
            nodes.append(self.conjunction(depth))
        return _join_nodes(nodes, decides=True)

    def conjunction(self, depth: int) -> _Node:
        nodes = [self.operand(depth)]
        while self._take("and"):
            nodes.append(self.operand(depth))
        return _join_nodes(nodes, decides=False)

    def operand(self, depth: int) -> _Node:
        negated = False
        while self._take("not"):
            negated = not negated
        if self._take("("):
            node = self.disjunction(depth + 1)
            if not self._take(")"):
                raise self._unexpected("')'")
        else:
            node = self.comparison()
        return _negated(node) if negated else node

    def comparison(self) -> _Node:
        _, first, _ = self.tokens[self.index]
        left = self.side()
        kind, text, _ = self.tokens[self.index]
        if (first in self.flags or first.startswith(_ROW)) and (kind != "symbol" or text not in _COMPARE):
            return lambda values: None if (value := left(values)) is None else bool(value)
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
        if kind == "text" and self.by_row:
            self.index += 1
            return lambda values: text[1:-1]
        if kind == "name" and text.startswith(_ROW):
            return self._column(text, position)
        if kind != "name" or text in _WORDS:
            raise self._unexpected("a number or the name of a term")
        if self.names is not None and text not in self.names:
            raise self._error(f"no term is called '{text}'", position, did_you_mean(text, self.names, "there are"))
        self.index += 1
        self.seen[text] = None
        return lambda values: values.get(text)

    def _column(self, text: str, position: int) -> _Side:
        if not self.by_row:
            raise self._error("columns are read in gates alone", position, "compare terms here")
        self.index += 1
        self.columns[text[len(_ROW) :]] = None
        path = text.split(".")

        def side(values: Mapping[str, Any]) -> Any:
            found: Any = values
            for key in path:
                found = found.get(key) if isinstance(found, Mapping) else None
            return found

        return side

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
        try:
            return None if a is None or b is None else compare(a, b)
        except TypeError:  # a column's text is neither more nor less than a number
            return None

    return node


def _negated(inner: _Node) -> _Node:
    def node(values: Values) -> bool | None:
        value = inner(values)
        return None if value is None else not value

    return node


def _join_nodes(nodes: list[_Node], *, decides: bool) -> _Node:
    """Of several the first alone; else `decides` as soon as one of them is that, and otherwise what is open."""

    def node(values: Values) -> bool | None:
        found = [inner(values) for inner in nodes]
        return decides if decides in found else None if None in found else not decides

    return nodes[0] if len(nodes) == 1 else node


@dataclass(frozen=True, slots=True)
class Flaw:
    """One fault: the dotted key of the spec, what is wrong, the nearest fix, and a text in the value to point at."""

    path: str
    message: str
    hint: str
    find: str = ""


def weighing_faults(
    document: SourceDocument, spec: EnvSpec, *, lost: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """The `flaws` of a spec, each at its place in the document."""
    for flaw in flaws(spec.rewards, spec.success, lost=lost):
        yield document.fault(flaw.path, flaw.message, flaw.hint, find=flaw.find)


def flaws(
    rewards: Mapping[str, RewardSpec], success: str | None, *, lost: frozenset[str] = frozenset()
) -> Iterator[Flaw]:
    """Every fault of a weight, `range`, `clip`, `gate` and `success`.

    Args:
        lost: dotted places that were taken out of the spec; what reads such a term is not at fault.
    """
    names = list(rewards)
    reads: dict[str, tuple[str, ...]] = {}
    for name, reward in rewards.items():
        path = f"rewards.{name}"
        if not math.isfinite(reward.usual_weight):
            message = f"found {reward.usual_weight}; expected a finite number"
            yield Flaw(f"{path}.weight", message, "write a number such as 1.0")
        yield from _check_bounds(path, reward)
        if reward.gate is None:
            continue
        others = [one for one in names if one != name]
        found, wrong = _expression(f"{path}.gate", reward.gate, others, lost)
        if name in found:
            message = f"the gate of '{name}' reads '{name}' itself"
            yield Flaw(f"{path}.gate", message, "name another term", name)
        else:
            reads[name] = found
            yield from wrong
    yield from _find_circles(reads)
    if success is not None:
        yield from _expression("success", success, names, lost)[1]


def _check_bounds(path: str, reward: RewardSpec) -> Iterator[Flaw]:
    for key in ("range", "clip"):
        pair = getattr(reward, key)
        if pair is None:
            continue
        low, high = pair
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
            message = f"found [{low:g}, {high:g}]; expected a lower and a higher finite number"
            hint = f"write [{min(pair):g}, {max(pair):g}]" if low != high else "write [0, 1]"
            yield Flaw(f"{path}.{key}", message, hint)


def _expression(path: str, source: str, names: list[str], lost: frozenset[str]) -> tuple[tuple[str, ...], list[Flaw]]:
    """The terms that an expression reads, and what is wrong with it."""
    try:
        read = compile_expression(source, by_row=path.endswith(".gate")).names
    except ExpressionError as error:
        rest = source[error.position :].split()
        hint = error.hint or "write TERM >= NUMBER, joined by 'and' and 'or'"
        return (), [Flaw(path, error.message, hint, rest[0] if rest else "")]
    unknown = [name for name in read if name not in names and f"rewards.{name}" not in lost]
    return read, [
        Flaw(path, f"there is no reward term '{name}'", did_you_mean(name, names, "terms"), name) for name in unknown
    ]


def _find_circles(reads: Mapping[str, tuple[str, ...]]) -> Iterator[Flaw]:
    reported: set[frozenset[str]] = set()
    for start in reads:
        seen = {start}
        frontier: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
        while frontier:
            name, trail = frontier.pop()
            for other in reads.get(name, ()):
                if other == start:
                    members = frozenset(trail)
                    if members not in reported:
                        reported.add(members)
                        message = f"the gates form a circle: {' -> '.join((*trail, start))}"
                        yield Flaw(f"rewards.{start}.gate", message, "remove one of these gates")
                elif other not in seen:
                    seen.add(other)
                    frontier.append((other, (*trail, other)))


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """The limits of one episode; see `LimitsSpec`. None: no limit."""

    turns: int
    turns_per_reply: int | None
    tool_calls: int
    calls_per_turn: int
    invalid_actions: int
    episode_s: float
    turn_s: float | None
    reward_s: float
    response_tokens: int | None


class RowLimits:
    """The limits of a spec, of which rows may give some. `usual` has the default of each key that rows give.

    Raises:
        UsageError: a template does not compile, or reads what is not there.
    """

    def __init__(self, spec: LimitsSpec, vars: Mapping[str, Any]) -> None:
        given = {field.name: getattr(spec, field.name) for field in fields(EpisodeLimits)}
        self._asked = {key: number_of(value, key, vars) for key, value in given.items() if isinstance(value, str)}
        self.usual = EpisodeLimits(**given | {key: LimitsSpec.model_fields[key].default for key in self._asked})

    def of(self, task: Mapping[str, Any]) -> EpisodeLimits:
        """The limits of a row's episode.

        Raises:
            EpisodeError: the row does not give one (`task`).
        """
        if not self._asked:
            return self.usual
        return replace(self.usual, **{key: number(task) for key, number in self._asked.items()})

    def widest(self, rows: Iterable[Mapping[str, Any]]) -> EpisodeLimits:
        """The largest of each limit over rows; those that give none are left out."""
        known: list[EpisodeLimits] = []
        for row in rows if self._asked else ():
            with contextlib.suppress(EpisodeError):
                known.append(self.of(row))
        values = {key: [getattr(one, key) for one in known] for key in self._asked if known}
        most: dict[str, Any] = {key: None if None in some else max(some) for key, some in values.items()}
        return replace(self.usual, **most)


def number_of(source: str, key: str, vars: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """Gives the number of a row that stands under `key` of a mapping; an EpisodeError (`task`) where it gives none.

    Raises:
        UsageError: the template does not compile, or reads what is not there.
    """
    template = template_of(source, key=key, names=("task", "vars"))

    def number(task: Mapping[str, Any]) -> Any:
        try:
            value = template.value(task=task, vars=vars)
        except TemplateError as error:
            raise EpisodeError(f"{key} cannot be filled from this row: {error}", reason="task") from error
        if expected := expected_of(key, value):
            raise EpisodeError(f"{key}: the row gives {describe(value)}; expected {expected}", reason="task")
        return value

    return number


def expected_of(key: str, value: Any) -> str:
    """What is expected of the number that a row gives for `key`; "" where it is that."""
    may_be_empty = key in LimitsSpec.model_fields and LimitsSpec.model_fields[key].default is None
    if (value is None and may_be_empty) or (value in (None, "") and key == "time_s"):
        return ""
    if key in LimitsSpec.model_fields and not key.endswith("_s"):
        return "" if type(value) is int and value >= 1 else "a whole number of 1 or more"
    is_number = type(value) in (int, float) and math.isfinite(value)
    if key == "weight":  # what pays for something on one row and takes away for it on another has no one sign
        return "" if is_number and value >= 0 else "a number of 0 or more"
    return "" if is_number and value > 0 else "a number above 0"
