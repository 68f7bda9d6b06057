"""The client of OpenAI-compatible servers, against a real one on loopback."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from rlenv.concurrency.scope import Scope
from rlenv.endpoints import Client, Endpoint, compile_endpoint
from rlenv.endpoints.account import Completion
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
