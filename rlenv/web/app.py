"""The viewer's server: the API behind its guard, and the front end as the files that it was built into."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from aiohttp import web

from rlenv import __version__
from rlenv.web import api, figures, live
from rlenv.web.answers import BLOBS, READ_ONLY, SHELF, VERSION
from rlenv.web.episode import Blobs
from rlenv.web.guard import NONCE, Guard, refusal
from rlenv.web.shelf import Shelf

__all__ = ["DIST", "application", "serve"]

DIST: Final = Path(__file__).with_name("dist")
_MAX_BODY: Final = 8 << 20
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_UNBUILT: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>rlenv</title>"
    "<p>The front end is not built in this checkout; its API answers below /api.</p></html>"
)


def application(
    roots: Sequence[Path] | Shelf, *, guard: Guard, read_only: bool = False, dist: Path = DIST
) -> web.Application:
    """The viewer of the runs below some folders.

    Args:
        roots: the folders, or a shelf of their runs that is looked through already.
        read_only: without the routes that write, run or stop something.
        dist: the built front end: `index.html`, in which `__NONCE__` is replaced, and the files beside it.
    """
    app = web.Application(middlewares=[guard.middleware()], client_max_size=_MAX_BODY)
    app.on_response_prepare.append(guard.mark)
    app[SHELF] = roots if isinstance(roots, Shelf) else Shelf(roots)
    app[BLOBS] = Blobs()
    app[READ_ONLY] = read_only
    app[VERSION] = __version__
    for part in (api, figures, live):
        part.add_routes(app)
    if not read_only:
        from rlenv.web import workbench  # the half of rlenv that plays episodes

        app[workbench.ROOTS] = tuple(root for root in app[SHELF].roots if root.is_dir())
        workbench.add_routes(app)
    app.add_routes([web.get("/{path:.*}", _page(dist))])
    return app


def _page(dist: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The front end's files, read once; every other path is the page itself, which reads it."""
    files = {path.relative_to(dist).as_posix(): path for path in sorted(dist.rglob("*")) if path.is_file()}

    async def page(request: web.Request) -> web.StreamResponse:
        name = request.match_info["path"]
        if name.startswith(("api/", "blob/")):
            return refusal(404, f"there is no {request.path}")
        if name in files and name != "index.html":
            kind = _TYPES.get(files[name].suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
            headers = {"Cache-Control": "no-cache"}
            return web.Response(body=files[name].read_bytes(), content_type=kind, headers=headers)
        whole = files["index.html"].read_text(encoding="utf-8") if "index.html" in files else _UNBUILT
        return web.Response(text=whole.replace("__NONCE__", NONCE.get()), content_type="text/html")

    return page


async def serve(
    app: web.Application, *, host: str, port: int, stopped: asyncio.Event, on_ready: Callable[[str, int], None]
) -> None:
    """Serves until `stopped` is set.

    Args:
        port: 0 takes a free one.
        on_ready: called with the address and the port once requests are taken.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        on_ready(*runner.addresses[0][:2])
        await stopped.wait()
    finally:
        await runner.cleanup()
