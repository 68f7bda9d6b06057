"""The dialect of Search-R1 in an environment: one growing text, with the words on an action without a tag."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from rlenv.episodes.environment import Environment, load
from rlenv.episodes.rollout import context_of

SPEC = {
    "rlenv": 1,
    "name": "one-text",
    "tasks": {"train": {"rows": [{"question": "Who?", "answer": "Ann"}]}},
    "prompt": {"user": "{{ task.question }}"},
    "dialect": "search_r1",
    "tools": {"search": {"kind": "calculator"}},
    "user": {"kind": "scripted", "cues": [{"pattern": "", "say": "Try again."}]},
    "rewards": {"correct": {"kind": "rule", "rule": "exact_match"}},
}


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    path = tmp_path / "env.yaml"
    path.write_text(yaml.safe_dump(SPEC, sort_keys=False), encoding="utf-8")
    return load(path)


def test_an_action_without_a_tag_is_answered_in_the_same_text_and_the_episode_goes_on(environment: Environment) -> None:
    async def play() -> list[str]:
        async with environment, environment.start(task=0) as episode:
            seen = []
            for action in ("<think> hm </think>", "<search>1 + 1</search>", "<think><answer> Ann </answer>"):
                seen.append((await episode.step(action)).observation.text)
            assert episode.trajectory.success
            return seen

    assert asyncio.run(play()) == ["\nTry again.\n", "\n\n<information>2</information>\n\n", ""]


def test_an_action_ends_behind_the_call_or_the_answer(environment: Environment) -> None:
    async def play() -> tuple[str, ...]:
        async with environment, environment.start(task=0) as episode:
            return context_of(episode).stops

    assert asyncio.run(play()) == ("</search>", "</answer>")
