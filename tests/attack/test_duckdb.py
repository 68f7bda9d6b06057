"""What a policy that writes SQL for DuckDB cannot do: hold the trainer, go on after its end, touch an episode."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql import Rows
from rlenv.resources.sql._duckdb_engine import _convert_error
from rlenv.resources.sql.duckdb import workers
from rlenv.resources.sql.resource import Database
from tests.resources.sql.engines import DUCKDB, at_work, needs_duckdb

pytestmark = needs_duckdb

TOO_MUCH = {
    "a join without an end": DUCKDB.endless,
    "a recursion without an end": (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    ),
    "a distance inside one call": "SELECT levenshtein(repeat('a', 60000), repeat('b', 60000))",
    "a sleep": "SELECT sleep_ms(100000)",
    "a sleep by another name": "SELECT * FROM query('SELECT sl' || 'eep_ms(100000)')",
    "lists in lists": "SELECT " + "[" * 900 + "1" + "]" * 900,
    "parentheses": "SELECT " + "(" * 40_000 + "1" + ")" * 40_000,
    "names that double": (
        "WITH a0(x) AS (SELECT b FROM t), "
        + ", ".join(f"a{i}(x) AS (SELECT p.x FROM a{i - 1} p, a{i - 1} q)" for i in range(1, 16))
        + " SELECT x FROM a15 LIMIT 1"
    ),
    "a list of 100 million": "SELECT range(100000000)",
    "a text of more than memory": "SELECT string_agg(repeat('a', 1000), '') FROM range(10000000)",
    "5,000 columns": "SELECT " + ", ".join(["1"] * 5_000),
}
FAULTS = {
    "no file": "SELECT * FROM read_csv([])",
    "no parquet file": "SELECT * FROM parquet_file_metadata([])",
    "a broken variant": "SELECT variant_bytes_to_variant('')",
    "an address": "SELECT * FROM arrow_scan(1, 2, 3)",
    "a quoted address": 'SELECT * FROM "arrow_scan"(1, 2, 3)',
    "an address in Python": "SELECT * FROM python_map_function(1)",
    "a variable of the program": "SELECT * FROM asked",
    "the engine's log": "SELECT * FROM enable_logging()",
    "what others logged": "SELECT * FROM duckdb_logs()",
    "a setting that is explained": "EXPLAIN ANALYZE SET threads = 8",
    "a copy that is explained": "EXPLAIN ANALYZE COPY t TO '{folder}/out.csv'",
    "a secret that is explained": "EXPLAIN (ANALYZE, FORMAT json) CREATE SECRET s (TYPE s3)",
    "a temporary table": "CREATE TEMP TABLE u (a INT)",
    "a temporary macro": "CREATE /* x */ TEMP MACRO m(a) AS a",
    "half a character": "SELECT '\udcff'",
    "comments in front of an explanation": "/**/" * 60 + ";EXPLAIN SELECT 1",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DUCKDB.make(tmp_path / "t.duckdb", "CREATE TABLE t (a INTEGER, b VARCHAR); INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    return tmp_path


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 110))


def compiled(folder: Path, **keys: Any) -> Any:
    return DUCKDB.resource(folder, path="t.duckdb", **keys)


async def ask(database: Database, sql: str, *, cpu_s: float = 30, seconds: float = 100) -> Rows:
    return await database.query(sql, deadline=time.monotonic() + seconds, cpu_s=cpu_s)


async def failure_of(database: Database, sql: str, *, cpu_s: float = 30) -> ToolFailed:
    with pytest.raises(ToolFailed) as failed:
        await ask(database, sql, cpu_s=cpu_s)
    return failed.value


@pytest.mark.slow
@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_statement_that_is_too_much_is_the_policys_failure_and_holds_nobody(folder: Path, what: str) -> None:
    async def work() -> None:
        async with compiled(folder).open(ResourceContext()) as database:
            began = time.thread_time()
            failure = await failure_of(database, TOO_MUCH[what], cpu_s=1)
            assert failure.whose == "policy"
            assert len(failure.text) < 500
            assert time.thread_time() - began < 0.1
            assert (await ask(database, "SELECT count(*) FROM t")).rows == [[2]]

    run(work)


@pytest.mark.slow(but=8)
@pytest.mark.parametrize("access", ["read_only", "copy"])
@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_of_the_engine_is_the_statements_own_and_no_other_episode_sees_it(
    folder: Path, what: str, access: str
) -> None:
    async def work() -> None:
        db = compiled(folder, access=access)
        async with db.open(ResourceContext()) as hostile, db.open(ResourceContext()) as other:
            if access == "copy":
                await ask(hostile, "INSERT INTO t VALUES (3, 'z')")
            failure = await failure_of(hostile, FAULTS[what].replace("{folder}", str(folder)))
            assert failure.whose == "policy"
            assert (await ask(other, "SELECT count(*) FROM t")).rows == [[2]]
            assert (await ask(hostile, "SELECT count(*) FROM t")).rows == [[3 if access == "copy" else 2]]

    run(work)
    assert [path.name for path in folder.iterdir()] == ["t.duckdb"]


NAMED = [
    "SELECT NULL AS {}",
    "SELECT 'a' AS {}",
    "SELECT 7 AS {}",
    "UPDATE t SET b = NULL WHERE a = 1 RETURNING b AS {}",
]


def test_no_name_of_a_column_makes_rows_into_a_number_of_changes(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(ResourceContext()) as database:
            found = [await ask(database, sql.format(name)) for sql in NAMED for name in ('"Count"', '"Success"')]
            assert [one.rows for one in found] == [[[cell]] for cell in (None, "a", 7, None) for _ in range(2)]
            assert (await ask(database, "UPDATE t SET b = 'z'")).changed == 2

    run(work)


@pytest.mark.slow
def test_a_result_is_given_up_to_its_bound(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder).open(ResourceContext()) as database:
            for sql in (
                "SELECT repeat('a', 10000000) FROM range(10)",
                "SELECT encode(repeat('a', 9000000))",
                "SELECT range(3000000)",
                "SELECT repeat('a', 100000) FROM range(1000)",
            ):
                found = await ask(database, sql)
                assert found.truncated
                assert sum(len(str(cell)) for row in found.rows for cell in row) <= 8_000_000

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "reason"), [(signal.SIGSTOP, "stalled"), (signal.SIGKILL, "worker")])
def test_a_process_that_is_stopped_or_killed_from_outside_takes_nothing_with_it(
    folder: Path, number: signal.Signals, reason: str
) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(ResourceContext()) as database:
            await ask(database, "INSERT INTO t VALUES (3, 'z')")
            slow = asyncio.ensure_future(
                ask(database, f"INSERT INTO t {DUCKDB.endless.replace('*)', '*), NULL')}", seconds=5)
            )
            busy = await at_work(workers)
            os.kill(busy, number)
            with pytest.raises(ToolFailed) as failed:
                await slow
            assert (failed.value.reason, failed.value.whose) == (reason, "infrastructure")
            assert (await ask(database, "SELECT count(*) FROM t")).rows == [[3]]

    run(work)


async def copy_of(database: Database) -> Path:
    (row,) = (await ask(database, "SELECT path FROM duckdb_databases() WHERE path IS NOT NULL")).rows
    return Path(row[0])


def test_what_a_statement_leaves_is_written_at_its_end_and_not_in_the_time_of_whoever_is_next(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(ResourceContext()) as database:
            for sql in ("INSERT INTO t VALUES (3, 'z')", "CREATE TABLE u AS SELECT [[[1]]] AS x", "DROP TABLE t"):
                await ask(database, sql)
                file = await copy_of(database)
                log = file.with_name(f"{file.name}.wal")
                assert not log.exists() or not log.stat().st_size

    run(work)


KILLED = "import duckdb, os, sys\nraw = duckdb.connect(sys.argv[1])\nraw.execute(sys.argv[2])\nos._exit(0)"


def test_a_copy_that_its_own_statements_keep_from_being_opened_is_no_loss_of_the_infrastructures(folder: Path) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(ResourceContext()) as database:
            file = await copy_of(database)
            await workers.pool.aclose()
            # The engine cannot repeat this from its log.
            change = "ALTER TABLE t ALTER a TYPE DOUBLE USING (random())"
            argv = [sys.executable, "-c", KILLED, str(file), change]
            await asyncio.to_thread(subprocess.run, argv, check=True)
            assert (await failure_of(database, "SELECT 1")).whose == "policy"

    run(work)


COMMIT = "TransactionContext Error: Failed to commit: "
CHECKPOINT = "Failed to create checkpoint because of error: "
DURABLE = "Transaction COMMIT succeeded and is durable, but the autocheckpoint failed. Reopen the database to recover. "


@pytest.mark.parametrize(
    ("kind", "before"),
    [
        ("TransactionException", COMMIT),
        ("FatalException", f"FATAL Error: {CHECKPOINT}"),
        ("FatalException", f"FATAL Error: {DURABLE}{CHECKPOINT}"),
    ],
)
def test_a_full_disk_at_the_end_of_a_transaction_is_nobodys_statement(kind: str, before: str) -> None:
    import duckdb

    for number, expected in ((errno.ENOSPC, ResourceError), (errno.EIO, ResourceError), (errno.EFBIG, ToolFailed)):
        said = f'{before}Could not write file "/copy/t.duckdb.wal": {os.strerror(number)}'
        assert type(_convert_error(getattr(duckdb, kind)(said), "/copy/t.duckdb")) is expected


@pytest.mark.parametrize("sql", ["SELECT error('{}')", "INSERT INTO u VALUES ('{}')"])
def test_no_text_of_a_statement_is_taken_for_a_full_disk(folder: Path, sql: str) -> None:
    async def work() -> None:
        async with compiled(folder, access="copy").open(ResourceContext()) as database:
            said = f'Could not write file "{await copy_of(database)}": {os.strerror(errno.ENOSPC)}'
            await ask(database, "CREATE TABLE u (x VARCHAR PRIMARY KEY)")
            await ask(database, f"INSERT INTO u VALUES ('{said}')")
            assert (await failure_of(database, sql.format(said))).whose == "policy"

    run(work)
