"""Access to the viewer: one token, this machine's names, and pages of its own alone.

Other users of a machine reach its loopback addresses, and so does any page in a browser, by a name that it has made
resolve to them. So every request needs the cookie that the printed link gives, a Host that is meant (DNS rebinding),
and to change something an Origin that is the viewer's own and a header that no form can send.

How the viewer answers: work in a thread under the run's lock, JSON that always encodes, faults with their place.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from rlenv._base.bounded import sendable
from rlenv.errors import RlenvError, UsageError
from rlenv.hosts.http import is_same
from rlenv.runs.figures.query import QueryFault
from rlenv.web.episode import ImageCache
from rlenv.web.shelf import OpenRun, Shelf

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""The policy of every answer; `nonce` is new for each page."""

NONCE: Final[ContextVar[str]] = ContextVar("rlenv-nonce", default="")
"""That of the request which is being answered."""

_HOST: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_READS: Final = ("GET", "HEAD")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refusal(status: int, error: str, **more: object) -> web.Response:
    """An answer that says what is wrong: `{"error": …}`."""
    return web.json_response({"error": error, **more}, status=status)


@dataclass(slots=True, eq=False)
class Guard:
    """The checks before every request, and the headers of every answer.

    Args:
        hosts: names beside those of loopback that a request may call this server by, without port.
    """

    hosts: tuple[str, ...] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _session: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _tickets: set[str] = field(default_factory=set)

    def ticket(self) -> str:
        """A token for one use: what opens a browser stands in the list of processes, which others can read."""
        ticket = secrets.token_urlsafe(24)
        self._tickets.add(ticket)
        return ticket

    def middleware(self) -> Middleware:
        """The middleware of the `aiohttp` application."""

        @web.middleware
        async def guard_request(request: web.Request, handler: _Handler) -> web.StreamResponse:
            NONCE.set(secrets.token_urlsafe(16))
            refused = self._let_in(request) or self._check_request(request)
            try:
                answer = await handler(request) if refused is None else refused
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                answer = refusal(error.status, f"{error.reason}: {request.method} {request.path}")
            if not answer.prepared:
                self._set_headers(answer)
            return answer

        return guard_request

    def _set_headers(self, answer: web.StreamResponse) -> None:
        for name, value in {**_HEADERS, "Content-Security-Policy": CSP.format(nonce=NONCE.get())}.items():
            answer.headers.setdefault(name, value)
        answer.headers.setdefault("Cache-Control", "no-store")

    async def mark(self, request: web.Request, answer: web.StreamResponse) -> None:
        """For `on_response_prepare`: answers that are streamed are prepared before they come back here."""
        self._set_headers(answer)

    def _let_in(self, request: web.Request) -> web.Response | None:
        """The way in: the printed link gives the cookie and leads on without the token."""
        given = request.query.get("token")
        if given is None or request.method != "GET" or not self._is_meant(request):
            return None
        is_ticket = any(is_same(given, ticket) for ticket in self._tickets)
        if not is_ticket and not is_same(given, self.token):
            return refusal(403, "the token of this link is not this server's: open the link that `rlenv view` printed")
        self._tickets.discard(given)
        parts = request.rel_url.raw_query_string.split("&")
        rest = "&".join(part for part in parts if unquote_plus(part.partition("=")[0]) != "token")
        # A path of two slashes would be another host's, and browsers take a backslash for one.
        place = "/" + request.rel_url.raw_path.lstrip("/\\") + (f"?{rest}" if rest else "")
        answer = web.Response(status=303, headers={"Location": place})
        answer.set_cookie(_cookie_name(request), self._session, httponly=True, samesite="Strict", path="/")
        return answer

    def _check_request(self, request: web.Request) -> web.Response | None:
        """The refusal of a request, None where it is allowed."""
        if not self._is_meant(request):
            hint = "name it with --allow-host if it is meant"
            return refusal(403, f"the host '{request.host[:100]}' is not this server's; {hint}")
        origin = request.headers.get("Origin")
        if request.method not in _READS or request.headers.get("Sec-Fetch-Site") == "cross-site":
            if origin is not None and origin != f"{request.scheme}://{request.host}":
                return refusal(403, "a page of another origin may not ask for this")
            if request.method not in _READS and (origin is None or request.headers.get("X-Rlenv") != "1"):
                return refusal(403, "a change needs the header X-Rlenv: 1 and the Origin of the viewer's page")
        given = request.cookies.get(_cookie_name(request), "")
        if not is_same(given, self._session):
            return refusal(401, "open the link that `rlenv view` printed: it holds the token that this page needs")
        return None

    def _is_meant(self, request: web.Request) -> bool:
        found = _HOST.fullmatch(request.headers.get("Host", "").lower())
        return found is not None and found[1] in (*_LOOPBACK, *self.hosts)


def _cookie_name(request: web.Request) -> str:
    """Cookies are not kept apart by port: another viewer of the same host has its own.

    Its name has the machine's too: viewers of two machines are both localhost's where their ports are forwarded.
    """
    port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
    return f"rlenv-{port}-{zlib.crc32(socket.gethostname().encode()):08x}"


SHELF = web.AppKey("shelf", Shelf)
BLOBS = web.AppKey("blobs", ImageCache)
READ_ONLY = web.AppKey("read_only", bool)
VERSION = web.AppKey("version", str)
_T = TypeVar("_T")


class Unconfirmed(UsageError):
    """The request is refused until the caller confirms it."""


def encode_json(value: Any) -> bytes:
    """JSON in UTF-8; what UTF-8 cannot hold becomes U+FFFD, and numbers that are not finite null."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=options)
    except TypeError:
        return orjson.dumps(sendable(value))


async def respond(of: Callable[[], Any], *, threads: Executor | None = None) -> web.Response:
    """The answer that a function computes, in a thread; what it refuses is told with its place.

    Args:
        threads: whose thread it is; one of those that all answers share otherwise.
    """
    try:
        body = await asyncio.get_running_loop().run_in_executor(threads, lambda: encode_json(of()))
    except QueryFault as fault:
        return refusal(400, str(fault), column=fault.column)
    except Unconfirmed as error:
        return refusal(409, str(error))
    except UsageError as error:
        return refusal(404, str(error))
    except (RlenvError, OSError) as error:
        return refusal(500, str(error))
    return web.Response(body=body, content_type="application/json")


async def with_run(request: web.Request, of: Callable[[OpenRun], Any]) -> web.Response:
    """The answer that a function computes of the run which the request names, alone with it."""

    def work() -> Any:
        run = request.app[SHELF].open(request.match_info["run"])
        with run.lock:
            return of(run)

    return await respond(work)


def query_number(request: web.Request, name: str, default: int, *, most: int) -> int:
    """A number of the request's query, from 0 to `most`.

    Raises:
        HTTPBadRequest: it is none.
    """
    given = request.query.get(name, "")
    if not given:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 18 or int(given) > most:
        raise web.HTTPBadRequest(reason=f"{name} is a number from 0 to {most}")
    return int(given)
