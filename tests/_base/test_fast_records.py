"""Records made quickly are the records that their class makes."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from rlenv._base.fast_records import quick
from rlenv.episodes.episode import Step
from rlenv.messages import Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.tools.base import ToolContext, ToolOutput
from rlenv.trajectory import TermResult, Turn

MADE: list[tuple[Any, tuple[Any, ...]]] = [
    (Message, ("tool", "text", (), "name", "id", ())),
    (Observation, ((Message("user", "a"),), "text", ())),
    (ParsedAction, ("content", "thinking", (ToolCall("a", {}),), True)),
    (Step, (Observation(), 0.5, True, False, "answer")),
    (ToolCall, ("name", {"a": 1}, None, 3, 9)),
    (ToolContext, ({}, {}, 12.5, 7)),
    (ToolOutput, ("text", 3)),
    (TermResult, ("a", "valid", 1.0, 0.5)),
    (Turn, (0, "action", ParsedAction("action"), (), None, 1, 0.25)),
]


@pytest.mark.parametrize(("record", "arguments"), MADE, ids=lambda value: getattr(value, "__name__", ""))
def test_it_equals_what_the_class_makes(record: Any, arguments: tuple[Any, ...]) -> None:
    made, usual = quick(record)(*arguments), record(*arguments)
    assert type(made) is record
    assert made == usual
    assert repr(made) == repr(usual)
    assert dataclasses.replace(made) == usual
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(record)[0].name, None)


def test_it_takes_keywords_and_survives_pickling() -> None:
    made = quick(Message)(role="user", content="x", name="n")
    assert pickle.loads(pickle.dumps(made)) == Message("user", "x", name="n")


def test_a_tool_result_is_made_with_all_its_fields() -> None:
    usual = ToolResult("a", "text", "ok", 1, "id", 0.5)
    values = [getattr(usual, field.name) for field in dataclasses.fields(usual)]
    assert quick(ToolResult)(*values) == usual


def test_a_class_of_another_sort_is_refused() -> None:
    @dataclasses.dataclass
    class Loose:
        a: int

    with pytest.raises(TypeError, match="slotted"):
        quick(Loose)
