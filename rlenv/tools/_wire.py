"""One HTTP exchange: sent, bounded while it is read, and turned into text or a failure for the model."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import aiohttp  # by whoever names a server, when the spec is compiled: it takes longer than one pass of the loop may
from yarl import URL

from rlenv._base.bounded import cut_end
from rlenv.concurrency.lanes import check_going_out
from rlenv.endpoints import body_within
from rlenv.endpoints.account import seconds_of
from rlenv.errors import ToolFailed
from rlenv.secrets import margin, redact, redact_within
from rlenv.tools.base import ToolContext, asked_again

_MAX_REDIRECTS = 5
_TOGETHER_S = 0.05
_ERROR_CHARS = 300
_ERROR_BYTES = 4_096
_TEXT_TYPES = re.compile(r"text/|application/(.*\+)?(json|xml|javascript|x-ndjson|yaml|x-www-form-urlencoded)")
_CHARSET = re.compile(
    r"utf-?(8|16|32)([_-]?[lb]e)?|(us-)?ascii|(iso-?8859|latin)[_-]?\d{1,2}|(windows|cp)-?\d{3,4}|koi8-[ru]"
    r"|gb(k|2312|18030)|big5|(shift|euc)[_-](jis|jp|kr)",
    re.IGNORECASE,
)
_RETRIED = frozenset({408, 425, 429, *range(500, 600)})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Breaks:
    """The connections to one server that broke while it had a request."""

    def __init__(self) -> None:
        self._newest = 0
        self._at = float("-inf")

    async def is_alone(self) -> bool:
        """True if no other connection broke together with one that breaks now: a server that dies takes all along."""
        now = time.monotonic()
        has_others = now - self._at < _TOGETHER_S
        self._newest, self._at = self._newest + 1, now
        own = self._newest
        await asyncio.sleep(_TOGETHER_S)
        return not has_others and self._newest == own


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request; `url` is encoded already."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    statuses: frozenset[int]
    """The statuses that count as an answer; empty for 200 to 299."""
    follows_redirects: bool
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response: `is_cut` where the body went on after `max_bytes`."""

    status: int
    content_type: str
    text: str
    is_cut: bool


@asynccontextmanager
async def _open_session() -> AsyncIterator[aiohttp.ClientSession]:
    # No cookies, since an environment's episodes share the session; a connection for each request, since what a server
    # says behind one answer, which a call may bring about, would be the answer to the next; no proxies or credentials
    # of the user's; no decompression, since a few bytes may stand for gigabytes; time is the executor's.
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        trust_env=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "rlenv"},
    ) as session:
        # Else it sends a GET again by itself where the connection broke. A server that the request felled is not there
        # then, and what is told is that nobody was, and not that it broke.
        session._retry_connection = False
        yield session


async def exchange(request: Request, context: ToolContext) -> Response:
    """Sends `request` over the environment's session.

    Raises:
        ToolFailed: the server refused, failed, was not reached or sent what is no text. `reason` is `unavailable`
            where no connection came about, and `disconnected` where one broke after the request was sent. The text
            names no address.
    """
    check_going_out("a server")
    for name, value in request.headers.items():
        if _CONTROL.search(value):
            raise ToolFailed(f"the header {name} would hold a control character", reason="bad_arguments")
    session = await context.shared().get("http", _open_session)
    try:
        return await _follow_redirects(session, request)
    except aiohttp.ClientConnectorDNSError as error:
        raise ToolFailed("the server's name is not known", reason="unavailable", retryable=True) from error
    except aiohttp.ClientConnectorError as error:
        raise ToolFailed("the server cannot be reached", reason="unavailable", retryable=True) from error
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError) as error:
        breaks = context.shared().keep(("http breaks", urlsplit(request.url).netloc), Breaks)
        raise ToolFailed(
            "the server closed the connection before its answer ended",
            reason="disconnected" if asked_again.get() or await breaks.is_alone() else "server_died",
            retryable=True,
        ) from error
    except (aiohttp.ClientError, OSError, UnicodeError) as error:
        raise ToolFailed("the server's answer is not HTTP", reason="server_error", retryable=True) from error


async def _follow_redirects(session: aiohttp.ClientSession, request: Request) -> Response:
    url = URL(request.url, encoded=True)
    for _ in range(_MAX_REDIRECTS):
        async with session.request(
            request.method, url, headers=request.headers, data=request.body, allow_redirects=False
        ) as response:
            if not (request.follows_redirects and response.status in (301, 302, 303, 307, 308)):
                return await _read_response(response, request)
            url = _redirect_target(url, response.headers.get("Location", ""))
    raise ToolFailed(f"the server redirected more than {_MAX_REDIRECTS} times", reason="server_error")


def _redirect_target(url: URL, location: str) -> URL:
    try:
        to = url.join(URL(location))
        is_same = to.origin() == url.origin()
    except ValueError as error:
        raise ToolFailed("the server redirected to what is no address", reason="server_error") from error
    if not is_same:  # headers may hold secrets that are meant for this server only
        raise ToolFailed("the server redirected to another server, which is not followed", reason="server_error")
    return to


async def _read_response(response: aiohttp.ClientResponse, request: Request) -> Response:
    status = response.status
    is_expected = status in request.statuses if request.statuses else 200 <= status < 300
    if not is_expected:
        said = await body_within(response, _ERROR_BYTES + margin())
        text, wait_s = _refusal_text(response, said[0]), seconds_of(response.headers.get("Retry-After"))
        raise ToolFailed(text, reason=_refusal_reason(status), retryable=status in _RETRIED, wait_s=wait_s)
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ToolFailed("the server sent a compressed answer that was not asked for", reason="server_error")
    content_type = response.content_type
    if response.headers.get("Content-Type") and not _TEXT_TYPES.match(content_type):
        raise ToolFailed(f"the server answered with {content_type[:60]}, which is no text", reason="server_error")
    # A secret that stands across the limit is found whole; what the piece that was read ends with may be half of one.
    body, goes_on = await body_within(response, request.max_bytes + margin())
    text = _decode_body(response, body)
    is_cut = goes_on or len(body) > request.max_bytes
    if is_cut:
        text = redact(text)
        text = text[: max(len(text) - margin(), 0)] if goes_on else text
        text = text.encode()[: request.max_bytes].decode(errors="ignore")
    return Response(status, content_type, text, is_cut)


def _decode_body(response: aiohttp.ClientResponse, body: bytes) -> str:
    charset = response.charset or "utf-8"
    try:
        # Python knows codecs that are no charsets, and takes the square of the length for some of them.
        return body.decode(charset if _CHARSET.fullmatch(charset) else "utf-8", errors="replace")
    except LookupError:  # a charset that Python does not know
        return body.decode("utf-8", errors="replace")


def _refusal_text(response: aiohttp.ClientResponse, body: bytes) -> str:
    try:
        phrase = " " + HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    text = f"the server answered {response.status}{phrase}"
    content_type = response.content_type
    if _TEXT_TYPES.match(content_type) and content_type != "text/html":
        said = " ".join(redact_within(_decode_body(response, body), _ERROR_BYTES // 4).split())
        if said and said != phrase.strip():
            text += ": " + cut_end(said, _ERROR_CHARS)
    return text


def _refusal_reason(status: int) -> str:
    if status == 429:
        return "rate_limited"
    # Also 502 to 504: what is behind a gateway may have given up on this very request. And what is asked of whoever
    # wrote the spec and not of the policy: a key that has run out, a bill, a proxy.
    is_clear = 400 <= status < 500 and status not in (401, 402, 407, 408, 425)
    return "refused" if is_clear else "server_error"
