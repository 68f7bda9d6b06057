"""References to secrets: they stand only where they are filled in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv.checks.subject import Subject
from rlenv.errors import Fault
from rlenv.secrets import LITERAL, names_in

__all__ = ["check_secrets"]

_SECTIONS: Final = ("prompt", "vars", "oracle", "observation", "user")
_KEYS: Final = ("prompt", "system", "description")
_SHORTEST_KEY: Final = 20
_HINT: Final = "name it where it is sent: under endpoints, in headers, in the environment of a command"


def check_secrets(subject: Subject) -> Iterator[Fault]:
    """Faults of `${env:NAME}` in texts that are shown to a model, or that are only read by other templates."""
    data = subject.document.data
    for section in _SECTIONS:
        yield from _found(subject, data.get(section), (section,), is_shown=True)
    for section in ("endpoints", "tools", "resources", "vars", "calls"):
        yield from _literal(subject, data.get(section), (section,))
    for section in ("tools", "rewards"):
        yield from _found(subject, data.get(section), (section,), is_shown=False)


def _literal(subject: Subject, value: Any, path: tuple[str | int, ...]) -> Iterator[Fault]:
    """Values that look like secrets: a spec is kept and shown, recorded with its runs and shipped."""
    if isinstance(value, str):
        is_key = path[-1] == "api_key" and "${env:" not in value and len(value) >= _SHORTEST_KEY
        if (found := LITERAL.search(value)) is not None or is_key:
            shown = (found[0] if found is not None else value)[:6]
            hint = "write ${env:NAME}, and set the variable where the spec runs"
            fault = subject.document.fault(path, f"found what looks like a secret ('{shown}…')", hint)
            yield dataclasses.replace(fault, quote="")  # the line holds it
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _literal(subject, item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _literal(subject, item, (*path, index))


def _found(subject: Subject, value: Any, path: tuple[str | int, ...], *, is_shown: bool) -> Iterator[Fault]:
    if isinstance(value, str):
        for name in names_in(value) if is_shown else ():
            reference = f"${{env:{name}}}"
            yield subject.document.fault(path, f"{reference} is not filled in here", _HINT, find=reference)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _found(subject, item, (*path, key), is_shown=is_shown or key in _KEYS)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _found(subject, item, (*path, index), is_shown=is_shown)
