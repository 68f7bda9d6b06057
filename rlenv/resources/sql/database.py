"""What an episode has of a database, whichever engine it is."""

from __future__ import annotations

import asyncio
from typing import Any

from rlenv._base.nearest import nearest
from rlenv.errors import ResourceError, ToolFailed
from rlenv.resources.sql.engine import Engine, Opened
from rlenv.resources.sql.limits import MAX_SIZE, MAX_SQL, limits_for
from rlenv.resources.sql.rows import Rows

__all__ = ["Database"]


class Database:
    """An opened database.

    `schema` is the text of its CREATE statements, `dialect` the name of its SQL (`sqlite`, `duckdb`). `version` is
    equal where equal statements give equal rows: the file and when it was changed. It is None for a private copy, which
    may be written.
    """

    __slots__ = ("_engine", "_is_closed", "_opened", "_turn")

    def __init__(self, opened: Opened, engine: Engine[Any], *, is_private: bool) -> None:
        self._opened = opened
        self._engine = engine
        self._turn = asyncio.Lock() if is_private else None
        self._is_closed = False

    @property
    def dialect(self) -> str:
        return self._engine.dialect

    @property
    def schema(self) -> str:
        return self._opened.about.schema

    @property
    def version(self) -> tuple[str, int, int] | None:
        return self._opened.about.version

    async def query(
        self,
        sql: str,
        *,
        deadline: float,
        max_rows: int = 10_000,
        max_size: int = MAX_SIZE,
        cpu_s: float | None = None,
        is_urgent: bool = False,
    ) -> Rows:
        """What one statement gives; the event loop is held for a few milliseconds at most.

        Args:
            deadline: when to stop it, on the clock of `time.monotonic()`.
            max_rows: how many rows are given at most.
            max_size: how many characters their cells may take together, as JSON.
            cpu_s: how much processor time it may use; a quarter of the time to the deadline otherwise.
            is_urgent: before others where several wait, for what a reward asks.

        Raises:
            ToolFailed: the statement is at fault (the engine's message, shortened), or ran out of time; `reason` says
                whether it used its time up (`timeout`) or did not get it (`stalled`, `busy`, `worker`).
            ResourceError: the database is.
        """
        if len(sql) > MAX_SQL:
            raise ToolFailed(f"the statement is longer than {MAX_SQL} characters", reason="too_large")
        limits = limits_for(deadline, cpu_s=cpu_s, max_rows=max_rows, max_size=max_size, is_urgent=is_urgent)
        try:
            if self._turn is None:
                return await self._opened.run(sql, limits)
            async with self._turn:
                if self._is_closed:
                    raise ResourceError("the database was closed")
                try:
                    return await self._opened.run(sql, limits)
                finally:
                    if self._is_closed:  # this statement was left behind
                        await self._opened.close()
        except ToolFailed as error:
            hinted = self._hinted(error.text)
            if hinted == error.text:
                raise
            raise ToolFailed(hinted, reason=error.reason) from error

    def _hinted(self, message: str) -> str:
        found = self._engine.missing(message)
        if found is None:
            return message
        name, message = found
        close = nearest(name.rpartition(".")[2], self._opened.about.words())
        return f"{message}; did you mean {close}?" if close else message

    async def close(self) -> None:
        """Ends the use of the database; a private copy is gone once no statement uses it."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._turn is None or not self._turn.locked():
            await self._opened.close()
