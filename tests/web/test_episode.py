"""What the page of an episode is told beside its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlenv.runs.files import nested
from rlenv.web.episode import ImageCache, episode_page, evidence_places, nested_episodes
from rlenv.web.shelf import Shelf
from tests.support import shown_runs

OUTER = "turns.0.results.0"
INNER = f"{OUTER}.details.trajectory.{OUTER}"


def test_episodes_of_agents_are_found_at_any_depth_and_nothing_else(tmp_path: Path) -> None:
    whole = shown_runs.nesting(tmp_path / "n")
    found = nested_episodes(whole)
    assert list(found) == [OUTER, INNER]
    assert found[OUTER] == nested(whole.turns[0].results[0])
    assert nested_episodes(replace(whole, turns=whole.turns[1:])) == {}


def test_the_page_reads_every_field_of_a_nested_episode(tmp_path: Path) -> None:
    whole = shown_runs.nesting(tmp_path / "n")
    shelf = Shelf([tmp_path])
    run = shelf.open(shelf.run_keys()[0])
    (row,) = run.rows().rows([0])
    told = episode_page(run, row["id"], ImageCache())
    assert told["nested"] == [OUTER, INNER]
    first, second = told["record"]["turns"][0]["results"]
    assert first["details"]["trajectory"]["turns"][0]["parsed"]["content"] == "asks the second"
    assert set(first["details"]["trajectory"]) >= {"messages", "turns", "answer", "reason", "seconds", "environment"}
    assert second["details"] == {"trajectory": {"turns": [1]}}
    assert len(whole.turns) == len(told["record"]["turns"])


def test_what_a_term_says_of_its_place_counts_and_is_searched_for_only_where_it_does_not_say() -> None:
    turn = {"action": "42, so <answer>42</answer>", "observation": None}
    said = {"evidence": "42", "where": [[1, 15, 17], [7, 0, 1], [1, 20, 999], [1, -2, 3], [0, 2, 2]]}
    terms = {"said": said, "nowhere": {"evidence": "42", "where": [[9, 0, 2]]}, "old": {"evidence": "so <answer>"}}
    found = evidence_places({"messages": [{"content": "42?"}], "turns": [turn], "reward": {"terms": terms}})
    assert found["said"] == [{"message": 1, "start": 15, "end": 17}]
    assert found["nowhere"] is None
    assert found["old"] == [{"message": 1, "start": 4, "end": 15}]
