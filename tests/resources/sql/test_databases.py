"""What holds for every kind of database: shared and read only, or a private copy for each episode."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ResourceError, ToolFailed, UsageError
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql.resource import SqlResource
from tests.resources.sql.engines import KINDS, Sql, rows, run, toys

each_access = pytest.mark.parametrize("access", ["read_only", "copy"])


@pytest.fixture(params=KINDS)
def sql(request: pytest.FixtureRequest) -> Sql:
    param: Sql = request.param
    return param


@pytest.fixture
def folder(tmp_path: Path, sql: Sql) -> Path:
    sql.make(tmp_path / f"toys.{sql.name}", sql.toys)
    return tmp_path


@each_access
def test_templates_may_read_the_schema_and_the_name_of_the_dialect(sql: Sql, folder: Path, access: str) -> None:
    async def work() -> None:
        async with sql.resource(folder, access=access).open(toys()) as database:
            assert (database.schema, database.dialect) == (sql.schema, sql.name)
            for name in SqlResource.template_attributes:
                assert isinstance(getattr(database, name), str)

    run(work())


def test_writes_to_a_copy_never_reach_another_episode_or_the_file(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        resource = sql.resource(folder, access="copy")
        before = (folder / f"toys.{sql.name}").read_bytes()
        async with resource.open(toys()) as first, resource.open(toys()) as second:
            await rows(first, "DELETE FROM toy")
            await rows(second, "INSERT INTO toy VALUES ('boat', 9)")
            assert await rows(first, "SELECT count(*) FROM toy") == [[0]]
            assert await rows(second, "SELECT count(*) FROM toy") == [[5]]
        async with resource.open(toys()) as third:
            assert await rows(third, "SELECT count(*) FROM toy") == [[4]]
        assert (folder / f"toys.{sql.name}").read_bytes() == before

    run(work())


@each_access
@pytest.mark.parametrize(("db", "says"), [("gone", "no database file"), ("broken", "cannot be (opened|read)")])
def test_a_file_that_is_missing_or_no_database_is_the_infrastructures_fault(
    sql: Sql, folder: Path, access: str, db: str, says: str
) -> None:
    (folder / f"broken.{sql.name}").write_bytes(b"not a database at all" * 1_000)

    async def work() -> None:
        with pytest.raises(ResourceError, match=says) as failed:
            async with sql.resource(folder, access=access).open(toys(db=db)):
                pass
        assert f"{db}.{sql.name}" in str(failed.value)

    run(work())


def test_a_task_without_the_paths_name_is_the_infrastructures_fault(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        with pytest.raises(ResourceError, match="path cannot be filled in"):
            async with sql.resource(folder).open(ResourceContext({})):
                pass

    run(work())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "{{ tsk.db }}"}, "'tsk' is not known here"),
        ({"path": "{{ task.db"}, "path"),
        ({"scope": "process"}, "cannot depend on the task"),
        ({"path": "toys", "access": "copy", "scope": "process"}, "carry writes"),
    ],
)
def test_an_authors_mistake_says_what_to_change(sql: Sql, folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sql.resource(folder, **keys)


def test_many_episodes_query_at_once(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        resource = sql.resource(folder)

        async def episode() -> list[list[Any]]:
            async with resource.open(toys()) as database:
                # The first runs in a process, whichever kind it is.
                await rows(database, "SELECT name FROM toy WHERE name LIKE '%k%'")
                return await rows(database, "SELECT name FROM cheap")

        assert await asyncio.gather(*[episode() for _ in range(32)]) == [[["ball"]]] * 32

    run(work())


def test_a_statement_without_an_end_leaves_the_loop_to_others_and_can_be_cancelled(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        async with sql.resource(folder).open(toys()) as database:
            slow = asyncio.ensure_future(database.query(sql.endless, deadline=time.monotonic() + 50))
            for _ in range(5):
                assert await rows(database, "SELECT count(*) FROM toy") == [[4]]
            assert not slow.done()
            slow.cancel()
            await asyncio.wait((slow,), timeout=10)
            assert slow.cancelled()

    run(work())


@pytest.mark.slow(but=1)
@each_access
def test_a_statement_without_an_end_stops_at_its_deadline_and_the_database_goes_on(
    sql: Sql, folder: Path, access: str
) -> None:
    async def work() -> None:
        async with sql.resource(folder, access=access).open(toys()) as database:
            with pytest.raises(ToolFailed) as failed:
                await database.query(sql.endless, deadline=time.monotonic() + 50, cpu_s=0.1)
            assert failed.value.reason == "timeout"
            assert await rows(database, "SELECT count(*) FROM toy") == [[4]]

    run(work())


def test_a_write_that_is_stopped_changes_nothing(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        async with sql.resource(folder, access="copy").open(toys()) as database:
            await rows(database, "DELETE FROM toy WHERE name = 'kite'")
            with pytest.raises(ToolFailed, match="within its time"):
                await database.query(
                    f"INSERT INTO toy SELECT 'x', n FROM ({sql.endless.replace('count(*)', 'count(*) AS n')}) AS made",
                    deadline=time.monotonic() + 50,
                    cpu_s=0.1,
                )
            assert await rows(database, "SELECT name FROM toy ORDER BY name") == [["ball"], ["doll"], ["red drum"]]

    run(work())


def test_statements_of_one_copy_wait_for_each_other(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        async with sql.resource(folder, access="copy").open(toys()) as database:
            await asyncio.gather(*[rows(database, "INSERT INTO toy VALUES ('x', 1)") for _ in range(10)])
            assert await rows(database, "SELECT count(*) FROM toy") == [[14]]

    run(work())


def test_a_copy_that_is_closed_under_a_statement_is_given_back_when_that_ends(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        resource = sql.resource(folder, access="copy")
        async with resource.open(toys()) as database:
            slow = asyncio.ensure_future(database.query(sql.endless, deadline=time.monotonic() + 50, cpu_s=0.1))
            next_one = asyncio.ensure_future(rows(database, "SELECT 1"))
            await asyncio.sleep(0)
        with pytest.raises(ToolFailed, match="within its time"):
            await slow
        with pytest.raises(ResourceError, match="closed"):
            await next_one
        async with resource.open(toys()) as other:
            assert await rows(other, "SELECT count(*) FROM toy") == [[4]]

    run(work())


def test_rows_and_their_size_are_capped_while_they_are_fetched(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        async with sql.resource(folder).open(toys()) as database:
            until = time.monotonic() + 30
            found = await database.query(sql.series, deadline=until, max_rows=10)
            assert (len(found.rows), found.truncated) == (10, True)
            found = await database.query(sql.series, deadline=until, max_size=1_000)
            assert (10 < len(found.rows) < 300, found.truncated) == (True, True)

    run(work())


def test_a_read_only_database_says_which_version_it_is_and_a_copy_does_not(sql: Sql, folder: Path) -> None:
    async def work() -> None:
        async with sql.resource(folder).open(toys()) as one, sql.resource(folder).open(toys()) as same:
            assert one.version is not None
            assert one.version == same.version
            assert isinstance(hash(one.version), int)
        async with sql.resource(folder, access="copy").open(toys()) as copy:
            assert copy.version is None

    run(work())
