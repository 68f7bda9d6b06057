"""What is kept of an episode, and how it stands in a row.

A row is what lists, filters and charts look at: flat figures, and per term and per call a short entry. The body is the
whole record with its tokens. Columns are described once, here; journals hold rows as JSON objects of these columns, and
Parquet parts as the Arrow types that `rlenv.runs.parts` makes of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rlenv._base.bounded import cut_end, encodable
from rlenv._base.jsonable import plain
from rlenv.messages import ToolResult
from rlenv.runs.usage import asked_tokens
from rlenv.trajectory import ModelUsage, TermResult, Trajectory

__all__ = [
    "CALLS",
    "ENDING",
    "LATE",
    "NESTED",
    "NEVER_NULL",
    "ROW",
    "TERMS",
    "USAGE",
    "Facts",
    "Mode",
    "Tokens",
    "call_of",
    "ending_of",
    "is_late",
    "is_row",
    "late_of",
    "row_of",
    "term_of",
    "usage_of",
]

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

USAGE: Final[Mapping[str, str]] = {
    "role": "string",
    "model": "string",
    "requests": "int64",
    "failed": "int64",
    "unknown": "int64",
    "cached": "int64",
    "prompt_tokens": "int64",
    "cached_tokens": "int64",
    "completion_tokens": "int64",
    "reasoning_tokens": "int64",
    "seconds": "float64",
    "is_recorded": "bool",
}
"""What one role asked of one model: the fields of `rlenv.trajectory.ModelUsage`."""

ROW: Final[Mapping[str, str]] = {
    "id": "string",
    "attempt": "int16",
    "lock": "string",
    "environment": "string",
    "split": "string",
    "task": "int32",
    "sample": "int32",
    "seed": "int64",
    "group": "string",
    "step": "int32",
    "mode": "string",
    "started": "float64",
    "seconds": "float32",
    "turns": "int32",
    "calls_n": "int32",
    "errors": "int32",
    "malformed": "int32",
    "tokens": "int32",
    "trained_tokens": "int32",
    "respelled": "int32",
    "asked_tokens": "int64",
    "answered_tokens": "int64",
    "cost": "float64",
    "reward": "float64",
    "success": "bool",
    "reason": "string",
    "failure": "string",
    "failure_message": "string",
    "answer": "string",
    "title": "string",
    "asked": "string",
    "has_body": "bool",
}
"""The flat columns of an episode. `started` is in seconds since the epoch; `reward` and `success` are null where the
reward is invalid, and `failure` then says why ("" elsewhere); `tokens` counts prompt and response, 0 without a
tokenizer; `trained_tokens` those whose mask is 1; `respelled` is how many turns the chat template spells otherwise
than they were sampled (`TokenRows.respelled`), null where that is not known. `asked_tokens` and `answered_tokens` are
those of the prompts and completions of all models that were asked (`Trajectory.usage`, without what a record
answered), null where nothing was asked or a server did not say; `asked` is a digest of the whole prompt, null in rows
of older versions; `cost` is what was asked by the prices that were given, null without prices or with a model that has
none."""

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
    """What a driver knows of an episode that its trajectory does not say.

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


def row_of(trajectory: Trajectory, facts: Facts, *, id: str, attempt: int, lock: str) -> dict[str, Any]:
    """The row of an episode: the columns of `ROW`, and `terms`, `calls` and `usage`; all text can be encoded."""
    calls = [
        call_of(result, turn.index, index) for turn in trajectory.turns for index, result in enumerate(turn.results)
    ]
    failure = trajectory.failure
    prompts = sum(len(row.prompt_ids) for row in facts.tokens)
    asked, answered = asked_tokens(trajectory.usage)
    return {
        "id": id,
        "attempt": attempt,
        "lock": lock,
        "environment": encodable(trajectory.environment),
        "split": encodable(trajectory.split),
        "task": _within(trajectory.task_index, _INT32),  # a record of others may hold any number
        "sample": _within(facts.sample, _INT32),
        "seed": _within(trajectory.seed, _INT64),
        "group": encodable(facts.group),
        "step": _within(facts.step, _INT32),
        "mode": facts.mode,
        "started": facts.started,
        "seconds": trajectory.seconds,
        "turns": len(trajectory.turns),
        "calls_n": len(calls),
        "errors": sum(call["outcome"] != "ok" for call in calls),
        "malformed": sum(turn.calls_malformed for turn in trajectory.turns),
        "tokens": prompts + sum(len(row.ids) for row in facts.tokens),
        "trained_tokens": sum(bytes(row.mask).count(1) for row in facts.tokens),
        "respelled": facts.respelled,
        "asked_tokens": asked,
        "answered_tokens": answered,
        "cost": facts.cost,
        "reward": trajectory.reward.total,
        "success": trajectory.success,
        "reason": encodable(trajectory.reason),
        "failure": encodable(failure.reason) if failure else "",
        "failure_message": _short(failure.message, _MESSAGE) if failure else "",
        "answer": None if trajectory.answer is None else _short(trajectory.answer, _ANSWER),
        "title": _title(trajectory),
        "asked": _asked(trajectory),
        "has_body": True,
        "terms": [term_of(term) for term in trajectory.reward.terms.values()],
        "calls": calls,
        "usage": [usage_of(one) for one in trajectory.usage],
    }


def _within(number: int, most: int) -> int:
    return max(-most, min(number, most))


def call_of(result: ToolResult, turn: int, index: int) -> dict[str, Any]:
    """The columns of `CALLS` for one call."""
    details = result.details or {}
    attempts = details.get("attempts", 1)  # a tool of others may say anything
    count = attempts if type(attempts) is int else len(attempts) if isinstance(attempts, (list, tuple)) else 1
    return {
        "turn": min(turn, _INT16),
        "index": min(index, _INT16),  # a policy may write more calls into one action than its column counts
        "tool": _short(result.name, _TITLE),  # a name that the policy wrote, where it is no tool's
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
        "error": _short(term.error, _ERROR),
    }


def usage_of(usage: ModelUsage) -> dict[str, Any]:
    """The columns of `USAGE` for what one role asked of one model."""
    found: dict[str, Any] = {}
    for name, kind in USAGE.items():
        value = getattr(usage, name)
        found[name] = _short(value, _NAME) if kind == "string" else _within(value, _INT64) if kind == "int64" else value
    return found


def late_of(id: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `LATE`, null where `facts` say nothing, `terms` (null where they do not change) and `events`.

    Events are those of no kept episode, JSON as in a body; they are said of the run, whose id is "".

    Raises:
        KeyError: a fact that has no column.
    """
    unknown = facts.keys() - LATE.keys() - {"terms", "events"}
    if unknown:
        raise KeyError(f"no column for {', '.join(sorted(unknown))}")
    return {**dict.fromkeys(LATE), "terms": None, "events": None, **facts, "id": id}


def ending_of(trajectory: Trajectory) -> dict[str, Any]:
    """The facts of an episode whose reward became known after it was kept; for `RunWriter.late`."""
    ending = {name: getattr(trajectory, name) for name in ENDING}
    if trajectory.usage:  # which grows where models are asked about a group
        ending["usage"] = trajectory.usage
    failure = trajectory.failure
    return {
        "reward": trajectory.reward.total,
        "success": trajectory.success,
        "reason": encodable(trajectory.reason),
        "failure": encodable(failure.reason) if failure else "",
        "failure_message": _short(failure.message, _MESSAGE) if failure else "",
        "ending": json.dumps(plain(ending), separators=(",", ":")),
        "terms": [term_of(term) for term in trajectory.reward.terms.values()],
    }


def is_row(held: Any) -> bool:
    """Whether a value that a journal holds is a row: no value is another than its column's, none that has to be lacks.

    What a disk or another hand has left in a journal may be anything.
    """
    if not isinstance(held, dict) or any(held.get(name) is None for name in NEVER_NULL) or not _fit(held, ROW):
        return False
    if not all(_are_entries(held.get(name), columns) for name, columns in NESTED.items()):
        return False
    return not held["has_body"] or (
        _are_counts(held.get("at"), 3)
        and _are_tokens(held.get("lies"))
        and all(isinstance(name, str) for name in held.get("blobs") or ())
    )


def is_late(held: Any) -> bool:
    """Whether a value that a journal holds is a late fact."""
    return (
        isinstance(held, dict)
        and held.get("id") is not None
        and _fit(held, LATE)
        and _are_entries(held.get("terms"), TERMS)
        and _fit(held, {"events": "string"})
    )


def _fit(held: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
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
        isinstance(held, list) and all(isinstance(one, dict) and _fit(one, columns) for one in held)
    )


def _are_counts(held: Any, length: int) -> bool:
    return isinstance(held, list) and len(held) == length and all(type(one) is int and 0 <= one < 2**62 for one in held)


def _are_tokens(held: Any) -> bool:
    """How the tokens of a body lie in it: per row four lengths, and the spans of its turns."""
    return isinstance(held, list) and all(
        isinstance(row, list)
        and len(row) == 5
        and _are_counts(row[:4], 4)
        and isinstance(row[4], list)
        and all(_are_counts(span, 2) for span in row[4])
        for row in held
    )


def _asked(trajectory: Trajectory) -> str:
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
    return _short(" ".join(asked[: 4 * _TITLE].split()), _TITLE)


def _short(text: str, limit: int) -> str:
    return encodable(cut_end(text, limit))
