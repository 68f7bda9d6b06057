"""A text looked for in whole episodes."""

from __future__ import annotations

import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.figures.search import searched
from tests.support.runs import played


def places(text: str, **fields: object) -> list[tuple[str, str]]:
    record = files.dump(played(**fields))  # type: ignore[arg-type]
    return [(hit.where, hit.hit) for hits in searched([("e-1", record)], text) for hit in hits]


def test_it_is_found_in_any_case_where_people_read_it() -> None:
    assert places("CAPITAL?") == [("messages.1.content", "capital?")]
    assert places("is the capital.") == [("turns.0.results.0.text", "is the capital.")]
    assert places("<answer>") == [("turns.1.action", "<answer>")]
    assert places("judge is down", reward=None) == [
        ("reward.terms.correct.error", "judge is down"), ("failure.message", "judge is down"),
    ]  # fmt: skip
    assert places("stands nowhere") == []


@pytest.mark.parametrize("text", ["Düsseldorf", "東京", 'a "quoted"\nline', "tab\there", "back\\slash", "😀 face"])
def test_any_text_is_found_as_it_stands(text: str) -> None:
    assert places(text, result=f"before {text} after") == [("turns.0.results.0.text", text)]


def test_letters_beyond_ascii_have_cases_too() -> None:
    assert places("dÜsseldorf", result="in DüssELDORF") == [("turns.0.results.0.text", "DüssELDORF")]


def test_it_is_found_beside_lone_surrogates() -> None:
    assert places("needle", result="\ud800 needle") == [("turns.0.results.0.text", "needle")]


def test_what_stands_around_is_short() -> None:
    record = files.dump(played(result="a" * 500 + "needle" + "b" * 500))
    ((hit,),) = searched([("e-1", record)], "needle")
    assert (hit.before, hit.after) == ("a" * 60, "b" * 60)


def test_an_episode_without_it_is_told_too() -> None:
    record = files.dump(played())
    assert [len(hits) for hits in searched([("a", record), ("b", record)], "nowhere")] == [0, 0]


def test_one_letter_is_refused() -> None:
    with pytest.raises(UsageError, match="2 characters"):
        next(searched([], "a"))
