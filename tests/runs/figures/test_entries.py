"""Columns of calls and terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rlenv.runs.figures.entries import Entries, sorted_by, words_of
from rlenv.runs.figures.snapshot import Snapshot
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import RunWriter
from tests.support.runs import played


def test_words_are_those_that_stand_there_as_first_seen() -> None:
    parts = [pa.array(["b", None, "a"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    codes, words = words_of(pa.chunked_array(parts))
    assert (codes.tolist(), words) == ([0, -1, 1, 2, 1], ["b", "a", "c"])
    codes, words = words_of(pa.chunked_array([one.slice(1) for one in parts]))
    assert (codes.tolist(), words) == ([-1, 0, 0], ["a"])
    assert words_of(pa.chunked_array([], pa.string()))[1] == []
    assert words_of(pa.chunked_array([pa.array(["x", "y", "x"])]))[0].tolist() == [0, 1, 0]


def test_places_stand_by_their_codes() -> None:
    for count in (3, 2**15 + 3):
        order, starts = sorted_by(np.array([2, -1, 0, 2, 1], dtype=np.int32), count)
        assert [order[starts[code] : starts[code + 1]].tolist() for code in range(3)] == [[2], [4], [0, 3]]


def test_a_column_is_read_once_and_only_when_it_is_asked_for() -> None:
    read: list[tuple[str, ...]] = []

    def table(names: tuple[str, ...]) -> pa.Table:
        read.append(names)
        return pa.table({"row": [0, 0], **{name: [1.0, None] for name in names}})

    entries = Entries(table)
    assert entries.numbers("seconds")[0] == 1.0
    entries.load("seconds", "waited")
    assert entries.rows("waited").tolist() == [0, 0]
    assert read == [("seconds",), ("waited",)]


def test_terms_that_came_later_stand_in_their_rows(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    ids = [writer.append(played(seed=seed, reward=0.0), Facts()) for seed in range(3)]
    writer.late(ids[1], {"terms": [{"name": "group", "status": "valid", "value": 0.5, "weight": 1.0}]})
    writer.close()
    rows = Snapshot(RunReader(tmp_path))
    assert rows.term_names == ["correct", "group"]
    assert str(rows.term("group")[0].tolist()) == "[nan, 0.5, nan]"
    assert str(rows.term("correct")[0].tolist()) == "[0.0, nan, 0.0]"
