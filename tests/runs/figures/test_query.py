"""The query language over episodes: what it means, how it tells what it cannot read; texts looked for in episodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.figures.query import COLUMNS, Query, QueryFault, order_places, parse, search_records
from tests.support.runs import played, row, snapshot

ROWS = snapshot(
    row(0, success=True, reward=1.0, step=0, reason="answer", calls=[("search", "ok", 0.5)], terms={"format": 1.0}),
    row(
        1, success=False, reward=0.2, step=5, reason="turns", calls=[("search", "timeout", 3.0)], terms={"format": 0.2}
    ),
    row(2, success=False, reward=0.0, step=10, reason="tokens", title="Where is Rome?", terms={"format": None}),
    row(3, success=None, reward=None, step=20, reason="reward", failure="reward", failure_message="no judge"),
)


def found(query: str, sort: str = "") -> list[int]:
    return parse(query).places(ROWS, sort).tolist()


@pytest.mark.parametrize(
    ("query", "places"),
    [
        ("", [0, 1, 2, 3]),
        ("success:true", [0]),
        ("success:false", [1, 2]),
        ("success:none", [3]),
        ("-success:true", [1, 2, 3]),
        ("success!=true", [1, 2, 3]),
        ("invalid:true", [3]),
        ("invalid:false", [0, 1, 2]),
        ("reward>0.1", [0, 1]),
        ("reward<=0.2", [1, 2]),
        ("reward:none", [3]),
        ("!reward>0.1", [2, 3]),
        ("step:5..10", [1, 2]),
        ("step:10..", [2, 3]),
        ("step:..5", [0, 1]),
        ("step:0,20", [0, 3]),
        ("step=5", [1]),
        ("reason:turns", [1]),
        ("reason:turns,tokens", [1, 2]),
        ("reason:t*", [1, 2]),
        ("reason!=turns", [0, 2, 3]),
        ("failure:none", [0, 1, 2]),
        ("failure:reward", [3]),
        ("tool:search", [0, 1]),
        ("-tool:search", [2, 3]),
        ("outcome:timeout", [1]),
        ("call.seconds>1", [1]),
        ("calls:0", [2, 3]),
        ("calls_n>0", [0, 1]),
        ("errors>0", [1]),
        ("term.format<0.5", [1]),
        ("term.format:invalid", [2]),
        ("term.format:none", [2, 3]),
        ("term.format:1,invalid", [0, 2]),
        ("title:rome", []),
        ("title:*Rome?", [2]),
        ("title:Where*", [2]),
        ('title:"Where is Rome?"', [2]),
        ('title="Where is Rome?"', [2]),
        ("title:Rome", []),
        ('failure_message:"no judge",none', [0, 1, 2, 3]),
        ("failure_message!=no*", [0, 1, 2]),
        ('"where is"', [2]),
        ("ROME", [2]),
        ("-rome", [0, 1, 3]),
        ("judge", [3]),
        ("e-2", [2]),
        ("success:false reward>0.1", [1]),
        ("  success:false\n rome ", [2]),
    ],
)
def test_conditions_hold_for(query: str, places: list[int]) -> None:
    assert found(query) == places


@pytest.mark.parametrize(
    ("query", "column", "message"),
    [
        ("tol:search", 1, "did you mean 'tool'?"),
        ("success:true sucess:false", 14, "did you mean 'success'?"),
        ("-stepp:3", 2, "did you mean 'step'?"),
        ("term.fromat<1", 1, "did you mean 'term.format'?"),
        ("call.second>1", 1, "did you mean 'call.seconds'?"),
        ("success:yes", 1, "success is true or false, not 'yes'"),
        ("step:many", 1, "step is a number, not 'many'"),
        ("step:1..2..3", 1, "step is a number"),
        ("step:..", 1, "step is a number"),
        ("reason>3", 1, "compares numbers only"),
        ("step>1,2", 1, "one number at a time"),
        ("step>none", 1, "is a number, not 'none'"),
        ("step:", 6, "a value is expected"),
        ("step: 3", 6, "a value is expected"),
        ('title:"two words', 7, "the quotation mark is not closed"),
        ('"a"b', 4, "a space is expected"),
        ("x" * 3000, 2000, "no more than 2,000 characters"),
    ],
)
def test_a_fault_names_its_column_and_the_nearest_name(query: str, column: int, message: str) -> None:
    with pytest.raises(QueryFault) as caught:
        found(query)
    assert caught.value.column == column
    assert f"column {column}: " in str(caught.value)
    assert message in str(caught.value)


def test_a_quoted_value_holds_anything() -> None:
    rows = snapshot(row(0, title='say "yes", then go'), row(1, title="no"))
    assert parse(r'title:"say \"yes\", then go"').places(rows).tolist() == [0]


def test_a_term_with_an_odd_name_is_quoted() -> None:
    rows = snapshot(row(0, terms={"is right?": 1.0}), row(1, terms={"is right?": 0.0}))
    assert parse('term."is right?">0').places(rows).tolist() == [0]


@pytest.mark.parametrize(
    ("sort", "places"),
    [
        ("", [0, 1, 2, 3]),
        ("reward", [2, 1, 0, 3]),
        ("-reward", [0, 1, 2, 3]),
        ("-step", [3, 2, 1, 0]),
        ("-calls,-step", [1, 0, 3, 2]),
        ("term.format", [1, 0, 2, 3]),
        ("reason", [0, 3, 2, 1]),
        ("-invalid,-id", [3, 2, 1, 0]),
        ("success,-reward", [1, 2, 0, 3]),
    ],
)
def test_order_puts_what_is_not_known_last(sort: str, places: list[int]) -> None:
    assert found("", sort) == places


def test_an_order_by_what_there_is_not_names_the_nearest() -> None:
    with pytest.raises(QueryFault, match=r"column 8: there is no column 'rewrd' to sort by; did you mean 'reward'\?"):
        found("", "-step,-rewrd")


def test_no_rows_are_no_fault() -> None:
    empty = snapshot()
    assert parse("success:true tool:x rome -reward>1").places(empty, "-reward").tolist() == []
    assert order_places(empty, Query().places(empty), "reason").tolist() == []


def test_a_character_that_is_none_is_told_with_its_place() -> None:
    """As bytes of a command line arrive that are no UTF-8."""
    with pytest.raises(QueryFault) as caught:
        parse("split:a\udcff")
    assert caught.value.column == 8


def test_an_order_has_some_columns_and_not_thousands() -> None:
    with pytest.raises(QueryFault, match="no more than 16 columns"):
        found("", ",".join(["reward"] * 17))


_PIECES = [
    *COLUMNS, "term.format", 'term."format"', "call.seconds", "call.", "term.", "tool", "calls", "invalid", "none",
    "true", "valid", "..", "1..", "..2", "1..2..3", "*", '"', '""', '"a b"', "\\", "-", "!", ":", "=", "!=", "<", "<=",
    ",", " ", "\n", "1", "1e999", "nan", "9" * 400, "\ud800", "\0", "\u0130", "\u0663", "*" * 300,
]  # fmt: skip


@pytest.mark.slow
@given(query=st.lists(st.sampled_from(_PIECES) | st.text(max_size=3), max_size=8).map("".join))
def test_no_text_gives_anything_but_rows_or_a_fault_with_its_place(query: str) -> None:
    for text, sort in ((query, ""), ("", query)):
        column = 1
        try:
            assert set(found(text, sort)) <= set(range(4))
        except QueryFault as fault:
            column = fault.column
        assert 1 <= column <= len(query) + 1


def test_a_star_stands_for_lines_too() -> None:
    rows = snapshot(row(0, title="one\ntwo"), row(1, title="two"))
    assert parse("title:one*two").places(rows).tolist() == [0]


def hits_of(text: str, **fields: object) -> list[tuple[str, str]]:
    record = files.dump(played(**fields))  # type: ignore[arg-type]
    return [(hit.where, hit.hit) for hits in search_records([("e-1", record)], text) for hit in hits]


def test_it_is_found_in_any_case_where_people_read_it() -> None:
    assert hits_of("CAPITAL?") == [("messages.1.content", "capital?")]
    assert hits_of("is the capital.") == [("turns.0.results.0.text", "is the capital.")]
    assert hits_of("<answer>") == [("turns.1.action", "<answer>")]
    assert hits_of("judge is down", reward=None) == [
        ("reward.terms.correct.error", "judge is down"), ("failure.message", "judge is down"),
    ]  # fmt: skip
    assert hits_of("stands nowhere") == []


@pytest.mark.parametrize("text", ["Düsseldorf", "東京", 'a "quoted"\nline', "tab\there", "back\\slash", "😀 face"])
def test_any_text_is_found_as_it_stands(text: str) -> None:
    assert hits_of(text, result=f"before {text} after") == [("turns.0.results.0.text", text)]


def test_letters_beyond_ascii_have_cases_too() -> None:
    assert hits_of("dÜsseldorf", result="in DüssELDORF") == [("turns.0.results.0.text", "DüssELDORF")]


def test_it_is_found_beside_lone_surrogates() -> None:
    assert hits_of("needle", result="\ud800 needle") == [("turns.0.results.0.text", "needle")]


def test_what_stands_around_is_short() -> None:
    record = files.dump(played(result="a" * 500 + "needle" + "b" * 500))
    ((hit,),) = search_records([("e-1", record)], "needle")
    assert (hit.before, hit.after) == ("a" * 60, "b" * 60)


def test_an_episode_without_it_is_told_too() -> None:
    record = files.dump(played())
    assert [len(hits) for hits in search_records([("a", record), ("b", record)], "nowhere")] == [0, 0]


def test_one_letter_is_refused() -> None:
    with pytest.raises(UsageError, match="2 characters"):
        next(search_records([], "a"))
