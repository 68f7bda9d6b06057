"""Requests of clients over HTTP, bounded before they are believed: who asks, what a body holds, how long it takes."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from rlenv._base.strict_json import read_sent
from rlenv.errors import RlenvError
from rlenv.hosts.wire import to_json

MOST_BYTES: Final = 16_000_000
"""The most bytes of a request's body."""
_MOST_VALUES: Final = 400_000  # hosts of trainers send a long context's ids along, and log-probabilities
_LARGE_BYTES: Final = 256_000
"""A longer body is read in a thread, and not in one pass of the loop with what is done with it."""
_SWEEP_S: Final = 5.0
_SILENT_S: Final = 30.0
"""A connection without a whole request is closed after so long."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard_requests(
    token: str,
    *,
    is_local_only: bool,
    is_free: Callable[[web.Request], bool],
    refusal: Callable[[int, str], web.Response],
    status_of: Callable[[Exception], int],
) -> Any:
    """The middleware before every request: the token, names and pages of other machines, and errors as JSON.

    Args:
        token: what `Authorization: Bearer` or `?token=` must hold; "" asks for none.
        is_local_only: only this machine's own names are answered; a page's own name may lead here (DNS rebinding).
        is_free: true for requests that need no token.
        refusal: an error's answer, of its status and text; `status_of` is that of one which a handler raises.
    """

    def admit(request: web.Request) -> None:
        origin = request.headers.get("Origin")
        page = request.host if origin is None else urlsplit(origin).netloc
        if is_local_only and not (is_local(request.host) and is_local(page)):
            raise web.HTTPForbidden(text="this server answers to this machine's own names alone")
        if page != request.host and not (is_local(request.host) and is_local(page)):
            raise web.HTTPForbidden(text="a page of another site may not ask this server")
        shown = bearer_of(request) or request.query.get("token", "")
        if token and not is_free(request) and not is_same(shown, token):
            raise web.HTTPUnauthorized(text="the token is missing or wrong; send Authorization: Bearer TOKEN")

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            admit(request)
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            told = refusal(error.status, error.text or error.reason)
        except (ValueError, RlenvError) as error:
            told = refusal(status_of(error), str(error))
        except ConnectionError:  # the client has left before its request was whole: nobody reads this
            told = refusal(400, "the request did not come whole")
        if told.status == 503:
            told.headers["Retry-After"] = "1"
        return told

    return guard


def answer(value: Any, *, status: int = 200) -> web.Response:
    """A response of JSON, whatever a policy or a tool wrote into it."""
    return web.Response(text=to_json(value), status=status, content_type="application/json")


def bearer_of(request: web.Request) -> str:
    """The token of a request's `Authorization`, "" without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_same(one: str, other: str) -> bool:
    """True for equal texts, in a time that does not tell how far they are equal."""
    return hmac.compare_digest(one.encode(errors="surrogatepass"), other.encode(errors="surrogatepass"))


async def read_of(request: web.Request) -> bytes:
    """A request's body; raises HTTPException where it does not come in time, or is beyond `client_max_size`."""
    try:
        return await asyncio.wait_for(request.read(), _SILENT_S)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {_SILENT_S:g} s") from error


async def json_of(request: web.Request, *, max_values: int = _MOST_VALUES) -> dict[str, Any]:
    """The object in a request's body, {} where it has none; raises HTTPException for all else, as `read_of` does."""
    raw = await read_of(request)
    if not raw.strip():
        return {}
    read = partial(read_sent, raw, max_bytes=len(raw), max_values=max_values)
    try:
        body = await asyncio.to_thread(read) if len(raw) > _LARGE_BYTES else read()
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text=f"the body is a {type(body).__name__}; expected a JSON object")
    return body


def is_local(host: str) -> bool:
    """True for this machine's own names, with or without a port: a page that was rebound shows its own."""
    name = host.partition(":")[0] if host.count(":") == 1 else host.rpartition("]")[0].lstrip("[") or host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def close_silent(runner: web.AppRunner) -> None:
    """Closes, as long as it runs, connections that have sent no whole request for a while: aiohttp waits forever."""
    silent = Silent()
    while True:
        await asyncio.sleep(_SWEEP_S)
        for one in silent.since(runner.server.connections if runner.server else (), asyncio.get_running_loop().time()):
            one.force_close()


class Silent:
    """Knows of connections since when they have sent nothing; one that has had a request meanwhile begins anew."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, int], float] = {}

    def since(self, connections: Iterable[Any], now: float) -> list[Any]:
        """The connections that have been silent for too long by now."""
        idle = [(one, one._request_count) for one in connections if one._current_request is None]
        self._seen = {key: self._seen.get(key, now) for key in idle}
        return [one for (one, _), begun in self._seen.items() if now - begun >= _SILENT_S]
