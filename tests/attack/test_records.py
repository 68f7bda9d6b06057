"""A file of recorded episodes, whoever wrote it, is read or refused with its place; what is recorded is bounded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.cli.main import main as command
from rlenv.errors import UsageError
from rlenv.messages import Image, Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.runs import files as record
from rlenv.trajectory import RewardBreakdown, TermResult, Trajectory, Turn

Edit = Callable[[dict[str, Any]], None]


def episode(
    results: tuple[ToolResult, ...] = (ToolResult("look", "seen"),), *, task: dict[str, Any] | None = None
) -> Trajectory:
    """An episode of one turn with these results, and an answer."""
    messages = tuple(Message("tool", one.text, (), one.name, one.call_id, one.images) for one in results)
    calls = tuple(ToolCall(one.name, {}, one.call_id) for one in results)
    turns = (
        Turn(0, "call", ParsedAction("", "", calls), results, Observation(messages, "shown", results)),
        Turn(1, "<answer>1</answer>", ParsedAction("<answer>1</answer>")),
    )
    reward = RewardBreakdown(1.0, {"correct": TermResult("correct", "valid", 1.0, 1.0)}, (0.0, 1.0))
    user = (Message("user", "q"),)
    return Trajectory(
        "rlenv/toy-v0", "train", 0, 7, task or {"question": "q"}, user, turns, "1", True, False, "answer", reward, True
    )


def line(**edits: Any) -> bytes:
    return json.dumps({**json.loads(record.dump(episode())), **edits}).encode()


def test_what_a_call_gave_stands_in_a_line_once() -> None:
    image = Image.of(b"IMAGE" * 40)
    kept = episode((ToolResult("look", "TEXT", "ok", {"key": "VALUE"}, "id", images=(image,), details={"d": "NOTE"}),))
    written = record.dump(kept)
    assert [written.count(word) for word in (b"VALUE", b"NOTE", image.base64.encode())] == [1, 1, 1]
    assert record.parse(written) == kept


def test_images_that_are_not_shown_are_not_shown_after_reading_either() -> None:
    result = ToolResult("look", "seen", images=(Image.of(b"a"),))
    hidden = Observation((Message("tool", "seen", (), "look"),), "", (result,))
    (first, last) = episode((result,)).turns
    kept = Trajectory(
        **{
            **{name: getattr(episode(), name) for name in Trajectory.__slots__},
            "turns": (Turn(0, "", first.parsed, (result,), hidden), last),
        }
    )
    assert record.parse(record.dump(kept)) == kept


def test_lines_of_older_versions_are_read() -> None:
    kept = episode((ToolResult("look", "seen", "failed", reason="failed", whose="policy"),))
    old = record.plain(kept)  # everything twice, as it was written
    for held in (old["turns"][0], old["turns"][0]["observation"]):
        for result in held["results"]:
            del result["reason"], result["whose"]
    read = record.parse(json.dumps(old))
    assert read.turns[0].results == (ToolResult("look", "seen", "failed"),)
    assert read.turns[0].observation is not None
    assert read.turns[0].observation.results == read.turns[0].results
    assert record.parse(record.dump(read)) == read


def test_an_observation_that_names_no_messages_has_none() -> None:
    read = record.parse(line(turns=[{"index": 0, "action": "", "parsed": {"content": ""}, "observation": {}}]))
    assert read.turns[0].observation == Observation()


def test_whose_failure_it_was_is_recorded() -> None:
    kept = episode((ToolResult("look", "gone", "failed", reason="server_down", whose="infrastructure"),))
    assert record.parse(record.dump(kept)).turns[0].results[0].whose == "infrastructure"


def nest(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(_VALUES)
def test_whatever_a_tool_gives_is_recorded_and_read(value: Any) -> None:
    kept = episode((ToolResult("look", "seen", "ok", value),), task={"x": value})
    read = record.parse(record.dump(kept))
    assert record.parse(record.dump(read)) == read


_ODD = {
    "deep": nest(5_000),
    "a long integer": 7**40_000,
    "deep in an object": {"a": nest(300)},
    "infinite": float("inf"),
    "a class": object,
    "bytes": b"\xff",
}


@pytest.mark.parametrize("name", _ODD)
def test_values_that_json_cannot_hold_are_recorded_as_what_can_be_said_of_them(name: str) -> None:
    value = _ODD[name]
    read = record.parse(record.dump(episode((ToolResult("look", "seen", "ok", value, details={"x": value}),))))
    assert read.turns[0].results[0].text == "seen"


_DEEP = b"[" * 100_000 + b"]" * 100_000

HOSTILE = {
    "deep beside": line()[:-1] + b',"x":' + _DEEP + b"}",
    "deep in the task": line().replace(b'"task": {', b'"task": {"z":' + b"[" * 900 + b"]" * 900 + b",", 1),
    "deep unclosed": line()[:-1] + b',"x":' + b"[" * 1_000_000,
    "objects in objects": line()[:-1] + b',"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "not a number": line().replace(b'"total": 1.0', b'"total": NaN', 1),
    "infinite": line().replace(b'"total": 1.0', b'"total": -Infinity', 1),
    "too large for a float": line().replace(b'"total": 1.0', b'"total": 1e999', 1),
    "a number in text": line(seed="NaN"),
    "an integer of 5,000 digits": line().replace(b'"seed": 7', b'"seed": ' + b"9" * 5_000, 1),
    "turns that are none": line(turns=5),
    "turns of numbers": line(turns=[5]),
    "an observation that is none": line(turns=[{"index": 0, "observation": 3}]),
    "an observation of nothing": line(turns=[{"index": 0, "action": "", "parsed": {"content": ""}, "observation": {}}])[
        :-1
    ]
    + b',"task": 3}',
    "messages that are none": line(messages="all"),
    "a list": b"[]",
    "a number": b"5",
    "nothing in it": b"{}",
    "no text": bytes(range(255)),
    "another encoding": "{}".encode("utf-16"),
    "a surrogate in bytes": b'{"a": "\xed\xa0\x80"}',
    "two on one line": line() + line(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_trajectory_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line() + b"\n\n" + HOSTILE[name] + b"\n")
    read = record.read(path)
    assert next(read) == episode()
    with pytest.raises(UsageError, match=r"t\.jsonl:[34]: not a recorded trajectory") as caught:
        list(read)
    assert len(str(caught.value)) < 1_500
    assert command(["replay", str(path), "--spec", "arithmetic"]) == 2


@pytest.mark.slow
def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("wb") as file:
        file.write(line() + b"\n{")
        file.truncate(4 * record.MAX_LINE_BYTES)  # a hole takes no place on the disk
    with pytest.raises(UsageError, match=rf"t\.jsonl:2: .* longer than {record.MAX_LINE_BYTES} bytes"):
        list(record.read(path))


@pytest.mark.parametrize("share", [0.02, 0.1, 0.33, 0.5, 0.77, 0.9, 0.999])
def test_a_line_that_was_cut_off_costs_itself_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    path = tmp_path / "t.jsonl"
    written = line()
    part = written[: int(len(written) * share)]
    path.write_bytes(part + b"\n" + written + b"\n" + part)
    with caplog.at_level(logging.WARNING):
        assert list(record.read(path)) == [episode()]
    assert "t.jsonl:1: the line was cut off" in caplog.text
    assert "t.jsonl:3: the line was cut off" in caplog.text


@pytest.mark.slow
def test_every_place_at_which_a_line_can_be_cut_is_one_of_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    written = record.dump(episode((ToolResult("look", "\ud800 \u20ac \\", "ok", [True, None, 1.5e-7]),)))
    for end in range(1, len(written)):
        path.write_bytes(written + b"\n" + written[:end])
        assert len(list(record.read(path))) == 1, written[:end][-20:]


FLOOD = """
rlenv: 1
name: flood
tasks: {train: {rows: [{question: q, answer: a}]}}
prompt: {user: "{{ task.question }}"}
tools: {flood: {kind: python, function: "tools.py:flood"}}
rewards: {correct: {kind: rule, rule: exact_match}}
"""
TOOL = """
from rlenv.tools.base import ToolOutput

def flood(x: str) -> ToolOutput:
    "Floods."
    sign = "\U0001f4a5"
    return ToolOutput(sign * 10_000_000, {"rows": [sign * 1_000] * 10_000}, details={"notes": [sign] * 1_000_000})
"""


def test_a_line_of_an_episode_is_bounded_whatever_its_tools_give(make_environment: Callable[..., Any]) -> None:
    environment = make_environment(FLOOD, tools=TOOL)

    async def main() -> Trajectory:
        async with environment, environment.start(task=0) as played:
            await played.step('<tool_call>{"name": "flood", "arguments": {"x": ""}}</tool_call>')
            return await played.truncate("turns")

    played = asyncio.run(main())
    assert len(played.turns[0].results) == 1
    # 65,536 characters of text and of notes, and what of them is shown: each takes 12 bytes at most.
    assert len(record.dump(played)) < 12 * (2 * 65_536 + 3 * 16_384) + 10_000
