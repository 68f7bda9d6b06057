"""One statement on a DuckDB database: what the model sees, what rewards see, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.messages import ToolResult
from rlenv.resources.base import ResourceContext
from rlenv.resources.duckdb import KIND as DUCKDB
from rlenv.resources.duckdb import DuckdbResource, DuckdbSpec
from rlenv.testing.tools import call, context
from rlenv.tools.base import CompileContext, Tool
from rlenv.tools.sql import KIND, SqlSpec

duckdb = pytest.importorskip("duckdb", reason="the extra `duckdb` is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "toys.duckdb")) as raw:
        raw.execute("CREATE TABLE toy (name VARCHAR, price DOUBLE)")
        raw.execute("INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL), ('red drum', 9), ('doll', 4)")
        raw.execute("CREATE SEQUENCE counter")
    (tmp_path / "secret.csv").write_text("a,b\n1,hidden\n")
    return tmp_path


def parts(folder: Path, *, access: str = "read_only", **keys: Any) -> tuple[DuckdbResource, Tool]:
    resource = DUCKDB.factory(
        "db",
        DuckdbSpec(kind="duckdb", path="toys.duckdb", access=access),  # type: ignore[arg-type]
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


def test_rows_are_shown_one_a_line_under_their_columns(folder: Path) -> None:
    assert one(folder, "SELECT name, price FROM toy LIMIT 2").text == "name | price\nball | 2.5\nkite | NULL"
    assert one(folder, "FROM toy WHERE false").text == "name | price\n(no rows)"


def test_rows_beyond_the_largest_value_are_marked(folder: Path) -> None:
    value: Mapping[str, Any] = one(folder, "SELECT range FROM range(12000)").value
    assert (len(value["rows"]), value["truncated"]) == (10_000, True)


@pytest.mark.parametrize(
    ("cell", "value", "text"),
    [
        ("NULL", None, "NULL"),
        ("true", True, "true"),
        ("1.10::DECIMAL(10, 2)", 1.1, "1.1"),
        ("12345678901234567890.12::DECIMAL(38, 2)", "12345678901234567890.12", "12345678901234567890.12"),
        ("9223372036854775807", 2**63 - 1, "9223372036854775807"),
        ("170141183460469231731687303715884105727::HUGEINT", str(2**127 - 1), str(2**127 - 1)),
        ("'nan'::DOUBLE", "nan", "nan"),
        ("DATE '2020-01-02'", "2020-01-02", "2020-01-02"),
        ("TIMESTAMP '2020-01-02 03:04:05'", "2020-01-02 03:04:05", "2020-01-02 03:04:05"),
        ("TIME '03:04:05'", "03:04:05", "03:04:05"),
        ("INTERVAL 3 DAY", "3 days, 0:00:00", "3 days, 0:00:00"),
        ("[1, NULL, 3]", [1, None, 3], "[1,null,3]"),
        ("{'x': 1.5, 'y': DATE '2020-01-02'}", {"x": 1.5, "y": "2020-01-02"}, '{"x":1.5,"y":"2020-01-02"}'),
        ("MAP {7: 'a'}", {"7": "a"}, '{"7":"a"}'),
        ("'\\x00\\xFF'::BLOB", "x'00FF'", "x'00FF'"),
        ("'8b0dbf05-0000-4000-8000-000000000001'::UUID",) + ("8b0dbf05-0000-4000-8000-000000000001",) * 2,
    ],
)
def test_cells_of_any_type_are_json_values_and_readable_text(folder: Path, cell: str, value: Any, text: str) -> None:
    result = one(folder, f"SELECT {cell} AS c")
    assert result.value["rows"] == [[value]]
    assert result.text == f"c\n{text}"


WRITES = [
    "DELETE FROM toy",
    "UPDATE toy SET price = 0",
    "INSERT INTO toy VALUES ('x', 1)",
    "MERGE INTO toy USING toy AS t ON toy.name = t.name WHEN MATCHED THEN DELETE",
    "TRUNCATE toy",
    "DROP TABLE toy",
    "ALTER TABLE toy ADD COLUMN more INT",
    "COMMENT ON TABLE toy IS 'x'",
    "CREATE TABLE t (a INT)",
    "CREATE TEMP TABLE t (a INT)",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO m(a) AS a + 1",
    "WITH a AS (SELECT 1) DELETE FROM toy",
    "EXPLAIN ANALYZE DELETE FROM toy",
    "/* SELECT */ DELETE FROM toy",
    "SELECT nextval('counter')",
]
NEVER = [
    "SELECT * FROM read_csv('{folder}/secret.csv')",
    "SELECT * FROM read_text('{folder}/secret.csv')",
    "SELECT * FROM read_blob('{folder}/secret.csv')",
    "SELECT * FROM '{folder}/secret.csv'",
    "SELECT * FROM sniff_csv('{folder}/secret.csv')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM query('FROM read_text(''{folder}/secret.csv'')')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv('https://example.org/a.csv')",
    "SELECT * FROM duckdb",
    "SELECT * FROM statement",
    "COPY toy TO '{folder}/out.csv'",
    "COPY toy FROM '{folder}/secret.csv'",
    "EXPLAIN ANALYZE COPY toy TO '{folder}/out.csv'",
    "EXPORT DATABASE '{folder}/out'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{folder}/other.duckdb' AS other",
    "ATTACH ':memory:' AS other",
    "DETACH toys",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET threads = 8",
    "RESET memory_limit",
    "SET VARIABLE a = 1",
    "PRAGMA memory_limit = '9GB'",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
    "SELECT 1; DELETE FROM toy",
]


@pytest.mark.parametrize("sql", WRITES + NEVER)
def test_a_read_only_database_is_only_read(folder: Path, sql: str) -> None:
    before, names = (folder / "toys.duckdb").read_bytes(), sorted(path.name for path in folder.iterdir())
    first, then = results(folder, sql.replace("{folder}", str(folder)), "SELECT count(*) AS n FROM toy")
    assert first.outcome == "failed"
    assert "hidden" not in first.text
    assert str(folder.parent) not in first.text.replace(sql.replace("{folder}", str(folder)), "")
    assert then.text == "n\n4"
    assert (folder / "toys.duckdb").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize("sql", NEVER)
def test_a_copy_can_be_written_but_reaches_no_file(folder: Path, sql: str) -> None:
    names = sorted(path.name for path in folder.iterdir())
    first, changed = results(
        folder, sql.replace("{folder}", str(folder)), "DELETE FROM toy WHERE price > 3", access="copy"
    )
    assert first.outcome == "failed"
    assert changed.text == "(2 rows changed)"
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize("sql", ["DESCRIBE toy", "SHOW TABLES", "EXPLAIN SELECT 1", "SUMMARIZE toy"])
def test_reading_the_structure_is_allowed(folder: Path, sql: str) -> None:
    assert one(folder, sql).outcome == "ok"


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT pric FROM toy", 'Referenced column "pric" not found in FROM clause; did you mean price?'),
        ("SELECT t.pric FROM toy t", "did you mean price?"),
        ("SELECT * FROM toys_", "Table with name toys_ does not exist; did you mean toy?"),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT 1; SELECT 2", "several statements"),
        ("SELECT ?", "placeholder"),
        ("", "empty"),
        ("-- nothing", "empty"),
        ("SELECT '\ud800'", "cannot be run"),
        ("SELECT 'abc'::INT", "Could not convert string 'abc' to INT32"),
        ("SELECT length(string_agg(repeat('x', 1000000), '')) FROM range(100000)", "more memory than"),
        ("SELECT TIMESTAMPTZ '2020-01-01 00:00:00+00' AS at", "the column at is a TIMESTAMP WITH TIME ZONE; cast it"),
        ("DELETE FROM toy", "DELETE is not allowed; the database is read only"),
    ],
)
def test_a_mistake_is_explained(folder: Path, sql: str, says: str) -> None:
    result = one(folder, sql)
    assert result.outcome == "failed"
    assert says in result.text


@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_cartesian_join_ends_in_time(folder: Path, access: str) -> None:
    joined = ", ".join(f"range(1000) {letter}" for letter in "abcdefgh")
    joined = f"SELECT count(*) FROM {joined} WHERE a.range + h.range < 0"
    slow, then = results(folder, joined, "SELECT count(*) AS n FROM toy", access=access, seconds=(0.5, 50))
    assert slow.outcome == "timeout"
    assert then.text == "n\n4"


def test_a_tool_on_a_copy_counts_as_one_that_mutates(folder: Path) -> None:
    assert parts(folder, access="copy")[1].mutates
    assert not parts(folder)[1].mutates
    assert "DuckDB" in parts(folder)[1].parameters["properties"]["sql"]["description"]


SPEC = """
rlenv: 1
name: toys
tasks: {train: {rows: [{db: toys, question: "Which are dear?", sql: "SELECT name FROM toy WHERE price > 3"}]}}
prompt: {user: "{{ task.question }} {{ resources.db.schema }}"}
resources: {db: {kind: duckdb, path: "{{ task.db }}.duckdb"}}
tools: {query: {kind: sql, resource: db}}
rewards:
  rows:
    kind: verify
    tool: query
    arguments: {sql: "{{ answer }}"}
    expect: {arguments: {sql: "{{ task.sql }}"}}
    compare: rows
"""
CALL = '<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT count(*) AS n FROM toy"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("FROM toy SELECT name WHERE price >= 4", 1.0), ("SELECT name FROM toy", 0.0), ("DELETE FROM toy", 0.0)],
)
def test_an_episode_is_scored_by_the_rows_of_its_answer(folder: Path, answer: str, reward: float) -> None:
    (folder / "env.yaml").write_text(SPEC)

    async def main() -> Any:
        async with rlenv.load(folder / "env.yaml") as environment, environment.start(task=0, seed=5) as episode:
            await episode.step(CALL)
            await episode.step(f"<answer>{answer}</answer>")
            return episode.trajectory

    trajectory = asyncio.run(asyncio.wait_for(main(), 60))
    assert "CREATE TABLE toy" in str(trajectory.messages[0])
    assert trajectory.turns[0].results[0].text == "n\n4"
    assert trajectory.reward.terms["rows"].value == reward
