"""Secrets by name: `${env:NAME}` in a spec's text, the value only where it is sent.

The spec's data, its digest, trajectories, logs and messages hold `${env:NAME}`. Whatever sends a text somewhere (an
endpoint's address, a header, the environment of a command) asks `resolve` for it at compile; every value that was
given out is remembered, and `redact` puts the name back wherever the value turns up again.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import logging
import os
import re
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from html.entities import codepoint2name
from itertools import islice
from string import punctuation, whitespace
from typing import Any, Final
from urllib.parse import urlsplit

from rlenv._base.bounded import cut_middle
from rlenv._base.text import visible
from rlenv.errors import MissingVariable, UsageError

LITERAL: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{24,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{30,}|glpat-[A-Za-z0-9_-]{18,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----)"
)
"""The forms in which well-known services give out keys."""
_REFERENCE: Final = re.compile(r"\$\{env:([^{}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Below these a value is found in text that has nothing to do with it: a port in a price, a word within a word.
_LEAST_CHARS: Final = 4
_LEAST_ANYWHERE: Final = 8


class _Secret:
    """A value that was given out, or a piece of a long one: how it is shown, and a pattern for all its spellings."""

    def __init__(self, name: str, value: str) -> None:
        self.plain, self.source = _bytes(value), _spellings(value)
        self._shown = f"${{env:{name}}}".encode()

    @cached_property
    def _pattern(self) -> Any:
        return _compiled(self.source)

    def taken_from(self, data: bytes) -> bytes:
        # A word is all that is not within a word: the pattern's group, where it has one.
        group = self._pattern.groups
        if not group:
            data = data.replace(self.plain, self._shown)  # a tenth of a search's time where it stands everywhere
        pieces, at = list[bytes](), 0
        while (found := self._pattern.search(data, at)) is not None:
            start, end = found.span(group)
            pieces += data[at:start], self._shown
            at = end
        return b"".join((*pieces, data[at:]))


class _Known:
    """The values given out so far, the longest first: one may be a part of another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: dict[str, str] = {}
        self.secrets: tuple[_Secret, ...] = ()
        self._patterns: tuple[Any, ...] | None = ()
        self._sources: list[str] = []
        self.longest = 0
        """No value is usually written in more characters than these."""

    @property
    def patterns(self) -> tuple[Any, ...]:
        """For the spellings of several values each: a look for them all takes no longer than for one."""
        found = self._patterns
        if found is None:
            with self.lock:  # another thread may give one out right behind it
                found = self._patterns = tuple(map(_compiled, self._sources))
        return found

    def add(self, name: str, value: str) -> None:
        if self.names.get(value) is not None:
            return
        with self.lock:  # who finds the name finds the value too
            bare = value.strip()
            if value in self.names or len(bare) < _LEAST_CHARS or (bare.isdecimal() and len(bare) < _LEAST_ANYWHERE):
                self.names.setdefault(value, name)
                return
            _watch_records()
            self.longest = max(self.longest, _MOST_CHARS_FOR_ONE * (len(value) + 4 * value.count("\n")))
            size, count = len(bare), len(_bytes(bare)) // _MOST_IN_ONE + 1
            found = [_Secret(name, bare[at * size // count : (at + 1) * size // count]) for at in range(count)]
            self.secrets = tuple(sorted((*self.secrets, *found), key=lambda one: len(one.plain), reverse=True))
            for source in [one.source for one in found]:
                is_short = bool(self._sources) and len(self._sources[-1]) + len(source) < _MOST_TOGETHER
                self._sources.append(f"{self._sources.pop()}|{source}" if is_short else source)
            self._patterns = None
            self.names[value] = name


_known = _Known()
_missing: ContextVar[dict[str, None] | None] = ContextVar("rlenv.secrets.missing", default=None)

_MOST_IN_ONE: Final = 2_000  # the engine takes 5 KB for a character, and no pattern of very many
_MOST_TOGETHER: Final = 160_000  # of patterns, which have some 400 characters for each of a value


def _compiled(source: str) -> Any:
    """A pattern over bytes, of an engine that follows all ways to write a value at once: its time is linear."""
    re2: Any = importlib.import_module("re2")  # loaded with the first secret
    options = re2.Options()
    options.encoding = options.Encoding.LATIN1
    options.log_errors = False  # it would log the pattern
    options.max_mem = 128 << 20
    return re2.compile(source.encode(), options)


_MOST_CHARS_FOR_ONE: Final = 24

# The signs that escapes are made of, which may be escaped themselves: JSON in JSON, in HTML and in addresses.
_PERCENT: Final = "%(?:25)*"
_SLASH: Final = rf"(?:\\|{_PERCENT}5[cC])"
_OTHERWISE: Final = {" ": [r"\+"], "'": ["''"], '"': ['""']} | {
    char: [f"{_SLASH}+{name}"] for char, name in zip("\n\r\t\b\f", "nrtbf", strict=True)
}
_AND: Final = rf"(?:&|{_SLASH}+u0026|{_PERCENT}26)(?:amp(?:;|{_PERCENT}3[bB]))*"
_LINE_END: Final = r"(?:(?:\r|\\+r)?(?:\n|\\+n)[ \t]*)?"  # within base64, also as JSON writes it
_BETWEEN: Final = r"(?:[\s:,_-]|\\+[nrt])*(?:0x)?"  # within hexadecimal


def _spellings(value: str) -> str:
    """A pattern for every way in which a server or a tool gives the value back.

    As text and escaped for JSON, HTML, URLs (each also several times), Markdown or Python, whole or in part; in
    hexadecimal, also as dumps and certificates set it (`73:65`, `0x73, 0x65`, `7365  63`); and in base64, alone or
    among other bytes (`Basic user:secret`).
    """
    text = "".join(map(_one, re.sub(r"\s*[\r\n]\s*", "\n", value)))
    if len(value) < _LEAST_ANYWHERE:
        return f"(?:^|[^A-Za-z0-9])({text})(?:[^A-Za-z0-9]|$)"
    data = value.encode("utf-8", "surrogateescape")
    found = [text, f"(?i:{_BETWEEN.join(f'{octet:02x}' for octet in data)})"]
    signs = {"+": f"(?:{_one('+')}|{_one('-')})", "/": f"(?:{_one('/')}|{_one('_')})"}
    for offset in range(3):
        # Of the first and the last character some bits may belong to a neighbour: they are left.
        coded = base64.b64encode(bytes(offset) + data).decode()
        core = coded[(0, 2, 3)[offset] : (offset + len(data)) * 8 // 6]
        found.append(_LINE_END.join(signs.get(char, char) for char in core))
    return "|".join(found)


def _one(char: str) -> str:
    """Every way to write a character; of a line break as any space, several of them too: it may be indented."""
    if char == "\n":
        return rf"(?:\s|{'|'.join(map(_ways, whitespace))})+"
    return f"{_SLASH}*" * (char in punctuation) + f"(?:{_ways(char)})"


def _ways(char: str) -> str:
    # Escapes first: the literal one may be what an escape begins with.
    code, octets = ord(char), char.encode("utf-8", "surrogateescape")
    units = char.encode("utf-16-be", "surrogatepass").hex()
    ways = ["".join(rf"{_SLASH}+u(?i:{units[at : at + 4]})" for at in range(0, len(units), 4))]
    if code > 127:  # as bytes are shown, or read as Latin-1
        ways += ["".join(f"(?:{_octet(one)}|{_literal(chr(one))})" for one in octets), rf"{_SLASH}+U(?i:{code:08x})"]
    if code < 256:
        ways.append(_octet(code))
    name = f"|{codepoint2name[code]}" if code in codepoint2name else "|apos" if char == "'" else ""
    ways.append(f"{_AND}(?:(?:#|{_PERCENT}23)(?:0*{code}|[xX]0*(?i:{code:x})){name})(?:;|{_PERCENT}3[bB])")
    return "|".join((*ways, _literal(char), *_OTHERWISE.get(char, ())))


def _octet(octet: int) -> str:
    return rf"{_SLASH}+(?:x(?i:{octet:02x})|{octet:03o})|{_PERCENT}(?i:{octet:02x})"


def _literal(text: str) -> str:
    return "".join(f"\\x{octet:02x}" for octet in _bytes(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a text of others may hold half of a surrogate pair


def names_in(text: str) -> tuple[str, ...]:
    """The names of the variables that `text` refers to, in order, each once."""
    return tuple(dict.fromkeys(_REFERENCE.findall(text))) if "${env:" in text else ()


@dataclass(frozen=True, slots=True)
class Filled:
    """The texts of a spec that are looked through for secrets, and those that are compiled as templates."""

    secrets: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)


watched: Final[ContextVar[Filled | None]] = ContextVar("rlenv.secrets.watched", default=None)
"""Where `resolve`, `set_aside` and `compile_template` note the texts that they are given; None notes nothing."""


def _looked_through(text: str) -> None:
    if (filled := watched.get()) is not None:
        filled.secrets.add(text)


def resolve(text: str) -> str:
    """`text` with every `${env:NAME}` replaced by the variable's value, which is remembered for `redact`.

    Only text of the spec itself is resolved, before a template in it is filled: what a model or a tool wrote must
    never name a variable. Inside `leave_open` a reference to a variable that is not set stays as it is.

    Raises:
        MissingVariable: a variable is not set or is empty.
        UsageError: what stands after `env:` is no name.
    """
    _looked_through(text)
    return text if "${env:" not in text else _REFERENCE.sub(_value, text)


def resolve_value(value: Any) -> Any:
    """A JSON-like value with every text in it resolved; keys stay as they are.

    Raises:
        MissingVariable, UsageError: see `resolve`.
    """
    return _mapped(value, resolve)


def set_aside(value: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`value` with a mark in the place of every reference, and what puts the secrets into a value that has the marks.

    For templates: a secret may hold what a template is written with, and must not be read as one. The marks cannot be
    guessed, so that nothing that fills a template names one.

    Raises:
        MissingVariable, UsageError: see `resolve`.
    """
    marks: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        secret = _value(match)
        if secret == match[0]:  # left open
            return secret
        made = f"RLENVSECRET{secrets.token_hex(16)}"
        marks[made] = secret
        return made

    def marking(text: str) -> str:
        _looked_through(text)
        return _REFERENCE.sub(mark, text) if "${env:" in text else text

    marked = _mapped(value, marking)
    if not marks:
        return marked, lambda filled: filled
    pattern = re.compile("|".join(marks))
    return marked, lambda filled: _mapped(filled, lambda text: pattern.sub(lambda match: marks[match[0]], text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else value


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
        message = f"the environment variable {name} is {'empty' if name in os.environ else 'not set'}"
        raise MissingVariable(message, name=name, hint=f"export {name}=… before the start")
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

    Found as text, escaped for JSON, HTML, URLs, Markdown and in octal, in hexadecimal and in base64. Values of fewer
    than 8 characters are found as whole words only; those of fewer than 4, and numbers of fewer than 8 digits, are
    taken for no secret. A value that is turned around, spelled in other words or split over two texts is not found, so
    redact before cutting: `redact_within` does both.
    """
    if not (patterns := _known.patterns):
        return text
    data = _bytes(text)
    if not any(pattern.search(data) for pattern in patterns):
        return text
    for secret in _known.secrets:
        data = secret.taken_from(data)
    return data.decode("utf-8", "surrogatepass")


def redact_within(text: str, limit: int, *, tail: bool = False) -> str:
    """The first `limit` characters of `redact(text)`, or its last ones, in time that grows with `limit` only.

    What `text` ends with (begins with, where its tail is asked for) may be half of a value: where it is longer than
    `limit` nothing of such a half is given.
    """
    margin = _known.longest
    if len(text) <= limit + margin:
        found = redact(text)
    elif tail:
        found = redact(text[-limit - margin :])[margin:]
    else:
        found = redact(text[: limit + margin])[: -margin or None]
    return found[-limit:] if tail else found[:limit]


def redact_ends(text: str, limit: int) -> str:
    """`redact(text)` within `limit` characters: its head and its tail, in time that grows with `limit` only."""
    if not _known.secrets or len(text) <= limit:
        return cut_middle(redact(text), limit)
    gap = f"\n… ({len(text) - limit} characters left out) …\n"
    keep = max(limit - len(gap), 0)
    tail = keep // 2
    return redact_within(text, keep - tail) + gap + (redact_within(text, tail, tail=True) if tail else "")


def margin() -> int:
    """The number of characters to read beyond those that are shown, so that no value is cut before it is found."""
    return _known.longest


def redact_value(value: Any) -> Any:
    """A JSON-like value with every text in it redacted, keys too; the same object where nothing was found."""
    if not _known.secrets:
        return value
    # All texts are looked through at once: a look costs as much as a thousand characters of it.
    texts, level, depth = list[str](), [value], 0
    while level and depth <= _MAX_DEPTH + 1:
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                texts.append(item)
            elif isinstance(item, Mapping):
                below += (*item, *item.values())
            elif isinstance(item, (list, tuple)):
                below += item
        level, depth = below, depth + 1
    joined = "\0".join(texts)  # no variable holds one, so that no spelling goes from one text to the next
    if (found := redact(joined)) is joined and not level:
        return value
    parts = iter(found.split("\0"))
    clean = {text: "\0".join(islice(parts, text.count("\0") + 1)) for text in texts}
    return _redacted(value, 0, clean)


_MAX_DEPTH: Final = 150


def _redacted(value: Any, depth: int, clean: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return clean[value]
    if depth > _MAX_DEPTH and isinstance(value, (Mapping, list, tuple)):
        return None  # nothing that is kept is nested so deep
    if isinstance(value, Mapping):
        return {_redacted(key, depth + 1, clean): _redacted(item, depth + 1, clean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(_redacted(item, depth + 1, clean) for item in value)
    return value


_MOST_LOGGED: Final = 32_768
"""Characters of a record's message, and of its traceback: a tool's error may quote all that it was sent."""


def _shown(text: str) -> str:
    return visible(redact_ends(text, _MOST_LOGGED))


class _Filter(logging.Filter):
    """Redacts and bounds records, tracebacks included, before any handler sees them; nothing acts on a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if (clean := _shown(message)) != message:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[0] is not None:
            shown = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            if (clean := _shown(shown)) != shown:
                # The exception itself would be formatted again, by a handler of its own making.
                record.exc_info, record.exc_text = None, clean
        return True


_filter = _Filter()


@cache
def _watch_records() -> None:
    """From the first secret on, no record of any logger of the process holds one: libraries log addresses."""
    make = logging.getLogRecordFactory()

    def clean(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        with contextlib.suppress(Exception):  # a message that does not fit its arguments is the library's to report
            _filter.filter(record)
        return record

    logging.setLogRecordFactory(clean)


def host_of(address: str) -> str:
    """Host and port of an address, without credentials, path and query; an address in a variable stays its name."""
    try:
        found = urlsplit(address).netloc.rpartition("@")[2]
    except ValueError:
        found = ""
    return found or ", ".join(f"${{env:{name}}}" for name in names_in(address))


def logger(name: str) -> logging.Logger:
    """The logger called `name`, whose records hold no secret."""
    found = logging.getLogger(name)
    found.addFilter(_filter)
    return found
