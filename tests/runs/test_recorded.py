"""What the rules of a recorded run expected."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.recorded import LinesReader, expected_of, file_of
from tests.support.runs import played

LOCK = "0123456789ab"
TASK = {"answer": 10, "names": ["Rome", "Roma"], "unit": "km", "none": None}


def locked(run: Path, **asks: Any) -> Path:
    (run / "locks").mkdir()
    (run / "locks" / f"{LOCK}.json").write_text(json.dumps({"rewards": {"term": {"kind": "rule", "asks": asks}}}))
    return run


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ({"expect": "{{ task.answer }}"}, "10"),
        ({"expect": "{{ task.names }}"}, "Rome or Roma"),
        ({"expect": "{{ task.names }}", "mode": "all"}, "Rome and Roma"),
        ({"expect": "{{ task.names }}", "match": "all"}, "Rome and Roma"),  # of an earlier version
        ({"expect": "{{ task.answer }} {{task.unit}}"}, "10 km"),
        ({"expect": [1, "{{ task.unit }}"]}, "1 or km"),
        ({"expect": 2.5}, "2.5"),
        ({"max": 4}, "at most 4"),
        ({"min": 1, "max": 4}, "at least 1 and at most 4"),
        ({"pattern": "[0-9]+"}, "a match of [0-9]+"),
    ],
)
def test_it_is_said_in_words_from_the_lock_and_the_task(tmp_path: Path, asks: dict[str, Any], said: str) -> None:
    assert expected_of(locked(tmp_path, **asks), LOCK, TASK) == {"term": said}


@pytest.mark.parametrize(
    "asks",
    [
        {},
        {"expect": "{{ task.missing }}"},
        {"expect": "{{ task.none }}"},
        {"expect": "{{ resources.db.count }}"},
        {"expect": "{{ task.answer + 1 }}"},
        {"expect": "{% for i in range(9999999) %}x{% endfor %}"},
        {"expect": ["{{ task.missing }}", "1"]},
        {"expect": "{{ task.missing }} of {{ task.unit }}"},
        {"max": "4"},
    ],
)
def test_what_a_record_does_not_hold_is_not_said(tmp_path: Path, asks: dict[str, Any]) -> None:
    assert expected_of(locked(tmp_path, **asks), LOCK, TASK) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"rewards": 5}', '{"rewards": {"a": 5, "b": {"asks": 5}}}', "[" * 9_999])
def test_a_lock_of_another_form_says_nothing(tmp_path: Path, text: str) -> None:
    locked(tmp_path)
    (tmp_path / "locks" / f"{LOCK}.json").write_text(text)
    assert expected_of(tmp_path, LOCK, TASK) == {}


@pytest.mark.parametrize("lock", ["", "../../secrets", "0123456789abc", "ffffffffffff"])
def test_a_lock_that_is_not_the_runs_says_nothing(tmp_path: Path, lock: str) -> None:
    assert expected_of(locked(tmp_path, expect="1"), lock, TASK) == {}


# A file of JSON lines read as a run


def test_rows_are_lines_and_bodies_stay_in_the_file(tmp_path: Path) -> None:
    episodes = [played(task=1), played(task=1, seed=2), played(task=2, reward=None)]
    files.write(tmp_path / "t.jsonl", episodes)
    reader = LinesReader(tmp_path / "t.jsonl")
    assert reader.table["id"].to_pylist() == ["line-1", "line-2", "line-3"]
    assert reader.table["sample"].to_pylist() == [0, 1, 0]
    assert reader.table["group"].to_pylist() == ["train/1", "train/1", "train/2"]
    assert reader.body("line-2").trajectory() == episodes[1]
    assert [id for id, _ in reader.records(["line-3"])] == ["line-3"]
    assert reader.nested("calls", ["line-1"])["tool"].to_pylist() == ["search"]
    assert len(reader.nested("terms")) == 3


def test_lines_that_are_added_are_seen_once_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    files.write(path, [played()])
    reader = LinesReader(path)
    assert not reader.refresh()
    line = files.dump(played(task=7)) + b"\n"
    with path.open("ab") as file:
        file.write(line[:100])
    reader.refresh()
    assert len(reader.table) == 1
    with path.open("ab") as file:
        file.write(line[100:])
    assert reader.refresh()
    assert reader.table["task"].to_pylist() == [0, 7]
    assert reader.body("line-2").trajectory() == played(task=7)


def line(**fields: Any) -> bytes:
    return files.dump(played(**fields)) + b"\n"


def seeds(reader: LinesReader) -> dict[str, int]:
    rows = reader.table.select(["id", "seed"]).to_pylist()
    return {row["id"]: row["seed"] for row in rows}


def test_an_id_stays_an_episodes_own_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line(seed=1).rstrip(b"\n"))  # whole, but for its newline
    reader = LinesReader(path)
    assert (seeds(reader), reader.version) == ({"line-1": 1}, 1)
    for more, known in (
        (b"\n", {"line-1": 1}),
        (b"\n" + line(seed=2), {"line-1": 1, "line-2": 2}),
        (line(seed=3)[:200], {"line-1": 1, "line-2": 2}),
        (b"\n" + line(seed=4), {"line-1": 1, "line-2": 2, "line-3": 4}),  # the writer was killed, and began again
    ):
        with path.open("ab") as file:
            file.write(more)
        before = (len(seeds(reader)), reader.version)
        assert reader.refresh() == (len(known) > before[0])
        assert reader.version == before[1] + (len(known) > before[0])
        assert seeds(reader) == known == seeds(LinesReader(path))
        assert {id: reader.body(id).trajectory().seed for id in known} == known


def test_nothing_is_new_where_no_row_came(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line() + line(seed=1)[:100])
    reader = LinesReader(path)
    table = reader.table
    assert (reader.unread_bytes, reader.is_at_end) == (100, True)
    os.utime(path, (1, 1))
    assert not reader.refresh()
    assert (reader.version, reader.table is table) == (1, True)


@pytest.mark.parametrize("is_in_place", [True, False])
@pytest.mark.parametrize("now", [[7], [7, 8], [7, 8, 9], [0, 9], []])
def test_a_file_of_another_content_is_read_anew(tmp_path: Path, now: list[int], is_in_place: bool) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(line(seed=seed) for seed in (0, 1)))
    reader = LinesReader(path)
    other = path if is_in_place else tmp_path / "other"
    other.write_bytes(b"".join(line(seed=seed) for seed in now))
    os.utime(other, (1, 1))
    os.replace(other, path)
    if not now:
        with pytest.raises(UsageError, match="does not hold 'line-1' any more"):
            reader.body("line-1")
    assert reader.refresh()
    assert reader.version == 2
    assert list(seeds(reader).values()) == now
    assert [one.trajectory().seed for one in map(reader.body, seeds(reader))] == now


def test_a_copy_that_has_grown_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line(seed=0))
    reader = LinesReader(path)
    (tmp_path / "copy").write_bytes(line(seed=0) + line(seed=1))
    os.replace(tmp_path / "copy", path)
    assert reader.refresh()
    assert seeds(reader) == {"line-1": 0, "line-2": 1}


def test_a_large_file_is_read_a_part_at_a_look(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    files.write(path, [played(seed=seed) for seed in range(3)])
    reader = LinesReader(path, look=1)
    found = [len(reader.table)]
    while reader.refresh():
        found.append(len(reader.table))
    assert found == [1, 2, 3]
    assert reader.is_at_end
    assert len(reader.nested("terms", ["line-3", "line-1"])) == 2


def test_a_line_that_is_none_hides_none_before_it(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    files.write(path, [played()])
    reader = LinesReader(path)
    with path.open("ab") as file:
        file.write(line(seed=1) + b"{}\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"t\.jsonl:3: not a recorded trajectory"):
            reader.refresh()
        assert len(reader.table) == len(reader.entries("terms")) == 2
    assert reader.version == 2


def test_rows_without_a_task_are_no_samples_of_one(tmp_path: Path) -> None:
    files.write(tmp_path / "t.jsonl", [played(task=-1), played(task=-1)])
    assert (
        LinesReader(tmp_path / "t.jsonl").table.select(["sample", "group"]).to_pylist()
        == [{"sample": 0, "group": ""}] * 2
    )


def test_what_is_no_trajectory_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(files.dump(played()) + b"\n\n{}\n")
    with pytest.raises(UsageError, match=r"t\.jsonl:3: not a recorded trajectory"):
        LinesReader(tmp_path / "t.jsonl")
    with pytest.raises(UsageError, match="no recorded trajectories"):
        LinesReader(tmp_path / "nothing.jsonl")
    files.write(tmp_path / "u.jsonl", [played()])
    with pytest.raises(UsageError, match="no episode"):
        LinesReader(tmp_path / "u.jsonl").body("line-2")


def test_a_name_that_is_no_file_is_refused_with_what_is_near(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UsageError, match="is no run and has no trajectories") as none:
        file_of(tmp_path / "runs")
    assert not none.value.hint
    (tmp_path / "runs" / "b.jsonl").write_text("")
    with pytest.raises(UsageError) as one:
        file_of(tmp_path / "runs")
    assert one.value.hint == f"name what is in it, such as {tmp_path / 'runs' / 'b.jsonl'}"
    with pytest.raises(UsageError, match="there are no recorded trajectories") as near:
        file_of(tmp_path / "runs" / "bb.jsonl")
    assert near.value.hint == f"did you mean {tmp_path / 'runs' / 'b.jsonl'}?"
    with pytest.raises(UsageError) as far:
        file_of(tmp_path / "runs" / "something else")
    assert not far.value.hint
    (tmp_path / "runs" / "trajectories.jsonl").write_text("")
    assert file_of(tmp_path / "runs") == tmp_path / "runs" / "trajectories.jsonl"
    assert file_of(tmp_path / "runs" / "b.jsonl") == tmp_path / "runs" / "b.jsonl"


@pytest.mark.parametrize("deep", ["lists", "mappings"])
def test_a_line_is_read_up_to_a_depth(tmp_path: Path, deep: str) -> None:
    def nested(levels: int) -> Any:
        found: Any = 0
        for _ in range(levels):
            found = [0, found] if deep == "lists" else {"a": 0, "b": found}
        return found

    whole = json.loads(line())
    for levels, reads in ((200, True), (254, True), (255, False)):
        path = tmp_path / f"{levels}.jsonl"
        path.write_text(json.dumps({**whole, "task": {"deep": nested(levels)}}) + "\n")
        if reads:
            assert len(list(files.read(path))) == 1
        else:
            with pytest.raises(UsageError, match="nested more than 256 levels deep"):
                list(files.read(path))
