"""Kept results in a file that processes share (SQLite in WAL mode: every write is whole or not there)."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["DiskStore", "default_path"]

_log = logging.getLogger("rlenv.tools")
_BUSY_S = 2.0
_SWEEP_EVERY = 64


def default_path() -> Path:
    """The file in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlenv" / "calls.sqlite"


class DiskStore:
    """Results of one tool in a file. A file that cannot be read or written only costs the results: it never raises.

    `owner` is the tool's identity; `max_entries` bounds its entries, the oldest are dropped first.
    """

    is_slow = True

    def __init__(
        self,
        path: Path,
        *,
        owner: str,
        max_entries: int,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._owner = owner
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._raw: sqlite3.Connection | None = None
        self._process = 0
        self._puts = 0
        self._is_reported = False

    def get(self, key: bytes) -> bytes | None:
        """The packed result; None where there is none or it is too old."""
        least = self._clock() - self._ttl_s if self._ttl_s is not None else float("-inf")
        with self._lock:
            try:
                row = (
                    self._connection()
                    .execute(
                        "SELECT packed FROM kept WHERE owner = ? AND key = ? AND at > ?", (self._owner, key, least)
                    )
                    .fetchone()
                )
            except (sqlite3.Error, sqlite3.Warning, OSError) as error:
                self._give_up(error)
                return None
        return row[0] if row is not None and isinstance(row[0], bytes) else None

    def put(self, key: bytes, packed: bytes) -> None:
        """Keeps a result."""
        with self._lock:
            try:
                raw = self._connection()
                raw.execute(
                    "INSERT OR REPLACE INTO kept (owner, key, at, packed) VALUES (?, ?, ?, ?)",
                    (self._owner, key, self._clock(), packed),
                )
                self._puts += 1
                if self._puts % _SWEEP_EVERY == 1:
                    self._sweep(raw)
            except (sqlite3.Error, sqlite3.Warning, OSError) as error:
                self._give_up(error)

    def close(self) -> None:
        """Closes the file; the next call opens it again."""
        with self._lock:
            raw, self._raw = self._raw, None
            if raw is not None and self._process == os.getpid():
                raw.close()

    def _sweep(self, raw: sqlite3.Connection) -> None:
        if self._ttl_s is not None:
            raw.execute("DELETE FROM kept WHERE owner = ? AND at <= ?", (self._owner, self._clock() - self._ttl_s))
        raw.execute(
            "DELETE FROM kept WHERE owner = :owner AND rowid IN "
            "(SELECT rowid FROM kept WHERE owner = :owner ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET :most)",
            {"owner": self._owner, "most": self._max_entries},
        )

    def _connection(self) -> sqlite3.Connection:
        if self._raw is None or self._process != os.getpid():  # SQLite's connections do not survive a fork
            self._path.parent.mkdir(parents=True, exist_ok=True)
            raw = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = NORMAL")
            raw.execute(
                "CREATE TABLE IF NOT EXISTS kept (owner TEXT, key BLOB, at REAL, packed BLOB, PRIMARY KEY (owner, key))"
            )
            self._raw, self._process = raw, os.getpid()
        return self._raw

    def _give_up(self, error: Exception) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
        if not self._is_reported:
            self._is_reported = True
            _log.warning("the cache %s cannot be used: %s", self._path, error)
