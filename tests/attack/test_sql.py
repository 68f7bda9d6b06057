"""What a policy that writes SQL cannot do: hold the trainer, go on after its end, void a reward, touch an episode."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import ToolFailed
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql import Rows, cell_size
from rlenv.resources.sql.resource import Database
from rlenv.resources.sql.sqlite import workers
from tests.resources.sql.engines import SQLITE, at_work, cpu_of

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"
LARGE = "replace(hex(zeroblob(1000000)), '0', 'a')"
DOUBLING = (
    "WITH a0(x) AS (SELECT b FROM t), "
    + ", ".join(f"a{level}(x) AS (SELECT x || x FROM a{level - 1})" for level in range(1, 25))
    + " SELECT x FROM a24"
)
NESTED = "SELECT b AS x FROM t"
for _ in range(7):
    NESTED = f"SELECT {'x || ' * 11} x AS x FROM ({NESTED})"
JOINED = ", ".join(f"t a{number}" for number in range(64))

HOSTILE = {
    "a recursion without an end": ENDLESS,
    "a name that doubles 24 times": DOUBLING,
    "subqueries that double": NESTED,
    "a join of 64 tables": f"SELECT count(*) FROM {JOINED}",
    "a search inside one call": "SELECT instr(zeroblob(9000000), cast(zeroblob(4500000) || x'01' AS blob))",
    "a pattern of many parts": f"SELECT {LARGE} LIKE '{'%a' * 100}%b'",
    "a cell of 9 MB": "SELECT zeroblob(9000000)",
    "many cells of 8 MB": "SELECT " + ", ".join(["zeroblob(8000000)"] * 100),
    "text that grows": "SELECT " + "hex(" * 8 + "zeroblob(100000)" + ")" * 8,
    "a text padded to 9 MB": "SELECT printf('%.*c', 9000000, 'x')",
    "JSON of two million items": (
        "SELECT count(*) FROM json_each('[' || replace(hex(zeroblob(1000000)), '0', '1,') || '1]')"
    ),
    "a sort of more than memory": (f"{ENDLESS.replace('count(*)', 'n, randomblob(100000) AS b')} ORDER BY b"),
    "an aggregate of more than memory": ENDLESS.replace("count(*)", "group_concat(randomblob(100000))"),
    "control characters": "SELECT replace(hex(zeroblob(1000000)), '0', char(1)) FROM t",
    "2,000 columns": "SELECT " + ", ".join(["1"] * 2_000),
    "a column's name of 90 kB": 'SELECT 1 AS "' + "x" * 90_000 + '"',
    "a list of 15,000": "SELECT a FROM t WHERE a IN (" + ", ".join(map(str, range(15_000))) + ")",
    "20,000 rows written out": "VALUES " + ", ".join(["(1)"] * 20_000),
    "a statement of a megabyte": "SELECT '" + "x" * 1_000_000 + "'",
    "parentheses": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "half a character": "SELECT '\udcff'",
    "a null character": "SELECT 'a\0b'",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as raw:
        raw.executescript("CREATE TABLE t (a PRIMARY KEY, b); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z');")
    return tmp_path


def run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(work(), 100))


def opened(folder: Path, **keys: Any) -> Any:
    given: dict[str, Any] = {"path": "t.sqlite"} if "init" not in keys else {}
    return SQLITE.resource(folder, **given, **keys).open(ResourceContext())


COPIES = [{"access": "copy"}, {"access": "copy", "isolation": "savepoint"}]
ALL = [{}, *COPIES]


async def ask(database: Database, sql: str, *, cpu_s: float = 20, seconds: float = 60, **keys: Any) -> list[list[Any]]:
    return (await database.query(sql, deadline=time.monotonic() + seconds, cpu_s=cpu_s, **keys)).rows


async def outcome(database: Database, sql: str) -> Rows | ToolFailed:
    try:
        return await database.query(sql, deadline=time.monotonic() + 60, cpu_s=0.2)
    except ToolFailed as failure:
        return failure


@pytest.mark.slow
@pytest.mark.parametrize("keys", ALL, ids=["shared", "copy", "savepoint"])
@pytest.mark.parametrize("what", HOSTILE)
def test_no_statement_holds_the_loop_or_voids_the_episode(folder: Path, what: str, keys: dict[str, Any]) -> None:
    async def work() -> None:
        async with opened(folder, **keys) as database:
            await ask(database, "SELECT a FROM t WHERE b LIKE 'x'")  # so that a process is there
            began = time.thread_time()
            found = await outcome(database, HOSTILE[what])
            if isinstance(found, ToolFailed):
                assert found.whose == "policy"
                assert len(found.text) < 500
            else:
                assert sum(cell_size(cell) for row in found.rows for cell in row) <= 8_100_000
            # A result of 8 MB takes some of it.
            assert time.thread_time() - began < 0.1
            assert await ask(database, "SELECT count(*) FROM t") == [[3]]

    run(work)


CELL = "%J" * 32_500
LONG = {
    "a form of 65,000 characters, in each row": (
        [f"INSERT INTO t VALUES (4, '{CELL}')", *(f"INSERT INTO t SELECT a + {2**n}, b FROM t" for n in range(2, 7))],
        f"SELECT {', '.join(f'length(strftime(b, {number}))' for number in range(35))} FROM t",
    ),
    "a long change of each of 9,000 rows": (
        ["INSERT INTO t WITH RECURSIVE r(n) AS (SELECT 4 UNION ALL SELECT n + 1 FROM r LIMIT 9000) SELECT n, n FROM r"],
        f"UPDATE t SET b = {'+'.join(f'round(b,{number % 10})' for number in range(85))}",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("keys", COPIES, ids=["copy", "savepoint"])
@pytest.mark.parametrize("what", LONG)
def test_no_statement_over_what_the_policy_has_written_holds_the_loop(
    folder: Path, what: str, keys: dict[str, Any]
) -> None:
    async def work() -> None:
        async with opened(folder, **keys) as database:
            for sql in LONG[what][0]:
                await ask(database, sql)
            began = time.thread_time()
            await outcome(database, LONG[what][1])
            assert time.thread_time() - began < 0.05

    run(work)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("sql", [HOSTILE["a search inside one call"], DOUBLING, ENDLESS])
def test_nothing_of_a_statement_goes_on_after_its_end(folder: Path, sql: str) -> None:
    async def work() -> None:
        async with opened(folder) as database:
            with pytest.raises(ToolFailed) as failed:
                await ask(database, sql, cpu_s=0.05)
            assert (failed.value.reason, failed.value.whose) == ("timeout", "policy")
            for pid in workers.pool.processes:
                before = cpu_of(pid)
                for _ in range(3):
                    await ask(database, "SELECT 1 LIKE 1")
                # A process that starts, or answers, takes little.
                assert cpu_of(pid) - before < 2

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGSTOP, "stalled"), (signal.SIGKILL, "worker"), (signal.SIGTERM, "worker")]
)
def test_a_process_that_is_stopped_or_killed_from_outside_is_not_the_policys_failure(
    folder: Path, number: signal.Signals, reason: str
) -> None:
    async def work() -> None:
        async with opened(folder, access="copy") as database:
            await ask(database, "INSERT INTO t VALUES (4, 'w')")
            await ask(database, "SELECT a FROM t WHERE b LIKE 'x'")
            slow = asyncio.ensure_future(ask(database, ENDLESS, cpu_s=50, seconds=4))
            pid = await at_work(workers)
            os.kill(pid, number)
            with pytest.raises(ToolFailed) as failed:
                await slow
            assert (failed.value.reason, failed.value.whose) == (reason, "infrastructure")
            assert failed.value.retryable
            assert gone(pid) or pid not in workers.pool.processes
            assert await ask(database, "SELECT count(*) FROM t WHERE b LIKE '_'") == [[4]]

    run(work)


def test_a_statement_that_is_given_up_is_killed(folder: Path) -> None:
    async def work() -> None:
        async with opened(folder) as database:
            await ask(database, "SELECT 1 LIKE 1")
            slow = asyncio.ensure_future(ask(database, ENDLESS, cpu_s=50))
            pid = await at_work(workers)
            slow.cancel()
            await asyncio.wait((slow,))
            assert slow.cancelled()
            assert pid not in workers.pool.processes
            assert await ask(database, "SELECT count(*) FROM t") == [[3]]

    run(work)


ROLLING_BACK = {
    "INSERT OR ROLLBACK": ["INSERT OR ROLLBACK INTO t VALUES (1, 1)"],
    "UPDATE OR ROLLBACK": ["UPDATE OR ROLLBACK t SET a = 1"],
    "a trigger": [
        "CREATE TRIGGER g BEFORE INSERT ON t BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "INSERT INTO t VALUES (5, 5)",
    ],
    "a constraint": ["CREATE TABLE u (a UNIQUE ON CONFLICT ROLLBACK)", "INSERT INTO u VALUES (1), (1)"],
    "one that is stopped": [f"INSERT INTO t {ENDLESS.replace('count(*)', 'n, n')}"],
    "one that grows": [f"CREATE TABLE u AS {ENDLESS.replace('count(*)', 'zeroblob(1000000)')}"],
    "columns that cannot be given": [f"INSERT INTO t VALUES (9, 9) RETURNING {', '.join(['a'] * 300)}"],
    "a check of one long call": [
        "CREATE TABLE u (a CHECK (instr(zeroblob(9000000), zeroblob(4500000) || x'01') = 0))",
        "INSERT INTO u VALUES (1)",
    ],
}


@pytest.mark.slow(but=5)
@pytest.mark.parametrize("keys", COPIES, ids=["copy", "savepoint"])
@pytest.mark.parametrize("what", ROLLING_BACK)
def test_whatever_ends_a_statement_the_copy_is_as_it_was_before_it(
    folder: Path, what: str, keys: dict[str, Any]
) -> None:
    async def work() -> None:
        async with opened(folder, **keys) as database:
            await ask(database, "INSERT INTO t VALUES (4, 'w')")
            await ask(database, "UPDATE t SET b = 'v' WHERE a = 4")
            *before, last = ROLLING_BACK[what]
            for sql in before:
                await ask(database, sql)
            with pytest.raises(ToolFailed) as failed:
                await ask(database, last, cpu_s=0.2)
            assert failed.value.whose == "policy"
            assert await ask(database, "SELECT a, b FROM t ORDER BY a") == [[1, "x"], [2, "y"], [3, "z"], [4, "v"]]
            assert await ask(database, "SELECT count(*) FROM t WHERE b LIKE '_'") == [[4]]

    run(work)


@pytest.mark.parametrize("keys", COPIES, ids=["copy", "savepoint"])
def test_an_authors_schema_that_rolls_back_takes_nothing_with_it(folder: Path, keys: dict[str, Any]) -> None:
    (folder / "init.sql").write_text("CREATE TABLE t (a UNIQUE ON CONFLICT ROLLBACK); INSERT INTO t VALUES (1);")

    async def work() -> None:
        async with opened(folder, init="init.sql", **keys) as database:
            await ask(database, "INSERT INTO t VALUES (2)")
            with pytest.raises(ToolFailed, match="UNIQUE"):
                await ask(database, "INSERT INTO t VALUES (3), (1)")
            assert await ask(database, "SELECT a FROM t ORDER BY a") == [[1], [2]]

    run(work)


@pytest.mark.parametrize("keys", COPIES, ids=["copy", "savepoint"])
def test_views_and_triggers_of_a_policy_never_run_on_the_loop(folder: Path, keys: dict[str, Any]) -> None:
    async def work() -> None:
        async with opened(folder, **keys) as database:
            await ask(database, "CREATE VIEW v0 AS SELECT a FROM t")
            for level in range(1, 26):
                await ask(database, f"CREATE VIEW v{level} AS SELECT p.a FROM v{level - 1} p, v{level - 1} q")
            began = time.thread_time()
            with pytest.raises(ToolFailed) as failed:
                await ask(database, "SELECT a FROM v25 LIMIT 1", cpu_s=0.2)
            assert failed.value.whose == "policy"
            assert time.thread_time() - began < 0.05
            assert await ask(database, "SELECT count(*) FROM t") == [[3]]

    run(work)


def test_what_the_loop_and_a_process_write_is_seen_by_both(folder: Path) -> None:
    async def work() -> None:
        for keys in COPIES:
            async with opened(folder, **keys) as database:
                await ask(database, "INSERT INTO t VALUES (4, 'w')")
                await ask(database, "INSERT INTO t SELECT a + 10, b FROM t")
                state = "SELECT last_insert_rowid(), changes(), count(*) FROM t"
                assert await ask(database, state) == [[8, 4, 8]]
                assert await ask(database, state + " WHERE b LIKE '_'") == [[8, 4, 8]]
                await ask(database, "DELETE FROM t WHERE a > 12")
                assert await ask(database, state) == [[8, 2, 6]]
                await ask(database, "CREATE TABLE u (a)")
                await ask(database, "INSERT INTO u VALUES (7)")
                assert await ask(database, "SELECT a, last_insert_rowid(), changes() FROM u") == [[7, 1, 1]]

    run(work)


def test_many_episodes_with_slow_statements_leave_time_for_a_rewards_statement(folder: Path) -> None:
    async def work() -> None:
        async with opened(folder) as database:
            slow = [asyncio.ensure_future(ask(database, ENDLESS, cpu_s=0.1)) for _ in range(12)]
            await asyncio.sleep(0)
            assert await ask(database, "SELECT count(*) FROM t WHERE b LIKE '_'", is_urgent=True) == [[3]]
            assert not all(one.done() for one in slow)
            for ended in await asyncio.gather(*slow, return_exceptions=True):
                assert isinstance(ended, ToolFailed)
                assert ended.whose == "policy"

    run(work)


@pytest.mark.slow
def test_a_statement_that_finds_no_process_in_its_time_is_not_the_policys_failure(folder: Path) -> None:
    async def work() -> None:
        async with opened(folder) as database:
            busy = [
                asyncio.ensure_future(ask(database, ENDLESS, cpu_s=50, seconds=50)) for _ in range(workers.pool.limit)
            ]
            await asyncio.sleep(0)
            with pytest.raises(ToolFailed) as failed:
                await ask(database, "SELECT 1 LIKE 1", seconds=0.1)
            assert (failed.value.reason, failed.value.whose) == ("busy", "infrastructure")
            for one in busy:
                one.cancel()
            await asyncio.wait(busy)
            assert await ask(database, "SELECT 1 LIKE 1") == [[1]]

    run(work)


def check_process(pid: int) -> None:
    assert b"SOME_SECRET" not in Path(f"/proc/{pid}/environ").read_bytes()
    targets = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    assert sum(target.startswith("socket:") for target in targets) == 1
    assert not [target for target in targets if target.endswith("held")]


def test_a_process_has_nothing_of_the_trainers_but_the_statement(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "hidden")
    held = os.open(folder / "held", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(held, True)

    async def work() -> None:
        workers.pool.close()
        async with opened(folder) as database:
            await ask(database, "SELECT 1 LIKE 1")
        for pid in workers.pool.processes:
            check_process(pid)

    try:
        run(work)
    finally:
        os.close(held)


def test_a_process_that_went_home_for_want_of_work_is_replaced(folder: Path) -> None:
    async def work() -> None:
        async with opened(folder) as database:
            await ask(database, "SELECT 1 LIKE 1")
            for worker in list(workers.pool._all):
                worker.socket.shutdown(socket.SHUT_WR)  # what it sees when nobody needs it any more
                worker.process.wait()
                assert worker.process.returncode == 0
            assert await ask(database, "SELECT 1 LIKE 1") == [[1]]

    run(work)


def test_a_child_of_the_trainer_has_processes_of_its_own(folder: Path) -> None:
    async def work() -> set[int]:
        async with opened(folder) as database:
            assert await ask(database, "SELECT 1 LIKE 1") == [[1]]
        return set(workers.pool.processes)

    ours = run(work)
    child = os.fork()
    if child == 0:
        try:
            theirs = run(work)
            workers.pool.close()
            os._exit(0 if theirs and not theirs & ours else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(work) == ours
