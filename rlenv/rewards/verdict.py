"""A judge's reply to a number on its scale, and several numbers to one."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, cast

import jsonschema_rs
import orjson

from rlenv.errors import UsageError

__all__ = ["Combine", "ReplySchema", "UnreadableReply", "Verdict", "combine"]

Combine = Literal["mean", "median", "majority"]

_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


class UnreadableReply(ValueError):
    """A reply that gives no number; the message says what was found."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One judge's number on its scale and what it gave as its reason ("" where it gave none)."""

    score: float
    reason: str = ""


class ReplySchema:
    """What a reply has to be: one JSON object that fits a schema and holds the number under `key`.

    Raises:
        UsageError: the schema is none, or the number's key is not in it.
    """

    def __init__(self, schema: Mapping[str, Any] | None, *, key: str, scale: tuple[float, float]) -> None:
        self.scale = scale
        self.key = key
        self.schema: dict[str, Any] = dict(schema) if schema is not None else _default(key, scale)
        properties = self.schema.get("properties", {})
        if key not in properties:
            raise UsageError(
                f"schema: it has no property '{key}', which is to hold the score; name another by value_key"
            )
        try:
            self._validator = jsonschema_rs.validator_for(self.schema)
        except ValueError as error:
            raise UsageError(f"schema: not a valid JSON Schema: {error}") from error

    def read(self, text: str, *, finish_reason: str = "") -> Verdict:
        """The verdict in a reply.

        Raises:
            UnreadableReply: it was cut, is not one JSON object, does not fit the schema or leaves the scale.
        """
        if finish_reason == "length":
            raise UnreadableReply("the reply was cut at its length limit")
        text = _THINKING.sub("", text).strip()
        if fenced := _FENCED.match(text):
            text = fenced[1]
        try:
            reply = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise UnreadableReply(f"the reply is not one JSON value ({error}): {text!r:.80}") from error
        if not isinstance(reply, dict):
            raise UnreadableReply(f"the reply is a {type(reply).__name__}; expected an object")
        fault = next(iter(self._validator.iter_errors(reply)), None)
        if fault is not None:
            raise UnreadableReply(f"the reply does not fit the schema: {fault.message:.200}")
        value = reply.get(self.key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise UnreadableReply(f"'{self.key}' is {value!r:.40}; expected a number")
        low, high = self.scale
        if not low <= value <= high:
            raise UnreadableReply(f"'{self.key}' is {value}, outside of {low:g} to {high:g}")
        reason = next((str(reply[name]) for name in ("reasoning", "reason") if name in reply), "")
        return Verdict(float(value), reason)


def _default(key: str, scale: tuple[float, float]) -> dict[str, Any]:
    low, high = scale
    # The reason comes first, so that the score follows from it and not the other way round.
    return {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string"},
            key: {"type": "number", "minimum": low, "maximum": high},
        },
        "required": ["reasoning", key],
        "additionalProperties": False,
    }


def combine(scores: Sequence[float], *, how: Combine) -> float:
    """Several judges' scores as one: their mean, their median, or the most frequent, the lowest of equally frequent."""
    if how == "mean":
        return statistics.fmean(scores)
    if how == "median":
        return float(statistics.median(scores))
    counts = Counter(scores)
    most = max(counts.values())
    return min(cast("list[float]", [score for score, count in counts.items() if count == most]))
