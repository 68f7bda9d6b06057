"""The kind openenv: a server is a world of a spec, and its faults are never numbers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import rlenv
from rlenv.errors import EpisodeError, SpecError, ToolFailed
from rlenv.hosts.openenv import ActSpec, ServerWorld, _tool
from rlenv.hosts.serve import ServerLimits
from rlenv.messages import Message, ToolCall
from rlenv.runs.replay import replay, rescore
from rlenv.tools.base import ToolContext
from rlenv.trajectory import Trajectory
from tests.hosts.serving import DOWN, Served, serving
from tests.support.environments import Make

SPEC = """
rlenv: 1
name: outer
tasks: {{train: {{rows: [{{number: 0}}, {{number: 1}}]}}}}
resources:
  world:
    kind: openenv
    url: "{{{{ vars.server }}}}"
    arguments: {{split: train, task: "{{{{ task.number }}}}"}}
    text: "{{{{ (observation.messages | map(attribute='content') | list or ['nothing more'])[-1] }}}}"
    start_timeout_s: 0
vars: {{server: "{url}"}}
prompt: {{user: "Play.\\n{{{{ resources.world.text }}}}"}}
tools: {{say: {{kind: openenv, resource: world}}}}
rewards:
  paid: {{kind: rule, rule: value, value: "{{{{ resources.world.total }}}}"}}
  by_turn:
    kind: rule
    rule: value
    value: "{{{{ resources.world.rewards.get(turn) }}}}"
    when: turn
    over_turns: sum
    weight: 0
success: paid >= 1
limits: {{turns: 9}}
"""
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2+3"}}\n</tool_call>'
Load = Callable[[Served], rlenv.Environment]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def made(served: Served) -> rlenv.Environment:
        (tmp_path / "env.yaml").write_text(SPEC.format(url=served.url))
        return rlenv.load(tmp_path / "env.yaml")

    return made


def play(environment: rlenv.Environment, *turns: Any, task: int = 0) -> Trajectory:
    """An episode in which each turn says a text to the world, or is called; then the policy stops."""

    async def main() -> Trajectory:
        async with environment, environment.start(task=task) as episode:
            for turn in turns:
                if callable(turn):
                    await asyncio.to_thread(turn)
                elif not episode.is_ended:
                    await episode.step(Message("assistant", "", (ToolCall("say", {"message": turn}),)))
            if not episode.is_ended:
                await episode.step("I stop here.")
            return episode.trajectory

    return asyncio.run(main())


def test_its_beginning_is_shown_its_end_ends_and_its_rewards_are_a_term(make_environment: Make, load: Load) -> None:
    with serving(make_environment()) as served:
        environment = load(served)
        played = play(environment, CALL, "<answer>5</answer>")
        other = play(environment, "<answer>5</answer>", task=1)
        again = asyncio.run(rescore(environment, [played]))
        served.wait_for(lambda: served.server.slots.active == 0)
    assert played.messages[-1].content == "Play.\nWhat is 2 + 3?"
    assert [turn.results[0].text for turn in played.turns] == ["5", "nothing more"]
    assert (played.terminated, played.reason, played.reward.total, len(played.turns)) == (True, "tool", 1.0, 2)
    assert played.reward.terms["by_turn"].turn_values == (0.0, 1.0)
    assert (other.messages[-1].content, other.reward.total) == ("Play.\nWhat is 4 + 4?", 0.0)
    assert [one.reward.total for one in again] == [1.0]


def test_an_observation_that_the_text_does_not_fit_is_not_shown_and_fails_at_the_beginning_alone(
    make_environment: Make, tmp_path: Path
) -> None:
    def played(text: str) -> Trajectory:
        (tmp_path / "env.yaml").write_text(SPEC.replace("{{{{ (obs", "{{{{ " + text + " + (obs").format(url=served.url))
        return play(rlenv.load(tmp_path / "env.yaml"), CALL, "<answer>5</answer>")

    with serving(make_environment()) as served:
        fits_not, never = played("observation.messages[0].content[0]"), played("observation.nothing[0]")
    assert [turn.results[0].text for turn in fits_not.turns] == ["55", "what came of it cannot be shown"]
    assert (fits_not.reason, fits_not.reward.total) == ("tool", 1.0)
    assert (never.reason, never.reward.total) == ("resource", None)


def test_a_run_is_replayed_and_scored_again_at_its_server_alone(make_environment: Make, load: Load) -> None:
    with serving(make_environment()) as served:
        environment = load(served)
        played = play(environment, CALL, "<answer>5</answer>")
        assert asyncio.run(replay(environment, [played]))[0].differences == ()
    (scored,) = asyncio.run(rescore(environment, [played]))
    (again,) = asyncio.run(replay(environment, [played]))
    assert again.again is not None
    assert [(one.reward.total, one.reason) for one in (scored, again.again)] == [(None, "resource")] * 2
    assert played.reward.total == 1.0


def test_a_policy_that_stops_early_has_what_was_paid_until_then(make_environment: Make, load: Load) -> None:
    with serving(make_environment()) as served:
        assert play(load(served)).reward.total == play(load(served), CALL).reward.total == 0.0


def test_a_limit_of_the_worlds_truncates(make_environment: Make, load: Load) -> None:
    with serving(make_environment()) as served:
        played = play(load(served), *[CALL] * 5)
    assert (played.truncated, played.reason, len(played.turns)) == (True, "tool", 4)


def test_an_action_that_the_server_refuses_is_told_and_pays_nothing(make_environment: Make, load: Load) -> None:
    with serving(make_environment()) as served:
        outer = load(served)

        async def main() -> Trajectory:
            async with outer, outer.start(task=0) as episode:
                broken = {"message": "", "tool_calls": [{"nothing": 1}]}
                await episode.step(Message("assistant", "", (ToolCall("say", broken),)))
                await episode.step(Message("assistant", "", (ToolCall("say", {"message": "<answer>5</answer>"}),)))
                return episode.trajectory

        played = asyncio.run(main())
    assert "tool_calls" in played.turns[0].results[0].text
    assert (played.turns[0].results[0].outcome, played.reward.total) == ("failed", 1.0)


@pytest.mark.parametrize("fault", ["its reward is invalid", "it ends in the episode", "it has no place"])
def test_a_fault_of_the_server_is_never_a_number(fault: str, make_environment: Make, load: Load) -> None:
    text, limits = (DOWN,) if "invalid" in fault else (), ServerLimits(sessions=1, queue_s=0, drain_s=0)
    with serving(make_environment(*text), limits=limits) as served:
        environment = load(served)
        if fault == "it has no place":
            full: list[Trajectory] = []
            play(environment, lambda: full.append(play(load(served), "<answer>5</answer>")))
            (played,) = full
        else:
            stop = [served.stop] if "ends" in fault else []
            played = play(environment, CALL, *stop, "<answer>5</answer>")
    assert (played.reward.total, played.truncated, played.failure is not None) == (None, True, True)
    assert played.reason == "resource"


class Says:
    """A socket whose server gives one answer to each step."""

    def __init__(self, reward: Any) -> None:
        self.answer = {"observation": {"text": ""}, "done": True, "reward": reward}

    async def ask(self, *_: Any, **__: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("reward", ["1.0", "nan", [1.0], 10**400], ids=lambda one: f"{one!r:.9}")
def test_what_is_no_number_is_no_reward(reward: Any) -> None:
    world = ServerWorld(cast(Any, Says(reward)), {"observation": {"text": ""}, "done": False}, None)
    with pytest.raises(EpisodeError, match="the server failed"):
        asyncio.run(world.step({}, 0, time.monotonic() + 60))
    assert math.isnan(world.total)


@pytest.mark.parametrize(("word", "whose"), [("transport_error", "unclear"), ("execution_error", "policy")])
def test_a_tool_of_the_servers_that_cannot_be_reached_is_not_the_policys_failure(word: str, whose: str) -> None:
    world = ServerWorld(cast(Any, Says(0.0)), {"observation": {"text": ""}, "done": False}, None)
    world._socket.answer["observation"]["error"] = {"error_type": word, "message": "it failed"}  # type: ignore[attr-defined]
    tool = _tool("look", ActSpec(kind="openenv", resource="world"), {}, "", "look")
    call = ToolContext({}, {"world": world}, time.monotonic() + 60)
    with pytest.raises(ToolFailed, match="it failed") as failed:
        asyncio.run(cast(Any, tool.run({}, call)))
    assert failed.value.whose == whose


@pytest.mark.parametrize(("reward", "paid"), [(True, 1.0), (2, 2.0), (0.5, 0.5)])
def test_a_reward_of_the_types_of_openenvs_is_paid(reward: Any, paid: float) -> None:
    world = ServerWorld(cast(Any, Says(reward)), {"observation": {"text": ""}, "done": False}, None)
    assert asyncio.run(world.step({}, 0, time.monotonic() + 60)) == paid == world.total


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ("{{ task.number }}", "{{ row.number }}", "row"),
        ("kind: openenv", "kind: openenv\n    scope: process", "episode's own"),
        ("{{ vars.server }}", "ftp://127.0.0.1", "http://HOST:PORT"),
        ("{{ vars.server }}", "http://127.0.0.1:9", "start the server"),
        ("resource: world", "resource: nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    written: str, instead: str, said: str, make_environment: Make, tmp_path: Path
) -> None:
    with serving(make_environment()) as served:
        text = SPEC.format(url=served.url)
        (tmp_path / "env.yaml").write_text(text.replace(written, instead, 1))
        with pytest.raises(SpecError, match=said):
            rlenv.load(tmp_path / "env.yaml")
