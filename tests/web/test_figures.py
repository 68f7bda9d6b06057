"""A run's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from rlenv.runs.locks.lock import Lock
from rlenv.web.guard import Guard
from tests.support.runs import asked, kept, played, raw, visited


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    run = tmp_path / "runs" / "run"
    kept(run, [played()], attempts=[{"lock": "abc"}])
    (run / "logs").mkdir()
    (run / "logs" / "out.txt").write_text("a" * 100_000 + "the end")
    (run / "link.txt").symlink_to(tmp_path / "secret.txt")
    (run / "away").symlink_to(tmp_path)
    (run / "locks").mkdir()
    (run / "locks" / "abc.json").write_text(json.dumps({"spec": {"digest": "1"}}))
    (run / "locks" / "torn.json").write_text("{")
    (run / "locks" / "link.json").symlink_to(tmp_path / "secret.txt")
    return run


def test_files_are_listed_without_parts_and_links(run: Path) -> None:
    names = {one["name"]: one["size"] for one in asked("/api/runs/run/files", run)["files"]}
    assert names["logs/out.txt"] == 100_007
    assert set(names) == {"run.json", "logs/out.txt", "locks/abc.json", "locks/torn.json"}


def test_the_tail_of_a_file_is_given(run: Path) -> None:
    found = asked("/api/runs/run/file?name=logs/out.txt", run)
    assert found["size"] == 100_007
    assert found["text"].endswith("the end")
    assert len(found["text"]) == 64_000


@pytest.mark.parametrize(
    "name",
    [
        "../../secret.txt", "/etc/passwd", "logs/../../../secret.txt", "link.txt", "away/secret.txt", "", ".", "logs",
        "journal/../run.json", "run.json%00", "./run.json",
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_run(run: Path, name: str) -> None:
    found = asked(f"/api/runs/run/file?name={name}", run, status=404)
    assert "the run has no file" in found["error"]


@pytest.mark.parametrize("key", ["..", "%2e%2e", "..%2f..%2fsecret.txt", "%2Fetc", "run%2F..", "run%00", "~"])
def test_no_key_leads_out_of_the_roots(run: Path, key: str) -> None:
    paths = (f"/api/runs/{key}/files", f"/api/runs/{key}/file?name=secret.txt", f"/blob/{key}/{'0' * 64}")

    async def work(client: TestClient[Any, Any], guard: Guard) -> list[str]:
        return [await raw(client, path) for path in paths]

    for answer in visited(work, run.parent):
        assert answer.startswith("HTTP/1.1 404 ")
        assert "there is no" in answer


def test_locks_are_given_by_their_hashes(run: Path) -> None:
    found = asked("/api/runs/run/lock", run)
    assert found["current"] == "abc"
    assert found["locks"]["abc"] == {"spec": {"digest": "1"}}
    assert "is not JSON" in found["locks"]["torn"]["error"]
    assert "link" not in found["locks"]


def test_a_lock_that_is_nested_too_deeply_is_told(run: Path) -> None:
    (run / "locks" / "deep.json").write_text("[" * 100_000)
    assert "is not JSON" in asked("/api/runs/run/lock", run)["locks"]["deep"]["error"]


def with_lock(run: Path, lock: Lock) -> None:
    kept(run, [played()], attempts=[{"lock": lock.hash12}])
    (run / "locks").mkdir()
    (run / "locks" / f"{lock.hash12}.json").write_text(json.dumps(lock.as_dict()))


def test_locks_that_differ_are_told_by_section(tmp_path: Path) -> None:
    with_lock(tmp_path / "a", Lock(spec={"digest": "1"}, started=1.0))
    with_lock(tmp_path / "b", Lock(spec={"digest": "2"}, play={"seed": 3}))
    with_lock(tmp_path / "c", Lock(spec={"digest": "1"}, started=2.0))
    assert asked("/api/compare?a=a&b=b", tmp_path)["lock"] == [
        {"section": "spec", "key": "digest", "a": "1", "b": "2"},
        {"section": "play", "key": "seed", "a": None, "b": 3},
    ]
    assert asked("/api/compare?a=a&b=c", tmp_path)["lock"] == []


def test_a_lock_that_is_not_there_is_told(tmp_path: Path) -> None:
    with_lock(tmp_path / "a", Lock(spec={"digest": "1"}))
    kept(tmp_path / "b", [played()])
    (one,) = asked("/api/compare?a=a&b=b", tmp_path)["lock"]
    assert (one["section"], one["b"]) == ("lock", "")
    assert "there is no lock" in one["key"]
