"""What may run on the event loop: decided by the text alone, and against what it does not know."""

from __future__ import annotations

import pytest

from rlenv.resources.sql._sqlite_file import plainness

PLAIN = {
    "SELECT name, price FROM toy WHERE price > 3 ORDER BY name LIMIT 5": "read",
    "select count(*) from toy as t join shop s on t.shop = s.id where s.city = 'Rome'": "read",
    "  SELECT name FROM toy WHERE shop IN (SELECT id FROM shop WHERE city = 'Rome')": "read",
    "SELECT name FROM toy UNION SELECT name FROM shop": "read",
    "SELECT strftime('%Y-%m', sold), strftime ('%d' , 'now') FROM toy": "read",
    "SELECT 1;": "read",
    "INSERT INTO toy VALUES ('ball', 2.5), ('kite', NULL)": "insert",
    "insert into \"a toy\" (name, price) values ('ball', 1)": "insert",
    "UPDATE toy SET price = price + 1 WHERE name = 'ball'": "change",
    "DELETE FROM toy WHERE price > 3": "change",
    "DELETE FROM toy": "change",
}
NOT_PLAIN = {
    "a WITH": "WITH a AS (SELECT 1) SELECT * FROM a",
    "a WITH inside": "SELECT * FROM toy WHERE name IN (WITH a AS (SELECT 1) SELECT * FROM a)",
    "a subquery in FROM": "SELECT x FROM (SELECT name || name AS x FROM toy)",
    "one behind a line break": "SELECT x FROM\n\t (SELECT name || name AS x FROM toy)",
    "one behind a comment": "SELECT x FROM /**/ (SELECT name || name AS x FROM toy)",
    "one behind a comma": "SELECT 1 FROM toy, (SELECT 1)",
    "one that is joined": "SELECT 1 FROM toy JOIN (SELECT 1)",
    "one in two parentheses": "SELECT 1 FROM ((SELECT 1))",
    "rows of its own": "SELECT * FROM toy WHERE (1, 2) IN (VALUES (1, 2)) OR 1 IN (SELECT 1)",
    "a window": "SELECT sum(price) OVER (ORDER BY name) FROM toy",
    "many tables": "SELECT 1 FROM " + ", ".join(f"toy t{i}" for i in range(9)),
    "many joins": "SELECT 1 FROM toy " + " JOIN toy ".join("abcdefghij"),
    "many stars": "SELECT *, *, *, *, *, *, * FROM toy",
    "many subqueries": "SELECT (SELECT (SELECT (SELECT 1)))",
    "a long text": "SELECT " + "1 + " * 300 + "1",
    "a pragma": "PRAGMA table_info(toy)",
    "an explanation": "EXPLAIN SELECT 1",
    "an insert from a query": "INSERT INTO toy SELECT * FROM toy",
    "an insert that rolls back": "INSERT OR ROLLBACK INTO toy VALUES (1, 2)",
    "an insert that replaces on conflict": "INSERT INTO toy VALUES (1, 2) ON CONFLICT DO NOTHING",
    "a replace": "REPLACE INTO toy VALUES (1, 2)",
    "an update that rolls back": "UPDATE OR ROLLBACK toy SET price = 1",
    "an update from another table": "UPDATE toy SET price = 1 FROM shop",
    "what returns rows": "DELETE FROM toy WHERE price > 3 RETURNING *",
    "a deletion by a subquery": "DELETE FROM toy WHERE shop IN (SELECT id FROM shop)",
    "a form that a column holds": "SELECT strftime(name, 'now') FROM toy",
    "such a form beside a short one": "SELECT strftime(name, 'now'), strftime('%d', 'now') FROM toy",
    "a form that begins short": "SELECT strftime('%d' || name, 'now') FROM toy",
    "a function's name in quotes": "SELECT \"strftime\"(name, 'now') FROM toy",
    "a long form": f"SELECT strftime('{'%J' * 100}', price) FROM toy",
    "a form in each row": "UPDATE toy SET price = strftime('%J', price)",
    "a schema": "CREATE TABLE t (a)",
    "two statements": "DELETE FROM toy; DROP TABLE toy",
    "nothing": "",
}


@pytest.mark.parametrize(("sql", "kind"), PLAIN.items())
def test_a_simple_statement_is_plain(sql: str, kind: str) -> None:
    assert plainness(sql) == kind


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_may_take_long_to_prepare_is_not_plain(what: str) -> None:
    assert plainness(NOT_PLAIN[what]) == ""
