"""The routes that read runs: lists, figures, episodes and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from rlenv._base.paths import read_file
from rlenv.runs.figures.groups import by_task
from rlenv.runs.figures.query import COLUMNS
from rlenv.runs.figures.reading import reading_list
from rlenv.runs.figures.rewards import scatter
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.figures.steps import counts, main_mode, recent, series
from rlenv.runs.journal import loads
from rlenv.web.answers import BLOBS, READ_ONLY, SHELF, VERSION, answered, encoded, number, reading
from rlenv.web.episode import page, text_at, token_rows
from rlenv.web.shelf import OpenRun

__all__ = ["add_routes"]

_MOST_ROWS: Final = 500
_MOST: Final = 2**53
_MOST_SUMMARY: Final = 64_000_000
_OF_GROUP: Final = ("episodes", "success_rate", "success_interval", "reward_mean", "invalid")


def add_routes(app: web.Application) -> None:
    """The routes of this module."""
    run = "/api/runs/{run}"
    app.add_routes(
        [
            web.get("/api/config", _config),
            web.get("/api/runs", _runs),
            web.get(run, _run),
            web.get(f"{run}/series", _series),
            web.get(f"{run}/tasks", _tasks),
            web.get(f"{run}/episodes", _episodes),
            web.get(f"{run}/e/{{id}}", _episode),
            web.get(f"{run}/e/{{id}}/text", _text),
            web.get(f"{run}/e/{{id}}/raw", _raw),
            web.get(f"{run}/e/{{id}}/tokens", _tokens),
            web.get("/blob/{run}/{sha:[0-9a-f]{64}}", _blob),
        ]
    )


async def _config(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    roots = [str(root) for root in shelf.roots]
    found = {"version": request.app[VERSION], "readOnly": request.app[READ_ONLY], "roots": roots}
    # Nothing is read for it: it waits for no thread, as a page shows nothing before it has come.
    return web.Response(body=encoded(found), content_type="application/json")


async def _runs(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    return await answered(lambda: {"runs": [shelf.line(key) for key in shelf.found()]})


async def _run(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    return await reading(request, lambda run: {**shelf.line(run.key), **_about(run)})


def _about(run: OpenRun) -> dict[str, Any]:
    rows, info = run.rows(), run.info
    return {
        "version": rows.version,
        "facts": dict(info.facts) if info else {},
        "terms": rows.term_names,
        "terms_more": rows.terms_more,
        "tools": rows.tools,
        "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()],
        "played": list(counts(rows, "split")),
        "reasons": counts(rows, "reason"),
        "failures": counts(rows, "failure"),
        "fates": {name: counts(rows, name) for name in ("fate", "why")},
        "attempts": list(info.attempts) if info else [],
        "read": run.computed(("read",), reading_list),
    }


async def _series(request: web.Request) -> web.Response:
    since = number(request, "since", 0, most=_MOST) if "since" in request.query else None

    def figures(run: OpenRun) -> dict[str, Any]:
        rows = run.rows()
        steps, found = run.computed(("series", since), lambda rows: series(rows, since=since))
        return {"version": rows.version, "steps": steps, "series": found}

    return await reading(request, figures)


async def _tasks(request: web.Request) -> web.Response:
    """How tasks, rewards and groups of tasks came out, of the rows that the run's one figure is of."""

    def figures(run: OpenRun) -> dict[str, Any]:
        def of(rows: Snapshot) -> dict[str, Any]:
            places = np.nonzero(recent(rows, main_mode(rows)))[0]
            return {**by_task(rows, places), "rewards": scatter(rows, places)}

        return {"version": run.rows().version, **run.computed(("tasks",), of), "groups": _groups(run.folder)}

    return await reading(request, figures)


def _groups(folder: Path) -> dict[str, Any]:
    """The figures by the column that the split is reported by, as the run's summary has them."""
    try:
        held = loads(read_file(folder / "summary.json", most=_MOST_SUMMARY))
    except (OSError, ValueError, RecursionError):
        return {}
    groups = held.get("groups") if isinstance(held, dict) else None
    if not isinstance(groups, dict):
        return {}
    known = {name: one for name, one in groups.items() if isinstance(one, dict)}
    return {name: {key: one.get(key) for key in _OF_GROUP} for name, one in known.items()}


async def _episodes(request: web.Request) -> web.Response:
    query, sort = request.query.get("q", ""), request.query.get("sort", "")
    offset = number(request, "offset", 0, most=_MOST)
    limit = number(request, "limit", 100, most=_MOST_ROWS)

    def listed(run: OpenRun) -> dict[str, Any]:
        rows = run.rows()
        places = run.places(query, sort)
        return {
            "version": rows.version,
            "total": len(rows),
            "matched": len(places),
            "rows": rows.rows(places[offset : offset + limit]),
        }

    return await reading(request, listed)


async def _episode(request: web.Request) -> web.Response:
    id, blobs = request.match_info["id"], request.app[BLOBS]
    query, sort = request.query.get("q", ""), request.query.get("sort", "")
    return await reading(request, lambda run: page(run, id, blobs, query=query, sort=sort))


async def _text(request: web.Request) -> web.Response:
    id, path = request.match_info["id"], request.query.get("path", "")
    return await reading(request, lambda run: {"text": text_at(run.episodes.body(id).as_json(), path)})


async def _tokens(request: web.Request) -> web.Response:
    id = request.match_info["id"]
    return await reading(request, lambda run: token_rows(run, id))


async def _raw(request: web.Request) -> web.Response:
    id = request.match_info["id"]
    answer = await reading(request, lambda run: run.episodes.body(id).as_json())
    if answer.status == 200:
        name = "".join(letter for letter in id if letter.isascii() and (letter.isalnum() or letter in "-_"))
        answer.headers["Content-Disposition"] = f'attachment; filename="{name or "episode"}.json"'
    return answer


async def _blob(request: web.Request) -> web.Response:
    blobs, sha = request.app[BLOBS], request.match_info["sha"]
    found: list[tuple[str, bytes]] = []

    def read(run: OpenRun) -> None:
        found.append(blobs.image(run, sha))

    answer = await reading(request, read)
    if not found:
        return answer
    mime, data = found[0]
    headers = {
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, max-age=3600, immutable",
    }
    return web.Response(body=data, content_type=mime, headers=headers)
