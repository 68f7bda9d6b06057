"""The `http` tool: one request to a server, and the part of its answer that matters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, urlencode, urlsplit

import orjson
from pydantic import Field

from rlenv._base.strict_json import TooMuchJson, read_json
from rlenv.errors import MissingExtra, ToolFailed, UsageError, told_as, under
from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Bool, Int, Text, ToolSpec
from rlenv.language.templates import TemplateError
from rlenv.secrets import redact
from rlenv.tools._signature import expand_shorthand
from rlenv.tools._wire import Request, Response, exchange
from rlenv.tools.arguments import Filling, compile_filling, read_parameters
from rlenv.tools.base import DependsOn, Tool, ToolContext, ToolOutput, common

_CONSTANT = r"\{\{\s*vars\.[\w.]+\s*\}\}|\$\{env:\w+\}"
_SERVER = re.compile(rf"(https?://|{_CONSTANT})([^{{}}/?#\s$]|://|{_CONSTANT})*(?=[/?#]|$)", re.IGNORECASE)
_BLANK = re.compile(r"[\x00- ]")
_LONG = 32_768  # characters of an answer: its values take some milliseconds
_MAX_URL = 65_536  # far above what servers take; writing a megabyte with its escapes takes a quarter of a second
_JSON_TYPE = re.compile(r"application/(.*\+)?json")
_OTHER_FORM = "the server's answer is not of the form that this tool reads"


class HttpSpec(ToolSpec):
    """Sends one HTTP request and shows the answer, or a part of it."""

    aside: ClassVar[Mapping[str, str]] = {**ToolSpec.aside, "headers": "they hold keys, and say who asks"}

    kind: Literal["http"]
    url: Text
    """http:// or https://, a template; what a call fills in is percent-encoded and cannot change the server."""
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] | None = None
    """POST where there is a body, otherwise GET."""
    headers: Mapping[str, Text] = Field(default_factory=dict)
    """Headers; values are templates, and secrets are written ${env:NAME}."""
    query: Mapping[str, Any] = Field(default_factory=dict)
    """Parameters after the `?`; values are templates, and one that gives None is left out."""
    body: Any = None
    """A mapping or list is sent as JSON, a text as it is; strings in it are templates."""
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """What the model gives, read by templates as `args`: `{text: string, limit: integer?}`, or a JSON Schema."""
    response: Text | None = None
    """A JMESPath expression that selects from a JSON answer; the whole answer otherwise."""
    expect: tuple[Annotated[Int, Field(ge=100, le=599)], ...] = ()
    """The statuses that count as an answer; 200 to 299 otherwise."""
    max_bytes: Annotated[Int, Field(ge=1, le=100_000_000)] = 1_000_000
    """No more of an answer is read."""
    redirects: Bool = False
    """Follow redirects within the same server; never to another."""
    preset: Literal["search-r1"] | None = None
    """`search-r1`: the wire format of Search-R1's retrieval server; only the url is needed."""
    top_k: Annotated[Int, Field(ge=1, le=1_000)] = 3
    """With the preset: how many documents are asked for."""


def _compile_selector(expression: str) -> Callable[[Any], Any]:
    with told_as(MissingExtra, "response (JMESPath)", ImportError, extra="http"):
        import jmespath
    try:
        search: Callable[[Any], Any] = jmespath.compile(expression).search
    except jmespath.exceptions.JMESPathError as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"'{expression}' is not a JMESPath expression ({reason})", key="response") from error
    return search


def _check_url(url: str, vars: Mapping[str, Any]) -> None:
    """A call decides what is asked, never whom: up to the path there are only letters, constants and secrets, and they
    make a server's address. What is none would fail every call as if its arguments did."""
    found = _SERVER.match(url)
    if found is None:
        raise UsageError(
            f"'{url}' does not begin with a fixed server; expected http://HOST/PATH or https://HOST/PATH, "
            "where HOST may come from {{ vars.NAME }} or ${env:NAME} but not from the call or the task",
            key="url",
            hint=f"write http://{url}" if re.match(r"(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::\d+)?(?:/|$)", url) else "",
        )
    with told_as(UsageError, "the server cannot be filled in:", TemplateError, key="url"):
        server = str(compile_filling(found[0], key="url", parameters={}, vars=vars)(args={}, task={}))
    try:
        parts = urlsplit(server)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address and "${env:" not in server:
        raise UsageError(
            f"'{found[0]}' gives '{redact(server):.100}', which is no server; expected http://HOST or https://HOST",
            key="url",
        )


def _quote_value(value: Any) -> str:
    """A value as it may stand in a URL, encoded, so that it cannot end its segment."""
    is_json = isinstance(value, (list, tuple, dict, int, float))  # anything else of a resource's is its text
    return quote(_encode_part("" if value is None else _to_text(value if is_json else str(value))), safe="")


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else _to_json(value).decode()  # as JSON writes it: true, 3, [1,2]


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")  # a policy may write lone surrogates


def _encode_part(text: str) -> bytes:
    """A part of an address, looked at before it is written with its escapes."""
    if len(text) > _MAX_URL:
        raise ToolFailed(f"an argument is too long for an address: {len(text):,} characters", reason="too_large")
    return _encode_text(text)


def _build_address(url: str, query: Mapping[str, Any]) -> str:
    _check_size(len(url))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ToolFailed("the arguments make no address", reason="bad_arguments") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or _BLANK.search(url):
        raise ToolFailed("the arguments make no address", reason="bad_arguments")
    if any(segment in (".", "..") for segment in parts.path.split("/")):
        raise ToolFailed("an argument of '.' or '..' would lead to another address", reason="bad_arguments")
    pairs = []
    for name, value in query.items():
        values = value if isinstance(value, (list, tuple)) else (value,)
        _check_size(len(values))
        pairs += [(name, _encode_part(_to_text(one))) for one in values if one is not None]
        _check_size(sum(len(text) for _, text in pairs))
    if not pairs:
        return url
    written = f"{url}{'&' if parts.query else '?'}{urlencode(pairs)}"
    _check_size(len(written))
    return written


def _check_size(chars: int) -> None:
    if chars > _MAX_URL:
        raise ToolFailed(f"the arguments make an address of more than {_MAX_URL:,} characters", reason="too_large")


def _build_output(answer: Response, select: Callable[[Any], Any] | None, max_bytes: int) -> ToolOutput:
    if select is not None:
        return _select_output(answer, select, max_bytes)
    if answer.is_cut:
        return ToolOutput(f"{answer.text}\n(cut after {max_bytes} bytes)", answer.text)
    value: Any = answer.text
    if _JSON_TYPE.match(answer.content_type):
        try:
            value = read_json(answer.text.encode(), max_bytes=2 * max_bytes)
        except ValueError:
            value = answer.text
    return ToolOutput(answer.text or f"(no content, status {answer.status})", value)


def _select_output(answer: Response, select: Callable[[Any], Any], max_bytes: int) -> ToolOutput:
    value = whole = _json_of(answer, max_bytes)
    # Not its own errors alone: it compares texts with numbers, say, where an answer has both.
    with told_as(ToolFailed, _OTHER_FORM, Exception, reason="server_error"):
        value = select(value)
        if value is None and isinstance(whole, Mapping) and whole.get("error"):  # with 200, as gateways do
            raise ValueError
    return ToolOutput("(nothing found)") if value is None else ToolOutput(_to_text(value), value)


def _json_of(answer: Response, max_bytes: int) -> Any:
    if answer.is_cut:
        raise ToolFailed(f"the server's answer is longer than {max_bytes} bytes", reason="too_large")
    with (
        told_as(ToolFailed, "the server's answer is not JSON", ValueError, reason="server_error"),
        told_as(ToolFailed, "the server's answer is too much:", TooMuchJson, reason="too_large"),
    ):
        return read_json(answer.text.encode(), max_bytes=4 * max_bytes)


def _search_r1(answer: Response, max_bytes: int) -> ToolOutput:
    """`{"result": [[{"document": {"contents": "Title\\ntext"}, "score": f}]]}`, or documents without scores, in the
    form in which Search-R1 shows them (its search_r1/llm_agent/generation.py, `_passages2string`)."""
    found = _json_of(answer, max_bytes)
    with told_as(ToolFailed, _OTHER_FORM, TypeError, KeyError, ValueError, AttributeError, reason="server_error"):
        (documents,) = found["result"]
        value = []
        for one in documents:
            title, _, text = one.get("document", one)["contents"].partition("\n")
            value.append({"title": title, "text": text, "score": one.get("score")})
    shown = [f"Doc {number}(Title: {one['title']}) {one['text']}" for number, one in enumerate(value, start=1)]
    return ToolOutput("\n".join(shown) or "no documents match", value)


def _apply_preset(spec: HttpSpec) -> HttpSpec:
    for key in ("query", "body", "parameters", "response", "method"):
        if getattr(spec, key):
            raise UsageError(
                f"the preset '{spec.preset}' gives it", key=key, hint="leave it out, or leave out the preset"
            )
    return spec.model_copy(
        update={
            "parameters": {"query": {"type": "string", "description": "What to look for."}},
            "body": {"queries": ["{{ args.query }}"], "topk": spec.top_k, "return_scores": True},
        }
    )


def compile_http(name: str, spec: HttpSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool that sends the request; its value is the selection, the answer as JSON, or its text.

    Raises:
        MissingExtra: `response` is given and jmespath is not installed.
        UsageError: the url, a template or the JMESPath expression is wrong.
    """
    preset = spec.preset
    if preset is not None:
        spec = _apply_preset(spec)
    elif "top_k" in spec.model_fields_set:
        raise UsageError("only a preset takes it", key="top_k")
    with under("parameters"):
        parameters = expand_shorthand(spec.parameters)
    _check_url(spec.url, context.vars)
    known: dict[str, Any] = {"parameters": parameters, "vars": context.vars, "resources": context.resources}
    fillings: dict[str, Filling] = {
        key: compile_filling(getattr(spec, key), key=key, write=_quote_value if key == "url" else None, **known)
        for key in ("url", "headers", "query", "body")
    }
    method = spec.method or ("GET" if spec.body is None else "POST")
    select = _compile_selector(spec.response) if spec.response is not None else None
    arguments_of = read_parameters(parameters)
    statuses, max_bytes = frozenset(spec.expect), spec.max_bytes

    def request(arguments: Mapping[str, Any], call: ToolContext) -> Request:
        args = arguments_of(arguments)
        values = {"args": args, "task": call.task, "resources": call.resources}
        headers = {key: str(value) for key, value in fillings["headers"](**values).items()}
        body = fillings["body"](**values)
        sent = None
        if isinstance(body, str):
            sent = _encode_text(body)
            headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        elif body is not None:
            sent = _to_json(body)
            headers.setdefault("Content-Type", "application/json")
        address = _build_address(fillings["url"](**values), fillings["query"](**values))
        return Request(method, address, headers, sent, statuses, spec.redirects, max_bytes)

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        answer = await exchange(request(arguments, call), call)
        made = partial(_search_r1, answer, max_bytes) if preset else partial(_build_output, answer, select, max_bytes)
        # A policy may ask for a list of any length, over which an expression takes its time.
        return await asyncio.to_thread(made) if len(answer.text) > _LONG else made()

    return (
        Tool(
            name=name,
            description=spec.description or _description(preset),
            parameters=parameters,
            run=run,
            mode="async",
            depends_on=_depends_on(spec),
            reaches_out=True,
            may_write=method in ("PUT", "PATCH", "DELETE"),
            **common(spec, idempotent=preset is not None or method in ("GET", "HEAD")),
        ),
    )


def _depends_on(spec: HttpSpec) -> DependsOn:
    """`task` as soon as the word stands anywhere: a cache that shares too little costs time, one too much is wrong."""
    read = repr((spec.url, spec.headers, spec.query, spec.body))
    if re.search(r"\bresources\b", read):
        return "episode"
    return "task" if re.search(r"\btask\b", read) else "arguments"


def _to_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # integers beyond 64 bits, lone surrogates
        raise ToolFailed("the arguments cannot be sent as JSON", reason="bad_arguments") from error


def _description(preset: str | None) -> str:
    if preset == "search-r1":
        return "Search documents; the best matches are shown."
    return "Ask a server and read its answer."


KIND = Kind(HttpSpec, compile_http)
