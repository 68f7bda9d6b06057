"""One statement on a database: what the model sees, what rewards see, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rlenv
from rlenv.errors import UsageError
from rlenv.language.kinds import CompileContext
from rlenv.messages import ToolResult
from rlenv.resources.base import ResourceContext
from rlenv.resources.sql.resource import SqlResource
from rlenv.testing.tools import call, check_tool, context
from rlenv.tools.base import Tool, ToolContext
from rlenv.tools.sql import KIND, SqlSpec
from tests.resources.sql.engines import DUCKDB, KINDS, SQLITE, Sql, run


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Sql:
    param: Sql = request.param
    return param


@pytest.fixture
def folder(tmp_path: Path, kind: Sql) -> Path:
    kind.make(tmp_path / f"toys.{kind.name}", kind.toys)
    (tmp_path / "secret.csv").write_text("a,b\n1,hidden\n")
    return tmp_path


def parts(kind: Sql, folder: Path, *, access: str = "read_only", **keys: Any) -> tuple[SqlResource, Tool]:
    resource = kind.resource(folder, path=f"toys.{kind.name}", access=access)
    spec = SqlSpec(kind="sql", resource="db", **keys)
    (tool,) = KIND.factory("query", spec, CompileContext(base=folder, resources={"db": resource}))
    return resource, tool


def results(kind: Sql, folder: Path, *statements: str, first_s: float = 600, **keys: Any) -> list[ToolResult]:
    """What the statements of one episode give; the first has a time limit of its own."""
    resource, tool = parts(kind, folder, **keys)

    async def work() -> list[ToolResult]:
        async with resource.open(ResourceContext()) as database:
            return [
                await call(
                    tool, {"sql": sql}, within=context(resources={"db": database}, seconds=600 if index else first_s)
                )
                for index, sql in enumerate(statements)
            ]

    return run(work())


def one(kind: Sql, folder: Path, sql: str, **keys: Any) -> ToolResult:
    (result,) = results(kind, folder, sql, **keys)
    return result


class _Opened:
    """A handle that opens the database for each statement, as check_tool has no episode around its calls."""

    def __init__(self, resource: SqlResource) -> None:
        self._resource = resource

    async def query(self, sql: str, **limits: Any) -> Any:
        async with self._resource.open(ResourceContext()) as database:
            return await database.query(sql, **limits)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_the_sql_tool_keeps_the_laws_of_tools(kind: Sql, folder: Path, access: str) -> None:
    resource, tool = parts(kind, folder, access=access)

    def made() -> ToolContext:
        return context(resources={"db": _Opened(resource)})

    check_tool(
        tool,
        good=[
            {"sql": "SELECT * FROM toy"},
            {"sql": "SELECT name FROM toy WHERE name LIKE '%l'"},
            {"sql": "SELECT NULL"},
        ],
        bad=[{}, {"sql": 1}, {"query": "SELECT 1"}],
        failing=[{"sql": "SELECT nam FROM toy"}, {"sql": ""}, {"sql": "ATTACH 'x' AS y"}],
        make_context=made,
    )


def test_rows_are_shown_one_a_line_under_their_columns(kind: Sql, folder: Path) -> None:
    assert one(kind, folder, "SELECT name, price FROM toy LIMIT 2").text == "name | price\nball | 2.5\nkite | NULL"
    assert one(kind, folder, "SELECT name FROM toy WHERE price < 0").text == "name\n(no rows)"


def test_what_does_not_fit_is_counted_and_rewards_see_all(kind: Sql, folder: Path) -> None:
    result = one(kind, folder, "SELECT n FROM number ORDER BY n", max_rows=3)
    assert result.text == "n\n1\n2\n3\n(7 more rows)"
    assert result.value == {"columns": ["n"], "rows": [[n] for n in range(1, 11)], "truncated": False}


def test_rows_beyond_the_largest_value_are_marked(kind: Sql, folder: Path) -> None:
    value: Mapping[str, Any] = one(kind, folder, f"{kind.series} LIMIT 12000").value
    assert (len(value["rows"]), value["truncated"]) == (10_000, True)


def test_changes_are_said_and_a_statement_that_finds_nothing_to_do_is_no_failure(kind: Sql, folder: Path) -> None:
    deleted, dropped, blank = results(
        kind,
        folder,
        "DELETE FROM toy WHERE price > 3",
        "DROP TABLE IF EXISTS gone",
        "-- nothing\n /* at all */ ;",
        access="copy",
    )
    assert deleted.text == "(2 rows changed)"
    assert dropped.text == "(0 rows changed)"
    assert blank.outcome == "failed"


SQLITE_CELLS = [
    ("NULL", None, "NULL"),
    ("x'00ff'", "x'00FF'", "x'00FF'"),
    ("9223372036854775807", 9223372036854775807, "9223372036854775807"),
    ("CAST(x'ff41' AS TEXT)", "\N{REPLACEMENT CHARACTER}A", "\N{REPLACEMENT CHARACTER}A"),
    ("'a\nb'", "a\nb", "a\\nb"),
]
DUCKDB_CELLS = [
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
]


def test_cells_of_any_type_are_json_values_and_readable_text(kind: Sql, folder: Path) -> None:
    cells = SQLITE_CELLS if kind is SQLITE else DUCKDB_CELLS
    shown = results(kind, folder, *[f"SELECT {sql} AS c" for sql, _, _ in cells])
    assert [(one.value["rows"], one.text) for one in shown] == [([[value]], f"c\n{text}") for _, value, text in cells]


WRITES = [
    "DELETE FROM toy",
    "UPDATE toy SET price = 0",
    "INSERT INTO toy VALUES ('x', 1)",
    "DROP TABLE toy",
    "CREATE TEMP TABLE t (a INT)",
    "CREATE TABLE t (a INT)",
    "WITH a AS (SELECT 1) DELETE FROM toy",
    "/* SELECT */ DELETE FROM toy",
]
SQLITE_WRITES = ["UPDATE sqlite_master SET sql = 'x'", "EXPLAIN DELETE FROM toy"]
DUCKDB_WRITES = [
    "MERGE INTO toy USING toy AS t ON toy.name = t.name WHEN MATCHED THEN DELETE",
    "TRUNCATE toy",
    "ALTER TABLE toy ADD COLUMN more INT",
    "COMMENT ON TABLE toy IS 'x'",
    "CREATE VIEW v AS SELECT 1",
    "CREATE MACRO m(a) AS a + 1",
    "EXPLAIN ANALYZE DELETE FROM toy",
    "CREATE SEQUENCE s",
    "SELECT nextval('counter')",
]
NEVER = ["BEGIN", "SELECT 1; DELETE FROM toy", "ATTACH ':memory:' AS other", "ATTACH '{folder}/other' AS other"]
SQLITE_NEVER = [
    "VACUUM INTO '{folder}/other.sqlite'",
    "PRAGMA query_only = 0",
    "PRAGMA writable_schema = 1",
    "PRAGMA database_list",
    "SAVEPOINT s",
    "SELECT load_extension('x')",
    "CREATE VIRTUAL TABLE f USING fts5(a)",
]
DUCKDB_NEVER = [
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
    "PREPARE p AS SELECT 1",
    "CREATE SECRET s (TYPE s3)",
]
REFUSED = {SQLITE: [*NEVER, *SQLITE_NEVER], DUCKDB: [*NEVER, *DUCKDB_NEVER]}
READ_ONLY = {
    SQLITE: [*WRITES, *SQLITE_WRITES, *REFUSED[SQLITE]],
    DUCKDB: [*WRITES, *DUCKDB_WRITES, *REFUSED[DUCKDB]],
}


def test_a_read_only_database_is_only_read(kind: Sql, folder: Path) -> None:
    file = folder / f"toys.{kind.name}"
    before, names = file.read_bytes(), sorted(path.name for path in folder.iterdir())
    statements = [sql.replace("{folder}", str(folder)) for sql in READ_ONLY[kind]]
    counted = [each for sql in statements for each in (sql, "SELECT count(*) AS n FROM toy")]
    found = results(kind, folder, *counted)
    for sql, first, then in zip(statements, found[::2], found[1::2], strict=True):
        assert first.outcome == "failed", sql
        assert "hidden" not in first.text, sql
        assert str(folder.parent) not in first.text.replace(sql, ""), sql
        assert then.text == "n\n4", sql
    assert file.read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_copy_can_be_written_but_reaches_no_file(kind: Sql, folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    statements = [sql.replace("{folder}", str(folder)) for sql in REFUSED[kind]]
    *refused, changed = results(kind, folder, *statements, "DELETE FROM toy WHERE price > 3", access="copy")
    assert [sql for sql, result in zip(statements, refused, strict=True) if result.outcome != "failed"] == []
    assert changed.text == "(2 rows changed)"
    assert sorted(path.name for path in folder.iterdir()) == names


STRUCTURE = {
    SQLITE: ["PRAGMA table_info(toy)", "SELECT name FROM pragma_table_info('toy')", "EXPLAIN QUERY PLAN SELECT 1"],
    DUCKDB: ["DESCRIBE toy", "SHOW TABLES", "EXPLAIN SELECT 1", "SUMMARIZE toy"],
}


def test_reading_the_structure_is_allowed(kind: Sql, folder: Path) -> None:
    assert [result.outcome for result in results(kind, folder, *STRUCTURE[kind])] == ["ok"] * len(STRUCTURE[kind])


MISTAKES = [
    ("SELECT t.pric FROM toy t", "did you mean price?"),
    ("SELECT 1; SELECT 2", "several statements"),
    ("SELECT ?", "placeholder"),
    ("", "empty"),
    ("-- nothing", "empty"),
    ("SELECT '\ud800'", "cannot be run"),
    ("SELECT '" + "x" * 100_000 + "'", "longer than 100000 characters"),
    ("DELETE FROM toy", "DELETE is not allowed; the database is read only"),
]
SQLITE_MISTAKES = [
    ("SELECT pric FROM toy", "no such column: pric; did you mean price?"),
    ("SELECT * FROM toys", "no such table: toys; did you mean toy?"),
    ("SELEC 1", 'near "SELEC": syntax error'),
    ("SELECT 'a\0b'", "null character"),
    ("SELECT randomblob(2000000000)", "too big"),
]
DUCKDB_MISTAKES = [
    ("SELECT pric FROM toy", 'Referenced column "pric" not found in FROM clause; did you mean price?'),
    ("SELECT * FROM toys_", "Table with name toys_ does not exist; did you mean toy?"),
    ("SELEC 1", 'syntax error at or near "SELEC"'),
    ("SELECT 'abc'::INT", "Could not convert string 'abc' to INT32"),
    ("SELECT len(range(1000000000))", "more memory than"),
    ("SELECT TIMESTAMPTZ '2020-01-01 00:00:00+00' AS at", "the column at is a TIMESTAMP WITH TIME ZONE; cast it"),
]


def test_a_mistake_is_explained(kind: Sql, folder: Path) -> None:
    mistakes = [*MISTAKES, *(SQLITE_MISTAKES if kind is SQLITE else DUCKDB_MISTAKES)]
    found = results(kind, folder, *[sql for sql, _ in mistakes])
    for (sql, says), result in zip(mistakes, found, strict=True):
        assert result.outcome == "failed", sql
        assert says in result.text


@pytest.mark.slow
@pytest.mark.parametrize("access", ["read_only", "copy"])
def test_a_cartesian_join_ends_in_time(kind: Sql, folder: Path, access: str) -> None:
    joined = ", ".join(f"number n{number}" for number in range(16))
    joined = f"SELECT count(*) FROM {joined} WHERE {' + '.join(f'n{number}.n' for number in range(16))} = 17"
    slow, then = results(kind, folder, joined, "SELECT count(*) AS n FROM toy", access=access, first_s=0.5)
    assert slow.outcome == "timeout"
    assert then.text == "n\n4"


def test_a_tool_on_a_copy_counts_as_one_that_mutates(kind: Sql, folder: Path) -> None:
    assert parts(kind, folder, access="copy")[1].mutates
    reads = parts(kind, folder)[1]
    assert not reads.mutates
    assert kind.name in reads.parameters["properties"]["sql"]["description"].lower()


def test_an_authors_mistake_says_what_to_change(tmp_path: Path) -> None:
    resource = SQLITE.resource(tmp_path)
    for known, name, says in (
        ({"store": resource}, "stor", "did you mean 'store'"),
        ({"db": object()}, "db", "expected one of kind sqlite or duckdb"),
    ):
        with pytest.raises(UsageError, match=says):
            KIND.factory("q", SqlSpec(kind="sql", resource=name), CompileContext(base=tmp_path, resources=known))


SPEC = """
rlenv: 1
name: toys
tasks: {train: {rows: [{db: toys, question: "Which are dear?", sql: "SELECT name FROM toy WHERE price > 3"}]}}
prompt: {user: "{{ task.question }} {{ resources.db.schema }}"}
resources: {db: {kind: ENGINE, path: "{{ task.db }}.ENGINE"}}
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
    [("SELECT name FROM toy WHERE price >= 4", 1.0), ("SELECT name FROM toy", 0.0), ("DELETE FROM toy", 0.0)],
)
def test_an_episode_is_scored_by_the_rows_of_its_answer(kind: Sql, folder: Path, answer: str, reward: float) -> None:
    (folder / "env.yaml").write_text(SPEC.replace("ENGINE", kind.name))

    async def main() -> Any:
        async with rlenv.load(folder / "env.yaml") as environment, environment.start(task=0, seed=5) as episode:
            await episode.step(CALL)
            await episode.step(f"<answer>{answer}</answer>")
            return episode.trajectory

    trajectory = run(main())
    assert "CREATE TABLE toy" in str(trajectory.messages[0])
    assert trajectory.turns[0].results[0].text == "n\n4"
    assert trajectory.reward.terms["rows"].value == reward
