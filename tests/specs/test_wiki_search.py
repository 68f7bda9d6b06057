"""Pages that are read on from a line, and citations that only count where they were read."""

from __future__ import annotations

import asyncio
import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.messages import Message, ToolCall
from rlenv.trajectory import Trajectory


def play(*calls: tuple[str, dict[str, Any]], **keys: Any) -> Trajectory:
    async def main() -> Trajectory:
        environment = rlenv.load("wiki-search", **keys)
        async with environment, environment.start(split="test") as episode:
            for name, arguments in calls:
                await episode.step(Message("assistant", "", (ToolCall(name, arguments),)))
            return episode.trajectory

    return asyncio.run(main())


@pytest.fixture(scope="module")
def gold() -> dict[str, Any]:
    row: dict[str, Any] = dict(rlenv.load("wiki-search").tasks("test")[0])
    facts = row["supporting_facts"]
    places = list(zip(facts["title"], [number + 1 for number in facts["sent_id"]], strict=True))
    cited = [f"{page}:{line}" for page, line in places]
    return {"answer": row["answer"], "places": places, "cited": cited}


def test_a_page_is_shown_by_five_lines_and_says_where_it_goes_on(gold: dict[str, Any]) -> None:
    page = gold["places"][0][0]
    calls = [("open", {"page": page}), ("open", {"page": page, "line": 6}), ("open", {"page": page, "line": 99})]
    first, second, beyond = (
        turn.results[0]
        for turn in play(*calls, ("open", {"page": "x"}), ("answer", {"text": "", "citations": []})).turns[:3]
    )
    assert first.text.count("\n") == 5
    assert first.text.endswith("more lines from line 6)")
    assert second.text.startswith(f"[{page}:6]")
    assert (beyond.outcome, beyond.whose) == ("failed", "policy")


@pytest.mark.parametrize(
    ("opened", "cited", "expected"),
    [([0, 1], [0, 1], 1.0), ([0, 1], [0], 2 / 3), ([0], [0, 1], 0.5), ([], [0, 1], 0.0), ([0, 1], [], 0.0)],
    ids=["both", "one is missing", "one was not read", "none was read", "none is given"],
)
def test_only_lines_that_were_read_are_citations(
    gold: dict[str, Any], opened: list[int], cited: list[int], expected: float
) -> None:
    looks = [("open", dict(zip(("page", "line"), gold["places"][at], strict=True))) for at in opened]
    given = {"text": gold["answer"], "citations": [gold["cited"][at] for at in cited]}
    reward = play(*looks, ("answer", given)).reward
    assert reward.terms["correct"].value == 1
    assert reward.terms["cited"].value == pytest.approx(expected)


def test_a_wrong_answer_is_not_paid_for_its_citations(gold: dict[str, Any]) -> None:
    looks = [("open", {"page": page, "line": line}) for page, line in gold["places"]]
    assert play(*looks, ("answer", {"text": "nobody", "citations": gold["cited"]})).reward.total == 0


def test_a_file_of_hotpotqa_runs_as_it_is(
    root: Path, tmp_path: Path, play_oracle: Callable, assert_all_earn_maximum: Callable
) -> None:
    row = {
        "_id": "5a8b",
        "question": "In which year did the band of Ann Low begin?",
        "answer": "1991",
        "supporting_facts": [["Ann Low", 1], ["The Tins", 0]],
        "context": [["Ann Low", ["Ann Low sings.", " She is of The Tins."]], ["The Tins", ["The Tins began in 1991."]]],
    }
    (tmp_path / "hotpot.json").write_text(json.dumps([row]))
    tools, corpus = root / "specs" / "wiki_search_tools.py", tmp_path / "corpus.jsonl"
    runpy.run_path(str(tools))["main"](str(tmp_path / "hotpot.json"), str(corpus))
    places = {"tools.search.path": str(corpus), "vars.corpus": str(corpus)}
    environment = rlenv.load("wiki-search", set={"tasks": {"test": {"path": str(tmp_path / "hotpot.json")}}, **places})
    assert_all_earn_maximum(environment, play_oracle(environment, "test"))
