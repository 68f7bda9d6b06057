"""A spec's tools, task and reward for clients of MCP of both eras, over HTTP and over standard input and output."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.errors import UsageError
from rlenv.hosts.desk import Desk, Held
from rlenv.hosts.mcp_server import application, serve_lines
from rlenv.trajectory import Trajectory
from tests.hosts.serving import DOWN
from tests.support.asked import Asks, served
from tests.support.hosts import SPEC

ALONE = "2026-07-28"


def environment(tmp_path: Path, spec: str = SPEC) -> rlenv.Environment:
    (tmp_path / "sums.yaml").write_text(spec, encoding="utf-8")
    return rlenv.load(tmp_path / "sums.yaml")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_parallel_calls_of_a_client_of_either_era_earn_what_one_message_with_them_does(
    tmp_path: Path, mode: str
) -> None:
    client = pytest.importorskip("mcp.client.client")

    async def play(ask: Asks) -> None:
        status, made = await ask("POST", "/episodes", {"task": 0, "seed": 7})
        assert status == 201
        assert made["messages"][-1]["content"] == "The sum of the squares of 1 to 4?"
        async with client.Client(made["mcp_url"], mode=mode) as host:
            assert [tool.name for tool in (await host.list_tools()).tools] == ["calculate"]
            squares = [host.call_tool("calculate", {"expression": f"{n}**2"}) for n in range(1, 5)]
            assert [one.content[0].text for one in await asyncio.gather(*squares)] == ["1", "4", "9", "16"]
            prompt = await host.get_prompt("task")
            assert next(one.content.text for one in prompt.messages) == "Use the tool."
        path = f"/episodes/{made['episode']}"
        status, ended = await ask("POST", f"{path}/finish", {"answer": "<answer>30</answer>"})
        assert (status, ended["total"], ended["terms"]["short"]) == (200, pytest.approx(1.3), 1.0)
        assert await ask("POST", f"{path}/finish", {"answer": "<answer>0</answer>"}) == (200, ended)

    served(application(environment(tmp_path)), play)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_session_is_an_episode_that_its_client_ends_itself(tmp_path: Path, mode: str) -> None:
    client = pytest.importorskip("mcp.client.client")

    async def play(ask: Asks) -> None:
        async def one(task: int, answer: str) -> Any:
            async with client.Client(f"{ask.root}/mcp?task={task}", mode=mode) as host:
                assert "The sum of the squares of" in (host.instructions or "")
                assert "finish_episode" in [tool.name for tool in (await host.list_tools()).tools]
                await host.call_tool("calculate", {"expression": "1 + 1"})
                return (await host.call_tool("finish_episode", {"answer": answer})).structured_content

        right, wrong = await asyncio.gather(one(1, "<answer>1</answer>"), one(0, "<answer>1</answer>"))
        assert (right["success"], wrong["success"]) == (True, False)

    served(application(environment(tmp_path)), play)


def test_requests_that_stand_alone_are_held_to_what_their_headers_say(tmp_path: Path) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": ALONE, "io.modelcontextprotocol/clientCapabilities": {}}
    sent = {"MCP_Protocol_Version": ALONE, "Mcp_Method": "tools/list"}

    async def play(ask: Asks) -> None:
        _, made = await ask("POST", "/episodes", {})
        url = made["mcp_url"]
        status, answer = await ask.rpc(url, "tools/list", {"_meta": meta}, **sent)
        assert (status, answer["result"]["resultType"], answer["result"]["ttlMs"]) == (200, "complete", 0)
        wrong = [
            ("tools/list", {"_meta": meta}, {**sent, "Mcp_Method": "tools/call"}, -32020),
            ("tools/list", {}, sent, -32020),
            ("tools/call", {"_meta": meta, "name": "calculate"}, {**sent, "Mcp_Method": "tools/call"}, -32020),
            ("tools/list", {"_meta": {**meta, "io.modelcontextprotocol/protocolVersion": "2031"}},
             {**sent, "MCP_Protocol_Version": "2031"}, -32022),
        ]  # fmt: skip
        for method, params, headers, code in wrong:
            status, answer = await ask.rpc(url, method, params, **headers)
            assert (status, answer["error"]["code"]) == (400, code)

    served(application(environment(tmp_path)), play)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([], 400, -32600),
        ({"jsonrpc": "2.0", "id": 1}, 400, -32600),
        ({"jsonrpc": "2.0", "id": {}, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": [1]}, 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": 7}}, 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "x"}}, 400, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 404, -32601),
    ],
)
def test_a_message_that_is_none_is_told_so_and_ends_nothing(tmp_path: Path, body: Any, status: int, code: int) -> None:
    async def play(ask: Asks) -> None:
        _, made = await ask("POST", "/episodes", {})
        found, answer = await ask("POST", made["mcp_url"], body)
        assert (found, answer["error"]["code"]) == (status, code)
        assert (await ask("POST", made["mcp_url"], {"jsonrpc": "2.0", "method": "notifications/initialized"}))[0] == 202
        assert (await ask("GET", made["mcp_url"]))[0] == 405
        assert (await ask("GET", f"/episodes/{made['episode']}"))[1]["is_ended"] is False

    served(application(environment(tmp_path)), play)


def test_an_agent_reaches_its_own_episode_alone_and_cannot_score_it(tmp_path: Path) -> None:
    async def play(ask: Asks) -> None:
        driver = {"Authorization": "Bearer drive"}
        assert (await ask("POST", "/episodes", {}))[0] == 401
        assert (await ask("POST", "/episodes", {}, Authorization="Bearer other"))[0] == 401
        assert (await ask.rpc("/mcp", "initialize"))[0] == 401
        _, one = await ask("POST", "/episodes", {}, **driver)
        key = one["mcp_url"].rpartition("/")[2]
        assert key != one["episode"]
        assert (await ask.rpc(one["mcp_url"], "tools/list"))[0] == 200
        for path in (f"/episodes/{key}/finish", f"/episodes/{one['episode']}/finish"):
            assert (await ask("POST", path, {"answer": "30"}))[0] == 401
        assert (await ask("POST", f"/episodes/{key}/finish", {}, **driver))[0] == 404
        assert (await ask.rpc(f"/mcp/{one['episode']}", "tools/list"))[0] == 404
        _, answer = await ask.rpc(
            one["mcp_url"], "tools/call", {"name": "finish_episode", "arguments": {"answer": "1"}}
        )
        assert answer["result"]["isError"]
        assert (await ask("GET", f"/episodes/{one['episode']}", **driver))[1]["is_ended"] is False

    served(application(environment(tmp_path), token="drive"), play)


def test_no_name_but_this_machines_is_served_where_it_alone_is_listened_for(tmp_path: Path) -> None:
    async def play(ask: Asks) -> None:
        assert (await ask("GET", "/health", Host="evil.example:80"))[0] == 403
        assert (await ask("GET", "/health", Origin="http://evil.example"))[0] == 403
        assert (await ask("GET", "/health", Origin="http://localhost:3000"))[0] == 200

    served(application(environment(tmp_path)), play)


def test_a_client_that_leaves_has_an_invalid_reward_and_a_full_server_says_so(tmp_path: Path) -> None:
    kept: list[Trajectory] = []
    now = [0.0]

    async def main() -> None:
        async with environment(tmp_path) as env:
            options: dict[str, Any] = {"most": 2, "idle_s": 10.0, "clock": lambda: now[0]}
            async with Desk(env, keep=lambda held, trajectory: kept.append(trajectory), **options) as desk:
                first, second = await desk.start(), await desk.start(task=1)
                with pytest.raises(UsageError, match="2 episodes are open"):
                    await desk.start()
                now[0] = 9.0
                desk.get(second.id)
                now[0] = 11.0
                await desk.reap()
                assert first.trajectory is not None
                assert second.trajectory is None
                await desk.start()
            assert desk.open == 0

    asyncio.run(main())
    assert [one.failure.reason for one in kept if one.failure] == ["client", "stopped", "stopped"]
    assert [one.reward.total for one in kept] == [None] * 3


def test_calls_behind_the_end_are_not_run(tmp_path: Path) -> None:
    async def play(ask: Asks) -> None:
        _, made = await ask("POST", "/episodes", {"task": 1})
        await ask("POST", f"/episodes/{made['episode']}/finish", {"answer": "<answer>1</answer>"})
        call = {"name": "calculate", "arguments": {"expression": "1"}}
        _, answer = await ask.rpc(made["mcp_url"], "tools/call", call)
        assert answer["result"] == {
            "content": [{"type": "text", "text": "Not run: the episode is over."}],
            "isError": True,
        }

    served(application(environment(tmp_path)), play)


def test_standard_input_is_one_episode_and_ends_with_it(tmp_path: Path) -> None:
    def lines(*requests: Any) -> list[Any]:
        async def main() -> tuple[Held, list[Any]]:
            sent, out = io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in requests)), io.BytesIO()
            async with environment(tmp_path) as env, Desk(env) as desk:
                held = await desk.start(task=1)
                await serve_lines(desk, held, sent.readline, out)
            return held, [json.loads(line) for line in out.getvalue().splitlines()]

        held, answers = asyncio.run(main())
        assert held.trajectory is not None
        return [held.trajectory, *answers]

    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    done = {"name": "finish_episode", "arguments": {"answer": "<answer>1</answer>"}}
    ended, *answers = lines(hello, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": done})
    assert ended.success is True
    by_id = {answer["id"]: answer["result"] for answer in answers}
    assert by_id[1]["protocolVersion"] == "2025-06-18"
    assert by_id[2]["structuredContent"]["success"] is True
    gone, *_ = lines(hello)
    assert (gone.reward.total, gone.failure.reason) == (None, "client")


def test_a_server_that_is_stopped_ends_its_episode_though_standard_input_is_open(tmp_path: Path) -> None:
    async def main() -> Held:
        stopped, never = asyncio.Event(), threading.Event()

        def read() -> bytes:
            never.wait()
            return b""

        async with environment(tmp_path) as env, Desk(env) as desk:
            held = await desk.start(task=1)
            serving = asyncio.create_task(serve_lines(desk, held, read, io.BytesIO(), stopped=stopped))
            await asyncio.sleep(0)
            stopped.set()
            await serving
            never.set()
        return held

    ended = asyncio.run(asyncio.wait_for(main(), 60)).trajectory
    assert ended is not None
    assert (ended.reward.total, ended.failure and ended.failure.reason) == (None, "stopped")


def test_an_agent_that_ends_its_episode_is_told_no_words_of_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(ask: Asks) -> None:
        async with ask.http.post(
            f"{ask.root}/mcp?task=0", json={"jsonrpc": "2.0", "id": 1, "method": "initialize"}
        ) as it:
            session = it.headers["Mcp-Session-Id"]
        done = {"name": "finish_episode", "arguments": {"answer": "<answer>5</answer>"}}
        _, told = await ask.rpc("/mcp", "tools/call", done, Mcp_Session_Id=session)
        outcome = told["result"]["structuredContent"]
        assert (outcome["total"], outcome["failure"]["reason"]) == (None, "reward")
        assert "secret-judge" not in json.dumps(told)

    served(application(environment(tmp_path, DOWN)), play)
    assert "secret-judge" in caplog.text


def test_a_tool_of_the_servers_own_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="finish_episode"):
        application(environment(tmp_path, SPEC.replace("calculate:", "finish_episode:")))
