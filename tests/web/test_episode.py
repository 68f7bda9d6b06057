"""What the page of an episode is told beside its record."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlenv.runs import files
from rlenv.runs.files import nested
from rlenv.runs.schema import Facts
from rlenv.web.episode import ImageCache, episode_page, evidence_places, nested_episodes
from rlenv.web.shelf import Shelf
from tests.support import shown_runs
from tests.support.runs import kept, played, visited

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


ODD: tuple[Any, ...] = (None, [], {}, "3", -1, 1e308, True, [[]], [None], {"a": None}, "\0", 10**400)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a JSON-like value."""
    for key, held in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(held, (*path, key))


def test_a_record_of_any_shape_has_a_page_that_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Each value of a record becomes another once: all is shown that does not stand in the record."""
    judged = {"judges": [{"name": "a", "score": 4}, {"name": "b", "score": 2}], "scale": [1, 5]}
    whole = json.loads(files.dump(played(details=judged)))
    records = [b"", b"[]", b"null", b"{", b"\xff", b'{"turns": [}']
    for number, path in enumerate(places(whole)):
        odd = at = copy.deepcopy(whole)
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = ODD[number % len(ODD)]
        records.append(json.dumps(odd).encode())
    ids = kept(tmp_path / "run", [(played(), Facts(group="g"))] * len(records))
    for part in (tmp_path / "run" / "bodies").iterdir():
        table = pq.read_table(part)
        place = table.column_names.index("record")
        pq.write_table(table.set_column(place, "record", pa.array(records, pa.binary())), part, row_group_size=8)

    async def work(client: Any, guard: Any) -> list[str]:
        missing = []
        for id in ids:
            answer = await client.get(f"/api/runs/run/e/{id}")
            assert answer.status == 200, await answer.text()
            told = await answer.json()
            assert told["row"]["id"] == id
            assert (told["record"] is None) == (f"the record of '{id}' cannot be read: " in told["missing"])
            missing += [told["missing"]] if told["missing"] else []
        for path in ("rewards", "g/0/g", "search?q=capital", "search?q=%C3%A9t"):
            answer = await client.get(f"/api/runs/run/{path}")
            assert (answer.status, bool(await answer.text())) == (200, True)
        return missing

    missing = visited(work, tmp_path)
    assert 30 < len(missing) < len(ids)
    assert any("turns.1.action: Input should be a valid string" in one for one in missing)


def test_what_a_term_says_of_its_place_counts_and_is_searched_for_only_where_it_does_not_say() -> None:
    turn = {"action": "42, so <answer>42</answer>", "observation": None}
    said = {"evidence": "42", "where": [[1, 15, 17], [7, 0, 1], [1, 20, 999], [1, -2, 3], [0, 2, 2]]}
    terms = {"said": said, "nowhere": {"evidence": "42", "where": [[9, 0, 2]]}, "old": {"evidence": "so <answer>"}}
    found = evidence_places({"messages": [{"content": "42?"}], "turns": [turn], "reward": {"terms": terms}})
    assert found["said"] == [{"message": 1, "start": 15, "end": 17}]
    assert found["nowhere"] is None
    assert found["old"] == [{"message": 1, "start": 4, "end": 15}]
