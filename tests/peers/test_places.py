"""A peer that is not there is named with the command that installs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.peers.places import ROOT, peer, run


@pytest.mark.parametrize("is_ci", [False, True])
def test_a_peer_that_is_missing_is_left_out_by_name_and_fails_in_ci(
    is_ci: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLENV_PEERS", str(tmp_path))
    monkeypatch.delenv("RLENV_PEER", raising=False)
    monkeypatch.setenv("CI", "1")
    if not is_ci:
        monkeypatch.delenv("CI")
    error = pytest.fail.Exception if is_ci else pytest.skip.Exception
    with pytest.raises(error, match="the peer trl is not installed; run: make peers PEER=trl"):
        peer("trl")


def test_where_one_peer_is_played_the_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLENV_PEER", "gem")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.skip.Exception, match="only the peer gem is played"):
        peer("trl")


def test_a_command_of_a_peer_sees_this_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trl" / "bin").mkdir(parents=True)
    (tmp_path / "trl" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("RLENV_PEERS", str(tmp_path))
    monkeypatch.delenv("RLENV_PEER", raising=False)
    done = run("trl", ["python", "-c", "import sys; print(*sys.path[1:3], sep='\\n')"], tmp_path)
    assert done.stdout.splitlines() == [str(ROOT), str(ROOT / "trainers")], done.stderr


def test_a_peer_is_pinned_whole() -> None:
    """Each line is a version, and what builds this checkout's own package is among them; no index is named."""
    for path in (ROOT / "requirements" / "peers").glob("*.txt"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if re.fullmatch(r"[\w.-]+==[\w.!+]+", line) is None] == [], path
        assert {"editables", "hatchling"} <= {line.split("==")[0] for line in lines}, path
