"""Task rows from every kind of source."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import SpecError
from rlenv.language.loader import load_spec
from rlenv.tasks.files import MAX_WHOLE_BYTES
from rlenv.tasks.rows import Tasks, load_tasks, seed_of, shuffled

HEAD = """
rlenv: 1
name: small
prompt: {user: "{{ task.question }}"}
rewards:
  correct: {kind: rule, rule: exact_match, expect: "{{ task.answer }}"}
"""
ROWS = [{"question": f"q{number}", "answer": number} for number in range(10)]


def tasks_of(folder: Path, source: str, **overrides: Any) -> Tasks:
    file = folder / "spec.yaml"
    file.write_text(HEAD + f"tasks:\n  train: {source}\n", encoding="utf-8")
    return load_tasks(load_spec(file, set=overrides), "train")


def write_jsonl(folder: Path, name: str = "rows.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return file


def test_jsonl_rows_are_read_by_index_and_in_order(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    tasks = tasks_of(tmp_path, "{path: rows.jsonl}")
    assert len(tasks) == 10
    assert tasks[3] == ROWS[3]
    assert tasks[-1] == ROWS[-1]
    assert list(tasks) == ROWS
    assert list(tasks[2:4]) == ROWS[2:4]


def test_blank_lines_a_byte_order_mark_and_a_missing_last_newline_are_fine(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": "\xc3\xa9"}')
    assert list(tasks_of(tmp_path, "{path: rows.jsonl}")) == [{"a": 1}, {"a": "é"}]


def test_a_broken_line_is_named_by_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": é}\n', encoding="utf-8")
    tasks = tasks_of(tmp_path, "{path: rows.jsonl}")
    assert tasks[0] == {"a": 1}
    with pytest.raises(SpecError) as caught:
        tasks[1]
    (fault,) = caught.value.faults
    assert (fault.file, fault.line, fault.column) == (str(tmp_path / "rows.jsonl"), 3, 7)
    assert fault.quote == '{"a": é}'


def test_a_key_that_stands_twice_in_a_row_is_a_fault_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": "b: c"}\n{"a": 1, "b": {"a": 2}, "a": 3}\n', encoding="utf-8")
    tasks = tasks_of(tmp_path, "{path: rows.jsonl}")
    assert tasks[0] == {"a": "b: c"}
    with pytest.raises(SpecError, match="stands twice") as caught:
        tasks[1]
    assert (caught.value.faults[0].line, caught.value.faults[0].column) == (2, 25)


@pytest.mark.parametrize("kind", ["jsonl", "ndjson", "json", "csv", "array.json"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
def test_rows_are_the_same_in_every_kind_of_file(tmp_path: Path, kind: str, is_packed: bool) -> None:
    rows: list[dict[str, Any]] = [{"question": "é\n", "answer": "1"}, {"question": "b", "answer": "2"}]
    text = "\ufeff" + "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "array.json":
        text = "\ufeff \n" + json.dumps(rows, indent=2)
    elif kind == "csv":
        text = 'question,answer\n"é\n",1\nb,2\n'
    name = f"rows.{kind}" + ".gz" * is_packed
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())
    tasks = tasks_of(tmp_path, f"{{path: {name}}}")
    assert list(tasks) == rows
    assert tasks[1] == rows[1]


def test_an_array_keeps_long_integers_and_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('[{"n": 123456789012345678901}]', encoding="utf-8")
    assert list(tasks_of(tmp_path, "{path: rows.json}")) == [{"n": 123456789012345678901}]
    for text, place, says in (
        ('[{"a": 1},\n {"a": é}]', (2, 8), "not JSON"),
        ('[{"a": 1}, 2]', (1, 1), "entry 2 is a int"),
        ('{"rows": [{"a": 1}],\n "b": 2}', (1, 1), "not JSON"),  # no array: one object a line
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(SpecError) as caught:
            list(tasks_of(tmp_path, "{path: rows.json}"))
        (fault,) = caught.value.faults
        assert (fault.file, fault.line, fault.column) == (str(file), *place)
        assert says in fault.message


def test_a_packed_file_that_is_broken_or_swells_is_a_fault_at_its_path(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"a": 1}\n')
    blank = gzip.compress(b" " * (1 << 24))
    for content, says in (
        (b'{"a": 1}\n', "is no whole gzip file"),
        (whole[:-6], "is no whole gzip file"),
        (whole[:12] + b"\xff" * 9 + whole[12:], "is no whole gzip file"),
        (blank * (MAX_WHOLE_BYTES // (1 << 24) + 1), "holds more than 256 MB"),
    ):
        (tmp_path / "rows.jsonl.gz").write_bytes(content)
        with pytest.raises(SpecError) as caught:
            tasks_of(tmp_path, "{path: rows.jsonl.gz}")
        (fault,) = caught.value.faults
        assert (fault.path, says in fault.message) == ("tasks.train.path", True), fault
        assert "gunzip" in fault.hint


def test_csv_cells_are_text_and_may_hold_newlines(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('question,answer\n"two\nlines",1\n"a, b",2\n', encoding="utf-8")
    assert list(tasks_of(tmp_path, "{path: rows.csv}")) == [
        {"question": "two\nlines", "answer": "1"},
        {"question": "a, b", "answer": "2"},
    ]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a,b\n1,2\n\n3\n", 4, "found 1 cells"),
        ("a,a\n1,2\n", 1, "stands twice"),
        ('a,b\n1,"2\n', 2, "not CSV"),
    ],
)
def test_a_broken_csv_is_named_by_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    (tmp_path / "rows.csv").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        tasks_of(tmp_path, "{path: rows.csv}")
    (fault,) = caught.value.faults
    assert fault.line == line
    assert says in fault.message
    assert fault.hint


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed (extra: parquet)")
def test_parquet_rows_keep_their_types(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"question": "q", "golds": ["a", "b"], "n": 1}, {"question": "r", "golds": [], "n": 2}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert list(tasks_of(tmp_path, "{path: rows.parquet}")) == rows


def test_a_function_in_a_file_beside_the_spec_gives_rows(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(
        "import itertools\n\n\ndef rows():\n    return ({'question': str(n)} for n in itertools.count())\n"
    )
    assert list(tasks_of(tmp_path, '{python: "make.py:rows", limit: 2}')) == [{"question": "0"}, {"question": "1"}]


def test_rows_may_stand_in_the_spec(tmp_path: Path) -> None:
    assert list(tasks_of(tmp_path, "{rows: [{question: a, n: 010}]}")) == [{"question": "a", "n": 10}]


def test_the_order_of_a_shuffle_is_fixed_for_all_machines() -> None:
    assert shuffled(8, seed=7) == [2, 5, 4, 1, 6, 3, 7, 0]
    assert sorted(shuffled(100, seed=1)) == list(range(100))
    assert shuffled(100, seed=1) != shuffled(100, seed=2)


def test_rows_added_at_the_end_leave_the_order_of_the_others() -> None:
    assert [number for number in shuffled(60, seed=3) if number < 50] == shuffled(50, seed=3)


def test_the_limit_is_taken_after_the_shuffle(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    tasks = tasks_of(tmp_path, "{path: rows.jsonl, limit: 3, shuffle: 7}")
    assert [row["answer"] for row in tasks] == shuffled(10, seed=7)[:3]


def test_an_overridden_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "specs").mkdir()
    write_jsonl(tmp_path / "work", "mine.jsonl")
    monkeypatch.chdir(tmp_path / "work")
    assert len(tasks_of(tmp_path / "specs", "{path: rows.jsonl}", **{"tasks.train.path": "mine.jsonl"})) == 10
    source = '{path: "{{ vars.data }}/mine.jsonl"}'
    assert len(tasks_of(tmp_path / "specs", source, **{"vars.data": "../work"})) == 10


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(SpecError, match="no rows"):
        tasks_of(tmp_path, "{path: rows.jsonl}")


def test_a_seed_is_that_of_run_split_task_and_sample_and_of_nothing_else() -> None:
    places = list(itertools.product((0, 1, -1), "ab", range(9), (0, 7)))
    seeds = [seed_of(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert seed_of(0, "train", 0) == seed_of(0, "train", 0, 0) == 1826754748  # on every machine
    assert seed_of(0, "\ud800", 0) != seed_of(0, "?", 0)
