"""What is DuckDB's own: the extra, and copies in folders."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rlenv.errors import MissingExtra, ResourceError, ToolFailed
from tests.resources.sql.engines import DUCKDB, needs_duckdb, rows, run, toys

pytestmark = needs_duckdb


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    DUCKDB.make(tmp_path / "toys.duckdb", DUCKDB.toys)
    return tmp_path


def copies(folder: Path) -> int:
    return len(list((folder / "temporary").iterdir()))


def test_without_the_extra_the_resource_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"rlenv\[duckdb\]"):
        DUCKDB.resource(folder)


def test_a_copy_is_gone_with_its_episode(folder: Path) -> None:
    async def work() -> None:
        resource = DUCKDB.resource(folder, access="copy")
        async with resource.open(toys()) as first, resource.open(toys()):
            assert copies(folder) == 2
            await rows(first, "DELETE FROM toy")
        assert copies(folder) == 0

    run(work())


def test_a_copy_that_is_closed_under_a_statement_is_gone_when_that_ends(folder: Path) -> None:
    async def work() -> None:
        async with DUCKDB.resource(folder, access="copy").open(toys()) as database:
            slow = asyncio.ensure_future(database.query(DUCKDB.endless, deadline=time.monotonic() + 50, cpu_s=0.1))
            await asyncio.sleep(0)
        with pytest.raises(ToolFailed):
            await slow
        assert copies(folder) == 0

    run(work())


@pytest.mark.parametrize("db", ["gone", "broken"])
def test_a_file_that_cannot_be_opened_leaves_no_copy(folder: Path, db: str) -> None:
    (folder / "broken.duckdb").write_bytes(b"not a database at all" * 1_000)

    async def work() -> None:
        with pytest.raises(ResourceError):
            async with DUCKDB.resource(folder, access="copy").open(toys(db=db)):
                pass

    run(work())
    assert copies(folder) == 0
