"""Mutated gold queries, judged by the nl2sql environment and by their executed rows; prints the counts.

Each mutant is made by sqlglot from a gold query: a condition dropped, a constant changed, an aggregate swapped, another
order where the order counts, or a column dropped. What it should earn is computed here with Python's sqlite3 alone:
the same rows as some gold query, as often, and in the same order where that gold query orders them; rows that it does
not order, as they are equal in all that it orders by, may stand in any order among themselves.

    python benchmarks/nl2sql_mutations.py [--data DIR] [--mutants 500]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlglot import exp, parse_one

import rlenv
from rlenv.episodes.environment import Environment

DATA = Path(__file__).parents[2] / "shared" / "data" / "nl2sql"
_STEPS = 20_000_000


def mutants(query: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kinds and texts of mutants of one query; each differs from it as text."""
    tree = parse_one(query, dialect="sqlite")
    for kind, change in (
        ("condition", _drop_condition),
        ("constant", _change_constant),
        ("aggregate", _swap_aggregate),
        ("order", _other_order),
        ("column", _drop_column),
    ):
        made = tree.copy()
        if change(made, rng) and (text := made.sql(dialect="sqlite")) != tree.sql(dialect="sqlite"):
            yield kind, text


def _drop_condition(tree: exp.Expr, rng: random.Random) -> bool:
    found = list(tree.find_all(exp.Where))
    if not found:
        return False
    where = rng.choice(found)
    parts = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    parts.pop(rng.randrange(len(parts)))
    if parts:
        where.set("this", exp.and_(*parts))
    else:
        where.pop()
    return True


def _change_constant(tree: exp.Expr, rng: random.Random) -> bool:
    found = list(tree.find_all(exp.Literal))
    if not found:
        return False
    literal = rng.choice(found)
    changed = exp.Literal.string(f"{literal.this}x") if literal.is_string else exp.Literal.number(f"{literal.this}1")
    literal.replace(changed)
    return True


def _swap_aggregate(tree: exp.Expr, rng: random.Random) -> bool:
    swaps = {exp.Sum: exp.Avg, exp.Avg: exp.Max, exp.Max: exp.Min, exp.Min: exp.Max, exp.Count: exp.Max}
    found = [node for node in tree.find_all(*swaps) if not isinstance(node.this, (exp.Star, exp.Distinct))]
    if not found:
        return False
    node = rng.choice(found)
    node.replace(swaps[type(node)](this=node.this.copy()))
    return True


def _other_order(tree: exp.Expr, rng: random.Random) -> bool:
    order = tree.args.get("order")
    if order is None:
        return False
    for item in order.expressions:
        item.set("desc", not item.args.get("desc"))
    return True


def _drop_column(tree: exp.Expr, rng: random.Random) -> bool:
    if not isinstance(tree, exp.Select) or len(tree.expressions) < 2:
        return False
    kept = list(tree.expressions)
    kept.pop(rng.randrange(len(kept)))
    tree.set("expressions", kept)
    return True


def rows_of(database: Path, query: str) -> list[tuple[Any, ...]] | None:
    """The rows, None where the query fails or does not end."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro&immutable=1", uri=True)) as connection:
        steps = iter(range(_STEPS // 100_000))
        connection.set_progress_handler(lambda: next(steps, None) is None, 100_000)
        try:
            return connection.execute(query).fetchall()
        except sqlite3.Error:
            return None


def same(
    mine: Sequence[tuple[Any, ...]], gold: Sequence[tuple[Any, ...]], *, ordered: bool, keys: Sequence[int] = ()
) -> bool:
    """Whether two results are equal, numbers within 1e-6; `keys` are the columns that `gold` is ordered by."""

    def near(a: Any, b: Any) -> bool:
        both = isinstance(a, (int, float)) and isinstance(b, (int, float))
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) if both else a == b

    def alike(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
        return len(a) == len(b) and all(near(x, y) for x, y in zip(a, b, strict=True))

    if len(mine) != len(gold):
        return False
    if ordered and keys:
        tied = [list(run) for _, run in groupby(range(len(gold)), key=lambda index: [gold[index][key] for key in keys])]
        return all(same([mine[i] for i in run], [gold[i] for i in run], ordered=False) for run in tied)
    if ordered:
        return all(alike(a, b) for a, b in zip(mine, gold, strict=True))
    left = list(gold)
    for row in mine:
        place = next((index for index, other in enumerate(left) if alike(row, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def expected(database: Path, query: str, golds: Sequence[str]) -> bool:
    """Whether a query gives the rows of a gold query."""
    mine = rows_of(database, query)
    if mine is None:
        return False
    for gold in golds:
        target = rows_of(database, gold)
        tree = parse_one(gold, dialect="sqlite")
        ordered = tree.args.get("order") is not None
        if target is not None and same(mine, target, ordered=ordered, keys=_keys(tree) if ordered else ()):
            return True
    return False


def _keys(tree: exp.Expr) -> list[int]:
    """The columns of a query's result that it is ordered by; [] where one is not in its result."""
    outputs = [(item.alias_or_name.lower(), item.unalias().sql().lower()) for item in tree.expressions]
    found: list[int] = []
    for item in tree.args["order"].expressions:
        by = item.this
        places = [
            place
            for place, (name, text) in enumerate(outputs)
            if (isinstance(by, exp.Column) and by.name.lower() == name) or by.sql().lower() == text
        ]
        if by.is_int:
            places = [int(by.name) - 1]
        if len(places) != 1:
            return []
        found += places
    return found


async def score(environment: Environment, split: str, index: int, query: str) -> float | None:
    """What the environment's term `correct` gives a query as the answer; None where it is invalid."""
    async with environment.start(task=index, split=split) as episode:
        await episode.step(f"<answer>{query}</answer>")
        return episode.trajectory.reward.terms["correct"].value


async def run(data: Path, count: int, seed: int) -> dict[str, Any]:
    """Scores every gold query, every alternative, and so many mutants."""
    rows = [json.loads(line) for line in (data / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
    environment = rlenv.load(
        "nl2sql", set={"tasks.test.path": str(data / "questions.jsonl"), "vars.databases": str(data / "databases")}
    )
    rng = random.Random(seed)
    made: list[tuple[int, str, str]] = []
    for index, row in enumerate(rows):
        for gold in dict.fromkeys(row["gold_sqls"]):
            made.extend((index, kind, text) for kind, text in mutants(gold, rng))
    rng.shuffle(made)
    chosen = list(dict.fromkeys(made))[:count]
    kinds: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    async with environment:
        golds = [
            await score(environment, "test", index, gold) for index, row in enumerate(rows) for gold in row["gold_sqls"]
        ]
        for index, kind, query in chosen:
            row = rows[index]
            should = expected(data / "databases" / f"{row['db']}.sqlite", query, row["gold_sqls"])
            found = await score(environment, "test", index, query)
            kinds[kind] += 1
            judged["equal rows" if should else "other rows"] += 1
            if found != float(should):
                wrong.append({"task": index, "kind": kind, "should": should, "found": found, "query": query})
    return {
        "questions": len(rows),
        "gold_queries": len(golds),
        "gold_at_maximum": sum(value == 1.0 for value in golds),
        "mutants": len(chosen),
        "kinds": dict(kinds),
        "rows": dict(judged),
        "judged_otherwise": len(wrong),
        "which": wrong[:20],
    }


def main() -> int:
    """Prints one JSON object; exit code 1 where a query was judged otherwise than its rows say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--mutants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"the public NL2SQL questions are not here: {args.data}; name them by --data")
        return 0
    found = asyncio.run(run(args.data, args.mutants, args.seed))
    print(json.dumps(found, indent=2))
    return 1 if found["judged_otherwise"] or found["gold_at_maximum"] < found["gold_queries"] else 0


if __name__ == "__main__":
    sys.exit(main())
