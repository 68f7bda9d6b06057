"""The commands of text-world.yaml's houses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlenv.episodes.environment import load
from rlenv.trajectory import Trajectory

HOUSE = {
    "exits": {
        "hall": {"north": "attic", "east": "study"},
        "attic": {"south": "hall"},
        "study": {"west": "hall"},
    },
    "things": {"lamp": "attic", "key": "hall", "cup": "hall"},
    "start": "hall",
    "locked": "attic",
    "thing": "lamp",
    "target": "study",
}
WAY = ["take key", "unlock north", "go north", "take lamp", "go south", "go east", "drop lamp"]


def _played(folder: Path, commands: Sequence[str]) -> Trajectory:
    (folder / "test.jsonl").write_text(json.dumps({"rooms": 3, "house": HOUSE, "walkthrough": WAY}))
    environment = load("text-world", set={"tasks": {"test": {"path": str(folder / "test.jsonl")}}})

    async def run() -> Trajectory:
        async with environment.start(split="test") as episode:
            for command in commands:
                call = json.dumps({"name": "act", "arguments": {"action": command}})
                if (await episode.step(f"<tool_call>\n{call}\n</tool_call>")).is_last:
                    break
            return episode.trajectory if episode.is_ended else await episode.truncate("stopped")

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        (["look"], "You are in the hall. You see: key, cup. Exits: north (locked), east. You carry: nothing."),
        (["take cup"], "You see: key. Exits: north (locked), east. You carry: cup."),
        (["take cup", "go east", "drop cup"], "You are in the study. You see: cup."),
        (["go north"], "You cannot do that."),
        (["unlock north"], "You cannot do that."),
        (["take key", "unlock north"], "Exits: north, east."),
        (["take key", "unlock east"], "You cannot do that."),
        (["take lamp"], "You cannot do that."),
        (["drop key"], "You cannot do that."),
        (["sing", "take", ""], "You cannot do that."),
        (["sing", "sing", "sing", "sing", "look", "sing", "look"], "You cannot do that."),
    ],
)
def test_a_command_does_what_it_says_or_nothing(commands: list[str], said: str, tmp_path: Path) -> None:
    assert said in _played(tmp_path, commands).turns[-1].results[0].text


@pytest.mark.parametrize(
    ("detour", "total"),
    [([], 1.5), (["go east", "go west", "look", "look", "look", "look", "x"], 1.25), (["a", "b", "c", "d", "e"], 0)],
)
def test_the_end_of_the_world_ends_the_episode_and_detours_cost(
    detour: list[str], total: float, tmp_path: Path
) -> None:
    ended = _played(tmp_path, [*detour, *WAY])
    assert ended.terminated
    assert ended.reward is not None
    assert ended.reward.total == total
