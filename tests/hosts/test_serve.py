"""A server of episodes: OpenEnv's wire, NeMo Gym's, and what a client may do to it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from rlenv.errors import UsageError
from rlenv.hosts.http import Silent, is_local
from rlenv.hosts.http_sessions import HttpSessions
from rlenv.hosts.serve import EPISODES, Board, Server, ServerLimits, Slots
from tests.hosts.serving import DOWN, Served, raw, serving
from tests.support.asked import asking
from tests.support.environments import BASE, Make

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'
ANSWER = "<answer>5</answer>"
TOKEN = "a token of many letters"
SLOW = """
import asyncio

async def hang(n: int) -> str:
    "Hang."
    await asyncio.sleep(600)
    return "late"
"""
DRAWN = """
from rlenv.messages import Image
from rlenv.tools.base import ToolOutput

def draw() -> ToolOutput:
    "Draws."
    return ToolOutput("a dot", images=(Image("image/png", "aGk="),))
"""
HANGING = BASE.replace("tools:", 'tools:\n  hang: {kind: python, function: "tools.py:hang", timeout_s: 500}')
HANG = '<tool_call>\n{"name": "hang", "arguments": {"n": 1}}\n</tool_call>'


class Client:
    """A socket and the HTTP routes of a server."""

    def __init__(self, http: aiohttp.ClientSession, served: Served) -> None:
        self.http, self.url = http, served.url

    async def open(self, path: str = "/ws", **options: Any) -> aiohttp.ClientWebSocketResponse:
        return await self.http.ws_connect(f"{self.url}{path}", max_msg_size=0, **options)

    async def asked(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with self.http.request(method, f"{self.url}{path}", json=body, headers=headers) as response:
            return response.status, await response.json()


async def ask(socket: aiohttp.ClientWebSocketResponse, kind: str, **data: Any) -> Any:
    await socket.send_json({"type": kind, "data": data})
    return json.loads((await socket.receive(30)).data)


def play(served: Served, main: Callable[[Client], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        jar = aiohttp.CookieJar(unsafe=True)  # of an address without a name too
        async with asyncio.timeout(60), aiohttp.ClientSession(cookie_jar=jar) as http:
            return await main(Client(http, served))

    return asyncio.run(run())


def ended(served: Served) -> None:
    """Returns once no session is left; what leaks is never free."""
    served.wait_for(lambda: served.server.slots.active == 0 and not served.server.conversations)


def test_an_episode_by_openenvs_wire(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket = await client.open()
        first = await ask(socket, "reset", seed=1, episode_id="e1")
        assert (first["type"], first["data"]["reward"], first["data"]["done"]) == ("observation", None, False)
        observation = first["data"]["observation"]
        assert observation["messages"][-1] == {"role": "user", "content": "What is 4 + 4?"}  # seed 1: the second task
        assert observation["text"].endswith("assistant\n")
        assert observation["tools"][0]["function"]["name"] == "calculate"
        step = await ask(socket, "step", message=CALL)
        assert step["data"]["observation"]["messages"][0]["content"] == "5"
        state = await ask(socket, "state")
        assert state == {"type": "state", "data": {"episode_id": "e1", "step_count": 1, "is_ended": False}}
        last = (await ask(socket, "step", message="<answer>8</answer>"))["data"]
        assert (last["reward"], last["done"]) == (1.0, True)
        outcome = {"total": 1.0, "success": True, "failure": None, "terms": {"correct": 1.0}}
        assert last["metadata"] == {"terminated": True, "truncated": False, "reason": "answer", **outcome}
        paid_once = last | {"reward": 0.0}  # a client that adds rewards up has the total, however often it steps
        assert [(await ask(socket, "step", message="again"))["data"] for _ in range(2)] == [paid_once] * 2
        assert "answer" not in json.dumps(first["data"]["metadata"])  # no gold
        await socket.close()

    with serving(make_environment()) as served:
        play(served, main)
        ended(served)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", "INVALID_JSON", "not JSON"),
        ("[1]", "VALIDATION_ERROR", "an object"),
        ('{"type": "fly"}', "UNKNOWN_TYPE", "'fly'"),
        ('{"type": "step", "data": {"message": "x"}}', "VALIDATION_ERROR", "no episode yet"),
        ('{"type": "step", "data": {"nope": 1}}', "VALIDATION_ERROR", "expected"),
        ('{"type": "step", "data": {"message": "x", "more": 1}}', "VALIDATION_ERROR", "'more'"),
        ('{"type": "reset", "data": {"task": 99}}', "VALIDATION_ERROR", "tasks 0 to 1"),
        ('{"type": "reset", "data": {"task": {"answer": 1}}}', "VALIDATION_ERROR", "whole number"),
        ('{"type": "reset", "data": {"split": 3}}', "VALIDATION_ERROR", "split is 3"),
        ('{"type": "reset", "data": []}', "VALIDATION_ERROR", "no object"),
        ('{"type": "reset", "data": {"split": []}}', "VALIDATION_ERROR", "split is []"),
        ('{"type": "reset", "data": {"episode_id": {}}}', "VALIDATION_ERROR", "episode_id is {}"),
        ('{"type": "step", "data": {"message": "x", "metadata": []}}', "VALIDATION_ERROR", "no object"),
        ('{"type": "step", "data": {"message": "x", "tool_calls": 0}}', "VALIDATION_ERROR", "no list"),
        ('{"type": "step", "data": {"message": "x", "metadata": {"finish_reason": 5}}}', "VALIDATION_ERROR", "is 5"),
        ('{"type": "end", "data": {"reason": "mine", "turns": [1]}}', "VALIDATION_ERROR", "turns is [1]"),
        ('{"type": "end", "data": {}}', "VALIDATION_ERROR", "reason"),
        ('{"type": ' + "[" * 5000 + "]" * 5000 + "}", "INVALID_JSON", "nested deeper"),
    ],
)
def test_what_a_client_gets_wrong_is_said_and_the_session_goes_on(
    text: str, code: str, said: str, make_environment: Make
) -> None:
    async def main(client: Client) -> None:
        socket = await client.open()
        await socket.send_str(text)
        told = json.loads((await socket.receive(30)).data)
        assert (told["type"], told["data"]["code"]) == ("error", code)
        assert said in told["data"]["message"]
        assert (await ask(socket, "reset", task=0))["type"] == "observation"

    with serving(make_environment()) as served:
        play(served, main)
        ended(served)


async def hanging(client: Client, served: Served) -> tuple[Any, Any]:
    """A socket whose call does not end, and the server's side of it."""
    socket = await client.open()
    await ask(socket, "reset", task=0)
    (held,) = served.server.conversations
    await socket.send_json({"type": "step", "data": {"message": HANG}})
    await asyncio.to_thread(served.wait_for, lambda: held.is_answering)
    return socket, held


def test_a_client_that_leaves_in_a_call_frees_its_slot_at_once(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket, held = await hanging(client, served)
        await socket.close()
        await asyncio.to_thread(ended, served)
        outcome = held.session.trajectory.outcome()
        assert (outcome["total"], outcome["reason"]) == (None, "client")  # never a truncated 0.0

    with serving(make_environment(HANGING, tools=SLOW)) as served:
        play(served, main)


def test_a_client_that_is_killed_in_a_call_frees_its_slot_too(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket, _ = await hanging(client, served)
        transport = socket.get_extra_info("socket")
        transport.shutdown(2)
        await asyncio.to_thread(ended, served)

    with serving(make_environment(HANGING, tools=SLOW)) as served:
        play(served, main)


def _upgrade(served: Served) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


def test_a_half_open_socket_is_pinged_and_given_up(make_environment: Make) -> None:
    with serving(make_environment(), limits=ServerLimits(heartbeat_s=0.2)) as served, raw(served) as connection:
        connection.sendall(_upgrade(served))
        assert b"101 Switching" in connection.recv(4096)
        served.wait_for(lambda: served.server.slots.active == 1)
        ended(served)  # it never answers a ping


def test_a_flood_is_cut_and_its_neighbour_is_answered(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        flood, neighbour = await client.open(), await client.open()
        await ask(flood, "reset", task=0)
        for _ in range(50):
            await flood.send_json({"type": "step", "data": {"message": HANG}})
        message = await flood.receive(30)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)
        assert (await ask(neighbour, "reset", task=0))["type"] == "observation"

    with serving(make_environment(HANGING, tools=SLOW)) as served:
        play(served, main)
        ended(served)


def test_eight_messages_may_wait_behind_the_one_that_is_answered(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket, _ = await hanging(client, served)
        for _ in range(9):
            await socket.send_json({"type": "state"})
        message = await socket.receive(30)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1008)

    with serving(make_environment(HANGING, tools=SLOW)) as served:
        play(served, main)
        ended(served)


def test_a_message_that_is_too_long_closes_its_own_socket(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket, neighbour = await client.open(), await client.open()
        await socket.send_json({"type": "step", "data": {"message": "x" * 100_000}})
        message = await socket.receive(30)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1009)
        binary = await client.open()
        await binary.send_bytes(b"\0")
        assert (await binary.receive(30)).data == 1003
        assert (await ask(neighbour, "reset", task=0))["type"] == "observation"

    with serving(make_environment(), limits=ServerLimits(message_bytes=50_000)) as served:
        play(served, main)
        ended(served)


BIG = """
def big(n: int) -> str:
    "Write much."
    return "y" * n
"""


def test_a_client_that_does_not_read_is_given_up(make_environment: Make) -> None:
    text = BASE.replace("tools:", 'tools:\n  big: {kind: python, function: "tools.py:big"}')
    text += "observation: {max_chars: 60000}\n"
    step = {"message": '<tool_call>\n{"name": "big", "arguments": {"n": 60000}}\n</tool_call>'}

    def frame(value: Any) -> bytes:
        body = json.dumps(value).encode()
        return bytes([0x81, 0x80 | 126, *len(body).to_bytes(2, "big"), 0, 0, 0, 0]) + body

    pair = ({"type": "reset", "data": {"task": 0, "pad": "x" * 200}}, {"type": "step", "data": step})

    def gone_on(number: int) -> bool:
        return served.server.board.own(EPISODES) > number or not served.server.conversations

    with (
        serving(make_environment(text, tools=BIG), limits=ServerLimits(send_s=0.3)) as served,
        raw(served) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(_upgrade(served))
        served.wait_for(lambda: served.server.slots.active == 1)
        for number in range(200):  # as much as the system buffers
            connection.sendall(b"".join(map(frame, pair)))
            served.wait_for(partial(gone_on, number))
            if not served.server.conversations:
                break
        ended(served)
        assert served.server.board.own(EPISODES) < 200


def test_an_idle_session_is_closed(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket = await client.open()
        told = json.loads((await socket.receive(30)).data)
        assert told["data"]["code"] == "SESSION_ERROR"

    with serving(make_environment(), limits=ServerLimits(idle_s=0.1)) as served:
        play(served, main)
        ended(served)


def test_at_capacity_a_client_is_told_and_waits_where_the_server_lets_it(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        first = await client.open()
        await ask(first, "reset", task=0)
        second = await client.open()
        told = json.loads((await second.receive(30)).data)["data"]
        assert (told["code"], told["active_sessions"], told["max_sessions"]) == ("CAPACITY_REACHED", 1, 1)
        assert (await client.asked("GET", "/health"))[1]["active_sessions"] == 1

    async def queued(client: Client) -> None:
        first, second = await client.open(), await client.open()
        await ask(first, "reset", task=0)
        await asyncio.to_thread(served.wait_for, lambda: served.server.slots.waiting == 1)
        await first.close()
        assert (await ask(second, "reset", task=0))["type"] == "observation"

    with serving(make_environment(), limits=ServerLimits(sessions=1)) as served:
        play(served, main)
        ended(served)
    with serving(make_environment(), limits=ServerLimits(sessions=1, queue_s=30)) as served:
        play(served, queued)
        ended(served)


def test_places_are_given_in_order_and_none_is_lost() -> None:
    async def main() -> None:
        slots = Slots(2)
        assert [await slots.take(0), await slots.take(0), await slots.take(0)] == [True, True, False]
        waiting = [asyncio.create_task(slots.take(30)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await slots.take(30) is False  # as many wait as have one
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        slots.free()
        assert await waiting[1] is True
        assert await slots.take(0.01) is False
        left = asyncio.create_task(slots.take(30))
        await asyncio.sleep(0)
        slots.free()  # given to a client that leaves in the same moment
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert (slots.active, slots.waiting) == (1, 0)
        slots.free()
        assert (slots.active, slots.waiting) == (0, 0)

    asyncio.run(main())


def test_a_server_that_is_told_to_end_lets_episodes_end_and_takes_no_other(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        socket = await client.open()
        await ask(socket, "reset", task=0)
        served.loop.call_soon_threadsafe(served.stopped.set)
        await asyncio.to_thread(served.wait_for, lambda: served.server.is_draining)
        status, told = await client.asked("GET", "/health")
        assert (status, told["status"]) == (503, "draining")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.open()
        assert (await ask(socket, "step", message=ANSWER))["data"]["reward"] == 1.0
        assert (await socket.receive(30)).data == 1001

    with serving(make_environment(), limits=ServerLimits(drain_s=30)) as served:
        play(served, main)


def test_a_token_is_asked_for_everywhere_but_for_the_health(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        for path in ("/card", "/metadata", "/toy/splits", "/list_environments"):
            assert (await client.asked("GET", path))[0] == 401
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await client.open()
        assert (await client.asked("GET", "/health"))[0] == 200
        assert (await client.asked("GET", "/card", Authorization=f"Bearer {TOKEN}x"))[0] == 401
        assert (await client.asked("GET", "/card", Authorization=f"Bearer {TOKEN}"))[0] == 200
        socket = await client.open(f"/ws?token={TOKEN.replace(' ', '%20')}")
        assert (await ask(socket, "reset", task=0))["type"] == "observation"

    with serving(make_environment(), token=TOKEN) as served:
        play(served, main)


def test_a_page_in_a_browser_is_kept_out(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        assert (await client.asked("GET", "/card", Origin="http://evil.example"))[0] == 403
        assert (await client.asked("GET", "/card", Host="evil.example:8000"))[0] == 403

    with serving(make_environment()) as served:
        play(served, main)
    names = ("localhost", "localhost:8", "127.0.0.1:8", "[::1]:8", "127.9.9.9")
    others = ("0.0.0.0", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "")
    assert [[*map(is_local, names)], [*map(is_local, others)]] == [[True] * 5, [False] * 5]


def test_the_words_of_a_failure_stay_with_the_server(make_environment: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def main(client: Client) -> Any:
        socket = await client.open()
        await ask(socket, "reset", task=0)
        return await ask(socket, "step", message=ANSWER)

    with serving(make_environment(DOWN)) as served:
        told = play(served, main)
    assert (told["data"]["reward"], told["data"]["done"]) == (None, True)
    assert told["data"]["metadata"]["failure"]["reason"] == "reward"
    assert "secret-judge" not in json.dumps(told)
    assert "secret-judge" in caplog.text


def test_several_specs_have_an_address_each_and_the_tasks_their_numbers(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        assert (await client.asked("GET", "/list_environments"))[1] == ["toy", "other"]
        assert (await client.asked("GET", "/env/other/metadata"))[1]["name"] == "other"
        assert (await client.asked("GET", "/toy/splits"))[1] == [{"name": "train", "num_tasks": 2}]
        assert (await client.asked("POST", "/toy/num_tasks", {"split": "train"}))[1] == {"num_tasks": 2}
        assert (await client.asked("POST", "/toy/task", {"split": "train", "index": 1}))[1]["task"]["task"] == 1
        assert len((await client.asked("POST", "/toy/tasks", {"split": "train"}))[1]["tasks"]) == 2
        body = {"split": "train", "start": 1, "stop": 2}
        assert (await client.asked("POST", "/toy/task_range", body))[1]["tasks"] == [{"split": "train", "task": 1}]
        assert (await client.asked("POST", "/toy/task_range", {"start": 1}))[1]["tasks"] == []
        for index in (-1, 2, 9):  # behind the last of two
            assert (await client.asked("POST", "/toy/task", {"split": "train", "index": index}))[0] == 400
        assert (await client.asked("POST", "/toy/task", {"split": "no"}))[0] == 404
        assert (await client.asked("POST", "/step", {"message": "x"}))[0] == 409
        assert (await client.asked("POST", "/reset", {}))[1]["observation"]["messages"]
        socket = await client.open("/env/other/ws")
        assert (await ask(socket, "reset", task=0))["data"]["observation"]["messages"]

    first, second = make_environment(), make_environment(BASE.replace("name: toy", "name: other"))
    with serving(first, second) as served:
        play(served, main)
        ended(served)


def test_json_rpc_calls_tools_in_a_session_of_its_own(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        async def rpc(method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            status, told = await client.asked("POST", "/mcp", body)
            assert status == 200
            return told

        assert (await client.asked("POST", "/mcp", {}))[1]["error"]["code"] == -32600
        assert [one["name"] for one in (await rpc("tools/list"))["result"]["tools"]] == ["calculate"]
        session = (await rpc("openenv/session/create", task=0))["result"]["session_id"]
        call = {"session_id": session, "name": "calculate", "arguments": {"expression": "2+3"}}
        assert (await rpc("tools/call", **call))["result"]["content"][0]["text"] == "5"
        closed = (await rpc("openenv/session/close", session_id=session, answer=ANSWER))["result"]
        assert (closed["closed"], closed["total"]) == (True, 1.0)
        again = await rpc("openenv/session/close", session_id=session, answer="<answer>0</answer>")
        assert again["result"] == closed
        assert (await rpc("tools/call", **call))["error"]["code"] == -32602
        other = (await rpc("openenv/session/create", task=0))["result"]["session_id"]
        for wrong in ({"answer": 5}, {"session_id": [other]}, {"session_id": "guessed"}):
            told = await rpc("openenv/session/close", **{"session_id": other, "answer": ANSWER} | wrong)
            assert told["error"]["code"] == -32602
        for more in ({}, {"_ng_step_request_id": 5}):
            step = {"response": {"output": []}, **more}
            assert (await client.asked("POST", "/step", step, Cookie=f"rlenv_session={other}"))[0] in (404, 422)
        both = [rpc("openenv/session/close", session_id=other, answer=ANSWER) for _ in range(2)]
        assert {one["result"]["total"] for one in await asyncio.gather(*both)} == {1.0}
        assert (await rpc("fly"))["error"]["code"] == -32601

    with serving(make_environment()) as served:
        play(served, main)
        ended(served)


@pytest.mark.parametrize("option", ["keep", "drop"])
def test_json_rpc_shows_the_images_that_an_episode_shows(option: str, make_environment: Make) -> None:
    async def main(client: Client) -> None:
        async def rpc(method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return (await client.asked("POST", "/mcp", body))[1]["result"]

        session = (await rpc("openenv/session/create", task=0))["session_id"]
        told = await rpc("tools/call", session_id=session, name="draw", arguments={})
        assert [one["type"] for one in told["content"]] == ["text"] + ["image"] * (option == "keep")

    spec = BASE.replace("tools:", 'tools:\n  draw: {kind: python, function: "tools.py:draw"}')
    with serving(make_environment(spec, tools=DRAWN, observation__images=option)) as served:
        play(served, main)


def _response(text: str, *calls: tuple[str, str, str]) -> dict[str, Any]:
    output: list[dict[str, Any]] = [{"type": "reasoning", "summary": [{"text": "I think."}]}]
    output += [{"type": "message", "content": [{"type": "output_text", "text": text}]}] if text else []
    output += [{"type": "function_call", "call_id": id, "name": name, "arguments": given} for id, name, given in calls]
    return {"output": output}


ROW = {"responses_create_params": {"input": [{"role": "user", "content": "What?"}]}, "rlenv": {"task": 0}}


def test_nemo_gyms_agent_plays_an_episode_by_its_cookie(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        status, reset = await client.asked("POST", "/reset", ROW)
        assert (status, reset["observation"], reset["info"]["supports_explicit_close"]) == (200, None, True)
        call = _response("", ("c1", "calculate", '{"expression": "2+3"}'))
        step = {**ROW, "response": call, "_ng_step_request_id": "one"}
        first = await client.asked("POST", "/step", step)
        assert first[1]["info"]["tool_outputs"] == [{"call_id": "c1", "output": "5"}]
        assert (first[1]["reward"], first[1]["terminated"]) == (0.0, False)
        assert await client.asked("POST", "/step", step) == first  # the answer was lost, and the request came again
        said = _response(ANSWER)
        ids = [7] * 32_000  # as NeMo Gym sends them where it trains, of a long context
        said["output"][-1] |= {"prompt_token_ids": ids * 4, "generation_token_ids": ids, "generation_log_probs": ids}
        last = (await client.asked("POST", "/step", {**ROW, "response": said}))[1]
        assert (last["reward"], last["terminated"], last["info"]["total"]) == (1.0, True, 1.0)
        assert (await client.asked("POST", "/close", {}))[0] == 200
        assert (await client.asked("POST", "/close", {}))[0] == 200
        assert (await client.asked("POST", "/step", {**ROW, "response": call}))[0] == 404
        assert (await client.asked("POST", "/reset", {"responses_create_params": {}}))[0] == 422
        given = {"verify_responses": [{"reward": 1}, {"reward": 0.0}, {"reward": 9.0, "mask_sample": True}]}
        assert (await client.asked("POST", "/aggregate_metrics", given))[1]["agent_metrics"] == {"mean/reward": 0.5}

    with serving(make_environment()) as served:
        play(served, main)
        ended(served)


@pytest.mark.parametrize("odd", [5, "x", [1], {"a": 1}, True])
def test_what_is_none_of_a_response_is_left_out_of_the_action(odd: Any, make_environment: Make) -> None:
    thought = [{"type": "reasoning", "summary": odd, "content": odd}, {"type": "message", "content": [odd]}]
    said = {**_response(ANSWER), "incomplete_details": odd}

    async def main(client: Client) -> None:
        await client.asked("POST", "/reset", ROW)
        status, told = await client.asked(
            "POST", "/step", {**ROW, "response": {**said, "output": [*thought, *said["output"]]}}
        )
        assert (status, told["reward"]) == (200, 1.0)

    with serving(make_environment()) as served:
        play(served, main)


@pytest.mark.parametrize("odd", ["\ud800", float("nan"), float("-inf")])
def test_what_pythons_json_writes_of_a_models_words_is_the_models_mistake_and_no_clients(
    odd: Any, make_environment: Make
) -> None:
    """A client that has read a call, and passes it on, would end its rollout over a message that is refused."""

    async def main(client: Client) -> None:
        socket = await client.open()
        await ask(socket, "reset", task=0)
        call = {"id": "c1", "function": {"name": "calculate", "arguments": {"expression": odd}}}
        told = (await ask(socket, "step", message="", tool_calls=[call]))["data"]
        assert "not JSON" in told["observation"]["messages"][0]["content"]
        assert (await ask(socket, "step", message=ANSWER))["data"]["reward"] == 1.0
        await client.asked("POST", "/reset", ROW)
        said = _response(ANSWER)
        said["output"].insert(0, {"type": "message", "content": [{"text": odd}], "generation_log_probs": [odd]})
        assert (await client.asked("POST", "/step", {**ROW, "response": said}))[1]["reward"] == 1.0
        body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {"task": 0}}
        at = (await client.asked("POST", "/mcp", body))[1]["result"]["session_id"]
        given = {"session_id": at, "name": "calculate", "arguments": {"expression": odd}}
        told = (await client.asked("POST", "/mcp", {**body, "method": "tools/call", "params": given}))[1]
        assert told["result"]["isError"]

    with serving(make_environment()) as served:
        play(served, main)


def test_nemo_gyms_agent_hears_of_an_invalid_reward_by_a_status_and_never_as_a_number(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        await client.asked("POST", "/reset", ROW)
        status, told = await client.asked("POST", "/step", {**ROW, "response": _response(ANSWER)})
        assert (status, told["mask_sample"], told["failure_kind"]) == (500, True, "rlenv:reward")
        assert "reward" not in told
        assert (await client.asked("POST", "/close", {}))[0] == 200

    with serving(make_environment(DOWN)) as served:
        play(served, main)
        ended(served)


def test_http_sessions_take_slots_are_swept_and_need_one_worker(make_environment: Make) -> None:
    async def main(client: Client) -> None:
        assert (await client.asked("POST", "/reset", ROW))[0] == 200
        assert (await client.asked("POST", "/reset", ROW))[0] == 503

    async def refused(client: Client) -> None:
        assert (await client.asked("POST", "/reset", ROW))[0] == 501

    with serving(make_environment(), limits=ServerLimits(sessions=1)) as served:
        play(served, main)
    with serving(make_environment(), board=Board(workers=2)) as served:
        play(served, refused)


def test_a_session_is_not_idle_while_a_call_of_it_runs(make_environment: Make, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    tools = SLOW.replace("    await", f"    open({str(begun)!r}, 'w').close()\n    await")
    server = Server({"toy": make_environment(HANGING, tools=tools)}, ServerLimits(idle_s=1e-9))
    sessions = HttpSessions(server)

    async def main() -> None:
        async with asking(server.application(sessions)) as ask:
            _, made = await ask.rpc("/mcp", "openenv/session/create", {"task": 0})
            call = {"session_id": made["result"]["session_id"], "name": "hang", "arguments": {"n": 1}}
            calling = asyncio.create_task(ask.rpc("/mcp", "tools/call", call))
            while not begun.exists():  # noqa: ASYNC110 - a tool's file is no event
                await asyncio.sleep(0.005)
            await ask.rpc("/mcp", "openenv/session/create", {"task": 0})
            assert server.slots.active == 2
            await sessions.reap()
            assert server.slots.active == 1
            calling.cancel()

    asyncio.run(main())


def test_what_cannot_be_served_is_refused_before_anything_starts(make_environment: Make) -> None:
    text = BASE.replace("calculate: {kind: calculator}", "step: {kind: calculator}").replace(
        "{calculate: {expr", "{step: {expr"
    )
    with pytest.raises(UsageError, match="a tool of toy is called 'step'"):
        Server({"toy": make_environment(text)})
    group = BASE.replace("oracle:", "  many: {kind: group, of: correct, by: rank, weight: 0.1}\noracle:")
    with pytest.raises(UsageError, match="compare the answers"):
        Server({"toy": make_environment(group)})


def test_a_connection_that_is_used_is_not_silent_though_nothing_is_ever_asked_as_it_is_looked_at() -> None:
    class Connection:
        _request_count, _current_request = 0, None

    used, silent, busy = Connection(), Connection(), Connection()
    busy._current_request = cast(None, object())
    looks, left = Silent(), list[int]()
    for now in range(0, 60, 5):
        used._request_count += 1
        told = looks.since([used, silent, busy], float(now))
        assert told in ([], [silent])
        left += [now] if told else []
    assert left == list(range(30, 60, 5))
