"""The seam between a database's engine and all that databases have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from rlenv.resources.sql.limits import Limits
from rlenv.resources.sql.rows import Rows

__all__ = ["About", "Engine", "Opened"]

_S = TypeVar("_S")


class About(Protocol):
    """What is known of a database without a statement of the policy's.

    `schema` is the text of its CREATE statements. `version` is equal where equal statements give equal rows: the file
    and when it was changed; None for a private copy, which may be written.
    """

    schema: str
    version: tuple[str, int, int] | None

    def words(self) -> Sequence[str]:
        """The names of tables and columns; of very many the first."""


class Opened(Protocol):
    """A database as one episode has it."""

    @property
    def about(self) -> About:
        """What is known of it."""

    async def run(self, sql: str, limits: Limits) -> Rows:
        """What one statement gives, of at most `MAX_SQL` characters. Of a private copy's statements one runs at a time.

        Raises:
            ToolFailed: the statement is at fault, or ran out of time.
            ResourceError: the database is.
        """

    async def close(self) -> None:
        """Gives back what `open` took; a private copy is gone then. No statement runs any more."""


class Engine(Protocol[_S]):
    """One compiled entry's engine: how its files are opened. `dialect` is the name of its SQL, `title` its own."""

    dialect: ClassVar[str]
    title: ClassVar[str]

    def source(self, path: Path) -> _S:
        """The database of a file, which many episodes may open, one after another and at once.

        Raises:
            ResourceError: the file is missing or is no database; `open` may find that too.
        """

    def forget(self, source: _S) -> None:
        """Called where no episode will open `source` again; some may still have it open."""

    async def open(self, source: _S) -> Opened:
        """The database for one episode: shared, or a private copy.

        Raises:
            ResourceError: it cannot be opened.
        """

    def missing(self, message: str) -> tuple[str, str] | None:
        """The name that a failure's message says is not there, and the message without proposals; None without one."""
