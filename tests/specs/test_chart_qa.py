from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.episodes.environment import Environment, load
from rlenv.runs import files as record

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture
def spec(root: Path) -> Path:
    return root / "examples" / "chart_qa" / "env.yaml"


@pytest.fixture
def environment(spec: Path) -> Environment:
    return load(spec, set={"tasks.train.limit": 20})


@pytest.mark.slow
def test_the_example_validates_and_its_oracle_earns_the_maximum(
    spec: Path, environment: Environment, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    assert validate([spec]).faults == ()
    assert_all_earn_maximum(environment, play_oracle(environment, "train"))


def test_numbers_stand_in_the_images_alone(environment: Environment, play_oracle: Callable) -> None:
    for trajectory in play_oracle(environment, "train"):
        texts = [message.content for message in trajectory.messages]
        texts += [m.content for turn in trajectory.turns if turn.observation for m in turn.observation.messages]
        values = {str(value) for page in trajectory.task["pages"] for value in page["bars"].values()}
        assert not values & set(" ".join(texts).replace(".", " ").replace(":", " ").split())
        shown = [m for turn in trajectory.turns if turn.observation for m in turn.observation.messages]
        assert all(len(message.images) == 1 for message in shown)


def test_a_recorded_episode_keeps_its_images(environment: Environment, play_oracle: Callable) -> None:
    (trajectory, *_) = play_oracle(environment, "train")
    read = record.parse(record.dump(trajectory))
    assert read.messages[-1].images == trajectory.messages[-1].images


def test_an_episode_is_drawn_the_same_each_time(environment: Environment) -> None:
    def first(task: int) -> Any:
        async def opened() -> Any:
            async with environment.start(task=task) as episode:
                return episode.messages

        return asyncio.run(opened())

    assert first(3) == first(3) != first(4)


def test_wrong_pages_and_bars_are_the_models_mistakes(environment: Environment) -> None:
    async def play() -> list[str]:
        async with environment.start(task=0) as episode:
            texts = []
            for name, arguments in (("page", {"number": 9}), ("zoom", {"page": 1, "bar": "Dec"})):
                call = json.dumps({"name": name, "arguments": arguments})
                step = await episode.step(f"<tool_call>\n{call}\n</tool_call>")
                texts.append(step.observation.messages[0].content)
            return texts

    one, other = asyncio.run(play())
    assert "there is no page 9" in one
    assert "page 1 has no bar 'Dec'; its bars are" in other
