"""The kinds of databases, with a small database of each, for tests that hold both to one contract."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sqlite3
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from rlenv.language.kinds import CompileContext, Kind
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql.duckdb import KIND as DUCKDB_KIND
from rlenv.resources.sql.resource import Database, SqlResource, SqlWorkers
from rlenv.resources.sql.sqlite import KIND as SQLITE_KIND

_TOYS: Final = """
CREATE TABLE number (n INTEGER);
INSERT INTO number VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10);
CREATE TABLE toy (name VARCHAR, price DOUBLE);
INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL), ('red drum', 9), ('doll', 4);
CREATE VIEW cheap AS SELECT name FROM toy WHERE price < 3;
"""

T = TypeVar("T")


@dataclass(frozen=True)
class Sql:
    """One kind of database; `name` ends its files too."""

    name: str
    kind: Kind
    make: Callable[[Path, str], None]
    """Makes a file by a script."""
    toys: str
    """The script of a small database."""
    schema: str
    """Of the toys."""
    series: str
    """A SELECT of the numbers from 1 on, whose column is n and which has no end."""
    endless: str
    """A SELECT without an end, of one number."""

    def resource(self, folder: Path, **keys: Any) -> SqlResource:
        """A compiled entry; the path is the toys' unless it is given."""
        given: dict[str, Any] = {} if keys.keys() & {"path", "init"} else {"path": f"{{{{ task.db }}}}.{self.name}"}
        spec = self.kind.spec.model_validate({"kind": self.name, **given, **keys})
        resource = self.kind.factory("db", spec, CompileContext(base=folder))
        assert isinstance(resource, SqlResource)
        return resource


def _sqlite(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(script)


def _duckdb(path: Path, script: str) -> None:
    with importlib.import_module("duckdb").connect(str(path)) as raw:
        raw.execute(script)


_RECURSION: Final = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"
SQLITE: Final = Sql(
    name="sqlite",
    kind=SQLITE_KIND,
    make=_sqlite,
    toys=_TOYS,
    schema=(
        "CREATE TABLE number (n INTEGER);\nCREATE TABLE toy (name VARCHAR, price DOUBLE);\n"
        "CREATE VIEW cheap AS SELECT name FROM toy WHERE price < 3;"
    ),
    series=f"{_RECURSION} SELECT n FROM r",
    endless=f"{_RECURSION} SELECT count(*) FROM r",
)
DUCKDB: Final = Sql(
    name="duckdb",
    kind=DUCKDB_KIND,
    make=_duckdb,
    toys=_TOYS + "CREATE SEQUENCE counter;",
    schema=(
        'CREATE TABLE number(n INTEGER);\nCREATE TABLE toy("name" VARCHAR, price DOUBLE);\n'
        'CREATE VIEW cheap AS SELECT "name" FROM toy WHERE (price < 3);'
    ),
    series="SELECT range AS n FROM range(1, 1000000000000)",
    endless="SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range + b.range = -1",
)
needs_duckdb: Final = pytest.mark.skipif(
    importlib.util.find_spec("duckdb") is None, reason="the extra `duckdb` is not installed"
)
KINDS: Final = [pytest.param(SQLITE, id="sqlite"), pytest.param(DUCKDB, id="duckdb", marks=needs_duckdb)]


def run(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, within a minute."""
    return asyncio.run(asyncio.wait_for(work, 60))


def toys(**task: Any) -> ResourceContext:
    """A context whose task names the toys."""
    return ResourceContext({"db": "toys", **task})


async def rows(database: Database, sql: str) -> list[list[Any]]:
    """The rows of a statement that has time."""
    return (await database.query(sql, deadline=time.monotonic() + 30)).rows


def cpu_of(pid: int) -> float:
    """Processor seconds that a process has used; 0.0 once it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


async def at_work(workers: SqlWorkers) -> int:
    """The id of the process that uses processor time."""
    before = {pid: cpu_of(pid) for pid in workers.pool.processes}
    while True:
        await asyncio.sleep(0.01)
        for pid in workers.pool.processes:
            if pid in before and cpu_of(pid) - before[pid] > 0.05:
                return pid
