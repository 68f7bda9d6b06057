"""The client of OpenAI-compatible servers, against a real one on loopback."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from rlenv.concurrency.deadline import paused_for
from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Client, Endpoint, compile_endpoint
from rlenv.endpoints.account import (
    Account,
    Completion,
    UnreadableAnswer,
    Usage,
    as_recorded,
    asking,
    asks,
    counted,
    merge_usage,
    read_call,
    read_chat,
    usage_of,
)
from rlenv.errors import EndpointError, MissingVariable, UsageError
from rlenv.language.spec import EndpointSpec, SamplingSpec
from rlenv.messages import Image, MalformedCall, Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint, Reply, never

PNG = base64.b64encode(b"\x89PNG").decode()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def endpoint(server: FakeEndpoint, **keys: Any) -> Endpoint:
    return compile_endpoint("writer", EndpointSpec(base_url=server.base_url, model="toy", **keys))


def ask(answers: Any, *, messages: list[Message] | None = None, **keys: Any) -> tuple[Completion, FakeEndpoint]:
    async def work() -> tuple[Completion, FakeEndpoint]:
        async with FakeEndpoint(answers) as server:
            client = Client(endpoint(server, **keys))
            try:
                return await client.chat(messages or [Message("user", "hi")]), server
            finally:
                await client.aclose()

    made: tuple[Completion, FakeEndpoint] = run(work())
    return made


def test_a_conversation_is_answered_and_its_tokens_are_counted() -> None:
    completion, server = ask(["three small words"], sampling=SamplingSpec(temperature=0.5, extra={"top_k": 3}))
    assert completion.message == Message("assistant", "three small words")
    assert completion.usage.completion_tokens == 3
    assert completion.usage.prompt_tokens > 0
    body = server.requests[0]
    assert (body["model"], body["temperature"], body["top_k"]) == ("toy", 0.5, 3)
    assert body["messages"] == [{"role": "user", "content": "hi"}]


def test_secrets_are_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_WRITER", "sk-0123456789")
    keys: dict[str, Any] = {
        "api_key": "${env:RLENV_TEST_WRITER}",
        "headers": {"X-Also": "key ${env:RLENV_TEST_WRITER}"},
    }
    _, server = ask(["hello"], **keys)
    assert server.headers[0]["Authorization"] == "Bearer sk-0123456789"
    assert server.headers[0]["X-Also"] == "key sk-0123456789"
    with pytest.raises(EndpointError) as failed:
        ask([Reply(401, "no access for sk-0123456789")], **keys)
    assert "no access for ${env:RLENV_TEST_WRITER}" in str(failed.value)
    assert "sk-0123456789" not in repr(endpoint(server, **keys))


def test_calls_and_images_go_over_the_wire_and_back() -> None:
    image = Image("image/png", PNG)
    told = [
        Message("user", "look", images=(image,)),
        Message("assistant", "", (ToolCall("zoom", {"by": 2}, "c1"),)),
        Message("tool", "done", name="zoom", tool_call_id="c1"),
    ]
    answer = Message("assistant", "see", (ToolCall("zoom", {"by": 3}, "c2"),), images=(image,))
    completion, server = ask([answer], messages=told)
    assert completion.message == answer
    assert completion.finish_reason == "tool_calls"
    sent = server.requests[0]["messages"]
    assert sent[0]["content"][0] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    assert sent[1]["tool_calls"][0]["function"] == {"name": "zoom", "arguments": '{"by": 2}'}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_thinking_that_the_server_has_split_off_is_kept_and_not_sent_back(key: str) -> None:
    body = {"choices": [{"message": {"content": "5", key: "Two and three."}}]}
    completion, _ = ask([Reply(200, body)])
    assert (completion.message.content, completion.message.thinking) == ("5", "Two and three.")
    _, server = ask(["fine"], messages=[Message("user", "2 + 3"), completion.message])
    assert server.requests[0]["messages"][1] == {"role": "assistant", "content": "5"}


def test_arguments_that_are_not_json_are_a_malformed_call() -> None:
    calls = [{"id": "c", "function": {"name": "zoom", "arguments": "{"}}]
    body = {"choices": [{"message": {"content": None, "tool_calls": calls}}]}
    completion, _ = ask([Reply(200, body)])
    (call,) = completion.message.tool_calls
    assert isinstance(call, MalformedCall)
    assert (call.name, call.id, call.text) == ("zoom", "c", "{")


@pytest.mark.parametrize(
    "first",
    [Reply(408), Reply(409), Reply(425), Reply(429), Reply(500), Reply(503), Reply(drops=True), Reply(200, "<html>")],
    ids=str,
)
def test_what_may_pass_is_tried_again(first: Reply) -> None:
    completion, server = ask([first, "fine"], retries=1)
    assert completion.message.content == "fine"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("first", "last", "status"),
    [
        *((Reply(500), 429, 500), (Reply(200, "<html>"), 429, None), (Reply(drops=True), 429, None)),
        *((Reply(429), 429, 429), (Reply(500), 503, 503), (Reply(429), 503, 503)),
    ],
    ids=str,
)
def test_a_limit_of_rate_that_a_later_try_meets_tells_nothing_of_what_an_earlier_one_asked(
    first: Reply, last: int, status: int | None
) -> None:
    with pytest.raises(EndpointError) as failed:
        ask([first, Reply(last)], retries=1)
    assert (failed.value.status, failed.value.is_garbled) == (status, status is None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 301])
def test_what_will_not_pass_is_asked_once(status: int) -> None:
    seen: list[Mapping[str, Any]] = []

    def answer(body: Mapping[str, Any]) -> Reply:
        seen.append(body)
        return Reply(status, "no", headers={"Location": "http://127.0.0.1:9/v1"})

    with pytest.raises(
        EndpointError, match=rf"endpoint 'writer' \(toy at /chat/completions\): .* {status}: no"
    ) as failed:
        ask(answer, retries=3)
    assert failed.value.status == status
    assert len(seen) == 1


def test_a_server_that_asks_to_wait_too_long_is_not_waited_for() -> None:
    with pytest.raises(EndpointError, match="429"):
        ask([Reply(429, "later", headers={"Retry-After": "3600"}), "fine"], retries=3)


@pytest.mark.usefixtures("whole_pauses")
def test_retry_after_is_waited_for() -> None:
    asked: list[int] = []

    async def work() -> None:
        def answer(body: Mapping[str, Any]) -> Reply | str:
            if len(server.requests) > 1:
                return "fine"
            # Longer than the first wait of its own; timers of one loop run in the order in which they are due.
            asyncio.get_running_loop().call_later(1.0, lambda: asked.append(len(server.requests)))
            return Reply(429, headers={"Retry-After": "1.5"})

        async with FakeEndpoint(answer) as server:
            client = Client(endpoint(server))
            await client.chat([Message("user", "hi")])
            await client.aclose()
            assert (client.requests, client.retries) == (2, 1)

    run(work())
    assert asked == [1]


def test_no_answer_within_the_deadline_is_an_error() -> None:
    async def work() -> None:
        async with FakeEndpoint(lambda body: never()) as server:
            client = Client(endpoint(server, timeout_s=30.0))
            try:
                with pytest.raises(EndpointError, match="no answer from the server within"):
                    await client.chat([Message("user", "hi")], deadline=asyncio.get_running_loop().time() + 0.1)
            finally:
                await client.aclose()

    run(work())


def test_requests_at_once_stay_within_the_limit() -> None:
    async def work() -> None:
        gate, full = asyncio.Event(), asyncio.Event()

        async def answer(body: Mapping[str, Any]) -> str:
            if len(server.requests) == 3:
                full.set()
            await gate.wait()
            return "ok"

        async with FakeEndpoint(answer) as server:
            client = Client(endpoint(server, concurrency=3))
            asked = [asyncio.ensure_future(client.chat([Message("user", str(n))])) for n in range(10)]
            await full.wait()
            gate.set()
            await asyncio.gather(*asked)
            await client.aclose()
            assert server.most_at_once == 3
            assert client.requests == 10

    run(work())


def test_all_who_share_a_scope_share_one_client() -> None:
    async def work() -> None:
        async with FakeEndpoint(["ok"]) as server:
            one, scope = endpoint(server), Scope()
            first, second = await asyncio.gather(one.client(scope), one.client(scope))
            assert first is second
            await first.chat([Message("user", "hi")])
            await scope.aclose()
            assert first._session is None

    run(work())


Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("base_url", "says"), [("127.0.0.1:8000", "expected an address"), ("http://h/v1/chat/completions", "without")]
)
def test_an_address_that_is_none_is_the_authors_fault(base_url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compile_endpoint("writer", EndpointSpec(base_url=base_url, model="toy"))
    with pytest.raises(MissingVariable, match="RLENV_TEST_GONE"):
        compile_endpoint("writer", EndpointSpec(base_url="${env:RLENV_TEST_GONE}", model="toy"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", "the arguments are a list; expected an object"),
        ([1], "the arguments are a list; expected an object"),
        ("1", "the arguments are a number; expected an object"),
        ("{", "the arguments are not JSON"),
        ({"a": float("nan")}, "the arguments are not JSON"),
        ('{"a": 1} ' + " " * 4_000_000, "the arguments are too much to read"),
        ("[" * 2_000 + "]" * 2_000, "the arguments are too much to read"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_arguments_of_a_call_are_an_object_or_said_to_be_none(arguments: Any, expected: Any) -> None:
    call = read_call({"name": "zoom", "arguments": arguments}, "c")
    assert (call.name, call.id) == ("zoom", "c")
    if isinstance(expected, dict):
        assert isinstance(call, ToolCall)
        assert call.arguments == expected
    else:
        assert isinstance(call, MalformedCall)
        assert call.reason.startswith(expected)
        assert len(call.text) <= 10_000


@pytest.mark.parametrize("name", ["", None, 3, "a\ud800"])
def test_a_call_without_a_name_that_can_be_written_is_none(name: Any) -> None:
    call = read_call({"name": name, "arguments": "{}"}, "c")
    assert isinstance(call, MalformedCall)
    assert "the name is not valid Unicode" in call.reason if name == "a\ud800" else "has no name" in call.reason


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "holds no choices"),
        ({"choices": []}, "holds no choices"),
        ({"choices": {"message": {}}}, "holds no choices"),
        ({"choices": [3]}, "holds no choices"),
        ({"choices": [{"text": "a"}]}, "holds no message"),
        ({"choices": [{"message": {"tool_calls": {}}}]}, "tool calls are no list"),
        ({"choices": [{"message": {"tool_calls": ["x"]}}]}, "tool call holds no function"),
        ({"choices": [{"message": {"tool_calls": [{"id": "c"}]}}]}, "tool call holds no function"),
    ],
)
def test_an_answer_that_is_none_says_what_it_lacks(answer: dict[str, Any], says: str) -> None:
    with pytest.raises(UnreadableAnswer, match=says):
        read_chat(answer)


def test_of_a_choice_all_is_read_that_is_of_its_form_and_nothing_else() -> None:
    function = {"name": "zoom", "arguments": "{}"}
    message = {
        "content": [
            "no part",
            {"text": 3},
            {"text": "a"},
            {"image_url": f"data:image/png;base64,{PNG}"},
            {"text": "b"},
        ],
        "images": [{"image_url": {"url": f"data:image/jpeg;base64,{PNG}"}}, {"image_url": {"url": "http://h/x.png"}}],
        "tool_calls": [{"function": function, "id": 7}, {"function": function, "id": "c"}]
        + [{"function": function}] * 1_000,
        "refusal": "x" * 20_000,
        "reasoning": 3,
    }
    completion = read_chat({"choices": [{"message": message, "finish_reason": None}]})
    assert completion.message.content == "ab"
    assert [image.mime for image in completion.message.images] == ["image/png", "image/jpeg"]
    assert [call.id for call in completion.message.tool_calls[:3]] == ["call_0", "c", "call_2"]
    assert (len(completion.message.tool_calls), len(completion.refusal)) == (1_000, 10_000)
    assert (completion.finish_reason, completion.message.thinking, completion.usage) == ("", "", Usage())


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ([], Usage()),
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(3, 0)),
        ({"prompt_tokens": 0, "completion_tokens": 3}, Usage()),
        ({"prompt_tokens": 3}, Usage()),
        ({"completion_tokens": 3}, Usage()),
        ({"prompt_tokens": 3, "completion_tokens": -1}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 1}, Usage()),
        ({"prompt_tokens": 10**9, "completion_tokens": 1}, Usage()),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(3, 2, 3)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 9}},
         Usage(3, 2, 0, 2)),
        ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": 4}, Usage(3, 2)),
    ],
)  # fmt: skip
def test_tokens_are_counted_where_a_server_says_both_sums(usage: Any, expected: Usage) -> None:
    assert usage_of({"usage": usage}) == expected
    assert expected.is_known is (expected.prompt_tokens > 0)


def test_what_clients_have_cost_adds_up_by_its_parts() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44)

    async def work() -> tuple[int, int, Usage]:
        async with FakeEndpoint([Reply(500), "two words", "and three words"]) as server:
            client = Client(endpoint(server))
            answers = [await client.chat([Message("user", "hi")]) for _ in range(2)]
            await client.aclose()
            assert client.usage == answers[0].usage + answers[1].usage
            return client.requests, client.retries, client.usage

    requests, retries, usage = run(work())
    assert (requests, retries, usage.completion_tokens) == (3, 1, 5)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_what_a_proxy_answers_for_a_server_is_a_cut_only_where_it_had_answered(status: int) -> None:
    cuts: list[tuple[bool, int]] = []

    async def work() -> None:
        away = Reply(status, "away")
        async with FakeEndpoint([away, "fine", Reply(500, "no"), away, away, "fine", away]) as server:
            client = Client(endpoint(server, retries=0))
            for _ in range(7):
                try:
                    await client.chat([Message("user", "hi")])
                except EndpointError as error:
                    cuts.append((error.is_cut, client.server.cuts))
            await client.aclose()

    run(work())
    assert cuts == [(False, 0), (False, 0), (True, 1), (False, 1), (True, 2)]


def test_the_models_of_one_address_share_what_is_seen_of_its_server() -> None:
    async def work() -> tuple[bool, int]:
        async with FakeEndpoint(["fine", Reply(502, "away")]) as server:
            scope = Scope()
            first, second = [await endpoint(server, retries=0).client(scope) for _ in range(2)]
            await first.chat([Message("user", "hi")])
            with pytest.raises(EndpointError) as failed:
                await second.chat([Message("user", "hi")])
            await scope.aclose()
            return failed.value.is_cut, first.server.cuts

    assert run(work()) == (True, 1)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_as_many_tries_are_made_as_are_allowed_and_each_but_the_first_says_so(retries: int) -> None:
    tried: list[str | None] = []

    async def work() -> None:
        async with FakeEndpoint([Reply(503, "down")]) as server:
            client = Client(endpoint(server, retries=retries))
            with pytest.raises(EndpointError, match="503: down"):
                await client.chat([Message("user", "hi")])
            await client.aclose()
            tried.extend(headers.get("X-Stainless-Retry-Count") for headers in server.headers)

    run(work())
    assert tried == [None, *(str(number + 1) for number in range(retries))]


@pytest.mark.parametrize(
    ("asks_for", "tries"),
    [
        ("60", 2),
        ("60.5", 1),
        ("-3", 2),
        ("nan", 2),
        ("soon", 2),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 2),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 1),
        ("9" * 400, 1),
    ],
)
def test_a_server_is_waited_for_up_to_a_minute(asks_for: str, tries: int) -> None:
    async def work() -> int:
        async with FakeEndpoint([Reply(429, "later", headers={"Retry-After": asks_for}), "fine"]) as server:
            client = Client(endpoint(server, retries=1))
            with suppress(EndpointError):
                await client.chat([Message("user", "hi")])
            await client.aclose()
            return len(server.requests)

    with paused_for(0.0):
        assert run(work()) == tries


def test_no_try_is_begun_that_would_pass_the_deadline() -> None:
    async def work() -> None:
        async with FakeEndpoint([Reply(503, "down")]) as server:
            client = Client(endpoint(server, retries=9))
            with pytest.raises(EndpointError, match="503: down"):  # the first wait is half a second at most
                await client.chat([Message("user", "hi")], deadline=time.monotonic() + 0.2)
            assert len(server.requests) == 1
            with pytest.raises(EndpointError, match="there was no time to ask the server"):
                await client.chat([Message("user", "hi")], deadline=time.monotonic())
            assert (len(server.requests), client.requests, client.retries) == (1, 1, 0)
            await client.aclose()

    run(work())


@pytest.mark.parametrize(
    ("reply", "says", "is_garbled", "tries"),
    [
        (Reply(200, "<html>"), "the server's answer is not JSON", True, 2),
        (Reply(200, "[1]"), "the server's answer is no object", True, 2),
        (Reply(200, {"choices": []}), "the server's answer holds no choices", True, 2),
        (Reply(200, "[" * 2_000), "the server's answer is too much", True, 1),
        (Reply(200, "{}", headers={"Content-Encoding": "br"}), "compressed answer that was not asked for", True, 1),
        (Reply(500, "{}", headers={"Content-Encoding": "br"}), "compressed answer that was not asked for", False, 1),
        (Reply(drops=True), "no answer from the server", True, 2),
        (Reply(404, "no"), "the server answered 404: no", False, 1),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_answer_says_whether_it_was_of_what_was_asked_and_whether_it_is_asked_again(
    reply: Reply, says: str, is_garbled: bool, tries: int
) -> None:
    async def work() -> None:
        async with FakeEndpoint([reply]) as server:
            client = Client(endpoint(server, retries=1))
            with pytest.raises(EndpointError, match=says) as failed:
                await client.chat([Message("user", "hi")])
            await client.aclose()
            assert (failed.value.is_garbled, failed.value.is_late, len(server.requests)) == (is_garbled, False, tries)

    run(work())


def test_an_answer_that_did_not_come_in_time_is_late() -> None:
    with pytest.raises(EndpointError, match=r"no answer from the server within 0.05 s") as failed:
        ask(lambda _: never(), retries=0, timeout_s=0.05)
    assert (failed.value.is_late, failed.value.is_garbled, failed.value.status) == (True, False, None)


def test_fields_that_are_set_win_and_those_that_are_null_are_not_sent() -> None:
    async def work() -> list[dict[str, Any]]:
        own = SamplingSpec(temperature=0.5, max_tokens=9, extra={"top_k": 3, "min_p": None})
        async with FakeEndpoint(["fine"]) as server:
            client = Client(endpoint(server, sampling=own))
            for sampling in (None, SamplingSpec(temperature=0.0, extra={"top_k": None})):
                await client.chat([Message("user", "hi")], sampling=sampling)
            await client.aclose()
            return server.requests

    first, second = run(work())
    assert [(body.get("temperature"), body["max_tokens"]) for body in (first, second)] == [(0.5, 9), (0.0, 9)]
    assert (first["top_k"], "top_k" in second, "min_p" in first) == (3, False, False)


@pytest.mark.parametrize(
    ("address", "headers", "is_refused"),
    [
        ("http://u:p@h/v1", {"authorization": "x"}, True),
        ("http://u:p@h/v1", {}, False),
        ("http://h/v1", {"Authorization": "x"}, False),
        ("http://h/v1@x", {"Authorization": "x"}, False),
    ],
)
def test_a_request_has_one_login(address: str, headers: dict[str, str], is_refused: bool) -> None:
    with pytest.raises(UsageError, match="a user and a password") if is_refused else nullcontext():
        compile_endpoint("writer", EndpointSpec(base_url=address, model="toy", headers=headers))


def test_what_is_asked_is_counted_for_the_role_around_it_and_for_every_account_above() -> None:
    outer = Account()
    with counted(outer), asks("agent a"):
        inner = Account()
    with counted(inner), asks("policy"):
        who = asking()
        assert who is not None
        who.tried("m", Usage(1, 2), seconds=3.0)
        who.tried("m", Usage(), failed=True)
        who.tried("m", Usage())
        who.unread("m")
        who.known("m")
        with counted(None), asks("tool t"):
            within = asking()
            assert within is not None
            within.tried("m", Usage(5, 5), is_recorded=True)
    assert asking() is None
    first, second = inner.entries()
    assert (first.role, second.role, second.is_recorded) == ("policy", "policy > tool t", True)
    assert (first.requests, first.failed, first.unknown, first.cached) == (3, 2, 1, 1)
    assert (first.prompt_tokens, first.completion_tokens, first.seconds) == (1, 2, 3.0)
    assert [replace(one, role=one.role.removeprefix("agent a > ")) for one in outer.entries()] == [first, second]
    assert [one.role for one in outer.entries()] == ["agent a > policy", "agent a > policy > tool t"]
    assert all(one.is_recorded for one in as_recorded(inner.entries()))
    assert merge_usage((first, first, second))[0].requests == 6
