"""Declared coercions: a text that spells a number or a truth value, where the schema wants one."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlenv.tools.arguments import ArgumentCheck

__all__ = ["Coerced", "coerced"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUTH = {"true": True, "false": False}
_MAX_CHARS = 64


@dataclass(frozen=True, slots=True)
class Coerced:
    """Arguments that fit, as a copy, and which of them were text before (`n`, `points.0.x`)."""

    arguments: dict[str, Any]
    names: tuple[str, ...]


def coerced(arguments: Mapping[str, Any], check: ArgumentCheck, types: frozenset[str]) -> Coerced | None:
    """The arguments with texts of the declared `types` read as what the schema wants; None where they still misfit.

    Only what the schema refuses is touched: a text where a text is allowed stays one.
    """
    taken: dict[str, Any] = copy.deepcopy(dict(arguments))
    names: list[str] = []
    for path, wanted in check.mistyped(taken):
        if not path:
            return None
        holder: Any = taken
        for step in path[:-1]:
            holder = holder[step]
        value = _read(holder[path[-1]], types.intersection(wanted))
        if value is None:
            return None
        holder[path[-1]] = value
        names.append(".".join(map(str, path)))
    return Coerced(taken, tuple(names)) if names and check.fits(taken) else None


def _read(value: Any, types: frozenset[str]) -> Any:
    if not isinstance(value, str) or len(value) > _MAX_CHARS:
        return None
    text = value.strip()
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        return (int(text) if _INTEGER.fullmatch(text) else number) if math.isfinite(number) else None
    if "boolean" in types:
        return _TRUTH.get(text.lower())
    return None
