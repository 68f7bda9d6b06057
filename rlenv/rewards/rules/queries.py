"""The structure of SQL queries: what is left once spelling, order of conditions and aliases are taken away."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from rlenv.errors import MissingExtra, UsageError, told_as
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.rule import RuleSpec, UnfitGold, compile_accepted, gold_text, where_answer
from rlenv.rewards.rules.text import Expected
from rlenv.secrets import logger

if TYPE_CHECKING:
    from sqlglot import exp

# All of it runs on the event loop: about 10 µs a token, alone and nested.
_MAX_CHARS = 4_096
_MAX_TOKENS = 600
_MAX_DEPTH = 60
_MAX_LEVELS = 150
_SHOWN_CHARS = 160


logger("sqlglot")  # it quotes what the policy wrote


class UnreadableQuery(ValueError):
    """A text that is not one SQL query, or one too long or too deep to read."""


def structure(query: str, *, dialect: str) -> Counter[str]:
    """The parts of a query by clause, in canonical form; equal queries in structure give equal parts.

    Names are lower-case unless quoted, table aliases are replaced by their tables, the output's aliases are dropped,
    and the order of what has none (conditions, operands of a commutative comparison, grouped columns, listed values)
    is made the same. The order of columns and of ORDER BY stays. A part is the tree of its expression and not a text
    of it, so that parentheses count where they change the meaning and nowhere else.

    Raises:
        UnreadableQuery: it is not one query.
        MissingExtra: sqlglot is not installed.
    """
    try:
        from sqlglot import errors, exp, parse, tokenize
        from sqlglot.optimizer.normalize_identifiers import normalize_identifiers
    except ImportError as error:
        raise MissingExtra("the rule sql_match", extra="sql") from error
    if len(query) > _MAX_CHARS or _nesting_depth(query) > _MAX_DEPTH:
        raise UnreadableQuery(f"longer than {_MAX_CHARS} characters or deeper than {_MAX_DEPTH} parentheses")
    try:
        if len(tokenize(query, dialect=dialect)) > _MAX_TOKENS:
            raise UnreadableQuery(f"more than {_MAX_TOKENS} words and signs")
        trees = [tree for tree in parse(query, dialect=dialect) if tree is not None]
    except (errors.SqlglotError, RecursionError) as error:
        raise UnreadableQuery(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise UnreadableQuery("expected one SELECT statement")
    try:
        return _Reader(normalize_identifiers(trees[0], dialect=dialect)).parts()
    except RecursionError as error:
        raise UnreadableQuery("nested too deep") from error


def overlap(mine: Counter[str], gold: Counter[str]) -> float:
    """The F1 of two queries' parts, in [0, 1]."""
    common = sum((mine & gold).values())
    total = sum(mine.values()) + sum(gold.values())
    return 2 * common / total if total else 1.0


def _nesting_depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
    return deepest


@dataclass(slots=True)
class _Scope:
    """The names in one SELECT. `only` is its one table, "" where there are more or subqueries."""

    outer: _Scope | None
    tables: list[exp.Table] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, exp.Expr] = field(default_factory=dict)
    only: str = ""
    has_subquery: bool = False


class _Reader:
    """Writes the nodes of one tree in canonical form; each is written once."""

    def __init__(self, tree: exp.Expr) -> None:
        from sqlglot import exp

        self._exp = exp
        self._tree = tree
        self._scopes: dict[int, _Scope] = {}
        self._written: dict[int, str] = {}
        self._find_scopes()

    def parts(self) -> Counter[str]:
        exp, tree = self._exp, self._tree
        found: Counter[str] = Counter()
        if not isinstance(tree, exp.Select):
            found[f"query: {self._form_of(tree)}"] += 1
            return found
        for place, item in enumerate(tree.expressions):
            found[f"select {place}: {self._form_of(item.unalias())}"] += 1
        for key, clause in tree.args.items():
            if key == "expressions" or not clause:
                continue
            if key in ("where", "having"):
                for condition in self._operands(clause.this, exp.And):
                    found[f"{key}: {self._form_of(condition, in_clause=key == 'having')}"] += 1
            elif key == "group":
                for item in clause.expressions:
                    found[f"group: {self._form_of(item, in_clause=True)}"] += 1
            elif isinstance(clause, list):
                for item in clause:
                    found[f"{key}: {self._form_of(item)}"] += 1
            elif isinstance(clause, exp.Expr):
                found[f"{key}: {self._form_of(clause)}"] += 1
            else:
                found[f"{key}: {clause}"] += 1
        return found

    def _find_scopes(self) -> None:
        exp = self._exp
        nodes: list[tuple[Any, _Scope | None]] = [(self._tree, None)]
        made: list[_Scope] = []
        while nodes:
            node, scope = nodes.pop()
            if isinstance(node, exp.Subquery):
                outer = scope
                while outer is not None and not outer.has_subquery:
                    outer.has_subquery = True
                    outer = outer.outer
            elif isinstance(node, exp.Select):
                scope = _Scope(scope)
                scope.outputs = {item.alias: item.this for item in node.expressions if isinstance(item, exp.Alias)}
                made.append(scope)
            elif isinstance(node, exp.Table) and scope is not None:
                scope.tables.append(node)
            if scope is not None:
                self._scopes[id(node)] = scope
            nodes.extend((child, scope) for child in node.iter_expressions())
        for scope in made:
            counts = Counter(table.name for table in scope.tables)
            # A table that is joined with itself keeps its aliases: they tell which of the two is meant.
            scope.renamed = {
                table.alias: table.name for table in scope.tables if table.alias and counts[table.name] == 1
            }
            if len(scope.tables) == 1 and not scope.has_subquery:
                scope.only = scope.tables[0].name

    def _operands(self, node: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
        """The operands of a chain of one connective, in order; parentheses around parts of the chain do not count."""
        waiting = [node]
        while waiting:
            part = waiting.pop()
            while isinstance(part, self._exp.Paren):
                part = part.this
            if isinstance(part, kind):
                waiting += [part.expression, part.this]
            else:
                yield part

    def _form_of(self, node: exp.Expr, level: int = 0, in_clause: bool = False) -> str:
        if level > _MAX_LEVELS:
            raise UnreadableQuery(f"nested more than {_MAX_LEVELS} levels deep")
        exp = self._exp
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Column):
            return self._column_form(node, level, in_clause)
        known = self._written.get(id(node))
        if known is None or in_clause:
            may_alias = in_clause or isinstance(node, (exp.Order, exp.Having, exp.Group))
            known = _shorten(self._compound_form(node, level + 1, may_alias))
            if not in_clause:
                self._written[id(node)] = known
        return known

    def _column_form(self, node: exp.Column, level: int, in_clause: bool) -> str:
        table, scope = node.table, self._scopes.get(id(node))
        if in_clause and not table and scope is not None and (meant := scope.outputs.get(node.name)) is not None:
            return self._form_of(meant, level + 1)
        around = scope
        while table and around is not None:
            if table in around.renamed:
                table = around.renamed[table]
                break
            around = around.outer
        if scope is not None and table and table == scope.only:
            table = ""
        rest = [self._form_of(part, level + 1) for part in node.iter_expressions() if part.arg_key in ("db", "catalog")]
        return f"[{'.'.join([*rest, table, self._form_of(node.this, level + 1)])}]"

    def _compound_form(self, node: exp.Expr, level: int, in_clause: bool) -> str:
        exp = self._exp
        name = type(node).__name__
        if isinstance(node, (exp.And, exp.Or)):
            operands = {self._form_of(part, level, in_clause) for part in self._operands(node, type(node))}
            return f"{name}({', '.join(sorted(operands))})"
        if isinstance(node, (exp.GT, exp.GTE, exp.LT, exp.LTE)):
            sides = [self._form_of(part, level, in_clause) for part in (node.this, node.expression)]
            if isinstance(node, (exp.GT, exp.GTE)):
                name = "LT" if isinstance(node, exp.GT) else "LTE"
                sides.reverse()
            return f"{name}({', '.join(sides)})"
        if isinstance(node, (exp.EQ, exp.NEQ, exp.Add, exp.Mul)):
            two = sorted(self._form_of(part, level, in_clause) for part in (node.this, node.expression))
            return f"{name}({', '.join(two)})"
        parts: list[str] = []
        for key, value in sorted(node.args.items()):
            if value is None or value is False or value == []:
                continue
            if key == "alias" and isinstance(node, exp.Table):
                scope = self._scopes.get(id(node))
                if scope is not None and node.alias in scope.renamed:
                    continue
            items = value if isinstance(value, list) else [value]
            forms = [self._form_of(one, level, in_clause) if isinstance(one, exp.Expr) else repr(one) for one in items]
            if isinstance(node, exp.In) and key == "expressions":
                forms.sort()
            parts.append(f"{key}={', '.join(forms)}")
        return f"{name}({'; '.join(parts)})"


def _shorten(form: str) -> str:
    """A form that stands for itself while it is short, and by its hash where that is shorter."""
    return form if len(form) <= _SHOWN_CHARS else hashlib.blake2b(form.encode("utf-8", "replace")).hexdigest()[:40]


class SqlMatchSpec(RuleSpec):
    """1 if the answer is an accepted query in structure, 0 otherwise (extra `sql`).

    Spelling, table aliases and the order of conditions do not count. Nothing is run: to compare results use `verify`.
    """

    rule: Literal["sql_match"]
    expect: Expected = "{{ task.gold_sql }}"
    """The accepted query, or several; a template may give a list."""
    dialect: Text = "sqlite"
    """The SQL dialect, by sqlglot's name."""
    partial: Bool = False
    """Give the F1 of the queries' parts (columns, tables, conditions, …) in place of 0 or 1."""


def _compile_sql_match(name: str, spec: SqlMatchSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    try:  # a missing extra is found here too, when the spec is compiled
        structure("SELECT 1", dialect=spec.dialect)
    except ValueError as error:
        raise UsageError(str(error), key="dialect") from error

    def measure(context: RewardContext) -> Measured:
        golds = []
        for value in accepted(context):
            with told_as(UnfitGold, "expect: the gold query cannot be read:", UnreadableQuery):
                golds.append(_gold_structure(gold_text(value), spec.dialect))
        if context.answer is None:
            return Measured(0.0, "no answer")
        try:
            mine = structure(context.answer, dialect=spec.dialect)
        except UnreadableQuery as error:
            return Measured(0.0, f"not a query: {error}")
        except Exception as error:  # a parser of this size may raise anything on a hostile text
            return Measured(0.0, f"not a query: {type(error).__name__}")
        best = max(overlap(mine, gold) for gold in golds)
        return Measured(best if spec.partial else float(any(mine == gold for gold in golds)), context.answer)

    return Term(name=name, spec=spec, measure=measure, where=where_answer)


@lru_cache(maxsize=1024)
def _gold_structure(query: str, dialect: str) -> Counter[str]:
    return structure(query, dialect=dialect)


SQL_MATCH = Kind(SqlMatchSpec, _compile_sql_match, values=(0, 1), gold="expect", reads_answer=True, several=True)
