from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlenv.episodes.environment import load


@pytest.mark.shared_data
def test_the_oracle_earns_the_maximum_on_the_public_rows(
    public: Callable[[str], Path], play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    changes = {
        "tasks.test.path": str(public("hotpot_search/questions.jsonl")),
        "tools.search.path": str(public("hotpot_search/corpus.jsonl")),
    }
    environment = load("search-qa", set=changes)
    trajectories = play_oracle(environment, "test")
    assert len(trajectories) == 100
    assert_all_earn_maximum(environment, trajectories)


def test_a_search_for_a_title_finds_its_passage(play_oracle: Callable) -> None:
    missed = [
        (title, result.text)
        for trajectory in play_oracle(load("search-qa"), "train")
        for title, turn in zip(trajectory.task["sup"], trajectory.turns, strict=False)
        for result in turn.results
        if f"] {title}\n" not in result.text
    ]
    assert missed == []


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_answer_stands_in_the_second_passage_only(split: str, root: Path) -> None:
    folder = root / "specs" / "data" / "search-qa"
    texts = {row["title"]: row["text"] for row in _rows(folder / "corpus.jsonl")}
    for row in _rows(folder / f"{split}.jsonl"):
        first, second = row["sup"]
        assert row["answer"] in f"{second} {texts[second]}"
        assert row["answer"] not in f"{first} {texts[first]}"
        assert row["answer"] not in row["question"]
        assert first in row["question"]


def test_no_answer_is_frequent_enough_to_be_guessed() -> None:
    rows = load("search-qa").tasks("test")
    ((_, most),) = Counter(row["answer"] for row in rows).most_common(1)
    assert most < 0.05 * len(rows)
