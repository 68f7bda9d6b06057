"""What is kept of a call has a bound, and what does not fit is said to be missing."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv._base.bounded import (
    abridged,
    bounded,
    cut_end,
    cut_middle,
    drop_oldest,
    encodable,
    quick,
    sendable,
    size,
    stretches,
)
from rlenv.episodes.episode import Step
from rlenv.messages import Message, Observation, ParsedAction, ToolCall, ToolResult
from rlenv.tools.base import ToolContext, ToolOutput
from rlenv.trajectory import TermResult, Turn

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def nested(depth: int) -> Any:
    value: Any = "core"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.slow
@given(JSON)
def test_a_small_value_is_kept_as_it_is(value: Any) -> None:
    assert bounded(value, 1_000_000) is value


@pytest.mark.slow
@given(JSON, st.integers(min_value=100, max_value=2_000))
def test_what_is_kept_is_json_within_a_few_times_its_bound(value: Any, limit: int) -> None:
    kept = bounded([value] * 50, limit)
    assert len(json.dumps(kept, ensure_ascii=False)) <= 4 * limit + 2_000


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        ["x" * 1_000] * 10_000,
        {str(number): "x" * 1_000 for number in range(10_000)},
        [[["x" * 100] * 100] * 100] * 10,
        nested(5_000),
        {"k" * 1_000_000: 1},
        10**100_000,
        [10**3_000] * 1_000,
        b"x" * 1_000_000,
        list(range(1_000_000)),
    ],
    ids=["text", "list", "object", "tree", "deep", "long key", "integer", "integers", "bytes", "numbers"],
)
def test_a_huge_value_is_cut_and_says_so(value: Any) -> None:
    kept = bounded(value, 10_000)
    text = json.dumps(kept, ensure_ascii=False)
    assert len(text) < 50_000
    assert "…" in text


def test_looking_at_a_size_ends_at_the_limit() -> None:
    class Endless(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("its length was enough")

    assert size(Endless([1] * 100_000), 1_000) > 1_000


def test_a_text_is_cut_in_the_middle() -> None:
    cut = cut_middle("a" * 500 + "b" * 500, 200)
    assert len(cut) <= 200
    assert cut.startswith("aaa")
    assert cut.endswith("bbb")
    assert "left out" in cut


@given(st.text(alphabet=st.characters(codec=None)))  # surrogates too
def test_every_text_can_be_encoded_afterwards(text: str) -> None:
    encodable(text).encode()


def test_only_surrogates_are_replaced() -> None:
    assert encodable("a\ud800b ü 😀") == "a\ufffdb ü 😀"
    assert encodable("\ud83d" + "\ude00") == "\ufffd\ufffd"
    same = "plain ü 😀"
    assert encodable(same) is same


@given(st.text(max_size=40), st.integers(min_value=1, max_value=30))
def test_what_is_cut_at_its_end_is_within_its_limit(text: str, limit: int) -> None:
    cut = cut_end(text, limit)
    assert len(cut) <= limit
    assert cut == text or (cut.endswith("…") and text.startswith(cut[:-1]))


@given(st.text(max_size=40), st.integers(min_value=2, max_value=30))
def test_what_is_abridged_keeps_both_ends(text: str, limit: int) -> None:
    short = abridged(text, limit)
    head, _, tail = short.rpartition(" … ")
    assert short == text or (text.startswith(head) and text.endswith(tail) and len(head) + len(tail) <= limit + 1)


def test_what_was_put_in_first_is_dropped_first() -> None:
    kept = {number: str(number) for number in (3, 1, 2)}
    drop_oldest(kept, most=3)
    assert list(kept) == [3, 1, 2]
    drop_oldest(kept, most=1)
    assert list(kept) == [2]


# What is sent as strict JSON


def test_what_is_sendable_is_taken_by_a_strict_writer() -> None:
    held = {"\ud800": ["a\udfff", 2**70, -(2**63), math.nan, {1: b"x"}], "ok": True}
    read = orjson.loads(orjson.dumps(sendable(held)))
    assert read == {"\ufffd": ["a\ufffd", str(2**70), -(2**63), None, {"1": "b'x'"}], "ok": True}


# Records made quickly are the records that their class makes

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


def test_stretches_are_where_true_values_follow_each_other() -> None:
    assert stretches([1, 1, 0, 1, 1, 0]) == [(0, 2), (3, 5)]
    assert stretches([1, 1, 1]) == [(0, 3)]
    assert stretches([0, 0]) == stretches([]) == []
