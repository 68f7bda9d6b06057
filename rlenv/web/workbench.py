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
from rlenv.web.guard import encode_json
from rlenv.web.jobs import Jobs
from rlenv.web.play import Plays
from rlenv.web.shelf import SpecChanged, path_below, read_versioned, save_spec, spec_at, specs_below

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
    app.cleanup_ctx.append(_run_background)
    routes: list[tuple[str, str, _Handler]] = [
        ("GET", "/api/specs", _get_specs),
        ("GET", "/api/spec", _get_spec),
        ("PUT", "/api/spec", _save_spec),
        ("POST", "/api/language/diagnose", _text_handler(_diagnose)),
        ("POST", "/api/language/complete", _text_handler(_complete)),
        ("POST", "/api/language/hover", _text_handler(_hover)),
        ("POST", "/api/language/form", _text_handler(_entry_answer(form, "group"))),
        ("POST", "/api/language/edit", _text_handler(_edit)),
        ("POST", "/api/language/rename", _text_handler(_entry_answer(rename, "group", "name", "to"))),
        ("POST", "/api/language/delete", _text_handler(_entry_answer(delete, "group", "name"))),
        ("POST", "/api/language/compile", _text_handler(_compile)),
        ("POST", "/api/play", _play),
        ("GET", "/api/play/{id}", _get_state),
        ("POST", "/api/play/{id}/step", _take_step),
        ("DELETE", "/api/play/{id}", _close_session),
        ("GET", "/api/jobs", _list_jobs),
        ("POST", "/api/jobs", _start_job),
        ("GET", "/api/jobs/{id}", _get_log),
        ("DELETE", "/api/jobs/{id}", _stop_job),
    ]
    app.add_routes([web.route(method, path, _answer_faults(handler)) for method, path, handler in routes])


async def _run_background(app: web.Application) -> AsyncIterator[None]:
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


def _answer_faults(handler: _Handler) -> _Handler:
    """A handler whose errors are answers with what is wrong."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except SpecError as error:
            faults = error.faults
            return _to_response({"error": str(faults[0]), "faults": [fault.as_dict() for fault in faults]}, status=422)
        except UsageError as error:
            return _to_response({"error": str(error)}, status=400)
        except RlenvError as error:
            return _to_response({"error": str(error)}, status=500)

    return handle


def _to_response(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=encode_json(value), status=status, content_type="application/json")


async def _read_body(request: web.Request) -> dict[str, Any]:
    with told_as(UsageError, "the body is not JSON:", ValueError, RecursionError):
        body = json.loads(await request.read())  # what a policy may write, half of a character too
    if not isinstance(body, dict):
        raise UsageError("the body is not a JSON object")
    return body


_NEEDED: Final = object()
_WORDS: Final = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}


def _body_value(body: _Body, key: str, wanted: type, otherwise: Any = _NEEDED) -> Any:
    """A value of the body. Raises UsageError: it is missing, or of another type."""
    value = body.get(key)
    if value is None and otherwise is not _NEEDED:
        return otherwise
    if type(value) is int and wanted is float and abs(value) < 2**53:
        return float(value)
    if type(value) is not wanted:
        raise UsageError(f"expected {_WORDS[wanted]}", key=key, hint=f"give '{key}' in the body")
    return value


def _roots_of(request: web.Request) -> tuple[Path, ...]:
    return request.app.get(ROOTS, ())


# Specs


async def _get_specs(request: web.Request) -> web.Response:
    found = await asyncio.to_thread(lambda: list(specs_below(_roots_of(request))))
    specs = [{"path": str(path), "name": path.stem, "shipped": False} for path in found]
    listed = {spec["path"] for spec in specs}
    more = [{"path": one, "name": one, "shipped": True} for one, path in shipped().items() if str(path) not in listed]
    return _to_response({"specs": [*specs, *more]})


async def _get_spec(request: web.Request) -> web.Response:
    path = spec_at(request.query.get("path", ""), _roots_of(request))
    text, version = await asyncio.to_thread(read_versioned, path)
    return _to_response({"text": text, "version": version})


async def _save_spec(request: web.Request) -> web.Response:
    given = request.query.get("path", "")
    path = spec_at(given, _roots_of(request))
    if given in shipped():
        raise UsageError(
            f"'{given}' ships with rlenv and is not written", key="path", hint="save it under another path"
        )
    body = await _read_body(request)
    text, before = _body_value(body, "text", str), _body_value(body, "version", str, None)
    try:
        version = await asyncio.to_thread(save_spec, path, text, before=before)
    except SpecChanged as error:
        return _to_response({"error": str(error)}, status=409)
    return _to_response({"path": str(path), "version": version})


# What an editor asks


@dataclass(frozen=True, slots=True)
class _TextRequest:
    """What is asked about a text and where it stands; it need not be saved there."""

    body: _Body
    path: Path
    text: str
    validator: Validator

    def value(self, key: str, wanted: type, otherwise: Any = _NEEDED) -> Any:
        return _body_value(self.body, key, wanted, otherwise)

    def position(self, places: EditorPlaces) -> tuple[int, int]:
        return places.given(self.value("line", int) - 1, self.value("column", int) - 1)


def _text_handler(answer: Callable[[_TextRequest], Awaitable[Any]]) -> _Handler:
    async def handle_text(request: web.Request) -> web.Response:
        body = await _read_body(request)
        path = spec_at(_body_value(body, "path", str), _roots_of(request))
        text = _body_value(body, "text", str)
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has more than {MAX_TEXT:,} characters", key="text", hint="keep rows in a file")
        return _to_response(await answer(_TextRequest(body, path, text, request.app[VALIDATOR])))

    return handle_text


async def _diagnose(asked: _TextRequest) -> Any:
    shown = str(asked.path)
    if asked.value("full", bool, False):
        faults = await asked.validator.validate(asked.text, path=shown)
        if faults is None:
            return {"superseded": True, "faults": []}
    else:
        faults = await asyncio.to_thread(diagnose, asked.text, path=shown)
    places = EditorPlaces(asked.text)
    return {"faults": [_mark_json(mark, places) for mark in marks(faults, asked.text, path=shown)]}


def _mark_json(mark: Mark, places: EditorPlaces) -> dict[str, Any]:
    line, column = places.at(mark.line, mark.column)
    end_line, end_column = places.at(mark.end_line, mark.end_column)
    place = {"line": line + 1, "column": column + 1, "end_line": end_line + 1, "end_column": end_column + 1}
    return {**asdict(mark), **place}


async def _complete(asked: _TextRequest) -> Any:
    places = EditorPlaces(asked.text)
    found = await asyncio.to_thread(complete, asked.text, *asked.position(places), path=asked.path)
    start = places.at(found.line, found.column)
    return {"from": {"line": start[0] + 1, "column": start[1] + 1}, "items": list(map(asdict, found.items))}


async def _hover(asked: _TextRequest) -> Any:
    line, column = asked.position(EditorPlaces(asked.text))
    found = await asyncio.to_thread(hover, asked.text, line, column, path=asked.path)
    return {} if found is None else {"markdown": found.markdown}


def _entry_answer(make: Callable[..., Any], *keys: str) -> Callable[[_TextRequest], Awaitable[Any]]:
    """What is made of a text and of names in the body, such as the text without one entry; nothing is saved."""

    async def answer_entry(asked: _TextRequest) -> Any:
        return plain(await asyncio.to_thread(make, asked.text, **{key: asked.value(key, str) for key in keys}))

    return answer_entry


async def _edit(asked: _TextRequest) -> Any:
    """A text with one entry changed; nothing is saved."""
    named = {key: asked.value(key, str) for key in ("group", "name")}
    values, order = asked.value("values", dict), tuple(json_schema()["properties"])
    return {"text": await asyncio.to_thread(edit, asked.text, **named, values=values, order=order)}


async def _compile(asked: _TextRequest) -> Any:
    split, task = asked.value("split", str, None), asked.value("task", int, 0)
    found = await asked.validator.compile(asked.text, path=str(asked.path), split=split, task=task)
    return {"superseded": True} if found is None else {**found, "schema": json_schema()}


# Episodes


async def _play(request: web.Request) -> web.Response:
    body = await _read_body(request)
    path = spec_at(_body_value(body, "spec", str), _roots_of(request))
    session = await request.app[PLAYS].start(
        path,
        text=_body_value(body, "text", str, None),
        split=_body_value(body, "split", str, None),
        task=_body_value(body, "task", int, 0),
        seed=_body_value(body, "seed", int, None),
        policy=_chosen_policy(body),
    )
    return _to_response({"session": session.id, "state": session.state()})


def _chosen_policy(body: _Body) -> PolicyChoice | None:
    """The policy that plays; None for the person at the page."""
    who = _body_value(body, "policy", str, "you")
    if who not in _WHO:
        raise UsageError(f"no policy '{who}'", key="policy", hint=did_you_mean(who, _WHO))
    if who != "openai":
        return None if who == "you" else PolicyChoice(who)
    mode = _body_value(body, "mode", str, "tools")
    if mode not in ("tools", "text"):
        raise UsageError(f"no mode '{mode[:40]}'", key="mode", hint="tools or text")
    sampling = {name: _body_value(body, name, float, None) for name in ("temperature", "top_p")}
    return PolicyChoice(
        who,
        _body_value(body, "base_url", str),
        _body_value(body, "model", str),
        _body_value(body, "api_key_env", str, None),
        mode,
        _body_value(body, "max_tokens", int, None),
        **sampling,
    )


async def _get_state(request: web.Request) -> web.Response:
    return _to_response({"state": request.app[PLAYS].get(request.match_info["id"]).state()})


async def _take_step(request: web.Request) -> web.Response:
    action = _body_value(await _read_body(request), "action", str, None)
    session = await request.app[PLAYS].step(request.match_info["id"], action)
    return _to_response({"state": session.state()})


async def _close_session(request: web.Request) -> web.Response:
    await request.app[PLAYS].close(request.match_info["id"])
    return _to_response({})


# Jobs


async def _list_jobs(request: web.Request) -> web.Response:
    return _to_response({"jobs": [job.as_dict() for job in request.app[JOBS].all()]})


async def _start_job(request: web.Request) -> web.Response:
    body = await _read_body(request)
    roots = _roots_of(request)
    spec = spec_at(_body_value(body, "spec", str), roots)
    options = _body_value(body, "options", dict, {})
    kind = _body_value(body, "kind", str)
    job = await request.app[JOBS].start(kind, str(spec), options, confine=lambda path: path_below(path, roots))
    return _to_response({"id": job.id, "job": job.as_dict()})


async def _get_log(request: web.Request) -> web.Response:
    offset = request.query.get("offset", "0")
    if not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        raise UsageError("expected a whole number", key="offset")
    job = request.app[JOBS].get(request.match_info["id"])
    text, end = await asyncio.to_thread(job.read, int(offset))
    return _to_response({"text": text, "offset": end, "state": job.state, "code": job.code})


async def _stop_job(request: web.Request) -> web.Response:
    return _to_response({"job": request.app[JOBS].stop(request.match_info["id"]).as_dict()})
