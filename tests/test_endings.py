"""What an episode ends as, whatever ended it and whoever looks at it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import Environment, load
from rlenv.messages import Sampled
from rlenv.rewards.group import score_groups
from rlenv.runs import files as record
from rlenv.runs.replay import replay, rescore
from rlenv.secrets import resolve
from rlenv.trajectory import TERMINATIONS, Trajectory

KEY = "sesame-opens-it-4711"
TOLD = """
from rlenv.errors import EpisodeError, RewardError
from rlenv.rewards.base import Measured
from rlenv.secrets import resolve

# So often that wherever a text is cut, one of them is torn.
KEYS = resolve("${env:RLENV_TEST_KEY}") * 400


def world():
    yield {}


def gone():
    raise EpisodeError("no world for " + KEYS, reason="resource")
    yield


def outage() -> str:
    "Loses its backend."
    raise EpisodeError("lost " + KEYS, reason="backend")


def measured(context):
    return Measured(0.5, "read from " + KEYS, {"seen": [KEYS], KEYS: 1})


def raises(context):
    raise ValueError("no server takes " + KEYS)


async def raises_later(context):
    raise ValueError("no server takes " + KEYS)


def refuses(context):
    raise RewardError("no server takes " + KEYS)


def gives_text(context):
    return Measured(KEYS, "read from " + KEYS, {"seen": KEYS})


def gives_no_number(context):
    return float("nan")


def compares(group):
    return [Measured(0.25, KEYS) for _ in group]


def compares_badly(group):
    raise ValueError("no server takes " + KEYS)
"""
SPEC = """
rlenv: 1
name: ends
tasks: {train: {rows: [{question: "What is 2 + 3?", answer: 5}]}}
prompt: {user: "{{ task.question }}"}
resources: {world: {kind: python, function: "tools.py:world", run_in: loop}}
tools:
  calculate: {kind: calculator}
  outage: {kind: python, function: "tools.py:outage"}
limits: {turns: 3}
rewards:
  own: {kind: rule, function: "tools.py:measured"}
  turn: {kind: rule, rule: valid_calls, weight: 0.5, when: turn}
"""
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
USER = {"user": {"kind": "scripted", "replies": ["Go on."]}}

Way = tuple[Sequence[str | Sampled], Mapping[str, Any]]
"""What the policy does, and what the spec has beside the one above; an episode that goes on is cut from outside."""

TERMINATED: dict[str, Way] = {
    "answer": ([CALL, "<answer>5</answer>"], {}),
    "final_message": ([CALL, "I do not know."], {}),
    "user": (["Which two?", "I see."], USER),
}
TRUNCATED: dict[str, Way] = {
    "turns": ([CALL] * 3, {}),
    "invalid_actions": (["<tool_call>\n{\n</tool_call>"] * 2, {"limits.invalid_actions": 2}),
    "turn_tokens": ([Sampled("I would say", "length")], {}),
    "response_tokens": ([CALL], {"limits.response_tokens": 1}),
    "from outside": ([CALL], {}),
    "before the first turn": ([], {}),
}
FAILED: dict[str, Way] = {
    "resource": ([], {"resources.world.factory": "tools.py:gone"}),
    "prompt": ([], {"prompt.user": "{{ task.there_is_none }}"}),
    "backend": ([CALL, CALL.replace("calculate", "outage").replace('"expression": "2 + 3"', "")], {}),
}
SCORED = {**TERMINATED, **TRUNCATED}
INVALID: dict[str, Mapping[str, Any]] = {
    "raises": {"rewards.own.function": "tools.py:raises"},
    "raises later": {"rewards.own.function": "tools.py:raises_later"},
    "raises in a turn": {"rewards.own.function": "tools.py:raises", "rewards.own.when": "turn"},
    "refuses": {"rewards.own.function": "tools.py:refuses"},
    "gives text": {"rewards.own.function": "tools.py:gives_text"},
    "gives no number": {"rewards.own.function": "tools.py:gives_no_number"},
    "adds up to no float": {
        f"rewards.{name}": {"kind": "rule", "function": "tools.py:measured", "weight": 1.7e308} for name in "abc"
    },
}
GROUP = {"rewards.group": {"kind": "group", "function": "tools.py:compares"}}
BAD_GROUP = {"rewards.group": {"kind": "group", "function": "tools.py:compares_badly"}}

Make = Callable[[Mapping[str, Any]], Environment]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ends")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "tools.py").write_text(TOLD, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def made() -> dict[str, Environment]:
    return {}


@pytest.fixture
def make(folder: Path, made: dict[str, Environment], monkeypatch: pytest.MonkeyPatch) -> Make:
    """The environment of the spec with other keys; each is loaded once."""
    monkeypatch.setenv("RLENV_TEST_KEY", KEY)
    monkeypatch.chdir(folder)  # what is set beside a spec names files from here
    resolve("${env:RLENV_TEST_KEY}")

    def make(overrides: Mapping[str, Any]) -> Environment:
        if str(overrides) not in made:
            made[str(overrides)] = load("spec.yaml", set=overrides)
        return made[str(overrides)]

    return make


def play(environment: Environment, way: Way, reason: str) -> Trajectory:
    async def main() -> Trajectory:
        async with environment.start() as episode:
            for action in way[0]:
                assert not episode.is_ended
                await episode.step(action)
            return await episode.truncate(reason)

    return asyncio.run(main())


def again(environment: Environment, *recorded: Trajectory) -> list[Trajectory]:
    return asyncio.run(rescore(environment, recorded))


def ended(trajectory: Trajectory) -> tuple[Any, ...]:
    """How an episode ended and what it earned."""
    return trajectory.terminated, trajectory.truncated, trajectory.reason, trajectory.answer, trajectory.reward.total


def holds(trajectory: Trajectory, *, reason: str) -> Trajectory:
    """The trajectory, once it holds what every one does; one that failed has no reward and says so everywhere."""
    reward, failure = trajectory.reward, trajectory.failure
    assert trajectory.terminated != trajectory.truncated
    assert len(reward.turn_rewards) == len(trajectory.turns)
    assert [term.value is None for term in reward.terms.values()] == [
        term.status != "valid" for term in reward.terms.values()
    ]
    if failure is None:
        assert trajectory.reason == reason
        assert trajectory.terminated == (reason in TERMINATIONS)
        assert reward.total == pytest.approx(sum(reward.turn_rewards)) or not trajectory.turns
        assert trajectory.success is not None
    else:
        assert trajectory.truncated
        assert trajectory.reason == (failure.reason if reason in TERMINATIONS else reason)
        assert (reward.total, trajectory.success) == (None, None)
        assert set(reward.turn_rewards) <= {0.0}
        assert failure.message
    line = record.dump(trajectory).decode()
    assert not any(KEY[at : at + 6] in line for at in range(len(KEY) - 5))
    assert record.parse(line) == trajectory
    return trajectory


@pytest.mark.parametrize("reason", SCORED)
def test_an_episode_with_a_reward_ends_as_what_ended_it(reason: str, make: Make) -> None:
    actions, overrides = SCORED[reason]
    environment = make(overrides)
    played = holds(play(environment, (actions, overrides), reason), reason=reason)
    assert played.failure is None
    assert played.reward.terms["own"].evidence.startswith("read from ${env:RLENV_TEST_KEY}")
    assert [ended(one) for one in again(environment, played)] == [ended(played)]
    (replayed,) = asyncio.run(replay(environment, [played]))
    assert replayed.differences == ()


@pytest.mark.parametrize(
    ("reason", "term"),
    [
        *((reason, "raises") for reason in SCORED),
        *((reason, term) for reason in ("answer", "turns") for term in INVALID if term != "raises"),
    ],
)
def test_an_invalid_reward_ends_it_as_failed_and_a_limit_stays_said(reason: str, term: str, make: Make) -> None:
    actions, overrides = SCORED[reason]
    environment = make({**overrides, **INVALID[term]})
    played = holds(play(environment, (actions, overrides), reason), reason=reason)
    assert played.failure is not None
    assert played.failure.reason == "reward"
    for looked_at in (*again(environment, played), *score_groups(environment.parts.scorer, [played])):
        assert ended(holds(looked_at, reason=reason)) == ended(played)
    # Once it can be measured, it has ended as it would have.
    sound = make(overrides)
    assert [ended(one) for one in again(sound, played)] == [ended(play(sound, (actions, overrides), reason))]


@pytest.mark.parametrize("reason", SCORED)
def test_an_invalid_reward_of_the_group_does_so_too(reason: str, make: Make) -> None:
    actions, overrides = SCORED[reason]
    sound, broken = make({**overrides, **GROUP}), make({**overrides, **BAD_GROUP})
    played = play(broken, (actions, overrides), reason)
    (failed,) = score_groups(broken.parts.scorer, [holds(played, reason=reason)])
    assert holds(failed, reason=reason).failure is not None
    assert [ended(one) for one in again(broken, failed, played)] == [ended(failed)] * 2
    (scored,) = score_groups(sound.parts.scorer, [play(sound, (actions, overrides), reason)])
    assert holds(scored, reason=reason).failure is None
    assert [ended(one) for one in again(sound, failed)] == [ended(scored)]


@pytest.mark.parametrize("reason", [*FAILED, "policy"])
def test_what_failed_before_it_was_scored_stays_failed(reason: str, make: Make) -> None:
    actions, overrides = FAILED.get(reason, ([CALL], {}))
    environment = make({**overrides, **GROUP})

    async def main() -> Trajectory:
        async with environment.start() as episode:
            for action in actions:
                await episode.step(action)
            return episode.fail(reason, f"no policy knows {KEY}")

    played = holds(asyncio.run(main()), reason=reason)
    assert played.failure is not None
    assert (played.reason, played.answer) == (reason, None)
    assert {term.status for term in played.reward.terms.values()} == {"invalid"}
    assert score_groups(environment.parts.scorer, [played]) == [played]
    for looked_at in again(environment, played):
        assert holds(looked_at, reason=reason).failure == played.failure


def test_what_is_replayed_and_goes_on_is_cut_and_not_terminated(make: Make) -> None:
    actions, _ = TERMINATED["final_message"]
    played = play(make({}), (actions, {}), "")
    (replayed,) = asyncio.run(replay(make(USER), [played]))
    assert replayed.again is not None
    assert holds(replayed.again, reason="left").truncated
