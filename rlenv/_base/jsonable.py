"""Values as JSON can hold them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from rlenv._base.bounded import encodable

__all__ = ["SPARSE", "UNRECORDED", "fields_of", "plain", "sendable"]

UNRECORDED: Final = {"recorded": "never"}
"""Metadata of a dataclass's field that no record holds."""
SPARSE: Final = {"recorded": "where it holds something"}
"""Metadata of a field that a record leaves out where it is empty, so that one without it is written as it was read."""

_MAX_DEPTH = 200
"""Far below what a reader or a writer of JSON follows, and above what any dialect lets a policy write."""
_MAX_BITS = 13_000
"""Python writes and reads integers of at most 4,300 digits."""


@cache
def _recorded(record: Any) -> tuple[tuple[str, bool], ...]:
    """The names of the fields that a record holds, and whether each is left out where it is empty."""
    kept = [field for field in dataclasses.fields(record) if field.metadata.get("recorded") != UNRECORDED["recorded"]]
    return tuple((field.name, field.metadata.get("recorded") == SPARSE["recorded"]) for field in kept)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass's instance as a record holds them, with their values as they are."""
    kind: Any = type(record)
    return {name: value for name, sparse in _recorded(kind) if (value := getattr(record, name)) or not sparse}


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: dataclasses become objects, numbers that are not finite null, anything else text.

    What is nested deeper, or an integer longer, than a reader would take becomes a text that says so.
    """
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= _MAX_BITS else f"… (an integer of {value.bit_length()} bits left out) …"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _MAX_DEPTH:
        return "… (nested too deep) …"
    depth += 1
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(item, depth) for name, item in fields_of(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, depth) for item in value]
    return str(value)


def sendable(value: Any) -> Any:
    """`value` as a strict writer of JSON takes it: plain, lone surrogates as U+FFFD, long integers as text."""
    return _sendable(plain(value))


def _sendable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value
