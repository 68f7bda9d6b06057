"""Folders in which programs may do anything, while they are looked at too."""

from __future__ import annotations

from pathlib import Path

from rlenv._base.paths import remove, walked


def test_a_file_that_goes_while_a_folder_is_looked_at_hides_no_other(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d/e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    seen = []
    for path, _ in walked(tmp_path):
        seen.append(path)
        (tmp_path / "b").unlink(missing_ok=True)
    assert seen == ["/a", "/c", "/d", "/d/e"]


def test_a_link_is_removed_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to("kept")
    remove(tmp_path / "link")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["kept", "file"]
