from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import Environment, load

WEATHER = {
    "name": "weather.now",
    "description": "The weather of a city.",
    "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKED = [[{"role": "user", "content": "Weather in Oslo and Rome?"}]]
BFCL = {"id": "parallel_0", "question": ASKED, "function": [WEATHER]}
GOLD = {"id": "parallel_0", "ground_truth": [{"weather.now": {"city": [city, ""]}} for city in ("Oslo", "Rome")]}
XLAM = {
    "id": 7,
    "query": "Weather in Oslo?",
    "tools": json.dumps(
        [{"name": "now", "description": "", "parameters": {"city": {"type": "str", "description": ""}}}]
    ),
    "answers": json.dumps([{"name": "now", "arguments": {"city": "Oslo"}}]),
}
TOOL_ACE = {
    "system": "Here is a list of functions in JSON format that you can invoke:\n"
    + json.dumps([{**WEATHER, "name": "Weather Now API", "required": None}, {**WEATHER, "name": "get[old]"}])
    + ". \nPut it in the format of [func1(params_name=params_value)]",
    "conversations": [
        {"from": "user", "value": "Weather in Oslo and Rome?"},
        {"from": "assistant", "value": '[Weather Now API(city="Oslo"), Weather Now API(city="Rome")]'},
        {"from": "tool", "value": "[]"},
    ],
}


def of(files: list[Path], root: Path) -> Environment:
    source = {
        "function": f"{root}/specs/function_calls_tools.py:official",
        "arguments": {"files": list(map(str, files))},
    }
    return load("function-calls", set={"tasks": {"test": source}})


def earned(environment: Environment, task: int, action: str) -> float | None:
    async def run() -> float | None:
        async with environment.start(split="test", task=task) as episode:
            await episode.step(action)
            return episode.trajectory.reward.total

    return asyncio.run(run())


def written(*calls: tuple[str, dict[str, Any]]) -> str:
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )


def bfcl_files(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """The two files that BFCL has for a category."""
    (folder / "possible_answer").mkdir()
    file = folder / "BFCL_v4_some.json"
    golds = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in rows if row["ground_truth"]]
    file.write_text("".join(json.dumps({**row, "ground_truth": None}) + "\n" for row in rows))
    (folder / "possible_answer" / file.name).write_text("".join(json.dumps(gold) + "\n" for gold in golds))
    return file


def test_files_of_other_data_sets_play_as_they_are(
    tmp_path: Path, root: Path, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    irrelevant = {"id": "irrelevance_3", "question": ASKED, "function": [WEATHER], "ground_truth": []}
    files = [bfcl_files(tmp_path, [BFCL | GOLD, irrelevant]), tmp_path / "xlam.json", tmp_path / "data.json"]
    files[1].write_text(json.dumps([XLAM]))
    files[2].write_text(
        json.dumps([TOOL_ACE, {**TOOL_ACE, "conversations": [{"value": "?"}, {"value": "Which city?"}]}])
    )
    environment = of(files, root)
    assert [row["kind"] for row in environment.tasks("test")] == [
        *("parallel", "irrelevance", "calls", "calls", "irrelevance")
    ]
    trajectories = play_oracle(environment, "test")
    assert_all_earn_maximum(environment, trajectories)
    assert [[call.name for call in one.turns[0].parsed.calls] for one in trajectories] == [
        *(["weather_now"] * 2, [], ["now"], ["Weather_Now_API"] * 2, [])
    ]


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        (written(("weather_now", {"city": "rome"}), ("weather_now", {"city": "Oslo"})), 1.0),
        (written(("weather_now", {"city": "Rome"}), ("weather_now", {"city": "Rome"})), 0.0),
        (written(("weather_now", {"city": "Rome"})), 0.0),
        (written(*[("weather_now", {"city": city}) for city in ("Rome", "Oslo", "Oslo")]), 0.0),
        ("NONE", 0.0),
    ],
)
def test_exactly_the_calls_that_serve_are_paid(tmp_path: Path, root: Path, action: str, reward: float) -> None:
    assert earned(of([bfcl_files(tmp_path, [BFCL | GOLD])], root), 0, action) == reward


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("NONE", 1.0),
        ("I cannot: NONE.", 1.0),
        ("I cannot.", 0.0),
        (written(("weather_now", {"city": "Rome"})), 0.0),
        ("NONE" + written(("weather_now", {"city": "Rome"})), 0.0),  # who leaves it open whether to call is not paid
        ("NONE <tool_call>", 0.0),
    ],
)
def test_to_decline_is_to_say_so(tmp_path: Path, root: Path, action: str, reward: float) -> None:
    assert earned(of([bfcl_files(tmp_path, [{**BFCL, "ground_truth": []}])], root), 0, action) == reward


AT_FAULT = {"parallel_multiple_21", "parallel_multiple_26", "parallel_multiple_94", "simple_python_200"}
"""Rows whose accepted arguments their own schemas refuse."""


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance"])
def test_the_oracle_plays_bfcls_own_rows(
    name: str, tmp_path: Path, root: Path, public: Callable, play_oracle: Callable
) -> None:
    rows = [json.loads(line) for line in public(f"bfcl/{name}.jsonl").read_text().splitlines()]
    file = bfcl_files(tmp_path, [{**row, "function": row.pop("functions")} for row in rows])
    trajectories = play_oracle(of([file], root), "test")
    assert [one.failure for one in trajectories if one.failure] == []
    assert {rows[one.task_index]["id"] for one in trajectories if one.reward.total != 1} <= AT_FAULT
