"""The viewer's server: the API behind its guard, and the front end as the files that it was built into.

What is sent while it happens: the state of a run that is being written, hits of a search, and the wish to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import mimetypes
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from rlenv import __version__
from rlenv.errors import RlenvError, UsageError
from rlenv.runs.figures.query import Hit, parse, search_records
from rlenv.runs.folder import STOP
from rlenv.runs.journal import object_at
from rlenv.web.api import add_routes
from rlenv.web.episode import ImageCache
from rlenv.web.guard import BLOBS, NONCE, READ_ONLY, SHELF, VERSION, Guard, encode_json, refusal, respond
from rlenv.web.shelf import OpenRun, Shelf

_EACH_S: Final = 1.0
_BEAT_S: Final = 15.0
_FRESH_S: Final = 30.0
_MOST_HITS: Final = 500
_BATCH_S: Final = 0.1
_WATCH_BYTES: Final = 1_000_000
_SEARCHERS: Final = 2
_THREADS: Final = web.AppKey("search_threads", ThreadPoolExecutor)
"""Those of searches, few and their own: many searches at once wait for each other and keep nothing else waiting."""


def add_live_routes(app: web.Application) -> None:
    """The routes of this module; without that which stops a run where the viewer only reads."""
    run = "/api/runs/{run}"
    app[_THREADS] = ThreadPoolExecutor(_SEARCHERS, thread_name_prefix="rlenv-search")
    app.on_cleanup.append(_end_searches)
    app.add_routes([web.get(f"{run}/events", _stream_events), web.get(f"{run}/search", _stream_hits)])
    if not app[READ_ONLY]:
        app.add_routes([web.post(f"{run}/stop", _stop_run)])


async def _end_searches(app: web.Application) -> None:
    app[_THREADS].shutdown(wait=False, cancel_futures=True)


async def _stop_run(request: web.Request) -> web.Response:
    """Leaves the word that a run looks for: it then ends as for Ctrl-C, on whatever host it is."""
    shelf, key = request.app[SHELF], request.match_info["run"]

    def stop() -> dict[str, Any]:
        path = shelf.path(key)
        if not path.is_dir():
            raise UsageError("a file of episodes is no run that could be stopped")
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(path / STOP, flags, 0o644))
        return {"stopped": True}

    return await respond(stop)


# Events


async def _stream_events(request: web.Request) -> web.StreamResponse:
    """Server-sent events (WHATWG HTML, 9.2): the state of a run, each second while something changed."""
    shelf, key = request.app[SHELF], request.match_info["run"]
    try:
        run = await asyncio.to_thread(shelf.open, key)
    except RlenvError as error:
        return refusal(404, str(error))
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    await answer.prepare(request)
    before, sent = b"", 0.0
    with contextlib.suppress(ConnectionResetError):
        while not _is_gone(request):
            state = encode_json(await asyncio.to_thread(state_of, run))
            now = time.monotonic()
            if state != before:
                await answer.write(b"data: " + state + b"\n\n")
                before, sent = state, now
            elif now - sent > _BEAT_S:
                await answer.write(b": still here\n\n")  # finds out whether anyone listens
                sent = now
            await asyncio.sleep(_EACH_S)
    return answer


def _is_gone(request: web.Request) -> bool:
    """True if nobody listens any more. Writing nothing, as a search without hits does, would not find it out."""
    return request.transport is None or request.transport.is_closing()


def state_of(run: OpenRun) -> dict[str, Any]:
    """The state of a run: its version, rows, last step and state, and its waits."""
    with run.lock:
        rows = run.rows()
        steps = rows.numbers("step")
        return {
            "version": rows.version,
            "rows": len(rows),
            "step": int(steps.max()) if len(steps) else 0,
            "state": run.info.state if run.info else "ended",
            "waits": _read_waits(run),
        }


def _read_waits(run: OpenRun) -> list[dict[str, Any]]:
    """The waits of a run's writers, from `watch/WRITER.json`; old ones are left out."""
    found: list[dict[str, Any]] = []
    for path in sorted((run.folder / "watch").glob("*.json")):
        try:
            if time.time() - path.stat().st_mtime > _FRESH_S:
                continue
        except OSError:
            continue  # removed just now
        waits = (object_at(path, most=_WATCH_BYTES) or {}).get("waits")
        found += [one for one in waits if isinstance(one, dict)] if isinstance(waits, list) else []
    return found


# Search


async def _stream_hits(request: web.Request) -> web.StreamResponse:
    """Hits as lines of JSON, as they are found; `where` (a query) says which episodes are looked through."""
    text, query = request.query.get("q", ""), request.query.get("where", "")
    shelf, key = request.app[SHELF], request.match_info["run"]
    begun: list[Iterator[list[Hit]]] = []

    def begin() -> dict[str, Any]:
        run = shelf.open(key)
        with run.lock:
            rows = run.rows()
            ids = None
            if query:
                ids = rows.table["id"].take(parse(query).places(rows)).to_pylist()
        found = search_records(_read_records(run, ids), text)
        first = next(found, None)
        begun.append(chain(() if first is None else [first], found))
        return {}

    threads = request.app[_THREADS]
    told = await respond(begin, threads=threads)
    if not begun:
        return told
    answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "X-Accel-Buffering": "no"})
    await answer.prepare(request)
    count, seen, is_whole = 0, 0, False
    with contextlib.suppress(ConnectionResetError):
        while not is_whole and count < _MOST_HITS and not _is_gone(request):
            hits, looked, is_whole = await asyncio.get_running_loop().run_in_executor(threads, _next_hits, begun[0])
            seen += looked
            is_whole = is_whole and len(hits) <= _MOST_HITS - count
            hits = hits[: _MOST_HITS - count]
            count += len(hits)
            await answer.write(b"".join(encode_json(dataclasses.asdict(hit)) + b"\n" for hit in hits))
        await answer.write(encode_json({"done": True, "episodes": seen, "hits": count, "whole": is_whole}) + b"\n")
    return answer


def _read_records(run: OpenRun, ids: list[str] | None) -> Iterator[tuple[str, bytes]]:
    """The records of a run, each read alone with it: a search must not keep the rest of the viewer waiting."""
    records = run.episodes.records(ids)
    while True:
        with run.lock:
            one = next(records, None)
        if one is None:
            return
        yield one


def _next_hits(found: Iterator[list[Hit]]) -> tuple[list[Hit], int, bool]:
    """The hits of a tenth of a second, how many episodes were looked through, and whether those were all."""
    hits: list[Hit] = []
    end, looked = time.monotonic() + _BATCH_S, 0
    for one in found:
        hits += one
        looked += 1
        if time.monotonic() > end:
            return hits, looked, False
    return hits, looked, True


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
    app[BLOBS] = ImageCache()
    app[READ_ONLY] = read_only
    app[VERSION] = __version__
    add_routes(app)
    add_live_routes(app)
    if not read_only:
        from rlenv.web import workbench  # the half of rlenv that plays episodes

        app[workbench.ROOTS] = tuple(root for root in app[SHELF].roots if root.is_dir())
        workbench.add_routes(app)
    app.add_routes([web.get("/{path:.*}", _page_handler(dist))])
    return app


def _page_handler(dist: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
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
