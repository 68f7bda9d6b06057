"""Task rows from every kind of source."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from rlenv.checks.validate import validate
from rlenv.errors import SpecError
from rlenv.language.loader import load_spec
from rlenv.tasks.files import MAX_WHOLE_BYTES, join_readers
from rlenv.tasks.rows import PASS, Tasks, load_tasks, seed_of, shuffled, spread

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


@pytest.mark.parametrize(
    ("name", "content", "line", "hint"),
    [
        ("rows.jsonl", b'[{"a": 1}, {"a": 2}]', 1, "call the file .json"),
        ("rows.jsonl", b'[\n{"a": 1}\n]', 1, "call the file .json"),
        ("rows.jsonl", b'{"a": 1}\n{"a": "\xe4"}\n', 2, "save the file as UTF-8"),
        ("rows.jsonl", '{"a": 1}\n'.encode("utf-16"), 1, "save the file as UTF-8"),
        ("rows.csv", b"a,b\n1,2\n\xe4,3\n", 3, "save the file as UTF-8"),
        ("rows.csv", b"a;b\n1;2\n", 1, "write commas in place of ';'"),
        ("rows.csv", b"a\tb\n1\t2\n", 1, "write commas in place of '\\t'"),
    ],
)
def test_what_other_programs_write_is_named_with_what_to_save(
    tmp_path: Path, name: str, content: bytes, line: int, hint: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError) as caught:
        list(tasks_of(tmp_path, f"{{path: {name}}}"))
    fault = caught.value.faults[0]
    assert (fault.line, hint in fault.hint) == (line, True), fault


def test_one_column_may_hold_any_sign(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("to do; and more\nwash\n", encoding="utf-8")
    assert list(tasks_of(tmp_path, "{path: rows.csv}")) == [{"to do; and more": "wash"}]


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
    assert list(tasks_of(tmp_path, '{function: "make.py:rows", limit: 2}')) == [{"question": "0"}, {"question": "1"}]


def test_a_list_in_a_file_gives_rows_and_so_do_objects_that_say_their_fields(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(
        "import dataclasses\n\nimport pydantic\n\n\nclass Model(pydantic.BaseModel):\n    n: int\n\n\n"
        "@dataclasses.dataclass\nclass Data:\n    n: int\n\n\nROWS = [Model(n=1), Data(2), {'n': 3}]\nODD = [Data]\n"
    )
    assert list(tasks_of(tmp_path, '{function: "make.py:ROWS"}')) == [{"n": 1}, {"n": 2}, {"n": 3}]
    with pytest.raises(SpecError, match=r"row 0 of .make\.py:ODD. is no mapping"):
        tasks_of(tmp_path, '{function: "make.py:ODD"}')
    with pytest.raises(SpecError, match="takes no parameters"):
        tasks_of(tmp_path, '{function: "make.py:ROWS", arguments: {n: 1}}')


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


def test_files_and_patterns_of_one_split_follow_one_another_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for name in ("b.jsonl", "a.jsonl", "c.csv"):
        text = 'name,n\n"c.csv",1\n' if name.endswith("csv") else json.dumps({"name": name, "n": "1"}) + "\n"
        (tmp_path / "shards" / name).write_text(text)
    (tmp_path / "odd[1].jsonl").write_text('{"name": "odd", "n": "1"}\n')  # a file wins over a pattern
    for source, names in (
        ("{path: [shards/b.jsonl, shards/a.jsonl]}", ["b.jsonl", "a.jsonl"]),
        ('{path: "shards/*.jsonl"}', ["a.jsonl", "b.jsonl"]),
        ('{path: ["**/*.csv", shards/a.jsonl, "odd[1].jsonl"]}', ["c.csv", "a.jsonl", "odd"]),
    ):
        tasks = tasks_of(tmp_path, source)
        assert [row["name"] for row in tasks] == names
        assert [tasks[index]["name"] for index in range(len(tasks))] == names


@pytest.mark.parametrize("at", ["data", "data.train"])
def test_rows_may_stand_below_a_key_of_a_json_file(tmp_path: Path, at: str) -> None:
    held: Any = ROWS
    for key in reversed(at.split(".")):
        held = {key: held, "version": 2}
    (tmp_path / "rows.json").write_text(json.dumps(held, indent=1))
    assert list(tasks_of(tmp_path, f"{{path: rows.json, key: {at}}}")) == ROWS


def test_a_file_that_is_one_object_is_told_of_the_key_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"data": [{"question": "a"}]}')
    (tmp_path / "spec.yaml").write_text(HEAD + "tasks:\n  train: {path: rows.json}\n")
    assert any("add 'key: data'" in fault.hint for fault in validate([tmp_path / "spec.yaml"]).faults)


def test_a_split_takes_the_rows_for_which_its_expression_holds_before_it_counts_them(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    for when in ("task.answer % 2 == vars.odd", '"{{ task.answer % 2 == vars.odd }}"'):
        tasks = tasks_of(tmp_path, f"{{path: rows.jsonl, when: {when}, shuffle: 7, limit: 3}}", **{"vars.odd": 1})
        assert [row["answer"] for row in tasks] == [place for place in shuffled(10, seed=7) if place % 2][:3]


def test_rows_stand_in_the_order_of_an_expression_before_they_are_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    found = {order: [row["answer"] for row in tasks_of(tmp_path, f"{{path: rows.jsonl, order: {order}, limit: 6}}")]
             for order in ("-task.answer", "task.answer % 3", "task.question")}  # fmt: skip
    assert found["-task.answer"] == [9, 8, 7, 6, 5, 4]
    assert found["task.answer % 3"] == [0, 3, 6, 9, 1, 4]
    assert found["task.question"] == [0, 1, 2, 3, 4, 5]
    shuffled_first = tasks_of(tmp_path, "{path: rows.jsonl, order: task.answer % 2, shuffle: 7, when: task.answer < 8}")
    mixed = [place for place in shuffled(10, seed=7) if place < 8]
    assert [row["answer"] for row in shuffled_first] == sorted(mixed, key=lambda place: place % 2)


MAKERS = """
import itertools, random

def row(index, top=10):
    return {"n": index, "m": random.Random(index).randint(1, top)}

def stream(start=0):
    for n in itertools.count(start):
        yield {"n": n}

def short():
    yield {"n": 0}

def strict(size): return [{"n": 0}] * size

def failing(index): return [][index]

class Lazy:
    asked = []
    def __init__(self, size): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, index):
        self.asked.append(index)
        return {"n": index}
"""


def test_a_source_without_an_end_counts_one_pass_and_has_every_row_behind_it(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(MAKERS)
    for source, first in (
        ("{function: 'make.py:row'}", 0),
        ("{function: 'make.py:stream', endless: true, arguments: {start: 5}}", 5),
    ):
        one, other = tasks_of(tmp_path, source), tasks_of(tmp_path, source)
        assert (one.is_endless, len(one), one.has(10**9), one.has(-1)) == (True, PASS, True, False)
        assert one[PASS + 7]["n"] == first + PASS + 7  # rows are drawn as they are needed
        assert [other[place] for place in (3, PASS + 7, 0)] == [one[place] for place in (3, PASS + 7, 0)]
        bounded = tasks_of(tmp_path, source[:-1] + ", limit: 5}")
        assert (bounded.is_endless, len(bounded), bounded.has(5)) == (False, 5, False)
        assert list(bounded) == [one[index] for index in range(5)]


def test_a_sequence_of_a_function_makes_its_rows_when_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(MAKERS)
    tasks = tasks_of(
        tmp_path, "{function: 'make.py:Lazy', arguments: {size: '{{ vars.size }}'}}", **{"vars.size": 10**9}
    )
    assert (len(tasks), tasks[10**8]["n"]) == (10**9, 10**8)


@pytest.mark.parametrize(
    ("source", "path", "says"),
    [
        ("{path: []}", "path", "found no path"),
        ("{path: [rows.jsonl, rowz.jsonl]}", "path.1", "there is no file 'rowz.jsonl'"),
        ("{path: '*.parquet'}", "path", "no file fits"),
        ("{path: rows.json, key: dara}", "key", "has no 'dara' there; did you mean 'data'?"),
        ("{path: rows.json, key: n}", "key", "a int there; expected a list"),
        ("{path: rows.jsonl, key: data}", "key", "is no .json file"),
        ("{rows: [{n: 1}], key: data}", "key", "read with 'path' only"),
        ("{path: rows.jsonl, endless: true}", "endless", "read with 'function' only"),
        ("{path: rows.jsonl, when: task.level > 3}", "when", "fails for row 1: 'dict object' has no attribute 'level'"),
        ("{path: rows.jsonl, when: task.answer >}", "when", "it fails"),
        ("{path: rows.jsonl, order: task.level}", "order", "undefined; its columns: question, answer"),
        ("{path: rows.jsonl, order: 'task.answer or task.question'}", "order", "cannot be compared"),
        ("{function: 'make.py:row', order: task.n}", "order", "without an end"),
        ("{path: rows.jsonl, when: task.answer > 99}", "when", "holds for none of 10 rows"),
        ("{function: 'make.py:row', shuffle: 1}", "shuffle", "without an end"),
        ("{function: 'make.py:stream', endless: true, when: task.n > 3}", "when", "without an end"),
        ("{function: 'make.py:strict'}", "function", "add 'arguments'"),
        ("{function: 'make.py:strict', arguments: {sice: 3}}", "function", "it may take: size"),
        ("{function: 'make.py:strict', arguments: {size: '{{ vars.n }}'}}", "arguments", "cannot be filled"),
        ("{function: 'make.py:failing'}", "function", "failed: IndexError"),
        ("{function: 'make.py:short', endless: true}", "endless", "ended after 1 rows"),
    ],
)
def test_a_source_that_does_not_fit_is_a_fault_at_its_key(tmp_path: Path, source: str, path: str, says: str) -> None:
    write_jsonl(tmp_path)
    (tmp_path / "make.py").write_text(MAKERS)
    (tmp_path / "rows.json").write_text('{"data": [{"n": 1}], "n": 1}')
    with pytest.raises(SpecError) as caught:
        tasks_of(tmp_path, source)[1]
    (fault,) = caught.value.faults
    assert (fault.path, says in f"{fault.message}; {fault.hint}") == (f"tasks.train.{path}", True), fault


@pytest.mark.parametrize(
    ("groups", "count", "places"),
    [
        ("", 3, []),
        ("aaabbc", 0, []),
        ("aaabbc", 1, [0]),
        ("aaabbc", 3, [0, 3, 5]),
        ("aaabbc", 4, [0, 1, 3, 5]),
        ("aaabbc", 5, [0, 1, 3, 4, 5]),
        ("aaabbc", 9, [0, 1, 2, 3, 4, 5]),
        ("babab", 3, [0, 1, 2]),
    ],
)
def test_tasks_are_drawn_evenly_over_their_groups(groups: str, count: int, places: list[int]) -> None:
    assert spread(list(groups), count) == places


@pytest.mark.parametrize("counts", [(3,), (2, 3), (0, 2, 0, 1), (1, 1, 1), (0, 0)])
def test_rows_of_several_files_follow_one_another(counts: tuple[int, ...]) -> None:
    parts = [(lambda index, part=part: {"at": (part, index)}, count) for part, count in enumerate(counts)]
    read, total = join_readers(parts)
    assert [read(index)["at"] for index in range(total)] == [
        (part, index) for part, count in enumerate(counts) for index in range(count)
    ]


def test_a_split_has_the_rows_from_0_to_its_length(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    tasks = tasks_of(tmp_path, "{path: rows.jsonl, limit: 4}")
    assert [tasks.has(index) for index in (-1, 0, 3, 4)] == [False, True, True, False]
    assert (tasks.is_endless, tasks.revision, list(tasks[1:])) == (False, "", ROWS[1:4])


def test_rows_that_cannot_be_read_stay_and_stand_last(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 2}\nbroken\n{"n": 1}\n{"n": 3}\n')
    ordered = tasks_of(tmp_path, "{path: rows.jsonl, order: task.n}")
    assert [ordered[place]["n"] for place in range(3)] == [1, 2, 3]
    kept = tasks_of(tmp_path, "{path: rows.jsonl, when: task.n >= 2}")
    assert (len(kept), kept[0]["n"], kept[2]["n"]) == (3, 2, 3)
    for tasks, place in ((ordered, 3), (kept, 1)):
        with pytest.raises(SpecError, match=r"rows\.jsonl:2"):
            tasks[place]


def test_equal_values_of_an_order_stand_as_they_stood_and_unasked_tasks_are_measured_as_nothing(tmp_path: Path) -> None:
    write_jsonl(tmp_path)
    tasks = tasks_of(tmp_path, "{path: rows.jsonl, order: measured.success + measured.reward + measured.episodes}")
    assert list(tasks) == ROWS


RETURNS = """
from dataclasses import dataclass

async def later(): return []
def number(): return 3
def text(): return "rows"
def mapping(): return {"n": 1}
def keys(): return [{3: 1}]
def nothing(): return []
def cut(): return ({"n": n} for n in range(5))
def fails(): raise OSError("gone")

@dataclass
class Row:
    n: int

def objects(): return [Row(1), Row(2)]
"""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("later", "is a coroutine function"),
        ("number", "gave a int; expected an iterable of mappings"),
        ("text", "gave a str; expected"),
        ("mapping", "gave a dict; expected"),
        ("keys", "row 0 of 'make.py:keys' is no mapping with text keys"),
        ("nothing", "found no rows"),
        ("fails", "OSError: gone"),
    ],
)
def test_a_function_that_gives_no_rows_says_what_it_gave(tmp_path: Path, function: str, says: str) -> None:
    (tmp_path / "make.py").write_text(RETURNS)
    with pytest.raises(SpecError, match=says):
        tasks_of(tmp_path, f"{{function: 'make.py:{function}'}}")


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("limit: 2", [0, 1]),
        ("limit: 9", [0, 1, 2, 3, 4]),
        ("limit: 2, order: -task.n", [4, 3]),
        ("when: task.n > 2", [3, 4]),
    ],
)
def test_a_functions_rows_are_counted_after_they_are_chosen(tmp_path: Path, source: str, rows: list[int]) -> None:
    (tmp_path / "make.py").write_text(RETURNS)
    tasks = tasks_of(tmp_path, f"{{function: 'make.py:cut', {source}}}")
    assert [row["n"] for row in tasks] == rows
    assert list(tasks_of(tmp_path, "{function: 'make.py:objects'}")) == [{"n": 1}, {"n": 2}]


def test_each_row_is_a_task_for_every_player_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        HEAD + "user: {kind: players, roles: {a: {wants: 1}, b: {wants: 2}}}\n"
        "tasks:\n  train: {rows: [{question: q, answer: 1}, {question: r, answer: 2}]}\n"
    )
    tasks = load_tasks(load_spec(tmp_path / "spec.yaml"), "train")
    assert [(row["question"], row["player"], row["wants"]) for row in tasks] == [
        ("q", "a", 1), ("q", "b", 2), ("r", "a", 1), ("r", "b", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "place", "says"),
    [
        ("rows.csv", "a,b\n1,2\n3\n", "rows.csv:3:1", "found 1 cells; expected 2"),
        ("rows.csv", "a,a\n", "rows.csv:1:1", "the column 'a' stands twice"),
        ("rows.jsonl", '{"a": 1}\n3\n', "rows.jsonl:2:1", "found a int"),
        ("rows.jsonl", '{"a": 1}\n{"a": \n', "rows.jsonl:2", "not JSON"),
        ("rows.json", '[{"a": 1}, 3]', "rows.json:1:1", "entry 2 is a int"),
    ],
)
def test_what_is_no_row_is_named_by_its_line(tmp_path: Path, name: str, text: str, place: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        list(tasks_of(tmp_path, f"{{path: {name}}}"))
    assert (place in str(caught.value), says in str(caught.value)) == (True, True)


def test_a_hint_names_the_key_of_rows_where_a_file_may_be_one_object(tmp_path: Path) -> None:
    for name, is_told in (("rows.json", True), ("rows.jsonl", False)):
        (tmp_path / name).write_text('{"data":\n [{"n": 1}]}')
        with pytest.raises(SpecError) as caught:
            tasks_of(tmp_path, f"{{path: {name}}}")[0]
        assert ("name the key of its rows" in caught.value.faults[0].hint) is is_told
