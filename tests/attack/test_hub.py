"""Datasets are other people's: their README, files and rows cost bounded time and memory, and lead nowhere."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlenv.checks.validate import validate
from rlenv.errors import SpecError
from rlenv.language.loader import load_spec
from rlenv.tasks.files import MAX_ROW_BYTES
from rlenv.tasks.hub import DatasetFault, Glob, dataset_files
from rlenv.tasks.rows import load_tasks

ROW = b'{"question": "q", "answer": "1"}\n'
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "ds"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(ROW)
    return folder


def _spec(dataset: Path) -> Path:
    path = dataset.parent / "env.yaml"
    path.write_text(
        "rlenv: 1\nname: ds\ntasks: {train: {hf: {path: ds}}}\nprompt: {user: '{{ task.question }}'}\n"
        "rewards: {correct: {kind: rule, rule: exact_match}}\noracle: [{say: '<answer>{{ task.answer }}</answer>'}]\n"
    )
    return path


READMES = {
    "aliases in a name": f"{BOMB}configs:\n- {{config_name: *a8, data_files: train.jsonl}}",
    "aliases in a split": f"{BOMB}configs:\n- data_files: [{{split: *a8, path: train.jsonl}}]",
    "aliases in a pattern": f"{BOMB}configs:\n- data_files: *a8",
    "a tag that makes an object": "configs: !!python/object/apply:os.system ['touch pwned']",
    "brackets without end": "configs: " + "[" * 5_000 + "]" * 5_000,
    "a mapping for a pattern": "configs:\n- data_files: {a: {b: c}}",
    "a list of lists for patterns": "configs:\n- data_files: [[train.jsonl]]",
    "no path": "configs:\n- data_files: [{split: train}]",
    "a path that is nothing": "configs:\n- data_files: [{split: train, path: null}]",
    "a list as a name": "configs:\n- {config_name: [x], data_files: train.jsonl}",
    "a mapping as a folder": "configs:\n- {data_dir: {}, data_files: train.jsonl}",
    "a name of a megabyte": f"configs:\n- {{config_name: {'x' * 1_000_000}, data_files: train.jsonl}}",
    "ten thousand patterns": "configs:\n- data_files: [" + ",".join(["train.jsonl"] * 10_000) + "]",
    "keys twice": "configs:\n- data_files: train.jsonl\nconfigs: []",
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", READMES)
def test_a_hostile_readme_is_a_fault_of_the_dataset(name: str, dataset: Path) -> None:
    (dataset / "README.md").write_text(f"---\n{READMES[name]}\n---\n")
    began = time.process_time()
    (fault,) = [fault for fault in validate([_spec(dataset)]).faults if fault.path.startswith("tasks")]
    assert "README.md cannot be read" in fault.message
    assert time.process_time() - began < 5
    assert not (dataset.parent / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"---\nconfigs: \xff\n---\n",
        b"---\nlicense: *mit\n---\n",
        b"---" + b"\n" * 100_000,
        b"---\n" * 50_000,
        b"",
        b"\0",
    ],
)
def test_a_readme_that_lists_no_files_never_ends_validation(content: bytes, dataset: Path) -> None:
    (dataset / "README.md").write_bytes(content)
    assert all("README.md" in fault.message for fault in validate([_spec(dataset)]).faults)


def test_a_readme_leads_to_no_file_outside(dataset: Path) -> None:
    (dataset.parent / "private.jsonl").write_bytes(b'{"question": "PRIVATE", "answer": "1"}\n')
    for files in ("../private.jsonl", str(dataset.parent / "private.jsonl"), "**", "{data_dir: .., path: '*'}"):
        text = f"---\nconfigs:\n- data_files: {json.dumps(files)}\n  data_dir: ..\n---\n"
        (dataset / "README.md").write_text(text)
        loaded = load_spec(_spec(dataset))
        with pytest.raises(SpecError):
            load_tasks(loaded, "train")


def test_a_link_out_of_a_dataset_is_refused_and_one_to_the_hubs_blobs_is_followed(
    dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "private.jsonl").write_bytes(b'{"question": "PRIVATE", "answer": "1"}\n')
    (dataset / "test.jsonl").symlink_to(tmp_path / "private.jsonl")
    with pytest.raises(DatasetFault, match="leads out of it"):
        dataset_files(dataset, config=None, split="test")
    snapshot = tmp_path / "datasets--a--b/snapshots/abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "datasets--a--b/blobs").mkdir()
    (tmp_path / "datasets--a--b/blobs/1234").write_bytes(ROW)
    (snapshot / "train.jsonl").symlink_to("../../blobs/1234")
    assert dataset_files(snapshot, config=None, split="train") == [snapshot / "train.jsonl"]


GLOBS = [
    ("data/*.jsonl", "data/a.jsonl", True),
    ("data/*.jsonl", "data/a/b.jsonl", False),
    ("**/*.jsonl", "a.jsonl", True),
    ("**/*.jsonl", "a/b/c.jsonl", True),
    ("a/**/c.jsonl", "a/c.jsonl", True),
    ("a/**/c.jsonl", "a/b/xc.jsonl", False),
    ("a/**", "a/b/c", True),
    ("**", "a/b", True),
    ("train-?.jsonl", "train-1.jsonl", True),
    ("train-?.jsonl", "train-/.jsonl", False),
    ("[ab].jsonl", "b.jsonl", True),
    ("[!ab].jsonl", "b.jsonl", False),
    ("[ab", "[ab", True),
    ("", "", True),
    ("", "a", False),
]


@pytest.mark.parametrize(("pattern", "name", "fits"), GLOBS)
def test_a_pattern_means_what_it_means_on_the_hub(pattern: str, name: str, fits: bool) -> None:
    assert Glob(pattern).matches(name) is fits


@pytest.mark.parametrize(
    "pattern", ["*a" * 400 + "b", "**/" * 300 + "zzz", "**" * 500 + "b", "?*" * 400 + "b", "*" * 999]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    began = time.process_time()
    for name in ("a" * 255, "/".join(["a"] * 120), "a" * 255 + ".jsonl"):
        Glob(pattern).matches(name)
    assert time.process_time() - began < 5


@settings(max_examples=50)
@given(st.text("ab*?[]!/", max_size=12), st.text("ab/", max_size=8))
def test_any_pattern_is_matched_and_none_raises(pattern: str, name: str) -> None:
    assert Glob(pattern).matches(name) in (True, False)
    assert Glob("**").matches(name)


LINES = {
    "brackets": b'{"question": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "brackets and a long number": b'{"a": 12345678901234567890, "question": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "digits": b'{"question": ' + b"9" * 100_000 + b"}",
    "infinity beside a long number": b'{"question": Infinity, "a": 12345678901234567890}',
    "no UTF-8": b'{"question": "\xff"}',
    "a list": b"[1]",
}


@pytest.mark.parametrize("name", LINES)
def test_a_hostile_row_is_a_fault_with_its_line(name: str, dataset: Path) -> None:
    (dataset / "train.jsonl").write_bytes(ROW + LINES[name] + b"\n" + ROW)
    tasks = load_tasks(load_spec(_spec(dataset)), "train")
    assert len(tasks) == 3
    with pytest.raises(SpecError) as caught:
        tasks[1]
    (fault,) = caught.value.faults
    assert fault.line == 2
    assert len(str(fault)) < 1_000
    assert tasks[2] == {"question": "q", "answer": "1"}


@pytest.mark.slow
def test_a_row_without_end_is_not_read(dataset: Path) -> None:
    with (dataset / "train.jsonl").open("ab") as file:
        file.write(b'{"question": "')
        file.truncate(MAX_ROW_BYTES * 3)  # a hole: it takes no disk
    tasks = load_tasks(load_spec(_spec(dataset)), "train")
    assert len(tasks) == 2
    with pytest.raises(SpecError, match="more than 64 MB"):
        tasks[1]


def test_integers_of_any_length_stay_integers(dataset: Path) -> None:
    gold = 123456789012345678901234567890
    (dataset / "train.jsonl").write_text(json.dumps({"question": "q", "answer": gold, "list": [-gold, 2**64, 1.5]}))
    (row,) = load_tasks(load_spec(_spec(dataset)), "train")
    assert row == {"question": "q", "answer": gold, "list": [-gold, 2**64, 1.5]}
    assert isinstance(row["answer"], int)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_among_the_files_is_left_out(dataset: Path) -> None:
    os.mkfifo(dataset / "test.jsonl")
    os.mkfifo(dataset / "README.md")
    assert dataset_files(dataset, config=None, split="train") == [dataset / "train.jsonl"]
    with pytest.raises(DatasetFault):
        dataset_files(dataset, config=None, split="test")


MADE = {
    "without end": ("def rows():\n    while True: yield {'question': 'q', 'answer': 1}", "does it end?"),
    "of growing rows": ("def rows():\n    while True: yield {'question': 'q' * 1_000_000}", "does it end?"),
    "that hangs": ("import threading\ndef rows(): threading.Event().wait()", "did not end"),
    "that ends the program": ("import sys\ndef rows(): sys.exit(0)", "failed: SystemExit: 0"),
    "with an argument": ("def rows(split): return []", "is called with nothing by position"),
    "that is async": ("async def rows(): return []", "is a coroutine function"),
    "that is an async generator": ("async def rows():\n    yield {}", "expected an iterable of mappings"),
    "that raises a group": ("def rows(): raise ExceptionGroup('x', [ValueError()])", "failed: ExceptionGroup"),
    "of numbers": ("def rows(): return [1]", "is no mapping with text keys"),
    "with keys that are no text": ("def rows(): return [{1: 2}]", "is no mapping with text keys"),
}


@pytest.mark.parametrize("name", MADE)
def test_a_function_of_rows_ends_and_says_what_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlenv.tasks.rows._MAX_MADE_ROWS", 1_000)
    monkeypatch.setattr("rlenv.tasks.rows._MAX_MADE_CHARS", 10_000_000)
    monkeypatch.setattr("rlenv.tasks.rows._MAX_MADE_S", 600.0 if "hangs" not in name else 0.05)
    text, says = MADE[name]
    (tmp_path / "f.py").write_text(text)
    (tmp_path / "ds").mkdir()
    path = _spec(tmp_path / "ds")
    path.write_text(path.read_text().replace("{hf: {path: ds}}", '{function: "f.py:rows"}'))
    faults = [fault for fault in validate([path]).faults if fault.path == "tasks.train.function"]
    assert [says in fault.message for fault in faults] == [True], faults
