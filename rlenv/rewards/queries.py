"""The structure of SQL queries: what is left once spelling, order of conditions and aliases are taken away."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlenv.errors import MissingExtra

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["UnreadableQuery", "overlap", "structure"]

_MAX_CHARS = 16_384
_MAX_DEPTH = 100


class UnreadableQuery(ValueError):
    """A text that is not one SQL query, or one too long or too deep to read."""


def structure(query: str, *, dialect: str) -> Counter[str]:
    """The parts of a query by clause, as canonical text; equal queries in structure give equal parts.

    Names are lower-case unless quoted, table aliases are replaced by their tables, the output's aliases are dropped,
    and the order of what has none (conditions, operands of a commutative comparison, grouped columns, listed values)
    is made the same. The order of columns and of ORDER BY stays.

    Raises:
        UnreadableQuery: it is not one query.
        MissingExtra: sqlglot is not installed.
    """
    try:
        from sqlglot import errors, exp, parse
        from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
    except ImportError as error:
        raise MissingExtra("the rule sql_match", extra="sql") from error
    if len(query) > _MAX_CHARS or _depth(query) > _MAX_DEPTH:
        raise UnreadableQuery(f"longer than {_MAX_CHARS} characters or deeper than {_MAX_DEPTH} parentheses")
    try:
        trees = [tree for tree in parse(query, dialect=dialect) if tree is not None]
    except (errors.SqlglotError, RecursionError) as error:
        raise UnreadableQuery(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise UnreadableQuery("expected one SELECT statement")
    try:
        tree = normalize_identifiers(trees[0], dialect=dialect)
        _drop_aliases(tree)
        return _parts(tree, dialect)
    except RecursionError as error:
        raise UnreadableQuery("nested too deep") from error


def overlap(mine: Counter[str], gold: Counter[str]) -> float:
    """The F1 of two queries' parts, in [0, 1]."""
    common = sum((mine & gold).values())
    total = sum(mine.values()) + sum(gold.values())
    return 2 * common / total if total else 1.0


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
    return deepest


def _drop_aliases(tree: exp.Expr) -> None:
    from sqlglot import exp

    for select in list(tree.find_all(exp.Select)):
        tables = [table for table in select.find_all(exp.Table) if table.find_ancestor(exp.Select) is select]
        counts = Counter(table.name for table in tables)
        renamed: dict[str, str] = {}
        for table in tables:
            # A table that is joined with itself keeps its aliases: they tell which of the two is meant.
            if table.alias and counts[table.name] == 1:
                renamed[table.alias] = table.name
                table.set("alias", None)
        only = tables[0].name if len(tables) == 1 and not list(select.find_all(exp.Subquery)) else ""
        for column in select.find_all(exp.Column):
            if column.table in renamed:
                column.set("table", exp.to_identifier(renamed[column.table]))
            if only and column.table == only and column.find_ancestor(exp.Select) is select:
                column.set("table", None)
        outputs = {item.alias: item.this for item in select.expressions if isinstance(item, exp.Alias)}
        for key in ("order", "having", "group"):
            clause = select.args.get(key)
            for column in list(clause.find_all(exp.Column)) if clause is not None else ():
                if not column.table and column.name in outputs and column.parent is not None:
                    column.replace(outputs[column.name].copy())
        if select.parent is None or not isinstance(select.parent, (exp.Subquery, exp.CTE)):
            select.set("expressions", [item.unalias() for item in select.expressions])


def _parts(tree: exp.Expr, dialect: str) -> Counter[str]:
    from sqlglot import exp

    def text(node: exp.Expr) -> str:
        return _canonical(node).sql(dialect=dialect, comments=False)

    found: Counter[str] = Counter()
    if not isinstance(tree, exp.Select):
        found[f"query: {text(tree)}"] += 1
        return found
    for place, item in enumerate(tree.expressions):
        found[f"select {place}: {text(item)}"] += 1
    for key, clause in tree.args.items():
        if key == "expressions" or not clause:
            continue
        if key == "where" or key == "having":
            conditions = list(clause.this.flatten()) if isinstance(clause.this, exp.And) else [clause.this]
            for condition in conditions:
                found[f"{key}: {text(condition.unnest())}"] += 1
        elif key == "group":
            for item in clause.expressions:
                found[f"group: {text(item)}"] += 1
        elif isinstance(clause, list):
            for item in clause:
                found[f"{key}: {text(item)}"] += 1
        elif isinstance(clause, exp.Expr):
            found[f"{key}: {text(clause)}"] += 1
        else:
            found[f"{key}: {clause}"] += 1
    return found


def _canonical(node: exp.Expr) -> exp.Expr:
    """A copy in which the order of operands that have none is made the same."""
    from sqlglot import exp

    def settle(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Paren) and not isinstance(part.this, (exp.Binary, exp.Query)):
            inner: exp.Expr = part.this
            return inner
        if isinstance(part, (exp.GT, exp.GTE)):
            flipped = exp.LT if isinstance(part, exp.GT) else exp.LTE
            return flipped(this=part.expression, expression=part.this)
        if isinstance(part, (exp.EQ, exp.NEQ, exp.Add, exp.Mul)):
            if part.expression.sql() < part.this.sql():
                return type(part)(this=part.expression, expression=part.this)
        elif isinstance(part, (exp.And, exp.Or)) and not isinstance(part.parent, type(part)):
            operands = sorted({operand.sql(): operand for operand in part.flatten()}.items())
            joined = operands[0][1]
            for _, operand in operands[1:]:
                joined = type(part)(this=joined, expression=operand)
            return joined
        elif isinstance(part, exp.In) and part.expressions:
            part.set("expressions", sorted(part.expressions, key=lambda item: item.sql()))
        return part

    # From the leaves up, so that operands are canonical when they are put in order.
    copied = node.copy()
    for part in reversed(list(copied.walk(bfs=True))):
        settled = settle(part)
        if settled is not part:
            if part is copied:
                copied = settled
            else:
                part.replace(settled)
    return copied
