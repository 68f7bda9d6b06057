"""The http tool against servers that answer, refuse, dawdle, flood and break off."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rlenv.errors import MissingVariable, UsageError
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.testing.tools import call, check_tool, context, kept
from rlenv.tools.base import CallPolicy, Tool
from rlenv.tools.http import KIND, HttpSpec

pytest.importorskip("jmespath")

TEXT = {"text": "string"}
Answers = Callable[[web.Request], Awaitable[web.StreamResponse]]


def compiled(url: str, *, vars: dict[str, Any] | None = None, resources: Any = (), **keys: Any) -> Tool:
    spec = HttpSpec.model_validate({"kind": "http", "url": url, **keys})
    (tool,) = KIND.factory("ask", spec, CompileContext(base=Path(), vars=vars or {}, resources=resources))
    assert isinstance(tool, Tool)
    return tool


@asynccontextmanager
async def served(answers: Answers) -> AsyncIterator[str]:
    """A loopback server that answers everything with `answers`; gives its address."""
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answers)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw(reply: bytes, *, ends: bool = True) -> AsyncIterator[str]:
    """A loopback server that answers each connection with these bytes, whatever was asked."""
    open_now: set[asyncio.StreamWriter] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        await reader.read(1)
        writer.write(reply)
        if ends:
            writer.transport.abort() if not reply else writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for writer in open_now:
            writer.transport.abort()


@contextmanager
def in_thread(answers: Answers) -> Iterator[str]:
    """The same server on an event loop of its own."""
    address: Future[str] = Future()
    leave = threading.Event()

    async def serve() -> None:
        async with served(answers) as where:
            address.set_result(where)
            await asyncio.to_thread(leave.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield address.result(30)
    finally:
        leave.set()
        thread.join()


def ask(answers: Answers, arguments: dict[str, Any] | None = None, *, path: str = "/", **keys: Any) -> ToolResult:
    async def go() -> ToolResult:
        async with served(answers) as address, kept() as make:
            return await call(compiled(address + path, **keys), arguments or {}, within=make())

    return asyncio.run(go())


def ask_raw(reply: bytes, *, ends: bool = True, seconds: float = 60.0, **keys: Any) -> ToolResult:
    async def go() -> ToolResult:
        async with raw(reply, ends=ends) as address, kept(lambda: context(seconds=seconds)) as make:
            return await call(compiled(address + "/secret-path", **keys), {}, within=make())

    return asyncio.run(go())


def test_an_expression_over_a_long_answer_holds_no_loop() -> None:
    """The policy may ask a server for a list of any length."""
    rows = json.dumps([{"a": n, "b": str(n)} for n in range(20_000)])
    all_s, loop_s = time.process_time(), time.thread_time()
    result = ask(says(rows, content_type="application/json"), response="[*].{a: a, b: b, c: to_string(@)}")
    assert (result.outcome, len(result.value)) == ("ok", 20_000)
    assert time.thread_time() - loop_s < (time.process_time() - all_s) / 2


async def echo(request: web.Request) -> web.Response:
    body = await request.text()
    return web.json_response(
        {
            "method": request.method,
            "path": request.raw_path,
            "query": list(request.query.items()),
            "body": body,
            "headers": dict(request.headers),
        }
    )


def says(text: str | bytes, status: int = 200, content_type: str | None = "text/plain") -> Answers:
    async def answer(request: web.Request) -> web.Response:
        body = text.encode() if isinstance(text, str) else text
        headers = {"Content-Type": content_type} if content_type else {}
        return web.Response(body=body, status=status, headers=headers)

    return answer


def test_the_http_tool_keeps_the_laws_of_tools() -> None:
    async def answer(request: web.Request) -> web.Response:
        text = request.query["q"]
        return web.json_response({"said": text}) if text else web.Response(status=404, text="say something")

    # check_tool owns its event loop, so the server has one of its own.
    with in_thread(answer) as address:
        check_tool(
            compiled(address, query={"q": "{{ args.text }}"}, parameters=TEXT, response="said"),
            good=[{"text": "a"}, {"text": "☃ & = ?"}],
            bad=[{}, {"text": 1}, {"text": "a", "more": 1}],
            failing=[{"text": ""}],
        )


def test_arguments_reach_path_query_headers_and_body() -> None:
    result = ask(
        echo,
        {"text": "a/b ☃?", "limit": 3},
        path="/items/{{ args.text }}",
        query={"n": "{{ args.limit }}", "none": "{{ args.other }}", "many": ["x", "{{ args.text }}"]},
        headers={"X-Limit": "{{ args.limit }}"},
        body={"deep": [{"text": "{{ args.text }}", "limit": "{{ args.limit }}"}]},
        parameters={"text": "string", "limit": "integer", "other": "string?"},
    )
    value = result.value
    assert value["method"] == "POST"
    assert value["path"].startswith("/items/a%2Fb%20%E2%98%83%3F?")
    assert value["query"] == [["n", "3"], ["many", "x"], ["many", "a/b ☃?"]]
    assert value["headers"]["X-Limit"] == "3"
    assert json.loads(value["body"]) == {"deep": [{"text": "a/b ☃?", "limit": 3}]}


@pytest.mark.parametrize("text", ["x" * 70_000, "\u00e1" * 30_000, "\u00e1" * 70_000])
@pytest.mark.parametrize("keys", [{"path": "/{{ args.text }}"}, {"query": {"q": "{{ args.text }}"}}])
def test_an_address_is_bounded_before_it_is_written(text: str, keys: dict[str, Any]) -> None:
    result = ask(says("never asked"), {"text": text}, parameters={"text": "string"}, **keys)
    assert result.outcome == "failed"
    assert result.reason == "too_large"


def test_the_task_and_constants_are_read_too() -> None:
    async def go() -> ToolResult:
        async with served(echo) as address, kept(lambda: context(task={"id": "7/8"})) as make:
            tool = compiled("{{ vars.server }}/{{ task.id }}", vars={"server": address}, response="path")
            return await call(tool, {}, within=make())

    assert asyncio.run(go()).text == "/7%2F8"


@pytest.mark.parametrize(
    ("path", "given", "expected"),
    [
        ("/{{ resources.desk.name }}/x", "a/?#%2e\u00e9", "/a%2F%3F%23%252e%C3%A9/x"),
        ("/{{ resources.desk }}/x", "a", "/the%20desk/x"),
        ("/{{ resources.desk.name ~ args.text }}", "a/", "/a%2Fa%2F"),
        ("/{{ args.text | replace(' ', '_') }}", "a b/c", "/a_b%2Fc"),
        ("/{{ 'of/' ~ args.text ~ '/x' }}", "a/b", "/of/a%2Fb/x"),
        ("/{{ 'of/' ~ args.text if args.text == '?' else 'not/it' }}", "?", "/of/%3F"),
        ("/{{ 'of/' ~ args.text if args.text == '?' else 'not/it' }}", "a", "/not/it"),
        ("/{% for one in args.text.split(',') %}{{ one }}/{% endfor %}", "a,b/c", "/a/b%2Fc/"),
        ("{{ vars.path }}/{{ args.text or vars.path }}", "", "/of/vars/%2Fof%2Fvars"),
    ],
)
def test_what_a_template_fills_in_cannot_end_its_segment_wherever_it_comes_from(
    path: str, given: str, expected: str
) -> None:
    class Desk:
        name = given

        def __str__(self) -> str:
            return "the desk"

    async def go() -> ToolResult:
        keys = {"parameters": TEXT, "response": "path", "resources": {"desk": Desk()}}
        async with served(echo) as address, kept(lambda: context(resources={"desk": Desk()})) as make:
            tool = compiled(address + path, vars={"path": "/of/vars"}, **keys)
            return await call(tool, {"text": given}, within=make())

    assert asyncio.run(go()).text == expected


@pytest.mark.parametrize("text", ["..", ".", ""])
def test_an_argument_cannot_climb_to_another_path(text: str) -> None:
    result = ask(echo, {"text": text}, path="/public/{{ args.text }}", parameters=TEXT, response="path")
    assert (result.outcome == "bad_arguments") if text else result.text == "/public/"


_WRITTEN = ({"path": "/{{ args.n }}"}, {"query": {"n": "{{ args.n }}"}}, {"body": {"n": "{{ args.n }}"}})


@pytest.mark.parametrize("value", [2**64, -(10**30), 10**400, [10**30], {"a": 10**30}, "\ud800", ["\ud800"]])
@pytest.mark.parametrize("keys", _WRITTEN)
def test_an_argument_that_no_request_can_be_written_of_is_the_policys_mistake(value: Any, keys: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"n": {}}}
    result = ask(echo, {"n": value}, parameters=schema, **keys)
    assert result.whose in ("", "policy"), result.reason


@pytest.mark.parametrize("text", ["", "Ada", "Ada Byron"])
def test_a_template_that_fails_on_an_argument_is_the_policys_mistake_and_any_other_the_authors(text: str) -> None:
    result = ask(echo, {"text": text}, query={"q": "{{ args.text.split(' ')[1] }}"}, parameters=TEXT)
    assert (result.outcome == "ok") if " " in text else (result.outcome, result.whose) == ("bad_arguments", "policy")
    result = ask(echo, {"text": text}, query={"q": "{{ task.none.split(' ') }}"}, parameters=TEXT)
    assert (result.reason, result.whose) == ("bug", "infrastructure")


def test_an_argument_cannot_add_a_header() -> None:
    result = ask(echo, {"text": "a\r\nX-Evil: 1"}, headers={"X": "{{ args.text }}"}, parameters=TEXT)
    assert (result.outcome, result.text) == ("bad_arguments", "the header X would hold a control character")


def test_a_selection_is_shown_as_text_or_json() -> None:
    document = json.dumps({"items": [{"name": "kite", "n": 1}, {"name": "ball", "n": 2}]})
    answer = says(document, content_type="application/json")
    assert ask(answer, response="items[0].name").text == "kite"
    found = ask(answer, response="items[].n")
    assert (found.text, found.value) == ("[1,2]", [1, 2])
    assert ask(answer, response="items[5]").text == "(nothing found)"
    failed = ask(says('{"error": {"code": 503}}', content_type="application/json"), response="items[5]")
    assert (failed.reason, failed.whose) == ("server_error", "unclear")
    assert ask(answer).value["items"][1]["n"] == 2


@pytest.mark.parametrize(
    ("answer", "says_what"),
    [
        (says("nothing here", 404), "the server answered 404 Not Found: nothing here"),
        (says("x" * 10_000, 400), "the server answered 400 Bad Request: " + "x" * 299 + "…"),
    ],
)
def test_what_the_server_refuses_is_a_short_failure_of_the_policys(answer: Answers, says_what: str) -> None:
    result = ask(answer)
    assert (result.outcome, result.text, result.whose) == ("failed", says_what, "policy")


@pytest.mark.parametrize(
    ("answer", "says_what"),
    [
        (says("<h1>secret stack</h1>", 500, "text/html"), "the server answered 500 Internal Server Error"),
        (says("", 302), "the server answered 302 Found"),
        (says("?", 799), "the server answered 799: ?"),
        (says(b"\x89PNG", content_type="image/png"), "the server answered with image/png, which is no text"),
    ],
)
def test_what_is_no_answer_is_a_short_failure_of_which_nobody_can_tell(answer: Answers, says_what: str) -> None:
    result = ask(answer)
    assert (result.outcome, result.text, result.whose) == ("failed", says_what, "unclear")


def test_expected_statuses_count_as_answers() -> None:
    assert ask(says("gone", 404), expect=[200, 404]).text == "gone"
    assert ask(says("fine"), expect=[201]).outcome == "failed"


def test_a_selection_from_what_is_not_json_fails() -> None:
    assert ask(says("<html>"), response="a").text == "the server's answer is not JSON"
    mixed = '[{"a": 1}, {"a": "x"}]'
    for expression in ("[?a > `1`]", "max_by(@, &a)", "[?contains(to_string(a), `1`)]"):
        found = ask(says(mixed, content_type="application/json"), response=expression)
        assert (found.reason, found.whose) == ("server_error", "unclear"), expression
    result = ask(says("[1]", content_type="application/json"), response="length(a)")
    assert result.text == "the server's answer is not of the form that this tool reads"
    assert result.whose == "unclear"


def test_text_that_is_not_utf8_is_read_as_well_as_possible() -> None:
    assert ask(says("déjà".encode("latin-1"), content_type="text/plain; charset=latin-1")).text == "déjà"
    assert ask(says(b"d\xe9j\xe0")).text == "d\ufffdj\ufffd"
    assert ask(says(b"ok", content_type="text/plain; charset=no-such")).text == "ok"


def test_a_flood_is_cut_while_it_is_read() -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        try:
            for _ in range(100_000):
                await response.write(b"x" * 10_000)
                sent += 10_000
        except ConnectionError:
            pass
        return response

    result = ask(flood, max_bytes=1_000)
    assert result.text == "x" * 1_000 + "\n(cut after 1000 bytes)"
    assert sent < 100_000_000
    assert ask(flood, max_bytes=1_000, response="a").text == "the server's answer is longer than 1000 bytes"


def test_an_answer_that_was_compressed_unasked_is_refused() -> None:
    async def bomb(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})

    result = ask(bomb)
    assert (result.text, result.whose) == ("the server sent a compressed answer that was not asked for", "unclear")


@pytest.mark.parametrize(
    ("reply", "says_what"),
    [
        (b"", "the server closed the connection before its answer ended"),
        (b"\x00\xff garbage \r\n\r\n", "the server's answer is not HTTP"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nhalf",
            "the server closed the connection before its answer ended",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "the server's answer is not HTTP"),
    ],
)
def test_a_broken_server_is_a_short_failure_that_names_no_address(reply: bytes, says_what: str) -> None:
    result = ask_raw(reply)
    assert (result.outcome, result.text) == ("failed", says_what)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nslow"])
def test_a_server_that_dawdles_costs_the_tools_time_limit(reply: bytes) -> None:
    result = ask_raw(reply, ends=False, timeout_s=0.05)
    assert result.outcome == "timeout"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_request_is_sent_once_and_the_connection_that_it_broke_is_told(method: str) -> None:
    asked: list[str] = []

    async def falls(request: web.Request) -> web.Response:
        asked.append(request.method)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    assert (ask(falls, method=method).reason, asked) == ("disconnected", [method])


def test_a_server_that_is_not_there_is_a_short_failure() -> None:
    async def go() -> ToolResult:
        async with served(echo) as address:
            gone = address
        async with kept() as make:
            return await call(compiled(gone), {}, within=make())

    assert asyncio.run(go()).text == "the server cannot be reached"


def test_redirects_are_followed_within_the_server_only_where_asked() -> None:
    async def move(request: web.Request) -> web.Response:
        if request.path == "/":
            return web.Response(status=302, headers={"Location": "/next"})
        if request.path == "/next":
            return web.Response(status=302, headers={"Location": "http://localhost.invalid/"})
        return web.Response(text="there")

    assert ask(move).text == "the server answered 302 Found"
    assert ask(move, redirects=True).text == "the server redirected to another server, which is not followed"

    async def circle(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/"})

    assert ask(circle, redirects=True).text == "the server redirected more than 5 times"


@pytest.mark.parametrize(
    ("status", "whose"),
    [(400, "policy"), (403, "policy"), (404, "policy"), (422, "policy")]
    + [(status, "unclear") for status in (302, 401, 402, 407, 408, 429, 500, 503)],
)
def test_only_a_refusal_of_what_was_asked_is_the_policys_failure(status: int, whose: str) -> None:
    assert ask(says("no", status)).whose == whose


@pytest.mark.usefixtures("whole_pauses")
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_is_left_alone_as_long_as_it_asks(status: int) -> None:
    asked: list[int] = []
    seen: list[int] = []

    async def limited(request: web.Request) -> web.Response:
        asked.append(1)
        if len(asked) > 1:
            return web.Response(text="there")
        asyncio.get_running_loop().call_later(0.2, lambda: seen.append(len(asked)))
        return web.Response(status=status, headers={"Retry-After": "0.3"})

    async def go() -> ToolResult:
        async with served(limited) as address, kept() as make:
            return await call(replace(compiled(address), policy=CallPolicy(retries=1)), {}, within=make())

    assert asyncio.run(go()).text == "there"
    assert seen == [1]


@pytest.mark.parametrize("to", ["/", "http://localhost.invalid/", "http://[/"])
def test_a_redirect_is_no_failure_of_the_policys_whether_it_is_followed_or_not(to: str) -> None:
    async def moved(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": to})

    assert [ask(moved, redirects=follows).whose for follows in (False, True)] == ["unclear", "unclear"]


def test_cookies_do_not_cross_calls() -> None:
    async def cookie(request: web.Request) -> web.Response:
        response = web.Response(text=request.headers.get("Cookie", "none"))
        response.set_cookie("who", "me")
        return response

    async def go() -> list[str]:
        async with served(cookie) as address, kept() as make:
            tool = compiled(address)
            return [(await call(tool, {}, within=make())).text for _ in range(2)]

    assert asyncio.run(go()) == ["none", "none"]


def test_a_secret_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_KEY", "correct-horse-battery")
    keys: dict[str, Any] = {"headers": {"Authorization": "Bearer ${env:RLENV_TEST_KEY}"}}
    seen: list[str] = []

    async def tell(request: web.Request) -> web.Response:
        seen.append(request.headers["Authorization"])
        return web.Response(text=f"you sent {seen[-1]}", status=200 if len(seen) == 1 else 403)

    good, refused = ask(tell, **keys), ask(tell, **keys)
    assert seen == ["Bearer correct-horse-battery"] * 2
    for result in (good, refused):
        assert "correct-horse" not in result.text + repr(result.value)
    assert refused.text == "the server answered 403 Forbidden: you sent Bearer ${env:RLENV_TEST_KEY}"


def test_a_secret_that_is_not_set_is_said_at_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLENV_TEST_KEY", raising=False)
    with pytest.raises(MissingVariable, match="RLENV_TEST_KEY"):
        compiled("http://h/", headers={"Authorization": "${env:RLENV_TEST_KEY}"})


@pytest.mark.parametrize(
    ("url", "keys", "says_what"),
    [
        ("ftp://h/", {}, "does not begin with a fixed server"),
        ("h/path", {}, "does not begin with a fixed server"),
        ("http://{{ args.text }}/", {}, "not from the call"),
        ("http://h{{ args.text }}/", {}, "not from the call"),
        ("{{ vars.h }}{{ task.x }}/", {}, "not from the call"),
        ("{{ 'http://' ~ args.text }}", {}, "not from the call"),
        ("{{ vars.host }}/a", {"vars": {"host": "localhost:8080"}}, "gives 'localhost:8080', which is no server"),
        ("http://{{ vars.host }}:{{ vars.port }}/a", {"vars": {"host": "h", "port": 99999}}, "which is no server"),
        ("http://h:port/", {}, "which is no server"),
        ("{{ vars.gone }}/a", {}, "cannot be filled in"),
        ("http://h/{{ args.tex }}", {}, "did you mean 'args.text'"),
        ("http://h/{{ text }}", {}, "did you mean 'args.text'"),
        ("http://h/{{ args.text }", {}, "url: the template cannot be read"),
        ("http://h/", {"body": {"a": ["{{ argz.text }}"]}}, "did you mean 'args'"),
        ("http://h/", {"response": "a["}, "is not a JMESPath expression"),
        ("http://h/", {"parameters": {"text": "strng"}}, "expected one of"),
        ("http://h/", {"top_k": 5}, "only a preset takes it"),
        ("http://h/", {"preset": "search-r1"}, "the preset 'search-r1' gives it"),
    ],
)
def test_a_wrong_entry_is_the_authors_mistake(url: str, keys: dict[str, Any], says_what: str) -> None:
    with pytest.raises(UsageError, match=says_what):
        compiled(url, **{"parameters": TEXT, **keys})


SCORED = {
    "result": [
        [
            {"document": {"contents": '"Kite"\nIt flies.\nHigh.'}, "score": 0.9},
            {"document": {"contents": "Ball\nIt rolls."}, "score": 0.5},
        ]
    ]
}


def test_the_search_r1_preset_speaks_its_wire_format() -> None:
    asked: list[Any] = []

    async def retrieve(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, await request.json()))
        return web.json_response(SCORED)

    result = ask(retrieve, {"query": "what flies?"}, path="/retrieve", preset="search-r1", top_k=2)
    assert asked == [("POST", "/retrieve", {"queries": ["what flies?"], "topk": 2, "return_scores": True})]
    assert result.text == 'Doc 1(Title: "Kite") It flies.\nHigh.\nDoc 2(Title: Ball) It rolls.'
    assert result.value[1] == {"title": "Ball", "text": "It rolls.", "score": 0.5}


def test_the_search_r1_preset_reads_documents_without_scores() -> None:
    bare = {"result": [[one["document"] for one in SCORED["result"][0]]]}
    answer = says(json.dumps(bare), content_type="application/json")
    result = ask(answer, {"query": "q"}, preset="search-r1")
    assert result.text.startswith('Doc 1(Title: "Kite") It flies.')
    assert result.value[0]["score"] is None


@pytest.mark.parametrize(
    "wrong", ["{}", "[]", '{"result": [[1]]}', '{"result": [[{"document": {}}]]}', '{"result": 3}']
)
def test_another_wire_format_is_a_failure(wrong: str) -> None:
    result = ask(says(wrong, content_type="application/json"), {"query": "q"}, preset="search-r1")
    assert result.text == "the server's answer is not of the form that this tool reads"
    assert result.whose == "unclear"


def test_a_lone_surrogate_in_an_argument_breaks_nothing() -> None:
    keys: dict[str, Any] = {"parameters": TEXT, "path": "/{{ args.text }}"}
    assert ask(echo, {"text": "\ud800"}, **keys).outcome in ("ok", "bad_arguments")
    result = ask(echo, {"text": "\ud800"}, parameters=TEXT, body={"a": "{{ args.text }}"})
    assert result.text == "the arguments cannot be sent as JSON"
