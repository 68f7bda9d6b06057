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
