"""The rows of one version of a run."""

from __future__ import annotations

import pytest

from rlenv.runs.figures import rewards as reward_figures
from rlenv.runs.figures.query import QueryFault, parse
from rlenv.runs.figures.snapshot import MOST_TERMS, Snapshot
from rlenv.runs.figures.steps import series
from tests.support.runs import row, snapshot

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
    assert len(reward_figures.terms(many, parse("").places(many))) == MOST_TERMS
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
