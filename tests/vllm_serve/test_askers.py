"""A model tool, an agent, a simulated user and a judge, each served by a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.messages import Message, ToolCall
from rlenv.runs import files as record
from rlenv.trajectory import Trajectory
from tests.vllm_serve.conftest import FOLDER
from tests.vllm_serve.serving import Server

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


@pytest.fixture
def asking(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_TEST_SERVER", server.base_url)


def play(actions: Sequence[str | Message], **given: Any) -> Trajectory:
    async def main() -> Trajectory:
        environment = load(FOLDER / "asking.yaml", set=given)
        async with environment, environment.start(seed=3) as episode:
            for action in actions:
                step = await episode.step(action)
                if step.is_last:
                    break
            return episode.trajectory if episode.is_ended else await episode.truncate("left")

    return asyncio.run(main())


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments),))


@pytest.mark.usefixtures("asking")
def test_a_model_tool_and_agents_in_both_modes_give_results(model: Path) -> None:
    question = "Ines has 20 pens and buys 30 more. How many pens does Ines have now?"
    calls = [call("ask", text="two and two is four")]
    calls += [call(name, question=question) for name in ("solve", "solve_raw")]
    trajectory = play([*calls, "<answer>50</answer>"])
    told, *solved = (turn.results[0] for turn in trajectory.turns[:3])
    assert told.outcome == "ok", told
    assert told.details is not None
    assert told.details["usage"]["completion_tokens"] > 0
    nested = [record.nested(result) for result in solved]
    for one in nested:
        assert one is not None
        assert one.failure is None
        assert one.turns
    # The second speaks another dialect's wording around the tools, and so it may call otherwise; the first calls.
    assert nested[0] is not None
    assert nested[0].turns[0].parsed.calls


@pytest.mark.usefixtures("asking")
def test_a_simulated_user_replies_until_the_policy_answers() -> None:
    trajectory = play(["Hello, how can I help?", "I see. Anything else?", "<answer>50</answer>"])
    assert trajectory.reason in ("answer", "user"), trajectory.failure
    said = trajectory.turns[0].observation
    assert said is not None
    assert said.messages[0].role == "user"
    assert said.messages[0].content.strip()


@pytest.mark.usefixtures("asking")
def test_a_judge_gives_a_readable_verdict_of_every_episode_since_the_server_holds_it_to_the_schema() -> None:
    verdicts = []
    for number in range(8):
        said = f"It is {number * 10}, because I have counted all {number} of them. <answer>{number * 10}</answer>"
        verdicts.append(play([said]).reward.terms["judged"])
    assert [one.status for one in verdicts] == ["valid"] * 8, [one.error for one in verdicts]
    assert all(one.value is not None and 0 <= one.value <= 1 for one in verdicts)
