"""A run's own files: what made it, its logs, its locks. Parts and journals are read by their readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from rlenv.errors import UsageError
from rlenv.runs.journal import loads
from rlenv.web.answers import reading
from rlenv.web.shelf import OpenRun

__all__ = ["add_routes", "current_lock"]

_PARTS: Final = frozenset(("journal", "episodes", "bodies", "late", "blobs", "tape"))
_DEPTH: Final = 3
_MOST: Final = 1_000
_TAIL: Final = 64_000
_LOCK_BYTES: Final = 8_000_000


def add_routes(app: web.Application) -> None:
    """The routes of this module."""
    run = "/api/runs/{run}"
    app.add_routes(
        [
            web.get(f"{run}/files", _files),
            web.get(f"{run}/file", _file),
            web.get(f"{run}/lock", _lock),
        ]
    )


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
