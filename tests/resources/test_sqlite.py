"""Databases: shared and read only, or a private copy for each episode."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.resources.base import ResourceContext
from rlenv.resources.sqlite import KIND, Database, SqliteResource, SqliteSpec
from rlenv.tools.base import CompileContext

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "toys.sqlite")) as raw:
        raw.executescript(
            "CREATE TABLE toy (name TEXT, price REAL);"
            "INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL);"
            "CREATE VIEW cheap AS SELECT name FROM toy WHERE price < 3;"
        )
    (tmp_path / "init.sql").write_text("CREATE TABLE made (a); INSERT INTO made VALUES (1);", encoding="utf-8")
    return tmp_path


def compiled(folder: Path, **keys: Any) -> SqliteResource:
    given: dict[str, Any] = {"path": "{{ task.db }}.sqlite"} if not keys.keys() & {"path", "init"} else {}
    resource = KIND.factory("db", SqliteSpec(kind="sqlite", **given, **keys), CompileContext(base=folder))
    assert isinstance(resource, SqliteResource)
    return resource


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def toys(**task: Any) -> ResourceContext:
    return ResourceContext({"db": "toys", **task})


async def rows(database: Database, sql: str) -> list[list[Any]]:
    return (await database.query(sql, deadline=time.monotonic() + 30)).rows


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_the_schema_is_the_create_statements(folder: Path, access: str) -> None:
    async def work() -> None:
        async with compiled(folder, access=access).open(toys()) as database:
            assert database.schema == (
                "CREATE TABLE toy (name TEXT, price REAL);\nCREATE VIEW cheap AS SELECT name FROM toy WHERE price < 3;"
            )
            assert database.dialect == "sqlite"

    run(work())


def test_templates_may_read_what_a_handle_has(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as database:
            for name in SqliteResource.template_attributes:
                assert isinstance(getattr(database, name), str)

    run(work())


def test_writes_to_a_copy_never_reach_another_episode_or_the_file(folder: Path) -> None:
    async def work() -> None:
        resource = compiled(folder, access="copy")
        before = (folder / "toys.sqlite").read_bytes()
        async with resource.open(toys()) as first, resource.open(toys()) as second:
            await rows(first, "DELETE FROM toy")
            await rows(second, "INSERT INTO toy VALUES ('drum', 9)")
            assert await rows(first, "SELECT count(*) FROM toy") == [[0]]
            assert await rows(second, "SELECT count(*) FROM toy") == [[3]]
        async with resource.open(toys()) as third:
            assert await rows(third, "SELECT count(*) FROM toy") == [[2]]
        assert (folder / "toys.sqlite").read_bytes() == before

    run(work())


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_database_can_be_made_from_a_script(folder: Path, access: str) -> None:
    async def work() -> None:
        async with compiled(folder, init="init.sql", access=access).open(ResourceContext()) as database:
            assert await rows(database, "SELECT a FROM made") == [[1]]
            if access == "read_only":
                with pytest.raises(ToolFailed, match="read only"):
                    await rows(database, "DELETE FROM made")

    run(work())


def test_a_database_with_a_write_ahead_log_is_read_with_it(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys(db="logged")) as database:
            assert await rows(database, "SELECT a FROM t") == [[1]]

    with closing(sqlite3.connect(folder / "logged.sqlite")) as raw:
        raw.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t (a); INSERT INTO t VALUES (1)"
        )
        run(work())


@pytest.mark.parametrize(("db", "says"), [("gone", "no database file"), ("broken", "cannot be opened")])
def test_a_file_that_is_missing_or_no_database_is_the_infrastructures_fault(folder: Path, db: str, says: str) -> None:
    (folder / "broken.sqlite").write_bytes(b"not a database at all" * 100)

    async def work() -> None:
        with pytest.raises(ResourceError, match=says) as failed:
            async with compiled(folder).open(toys(db=db)):
                pass
        assert f"{db}.sqlite" in str(failed.value)

    run(work())


def test_a_task_without_the_paths_name_is_the_infrastructures_fault(folder: Path) -> None:
    async def work() -> None:
        with pytest.raises(ResourceError, match="path cannot be filled in"):
            async with compiled(folder).open(ResourceContext({})):
                pass

    run(work())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "a.sqlite", "init": "a.sql"}, "either path or init"),
        ({"path": "{{ tsk.db }}"}, "there is no 'tsk' here"),
        ({"path": "{{ task.db"}, "path"),
        ({"path": "{{ task.db }}.sqlite", "scope": "process"}, "cannot depend on the task"),
    ],
)
def test_an_authors_mistake_says_what_to_change(folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compiled(folder, **keys)
    with pytest.raises(UsageError, match="either path or init"):
        KIND.factory("db", SqliteSpec(kind="sqlite"), CompileContext(base=folder))


def test_many_episodes_query_at_once(folder: Path) -> None:
    async def work() -> None:
        resource = compiled(folder)

        async def episode() -> list[list[Any]]:
            async with resource.open(toys()) as database:
                # LIKE is run in a thread, the other one on the loop.
                await rows(database, "SELECT name FROM toy WHERE name LIKE '%k%'")
                return await rows(database, "SELECT name FROM toy")

        assert await asyncio.gather(*[episode() for _ in range(64)]) == [[["ball"], ["kite"]]] * 64

    run(work())


def test_a_statement_without_an_end_leaves_the_loop_to_others(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as database:
            slow = asyncio.ensure_future(database.query(ENDLESS, deadline=time.monotonic() + 50))
            for _ in range(20):
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
                await database.query(ENDLESS, deadline=time.monotonic() + 50, cpu_s=0.05)
            assert failed.value.reason == "timeout"
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]

    run(work())


def test_a_write_that_is_stopped_changes_nothing(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(toys()) as database:
            endless = f"INSERT INTO toy {ENDLESS.replace('count(*)', 'n, n')}"
            with pytest.raises(ToolFailed, match="within its time"):
                await database.query(endless, deadline=time.monotonic() + 50, cpu_s=0.05)
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]

    run(work())


def test_statements_of_one_copy_wait_for_each_other(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(toys()) as database:
            await asyncio.gather(*[rows(database, "INSERT INTO toy VALUES ('x', 1)") for _ in range(20)])
            assert await rows(database, "SELECT count(*) FROM toy") == [[22]]

    run(work())


def test_a_read_only_database_says_which_version_it_is_and_a_copy_does_not(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(toys()) as one, compiled(folder).open(toys()) as same:
            assert one.version is not None
            assert one.version == same.version
            assert isinstance(hash(one.version), int)
        async with compiled(folder, access="copy").open(toys()) as copy:
            assert copy.version is None
        with closing(sqlite3.connect(folder / "toys.sqlite")) as raw:
            raw.executescript("INSERT INTO toy VALUES ('drum', 1)")
        async with compiled(folder).open(toys()) as changed:
            assert changed.version != one.version

    run(work())


def test_a_kept_copy_is_as_new_after_each_episode(folder: Path) -> None:
    async def work() -> None:
        resource = compiled(folder, access="copy", isolation="savepoint")
        state = (
            "SELECT (SELECT count(*) FROM toy), (SELECT count(*) FROM sqlite_master), last_insert_rowid(), changes()"
        )
        fresh = [[2, 2, 0, 0]]
        for _ in range(3):
            async with resource.open(toys()) as database:
                assert await rows(database, state) == fresh
                await rows(database, "INSERT INTO toy VALUES ('drum', 9)")
                await rows(database, "CREATE TABLE more (a)")
                await rows(database, "DROP VIEW cheap")
                assert await rows(database, "SELECT count(*) FROM toy") == [[3]]
        source = resource.source(toys())
        assert source.has_idle

    run(work())


@pytest.mark.parametrize("isolation", ["savepoint", "deserialize"])
def test_a_copy_goes_on_as_it_was_after_a_write_that_is_stopped(folder: Path, isolation: str) -> None:
    async def work() -> None:
        resource = compiled(folder, access="copy", isolation=isolation)
        async with resource.open(toys()) as database:
            await rows(database, "DELETE FROM toy WHERE name = 'kite'")
            endless = f"INSERT INTO toy {ENDLESS.replace('count(*)', 'n, n')}"
            with pytest.raises(ToolFailed, match="within its time"):
                await database.query(endless, deadline=time.monotonic() + 50, cpu_s=0.05)
            assert await rows(database, "SELECT name FROM toy") == [["ball"]]
            await rows(database, "INSERT INTO toy VALUES ('drum', 1)")
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]
        async with resource.open(toys()) as database:
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]

    run(work())


@pytest.mark.parametrize(
    ("keys", "says"),
    [({"isolation": "savepoint"}, "write access: copy"), ({"access": "copy", "scope": "process"}, "carry writes")],
)
def test_writes_that_would_cross_episodes_are_refused(folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        compiled(folder, path="toys.sqlite", **keys)
