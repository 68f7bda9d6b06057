"""Which statements are so plain that SQLite prepares and runs them in no time: what may run on the event loop.

Preparing a statement cannot be stopped, and some texts of a few hundred characters take seconds and gigabytes: each
level of a WITH, of a subquery in FROM or of a view can double what the one below it holds. So the text alone decides
here, and it decides against whatever it does not know; a worker process runs the rest (see `workers.py`).
"""

from __future__ import annotations

import re
from typing import Final, Literal

__all__ = ["plainness"]

_MAX_CHARS: Final = 1_000
_MAX_SELECTS: Final = 3
_MAX_STARS: Final = 6
_MAX_TABLES: Final = 8
# Looked for anywhere in the text, quoted names and strings included: a wrong guess costs a tenth of a millisecond.
_ODD: Final = ("WITH", "VALUES", "TRIM", "--", "/*", "INDEXED", "NATURAL", "USING")
_WINDOW: Final = re.compile(r"\bOVER\b|\bWINDOW\b")
_NAME: Final = r"(?:[A-Z_][A-Z_0-9]*|\"[^\"]+\")"
_INSERT: Final = re.compile(rf"\s*INSERT\s+INTO\s+{_NAME}\s*(?:\([^()]*\)\s*)?VALUES\s*\(")
_CHANGE: Final = re.compile(rf"\s*(?:UPDATE\s+{_NAME}\s+SET\s|DELETE\s+FROM\s+{_NAME}\s*(?:WHERE\s|;?\s*$))")
_NOT_IN_WRITES: Final = ("SELECT", "WITH", "TRIM", "RETURNING", "CONFLICT", "--", "/*")


def plainness(sql: str) -> Literal["read", "insert", "change", ""]:
    """What kind of plain statement this is.

    read      a SELECT of few tables without a subquery in FROM, a WITH or a window
    insert    rows written out in the statement
    change    an UPDATE or DELETE of one table without subqueries; it takes as long as a look at the whole table
    ""        anything else
    """
    if len(sql) > _MAX_CHARS:
        return ""
    text = sql.upper()
    selects = text.count("SELECT")
    if not selects:
        return _write(text)
    if selects > _MAX_SELECTS or not text.lstrip().startswith("SELECT"):
        return ""
    for word in _ODD:
        if word in text:
            return ""
    if text.count("*") > _MAX_STARS or (("OVER" in text or "WINDOW" in text) and _WINDOW.search(text)):
        return ""
    if text.count("JOIN") + text.count(",") >= _MAX_TABLES and _tables(text) > _MAX_TABLES:
        return ""
    if selects > 1:
        close = "".join(text.split())
        if "FROM(" in close or "JOIN(" in close or ",(SELECT" in close:
            return ""
    return "read"


def _tables(text: str) -> int:
    """At least as many as the tables that the FROM clauses name."""
    found = text.count("JOIN")
    for clause in text.split("FROM")[1:]:
        found += 1 + clause.partition("WHERE")[0].count(",")
    return found


def _write(text: str) -> Literal["insert", "change", ""]:
    for word in _NOT_IN_WRITES:
        if word in text:
            return ""
    if _INSERT.match(text):
        return "insert"
    if _CHANGE.match(text) and (text.lstrip().startswith("DELETE") or "FROM" not in text):
        return "change"
    return ""
