"""What the page of an episode is told beside its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlenv.runs.files import nested
from rlenv.web.episode import Blobs, nested_episodes, page
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
    run = shelf.open(shelf.found()[0])
    (row,) = run.rows().rows([0])
    told = page(run, row["id"], Blobs())
    assert told["nested"] == [OUTER, INNER]
    first, second = told["record"]["turns"][0]["results"]
    assert first["details"]["trajectory"]["turns"][0]["parsed"]["content"] == "asks the second"
    assert set(first["details"]["trajectory"]) >= {"messages", "turns", "answer", "reason", "seconds", "environment"}
    assert second["details"] == {"trajectory": {"turns": [1]}}
    assert len(whole.turns) == len(told["record"]["turns"])
