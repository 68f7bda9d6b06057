"""One HTTP exchange: sent, bounded while it is read, and turned into text or a failure for the model."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from rlenv.errors import ToolFailed
from rlenv.secrets import redact
from rlenv.tools.base import ToolContext

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

__all__ = ["Answer", "Request", "exchange"]

_MAX_REDIRECTS = 5
_ERROR_CHARS = 300
_ERROR_BYTES = 4_096
_TEXT_TYPES = re.compile(r"text/|application/(.*\+)?(json|xml|javascript|x-ndjson|yaml|x-www-form-urlencoded)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent; `url` is encoded already."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    statuses: frozenset[int]
    """The statuses that count as an answer; empty for 200 to 299."""
    follows_redirects: bool
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `is_cut` where the body went on after `max_bytes`."""

    status: int
    content_type: str
    text: str
    is_cut: bool


@asynccontextmanager
async def _session() -> AsyncIterator[ClientSession]:
    import aiohttp

    # No cookies, since an environment's episodes share the session; no proxies or credentials of the user's; no
    # decompression, since a few bytes may stand for gigabytes; time is the executor's.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "rlenv"},
    ) as session:
        yield session


async def exchange(request: Request, context: ToolContext) -> Answer:
    """Sends `request` over the environment's session.

    Raises:
        ToolFailed: the server refused, failed, was not reached or sent what is no text. `reason` is `unavailable`
            where trying again may help. The text names no address.
    """
    import aiohttp

    for name, value in request.headers.items():
        if _CONTROL.search(value):
            raise ToolFailed(f"the header {name} would hold a control character", reason="bad_arguments")
    session = await context.shared().get("http", _session)
    try:
        return await _follow(session, request)
    except aiohttp.ClientConnectorDNSError as error:
        raise ToolFailed("the server's name is not known", reason="unavailable", retryable=True) from error
    except aiohttp.ClientConnectorError as error:
        raise ToolFailed("the server cannot be reached", reason="unavailable", retryable=True) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError) as error:
        raise ToolFailed(
            "the server closed the connection before its answer ended", reason="unavailable", retryable=True
        ) from error
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        raise ToolFailed("the server's answer is not HTTP", reason="unavailable", retryable=True) from error


async def _follow(session: ClientSession, request: Request) -> Answer:
    from yarl import URL

    url = URL(request.url, encoded=True)
    for _ in range(_MAX_REDIRECTS):
        async with session.request(
            request.method, url, headers=request.headers, data=request.body, allow_redirects=False
        ) as response:
            if not (request.follows_redirects and response.status in (301, 302, 303, 307, 308)):
                return await _read(response, request)
            url = _redirected(url, response.headers.get("Location", ""))
    raise ToolFailed(f"the server redirected more than {_MAX_REDIRECTS} times")


def _redirected(url: URL, location: str) -> URL:
    from yarl import URL

    try:
        to = url.join(URL(location))
        is_same = to.origin() == url.origin()
    except ValueError as error:
        raise ToolFailed("the server redirected to what is no address") from error
    if not is_same:  # headers may hold secrets that are meant for this server only
        raise ToolFailed("the server redirected to another server, which is not followed")
    return to


async def _read(response: ClientResponse, request: Request) -> Answer:
    status = response.status
    is_expected = status in request.statuses if request.statuses else 200 <= status < 300
    if not is_expected:
        said = await _body(response, _ERROR_BYTES)
        raise ToolFailed(
            _refusal(response, said[0]), reason=_reason(status), retryable=_reason(status) == "unavailable"
        )
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ToolFailed("the server sent a compressed answer that was not asked for")
    content_type = response.content_type
    if response.headers.get("Content-Type") and not _TEXT_TYPES.match(content_type):
        raise ToolFailed(f"the server answered with {content_type[:60]}, which is no text")
    body, is_cut = await _body(response, request.max_bytes)
    return Answer(status, content_type, _decoded(response, body), is_cut)


async def _body(response: ClientResponse, limit: int) -> tuple[bytes, bool]:
    """The body's first `limit` bytes, and whether it goes on; no more than one piece beyond them is ever held."""
    pieces: list[bytes] = []
    size = 0
    while size <= limit:
        piece = await response.content.readany()
        if not piece:
            return b"".join(pieces), False
        pieces.append(piece)
        size += len(piece)
    response.close()  # the rest is not worth reading, so the connection is not used again
    return b"".join(pieces)[:limit], True


def _decoded(response: ClientResponse, body: bytes) -> str:
    try:
        return body.decode(response.charset or "utf-8", errors="replace")
    except LookupError:  # a charset that Python does not know
        return body.decode("utf-8", errors="replace")


def _refusal(response: ClientResponse, body: bytes) -> str:
    try:
        phrase = " " + HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    text = f"the server answered {response.status}{phrase}"
    content_type = response.content_type
    if _TEXT_TYPES.match(content_type) and content_type != "text/html":
        said = redact(" ".join(_decoded(response, body).split()))
        if said and said != phrase.strip():
            text += ": " + (said if len(said) <= _ERROR_CHARS else said[: _ERROR_CHARS - 1] + "…")
    return text


def _reason(status: int) -> str:
    return "unavailable" if status >= 500 or status in (408, 425, 429) else "failed"
