"""What the warm start of a tiny policy plays: bounded, many at once, and without asking a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.testing.endpoint import FakeEndpoint
from rlenv_train.lessons import asked_models
from rlenv_verl.tiny.make import TinyReport, WarmupSettings, make_tiny_policy
from tests.support.beside import served
from tests.support.environments import Make

LAB = Path(__file__).resolve().parents[2] / "tools" / "servers" / "lab.py"
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]


def made(environment: Any, folder: Path, **settings: Any) -> tuple[TinyReport, list[str]]:
    """A policy that has hardly learned anything, and what was said meanwhile."""
    said: list[str] = []
    few = WarmupSettings(**{"steps": 2, "clean": 20, "mixed": 40, **settings})
    return make_tiny_policy(environment, folder, seed=0, settings=few, progress=said.append), said


COMPANY = """
rlenv: 1
name: company
tasks: {train: {rows: [{a: 12, b: 30}, {a: 7, b: 15}, {a: 44, b: 8}, {a: 3, b: 91}]}}
endpoints: {paid: {base_url: "URL", model: m}}
prompt: {user: "Add {{ task.a }} and {{ task.b }}, and ask for advice."}
tools:
  lab: {kind: mcp, command: [PYTHON, LAB], scope: episode, include: [add], start_timeout_s: 90, timeout_s: 100}
  ask: {kind: model, endpoint: paid, prompt: "{{ args.text }}", parameters: {text: string}}
user: {kind: model, endpoint: paid, prompt: "You are the customer."}
rewards:
  nice: {kind: judge, endpoint: paid, prompt: "Is this nice? {{ transcript }}"}
success: nice >= 0.5
answer: {from: final_message}
limits: {episode_s: 200}
oracle:
  - call: {ask: {text: "{{ task.a }}"}}
  - say: "Do you want the sum?"
  - call: {add: {a: "{{ task.a }}", b: "{{ task.b }}"}}
  - say: "It is {{ results[-1] }}."
"""


@pytest.mark.slow
def test_no_model_is_asked_and_servers_of_episodes_are_few(make_environment: Make, tmp_path: Path) -> None:
    with served(FakeEndpoint(["no"])) as server:
        words = {"URL": server.base_url, "PYTHON": sys.executable, "LAB": str(LAB)}
        spec = COMPANY
        for word, value in words.items():
            spec = spec.replace(word, value)
        environment = make_environment(spec)
        assert asked_models(environment) == ("tools.ask", "user")
        report, said = made(environment, tmp_path / "model", play_s=0.0)
        assert server.requests == []
    # Its time was over from the beginning: one episode of each kind is played, and the lessons drawn from these.
    episodes = [line.rpartition(" of ")[0] for line in said if " of " in line and not line.startswith("step")]
    assert episodes == [
        f"company: {what} 1" for what in ("episodes of the oracle", "episodes with edited calls", "drills")
    ]
    assert report.lessons == 60
    assert said[-2:] == [line for line in said if line.startswith("step ")]
    assert environment.parts.scorer.names == ("nice",)  # what was put aside stands again


MEETING = """
import asyncio

come, all_there = [], asyncio.Event()

async def double(n: int) -> int:
    \"\"\"Twice as much, once four calls are there.

    Args:
        n: a number
    \"\"\"
    come.append(n)
    if len(come) == 4:
        all_there.set()
    await all_there.wait()
    return 2 * n
"""


def test_episodes_are_played_at_once(make_environment: Make, tmp_path: Path) -> None:
    spec = """
        rlenv: 1
        name: meeting
        tasks: {train: {rows: [{n: 11}, {n: 12}, {n: 13}, {n: 14}]}}
        prompt: {user: "Double {{ task.n }}."}
        tools: {double: {kind: python, function: "tools.py:double"}}
        rewards: {right: {kind: rule, rule: numeric_match, expect: "{{ task.n * 2 }}"}}
        oracle: [{call: {double: {n: "{{ task.n }}"}}}, {say: "<answer>{{ results[-1] }}</answer>"}]
    """
    settings = {"at_once": 4, "drills": 8, "mixed": 20}
    report, said = made(make_environment(spec, tools=MEETING), tmp_path / "model", **settings)
    assert "meeting: episodes of the oracle 4 of 4" in said
    assert "meeting: drills 8 of 8" in said
    assert (report.cut, len(report.lines)) == ((), 1)


def test_what_there_was_no_time_to_play_is_said(tmp_path: Path) -> None:
    report, _ = made(load("arithmetic"), tmp_path / "model", play_s=0.0, golds=10, drills=7)
    assert report.cut[0] == "arithmetic: 1 of 10 episodes of the oracle"
    assert report.cut[-1] == "arithmetic: 1 of 7 drills"
    assert "there was time to play arithmetic: 1 of 10 episodes of the oracle, " in report.lines[1]


def test_a_twentieth_of_a_run_s_time_goes_to_playing() -> None:
    assert [WarmupSettings.within(limit_s).play_s for limit_s in (None, 1800, 600)] == [90.0, 90.0, 30.0]


@pytest.mark.slow
def test_equal_arguments_give_equal_weights(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(load("arithmetic"), tmp_path / name, golds=10)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
