"""Which runs a viewer shows."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv.runs import files
from rlenv.runs.recorded import LinesReader
from rlenv.web.shelf import Shelf, SpecChanged, path_below, read_versioned, save_spec, spec_at, specs_below
from tests.support.runs import kept, played


def test_runs_are_found_below_the_roots(tmp_path: Path) -> None:
    kept(tmp_path / "a" / "one", [played()])
    kept(tmp_path / "a" / "deep" / "two", [played()])
    files.write(tmp_path / "old" / "trajectories.jsonl", [played()])
    (tmp_path / ".hidden").mkdir()
    kept(tmp_path / ".hidden" / "three", [played()])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert sorted(Shelf([tmp_path]).run_keys()) == ["a~deep~two", "a~one", "old"]


def test_a_root_may_be_a_run_or_a_file(tmp_path: Path) -> None:
    kept(tmp_path / "one", [played()])
    files.write(tmp_path / "two" / "trajectories.jsonl", [played()])
    files.write(tmp_path / "three.jsonl", [played()])
    roots = [tmp_path / "one", tmp_path / "two", tmp_path / "three.jsonl"]
    assert Shelf(roots).run_keys() == ["one", "two", "three.jsonl"]


def test_runs_of_one_name_have_keys_of_their_own(tmp_path: Path) -> None:
    for place in ("a", "b"):
        kept(tmp_path / place / "run", [played()])
    shelf = Shelf([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert [shelf.path(key) for key in shelf.run_keys()] == [tmp_path / "a" / "run", tmp_path / "b" / "run"]


def test_a_key_stands_in_addresses_as_it_is(tmp_path: Path) -> None:
    kept(tmp_path / "a b" / "ü%2F", [played()])
    shelf = Shelf([tmp_path])
    (key,) = shelf.run_keys()
    assert shelf.summary(key)["key"] == "a%20b~%C3%BC%252F"
    assert shelf.summary(key)["name"] == "a b/ü%2F"


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    kept(tmp_path / "good", [played()])
    files.write(tmp_path / "bad" / "trajectories.jsonl", [played()])
    (tmp_path / "bad" / "trajectories.jsonl").write_text("{}\n{}\n")
    shelf = Shelf([tmp_path])
    lines = {key: shelf.summary(key) for key in shelf.run_keys()}
    assert "is no" in lines["bad"]["error"] or "not a recorded trajectory" in lines["bad"]["error"]
    assert lines["good"]["episodes"] == 1


def test_the_line_of_a_run_is_new_once_there_is_more(tmp_path: Path) -> None:
    kept(tmp_path / "run", [played()])
    shelf = Shelf([tmp_path])
    (key,) = shelf.run_keys()
    assert shelf.summary(key)["episodes"] == 1
    kept(tmp_path / "run", [played(seed=1)])
    shelf.open(key).episodes.refresh()
    assert shelf.summary(key)["episodes"] == 2


def test_the_line_of_a_large_file_grows_as_it_is_read(tmp_path: Path) -> None:
    files.write(tmp_path / "t.jsonl", [played(seed=seed) for seed in range(3)])
    shelf = Shelf([tmp_path / "t.jsonl"])
    reader = shelf.open("t.jsonl").episodes = LinesReader(tmp_path / "t.jsonl", look=1)
    assert shelf.summary("t.jsonl")["episodes"] < 3
    while not reader.is_at_end:
        reader.refresh()
    assert shelf.summary("t.jsonl")["episodes"] == 3


def test_a_key_that_was_not_given_out_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        Shelf([tmp_path]).open("../etc")


# Which specs a server may touch: those below its roots


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.yaml").write_text("rlenv: 1\n", encoding="utf-8")
    root = tmp_path / "root"
    (root / "inner").mkdir(parents=True)
    (root / "a.yaml").write_text("rlenv: 1\nname: a\n", encoding="utf-8")
    (root / "inner" / "b.yml").write_text("# a note\nextends: ../a.yaml\n", encoding="utf-8")
    (root / "other.yaml").write_text("name: no spec\n", encoding="utf-8")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "c.yaml").write_text("rlenv: 1\n", encoding="utf-8")
    (root / "out").symlink_to(tmp_path)
    (root / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    return root


@pytest.mark.parametrize(
    "given",
    ["../secret.yaml", "/etc/passwd", "out/secret.yaml", "link.yaml", "inner/../../secret.yaml", "", "a\0.yaml", "~/a"],
)
def test_no_path_leads_out_of_the_roots(given: str, root: Path) -> None:
    if given == "~/a":  # a name like any other
        assert path_below(given, [root]) == root / "~" / "a"
        return
    with pytest.raises(UsageError):
        path_below(given, [root])


def test_a_relative_path_is_taken_from_the_root_that_has_it(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "d.yaml").write_text("rlenv: 1\n", encoding="utf-8")
    assert path_below("d.yaml", [root, second]) == second / "d.yaml"
    assert path_below("new.yaml", [root, second]) == root / "new.yaml"
    assert path_below(str(root / "a.yaml"), [second, root]) == root / "a.yaml"


def test_without_roots_nothing_is_served() -> None:
    with pytest.raises(UsageError, match="none are given"):
        path_below("a.yaml", [])


def test_specs_are_yaml_files_or_the_names_of_shipped_ones(root: Path) -> None:
    assert spec_at("arithmetic", [root]).name == "arithmetic.yaml"
    with pytest.raises(UsageError, match="yaml"):
        spec_at("inner", [root])


def test_what_looks_like_a_spec_is_listed(root: Path) -> None:
    assert [path.relative_to(root).as_posix() for path in specs_below([root])] == ["a.yaml", "inner/b.yml"]


def test_a_spec_is_saved_whole_or_not_at_all(root: Path) -> None:
    path = root / "a.yaml"
    save_spec(path, "rlenv: 1\nname: ä\n")
    assert read_versioned(path)[0] == "rlenv: 1\nname: ä\n"
    with pytest.raises(UsageError, match="cannot be written"):
        save_spec(path, "\ud800")
    assert read_versioned(path)[0] == "rlenv: 1\nname: ä\n"
    assert not list(root.glob(".*.tmp"))


def test_what_cannot_be_read_or_written_is_told(root: Path) -> None:
    (root / "bad.yaml").write_bytes(b"\xff")
    for path in (root / "bad.yaml", root / "nowhere.yaml"):
        with pytest.raises(UsageError):
            read_versioned(path)
    with pytest.raises(UsageError, match="there is no folder"):
        save_spec(root / "nowhere" / "a.yaml", "")


@pytest.mark.parametrize("given", ["a" * 300 + ".yaml", "\ud800.yaml", "a/" * 3000 + "b.yaml"])
def test_a_name_that_no_file_can_have_is_told(given: str, root: Path) -> None:
    with pytest.raises(UsageError):
        save_spec(path_below(given, [root]), "")


def test_a_spec_that_somebody_else_has_written_is_not_written_over(root: Path) -> None:
    path = root / "a.yaml"
    text, version = read_versioned(path)
    path.write_text(text + "# theirs\n", encoding="utf-8")
    with pytest.raises(SpecChanged):
        save_spec(path, "mine", before=version)
    assert read_versioned(path)[0].endswith("# theirs\n")
    mine = save_spec(path, "mine", before=read_versioned(path)[1])
    assert save_spec(path, "mine again", before=mine) == read_versioned(path)[1]
    path.unlink()
    with pytest.raises(SpecChanged):
        save_spec(path, "mine", before=mine)
    save_spec(path, "new", before="")
    with pytest.raises(SpecChanged):
        save_spec(path, "newer", before="")
    assert not list(root.glob(".*.tmp"))


def test_of_many_saves_at_once_one_is_written(root: Path) -> None:
    path = root / "a.yaml"
    _, version = read_versioned(path)

    def save(number: int) -> str:
        try:
            save_spec(path, f"# {number}", before=version)
        except SpecChanged:
            return ""
        return f"# {number}"

    with ThreadPoolExecutor(8) as threads:
        written = [text for text in threads.map(save, range(32)) if text]
    assert [read_versioned(path)[0]] == written


def test_a_link_inside_stays_one_and_what_is_no_file_is_not_replaced(root: Path) -> None:
    (root / "second.yaml").symlink_to("a.yaml")
    save_spec(path_below("second.yaml", [root]), "rlenv: 1\n")
    assert (root / "second.yaml").is_symlink()
    assert read_versioned(root / "a.yaml")[0] == "rlenv: 1\n"
    os.mkfifo(root / "pipe.yaml")
    (root / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        with pytest.raises(UsageError, match="is no file"):
            save_spec(path_below(name, [root]), "")
        with pytest.raises(UsageError):
            read_versioned(path_below(name, [root]))
    assert (root / "pipe.yaml").is_fifo()
    (root / "nowhere.yaml").symlink_to(root.parent / "outside.yaml")
    with pytest.raises(UsageError, match="not below"):
        path_below("nowhere.yaml", [root])
