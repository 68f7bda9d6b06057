"""Secrets by name: `${env:NAME}` in a spec's text, the value only where it is sent.

The spec's data, its digest, trajectories, logs and messages hold `${env:NAME}`. Whatever sends a text somewhere (an
endpoint's address, a header, the environment of a command) asks `resolve` for it at compile; every value that was
given out is remembered, and `redact` puts the name back wherever the value turns up again.
"""

from __future__ import annotations

import base64
import contextlib
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
    """One value that was given out: how it is shown, a pattern for all its spellings, and what tells at once that
    none of them is in a text."""

    __slots__ = ("_least", "_probes", "pattern", "shown", "value")

    def __init__(self, name: str, value: str, spellings: Mapping[str, tuple[str, ...]]) -> None:
        self.value = value
        self.shown = f"${{env:{name}}}"
        self.pattern = re.compile("|".join(spellings))
        self._probes = tuple({probe: None for found in spellings.values() for probe in found or ("",)})
        self._least = len(_BREAKS.sub("\n", value.strip()))  # no spelling of a character is shorter than it

    def taken_from(self, text: str, *, is_escaped: bool) -> str:
        if len(text) < self._least:
            return text
        # A pattern takes a hundred times as long as a look for the texts without which it cannot match.
        if is_escaped or any(map(text.__contains__, self._probes)):
            return self.pattern.sub(lambda _: self.shown, text)
        return text


class _Known:
    """The values given out so far, the longest first: one may be a part of another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.names: dict[str, str] = {}
        self.secrets: tuple[_Secret, ...] = ()
        self.longest = 0
        """No value is written in more characters than these."""

    def add(self, name: str, value: str) -> None:
        if self.names.get(value) is not None:
            return
        with self.lock:
            self.names[value] = name
            spellings = _spellings(value)
            if spellings is None:
                return
            _watch_records()
            self.longest = max(self.longest, _MOST_CHARS_FOR_ONE * (len(value) + 4 * value.count("\n")))
            found = (*self.secrets, _Secret(name, value, spellings))
            self.secrets = tuple(sorted(found, key=lambda secret: len(secret.value), reverse=True))


_known = _Known()
_missing: ContextVar[dict[str, None] | None] = ContextVar("rlenv.secrets.missing", default=None)

_ENTITIES: Final = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_JSON_ESCAPES: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
_OTHERWISE: Final = {" ": r"\+", "'": "''"}
_MOST_CHARS_FOR_ONE: Final = 24
_PIECES: Final = re.compile(r"\\+|[^\\]+")
_BREAKS: Final = re.compile(r"[\r\n](?:\s*[\r\n])?")  # empty lines are one break: several of any length have no end


def _spellings(value: str) -> dict[str, tuple[str, ...]] | None:
    """Patterns for every way in which a server or a tool gives the value back, each with texts of which one has to be
    there, none where that cannot be said; None where the value is taken for no secret.

    As text and escaped for JSON (also twice), HTML, URLs (also twice) or Python, whole or in part; in hexadecimal, also
    as dumps and certificates set it (`73:65`, `0x73, 0x65`); and in base64, alone or among other bytes (`Basic
    user:secret`).
    """
    bare = value.strip()
    if len(bare) < _LEAST_CHARS or (bare.isdecimal() and len(bare) < _LEAST_ANYWHERE):
        return None
    # Several backslashes are one piece: as many pieces of any length would take for ever to be told apart.
    pieces = _PIECES.findall(_BREAKS.sub("\n", bare))
    text = "".join(_backslashes(len(run)) if run[0] == "\\" else "".join(map(_one, run)) for run in pieces)
    if len(bare) < _LEAST_ANYWHERE:
        return {rf"(?<![A-Za-z0-9]){text}(?![A-Za-z0-9])": _runs(bare)[:1]}
    data = bare.encode("utf-8", "surrogateescape")
    found = {text: _runs(bare)[:1], **_hexadecimal([f"{octet:02x}" for octet in data])}
    for offset in range(3):
        # Of the first and the last character some bits may belong to a neighbour: they are left.
        coded = base64.b64encode(bytes(offset) + data).decode()
        core = coded[(0, 2, 3)[offset] : (offset + len(data)) * 8 // 6]
        half = min(len(core) // 2, 30)
        # A line may end in one of the halves, and lines of 60 characters and more in no second place of the two.
        probes = (_runs(core[:half])[:1], _runs(core[half : 2 * half])[:1])
        found[_LINE_END.join(_BASE64.get(c, c) for c in core)] = (*probes[0], *probes[1]) if all(probes) else ()
    return found


_LINE_END = r"(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n)?"  # within base64, also as JSON writes it


def _hexadecimal(pairs: list[str]) -> dict[str, tuple[str, ...]]:
    # A line may end in one of the two parts that stand together.
    probes = ["".join(pairs[:6]), "".join(pairs[6:12]), f"0x{pairs[1]}", f"{pairs[0]}{pairs[1]} {pairs[2]}"]
    probes += (sign.join(pairs[:3]) for sign in " :-,")
    cased = [probe for probe in probes if probe] + [probe.upper().replace("0X", "0x") for probe in probes if probe]
    return {_BETWEEN.join(map(_any_case, pairs)): tuple(cased)}


def _runs(text: str) -> tuple[str, ...]:
    """The letters and digits that stand together, four and more, the longest first; nobody escapes one of many."""
    return tuple(sorted((run for run in re.findall(r"[A-Za-z0-9]+", text) if len(run) >= 4), key=len, reverse=True))


# Where even letters and digits are escaped, no run of them is left to be looked for.
_ESCAPED: Final = re.compile(
    r"(?:(?:\\{1,8}u|\\{1,8}x|\\{1,8}(?=[0-7]{3})|%(?:25){0,3}|&(?:amp;){0,3}#[xX]?)[0-9a-fA-F]{2,6};?){3}"
)
_BETWEEN: Final = r"(?:[ :,_-]|\r?\n|,? ?0[xX])?"
_BASE64: Final = {"+": "[+-]", "/": "[/_]"}


def _one(char: str) -> str:
    """A character as it is, and every way to escape it; a line break as any of them, in a line too, and indented."""
    if char == "\n":
        return rf"(?:\s|{'|'.join(map(_escaped, chr(10) + chr(13) + ' '))}){{1,64}}"
    plain = r"\\{0,8}" + re.escape(char) if char in "\"'/" else re.escape(char)
    return f"(?:{plain}|{_escaped(char)})"


def _escaped(char: str) -> str:
    ways, code = [], ord(char)
    units = char.encode("utf-16-be", "surrogatepass").hex()
    ways.append("".join(r"\\{1,8}u" + _any_case(units[at : at + 4]) for at in range(0, len(units), 4)))
    octets = char.encode("utf-8", "surrogateescape")
    if code > 127:  # as bytes are shown, or read as Latin-1
        shown = (rf"(?:\\{{1,8}}(?:x{_any_case(f'{octet:02x}')}|{octet:03o})|{chr(octet)})" for octet in octets)
        ways += ["".join(shown), r"\\{1,8}U" + _any_case(f"{code:08x}")]
    ways.append("".join(f"%(?:25){{0,3}}{_any_case(f'{octet:02x}')}" for octet in octets))
    ways.append(f"&(?:amp;){{0,3}}#(?:0{{0,6}}{code}|[xX]0{{0,6}}{_any_case(f'{code:x}')});")
    if char in _ENTITIES:
        ways.append(f"&(?:amp;){{0,3}}{_ENTITIES[char]};")
    if char in _JSON_ESCAPES:
        ways.append(r"\\{1,8}" + _JSON_ESCAPES[char])
    if code < 256:
        ways.append(rf"\\{{1,8}}(?:x{_any_case(f'{code:02x}')}|{code:03o})")
    if char in _OTHERWISE:
        ways.append(_OTHERWISE[char])
    return "|".join(ways)


def _backslashes(count: int) -> str:
    escaped = "|".join((r"%(?:25){0,3}5[cC]", "&(?:amp;){0,3}#(?:0{0,6}92|[xX]0{0,6}5[cC]);"))
    return rf"(?:\\{{{count},{8 * count}}}(?:u005[cC]|x5[cC]|134)?|(?:{escaped}){{{count}}})"


def _any_case(digits: str) -> str:
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in digits)


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
        state = "is empty" if name in os.environ else "is not set"
        message = f"the environment variable {name} {state}"
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

    Found as text, escaped for JSON, HTML, URLs and in octal, in hexadecimal and in base64. Values of fewer than 8
    characters are found as whole words only; those of fewer than 4, and numbers of fewer than 8 digits, are taken for
    no secret. A value that is turned around, spelled in other words or split over two texts is not found, so redact
    before cutting: `redact_within` does both.
    """
    if not _known.secrets or not text:
        return text
    # The search takes 20 ms for a megabyte; the look for what every escape begins with a hundredth of that.
    is_escaped = ("\\" in text or "%" in text or "&" in text) and _ESCAPED.search(text) is not None
    for secret in _known.secrets:
        text = secret.taken_from(text, is_escaped=is_escaped)
    return text


def redact_within(text: str, limit: int, *, tail: bool = False) -> str:
    """The first `limit` characters of `redact(text)`, or its last ones, in time that grows with `limit` only.

    What `text` ends with (begins with, where its tail is asked for) may be half of a value: where it is longer than
    `limit` nothing of such a half is given.
    """
    if not _known.secrets:
        return text if len(text) <= limit else text[-limit:] if tail else text[:limit]
    margin = _known.longest
    if len(text) <= limit + margin:
        found = redact(text)
    elif tail:
        found = redact(text[-limit - margin :])[margin:]
    else:
        found = redact(text[: limit + margin])[:-margin]
    if len(found) <= limit:
        return found
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
    return value if not _known.secrets else _redacted(value, 0)


_MAX_DEPTH: Final = 150


def _redacted(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return redact(value)
    if depth > _MAX_DEPTH and isinstance(value, (Mapping, list, tuple)):
        return None  # nothing that is kept is nested so deep
    if isinstance(value, Mapping):
        new = {_redacted(key, depth): _redacted(item, depth + 1) for key, item in value.items()}
        same = len(new) == len(value) and all(key in value and value[key] is item for key, item in new.items())
        return value if same else new
    if isinstance(value, (list, tuple)):
        items = [_redacted(item, depth + 1) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return tuple(items) if isinstance(value, tuple) else items
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
_watched = False


def _watch_records() -> None:
    """From the first secret on, no record of any logger of the process holds one: libraries log addresses."""
    global _watched
    if _watched:
        return
    _watched = True
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
