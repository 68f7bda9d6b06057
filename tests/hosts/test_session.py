"""Episodes that a host pulls: safe after their end, and one form of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

import rlenv
from rlenv.errors import UsageError
from rlenv.hosts.desk import Desk, Full, Held, Unknown
from rlenv.messages import Message
from rlenv.trajectory import Trajectory


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'


@pytest.fixture
def session(make_environment: Any) -> rlenv.Session:
    return rlenv.Session(make_environment())


@in_loop
async def test_an_episode_is_opened_stepped_and_safe_after_its_end(session: rlenv.Session) -> None:
    opened = await session.reset(task=0, id="first")
    assert (opened.id, opened.messages[-1].content, opened.is_ended) == ("first", "What is 2 + 3?", False)
    assert opened.text.endswith("<|im_start|>assistant\n")
    assert [tool["function"]["name"] for tool in opened.tools] == ["calculate"]
    step = await session.step(CALL, finish_reason="stop", token_ids=(1, 2))
    assert step.as_dict()["messages"][0]["content"] == "5"
    assert session.state() == {"episode_id": "first", "step_count": 1, "is_ended": False}
    last = await session.step("<answer>5</answer>")
    again = await session.step("<answer>7</answer>")
    assert again.as_dict() == last.as_dict() | {"reward": 0.0}
    assert last.as_dict() == {
        "text": "",
        "messages": [],
        "reward": 1.0,
        "terminated": True,
        "truncated": False,
        "reason": "answer",
    }
    assert session.state()["step_count"] == 2
    assert session.trajectory.turns[0].token_ids == (1, 2)
    await session.aclose()
    await session.aclose()
    outcome = {"total": 1.0, "success": True, "reason": "answer", "failure": None, "terms": {"correct": 1.0}}
    assert session.trajectory.outcome() == outcome
    assert json.loads(json.dumps(opened.as_dict()))["tools"]


@in_loop
async def test_a_client_that_leaves_is_an_invalid_reward_and_no_number(session: rlenv.Session) -> None:
    await session.reset(task=0)
    await session.step(CALL)
    session.fail("client", "the client has left")
    step = await session.step("<answer>5</answer>")
    assert (step.reward, step.truncated, step.reason) == (None, True, "client")
    outcome = session.trajectory.outcome()
    assert (outcome["total"], outcome["success"]) == (None, None)
    assert outcome["failure"] == {"reason": "client", "message": "the client has left"}


@in_loop
async def test_a_row_that_cannot_be_read_is_an_end_and_no_exception(make_environment: Any) -> None:
    session = rlenv.Session(make_environment())
    opened = await session.reset(task={})
    assert (opened.is_ended, opened.text) == (True, "")
    step = await session.step("x")
    assert (step.reward, step.is_last) == (None, True)
    assert await session.step("x") == step


@in_loop
async def test_an_end_that_another_caller_was_told_is_not_paid_twice(session: rlenv.Session) -> None:
    await session.reset(task=0)
    assert session.episode is not None
    await session.episode.step("<answer>5</answer>")
    assert (await session.step("<answer>5</answer>")).reward == 0.0


@in_loop
async def test_a_reset_closes_the_episode_before_and_says_what_is_not_there(session: rlenv.Session) -> None:
    with pytest.raises(UsageError, match="call reset"):
        await session.step("x")
    first = (await session.reset(task=0)).id
    assert (await session.reset(task=1)).id != first
    with pytest.raises(UsageError, match="tasks 0 to 1"):
        await session.reset(task=7)
    assert not session.is_reported


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def told(seen: Callable[[Any], Any]) -> Any:
    async def scored(held: Held, said: str | None) -> Any:
        return seen(said)

    return scored


def at_desk(environment: Any, work: Any, **keys: Any) -> Any:
    """What `work` gives of a desk that nobody reaps by himself, its clock, and what it has kept."""
    clock, kept = Clock(), list[tuple[str, str]]()

    def keep(held: Held, trajectory: Trajectory) -> None:
        kept.append((held.id, trajectory.reason))

    async def main() -> Any:
        return await work(Desk(environment, keep=keep, clock=clock, **keys), clock, kept)

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_as_many_episodes_are_open_as_may_be_and_one_that_ended_is_none(make_environment: Any) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        first, second = [await desk.start() for _ in range(2)]
        assert desk.open == 2
        with pytest.raises(Full, match="2 episodes are open"):
            await desk.start()
        await desk.finish(first, "<answer>5</answer>")
        assert desk.open == 1
        third = await desk.start(task=1, split="train", seed=4)
        assert (third.session.episode.task_index, third.session.episode.seed) == (1, 4)
        assert len({second.id, second.key, third.id, third.key}) == 4

    at_desk(make_environment(), work, most=2)


@pytest.mark.parametrize(
    "asked",
    [{"task": "0"}, {"task": True}, {"task": 99}, {"split": 3}, {"split": "gone"}, {"seed": 1.5}, {"seed": True}],
)
def test_an_episode_that_cannot_be_opened_takes_no_place(make_environment: Any, asked: dict[str, Any]) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        with pytest.raises(UsageError):
            await desk.start(**asked)
        assert desk.open == 0
        await desk.start()

    at_desk(make_environment(), work, most=1)


def test_an_episode_is_scored_once_and_says_the_same_again(make_environment: Any) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        held = await desk.start()
        assert (held.is_over, desk.get(held.id), desk.at(held.key), desk.at(held.id)) == (False, held, held, None)
        with pytest.raises(UsageError):
            await desk.finish(held, [3])
        assert not held.is_over, "its agent has it still"
        ended = await desk.finish(held, "<answer>5</answer>")
        assert (ended.reward.total, held.is_over) == (1.0, True)
        assert await desk.finish(held, "<answer>6</answer>") is ended
        assert await desk.leave(held, gives_up="client") is ended
        assert kept == [(held.id, "answer")]
        with pytest.raises(Unknown, match="there is no episode 'gone'"):
            desk.get("gone")

    at_desk(make_environment(), work)


@pytest.mark.parametrize(
    ("seen", "gives_up", "reason", "total"),
    [
        (None, "", "client", None),
        (None, "stopped", "stopped", None),
        ([], "", "host", 0.0),
        ([Message("assistant", "<answer>5</answer>")], "", "answer", 1.0),
        ([Message("assistant", "<answer>5</answer>")], "client", "client", None),
    ],
)
def test_who_leaves_is_scored_by_what_the_server_has_seen(
    make_environment: Any, seen: Any, gives_up: str, reason: str, total: float | None
) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        held = await desk.start()
        ended = await desk.leave(held, gives_up=gives_up)
        assert (ended.reason, ended.reward.total, desk.open) == (reason, total, 0)
        assert kept == [(held.id, reason)]

    at_desk(make_environment(), work, scored=None if seen is None else told(lambda said: seen))


def test_an_agent_that_did_nothing_at_all_has_no_number(make_environment: Any) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        ended = await desk.finish(await desk.start())
        assert (ended.reason, ended.reward.total) == ("client", None)

    at_desk(make_environment(), work, scored=told(lambda said: None))


def test_an_episode_is_left_once_nobody_has_asked_for_so_long_and_then_forgotten(make_environment: Any) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        left, touched = await desk.start(), await desk.start()
        clock.now += 9.5
        desk.get(touched.id)
        await desk.reap()
        assert desk.open == 2
        clock.now += 0.5
        await desk.reap()
        assert (desk.open, kept) == (1, [(left.id, "client")])
        clock.now += 9.5
        await desk.reap()
        assert desk.get(left.id) is left
        clock.now += 9.5
        await desk.reap()
        assert desk.at(left.key) is left
        clock.now += 10.0
        await desk.reap()
        assert desk.at(left.key) is None
        with pytest.raises(Unknown, match="forgotten after 10 s"):
            desk.get(left.id)

    at_desk(make_environment(), work, idle_s=10.0)


@pytest.mark.parametrize(("passed", "is_open"), [(10.0, True), (39.5, True), (40.0, False)])
def test_an_episode_with_a_request_is_kept_for_as_long_as_it_may_take(
    make_environment: Any, passed: float, is_open: bool
) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        held = await desk.start()
        held.busy = 1
        clock.now += passed
        await desk.reap()
        assert (desk.open == 1) is is_open

    at_desk(make_environment(limits__episode_s=30), work, idle_s=10.0)


def test_a_desk_that_is_left_ends_what_is_open(make_environment: Any) -> None:
    async def work(desk: Desk, clock: Clock, kept: Any) -> None:
        async with desk:
            ended, left = [await desk.start() for _ in range(2)]
            await desk.finish(ended, "<answer>5</answer>")
        assert [reason for _, reason in kept] == ["answer", "stopped"]
        assert left.trajectory is not None
        assert left.trajectory.reward.total is None

    at_desk(make_environment(), work, scored=told(lambda said: [Message("assistant", said)] if said else []))


@in_loop
async def test_a_session_whose_reset_is_refused_has_no_episode(session: rlenv.Session) -> None:
    await session.reset(task=0, id="first")
    await session.step(CALL)
    with pytest.raises(UsageError, match="tasks 0 to 1, not 99"):
        await session.reset(task=99)
    assert session.state() == {"episode_id": None, "step_count": 0, "is_ended": True}
    with pytest.raises(UsageError, match="there is no episode yet"):
        await session.step(CALL)
    assert (await session.reset(task=1)).messages[-1].content == "What is 4 + 4?"
