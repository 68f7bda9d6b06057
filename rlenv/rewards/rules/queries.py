"""The rule sql_match: the structure of a query, without running it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Literal

from rlenv.errors import RewardError, UsageError
from rlenv.language.kinds import Kind
from rlenv.language.spec import Bool, Text
from rlenv.rewards.base import Measured, RewardContext, Term, TermCompileContext
from rlenv.rewards.queries import UnreadableQuery, overlap, structure
from rlenv.rewards.rule import RuleSpec, gold_text, where_answer
from rlenv.rewards.rules.text import Expected
from rlenv.rewards.templating import compile_accepted

__all__ = ["SQL_MATCH", "SqlMatchSpec"]


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


def _sql_match(name: str, spec: SqlMatchSpec, context: TermCompileContext) -> Term:
    accepted = compile_accepted(spec.expect)
    try:  # a missing extra is found here too, when the spec is compiled
        structure("SELECT 1", dialect=spec.dialect)
    except ValueError as error:
        raise UsageError(str(error), key="dialect") from error

    def measure(context: RewardContext) -> Measured:
        golds = []
        for value in accepted(context):
            try:
                golds.append(_gold(gold_text(value), spec.dialect))
            except UnreadableQuery as error:
                raise RewardError(f"expect: the gold query cannot be read: {error}") from error
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
def _gold(query: str, dialect: str) -> Counter[str]:
    return structure(query, dialect=dialect)


SQL_MATCH = Kind(SqlMatchSpec, _sql_match)
