"""DuckDB files: shared and read only, or a private copy for each episode."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import MissingExtra, ResourceError, ToolFailed, UsageError
from rlenv.resources.base import ResourceContext
from rlenv.resources.duckdb import KIND, DuckdbDatabase, DuckdbResource, DuckdbSpec
from rlenv.tools.base import CompileContext

duckdb = pytest.importorskip("duckdb", reason="the extra `duckdb` is not installed")

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range + b.range = -1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    with duckdb.connect(str(tmp_path / "toys.duckdb")) as raw:
        raw.execute("CREATE TABLE toy (name VARCHAR, price DOUBLE)")
        raw.execute("INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL)")
        raw.execute("CREATE VIEW cheap AS SELECT name FROM toy WHERE price < 3")
    return tmp_path


def compiled(folder: Path, *, path: str = "{{ task.db }}.duckdb", **keys: Any) -> DuckdbResource:
    resource = KIND.factory("db", DuckdbSpec(kind="duckdb", path=path, **keys), CompileContext(base=folder))
    assert isinstance(resource, DuckdbResource)
    return resource


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def toys(**task: Any) -> ResourceContext:
    return ResourceContext({"db": "toys", **task})


async def rows(database: DuckdbDatabase, sql: str) -> list[list[Any]]:
    return (await database.query(sql, deadline=time.monotonic() + 30)).rows


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_the_schema_is_the_create_statements(folder: Path, access: str) -> None:
    async def work() -> None:
        async with compiled(folder, access=access).open(toys()) as database:
            assert database.schema == (
                'CREATE TABLE toy("name" VARCHAR, price DOUBLE);\n'
                'CREATE VIEW cheap AS SELECT "name" FROM toy WHERE (price < 3);'
            )
            for name in DuckdbResource.template_attributes:
                assert isinstance(getattr(database, name), str)

    run(work())


def test_writes_to_a_copy_never_reach_another_episode_or_the_file_and_copies_are_removed(folder: Path) -> None:
    async def work() -> None:
        resource = compiled(folder, access="copy")
        before = (folder / "toys.duckdb").read_bytes()
        async with resource.open(toys()) as first, resource.open(toys()) as second:
            assert len(list((folder / "temporary").iterdir())) == 2
            await rows(first, "DELETE FROM toy")
            await rows(second, "INSERT INTO toy VALUES ('drum', 9)")
            assert await rows(first, "SELECT count(*) FROM toy") == [[0]]
            assert await rows(second, "SELECT count(*) FROM toy") == [[3]]
        assert list((folder / "temporary").iterdir()) == []
        async with resource.open(toys()) as third:
            assert await rows(third, "SELECT count(*) FROM toy") == [[2]]
        assert (folder / "toys.duckdb").read_bytes() == before

    run(work())


@pytest.mark.parametrize("access", ["read_only", "copy"])
@pytest.mark.parametrize(("db", "says"), [("gone", "no database file"), ("broken", "cannot be opened")])
def test_a_file_that_is_missing_or_no_database_is_the_infrastructures_fault(
    folder: Path, access: str, db: str, says: str
) -> None:
    (folder / "broken.duckdb").write_bytes(b"not a database at all" * 1000)

    async def work() -> None:
        with pytest.raises(ResourceError, match=says) as failed:
            async with compiled(folder, access=access).open(toys(db=db)):
                pass
        assert f"{db}.duckdb" in str(failed.value)

    run(work())
    assert list((folder / "temporary").iterdir()) == []


def test_a_task_without_the_paths_name_is_the_infrastructures_fault(folder: Path) -> None:
    async def work() -> None:
        with pytest.raises(ResourceError, match="path cannot be filled in"):
            async with compiled(folder).open(ResourceContext({})):
                pass

    run(work())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "{{ tsk.db }}"}, "'tsk' is not known here"),
        ({"path": "{{ task.db"}, "path"),
        ({"scope": "process"}, "cannot depend on the task"),
        ({"path": "toys.duckdb", "access": "copy", "scope": "process"}, "carry writes"),
    ],
)
def test_an_authors_mistake_says_what_to_change(folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compiled(folder, **keys)


def test_without_the_extra_the_resource_says_how_to_install_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"rlenv\[duckdb\]"):
        compiled(folder)


def test_many_episodes_query_at_once(folder: Path) -> None:
    async def work() -> None:
        resource = compiled(folder)

        async def episode() -> list[list[Any]]:
            async with resource.open(toys()) as database:
                return await rows(database, "SELECT name FROM toy ORDER BY name")

        assert await asyncio.gather(*[episode() for _ in range(32)]) == [[["ball"], ["kite"]]] * 32

    run(work())


def test_a_statement_without_an_end_leaves_the_loop_to_others_and_can_be_cancelled(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as database:
            slow = asyncio.ensure_future(database.query(ENDLESS, deadline=time.monotonic() + 50))
            for _ in range(5):
                assert await rows(database, "SELECT count(*) FROM toy") == [[2]]
            assert not slow.done()
            slow.cancel()
            await asyncio.wait((slow,), timeout=10)
            assert slow.cancelled()

    run(work())


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_statement_without_an_end_stops_at_its_deadline_and_the_database_goes_on(folder: Path, access: str) -> None:
    async def work() -> None:
        async with compiled(folder, access=access).open(toys()) as database:
            with pytest.raises(ToolFailed) as failed:
                await database.query(ENDLESS, deadline=time.monotonic() + 50, cpu_s=0.1)
            assert failed.value.reason == "timeout"
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]

    run(work())


def test_a_write_that_is_stopped_changes_nothing(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(toys()) as database:
            endless = f"INSERT INTO toy SELECT 'x', n FROM ({ENDLESS.replace('count(*)', 'count(*) AS n')})"
            with pytest.raises(ToolFailed, match="within its time"):
                await database.query(endless, deadline=time.monotonic() + 50, cpu_s=0.1)
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]

    run(work())


def test_statements_of_one_copy_wait_for_each_other(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(toys()) as database:
            await asyncio.gather(*[rows(database, "INSERT INTO toy VALUES ('x', 1)") for _ in range(10)])
            assert await rows(database, "SELECT count(*) FROM toy") == [[12]]

    run(work())


def test_rows_and_bytes_are_capped_while_they_are_fetched(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as database:
            found = await database.query(
                "SELECT range FROM range(1000000000000)", deadline=time.monotonic() + 30, max_rows=10
            )
            assert (len(found.rows), found.truncated) == (10, True)
            found = await database.query(
                "SELECT repeat('x', 100000) FROM range(1000000)", deadline=time.monotonic() + 30
            )
            assert len(found.rows) < 1_000
            assert found.truncated

    run(work())


def test_a_read_only_database_says_which_version_it_is_and_a_copy_does_not(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as one, compiled(folder).open(toys()) as same:
            assert one.version is not None
            assert one.version == same.version
            assert isinstance(hash(one.version), int)
        async with compiled(folder, access="copy").open(toys()) as copy:
            assert copy.version is None

    run(work())
