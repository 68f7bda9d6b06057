"""What is wrong with a dialect's row, at which of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlenv._base.bounded import abridged
from rlenv.errors import Finding
from rlenv.language.dialect import CallSpec, DialectSpec
from rlenv.language.document import SourceDocument

__all__ = ["Path", "RowFault", "calls_of", "fault_of", "listed", "place_of_form", "shown"]

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault of a row: the keys below `dialect` that lead to it, what is wrong, and the nearest fix.

    `at` says whether the key or its value is at fault; `find` is a text inside the value to point at. The last keys of
    `path` need not be given: the fault then stands at the mapping that lacks them.
    """

    path: Path
    message: str
    hint: str
    at: Literal["key", "value"] = "value"
    find: str = ""


def fault_of(document: SourceDocument, finding: RowFault) -> Finding:
    """The fault of a finding at its place in the document, or at the nearest mapping around it."""
    path = ("dialect", *finding.path)
    is_there = document.has(path)
    name = ".".join(map(str, path)) if not is_there else None
    at = finding.at if is_there else "key"
    return document.fault(path, finding.message, finding.hint, at=at, find=finding.find, shown=name)


def calls_of(spec: DialectSpec) -> tuple[CallSpec, ...]:
    """The forms of a row, also where there is one alone."""
    return (spec.calls,) if isinstance(spec.calls, CallSpec) else spec.calls


def place_of_form(spec: DialectSpec, index: int) -> Path:
    """Where the form with that index stands in the document."""
    return ("calls",) if isinstance(spec.calls, CallSpec) else ("calls", index)


def shown(text: str, *, most: int = 70) -> str:
    """A text in quotes with control characters visible, its middle left out where it is long."""
    return "'" + "".join(_visible(sign) for sign in abridged(text, most)) + "'"


_ESCAPES: Mapping[str, str] = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _visible(sign: str) -> str:
    return _ESCAPES.get(sign) or (sign if sign.isprintable() else f"\\x{ord(sign):02x}")


def listed(names: list[str] | tuple[str, ...]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
