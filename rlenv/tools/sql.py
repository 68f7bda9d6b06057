"""The `sql` tool: one statement on a `sqlite` or `duckdb` resource.

The text is a table of one line a row, cells separated by ` | `, under the columns' names:

    name | age
    Ann | 31
    NULL | 7
    (12 more rows)

Line breaks in a cell are written `\\n`, bytes as `x'0AFF'`, and long cells are cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from rlenv.language.kinds import CompileContext, Kind
from rlenv.language.spec import Int, Text, ToolSpec
from rlenv.resources.sql import MAX_SIZE, Rows
from rlenv.resources.sql.resource import Database, SqlResource
from rlenv.tools.base import Tool, ToolContext, ToolOutput, common

_VALUE_ROWS = 10_000
_CELL_CHARS = 200
_KEPT_CHARS = 60_000
"""Of the value of a call that a policy makes, whose rows are kept with the trajectory; no row is cut."""


class SqlSpec(ToolSpec):
    """Runs one SQL statement."""

    kind: Literal["sql"]
    resource: Text
    """The database: the name of a resource of kind sqlite or duckdb."""
    max_rows: Annotated[Int, Field(ge=1, le=_VALUE_ROWS)] = 50
    """How many rows the model sees; rewards see up to 10,000 and 8 MB of them."""


def _cell_text(value: Any) -> str:
    if value is None:
        return "NULL"
    # Booleans, lists and objects come from DuckDB.
    text = orjson.dumps(value).decode() if isinstance(value, bool | list | dict) else str(value)
    if len(text) > _CELL_CHARS:
        text = text[: _CELL_CHARS - 1] + "…"
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _table(rows: Rows, max_rows: int) -> str:
    if not rows.columns:
        return f"({rows.changed} row{'' if rows.changed == 1 else 's'} changed)"
    lines = [" | ".join(rows.columns)]
    lines += [" | ".join([_cell_text(value) for value in row]) for row in rows.rows[:max_rows]]
    more = len(rows.rows) - max_rows
    if not rows.rows:
        lines.append("(no rows)")
    elif rows.truncated:
        lines.append(f"(more than {max(more, 0)} more rows)")
    elif more > 0:
        lines.append(f"({more} more row{'' if more == 1 else 's'})")
    return "\n".join(lines)


def compile_sql(name: str, spec: SqlSpec, context: CompileContext) -> Sequence[Tool]:
    """One tool with the argument `sql`.

    Its value is `{"columns": […], "rows": [[…]], "truncated": bool}` with at most 10,000 rows, of which a reward's own
    call gets 8 MB and a policy's 60,000 characters. On a resource with `access: copy` the tool counts as one that
    changes state.

    Raises:
        UsageError: the resource does not exist or is of another kind.
    """
    resource = context.resource(spec.resource, SqlResource, "sqlite or duckdb")
    can_write = resource.access == "copy"
    max_rows = spec.max_rows

    async def run(arguments: Mapping[str, Any], call: ToolContext) -> ToolOutput:
        database: Database = call.resources[spec.resource]
        is_reward = call.turn < 0
        rows = await database.query(
            arguments["sql"],
            deadline=call.deadline,
            max_rows=_VALUE_ROWS,
            max_size=MAX_SIZE if is_reward else _KEPT_CHARS,
            is_urgent=is_reward,
        )
        return ToolOutput(
            _table(rows, max_rows), {"columns": list(rows.columns), "rows": rows.rows, "truncated": rows.truncated}
        )

    does = "Run one SQL statement" if can_write else "Run one SELECT statement"
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"sql": {"type": "string", "description": f"One {resource.engine.title} statement."}},
        "required": ["sql"],
    }
    return (
        Tool(
            name=name,
            description=spec.description or f"{does} and read its rows.",
            parameters=parameters,
            run=run,
            mode="async",
            # A database that may be written is the episode's own; one that may not can still be chosen by the task.
            depends_on="episode" if can_write else "task",
            **{**common(spec, idempotent=not can_write), "mutates": spec.mutates or can_write},
        ),
    )


KIND = Kind(SqlSpec, compile_sql, is_local=True)
