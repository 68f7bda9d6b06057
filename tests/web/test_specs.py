"""Which specs a server may touch: those below its roots."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlenv.errors import UsageError
from rlenv.web.specs import SpecChanged, below, read_versioned, save_spec, spec_at, specs_below


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
        assert below(given, [root]) == root / "~" / "a"
        return
    with pytest.raises(UsageError):
        below(given, [root])


def test_a_relative_path_is_taken_from_the_root_that_has_it(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "d.yaml").write_text("rlenv: 1\n", encoding="utf-8")
    assert below("d.yaml", [root, second]) == second / "d.yaml"
    assert below("new.yaml", [root, second]) == root / "new.yaml"
    assert below(str(root / "a.yaml"), [second, root]) == root / "a.yaml"


def test_without_roots_nothing_is_served() -> None:
    with pytest.raises(UsageError, match="none are given"):
        below("a.yaml", [])


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
        save_spec(below(given, [root]), "")


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
    save_spec(below("second.yaml", [root]), "rlenv: 1\n")
    assert (root / "second.yaml").is_symlink()
    assert read_versioned(root / "a.yaml")[0] == "rlenv: 1\n"
    os.mkfifo(root / "pipe.yaml")
    (root / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "folder.yaml"):
        with pytest.raises(UsageError, match="is no file"):
            save_spec(below(name, [root]), "")
        with pytest.raises(UsageError):
            read_versioned(below(name, [root]))
    assert (root / "pipe.yaml").is_fifo()
    (root / "nowhere.yaml").symlink_to(root.parent / "outside.yaml")
    with pytest.raises(UsageError, match="not below"):
        below("nowhere.yaml", [root])
