r"""The one query language over episodes, for the command line and for the viewer.

    success:false tool:search errors>0 term.format<0.5 step:10..20 reason:turns invalid:true "text"

Conditions stand side by side and all have to hold. One is `FIELD OPERATOR VALUE` without spaces between:

    split:test            is, in full and in the case of its letters; `a,b` is one of them, `none` what is not known
    reason:t*             `*` stands for anything: begins so
    split!=test           is not
    errors>0 reward<=0.5  compares; what is not known never holds
    step:10..20           from 10 to 20, both ends too; one end may be left out
    -tool:search          does not hold; `!` means the same
    "two words" word      stands in the title, the answer, the failure's message or the id, in any case of letters

Fields are the columns of `rlenv.runs.schema.ROW`, what came later (`fate`, `advantage`, …), and

    invalid        whether the reward is invalid
    calls          how many calls were made
    tool, outcome  of any call; call.COLUMN for the others of `rlenv.runs.schema.CALLS`, as in call.seconds>2
    term.NAME      the value of a term, or its status: term.format<0.5 term.judge:invalid
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from rlenv._base.text import did_you_mean
from rlenv.errors import UsageError
from rlenv.runs.figures.snapshot import Snapshot, numbers_of
from rlenv.runs.journal import loads
from rlenv.runs.schema import CALLS, LATE, ROW

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[Mapping[str, str]] = ChainMap(
    {name: kind for name, kind in LATE.items() if name not in ("id", "ending", "said") and name not in ROW}, ROW
)
"""The columns that a query may name, with their types."""

_ALIASES: Final = {"calls": "calls_n", "tool": "call.tool", "outcome": "call.outcome"}
_TEXT: Final = ("title", "answer", "failure_message", "id")
_STATES: Final = ("valid", "invalid", "skipped")
_FIELD: Final = re.compile(r'([A-Za-z_][\w.\-]*(?:"[^"]*")?)(!=|<=|>=|[:=<>])')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BARE: Final = re.compile(r"[^\s,\"]+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAX: Final = 2_000
_MOST_SORTED: Final = 16
_WHOLE: Final = "a query has no more than 2,000 characters"


class QueryFault(UsageError):
    """A query over episodes that is none; `column` counts its characters, from 1."""

    def __init__(self, message: str, *, column: int = 1, hint: str = "") -> None:
        self.column = column
        super().__init__(message, key=f"column {column}", hint=hint)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `field` is "" for text that is looked for; `column` is where it begins, from 1."""

    field: str
    operator: str
    values: tuple[str, ...]
    column: int
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query; without conditions all episodes match."""

    conditions: tuple[Condition, ...] = ()

    def mask(self, rows: Snapshot) -> NDArray[np.bool_]:
        """For each row whether it matches.

        Raises:
            QueryFault: a condition names a term that no episode has, or a value that does not fit.
        """
        found = np.ones(len(rows), dtype=bool)
        for condition in self.conditions:
            holds = _condition_mask(condition, rows)
            found &= ~holds if condition.is_negated else holds
        return found

    def places(self, rows: Snapshot, sort: str = "") -> NDArray[np.int64]:
        """The places of the rows that match, in the order of `sort`; see `order_places`."""
        places = np.nonzero(self.mask(rows))[0] if self.conditions else np.arange(len(rows))
        return order_places(rows, places, sort)


def parse(text: str) -> Query:
    """The query of a text.

    Raises:
        QueryFault: it is none; the message names the column, and the nearest name.
    """
    if len(text) > _MAX:
        raise QueryFault(_WHOLE, column=_MAX)
    if (odd := _SURROGATE.search(text)) is not None:  # bytes of a command line that are no UTF-8, say
        raise QueryFault("a character that is none", column=odd.start() + 1, hint="write the query in UTF-8")
    found, at = [], 0
    while rest := text[at:].lstrip():
        condition, at = _parse_condition(text, len(text) - len(rest))
        found.append(condition)
    return Query(tuple(found))


def _parse_condition(text: str, at: int) -> tuple[Condition, int]:
    column, start = at + 1, at
    is_negated = text[at] in "-!" and len(text) > at + 1 and not text[at + 1].isspace()
    at += is_negated
    match = _FIELD.match(text, at)
    field, sign = "", ":"
    if match is not None:
        field, sign, at = _field_name(match[1].replace('"', ""), start + is_negated + 1), match[2], match.end()
    value, at = _parse_value(text, at)
    values = [value]
    while field and text[at : at + 1] == ",":
        value, at = _parse_value(text, at + 1)
        values.append(value)
    if at < len(text) and not text[at].isspace():
        raise QueryFault(f"a space is expected before '{text[at : at + 10]}'", column=at + 1)
    condition = Condition(field, sign, tuple(values), column, is_negated)
    if field:
        _check_operator(condition)
    return condition, at


def _parse_value(text: str, at: int) -> tuple[str, int]:
    if match := _QUOTED.match(text, at):
        return re.sub(r"\\(.)", r"\1", match[1]), match.end()
    if text[at : at + 1] == '"':
        raise QueryFault("the quotation mark is not closed", column=at + 1, hint='write it at the end: "two words"')
    if match := _BARE.match(text, at):
        return match[0], match.end()
    raise QueryFault("a value is expected", column=at + 1, hint="such as success:false")


def _field_name(name: str, column: int) -> str:
    """The full name of a field."""
    name = _ALIASES.get(name, name)
    head, _, rest = name.partition(".")
    if name in COLUMNS or name == "invalid" or (head == "term" and rest):
        return name
    if head == "call" and rest:
        if rest not in CALLS:
            hint = did_you_mean(rest, CALLS, "columns of calls", prefix="call.")
            raise QueryFault(f"calls have no column '{rest}'", column=column, hint=hint)
        return name
    names = [*COLUMNS, "invalid", *_ALIASES, "term.NAME", "call.seconds"]
    raise QueryFault(f"there is no column '{name}'", column=column, hint=did_you_mean(name, names, "columns"))


def _field_type(field: str) -> str:
    """The type of a field: `bool`, `string` or `number`."""
    if field == "invalid":
        return "bool"
    head, _, rest = field.partition(".")
    kind = CALLS[rest] if head == "call" else "number" if head == "term" else COLUMNS[field]
    return kind if kind in ("bool", "string") else "number"


def _check_operator(condition: Condition) -> None:
    """Refuses an operator or values that do not fit the type of the field."""
    kind = _field_type(condition.field)
    is_compared = condition.operator in ("<", "<=", ">", ">=")
    if is_compared and (kind != "number" or len(condition.values) > 1):
        what = "one number at a time" if kind == "number" else "numbers only"
        message = f"'{condition.operator}' compares {what}; {condition.field} is a {kind}"
        raise QueryFault(message, column=condition.column, hint=f"write {condition.field}:{condition.values[0]}")
    if kind == "string":
        return
    for value in condition.values:
        if value == "none" and not is_compared:
            continue
        if kind == "bool" and value not in ("true", "false"):
            message = f"{condition.field} is true or false, not '{value}'"
            raise QueryFault(message, column=condition.column, hint=f"write {condition.field}:true")
        if kind == "number" and not _is_number(value, condition):
            message = f"{condition.field} is a number, not '{value}'"
            raise QueryFault(message, column=condition.column, hint=f"such as {condition.field}>0")


def _is_number(value: str, condition: Condition) -> bool:
    if condition.field.startswith("term.") and value in _STATES and condition.operator in (":", "=", "!="):
        return True
    ends = value.split("..") if condition.operator in (":", "=", "!=") else [value]
    if len(ends) > 2 or not any(ends):
        return False
    return all(_parse_number(end) is not None for end in ends if end)


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


# What holds


def _condition_mask(condition: Condition, rows: Snapshot) -> NDArray[np.bool_]:
    field = condition.field
    if not field:
        return _text_mask(rows, condition.values[0])
    if condition.operator == "!=":
        return ~_condition_mask(replace(condition, operator=":"), rows)
    head, _, rest = field.partition(".")
    if head == "call":
        found = np.zeros(len(rows), dtype=bool)
        found[rows.calls.rows(rest)[_calls_mask(condition, rest, rows)]] = True
        return found
    if head == "term":
        return _term_mask(condition, rest, rows)
    if field == "invalid":
        return _number_mask(condition, np.isnan(rows.numbers("reward")).astype(float))
    return _column_mask(condition, rows.table[field], _field_type(field))


def _text_mask(rows: Snapshot, text: str) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    found = np.zeros(len(rows), dtype=bool)
    for name in _TEXT:
        found |= _to_mask(pc.match_substring(rows.table[name], text, ignore_case=True))
    return found


def _term_mask(condition: Condition, name: str, rows: Snapshot) -> NDArray[np.bool_]:
    if not rows.has_term(name):
        hint = did_you_mean(name, rows.term_names, "terms", prefix="term.")
        raise QueryFault(f"no episode has a term '{name}'", column=condition.column, hint=hint)
    values, states = rows.term(name)
    numbers = tuple(value for value in condition.values if value not in _STATES)
    found = np.isin(states, [value for value in condition.values if value in _STATES])
    if numbers:
        found |= _number_mask(replace(condition, values=numbers), values)
    return found


def _calls_mask(condition: Condition, name: str, rows: Snapshot) -> NDArray[np.bool_]:
    """For each call whether it matches; of texts each word is looked at once."""
    if CALLS[name] != "string":
        return _number_mask(condition, rows.calls.numbers(name))
    import pyarrow as pa

    codes, words = rows.calls.words(name)
    column = pa.chunked_array([pa.array([*words, None], pa.string())])  # the code of null is -1
    return _column_mask(condition, column, "string")[codes]


def _column_mask(condition: Condition, column: pa.ChunkedArray, kind: str) -> NDArray[np.bool_]:
    import pyarrow.compute as pc

    if kind != "string":
        return _number_mask(condition, numbers_of(column))
    found = np.zeros(len(column), dtype=bool)
    for value in condition.values:
        if value == "none":
            found |= ~_to_mask(pc.not_equal(column, ""))
        elif "*" in value:
            pattern = "(?s)^" + ".*".join(re.escape(part) for part in value.split("*")) + "$"
            found |= _to_mask(pc.match_substring_regex(column, pattern))
        else:
            found |= _to_mask(pc.equal(column, value))
    return found


def _number_mask(condition: Condition, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """A mask of the numbers for which the condition holds; it holds for none that is NaN (not known)."""
    compare: dict[str, Any] = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
    found = np.zeros(len(values), dtype=bool)
    for value in condition.values:
        if condition.operator in compare:
            found |= compare[condition.operator](values, float(value))
        elif value == "none":
            found |= np.isnan(values)
        elif value in ("true", "false"):
            found |= values == (value == "true")
        elif ".." in value:
            low, high = value.split("..")
            found |= (values >= float(low or "-inf")) & (values <= float(high or "inf"))
        else:
            found |= values == float(value)
    return found


def _to_mask(found: pa.ChunkedArray) -> NDArray[np.bool_]:
    """An Arrow column of true, false and null; null does not hold."""
    import pyarrow.compute as pc

    whole = pc.fill_null(found, False)
    whole = whole.combine_chunks() if hasattr(whole, "combine_chunks") else whole
    holds: NDArray[np.bool_] = whole.to_numpy(zero_copy_only=False)
    return holds


# Order


def order_places(rows: Snapshot, places: NDArray[np.int64], sort: str) -> NDArray[np.int64]:
    """Places of rows in the order of `sort`: columns with commas between, `-` before one that begins with the largest.

    What is not known comes last; equal rows, and all without `sort`, stay in the order in which they were kept.

    Raises:
        QueryFault: a column that there is not.
    """
    names = [name for name in sort.split(",") if name]
    if len(names) > _MOST_SORTED:
        raise QueryFault(f"an order has no more than {_MOST_SORTED} columns", column=len(sort))
    if not names or not len(places):
        return places
    keys = []
    for name in names:
        bare = name.removeprefix("-")
        values = _sorted_by(rows, _ALIASES.get(bare, bare), sort.find(bare) + 1)[places]
        keys.append(-values if name.startswith("-") else values)  # numpy puts what is not a number last
    return places[np.lexsort(keys[::-1])]


def _sorted_by(rows: Snapshot, name: str, column: int) -> NDArray[np.float64]:
    """Numbers in whose order a column is, not a number where it is null."""
    if name.startswith("term.") and rows.has_term(name[5:]):
        return rows.term(name[5:])[0]
    if name == "invalid":
        return np.isnan(rows.numbers("reward")).astype(float)
    if name in COLUMNS and COLUMNS[name] != "string":
        return rows.numbers(name)
    if name in COLUMNS:
        codes, words = rows.words(name)
        ranks = np.empty(len(words) + 1)
        ranks[np.asarray(sorted(range(len(words)), key=words.__getitem__), dtype=np.int64)] = np.arange(len(words))
        ranks[-1] = np.nan  # the code of null is -1
        return ranks[codes]
    names: Iterable[str] = (*COLUMNS, "invalid", "calls", *(f"term.{one}" for one in rows.term_names))
    hint = did_you_mean(name, names, "columns")
    raise QueryFault(f"there is no column '{name}' to sort by", column=column, hint=hint)


# A text looked for in whole episodes: prompts, actions, results, evidence

_AROUND: Final = 60
_HITS: Final = 3
"""Hits of one episode that are given."""
_LEAST: Final = 2


@dataclass(frozen=True, slots=True)
class Hit:
    """A place in an episode: `where` is the dotted path of its text, the rest what stands there and around it."""

    id: str
    where: str
    before: str
    hit: str
    after: str


def search_records(records: Iterable[tuple[str, bytes]], text: str) -> Iterator[list[Hit]]:
    """The hits of each record, in any case of letters; an empty list for one without, so that its reader may stop.

    A record is read as bytes first, and parsed only where the text may stand in it.

    Raises:
        UsageError: the text is shorter than two characters.
    """
    if len(text) < _LEAST:
        raise UsageError(f"a text of {_LEAST} characters or more is expected")
    needles = {json.dumps(text.lower(), ensure_ascii=plain)[1:-1].encode(errors="replace") for plain in (False, True)}
    # Letters beyond ASCII have no lower case as bytes: a text with such is looked for in every record.
    is_told = text.isascii() or text.lower() == text.upper()
    for id, record in records:
        lowered = record.lower() if is_told else record
        if is_told and not any(needle in lowered for needle in needles):
            yield []
            continue
        hits: list[Hit] = []
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):  # it is no record
            hits = hits_in(id, loads(record), text)
        yield hits


def hits_in(id: str, record: Mapping[str, Any], text: str) -> list[Hit]:
    """The first three places of a text in a record."""
    found: list[Hit] = []
    wanted = text.lower()
    for where, held in _record_texts(record):
        lowered = held.lower()
        # Lowering may change a text's length (U+0130), after which places do not fit: it is then found as it stands.
        at = lowered.find(wanted) if len(lowered) == len(held) else held.find(text)
        if at >= 0:
            end = at + len(text)
            parts = (held[max(0, at - _AROUND) : at], held[at:end], held[end : end + _AROUND])
            found.append(Hit(id, where, *parts))
            if len(found) == _HITS:
                break
    return found


def _record_texts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts of a record that people read, by their paths; what stands twice is given once."""
    for index, message in enumerate(record.get("messages", ())):
        if message.get("role") not in ("system", "user"):
            break  # what follows stands with its turn
        yield f"messages.{index}.content", str(message.get("content", ""))
    for index, turn in enumerate(record.get("turns", ())):
        yield f"turns.{index}.action", str(turn.get("action", ""))
        for number, result in enumerate(turn.get("results", ())):
            yield f"turns.{index}.results.{number}.name", str(result.get("name", ""))
            yield f"turns.{index}.results.{number}.text", str(result.get("text", ""))
        observation = turn.get("observation") or {}
        if not turn.get("results"):
            for number, message in enumerate(observation.get("messages", ())):
                yield f"turns.{index}.observation.messages.{number}.content", str(message.get("content", ""))
    yield "answer", str(record.get("answer") or "")
    for name, term in record.get("reward", {}).get("terms", {}).items():
        yield f"reward.terms.{name}.evidence", str(term.get("evidence") or "")
        yield f"reward.terms.{name}.error", str(term.get("error") or "")
    failure = record.get("failure") or {}
    yield "failure.message", str(failure.get("message", ""))
