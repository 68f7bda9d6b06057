"""Which episodes to read first.

Values with their counts beside a list.

A text looked for in whole episodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.figures.query import parse, searched
from rlenv.runs.figures.report import reading_list
from rlenv.runs.figures.snapshot import facets
from tests.support.runs import played, row, snapshot


def test_it_names_the_worst_the_best_the_failures_and_the_widest_group() -> None:
    rows = [
        row(number, task=number // 2, group=f"g{number // 2}", reward=reward, success=reward >= 1.0)
        for number, reward in enumerate([0.0, 1.0, 0.5, 0.8, 0.1, 0.2, 0.7, 0.7])
    ]
    rows.append(row(8, reward=1.5, success=False, group="g9"))
    rows.append(row(9, reward=None, success=None, failure="judge"))
    found = reading_list(snapshot(*rows))
    by: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        by.setdefault(one["why"], []).append(one)
    assert [one["id"] for one in by["worst"]] == ["e-0", "e-4", "e-2"]
    assert by["best"][0]["id"] == "e-8"
    assert [one["id"] for one in by["reward without success"]] == ["e-8"]
    assert [one["id"] for one in by["failure"]] == ["e-9"]
    assert [one["group"] for one in by["widest group"]] == ["g0", "g1", "g2"]


def test_the_newest_failures_come_first() -> None:
    rows = snapshot(*(row(step, step=step, reward=None, success=None, failure="judge") for step in range(9)))
    assert [one["step"] for one in reading_list(rows)] == [8, 7, 6]


def test_no_list_names_two_samples_of_a_task() -> None:
    rows = [
        row(number, step=9, task=number % 4, sample=number // 4, reward=reward, success=success, failure=failure)
        for number, (reward, success, failure) in enumerate(
            [(0.0, False, None)] * 12 + [(2.0, False, None)] * 12 + [(None, None, "judge")] * 12
        )
    ]
    for why in ("worst", "best", "reward without success", "failure"):
        of_kind = [one["id"] for one in reading_list(snapshot(*rows)) if one["why"] == why]
        assert len({int(id[2:]) % 4 for id in of_kind}) == len(of_kind) == 3, why


def test_where_validation_plays_a_task_once_the_groups_are_those_of_training() -> None:
    rows = [row(number, step=1, task=0, group="g", mode="train", reward=float(number)) for number in range(4)]
    rows += [row(9 + number, step=2, task=number, mode="greedy", reward=float(number)) for number in range(2)]
    assert [one["group"] for one in reading_list(snapshot(*rows)) if one["why"] == "widest group"] == ["g"]


def test_of_one_episode_nothing_is_told_twice_as_best_and_worst() -> None:
    assert [one["why"] for one in reading_list(snapshot(row(0)))] == ["worst"]
    assert reading_list(snapshot()) == []


def test_tasks_without_a_number_are_no_group() -> None:
    rows = snapshot(*(row(number, task=-1, reward=float(number)) for number in range(4)))
    assert not [one for one in reading_list(rows) if one["why"] == "widest group"]


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
