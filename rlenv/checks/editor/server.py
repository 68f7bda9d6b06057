"""The language server: what editors ask in the Language Server Protocol, answered by the functions beside this file.

The protocol is 3.17 (https://microsoft.github.io/language-server-protocol/specifications/lsp/3.17/specification/). One
document is one text; changes are taken as whole texts or as ranges. Diagnostics come twice: the faults of the text and
its types once nobody has typed for a moment, those of the whole validation a little later, or when the file is saved.

Messages of the Language Server Protocol over bytes: JSON-RPC 2.0 behind a header (LSP 3.17, "Base Protocol").
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from rlenv.checks.editor.hover import Symbol, complete, hover, outline
from rlenv.checks.editor.shape import shapes_at
from rlenv.checks.editor.tree import EditorPlaces
from rlenv.checks.editor.validator import MAX_TEXT, Mark, Validator, diagnose, marks
from rlenv.concurrency.scope import cancel_all

_T = TypeVar("_T")
_log = logging.getLogger("rlenv.checks.editor")

_ITEM_KINDS: Final = {"key": 10, "value": 12, "name": 6}  # CompletionItemKind: Property, Value, Variable
_ERROR: Final = 1  # MessageType
_SYMBOLS: Final = (3, 5, 8)  # SymbolKind by depth: Namespace, Class, Field
_CAPABILITIES: Final[Mapping[str, Any]] = {
    "positionEncoding": "utf-16",
    "textDocumentSync": {"openClose": True, "change": 2, "save": {"includeText": False}},
    "completionProvider": {"triggerCharacters": [".", ":", "{", " "]},
    "hoverProvider": True,
    "documentSymbolProvider": True,
}


@dataclass(slots=True)
class _Document:
    path: Path
    text: str
    version: int | None = None
    full: tuple[Mark, ...] = ()
    """What the last whole validation found."""
    waiting: asyncio.Task[None] | None = None


class _Refused(ValueError):
    """A request whose parameters are not those of its method."""


class _Unknown(Exception):
    """A method that this server does not have."""


class _OwnFault(Exception):
    """The failure of a function behind a request, whatever it was."""


class _OutOfOrder(Exception):
    """A request before the session's start or after its end."""


@dataclass(slots=True)
class EditorServer:
    """One client's server. `send` takes each message for it.

    Args:
        pause_s: nobody has typed for so long: the text and its types are looked at.
        full_s: and for so long: all is.
    """

    send: Callable[[dict[str, Any]], None]
    version: str = ""
    pause_s: float = 0.2
    full_s: float = 1.0
    exit_code: int | None = None
    """Set once the client has asked the server to end: 0 after `shutdown`, 1 without it."""
    _documents: dict[str, _Document] = field(default_factory=dict)
    _validator: Validator = field(default_factory=Validator)
    _is_initialised: bool = False
    _is_shut: bool = False
    _warming: asyncio.Task[Any] | None = None

    async def take(self, message: dict[str, Any] | Unreadable) -> None:
        """Answers one message; never raises for what a client sends."""
        if isinstance(message, Unreadable):
            self._fail(None, message.code, str(message))
            return
        method, number = message.get("method"), message.get("id")
        if not isinstance(method, str):
            if "result" not in message and "error" not in message:  # else it answers what was never asked
                self._fail(number, INVALID_REQUEST, "a message without a method")
            return
        params = message.get("params")
        try:
            result = await self._called(method, params if isinstance(params, dict) else {}, is_request="id" in message)
        except _Unknown:
            if "id" in message:
                self._fail(number, NOT_FOUND, f"no method '{method}'")
            return
        except _OutOfOrder:
            code = INVALID_REQUEST if self._is_shut else NOT_INITIALISED
            self._fail(number, code, "'initialize' comes first, and nothing after 'shutdown'")
            return
        except (_Refused, KeyError, TypeError, IndexError, AttributeError) as error:
            self._fail(number, INVALID_PARAMS, f"{method}: {error!r}", is_told="id" in message)
            return
        except Exception as error:  # one request that fails must not end the editor's session
            self._tell(method, error)
            self._fail(number, INTERNAL, f"{method}: {type(error).__name__}: {error}", is_told="id" in message)
            return
        if "id" in message:
            self.send({"jsonrpc": "2.0", "id": number, "result": result})

    async def aclose(self) -> None:
        """Ends all that still runs."""
        for document in self._documents.values():
            await cancel_all(document.waiting)
        await cancel_all(self._warming)
        self._documents.clear()
        await self._validator.aclose()

    def _fail(self, number: Any, code: int, said: str, *, is_told: bool = True) -> None:
        if is_told:
            self.send({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": said}})

    async def _called(self, method: str, params: dict[str, Any], *, is_request: bool) -> Any:
        if method == "exit":
            self.exit_code = 0 if self._is_shut else 1
            return None
        if method == "initialize":
            self._is_initialised = True
            return {"capabilities": _CAPABILITIES, "serverInfo": {"name": "rlenv", "version": self.version}}
        if is_request and (not self._is_initialised or self._is_shut):
            raise _OutOfOrder
        if method == "shutdown":
            self._is_shut = True
            return None
        handler = {
            "textDocument/didOpen": self._opened,
            "textDocument/didChange": self._changed,
            "textDocument/didSave": self._saved,
            "textDocument/didClose": self._closed,
            "textDocument/completion": self._complete,
            "textDocument/hover": self._hover,
            "textDocument/documentSymbol": self._outline,
        }.get(method)
        if is_request and handler is not None and len(self._documents[params["textDocument"]["uri"]].text) > MAX_TEXT:
            return None  # the faults say why
        if handler is not None:
            called: Callable[[dict[str, Any]], Awaitable[Any]] = handler
            return await called(params)
        if method == "initialized":
            # The first completion would wait for the schema.
            self._warming = asyncio.create_task(asyncio.to_thread(shapes_at, {}, ()))
        elif is_request:
            raise _Unknown
        return None

    async def _opened(self, params: dict[str, Any]) -> None:
        given = params["textDocument"]
        uri, text = given["uri"], given["text"]
        if not isinstance(uri, str) or not isinstance(text, str):
            raise _Refused("expected a uri and a text")
        await self._forget(uri)
        self._documents[uri] = _Document(_path_of(uri), text, given.get("version"))
        await self._look(uri, 0.0, self.full_s)

    async def _changed(self, params: dict[str, Any]) -> None:
        uri = params["textDocument"]["uri"]
        document = self._documents[uri]
        text = document.text
        for change in params["contentChanges"]:
            text = _after(text, change)
        document.text, document.version = text, params["textDocument"].get("version")
        self._validator.stop(str(document.path))
        await self._look(uri, self.pause_s, self.full_s)

    async def _saved(self, params: dict[str, Any]) -> None:
        await self._look(params["textDocument"]["uri"], 0.0, 0.0)

    async def _closed(self, params: dict[str, Any]) -> None:
        uri = params["textDocument"]["uri"]
        await self._forget(uri)
        self._notify("textDocument/publishDiagnostics", {"uri": uri, "diagnostics": []})

    async def _forget(self, uri: str) -> None:
        document = self._documents.pop(uri, None)
        if document is not None:
            await cancel_all(document.waiting)
            self._validator.stop(str(document.path))

    async def _look(self, uri: str, pause_s: float, full_s: float) -> None:
        document = self._documents[uri]
        await cancel_all(document.waiting)
        document.waiting = asyncio.create_task(self._told(self._looked(uri, document, pause_s, full_s)))

    async def _told(self, looking: Coroutine[Any, Any, None]) -> None:
        """Nobody asks such a task how it ended: what it fails with is said here, and the next change starts another."""
        try:
            await looking
        except ConnectionError:  # the client is gone, and whoever reads from it ends the server
            return
        except Exception as error:
            self._tell("looking for faults", error)

    def _tell(self, what: str, error: Exception) -> None:
        """Says a fault of this server's own: in the editor's log, and on standard error with the traceback."""
        _log.error("%s failed", what, exc_info=error)
        said = f"rlenv: {what} failed, which is a fault of rlenv's own: {type(error).__name__}: {error}"
        self._notify("window/logMessage", {"type": _ERROR, "message": said})

    async def _looked(self, uri: str, document: _Document, pause_s: float, full_s: float) -> None:
        await asyncio.sleep(pause_s)
        text, path = document.text, str(document.path)
        quick = await asyncio.to_thread(lambda: marks(diagnose(text, path=path), text, path=path))
        places = EditorPlaces(text[:MAX_TEXT])
        # What the last validation found stays until the next one, where its line still reads the same.
        kept = [mark for mark in document.full if mark.quote == places.lines.line(mark.line) and mark not in quick]
        self._publish(uri, document, [*quick, *kept], places)
        await asyncio.sleep(max(full_s - pause_s, 0.0))
        found = await self._validator.validate(text, path=path)
        if found is not None:
            document.full = marks(found, text, path=path)
            self._publish(uri, document, document.full, places)

    def _publish(self, uri: str, document: _Document, found: Sequence[Mark], places: EditorPlaces) -> None:
        diagnostics = [
            {
                "range": _range(places, mark.line, mark.column, mark.end_line, mark.end_column),
                "severity": 1 if mark.level == "fault" else 2,
                "source": "rlenv",
                "message": f"{mark.message}; {mark.hint}" if mark.hint else mark.message,
            }
            for mark in found
        ]
        params: dict[str, Any] = {"uri": uri, "diagnostics": diagnostics}
        if document.version is not None:
            params["version"] = document.version
        self._notify("textDocument/publishDiagnostics", params)

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def _complete(self, params: dict[str, Any]) -> dict[str, Any]:
        document = self._documents[params["textDocument"]["uri"]]
        places = EditorPlaces(document.text)
        line, column = places.given(*_position(params["position"]))
        found = await _found(complete, document.text, line, column, path=document.path)
        replaced = _range(places, found.line, found.column, line, column)
        items = [
            {
                "label": item.label,
                "kind": _ITEM_KINDS[item.kind],
                "detail": item.detail,
                "documentation": item.doc,
                "sortText": f"{rank:04d}",
                "textEdit": {"range": replaced, "newText": item.insert},
            }
            for rank, item in enumerate(found.items)
        ]
        return {"isIncomplete": False, "items": items}

    async def _hover(self, params: dict[str, Any]) -> dict[str, Any] | None:
        document = self._documents[params["textDocument"]["uri"]]
        places = EditorPlaces(document.text)
        line, column = places.given(*_position(params["position"]))
        found = await _found(hover, document.text, line, column, path=document.path)
        if found is None:
            return None
        where = _range(places, found.line, found.column, found.line, found.end_column)
        return {"contents": {"kind": "markdown", "value": found.markdown}, "range": where}

    async def _outline(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        document = self._documents[params["textDocument"]["uri"]]
        places = EditorPlaces(document.text)
        return [_symbol(one, places, 0) for one in await _found(outline, document.text)]


async def _found(function: Callable[..., _T], *args: Any, **named: Any) -> _T:
    """The result of a function beside this file, which raises nothing for the content of a text."""
    try:
        return await asyncio.to_thread(function, *args, **named)
    except Exception as error:  # a TypeError of its own says nothing of what the client sent
        raise _OwnFault(f"{type(error).__name__}: {error}") from error


def _position(position: dict[str, Any]) -> tuple[int, int]:
    line, character = position["line"], position["character"]
    if type(line) is not int or type(character) is not int:
        raise _Refused("a position has a line and a character")
    return line, character


def _range(places: EditorPlaces, line: int, column: int, end_line: int, end_column: int) -> dict[str, Any]:
    start, end = places.at(line, column), places.at(end_line, end_column)
    return {"start": {"line": start[0], "character": start[1]}, "end": {"line": end[0], "character": end[1]}}


def _after(text: str, change: dict[str, Any]) -> str:
    """A text after one change of it."""
    new = change["text"]
    if not isinstance(new, str):
        raise _Refused("a change has a text")
    if change.get("range") is None:
        return new
    places = EditorPlaces(text)
    start, end = (places.offset(*_position(change["range"][key])) for key in ("start", "end"))
    return text[:start] + new + text[max(start, end) :]


def _symbol(symbol: Symbol, places: EditorPlaces, depth: int) -> dict[str, Any]:
    return {
        "name": symbol.name,
        "detail": symbol.detail,
        "kind": _SYMBOLS[min(depth, len(_SYMBOLS) - 1)],
        "range": _range(places, symbol.line, symbol.column, symbol.end_line, symbol.end_column),
        "selectionRange": _range(places, symbol.line, symbol.column, symbol.line, symbol.name_end),
        "children": [_symbol(child, places, depth + 1) for child in symbol.children],
    }


def _path_of(uri: str) -> Path:
    """The file of a `file:` address; a text that was never saved stands in the working directory."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        path = unquote(parts.path)
        return Path(path[1:] if path[2:3] == ":" else path)
    return Path(f"{Path(unquote(parts.path)).name or 'untitled'}")


MAX_BYTES: Final = 64 * 1024 * 1024
"""A longer message is passed over."""

PARSE: Final = -32700
INVALID_REQUEST: Final = -32600
NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
NOT_INITIALISED: Final = -32002

_MAX_HEADER: Final = 8192


class Unreadable(ValueError):
    """A message that is none; `code` is the error's in JSON-RPC."""

    def __init__(self, message: str, *, code: int) -> None:
        self.code = code
        super().__init__(message)


def frame(message: dict[str, Any]) -> bytes:
    """A message with its header. Lone surrogates, which a client may send, are escaped."""
    try:
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def messages(read_line: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[dict[str, Any] | Unreadable]:
    """The messages of a stream until it ends; one that cannot be read stands as what is wrong with it.

    Args:
        read_line: reads one line, of at most so many bytes.
        read: reads so many bytes, fewer only at the end.
    """
    while True:
        length: int | None = None
        while line := read_line(_MAX_HEADER):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value) if value.strip().isdigit() and len(value) < 20 else None
            if not line.strip():
                break
        else:
            return
        if length is None:
            yield Unreadable("a header without a Content-Length", code=PARSE)
        elif length > MAX_BYTES:
            for _ in range(length // MAX_BYTES):
                read(MAX_BYTES)
            read(length % MAX_BYTES)
            yield Unreadable(f"a message of {length} bytes; at most {MAX_BYTES} are read", code=INVALID_REQUEST)
        else:
            body = read(length)
            if len(body) < length:
                return
            yield _parsed(body)


def _parsed(body: bytes) -> dict[str, Any] | Unreadable:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"not JSON: {error}", code=PARSE)
    return Unreadable("expected an object", code=INVALID_REQUEST) if not isinstance(message, dict) else message
