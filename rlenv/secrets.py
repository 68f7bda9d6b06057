"""Secrets by name: `${env:NAME}` in a spec's text, the value only where it is sent.

The spec's data, its digest, trajectories, logs and messages hold `${env:NAME}`. Whatever sends a text somewhere (an
endpoint's address, a header, the environment of a command) asks `resolve` for it at compile; every value that was
given out is remembered, and `redact` puts the name back wherever the value turns up again.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote, quote_plus

from rlenv._visible import visible
from rlenv.errors import MissingVariable, UsageError

__all__ = ["leave_open", "logger", "names_in", "redact", "redact_value", "resolve", "resolve_value"]

_REFERENCE: Final = re.compile(r"\$\{env:([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Below these a value is found in text that has nothing to do with it: a port in a price, a word within a word.
_LEAST_CHARS: Final = 4
_LEAST_ANYWHERE: Final = 8


class _Known:
    """The values given out so far, and one pattern that finds them all (None while there are none)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: dict[str, str] = {}
        self.forms: dict[str, str] = {}
        self.pattern: re.Pattern[str] | None = None

    def add(self, name: str, value: str) -> None:
        if self.names.get(value) is not None:
            return
        with self.lock:
            self.names[value] = name
            for form in _forms(value):
                self.forms.setdefault(form, f"${{env:{name}}}")
            longest_first = sorted(self.forms, key=len, reverse=True)
            self.pattern = re.compile("|".join(map(_finder, longest_first))) if longest_first else None


_known = _Known()
_missing: ContextVar[dict[str, None] | None] = ContextVar("rlenv.secrets.missing", default=None)


def _forms(value: str) -> set[str]:
    """The value as text, in JSON, in a URL and in base64: the ways in which a server or a tool gives it back."""
    bare = value.strip()
    if len(bare) < _LEAST_CHARS or (bare.isdecimal() and len(bare) < _LEAST_ANYWHERE):
        return set()
    forms = {bare, json.dumps(bare)[1:-1], json.dumps(bare, ensure_ascii=False)[1:-1], repr(bare)[1:-1]}
    forms |= {quote(bare, safe=""), quote_plus(bare)}
    if len(bare) >= _LEAST_ANYWHERE:
        forms.add(base64.b64encode(bare.encode("utf-8", "surrogateescape")).decode().rstrip("="))
    return forms


def _finder(form: str) -> str:
    if len(form) >= _LEAST_ANYWHERE:
        return re.escape(form)
    return rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"


def names_in(text: str) -> tuple[str, ...]:
    """The names of the variables that `text` refers to, in order, each once."""
    return tuple(dict.fromkeys(_REFERENCE.findall(text))) if "${env:" in text else ()


def resolve(text: str) -> str:
    """`text` with every `${env:NAME}` replaced by the variable's value, which is remembered for `redact`.

    Only text of the spec itself is resolved, before a template in it is filled: what a model or a tool wrote must
    never name a variable. Inside `leave_open` a reference to a variable that is not set stays as it is.

    Raises:
        MissingVariable: a variable is not set or is empty.
        UsageError: what stands after `env:` is no name.
    """
    if "${env:" not in text:
        return text
    return _REFERENCE.sub(_value, text)


def resolve_value(value: Any) -> Any:
    """A JSON-like value with every text in it resolved; keys stay as they are.

    Raises:
        MissingVariable, UsageError: see `resolve`.
    """
    if isinstance(value, str):
        return resolve(value)
    if isinstance(value, Mapping):
        return {key: resolve_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve_value(item) for item in value]
    return value


def _value(match: re.Match[str]) -> str:
    name = match[1]
    if not _NAME.fullmatch(name):
        raise UsageError(f"'{match[0]}' names no variable; expected ${{env:NAME}}, a name of letters, digits and _")
    value = os.environ.get(name, "")
    if value.strip():
        _known.add(name, value)
        return value
    missing = _missing.get()
    if missing is None:
        state = "is empty" if name in os.environ else "is not set"
        message = f"the environment variable {name} {state}; export {name}=… before the start"
        raise MissingVariable(message, name=name)
    missing[name] = None
    return match[0]


@contextmanager
def leave_open() -> Iterator[Mapping[str, None]]:
    """While entered, variables that are not set are left as they are written; gives their names as keys, in order.

    For looking at a spec on a machine that does not hold its secrets.
    """
    missing: dict[str, None] = {}
    token = _missing.set(missing)
    try:
        yield missing
    finally:
        _missing.reset(token)


def redact(text: str) -> str:
    """`text` with every value that was given out replaced by its `${env:NAME}`.

    Found as text, in JSON, percent-encoded and in base64. Values of fewer than 8 characters are found as whole words
    only; those of fewer than 4, and numbers of fewer than 8 digits, are taken for no secret. Redact before cutting:
    half of a value is not found.
    """
    pattern = _known.pattern
    if pattern is None or not text:
        return text
    return pattern.sub(_hidden, text)


def _hidden(match: re.Match[str]) -> str:
    return _known.forms[match[0]]


def redact_value(value: Any) -> Any:
    """A JSON-like value with every text in it redacted, keys too; the same object where nothing was found."""
    if _known.pattern is None:
        return value
    return _redacted(value)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        new = {_redacted(key): _redacted(item) for key, item in value.items()}
        same = len(new) == len(value) and all(key in value and value[key] is item for key, item in new.items())
        return value if same else new
    if isinstance(value, (list, tuple)):
        items = [_redacted(item) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple(items) if isinstance(value, tuple) else items
    return value


class _Filter(logging.Filter):
    """Redacts records, tracebacks included, before any handler sees them; nothing in them acts on a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := visible(redact(message))) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            shown = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (clean := visible(redact(shown))) != shown:
                # The exception itself would be formatted again, by a handler of its own making.
                record.exc_info, record.exc_text = None, clean
        return True


_filter = _Filter()


def logger(name: str) -> logging.Logger:
    """The logger called `name`, whose records hold no secret."""
    found = logging.getLogger(name)
    found.addFilter(_filter)
    return found
