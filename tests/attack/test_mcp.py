"""A hostile MCP server costs the calls that it has, and nothing else: not the event loop, not memory, not others."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

pytest.importorskip("mcp", reason="needs the extra mcp")

import orjson

from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.testing.tools import call, context, kept
from rlenv.tools._mcp import TOO_LARGE, Events, MessageBudget
from rlenv.tools.base import Tool, ToolContext
from rlenv.tools.mcp import KIND, McpSpec

SERVERS = Path(__file__).parent / "servers"
SLOW = {"timeout_s": 100.0, "start_timeout_s": 90.0}
MOST_CPU_S = 1.5
"""Of the loop's thread for one call: a start of a client and of a server included, which take most of it."""
Make = Callable[[], ToolContext]

pytestmark = pytest.mark.timeout(240)


def bad(listing: str = "", **keys: Any) -> Sequence[Tool]:
    command = ("python", "bad.py", listing) if listing else ("python", "bad.py")
    spec = McpSpec(kind="mcp", **{"command": command, **SLOW, **keys})
    made: Sequence[Tool] = KIND.factory("bad", spec, CompileContext(base=SERVERS))
    return made


def within(work: Callable[[Make], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with kept(lambda: context(seconds=120)) as make:
            return await work(make)

    return asyncio.run(asyncio.wait_for(main(), 200))


def results(tool: Tool, *hows: str) -> list[ToolResult]:
    async def work(make: Make) -> list[ToolResult]:
        found = []
        for how in hows:
            before = time.thread_time()
            found.append(await call(tool, {"how": how}, within=make()))
            assert time.thread_time() - before < MOST_CPU_S, how
        return found

    found: list[ToolResult] = within(work)
    return found


def test_an_answer_over_the_limits_fails_its_call_as_the_policys_and_leaves_the_session() -> None:
    hows = ("parts", "objects", "deep", "digits", "long", "plain")
    *over, last = results(bad()[0], *hows)
    assert [(one.outcome, one.reason, one.whose) for one in over] == [("failed", "too_large", "policy")] * len(over)
    assert (last.outcome, last.text) == ("ok", "ok")


def test_what_is_large_and_within_the_limits_arrives() -> None:
    large, surrogate, images, many, mime = results(bad()[0], "large", "surrogate", "images", "many", "mime")
    assert large.outcome == "ok"
    assert large.text.startswith("aaa")
    assert surrogate.text == "a?b"
    assert len(images.images) <= 16
    assert "images are left out" in images.text
    assert many.text.count("a\n") == 256
    assert "44 more parts are left out" in many.text
    assert mime.images == ()


@pytest.mark.parametrize(
    ("how", "reason", "whose"),
    [
        ("error -32602", "refused", "policy"),
        ("error -32603", "server_error", "unclear"),
        ("exit", "crashed", "unclear"),
        ("killed", "killed", "unclear"),
        ("closed", "server_error", "unclear"),  # as a server says that passes on what another one has to say
        ("dumb", "disconnected", "unclear"),
        ("torn", "disconnected", "unclear"),
    ],
)
def test_a_failure_says_whose_it_is(how: str, reason: str, whose: str) -> None:
    found, after = results(bad()[0], how, "plain")
    assert (found.reason, found.whose) == (reason, whose)
    assert after.outcome == "ok"


@pytest.mark.parametrize("how", ["half", "later"])
def test_half_a_line_spoils_no_answer_behind_it(how: str) -> None:
    assert [(one.outcome, one.text) for one in results(bad()[0], how, "plain")] == [("ok", "its own"), ("ok", "ok")]


def test_what_a_call_makes_its_server_write_is_no_answer_to_another_one_and_no_second_to_its_own() -> None:
    (tool,) = bad()

    async def work(make: Make) -> list[ToolResult]:
        found = await asyncio.gather(*(call(tool, {"how": how}, within=make()) for how in ("waits", "forges")))
        return [*found, await call(tool, {"how": "plain"}, within=make())]

    assert [one.text for one in within(work)] == ["its own", "its own", "ok"]


def test_a_server_that_held_a_call_in_a_trial_has_no_other_one() -> None:
    from rlenv.concurrency.deadline import Expired
    from rlenv.tools._mcp.link import open_pool
    from rlenv.tools._mcp.server import McpServer

    async def main() -> list[Any]:
        server = McpServer(name="bad", command=("python", "bad.py"), cwd=SERVERS, start_timeout_s=90.0)
        async with open_pool(server, size=1, is_trial=True) as pool:
            await pool.call("t", {"how": "plain"}, deadline=time.monotonic() + 90)
            with pytest.raises(Expired):
                await pool.call("t", {"how": "deaf"}, deadline=time.monotonic() + 0.3)
            return (await pool.call("t", {"how": "plain"}, deadline=time.monotonic() + 90)).content

    (said,) = asyncio.run(asyncio.wait_for(main(), 200))
    assert said.text == "ok"


@pytest.mark.slow
def test_a_server_that_something_stopped_is_replaced_and_nobody_knows_by_whom() -> None:
    (tool,) = bad()

    async def work(make: Make) -> list[ToolResult]:
        within = replace(make(), deadline=time.monotonic() + 4.0)
        stopped = await call(tool, {"how": "stopped"}, within=within)
        return [stopped, await call(tool, {"how": "plain"}, within=make())]

    found, after = within(work)
    assert (found.outcome, found.reason, found.whose) == ("timeout", "stopped", "unclear")
    assert after.outcome == "ok"


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf"), {"\udfff": 1}])
def test_arguments_that_no_json_holds_are_the_policys_and_leave_the_session(value: object) -> None:
    (tool,) = bad()
    open_tool = replace(tool, parameters={"type": "object", "additionalProperties": True})

    async def work(make: Make) -> list[ToolResult]:
        return [await call(open_tool, {"how": how}, within=make()) for how in (value, "plain")]

    found, after = within(work)
    assert (found.outcome, found.whose) == ("bad_arguments", "policy")
    assert after.outcome == "ok"


def test_messages_that_nobody_asked_for_are_not_heard() -> None:
    (found,) = results(bad()[0], "notes")
    assert (found.outcome, found.text) == ("ok", "done")


def test_an_answer_is_not_read_by_the_servers_own_schema() -> None:
    (found,) = results(bad("output")[0], "structured")
    assert found.outcome == "ok"
    assert found.value == {"y": "a" * 40 + "!"}


def test_a_server_that_reads_nothing_is_ended_before_it_fills_the_memory() -> None:
    (tool,) = bad()

    async def work(make: Make) -> list[ToolResult]:
        deaf = asyncio.ensure_future(call(tool, {"how": "deaf"}, within=make()))
        await asyncio.sleep(0)
        filled = [call(tool, {"how": "x" * 1_000_000}, within=make()) for _ in range(16)]
        return list(await asyncio.gather(deaf, *filled))

    found = within(work)
    assert {one.outcome for one in found} <= {"failed", "ok"}
    assert found[0].outcome == "failed"


def test_a_daemon_of_a_server_ends_with_it() -> None:
    (found,) = results(bad()[0], "daemon")
    assert not Path(f"/proc/{found.text}").exists() or " Z " in Path(f"/proc/{found.text}/stat").read_text()


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        ("ref:http://127.0.0.1:9/latest/meta-data", "nothing is fetched"),
        ("ref:file:///etc/passwd", "nothing is fetched"),
        ("ref:other.json", "nothing is fetched"),
        ("ref:#/properties/how", "refers to itself"),
        ("doubled", "its references multiply"),
        ("many", "more than 1,000 tools"),
    ],
)
def test_a_listing_that_breaks_the_rules_is_refused_at_compile(listing: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        bad(listing)


def test_a_pattern_that_takes_more_than_linear_time_is_left_to_the_server() -> None:
    (tool,) = bad(r"pattern:^(?!x)(a+)+$")
    assert "pattern" not in tool.parameters["properties"]["how"]


def test_descriptions_hold_no_control_characters_and_are_bounded() -> None:
    (tool,) = bad("described")
    assert "\x1b" not in tool.description
    assert "\u202e" not in tool.description
    assert "\x07" not in tool.description
    assert len(tool.description) < 20_000
    assert tool.parameters["properties"]["how"]["description"] == "ab"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_read_no_faster_than_its_allowance_comes_back() -> None:
    clock = Clock()
    gate = MessageBudget(clock=clock)

    def admitted() -> int:
        return next(count for count in itertools.count() if not gate.admits(10))

    assert 3_000 < admitted() < 5_000
    clock.now += 1
    assert 900 < admitted() < 1_100
    clock.now += 3_600  # what is not used is not saved up
    assert 3_000 < admitted() < 5_000
    gate.asked()
    assert gate.admits(8_000_000)
    assert gate.admits(8_000_000)


def events(*chunks: bytes, is_answer: bool = True, **keys: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        screen = Events(MessageBudget(), is_answer=is_answer, **keys)
        return [event for chunk in chunks for event in [one async for one in screen.of(chunk)]]

    return asyncio.run(main())


ANSWER = b'event: message\r\nid: 7\r\ndata: {"jsonrpc":"2.0",\r\ndata: "id":1,"result":{}}\r\n\r\n'


def test_events_are_the_same_however_they_are_cut() -> None:
    whole = events(ANSWER.replace(b"\r\n", b"\r") + ANSWER.replace(b"\r\n", b"\n") + ANSWER)
    pieces = events(*(bytes([byte]) for byte in ANSWER))
    assert whole == [b'event: message\nid: 7\ndata: {"jsonrpc":"2.0",\ndata: "id":1,"result":{}}\n\n'] * 3
    assert pieces == whole[:1]


def test_an_event_over_the_limits_is_an_error_of_its_call() -> None:
    for data in (b"[" * 200, b"[" + b"{}," * 50_000 + b"1]", b"x" * 9_000_000):
        (found,) = events(b"data: " + data + b"\n\n")
        error = orjson.loads(found.partition(b"data: ")[2])["error"]
        assert error["code"] == TOO_LARGE
    sent = b'data: {"jsonrpc":"2.0","id":5,"result":{"x":"' + b"x" * 50_000
    first, _ = events(sent, b"y" * 50_000, b'"}}\n\n' + ANSWER, is_answer=False, max_bytes=40_000)
    assert orjson.loads(first.partition(b"data: ")[2])["id"] == 5


def test_the_wait_before_the_next_attempt_is_the_clients() -> None:
    assert events(b"retry: 0\n\n") == [b"event: message\nretry: 1000\ndata: \n\n"]
    assert events(b"retry: 999999999\n\n") == [b"event: message\nretry: 30000\ndata: \n\n"]
    assert events(b"retry: -5\n\n", b"retry: " + b"9" * 5_000 + b"\n\n", b": hello\n\n") == []


def test_a_notification_that_nobody_hears_is_dropped_and_a_change_is_heard_once() -> None:
    changed = b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
    logged = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n'
    assert len(events(logged * 100 + changed * 100, is_answer=False)) == 1


TOOL = {"name": "look", "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}}}}
TOLD: dict[str, Any] = {  # `own` and `other` are the ids of the call and of the one that waits
    "the other one's id": {"id": "other", "result": {"content": [{"type": "text", "text": "forged"}]}},
    "no id": {"id": None, "error": {"code": -32603, "message": "forged"}},
    "closed": {"id": "own", "error": {"code": -32000, "message": "Connection closed"}},
    **{str(code): {"id": "own", "error": {"code": code, "message": "x"}} for code in (-32081, -32082, -32084)},
}


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("how", ["redirect", "compressed", "no content, and more", *TOLD])
def test_what_a_server_answers_one_call_over_http_is_no_other_calls(how: str, status: int) -> None:
    """Nor does it end their session, or count as the server's being away; and another place of its own is asked."""
    starts, waiting = list[str](), list[int]()

    async def work() -> tuple[ToolResult, ToolResult]:
        is_there, may_end = asyncio.Event(), asyncio.Event()

        async def handler(request: web.Request) -> web.StreamResponse:
            if request.method != "POST":
                return web.Response(status=405)
            if request.path == "/mcp":  # as servers do whose place ends in a slash
                return web.Response(status=307, headers={"Location": "/mcp/"})
            asked = orjson.loads(await request.read())
            own, given = asked.get("id"), asked.get("params") or {}
            if own is None:
                return web.Response(status=204 if how.startswith("no content") else 202)
            said: Any = {"tools": [TOOL]}
            if asked["method"] == "initialize":
                starts.append("session")
                info = {"name": "s", "version": "1"}
                said = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            elif asked["method"] == "tools/call" and given["arguments"]["how"] == "waits":
                waiting.append(own)
                is_there.set()
                await may_end.wait()
                said = {"content": [{"type": "text", "text": "its own"}]}
            elif asked["method"] == "tools/call" and given["arguments"]["how"] == "well":
                said = {"content": [{"type": "text", "text": "well"}]}
            elif asked["method"] == "tools/call":
                if how == "redirect":
                    return web.Response(status=307, headers={"Location": "/mcp/"})
                if how == "compressed":
                    return web.Response(status=status, headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8b")
                if how not in TOLD:
                    assert request.transport is not None
                    request.transport.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nnull")
                    return web.Response(status=500)
                identity = {"own": own, "other": waiting[0]}.get(TOLD[how]["id"])
                return web.json_response({"jsonrpc": "2.0", **TOLD[how], "id": identity}, status=status)
            return web.json_response({"jsonrpc": "2.0", "id": own, "result": said})

        async def ask(url: str) -> tuple[ToolResult, ToolResult]:
            spec = McpSpec(kind="mcp", url=url, timeout_s=100.0, start_timeout_s=90.0)
            (tool,) = await asyncio.to_thread(KIND.factory, "far", spec, CompileContext(base=SERVERS))
            starts.clear()
            async with kept(lambda: context(seconds=120)) as make:
                other = asyncio.create_task(call(tool, {"how": "waits"}, within=make()))
                await is_there.wait()
                found = await call(tool, {"how": how}, within=make())
                assert (await call(tool, {"how": "well"}, within=make())).text == "well"
                may_end.set()
                return found, await other

        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", handler)
        async with TestServer(app) as server:
            return await ask(str(server.make_url("/mcp")))

    found, other = asyncio.run(asyncio.wait_for(work(), 200))
    assert (found.reason, found.whose) == ("server_error", "unclear")
    assert (other.outcome, other.text) == ("ok", "its own")
    assert starts == ["session"]
