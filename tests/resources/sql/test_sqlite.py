"""What is SQLite's own: scripts, write-ahead logs, copies that are kept."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ToolFailed, UsageError
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql import read, written
from rlenv.resources.sql._sqlite_connection import SqliteConnection
from rlenv.resources.sql.resource import StatementRequest, WorkerAnswer, limits_for
from rlenv.resources.sql.sqlite import SqliteCopy
from tests.resources.sql.engines import SQLITE, rows, run, toys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    SQLITE.make(tmp_path / "toys.sqlite", SQLITE.toys)
    (tmp_path / "init.sql").write_text("CREATE TABLE made (a); INSERT INTO made VALUES (1);", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_database_can_be_made_from_a_script(folder: Path, access: str) -> None:
    async def work() -> None:
        async with SQLITE.resource(folder, init="init.sql", access=access).open(ResourceContext()) as database:
            assert await rows(database, "SELECT a FROM made") == [[1]]
            if access == "read_only":
                with pytest.raises(ToolFailed, match="read only"):
                    await rows(database, "DELETE FROM made")

    run(work())


def test_a_database_with_a_write_ahead_log_is_read_with_it(folder: Path) -> None:
    async def work() -> None:
        async with SQLITE.resource(folder).open(toys(db="logged")) as database:
            assert await rows(database, "SELECT a FROM t") == [[1]]

    with closing(sqlite3.connect(folder / "logged.sqlite")) as raw:
        raw.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t (a); INSERT INTO t VALUES (1)"
        )
        run(work())


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "a.sqlite", "init": "a.sql"}, "either path or init"),
        ({"path": None}, "either path or init"),
        ({"isolation": "savepoint"}, "write access: copy"),
    ],
)
def test_an_authors_mistake_says_what_to_change(folder: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SQLITE.resource(folder, **keys)


def test_a_file_that_changed_has_another_version(folder: Path) -> None:
    async def work() -> None:
        async with SQLITE.resource(folder).open(toys()) as one:
            before = one.version
        SQLITE.make(folder / "toys.sqlite", "INSERT INTO toy VALUES ('boat', 1)")
        async with SQLITE.resource(folder).open(toys()) as changed:
            assert changed.version != before

    run(work())


def test_a_kept_copy_is_as_new_after_each_episode(folder: Path) -> None:
    async def work() -> None:
        resource = SQLITE.resource(folder, access="copy", isolation="savepoint")
        state = (
            "SELECT (SELECT count(*) FROM toy), (SELECT count(*) FROM sqlite_master), last_insert_rowid(), changes()"
        )
        for _ in range(3):
            async with resource.open(toys()) as database:
                assert await rows(database, state) == [[4, 3, 0, 0]]
                await rows(database, "INSERT INTO toy VALUES ('boat', 9)")
                await rows(database, "CREATE TABLE more (a)")
                await rows(database, "DROP VIEW cheap")
                assert await rows(database, "SELECT count(*) FROM toy") == [[5]]
        assert resource.source(toys()).has_idle

    run(work())


@pytest.mark.parametrize("isolation", ["savepoint", "deserialize"])
def test_a_copy_goes_on_as_it_was_after_a_write_that_is_stopped(folder: Path, isolation: str) -> None:
    async def work() -> None:
        resource = SQLITE.resource(folder, access="copy", isolation=isolation)
        async with resource.open(toys()) as database:
            await rows(database, "DELETE FROM toy WHERE name <> 'ball'")
            endless = f"INSERT INTO toy {SQLITE.series.replace('SELECT n FROM', 'SELECT n, n FROM')}"
            with pytest.raises(ToolFailed, match="within its time"):
                await database.query(endless, deadline=time.monotonic() + 50, cpu_s=0.05)
            assert await rows(database, "SELECT name FROM toy") == [["ball"]]
            await rows(database, "INSERT INTO toy VALUES ('boat', 1)")
            assert await rows(database, "SELECT count(*) FROM toy") == [[2]]
        async with resource.open(toys()) as database:
            assert await rows(database, "SELECT count(*) FROM toy") == [[4]]

    run(work())


class Workers:
    """Workers that give back a copy of what they get, and remember what they were asked."""

    def __init__(self) -> None:
        self.requests: list[StatementRequest] = []
        self.asked_again = asyncio.Event()

    async def run(self, request: StatementRequest) -> WorkerAnswer:
        self.requests.append(request)
        assert request.image is not None
        async with request.image() as fd:
            image = read(fd)
        told = {"columns": [], "rows": [], "truncated": 0, "changed": 0}
        if len(self.requests) == 2:
            self.asked_again.set()
        told |= {"rowid": 0, "changes": 0, "has_new_schema": False}
        return WorkerAnswer(told, written(image))


def test_what_a_worker_wrote_for_a_cancelled_statement_is_never_taken_for_the_copy(folder: Path) -> None:
    """A worker keeps what it wrote, under the key that the copy would have had then."""
    with closing(sqlite3.connect(folder / "toys.sqlite")) as raw:
        raw.execute("CREATE TABLE pad (x)")
        raw.execute("INSERT INTO pad VALUES (zeroblob(2000000))")  # what is opened in a thread can be cancelled
        raw.commit()

    async def work() -> None:
        source = SQLITE.resource(folder, access="copy").source(toys())
        workers: Any = Workers()
        copy = SqliteCopy(source, workers)
        limits = limits_for(time.monotonic() + 50, cpu_s=None, max_rows=10, max_size=1000, is_urgent=False)
        await copy.run("CREATE TABLE more (a)", limits)
        writing = asyncio.ensure_future(copy.run("DROP TABLE toy", limits))
        await workers.asked_again.wait()
        writing.cancel()
        await asyncio.wait((writing,))
        assert writing.cancelled()
        await copy.run("INSERT INTO toy VALUES ('boat', 1)", limits)
        await copy.run("DROP TABLE more", limits)
        await copy.close()
        cancelled, last = workers.requests[1], workers.requests[-1]
        assert last.key != cancelled.next_key
        assert len({one.next_key for one in workers.requests}) == len(workers.requests)

    run(work())


def test_a_connection_says_what_its_last_statement_did() -> None:
    connection = SqliteConnection(sqlite3.connect(":memory:"), may_write=True)
    for sql, did in (
        ("CREATE TABLE t (a)", (True, True)),
        ("INSERT INTO t VALUES (1)", (True, False)),
        ("SELECT a FROM t", (False, False)),
        ("CREATE INDEX i ON t (a)", (True, True)),
        ("CREATE TABLE u AS SELECT a FROM t", (True, True)),
        ("UPDATE t SET a = 2", (True, False)),
        ("DROP TABLE u", (True, True)),
        ("DELETE FROM t", (True, False)),
    ):
        connection.run(sql, until=math.inf, max_rows=1)
        assert (connection.has_written, connection.has_new_schema) == did, sql
    connection.close()


@pytest.mark.parametrize(("pages", "fits"), [(0.5, False), (1, False), (40, True)])
def test_a_database_grows_up_to_its_bound_of_at_least_a_page(pages: float, fits: bool) -> None:
    raw = sqlite3.connect(":memory:")
    page = raw.execute("PRAGMA page_size").fetchone()[0]
    connection = SqliteConnection(raw, may_write=True, max_bytes=int(pages * page))

    def fill() -> None:
        for sql in ("CREATE TABLE t (a)", f"INSERT INTO t VALUES ('{'x' * page * 2}')"):
            connection.run(sql, until=math.inf, max_rows=1)

    if fits:
        fill()
    else:
        with pytest.raises(ToolFailed, match="larger than it may"):
            fill()
    connection.close()


def test_a_process_may_take_longer_than_whoever_asked_waits() -> None:
    """So that its own answer says what a statement took, where both have the same limit."""
    limits = limits_for(time.monotonic() + 8, cpu_s=None, max_rows=10, max_size=1000)
    asked = StatementRequest("SELECT 1", limits, {"path": "a.sqlite"}, key="k", next_key="n").as_json(2.0)
    assert asked["wall_s"] > 2.0
    assert asked["cpu_s"] == pytest.approx(2.0, abs=0.1)
    assert (asked["path"], asked["sql"], asked["key"], asked["next"]) == ("a.sqlite", "SELECT 1", "k", "n")
    assert (asked["max_rows"], asked["max_size"]) == (10, 1000)
