"""Folders that machines leave, while somebody kills what works on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlenv.tools.workspace.layer import kept_of, remove
from tests.support.machines import killed_at_first


def test_what_is_killed_half_way_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, target = tmp_path / "layer", tmp_path / "kept"
    (layer / "app").mkdir(parents=True)
    (layer / "app" / "file").write_text("content")
    killed_at_first(tmp_path, monkeypatch, "rm", "cp")
    assert (kept_of(target, ["/app"], layer) / "app" / "file").read_text() == "content"
    remove(layer)
    assert not layer.exists()
