"""An episode through an endpoint that a host names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import rlenv
from rlenv.endpoints import connections
from rlenv.messages import Message, ToolCall
from rlenv.testing.endpoint import FakeEndpoint, Given, Reply, never
from rlenv.trajectory import Trajectory

JUDGED = """
rlenv: 1
name: judged
tasks: {train: {rows: [{q: "2+3", answer: 5}]}}
prompt: {user: "{{ task.q }}"}
endpoints: {gone: {base_url: "http://127.0.0.1:9/v1", model: m, retries: 0, timeout_s: 2}}
rewards:
  right: {kind: rule, rule: exact_match}
  judged: {kind: judge, endpoint: gone, prompt: "Is it polite? {{ answer }}", required: true}
"""
GUESSING = """
rlenv: 1
name: guess
tasks: {train: {rows: [{q: "Where to?", answer: Rome}]}}
prompt: {user: "{{ task.q }}"}
user: {kind: scripted, replies: ["To the capital of Italy."]}
rewards: {right: {kind: rule, rule: exact_match}}
"""


def answers(body: Mapping[str, Any]) -> Given:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"<answer>{last['content']}</answer>"
    return Message("assistant", "", tool_calls=(ToolCall("calculate", {"expression": "2+3"}, id="c1"),))


def played(environment: rlenv.Environment, answer: Any, **given: Any) -> tuple[Trajectory, FakeEndpoint]:
    async def main() -> tuple[Trajectory, FakeEndpoint]:
        async with environment, FakeEndpoint(answer) as server, asyncio.timeout(30):
            address = {"base_url": server.base_url, "model": "m"} | given
            return await rlenv.play_endpoint(environment, task=0, **address), server

    return asyncio.run(main())


def test_an_episode_is_played_with_the_headers_of_its_own(make_environment: Any) -> None:
    trajectory, server = played(make_environment(), answers, api_key="k", headers={"X-Session": "7"}, seed=4)
    assert (trajectory.success, trajectory.seed, len(server.requests)) == (True, 4, 2)
    assert {(each["Authorization"], each["X-Session"]) for each in server.headers} == {("Bearer k", "7")}


def test_samples_of_a_group_have_equal_episodes_and_no_seed_of_sampling(make_environment: Any) -> None:
    _, server = played(make_environment(), answers, seed=4)
    assert ["seed" in body for body in server.requests] == [False, False]
    _, server = played(make_environment(), answers, seed=4, sampling=rlenv.SamplingSpec(seed=9))
    assert [body["seed"] for body in server.requests] == [9, 9]


def test_two_logins_are_refused(make_environment: Any) -> None:
    with pytest.raises(rlenv.UsageError, match="a key and a header Authorization"):
        played(make_environment(), answers, api_key="k", headers={"authorization": "Bearer j"})


@pytest.mark.parametrize("answer", [Reply(500, "down"), Reply(drops=True), Reply(401, "no"), Reply(200, "not JSON")])
def test_an_endpoint_that_fails_gives_no_number(answer: Reply, make_environment: Any) -> None:
    trajectory, _ = played(make_environment(), [answer], retries=0)
    assert (trajectory.reward.total, trajectory.success, trajectory.truncated) == (None, None, True)
    assert trajectory.failure is not None
    assert trajectory.failure.reason == "policy"


def test_an_endpoint_that_is_late_gives_no_number(make_environment: Any) -> None:
    trajectory, _ = played(make_environment(), lambda body: never(), retries=0, timeout_s=0.05)
    assert trajectory.reward.total is None


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_episode_that_its_host_stops_is_scored(is_stopped: bool, make_environment: Any) -> None:
    refusing = ["I begin.", Reply(400, "rollout stopped")]
    trajectory, _ = played(make_environment(GUESSING), refusing, is_stopped=lambda: is_stopped)
    assert (trajectory.reward.total, trajectory.truncated) == (0.0 if is_stopped else None, True)
    assert trajectory.reason == ("host" if is_stopped else "refused")


def test_an_endpoint_that_passes_a_bad_moment_is_asked_again(make_environment: Any) -> None:
    trajectory, server = played(make_environment(), [Reply(503, "busy"), "<answer>5</answer>"])
    assert (trajectory.success, len(server.requests)) == (True, 2)
    assert [each.get("X-Stainless-Retry-Count") for each in server.headers] == [None, "1"]


def test_a_judge_that_is_down_gives_no_number(make_environment: Any) -> None:
    trajectory, _ = played(make_environment(JUDGED), ["<answer>5</answer>"])
    assert (trajectory.reward.total, trajectory.success) == (None, None)
    assert trajectory.failure is not None
    assert "judged" in trajectory.failure.message


def test_a_simulated_user_is_heard(make_environment: Any) -> None:
    trajectory, server = played(make_environment(GUESSING), ["Where?", "<answer>Rome</answer>"])
    assert trajectory.reward.total == 1.0
    assert server.requests[1]["messages"][-1] == {"role": "user", "content": "To the capital of Italy."}


@pytest.mark.parametrize("mode", ["tools", "text"])
def test_a_dialect_without_calls_of_its_own_is_read_from_the_text(mode: str, make_environment: Any) -> None:
    environment = make_environment(dialect="search_r1")
    trajectory, _ = played(environment, ["<search>2+3</search>", "<answer>5</answer>"], mode=mode)
    assert trajectory.answer == "5"
    assert len(trajectory.turns) == 2


async def _many(environment: rlenv.Environment, http: Any, count: int) -> tuple[list[Trajectory], int]:
    """Episodes at servers of their own; the connections that were opened at each at most."""
    async with FakeEndpoint(answers) as one, FakeEndpoint(answers) as other:
        asked = {"model": "m", "task": 0, "http": http}
        done = [
            await rlenv.play_endpoint(environment, base_url=server.base_url, **asked)
            for _ in range(count)
            for server in (one, other)
        ]
        return done, len({each["Host"] for each in (*one.headers, *other.headers)})


def test_episodes_at_many_addresses_share_the_connections_of_their_environment(make_environment: Any) -> None:
    async def main() -> None:
        environment = make_environment()
        async with environment, asyncio.timeout(30):
            done, hosts = await _many(environment, None, 2)
            assert [each.success for each in done] == [True] * 4
            assert hosts == 2
            key = ("connections", asyncio.get_running_loop())
            http = await environment.scope().get(key, connections)
            assert http.connector is not None
        assert http.closed

    asyncio.run(main())


def test_connections_of_the_caller_are_left_open(make_environment: Any) -> None:
    async def main() -> None:
        environment = make_environment()
        async with environment, connections() as http, asyncio.timeout(30):
            done, _ = await _many(environment, http, 1)
            assert [each.success for each in done] == [True, True]
            assert not http.closed

    asyncio.run(main())


def test_an_environment_serves_one_loop_after_another(make_environment: Any) -> None:
    environment = make_environment()

    async def main() -> bool | None:
        async with FakeEndpoint(answers) as server, asyncio.timeout(30):
            trajectory = await rlenv.play_endpoint(environment, base_url=server.base_url, model="m", task=0)
            return trajectory.success

    assert asyncio.run(main()) is asyncio.run(main()) is True
