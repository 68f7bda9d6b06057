"""The rows of one version of a run, and the counts of its values beside a list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.query import QueryFault, parse
from rlenv.runs.figures.snapshot import MOST_TERMS, Entries, Snapshot, facets, sorted_by, words_of
from rlenv.runs.figures.steps import series
from rlenv.runs.reader import RunReader
from rlenv.runs.schema import Facts
from rlenv.runs.writer import RunWriter
from tests.support.runs import played, row, snapshot

MANY = 50_000


@pytest.fixture(scope="module")
def many() -> Snapshot:
    """Two episodes, of which one has a name for each thing that it saw."""
    return snapshot(row(0, terms={"correct": 0.5}), row(1, terms={f"seen {at}": at for at in range(MANY)}))


def test_each_term_has_the_values_of_its_own_episodes() -> None:
    rows = snapshot(row(0, terms={"a": 1.0, "b": 2.0}), row(1), row(2, terms={"b": None, "a": 3.0}))
    assert rows.term_names == ["a", "b"]
    assert rows.terms_more == 0
    values, states = rows.term("a")
    assert str(values.tolist()) == "[1.0, nan, 3.0]"
    assert states.tolist() == ["valid", None, "valid"]
    values, states = rows.term("b")
    assert str(values.tolist()) == "[2.0, nan, nan]"
    assert states.tolist() == ["valid", None, "invalid"]
    assert rows.term("c")[1].tolist() == [None] * 3
    assert rows.terms.rows("name")[rows.places_of("b")].tolist() == [0, 2]


def test_no_rows_have_no_terms() -> None:
    rows = snapshot()
    assert (rows.term_names, rows.has_term("a"), len(rows.term("a")[0])) == ([], False, 0)


def test_lists_of_terms_end_somewhere(many: Snapshot) -> None:
    assert len(many.term_names) == MOST_TERMS
    assert many.terms_more == MANY + 1 - MOST_TERMS
    assert len(reward_figures.term_figures(many, parse("").places(many))) == MOST_TERMS
    figures = series(many)[1]
    assert sum(name.startswith("train/term.") for name in figures) == MOST_TERMS
    first, second = many.rows([0, 1])
    assert [len(first["terms"]), len(second["terms"])] == [1, MOST_TERMS]
    assert second["terms"][0]["name"] == "seen 0"


def test_a_term_that_no_list_names_is_found_all_the_same(many: Snapshot) -> None:
    assert many.has_term(f"seen {MANY - 1}")
    assert many.term(f"seen {MANY - 1}")[0][1] == MANY - 1
    with pytest.raises(QueryFault, match="no episode has a term"):
        parse("term.nothing:1").places(many)


# Columns of calls and terms


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
    writer.append_late(ids[1], {"terms": [{"name": "group", "status": "valid", "value": 0.5, "weight": 1.0}]})
    writer.close()
    rows = Snapshot(RunReader(tmp_path))
    assert rows.term_names == ["correct", "group"]
    assert str(rows.term("group")[0].tolist()) == "[nan, 0.5, nan]"
    assert str(rows.term("correct")[0].tolist()) == "[0.0, nan, 0.0]"


ROWS = snapshot(
    *(
        row(n, step=n, split="train" if n % 3 else "test", success=[True, False, None][n % 3], reason="answer")
        for n in range(90)
    ),
    row(90, step=90, calls=[("search", "ok", 0.1), ("search", "ok", 0.1), ("sql", "timeout", 1.0)], failure="reward"),
)


def test_each_count_is_what_its_query_finds() -> None:
    found = facets(ROWS, np.arange(len(ROWS)))
    assert set(found) == {"split", "mode", "reason", "failure", "fate", "why", "success", "tool", "outcome", "step"}
    for column, values in found.items():
        for one in values:
            assert len(parse(f"{column}:{one['value']}").places(ROWS)) == one["count"], (column, one)


def test_steps_are_in_ranges_in_order() -> None:
    found = facets(ROWS, np.arange(len(ROWS)))["step"]
    assert len(found) <= 24
    assert found[0]["value"] == "0..3"
    assert sum(one["count"] for one in found) == len(ROWS)


def test_only_the_rows_that_were_asked_for_count() -> None:
    found = facets(ROWS, np.array([0, 3]))
    assert found["split"] == [{"value": "test", "count": 2}]
    assert found["tool"] == []
    assert facets(snapshot(), np.array([], dtype=np.int64))["step"] == []
