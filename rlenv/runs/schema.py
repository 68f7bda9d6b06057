"""The schema of a kept episode, and its form in a row.

A row is what lists, filters and charts look at: flat figures, and per term and per call a short entry. The body is the
whole record with its tokens. Columns are described once, here; journals hold rows as JSON objects of these columns, and
Parquet parts as the Arrow types that `rlenv.runs.parts` makes of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from rlenv._base.bounded import cut_end, encodable, plain
from rlenv.errors import UsageError
from rlenv.messages import ToolResult
from rlenv.runs.usage import asked_tokens
from rlenv.secrets import logger
from rlenv.trajectory import ModelUsage, TermResult, Trajectory

__all__ = ["BESIDE", "CALLS", "ENDING", "LATE", "NESTED", "NEVER_NULL", "ROW", "TERMS", "USAGE", "Facts", "Fold"]
__all__ += ["Mode", "Tokens", "add_column", "call_of", "ending_of", "is_late", "is_row", "late_of", "row_of"]
__all__ += ["term_of", "usage_of"]

Mode = Literal["train", "greedy", "sampled"]

CALLS: Final[Mapping[str, str]] = {
    "turn": "int16",
    "index": "int16",
    "tool": "string",
    "outcome": "string",
    "started": "float32",
    "waited": "float32",
    "seconds": "float32",
    "attempts": "int16",
    "cached": "bool",
    "chars": "int32",
}
"""A call. `started` is in seconds from the episode's start, null where it is not known; `seconds` include `waited`."""

TERMS: Final[Mapping[str, str]] = {
    "name": "string",
    "status": "string",
    "value": "float64",
    "weight": "float64",
    "seconds": "float32",
    "error": "string",
}
"""A term of the reward; `value` is null unless `status` is `valid`."""

_KINDS: Final = {"str": "string", "int": "int64", "float": "float64", "bool": "bool"}
USAGE: Final[Mapping[str, str]] = {one.name: _KINDS[str(one.type)] for one in fields(ModelUsage)}
"""What one role asked of one model: the fields of `rlenv.trajectory.ModelUsage`."""

NESTED: Final[Mapping[str, Mapping[str, str]]] = {"terms": TERMS, "calls": CALLS, "usage": USAGE}
"""The lists of a row, and the columns of their entries."""

LATE: Final[Mapping[str, str]] = {
    "id": "string",
    "fate": "string",
    "why": "string",
    "advantage": "float32",
    "staleness": "int32",
    "reward": "float64",
    "success": "bool",
    "reason": "string",
    "failure": "string",
    "failure_message": "string",
    "ending": "string",
    "said": "float64",
}
"""What is known of an episode later, by its id: `fate` is `trained`, `masked` or `filtered`, and `why` says more.

A null column says nothing; of two entries the later one counts, column by column: `said` is when, in seconds since the
epoch, by the clock of who says it. `ending` is JSON of what an episode
has ended as where its reward became known later, as that of a group does; see `ending_of`. Beside one, `reward` and
`success` say something where they are null too: there is none any more."""

ENDING: Final = ("terminated", "truncated", "reason", "reward", "success", "failure")
"""The fields of a trajectory that its reward decides."""

NEVER_NULL: Final = frozenset(("id", "attempt", "split", "task", "sample", "seed", "step", "mode", "has_body"))
"""What every row says."""

BESIDE: Final = frozenset(("at", "lies", "blobs", "index", "row"))
"""What stands beside the columns in journals and tables."""
_LATE_ASIDE: Final = ("terms", "events", "blobs")
_log = logger(__name__)
_ANSWER, _TITLE, _MESSAGE, _ERROR, _NAME = 200, 120, 300, 200, 1_000
_INT64: Final = 2**63 - 1
_INT32: Final = 2**31 - 1
_INT16: Final = 2**15 - 1
_BOUNDS: Final = {"int16": 2**15, "int32": 2**31, "int64": 2**63}


@dataclass(frozen=True, slots=True)
class Tokens:
    """One row of ids as it is trained on.

    `ids`, `mask` and `logprobs` have one length (`logprobs` is empty where none are known); `turns` are start and end
    (exclusive) in `ids` of every sampled turn.
    """

    prompt_ids: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float] = ()
    turns: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an episode that its driver knows and its trajectory does not say.

    `group` names the samples that are compared with each other, "" where there are none; `started` is in seconds since
    the epoch; `cost` is what the models that it asked have cost, None where that is not known; `respelled` is how many
    turns the chat template spells otherwise, None without one; `events` are what it asked and was answered
    (`rlenv.runs.events`), None where that was not recorded.
    """

    step: int = 0
    sample: int = 0
    mode: Mode = "sampled"
    group: str = ""
    started: float = 0.0
    tokens: Sequence[Tokens] = field(default=())
    cost: float | None = None
    respelled: int | None = None
    events: bytes | None = None


def _call_results(trajectory: Trajectory) -> list[ToolResult]:
    return [result for turn in trajectory.turns for result in turn.results]


Fold = Callable[[Trajectory, Facts], Any]
"""What a column says of an episode: a value of the column's type, or None."""

_COLUMNS: Final[Mapping[str, tuple[str, Fold]]] = {
    "environment": ("string", lambda one, facts: encodable(one.environment)),
    "split": ("string", lambda one, facts: encodable(one.split)),
    "task": ("int32", lambda one, facts: _clamp(one.task_index, _INT32)),  # a record of others may hold any number
    "sample": ("int32", lambda one, facts: _clamp(facts.sample, _INT32)),
    "seed": ("int64", lambda one, facts: _clamp(one.seed, _INT64)),
    "group": ("string", lambda one, facts: encodable(facts.group)),
    "step": ("int32", lambda one, facts: _clamp(facts.step, _INT32)),
    "mode": ("string", lambda one, facts: facts.mode),
    "started": ("float64", lambda one, facts: facts.started),
    "seconds": ("float32", lambda one, facts: one.seconds),
    "turns": ("int32", lambda one, facts: len(one.turns)),
    "calls_n": ("int32", lambda one, facts: len(_call_results(one))),
    "errors": ("int32", lambda one, facts: sum(result.outcome != "ok" for result in _call_results(one))),
    "malformed": ("int32", lambda one, facts: _clamp(sum(turn.calls_malformed for turn in one.turns), _INT32)),
    "tokens": ("int32", lambda one, facts: sum(len(row.prompt_ids) + len(row.ids) for row in facts.tokens)),
    "trained_tokens": ("int32", lambda one, facts: sum(bytes(row.mask).count(1) for row in facts.tokens)),
    "respelled": ("int32", lambda one, facts: facts.respelled),
    "asked_tokens": ("int64", lambda one, facts: _clamp(asked_tokens(one.usage)[0], _INT64)),
    "answered_tokens": ("int64", lambda one, facts: _clamp(asked_tokens(one.usage)[1], _INT64)),
    "cost": ("float64", lambda one, facts: facts.cost),
    "reward": ("float64", lambda one, facts: one.reward.total),
    "success": ("bool", lambda one, facts: one.success),
    "reason": ("string", lambda one, facts: encodable(one.reason)),
    "failure": ("string", lambda one, facts: encodable(one.failure.reason) if one.failure else ""),
    "failure_message": ("string", lambda one, facts: _cut_to(one.failure.message, _MESSAGE) if one.failure else ""),
    "answer": ("string", lambda one, facts: None if one.answer is None else _cut_to(one.answer, _ANSWER)),
    "title": ("string", lambda one, facts: _title(one)),
    "asked": ("string", lambda one, facts: _prompt_digest(one)),
}
_FOLDS: Final = {name: fold for name, (_, fold) in _COLUMNS.items()}

ROW: Final[dict[str, str]] = {
    "id": "string",
    "attempt": "int16",
    "lock": "string",
    **{name: kind for name, (kind, _) in _COLUMNS.items()},
    "has_body": "bool",
}
"""The flat columns of an episode, and what each says of it. `started` is in seconds since the epoch; `reward` and
`success` are null where the reward is invalid, and `failure` then says why ("" elsewhere); `tokens` counts prompt and
response, 0 without a tokenizer; `trained_tokens` those whose mask is 1; `respelled` is how many turns the chat template
spells otherwise than they were sampled (`TokenRows.respelled`), null where that is not known. `asked_tokens` and
`answered_tokens` are those of the prompts and completions of all models that were asked (`Trajectory.usage`, without
what a record answered), null where nothing was asked or a server did not say; `asked` is a digest of the whole prompt;
`cost` is what was asked by the prices that were given, null without prices or with a
model that has none."""


def add_column(name: str, kind: str, fold: Fold) -> None:
    """Adds a column of a plug-in: kept of every episode from now on, searched and shown as others, null in old rows.

    Called as the plug-in is imported, before a run is read or written.

    Args:
        kind: the name of an Arrow type, such as `int32` or `string`.
        fold: what the column says of an episode. Where it raises, or gives no value of `kind`, the row is null there,
            and the log says so once.

    Raises:
        UsageError: there is such a column, or no such type.
    """
    if name in {*ROW, *NESTED, *LATE, *BESIDE} or not name.isidentifier():
        raise UsageError(f"'{name}' is a column already, or no name of one")
    if kind not in {*ROW.values(), *CALLS.values()}:
        raise UsageError(f"the column '{name}' is of '{kind}'", hint="string, bool, int16 to int64, float32 or float64")
    ROW[name], _FOLDS[name] = kind, _safe_fold(name, kind, fold)


def _safe_fold(name: str, kind: str, fold: Fold) -> Fold:
    """A plug-in's fold that ends no run and makes no row unreadable."""
    has_told = False

    def value(trajectory: Trajectory, facts: Facts) -> Any:
        nonlocal has_told
        try:
            found = fold(trajectory, facts)
            if _fits_columns({name: found}, {name: kind}):
                return float(found) if found is not None and kind.startswith("float") else found
            why = f"{type(found).__name__} {cut_end(repr(found), _TITLE)} is no value of {kind}"
        except Exception as error:  # a plug-in's own
            why = f"{type(error).__name__}: {error}"
        if not has_told:
            _log.warning("the column '%s' is null where its plug-in fails: %s", name, why)
            has_told = True
        return None

    return value


def row_of(trajectory: Trajectory, facts: Facts, *, id: str, attempt: int, lock: str) -> dict[str, Any]:
    """The row of an episode: the columns of `ROW`, and `terms`, `calls` and `usage`; all text can be encoded."""
    known = {"id": id, "attempt": attempt, "lock": lock, "has_body": True}
    return {
        **{name: known[name] if name in known else _FOLDS[name](trajectory, facts) for name in ROW},
        "terms": [term_of(term) for term in trajectory.reward.terms.values()],
        "calls": [call_of(one, turn.index, at) for turn in trajectory.turns for at, one in enumerate(turn.results)],
        "usage": [usage_of(one) for one in trajectory.usage],
    }


def _clamp(number: int | None, most: int) -> int | None:
    return number if number is None else max(-most, min(number, most))


def call_of(result: ToolResult, turn: int, index: int) -> dict[str, Any]:
    """The columns of `CALLS` for one call."""
    details = result.details or {}
    attempts = details.get("attempts", 1)  # a tool of others may say anything
    count = attempts if type(attempts) is int else len(attempts) if isinstance(attempts, (list, tuple)) else 1
    return {
        "turn": _clamp(turn, _INT16),
        "index": min(index, _INT16),  # a policy may write more calls into one action than its column counts
        "tool": _cut_to(result.name, _TITLE),  # a name that the policy wrote, where it is no tool's
        "outcome": result.outcome,
        "started": result.started,
        "waited": result.waited,
        "seconds": result.seconds,
        "attempts": max(0, min(count, _INT16)),
        "cached": bool(details.get("cached", False)),
        "chars": len(result.text),
    }


def term_of(term: TermResult) -> dict[str, Any]:
    """The columns of `TERMS` for one term."""
    return {
        "name": encodable(term.name),
        "status": term.status,
        "value": term.value,
        "weight": term.weight,
        "seconds": term.seconds,
        "error": _cut_to(term.error, _ERROR),
    }


def usage_of(usage: ModelUsage) -> dict[str, Any]:
    """The columns of `USAGE` for what one role asked of one model."""
    found: dict[str, Any] = {}
    for name, kind in USAGE.items():
        value = getattr(usage, name)
        found[name] = _cut_to(value, _NAME) if kind == "string" else _clamp(value, _INT64) if kind == "int64" else value
    return found


def late_of(id: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `LATE`, null where `facts` say nothing, `terms` (null where they do not change) and `events`.

    Events, with their `blobs`, are those of no kept episode, JSON as in a body; they are said of the run, whose id is
    "".

    Raises:
        KeyError: a fact that has no column.
    """
    unknown = facts.keys() - LATE.keys() - {*_LATE_ASIDE}
    if unknown:
        raise KeyError(f"no column for {', '.join(sorted(unknown))}")
    return {**dict.fromkeys((*LATE, *_LATE_ASIDE)), **facts, "id": id}


def ending_of(trajectory: Trajectory) -> dict[str, Any]:
    """The facts of an episode whose reward became known after it was kept; for `RunWriter.append_late`."""
    ending = {name: getattr(trajectory, name) for name in ENDING}
    if trajectory.usage:  # which grows where models are asked about a group
        ending["usage"] = trajectory.usage
    failure = trajectory.failure
    return {
        "reward": trajectory.reward.total,
        "success": trajectory.success,
        "reason": encodable(trajectory.reason),
        "failure": encodable(failure.reason) if failure else "",
        "failure_message": _cut_to(failure.message, _MESSAGE) if failure else "",
        "ending": json.dumps(plain(ending), separators=(",", ":")),
        "terms": [term_of(term) for term in trajectory.reward.terms.values()],
    }


def is_row(held: Any) -> bool:
    """True if a value that a journal holds is a row: no value is another than its column's, none that has to be lacks.

    What a disk or another hand has left in a journal may be anything.
    """
    if not isinstance(held, dict) or any(held.get(name) is None for name in NEVER_NULL) or not _fits_columns(held, ROW):
        return False
    if not all(_are_entries(held.get(name), columns) for name, columns in NESTED.items()):
        return False
    return not held["has_body"] or (
        _are_counts(held.get("at"), 3) and _are_tokens(held.get("lies")) and _are_names(held.get("blobs"))
    )


def is_late(held: Any) -> bool:
    """True if a value that a journal holds is a late fact."""
    return (
        isinstance(held, dict)
        and held.get("id") is not None
        and _fits_columns(held, LATE)
        and _are_entries(held.get("terms"), TERMS)
        and _fits_columns(held, {"events": "string"})
        and _are_names(held.get("blobs"))
    )


def _fits_columns(held: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    for name, kind in columns.items():
        value = held.get(name)
        if value is None:
            continue
        found = type(value)
        if kind == "string":
            if found is not str or encodable(value) is not value:
                return False
        elif kind == "bool":
            if found is not bool:
                return False
        elif kind in _BOUNDS:
            if found is not int or not -_BOUNDS[kind] <= value < _BOUNDS[kind]:
                return False
        elif found not in (int, float) or not -_FLOAT <= value <= _FLOAT:
            return False
    return True


_FLOAT: Final = 1.7976931348623157e308


def _are_entries(held: Any, columns: Mapping[str, str]) -> bool:
    return held is None or (
        isinstance(held, list) and all(isinstance(one, dict) and _fits_columns(one, columns) for one in held)
    )


def _are_names(held: Any) -> bool:
    return held is None or (isinstance(held, list) and all(isinstance(name, str) for name in held))


def _are_counts(held: Any, length: int) -> bool:
    return isinstance(held, list) and len(held) == length and all(type(one) is int and 0 <= one < 2**62 for one in held)


def _are_tokens(held: Any) -> bool:
    """True if the tokens of a body have their form: per row four lengths, and the spans of its turns."""
    return isinstance(held, list) and all(
        isinstance(row, list)
        and len(row) == 5
        and _are_counts(row[:4], 4)
        and isinstance(row[4], list)
        and all(_are_counts(span, 2) for span in row[4])
        for row in held
    )


def _prompt_digest(trajectory: Trajectory) -> str:
    """16 hexadecimal digits, equal for equal prompts."""
    digest = hashlib.blake2b(digest_size=8)
    for message in trajectory.messages:
        for text in (message.role, message.content, *(image.base64 for image in message.images)):
            held = text.encode(errors="surrogatepass")
            digest.update(b"%d:" % len(held))  # so that no text can pass for two
            digest.update(held)
        digest.update(b";")
    return digest.hexdigest()


def _title(trajectory: Trajectory) -> str:
    asked = next((message.content for message in trajectory.messages if message.role == "user"), "")
    return _cut_to(" ".join(asked[: 4 * _TITLE].split()), _TITLE)


def _cut_to(text: str, limit: int) -> str:
    return encodable(cut_end(text, limit))
