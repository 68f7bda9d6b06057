"""One statement on a database: what the model sees, what rewards see, what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlenv.errors import UsageError
from rlenv.messages import ToolResult
from rlenv.resources.base import ResourceContext
from rlenv.resources.sqlite import KIND as SQLITE
from rlenv.resources.sqlite import SqliteResource, SqliteSpec
from rlenv.testing.tools import call, check_tool, context
from rlenv.tools.base import CompileContext, Tool, ToolContext
from rlenv.tools.sql import KIND, SqlSpec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "toys.sqlite")) as raw:
        raw.executescript(
            "CREATE TABLE toy (name TEXT, price REAL);"
            "INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL), ('red drum', 9), ('doll', 4);"
            "CREATE TABLE number (n INTEGER);"
            "INSERT INTO number WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 30) "
            "SELECT n FROM r;"
        )
    return tmp_path


def parts(folder: Path, *, access: str = "read_only", **keys: Any) -> tuple[SqliteResource, Tool]:
    resource = SQLITE.factory(
        "db",
        SqliteSpec(kind="sqlite", path="toys.sqlite", access=access),  # type: ignore[arg-type]
        CompileContext(base=folder),
    )
    spec = SqlSpec(kind="sql", resource="db", **keys)
    (tool,) = KIND.factory("query", spec, CompileContext(base=folder, resources={"db": resource}))
    return resource, tool


def results(folder: Path, *statements: str, seconds: Sequence[float] = (50, 50, 50), **keys: Any) -> list[ToolResult]:
    resource, tool = parts(folder, **keys)

    async def work() -> list[ToolResult]:
        async with resource.open(ResourceContext()) as database:
            return [
                await call(tool, {"sql": sql}, within=context(resources={"db": database}, seconds=most))
                for sql, most in zip(statements, seconds, strict=False)
            ]

    return asyncio.run(asyncio.wait_for(work(), 60))


def one(folder: Path, sql: str, **keys: Any) -> ToolResult:
    (result,) = results(folder, sql, **keys)
    return result


class _Opened:
    """A handle that opens the database for each statement, as check_tool has no episode around its calls."""

    def __init__(self, resource: SqliteResource) -> None:
        self._resource = resource

    async def query(self, sql: str, **limits: Any) -> Any:
        async with self._resource.open(ResourceContext()) as database:
            return await database.query(sql, **limits)


def test_the_sql_tool_keeps_the_laws_of_tools(folder: Path) -> None:
    for access in ("read_only", "copy"):
        resource, tool = parts(folder, access=access)

        def made(resource: Any = resource) -> ToolContext:
            return context(resources={"db": _Opened(resource)})

        check_tool(
            tool,
            good=[
                {"sql": "SELECT * FROM toy"},
                {"sql": "SELECT name FROM toy WHERE name LIKE '%l'"},
                {"sql": "SELECT x'00'"},
            ],
            bad=[{}, {"sql": 1}, {"query": "SELECT 1"}],
            failing=[{"sql": "SELECT nam FROM toy"}, {"sql": ""}, {"sql": "ATTACH 'x' AS y"}],
            make_context=made,
        )


def test_rows_are_shown_one_a_line_under_their_columns(folder: Path) -> None:
    assert one(folder, "SELECT name, price FROM toy LIMIT 2").text == "name | price\nball | 2.5\nkite | NULL"


def test_what_does_not_fit_is_counted_and_rewards_see_all(folder: Path) -> None:
    result = one(folder, "SELECT n FROM number", max_rows=3)
    assert result.text == "n\n1\n2\n3\n(27 more rows)"
    assert result.value == {"columns": ["n"], "rows": [[n] for n in range(1, 31)], "truncated": False}


def test_rows_beyond_the_largest_value_are_marked(folder: Path) -> None:
    sql = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 12000) SELECT n FROM r"
    value: Mapping[str, Any] = one(folder, sql).value
    assert (len(value["rows"]), value["truncated"]) == (10_000, True)


def test_a_statement_that_finds_nothing_to_do_is_no_failure(folder: Path) -> None:
    assert one(folder, "DROP TABLE IF EXISTS gone", access="copy").text == "(0 rows changed)"
    assert one(folder, "-- nothing\n /* at all */ ;", access="copy").outcome == "failed"


def test_no_rows_and_changes_are_said(folder: Path) -> None:
    assert one(folder, "SELECT name FROM toy WHERE 0").text == "name\n(no rows)"
    assert one(folder, "DELETE FROM toy WHERE price > 3", access="copy").text == "(2 rows changed)"


def test_odd_cells_are_shown_and_kept_as_json(folder: Path) -> None:
    result = one(folder, "SELECT x'00ff', 9223372036854775807, CAST(x'ff41' AS TEXT), 'a\nb', NULL")
    assert result.value["rows"] == [["x'00FF'", 9223372036854775807, "�A", "a\nb", None]]
    assert result.text.endswith("x'00FF' | 9223372036854775807 | �A | a\\nb | NULL")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM toy",
        "UPDATE toy SET price = 0",
        "INSERT INTO toy VALUES ('x', 1)",
        "DROP TABLE toy",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "ATTACH 'other.sqlite' AS other",
        "VACUUM INTO 'other.sqlite'",
        "PRAGMA query_only = 0",
        "PRAGMA writable_schema = 1",
        "PRAGMA database_list",
        "BEGIN",
        "SAVEPOINT s",
        "SELECT load_extension('x')",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "UPDATE sqlite_master SET sql = 'x'",
        "WITH a AS (SELECT 1) DELETE FROM toy",
        "EXPLAIN DELETE FROM toy",
        "/* SELECT */ DELETE FROM toy",
        "SELECT 1; DELETE FROM toy",
    ],
)
def test_a_read_only_database_is_only_read(folder: Path, sql: str) -> None:
    before = (folder / "toys.sqlite").read_bytes()
    first, then = results(folder, sql, "SELECT count(*) FROM toy")
    assert first.outcome == "failed"
    assert then.text == "count(*)\n4"
    assert (folder / "toys.sqlite").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["toys.sqlite"]


@pytest.mark.parametrize(
    "sql", ["ATTACH 'other.sqlite' AS o", "VACUUM INTO 'o.sqlite'", "SELECT load_extension('x')", "BEGIN"]
)
def test_a_copy_can_be_written_but_reaches_no_file(folder: Path, sql: str) -> None:
    assert one(folder, sql, access="copy").outcome == "failed"
    assert [path.name for path in folder.iterdir()] == ["toys.sqlite"]


def test_reading_the_structure_is_allowed(folder: Path) -> None:
    for sql in ("PRAGMA table_info(toy)", "SELECT name FROM pragma_table_info('toy')", "EXPLAIN QUERY PLAN SELECT 1"):
        assert one(folder, sql).outcome == "ok"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT pric FROM toy", "no such column: pric; did you mean price?"),
        ("SELECT t.pric FROM toy t", "no such column: t.pric; did you mean price?"),
        ("SELECT * FROM toys", "no such table: toys; did you mean toy?"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "several statements"),
        ("SELECT ?", "placeholder"),
        ("", "empty"),
        ("-- nothing", "empty"),
        ("SELECT 'a\0b'", "null character"),
        ("SELECT '\ud800'", "cannot be run"),
        ("SELECT randomblob(2000000000)", "too big"),
        ("DELETE FROM toy", "DELETE is not allowed; the database is read only"),
    ],
)
def test_a_mistake_is_explained(folder: Path, sql: str, says: str) -> None:
    result = one(folder, sql)
    assert result.outcome == "failed"
    assert says in result.text


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_cartesian_join_ends_in_time(folder: Path, access: str) -> None:
    joined = ", ".join(f"number {letter}" for letter in "abcdefgh")
    joined = f"SELECT count(*) FROM {joined}"
    slow, then = results(folder, joined, "SELECT count(*) FROM toy", access=access, seconds=(0.5, 50))
    assert slow.outcome == "timeout"
    assert then.text == "count(*)\n4"


def test_a_tool_on_a_copy_counts_as_one_that_mutates(folder: Path) -> None:
    assert parts(folder, access="copy")[1].mutates
    assert not parts(folder)[1].mutates


def test_an_authors_mistake_says_what_to_change(folder: Path) -> None:
    resource, _ = parts(folder)
    with pytest.raises(UsageError, match="did you mean 'store'"):
        KIND.factory(
            "q", SqlSpec(kind="sql", resource="stor"), CompileContext(base=folder, resources={"store": resource})
        )
    with pytest.raises(UsageError, match="expected one of kind sqlite or duckdb"):
        KIND.factory("q", SqlSpec(kind="sql", resource="db"), CompileContext(base=folder, resources={"db": object()}))
