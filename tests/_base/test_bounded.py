"""What is kept of a call has a bound, and what does not fit is said to be missing."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv._base.bounded import abridged, bounded, cut_end, cut_middle, drop_oldest, encodable, sendable, size

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


def test_only_lone_surrogates_are_replaced() -> None:
    assert encodable("a\ud800b ü 😀") == "a\ufffdb ü 😀"
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
