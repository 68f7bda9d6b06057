"""The routes of figures over several runs, and of a run's own files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from rlenv._base.jsonable import plain
from rlenv.errors import UsageError
from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.groups import aligned, drawn, members, over_steps, spread
from rlenv.runs.figures.paired import compared
from rlenv.runs.figures.reading import facets
from rlenv.runs.figures.tools import asked, tools
from rlenv.runs.journal import loads
from rlenv.runs.usage import shown, spent_by
from rlenv.web.answers import SHELF, Unconfirmed, answered, reading
from rlenv.web.shelf import OpenRun

__all__ = ["add_routes"]


_JUDGED: Final = 200
"""Episodes whose records are read for the agreement of judges, spread evenly."""
_MOST_STEP: Final = 2**31 - 1


def add_routes(app: web.Application) -> None:
    """The routes of this module."""
    run = "/api/runs/{run}"
    app.add_routes(
        [
            web.get(f"{run}/facets", _facets),
            web.get(f"{run}/tools", _tools),
            web.get(f"{run}/rewards", _rewards),
            web.get(f"{run}/spending", _spending),
            web.get(f"{run}/g/{{step}}/{{group}}", _group),
            web.get("/api/compare", _compare),
            web.get(f"{run}/files", _files),
            web.get(f"{run}/file", _file),
            web.get(f"{run}/lock", _lock),
        ]
    )


async def _of_query(request: web.Request, name: str, figures: Callable[[OpenRun, Any], Any]) -> web.Response:
    """Figures over the rows that the request's query matches, kept for as long as the version is the same."""
    query = request.query.get("q", "")

    def kept(run: OpenRun) -> Any:
        places = run.places(query)
        return run.computed((name, query), lambda rows: figures(run, places))

    return await reading(request, kept)


async def _facets(request: web.Request) -> web.Response:
    return await _of_query(request, "facets", lambda run, places: {"facets": facets(run.rows(), places)})


async def _tools(request: web.Request) -> web.Response:
    return await _of_query(request, "tools", lambda run, places: {"tools": tools(run.rows(), places)})


async def _rewards(request: web.Request) -> web.Response:
    def figures(run: OpenRun, places: Any) -> dict[str, Any]:
        rows = run.rows()
        judged = _judged(run, places)
        return {
            "terms": reward_figures.terms(rows, places),
            "terms_more": rows.terms_more,
            "scatter": reward_figures.scatter(rows, places),
            "quadrants": reward_figures.quadrants(rows, places),
            "invalid": reward_figures.invalid_reasons(rows, places),
            "judge": {"terms": reward_figures.judge_agreement(judged), "episodes": len(judged)},
        }

    return await _of_query(request, "rewards", figures)


async def _spending(request: web.Request) -> web.Response:
    return await _of_query(
        request, "spending", lambda run, places: shown(spent_by(asked(run.rows(), places), prices=run.prices))
    )


def _judged(run: OpenRun, places: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Records of some episodes with their titles, for what judges said; none where the first ones asked no judge."""
    rows = run.rows()
    kept = places[rows.numbers("has_body")[places] == 1]
    if not len(kept):
        return []
    chosen = kept[np.unique(np.linspace(0, len(kept) - 1, min(_JUDGED, len(kept))).astype(np.int64))]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for count, place in enumerate(chosen.tolist()):
        id, title = (rows.table[name][place].as_py() for name in ("id", "title"))
        found.append((id, {**run.episodes.body(id).as_json(), "title": title}))
        if count == 7 and not reward_figures.judge_agreement(found):
            return []
    return found


async def _group(request: web.Request) -> web.Response:
    group = request.match_info["group"]
    step = request.match_info["step"]

    def shown(run: OpenRun) -> dict[str, Any]:
        if not step.isascii() or not step.isdecimal() or int(step[:12]) > _MOST_STEP:
            raise UsageError(f"'{step[:40]}' is no step")
        rows = run.rows()
        places = members(rows, int(step), group)
        if not len(places):
            raise UsageError(f"no episode of step {step} is of the group '{group[:100]}'")
        episodes: list[dict[str, Any]] = []
        for row in rows.rows(drawn(places)):
            found: list[dict[str, Any]] = []
            if row["has_body"]:
                found = aligned(loads(run.episodes.body(row["id"]).record))
            episodes.append({"row": row, "turns": found})
        mean, deviation = spread(rows.numbers("reward")[places])
        return {
            "episodes": episodes,
            "samples": len(places),
            "mean": mean,
            "spread": deviation,
            "over_steps": over_steps(rows, places),
        }

    return await reading(request, shown)


async def _compare(request: web.Request) -> web.Response:
    a, b = request.query.get("a", ""), request.query.get("b", "")
    shelf = request.app[SHELF]

    def both() -> dict[str, Any]:
        one, other = shelf.open(a), shelf.open(b)
        first, second = sorted((one, other), key=lambda run: run.key)
        with first.lock, second.lock:  # in one order, whoever asks
            lock = _differences(one, other)
            found = compared(one.rows(), other.rows())
            if found["unlike"] and "anyway" not in request.query:
                hint = "runs of one spec and the same rows are"
                raise Unconfirmed(f"these are not two runs of the same tasks: {found['unlike']}", hint=hint)
            del found["tasks"]  # the pages show tasks, and of each some of its pairs
            return {"lock": lock, **found}

    return await answered(both)


def _differences(a: OpenRun, b: OpenRun) -> list[dict[str, Any]]:
    """Where what made two runs differs; one entry that says why where that cannot be read."""
    hashes = {"a": current_lock(a), "b": current_lock(b)}
    if hashes["a"] == hashes["b"]:
        return []
    from rlenv.runs.locks.lock import FOLDER, diff, read_lock  # the half of rlenv that plays episodes

    try:
        locks = [
            read_lock(run.folder / FOLDER / f"{name}.json") for run, name in zip((a, b), hashes.values(), strict=True)
        ]
    except UsageError as error:
        return [{"section": "lock", "key": str(error), **hashes}]
    return [plain(entry) for entry in diff(*locks)]


_PARTS: Final = frozenset(("journal", "episodes", "bodies", "late", "blobs", "tape"))
_DEPTH: Final = 3
_MOST: Final = 1_000
_TAIL: Final = 64_000
_LOCK_BYTES: Final = 8_000_000


async def _files(request: web.Request) -> web.Response:
    return await reading(
        request, lambda run: {"files": [{"name": name, "size": size} for name, size in _listed(run).items()]}
    )


async def _file(request: web.Request) -> web.Response:
    name = request.query.get("name", "")

    def tail(run: OpenRun) -> dict[str, Any]:
        # Only a name of the list is opened, so that none leads out of the run's folder.
        if name not in _listed(run):
            raise UsageError(f"the run has no file '{name[:200]}'")
        descriptor = os.open(run.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            file.seek(max(0, size - _TAIL))
            return {"text": file.read(_TAIL).decode(errors="replace"), "size": size}

    return await reading(request, tail)


def _listed(run: OpenRun) -> dict[str, int]:
    """The regular files of a run's folder with their sizes, parts left out; links are not followed."""
    if not run.path.is_dir():
        return {run.path.name: run.path.stat().st_size}
    found: dict[str, int] = {}
    waiting = [(run.path, "", 0)]
    while waiting and len(found) < _MOST:
        folder, prefix, depth = waiting.pop(0)
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda one: one.name):
                if entry.is_file(follow_symlinks=False):
                    found[prefix + entry.name] = entry.stat(follow_symlinks=False).st_size
                elif (
                    entry.is_dir(follow_symlinks=False) and depth + 1 < _DEPTH and (prefix or entry.name not in _PARTS)
                ):
                    waiting.append((Path(entry.path), f"{prefix}{entry.name}/", depth + 1))
    return found


async def _lock(request: web.Request) -> web.Response:
    def locks(run: OpenRun) -> dict[str, Any]:
        return {"locks": _locks(run), "current": current_lock(run)}

    return await reading(request, locks)


def _locks(run: OpenRun) -> dict[str, Any]:
    """What a run was made of, by the hashes that its rows name."""
    found: dict[str, Any] = {}
    folder = run.folder / "locks"
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.glob("*.json")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LOCK_BYTES:
                try:
                    found[path.stem] = loads(path.read_bytes())
                except (ValueError, RecursionError) as error:
                    found[path.stem] = {"error": f"{path.name} is not JSON: {error}"}
    return found


def current_lock(run: OpenRun) -> str:
    """The hash of what a run's last attempt was made with, "" where it is not known."""
    attempts = run.info.attempts if run.info else ()
    if attempts and attempts[-1].lock:
        return attempts[-1].lock
    rows = run.rows()
    return (rows.table["lock"][len(rows) - 1].as_py() or "") if len(rows) else ""
