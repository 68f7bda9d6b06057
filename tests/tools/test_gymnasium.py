"""Worlds that speak Gymnasium: played by a tool, ended by themselves, scored by what they pay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.errors import SpecError
from rlenv.messages import Message, ToolCall
from rlenv.runs.replay import rescore
from rlenv.testing.resources import check_resource
from rlenv.tools.base import not_shown
from rlenv.trajectory import Trajectory

WORLDS = '''
import threading

import numpy
from gymnasium import Env, spaces

from rlenv.errors import ToolFailed


class Words:
    """A text world: no class of Gymnasium's, and its methods."""

    def __init__(self, word="ant"):
        self.word = word

    def reset(self, seed=None):
        self.seed, self.left = seed, 3
        return f"Guess. Hint {seed}.", {"left": 3}

    def step(self, action):
        if action == "crash":
            raise RuntimeError("out of order")
        if action == "quit":
            raise SystemExit("good bye")
        if action == "gone":
            raise ConnectionError("gone")
        if action == "hang":
            threading.Event().wait(2)
        if action == "shout":
            raise ToolFailed("No shouting.")
        self.left -= 1
        right = action == self.word
        return f"{self.left} left", 1.0 if right else -0.25, right, not self.left, {"left": self.left}

    def close(self):
        pass


class Arm(Env):
    """A world of arrays."""

    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, seed=None, options=None):
        self.at = numpy.zeros(2, dtype=numpy.float32)
        return self.at, {}

    def step(self, action):
        assert action.dtype == numpy.float32
        self.at = self.at + action
        return self.at, float(self.at.sum()), False, False, {}


class Grid(Arm):
    """A world of small numbers."""

    action_space = spaces.Box(0, 255, (2,), numpy.uint8)

    def step(self, action):
        return self.at, float(action[0]) if action[0] < 9 else numpy.inf - numpy.inf, False, False, {}


class Odd(Arm):
    action_space = spaces.Graph(spaces.Discrete(2), None)
'''
LAKE = "{kind: gymnasium, id: FrozenLake-v1, arguments: {is_slippery: false}}"
NAMED = "actions: [left, down, right, up]"
PATH = ("down", "down", "right", "right", "down", "right")
SPEC = """
rlenv: 1
name: worlds
tasks: {{train: {{rows: [{{word: bee, seed: 7, gold: [{{act: {{action: down}}}}]}}]}}}}
resources: {{world: {world}}}
prompt: {{user: "Play.\\n{{{{ resources.world.text }}}}"}}
tools: {{act: {{kind: gymnasium, resource: world, {tool}}}}}
rewards:
  paid: {{kind: rule, rule: value, value: "{{{{ resources.world.total }}}}"}}
  by_turn:
    kind: rule
    rule: value
    value: "{{{{ resources.world.rewards.get(turn) }}}}"
    when: turn
    over_turns: sum
    weight: 0.5
  state: {{kind: state, expect: "{{{{ task.gold }}}}", of: [world.observation], weight: 0}}
success: paid >= 1
limits: {{turns: 9}}
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    (tmp_path / "worlds.py").write_text(WORLDS)

    def made(world: str, tool: str = "", more: str = "") -> rlenv.Environment:
        (tmp_path / "env.yaml").write_text(SPEC.format(world=world, tool=tool) + more)
        return rlenv.load(tmp_path / "env.yaml")

    return made


def play(environment: rlenv.Environment, *turns: Any, seed: int = 3) -> Trajectory:
    """An episode in which each turn makes one call, or several where it is a list; then the policy stops."""

    async def main() -> Trajectory:
        async with environment, environment.start(seed=seed) as episode:
            for turn in turns:
                if episode.is_ended:
                    break
                actions = turn if isinstance(turn, list) else [turn]
                calls = tuple(ToolCall("act", {"action": one}) for one in actions)
                await episode.step(Message("assistant", "", calls))
            if not episode.is_ended:
                await episode.step("I stop here.")
            return episode.trajectory

    return asyncio.run(main())


def paid(played: Trajectory) -> float | None:
    return played.reward.terms["paid"].value


def texts(played: Trajectory) -> list[str]:
    return [result.text for turn in played.turns for result in turn.results]


def test_a_world_is_drawn_for_the_policy_and_its_end_ends_the_episode(load: Any) -> None:
    played = play(load(LAKE, NAMED), *PATH)
    assert "[S]FFF" in played.messages[-1].content
    assert "\x1b" not in "".join(texts(played))
    assert (played.terminated, played.reason, paid(played), len(played.turns)) == (True, "tool", 1.0, 6)


def test_each_turn_earns_what_its_own_steps_paid_and_one_without_a_step_nothing(load: Any) -> None:
    environment = load("{kind: gymnasium, id: CliffWalking-v1}")
    played = play(environment, [0, 0], 9, [2, 2], [3, 1])
    assert played.reward.terms["by_turn"].turn_values == (-2, None, -2, -101, None)
    assert paid(played) == played.reward.terms["by_turn"].value == -105


@pytest.mark.parametrize(
    ("tool", "action", "said"),
    [
        (NAMED, "jump", '"left" or "down"'),
        (NAMED, 2, "text"),
        ("", 4, "3"),
        ("", "down", "whole number"),
        ("", -1, "0"),
    ],
)
def test_an_action_that_the_world_has_not_is_an_observation(load: Any, tool: str, action: Any, said: str) -> None:
    played = play(load(LAKE, tool), action)
    (result,) = played.turns[0].results
    assert (result.outcome, result.whose) == ("bad_arguments", "policy")
    assert said in result.text
    assert paid(played) == 0


@pytest.mark.parametrize("run_in", ["loop", "thread"])
def test_a_world_of_ones_own_takes_texts_refuses_some_and_is_cut_by_its_own_limit(load: Any, run_in: str) -> None:
    words = '{kind: gymnasium, function: "worlds.py:Words", arguments: {word: "{{ task.word }}"}, run_in: RUN}'
    words = words.replace("RUN", run_in)
    played = play(load(words), "ant", "shout", "bee")
    assert [result.outcome for turn in played.turns for result in turn.results] == ["ok", "failed", "ok"]
    assert texts(played)[1] == "No shouting."
    assert (played.terminated, played.reason, paid(played)) == (True, "tool", 0.75)
    cut = play(load(words), "a", "b", "c", "d")
    assert (cut.truncated, cut.reason, paid(cut), len(cut.turns)) == (True, "tool", -0.75, 3)


def test_a_world_whose_ground_is_gone_is_nobodys_number(load: Any) -> None:
    played = play(load('{kind: gymnasium, function: "worlds.py:Words"}'), "a", "gone")
    assert played.reward.total is None
    assert played.failure is not None
    assert "the world failed: ConnectionError: gone" in played.failure.message


def test_an_action_that_breaks_the_world_is_no_way_out_of_a_bad_score(load: Any) -> None:
    played = play(load('{kind: gymnasium, function: "worlds.py:Words"}'), "a", "crash", "quit", "b")
    assert (played.failure, paid(played)) == (None, -0.5)
    assert texts(played)[1:3] == [
        f"the world failed: {why}" for why in ("RuntimeError: out of order", "SystemExit: good bye")
    ]


@pytest.mark.parametrize("turns", [("hang",), ("hang", "bee")])
def test_what_a_step_paid_that_did_not_come_back_is_known_to_nobody(load: Any, turns: tuple[str, ...]) -> None:
    played = play(load('{kind: gymnasium, function: "worlds.py:Words"}', "timeout_s: 0.1"), *turns)
    assert played.turns[0].results[0].outcome == "timeout"
    assert played.reward.total is None


def test_an_episode_begins_by_its_seed_unless_the_row_says_another(load: Any) -> None:
    words = '{kind: gymnasium, function: "worlds.py:Words"%s}'
    assert "Hint 3." in play(load(words % ""), seed=3).messages[-1].content
    assert "Hint 7." in play(load(words % ', seed: "{{ task.seed }}"'), seed=3).messages[-1].content


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (', text: "{{ info.left }} tries: {{ observation }}{{ render }}"', "3 tries: Guess. Hint 3."),
        ("", "Guess. Hint 3."),
    ],
)
def test_a_template_says_what_a_state_looks_like(load: Any, text: str, shown: str) -> None:
    assert shown in play(load(f'{{kind: gymnasium, function: "worlds.py:Words"{text}}}')).messages[-1].content


def test_a_step_has_paid_whether_or_not_the_template_fits_what_it_left(
    load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    not_shown.shown_at -= 2.0  # another test's may have been logged in this second
    text = ", text: \"{{ ['three', 'two'][3 - info.left] + ' left' }}\""
    played = play(load(f'{{kind: gymnasium, function: "worlds.py:Words"{text}}}'), "bee", "ant")
    assert texts(played) == ["two left", "what came of it cannot be shown"]
    assert ("what shows the state of a world raised" in caplog.text, "has no element 2" in caplog.text) == (True, True)
    assert (played.reason, paid(played)) == ("tool", 0.75)


def test_actions_may_be_arrays_and_observations_are_json(load: Any) -> None:
    played = play(load('{kind: gymnasium, function: "worlds.py:Arm"}'), [[0.5, 0.25]], [[2.0, 0.0]], [[0.5]])
    outcomes = [(result.outcome, result.text[:12]) for turn in played.turns for result in turn.results]
    assert outcomes[0] == ("ok", "[0.5,0.25]")
    assert [outcome for outcome, _ in outcomes[1:]] == ["failed", "bad_arguments"]
    assert paid(played) == 0.75


@pytest.mark.parametrize("action", [[300, 0], [-1, 0], [10**30, 0], [0, 1e300], [9, 0]])
def test_an_action_that_no_array_holds_or_that_no_number_is_paid_for_is_the_policys_and_pays_nothing(
    load: Any, action: list[Any]
) -> None:
    played = play(load('{kind: gymnasium, function: "worlds.py:Grid"}'), [[1, 0]], [action], [[2, 0]])
    assert [turn.results[0].whose for turn in played.turns[:3]] == ["", "policy", ""]
    assert paid(played) == 3.0


def test_texts_to_choose_from_are_an_enum(load: Any) -> None:
    environment = load('{kind: gymnasium, function: "worlds.py:Words"}', "actions: [ant, bee]")
    assert environment.parts.tools["act"].parameters["properties"]["action"]["enum"] == ["ant", "bee"]


@pytest.mark.parametrize(
    ("world", "tool", "said"),
    [
        ("{kind: gymnasium}", "", "either 'id' or 'function'"),
        ('{kind: gymnasium, id: A-v1, function: "worlds.py:Arm"}', "", "either 'id' or 'function'"),
        ("{kind: gymnasium, id: FrozenLak-v1}", "", "Did you mean: `FrozenLake`"),
        ("{kind: gymnasium, id: FrozenLake-v1, arguments: {slip: true}}", "", "slip"),
        ("{kind: gymnasium, id: FrozenLake-v1, arguments: {map_name: '{{ task.map }}'}}", "", "first row"),
        ("{kind: gymnasium, id: FrozenLake-v1, scope: process}", "", "an episode's own"),
        ("{kind: gymnasium, id: FrozenLake-v1, text: '{{ state }}'}", "", "'state' is not known here"),
        (LAKE, "actions: [left, right]", "4 actions; found 2"),
        (LAKE, "actions: [left, left, up, down]", "4 actions; found 3"),
        ('{kind: gymnasium, function: "worlds.py:Arm"}', "actions: [a]", "have no names"),
        ('{kind: gymnasium, function: "worlds.py:Odd"}', "", "cannot be written as JSON"),
        ('{kind: python, function: "worlds.py:Arm"}', "", "expected one of kind gymnasium"),
    ],
)
def test_what_an_author_got_wrong_is_a_fault_at_its_place(load: Any, world: str, tool: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        load(world, tool)
    assert any(said in str(fault) for fault in raised.value.faults), raised.value.faults


def test_a_world_keeps_the_laws_of_resources(tmp_path: Path) -> None:
    def move(world: Any) -> None:
        world.step(1, 0)

    check_resource(
        {"kind": "gymnasium", "id": "FrozenLake-v1", "arguments": {"is_slippery": False}},
        look=lambda world: [world.observation, world.total, world.steps, world.text],
        change=move,
    )


@pytest.mark.parametrize("slippery", ["true", "false"])
def test_a_recorded_episode_is_scored_again_on_the_same_world(load: Any, slippery: str) -> None:
    environment = load(f"{{kind: gymnasium, id: FrozenLake-v1, arguments: {{is_slippery: {slippery}}}}}", NAMED)
    played = play(environment, *PATH)
    again = asyncio.run(rescore(environment, [played]))[0]
    assert [(one.value, one.turn_values) for one in again.reward.terms.values()] == [
        (one.value, one.turn_values) for one in played.reward.terms.values()
    ]


@pytest.mark.parametrize(("moves", "value"), [(["down"], 1), (["right", "left", "down"], 1), (["right"], 0)])
def test_the_state_of_a_world_may_be_held_against_that_of_gold_calls(load: Any, moves: list[str], value: int) -> None:
    assert play(load(LAKE, NAMED), *moves).reward.terms["state"].value == value
