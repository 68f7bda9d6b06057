"""The routes that write, run and stop something: specs, what an editor asks of them, episodes to play, and jobs.

    app[ROOTS] = (Path("specs"), Path("runs"))     # set by whoever makes the application
    add_routes(app)

Nothing outside of the roots is read or written by name. Whoever may call these routes can run code all the same: a spec
names functions. So they stand behind the server's guard, and a server that is read-only does not have them.

Lines and columns count from 1. Columns are units of UTF-16 and lines are those of JavaScript's editors, so that a page
needs no tables; `rlenv.checks.editor` counts in characters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from rlenv._base.bounded import plain
from rlenv._base.text import did_you_mean
from rlenv.checks.editor.edit import delete, edit, rename
from rlenv.checks.editor.hover import complete, hover
from rlenv.checks.editor.shape import form
from rlenv.checks.editor.tree import EditorPlaces
from rlenv.checks.editor.validator import MAX_TEXT, Mark, Validator, diagnose, marks
from rlenv.errors import RlenvError, SpecError, UsageError, told_as
from rlenv.language.schema import json_schema
from rlenv.language.shipped import shipped
from rlenv.runs.stage import PolicyChoice
from rlenv.web.guard import encoded
from rlenv.web.jobs import Jobs
from rlenv.web.play import Plays
from rlenv.web.shelf import SpecChanged, below, read_versioned, save_spec, spec_at, specs_below

ROOTS: Final = web.AppKey("workbench_roots", tuple[Path, ...])
"""The folders, as Paths, below which specs are read and written and jobs may write. Nothing is served where it is not
set."""
PLAYS: Final = web.AppKey("workbench_plays", Plays)
JOBS: Final = web.AppKey("workbench_jobs", Jobs)
VALIDATOR: Final = web.AppKey("workbench_validator", Validator)

_SWEEP_S: Final = 30.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Body = Mapping[str, Any]
_WHO: Final = ("you", "oracle", "openai")


def add_routes(app: web.Application) -> None:
    """The routes of this module, and what ends with the application: its sessions, jobs and validations.

    Keys that are set already (`app[JOBS]`, …) stay.
    """
    app.setdefault(PLAYS, Plays())
    app.setdefault(JOBS, Jobs())
    app.setdefault(VALIDATOR, Validator())
    app.cleanup_ctx.append(_living)
    routes: list[tuple[str, str, _Handler]] = [
        ("GET", "/api/specs", _specs),
        ("GET", "/api/spec", _read),
        ("PUT", "/api/spec", _save),
        ("POST", "/api/language/diagnose", _of_text(_diagnose)),
        ("POST", "/api/language/complete", _of_text(_complete)),
        ("POST", "/api/language/hover", _of_text(_hover)),
        ("POST", "/api/language/form", _of_text(_of_entry(form, "group"))),
        ("POST", "/api/language/edit", _of_text(_edit)),
        ("POST", "/api/language/rename", _of_text(_of_entry(rename, "group", "name", "to"))),
        ("POST", "/api/language/delete", _of_text(_of_entry(delete, "group", "name"))),
        ("POST", "/api/language/compile", _of_text(_compile)),
        ("POST", "/api/play", _play),
        ("GET", "/api/play/{id}", _state),
        ("POST", "/api/play/{id}/step", _step),
        ("DELETE", "/api/play/{id}", _leave),
        ("GET", "/api/jobs", _jobs),
        ("POST", "/api/jobs", _start),
        ("GET", "/api/jobs/{id}", _log),
        ("DELETE", "/api/jobs/{id}", _stop),
    ]
    app.add_routes([web.route(method, path, _told(handler)) for method, path, handler in routes])


async def _living(app: web.Application) -> AsyncIterator[None]:
    """Closes idle sessions while the application runs, and all that was started when it ends."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await app[PLAYS].close_idle()

    task = asyncio.create_task(sweep())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await app[VALIDATOR].aclose()
    await app[PLAYS].aclose()
    await app[JOBS].aclose()


def _told(handler: _Handler) -> _Handler:
    """A handler whose errors are answers with what is wrong."""

    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except SpecError as error:
            faults = error.faults
            return _json({"error": str(faults[0]), "faults": [fault.as_dict() for fault in faults]}, status=422)
        except UsageError as error:
            return _json({"error": str(error)}, status=400)
        except RlenvError as error:
            return _json({"error": str(error)}, status=500)

    return answered


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=encoded(value), status=status, content_type="application/json")


async def _body(request: web.Request) -> dict[str, Any]:
    with told_as(UsageError, "the body is not JSON:", ValueError, RecursionError):
        body = json.loads(await request.read())  # what a policy may write, half of a character too
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return body


_NEEDED: Final = object()
_WORDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


def _given(body: _Body, key: str, wanted: type, otherwise: Any = _NEEDED) -> Any:
    """A value of the body. Raises UsageError: it is missing, or of another type."""
    value = body.get(key)
    if value is None and otherwise is not _NEEDED:
        return otherwise
    if type(value) is int and wanted is float and abs(value) < 2**53:
        return float(value)
    if type(value) is not wanted:
        raise UsageError(f"expected {_WORDS[wanted]}", key=key, hint=f"give '{key}' in the body")
    return value


def _roots(request: web.Request) -> tuple[Path, ...]:
    return request.app.get(ROOTS, ())


# Specs


async def _specs(request: web.Request) -> web.Response:
    found = await asyncio.to_thread(lambda: list(specs_below(_roots(request))))
    specs = [{"path": str(path), "name": path.stem, "shipped": False} for path in found]
    listed = {spec["path"] for spec in specs}
    more = [{"path": one, "name": one, "shipped": True} for one, path in shipped().items() if str(path) not in listed]
    return _json({"specs": [*specs, *more]})


async def _read(request: web.Request) -> web.Response:
    path = spec_at(request.query.get("path", ""), _roots(request))
    text, version = await asyncio.to_thread(read_versioned, path)
    return _json({"text": text, "version": version})


async def _save(request: web.Request) -> web.Response:
    given = request.query.get("path", "")
    path = spec_at(given, _roots(request))
    if given in shipped():
        raise UsageError(
            f"'{given}' ships with rlenv and is not written", key="path", hint="save it under another path"
        )
    body = await _body(request)
    text, before = _given(body, "text", str), _given(body, "version", str, None)
    try:
        version = await asyncio.to_thread(save_spec, path, text, before=before)
    except SpecChanged as error:
        return _json({"error": str(error)}, status=409)
    return _json({"path": str(path), "version": version})


# What an editor asks


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked about a text and where it stands; it need not be saved there."""

    body: _Body
    path: Path
    text: str
    validator: Validator

    def given(self, key: str, wanted: type, otherwise: Any = _NEEDED) -> Any:
        return _given(self.body, key, wanted, otherwise)

    def position(self, places: EditorPlaces) -> tuple[int, int]:
        return places.given(self.given("line", int) - 1, self.given("column", int) - 1)


def _of_text(answer: Callable[[_Asked], Awaitable[Any]]) -> _Handler:
    async def asked(request: web.Request) -> web.Response:
        body = await _body(request)
        path = spec_at(_given(body, "path", str), _roots(request))
        text = _given(body, "text", str)
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has more than {MAX_TEXT:,} characters", key="text", hint="keep rows in a file")
        return _json(await answer(_Asked(body, path, text, request.app[VALIDATOR])))

    return asked


async def _diagnose(asked: _Asked) -> Any:
    shown = str(asked.path)
    if asked.given("full", bool, False):
        faults = await asked.validator.validate(asked.text, path=shown)
        if faults is None:
            return {"superseded": True, "faults": []}
    else:
        faults = await asyncio.to_thread(diagnose, asked.text, path=shown)
    places = EditorPlaces(asked.text)
    return {"faults": [_marked(mark, places) for mark in marks(faults, asked.text, path=shown)]}


def _marked(mark: Mark, places: EditorPlaces) -> dict[str, Any]:
    line, column = places.at(mark.line, mark.column)
    end_line, end_column = places.at(mark.end_line, mark.end_column)
    place = {"line": line + 1, "column": column + 1, "end_line": end_line + 1, "end_column": end_column + 1}
    return {**asdict(mark), **place}


async def _complete(asked: _Asked) -> Any:
    places = EditorPlaces(asked.text)
    found = await asyncio.to_thread(complete, asked.text, *asked.position(places), path=asked.path)
    start = places.at(found.line, found.column)
    return {"from": {"line": start[0] + 1, "column": start[1] + 1}, "items": list(map(asdict, found.items))}


async def _hover(asked: _Asked) -> Any:
    line, column = asked.position(EditorPlaces(asked.text))
    found = await asyncio.to_thread(hover, asked.text, line, column, path=asked.path)
    return {} if found is None else {"markdown": found.markdown}


def _of_entry(make: Callable[..., Any], *keys: str) -> Callable[[_Asked], Awaitable[Any]]:
    """What is made of a text and of names in the body, such as the text without one entry; nothing is saved."""

    async def made(asked: _Asked) -> Any:
        return plain(await asyncio.to_thread(make, asked.text, **{key: asked.given(key, str) for key in keys}))

    return made


async def _edit(asked: _Asked) -> Any:
    """A text with one entry changed; nothing is saved."""
    named = {key: asked.given(key, str) for key in ("group", "name")}
    values, order = asked.given("values", dict), tuple(json_schema()["properties"])
    return {"text": await asyncio.to_thread(edit, asked.text, **named, values=values, order=order)}


async def _compile(asked: _Asked) -> Any:
    split, task = asked.given("split", str, None), asked.given("task", int, 0)
    found = await asked.validator.compile(asked.text, path=str(asked.path), split=split, task=task)
    return {"superseded": True} if found is None else {**found, "schema": json_schema()}


# Episodes


async def _play(request: web.Request) -> web.Response:
    body = await _body(request)
    path = spec_at(_given(body, "spec", str), _roots(request))
    session = await request.app[PLAYS].start(
        path,
        text=_given(body, "text", str, None),
        split=_given(body, "split", str, None),
        task=_given(body, "task", int, 0),
        seed=_given(body, "seed", int, None),
        policy=_policy(body),
    )
    return _json({"session": session.id, "state": session.state()})


def _policy(body: _Body) -> PolicyChoice | None:
    """The policy that plays; None for the person at the page."""
    who = _given(body, "policy", str, "you")
    if who not in _WHO:
        raise UsageError(f"no policy '{who}'", key="policy", hint=did_you_mean(who, _WHO))
    if who != "openai":
        return None if who == "you" else PolicyChoice(who)
    mode = _given(body, "mode", str, "tools")
    if mode not in ("tools", "text"):
        raise UsageError(f"no mode '{mode[:40]}'", key="mode", hint="tools or text")
    sampling = {name: _given(body, name, float, None) for name in ("temperature", "top_p")}
    return PolicyChoice(
        who,
        _given(body, "base_url", str),
        _given(body, "model", str),
        _given(body, "api_key_env", str, None),
        mode,
        _given(body, "max_tokens", int, None),
        **sampling,
    )


async def _state(request: web.Request) -> web.Response:
    return _json({"state": request.app[PLAYS].get(request.match_info["id"]).state()})


async def _step(request: web.Request) -> web.Response:
    action = _given(await _body(request), "action", str, None)
    session = await request.app[PLAYS].step(request.match_info["id"], action)
    return _json({"state": session.state()})


async def _leave(request: web.Request) -> web.Response:
    await request.app[PLAYS].close(request.match_info["id"])
    return _json({})


# Jobs


async def _jobs(request: web.Request) -> web.Response:
    return _json({"jobs": [job.as_dict() for job in request.app[JOBS].all()]})


async def _start(request: web.Request) -> web.Response:
    body = await _body(request)
    roots = _roots(request)
    spec = spec_at(_given(body, "spec", str), roots)
    options = _given(body, "options", dict, {})
    kind = _given(body, "kind", str)
    job = await request.app[JOBS].start(kind, str(spec), options, confine=lambda path: below(path, roots))
    return _json({"id": job.id, "job": job.as_dict()})


async def _log(request: web.Request) -> web.Response:
    offset = request.query.get("offset", "0")
    if not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        raise UsageError("expected a whole number", key="offset")
    job = request.app[JOBS].get(request.match_info["id"])
    text, end = await asyncio.to_thread(job.read, int(offset))
    return _json({"text": text, "offset": end, "state": job.state, "code": job.code})


async def _stop(request: web.Request) -> web.Response:
    return _json({"job": request.app[JOBS].stop(request.match_info["id"]).as_dict()})
