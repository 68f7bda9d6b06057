"""The routes that read runs: lists, figures, episodes and their files.

The routes of figures over several runs, and of a run's own files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from aiohttp import web

from rlenv._base.bounded import plain
from rlenv.errors import UsageError
from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.paired import compare_runs
from rlenv.runs.figures.query import COLUMNS
from rlenv.runs.figures.report import reading_list
from rlenv.runs.figures.rewards import scatter
from rlenv.runs.figures.snapshot import Snapshot, facets
from rlenv.runs.figures.steps import count_words, main_mode, recent_rows, series
from rlenv.runs.figures.tools import asked, cut_turns, members, outcomes, over_steps, shown_of, spread, tool_figures
from rlenv.runs.journal import object_at
from rlenv.runs.usage import spending_of_usage, spending_page
from rlenv.web.episode import episode_page, text_at, token_rows
from rlenv.web.guard import BLOBS, READ_ONLY, SHELF, VERSION, Unconfirmed, encode_json, query_number, respond, with_run
from rlenv.web.shelf import OpenRun

_MOST_ROWS: Final = 500
_MOST: Final = 2**53
_MOST_SUMMARY: Final = 64_000_000
_OF_GROUP: Final = ("episodes", "success_rate", "success_interval", "reward_mean", "invalid")


def add_routes(app: web.Application) -> None:
    """The routes of this module."""
    run = "/api/runs/{run}"
    app.add_routes(
        [
            web.get("/api/config", _get_config),
            web.get("/api/runs", _get_runs),
            web.get("/api/compare", _get_comparison),
            web.get("/blob/{run}/{sha:[0-9a-f]{64}}", _get_blob),
            web.get(run, _get_run),
            web.get(f"{run}/series", _get_series),
            web.get(f"{run}/tasks", _get_tasks),
            web.get(f"{run}/episodes", _get_episodes),
            web.get(f"{run}/e/{{id}}", _get_episode),
            web.get(f"{run}/e/{{id}}/text", _get_text),
            web.get(f"{run}/e/{{id}}/raw", _get_raw),
            web.get(f"{run}/e/{{id}}/tokens", _get_tokens),
            web.get(f"{run}/{{figures:{'|'.join(_OF_QUERY)}}}", _get_figures),
            web.get(f"{run}/g/{{step}}/{{group}}", _get_group),
            web.get(f"{run}/files", _get_files),
            web.get(f"{run}/file", _get_file),
            web.get(f"{run}/lock", _get_lock),
        ]
    )


async def _get_config(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    roots = [str(root) for root in shelf.roots]
    found = {"version": request.app[VERSION], "readOnly": request.app[READ_ONLY], "roots": roots}
    # Nothing is read for it: it waits for no thread, as a page shows nothing before it has come.
    return web.Response(body=encode_json(found), content_type="application/json")


async def _get_runs(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    return await respond(lambda: {"runs": [shelf.summary(key) for key in shelf.run_keys()]})


async def _get_run(request: web.Request) -> web.Response:
    shelf = request.app[SHELF]
    return await with_run(request, lambda run: {**shelf.summary(run.key), **_run_facts(run)})


def _run_facts(run: OpenRun) -> dict[str, Any]:
    rows, info = run.rows(), run.info
    return {
        "version": rows.version,
        "facts": dict(info.facts) if info else {},
        "terms": rows.term_names,
        "terms_more": rows.terms_more,
        "tools": rows.tool_names,
        "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()],
        "played": list(count_words(rows, "split")),
        "reasons": count_words(rows, "reason"),
        "failures": count_words(rows, "failure"),
        "fates": {name: count_words(rows, name) for name in ("fate", "why")},
        "attempts": list(info.attempts) if info else [],
        "read": run.compute(("read",), reading_list),
    }


async def _get_series(request: web.Request) -> web.Response:
    since = query_number(request, "since", 0, most=_MOST) if "since" in request.query else None

    def figures(run: OpenRun) -> dict[str, Any]:
        rows = run.rows()
        steps, found = run.compute(("series", since), lambda rows: series(rows, since=since))
        return {"version": rows.version, "steps": steps, "series": found}

    return await with_run(request, figures)


async def _get_tasks(request: web.Request) -> web.Response:
    """The outcomes of tasks, rewards and groups of tasks, of the rows that the run's one figure is of."""

    def figures(run: OpenRun) -> dict[str, Any]:
        def of(rows: Snapshot) -> dict[str, Any]:
            places = np.nonzero(recent_rows(rows, main_mode(rows)))[0]
            return {**outcomes(rows, places), "rewards": scatter(rows, places)}

        return {"version": run.rows().version, **run.compute(("tasks",), of), "groups": _group_figures(run.folder)}

    return await with_run(request, figures)


def _group_figures(folder: Path) -> dict[str, Any]:
    """The figures by the column that the split is reported by, as the run's summary has them."""
    groups = (object_at(folder / "summary.json", most=_MOST_SUMMARY) or {}).get("groups")
    if not isinstance(groups, dict):
        return {}
    known = {name: one for name, one in groups.items() if isinstance(one, dict)}
    return {name: {key: one.get(key) for key in _OF_GROUP} for name, one in known.items()}


async def _get_episodes(request: web.Request) -> web.Response:
    query, sort = request.query.get("q", ""), request.query.get("sort", "")
    offset = query_number(request, "offset", 0, most=_MOST)
    limit = query_number(request, "limit", 100, most=_MOST_ROWS)

    def listed(run: OpenRun) -> dict[str, Any]:
        rows = run.rows()
        places = run.places(query, sort)
        return {
            "version": rows.version,
            "total": len(rows),
            "matched": len(places),
            "rows": rows.rows(places[offset : offset + limit]),
        }

    return await with_run(request, listed)


async def _get_episode(request: web.Request) -> web.Response:
    id, blobs = request.match_info["id"], request.app[BLOBS]
    query, sort = request.query.get("q", ""), request.query.get("sort", "")
    return await with_run(request, lambda run: episode_page(run, id, blobs, query=query, sort=sort))


async def _get_text(request: web.Request) -> web.Response:
    id, path = request.match_info["id"], request.query.get("path", "")
    return await with_run(request, lambda run: {"text": text_at(run.episodes.body(id).as_json(), path)})


async def _get_tokens(request: web.Request) -> web.Response:
    id = request.match_info["id"]
    return await with_run(request, lambda run: token_rows(run, id))


async def _get_raw(request: web.Request) -> web.Response:
    id = request.match_info["id"]
    answer = await with_run(request, lambda run: run.episodes.body(id).as_json())
    if answer.status == 200:
        name = "".join(letter for letter in id if letter.isascii() and (letter.isalnum() or letter in "-_"))
        answer.headers["Content-Disposition"] = f'attachment; filename="{name or "episode"}.json"'
    return answer


async def _get_blob(request: web.Request) -> web.Response:
    blobs, sha = request.app[BLOBS], request.match_info["sha"]
    found: list[tuple[str, bytes]] = []
    answer = await with_run(request, lambda run: found.append(blobs.image(run, sha)))
    if not found:
        return answer
    mime, data = found[0]
    headers = {
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, max-age=3600, immutable",
    }
    return web.Response(body=data, content_type=mime, headers=headers)


_JUDGED: Final = 200
"""Episodes whose records are read for the agreement of judges, spread evenly."""
_MOST_STEP: Final = 2**31 - 1


async def _get_figures(request: web.Request) -> web.Response:
    """Figures over the rows that the request's query matches, kept for as long as the version is the same."""
    name, query = request.match_info["figures"], request.query.get("q", "")

    def kept(run: OpenRun) -> Any:
        places = run.places(query)
        return run.compute((name, query), lambda rows: _OF_QUERY[name](run, places))

    return await with_run(request, kept)


def _reward_figures(run: OpenRun, places: Any) -> dict[str, Any]:
    rows = run.rows()
    judged = _judged_records(run, places)
    return {
        "terms": reward_figures.term_figures(rows, places),
        "terms_more": rows.terms_more,
        "scatter": reward_figures.scatter(rows, places),
        "quadrants": reward_figures.quadrants(rows, places),
        "invalid": reward_figures.invalid_reasons(rows, places),
        "judge": {"terms": reward_figures.judge_agreement(judged), "episodes": len(judged)},
    }


_OF_QUERY: Final[Mapping[str, Callable[[OpenRun, Any], Any]]] = {
    "facets": lambda run, places: {"facets": facets(run.rows(), places)},
    "tools": lambda run, places: {"tools": tool_figures(run.rows(), places)},
    "rewards": _reward_figures,
    "spending": lambda run, places: spending_page(spending_of_usage(asked(run.rows(), places), prices=run.prices)),
}


def _judged_records(run: OpenRun, places: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Records of some episodes with their titles, for what judges said; none where the first ones asked no judge."""
    rows = run.rows()
    kept = places[rows.numbers("has_body")[places] == 1]
    if not len(kept):
        return []
    chosen = kept[np.unique(np.linspace(0, len(kept) - 1, min(_JUDGED, len(kept))).astype(np.int64))]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for count, place in enumerate(chosen.tolist()):
        id, title = (rows.table[name][place].as_py() for name in ("id", "title"))
        with contextlib.suppress(UsageError):  # its own page says what is wrong with it
            found.append((id, {**run.episodes.body(id).as_json(), "title": title}))
        if count == 7 and not reward_figures.judge_agreement(found):
            return []
    return found


async def _get_group(request: web.Request) -> web.Response:
    group = request.match_info["group"]
    step = request.match_info["step"]

    def shown(run: OpenRun) -> dict[str, Any]:
        if not step.isascii() or not step.isdecimal() or int(step[:12]) > _MOST_STEP:
            raise UsageError(f"'{step[:40]}' is no step")
        rows = run.rows()
        places = members(rows, int(step), group)
        if not len(places):
            raise UsageError(f"no episode of step {step} is of the group '{group[:100]}'")
        episodes = [{"row": row, "turns": _turns_of(run, row)} for row in rows.rows(shown_of(places))]
        mean, deviation = spread(rows.numbers("reward")[places])
        return {
            "episodes": episodes,
            "samples": len(places),
            "mean": mean,
            "spread": deviation,
            "over_steps": over_steps(rows, places),
        }

    return await with_run(request, shown)


def _turns_of(run: OpenRun, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turns of an episode of a group; none where its record cannot be read, which its own page says."""
    try:
        return cut_turns(run.episodes.body(row["id"]).as_json())
    except UsageError:
        return []


async def _get_comparison(request: web.Request) -> web.Response:
    a, b = request.query.get("a", ""), request.query.get("b", "")
    shelf = request.app[SHELF]

    def both() -> dict[str, Any]:
        one, other = shelf.open(a), shelf.open(b)
        first, second = sorted((one, other), key=lambda run: run.key)
        with first.lock, second.lock:  # in one order, whoever asks
            lock = _lock_differences(one, other)
            found = compare_runs(one.rows(), other.rows())
            if found["unlike"] and "anyway" not in request.query:
                hint = "runs of one spec and the same rows are"
                raise Unconfirmed(f"these are not two runs of the same tasks: {found['unlike']}", hint=hint)
            del found["tasks"]  # the pages show tasks, and of each some of its pairs
            return {"lock": lock, **found}

    return await respond(both)


def _lock_differences(a: OpenRun, b: OpenRun) -> list[dict[str, Any]]:
    """The differences between the locks of two runs; one entry with the reason where a lock cannot be read."""
    hashes = {"a": current_lock(a), "b": current_lock(b)}
    if hashes["a"] == hashes["b"]:
        return []
    from rlenv.runs.locks.lock import FOLDER, diff, read_lock  # the half of rlenv that plays episodes

    try:
        pairs = zip((a, b), hashes.values(), strict=True)
        locks = [read_lock(run.folder / FOLDER / f"{name}.json") for run, name in pairs]
    except UsageError as error:
        return [{"section": "lock", "key": str(error), **hashes}]
    return [plain(entry) for entry in diff(*locks)]


_PARTS: Final = frozenset(("journal", "episodes", "bodies", "late", "blobs", "tape"))
_DEPTH: Final = 3
_MOST_FILES: Final = 1_000
_TAIL: Final = 64_000
_LOCK_BYTES: Final = 8_000_000


async def _get_files(request: web.Request) -> web.Response:
    return await with_run(
        request, lambda run: {"files": [{"name": name, "size": size} for name, size in _file_sizes(run).items()]}
    )


async def _get_file(request: web.Request) -> web.Response:
    name = request.query.get("name", "")

    def tail(run: OpenRun) -> dict[str, Any]:
        # Only a name of the list is opened, so that none leads out of the run's folder.
        if name not in _file_sizes(run):
            raise UsageError(f"the run has no file '{name[:200]}'")
        descriptor = os.open(run.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            file.seek(max(0, size - _TAIL))
            return {"text": file.read(_TAIL).decode(errors="replace"), "size": size}

    return await with_run(request, tail)


def _file_sizes(run: OpenRun) -> dict[str, int]:
    """The regular files of a run's folder with their sizes, parts left out; links are not followed."""
    if not run.path.is_dir():
        return {run.path.name: run.path.stat().st_size}
    found: dict[str, int] = {}
    waiting = [(run.path, "", 0)]
    while waiting and len(found) < _MOST_FILES:
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


async def _get_lock(request: web.Request) -> web.Response:
    return await with_run(request, lambda run: {"locks": _read_locks(run), "current": current_lock(run)})


def _read_locks(run: OpenRun) -> dict[str, Any]:
    """The locks of a run, by the hashes that its rows name."""
    found: dict[str, Any] = {}
    folder = run.folder / "locks"
    if folder.is_dir() and not folder.is_symlink():
        for path in sorted(folder.glob("*.json")):
            if not path.is_symlink():
                held = object_at(path, most=_LOCK_BYTES)
                found[path.stem] = {"error": f"{path.name} is no JSON object"} if held is None else held
    return found


def current_lock(run: OpenRun) -> str:
    """The hash of what a run's last attempt was made with, "" where it is not known."""
    if run.info and run.info.lock:
        return run.info.lock
    rows = run.rows()
    return (rows.table["lock"][len(rows) - 1].as_py() or "") if len(rows) else ""
