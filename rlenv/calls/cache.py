"""Results of equal calls, kept in memory or on disk: canonical arguments as the key, one flight for equal calls."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import orjson

from rlenv._base.paths import user_cache
from rlenv.concurrency.deadline import Expired
from rlenv.concurrency.lanes import heard_again, hearing
from rlenv.errors import ToolFailed
from rlenv.messages import Image
from rlenv.secrets import redact, redact_value
from rlenv.tools.base import DependsOn, ToolContext, ToolOutput

MAX_ENTRY_BYTES = 4_000_000
MAX_STORE_BYTES = 256_000_000
"""Of one tool's results in memory: policies choose what is asked, and pages of megabytes would fill it."""
_SORTED = orjson.OPT_SORT_KEYS
_EPISODE = "rlenv.calls.cache"


class Store(Protocol):
    """Packed results by key; both methods may be called from any thread, and `is_slow` ones only from there."""

    is_slow: bool

    def get(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, packed: bytes) -> None: ...


class MemoryStore:
    """Results in this process; the ones used longest ago are pushed out, beyond a number of them and of bytes."""

    is_slow = False

    def __init__(
        self,
        *,
        max_entries: int,
        max_bytes: int = MAX_STORE_BYTES,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries, self._max_bytes, self._bytes = max_entries, max_bytes, 0
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()

    def get(self, key: bytes) -> bytes | None:
        """The packed result; None where there is none or it is too old."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            if self._ttl_s is not None and self._clock() - found[0] >= self._ttl_s:
                self._drop(key)
                return None
            self._kept.move_to_end(key)
            return found[1]

    def put(self, key: bytes, packed: bytes) -> None:
        """Keeps a result."""
        with self._lock:
            self._drop(key)
            self._kept[key] = (self._clock(), packed)
            self._bytes += len(packed)
            while len(self._kept) > self._max_entries or self._bytes > self._max_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self._bytes -= len(self._kept.pop(key, (0.0, b""))[1])


def pack(output: ToolOutput, heard: Sequence[Any] = ()) -> bytes | None:
    """A result as bytes, with what it stands on; None where it cannot be given back as it is, or is too large to keep.

    Secrets are taken out first, since a store may outlive the process.
    """
    if len(output.text) > MAX_ENTRY_BYTES:
        return None
    value = redact_value(output.value)
    images = [[image.mime, image.base64] for image in output.images]
    try:
        held = [redact(output.text), value, images, redact_value(output.details)]
        packed = orjson.dumps([*held, heard] if heard else held)
    except TypeError:
        return None
    if len(packed) > MAX_ENTRY_BYTES or (value is not None and orjson.loads(packed)[1] != value):
        return None
    return packed


def unpack(packed: bytes) -> ToolOutput:
    """A fresh copy of the result, so that nobody can change what others get; the tape is told what it stands on."""
    text, value, images, details, *heard = orjson.loads(packed)
    heard_again(*heard or [[]])
    return ToolOutput(text, value, tuple(Image(mime, base64) for mime, base64 in images), details)


class _Episode:
    """The results kept for one episode; `generation` changes whenever a tool changed the episode's state."""

    __slots__ = ("generation", "store")

    def __init__(self) -> None:
        self.generation = 0
        self.store: dict[str, MemoryStore] = {}


def _episode_cache(context: ToolContext) -> _Episode:
    return context.scope().keep(_EPISODE, _Episode)


def forget_episode(context: ToolContext) -> None:
    """Called after a tool that mutates: what was read of the episode's state may not hold any more."""
    _episode_cache(context).generation += 1


@dataclass(eq=False, slots=True)
class CallCache:
    """The kept results of one tool.

    Args:
        identity: what the tool is known by.
        store: for results that episodes share; None keeps all for one episode only.
        depends_on: what equal results need beside equal arguments. With `episode`, results are never shared between
            episodes and hold only until a tool that mutates has run.
    """

    identity: str
    store: Store | None
    depends_on: DependsOn
    make_store: Callable[[], MemoryStore]
    in_thread: Callable[..., Awaitable[Any]]
    _flights: dict[tuple[int, bytes], asyncio.Future[bytes | ToolFailed | None]] = field(default_factory=dict)

    async def get_or_run(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,
        *,
        until: float,
        run: Callable[[], Awaitable[ToolOutput]],
    ) -> tuple[ToolOutput, bool]:
        """The result, and whether it was there already or came from an equal call at the same time.

        A failure of the policy's that would come again is shared with equal calls at the same time; after any other,
        and where a result cannot be kept, each of them runs for itself.

        Raises:
            Expired: an equal call did not end until then.
        """
        key = self._result_key(arguments, context)
        if key is None:
            return await run(), False
        store: Store
        flight_key = (id(asyncio.get_running_loop()), key)
        if self.store is None or self.depends_on == "episode":
            kept = _episode_cache(context)
            store = kept.store.setdefault(self.identity, self.make_store())
            flight_key = (id(kept), key + b"%d" % kept.generation)
            key = key + b"%d" % kept.generation
        else:
            store = self.store
        packed = await self.in_thread(store.get, key) if store.is_slow else store.get(key)
        with suppress(ValueError, TypeError):  # what a file holds may be broken, and is written anew
            if packed is not None:
                return unpack(packed), True
        flight = self._flights.get(flight_key)
        if flight is not None and flight.get_loop() is asyncio.get_running_loop():
            return await self._follow(flight, until=until, run=run)
        return await self._lead(flight_key, key, store, run), False

    async def _follow(
        self,
        flight: asyncio.Future[bytes | ToolFailed | None],
        *,
        until: float,
        run: Callable[[], Awaitable[ToolOutput]],
    ) -> tuple[ToolOutput, bool]:
        await asyncio.wait((flight,), timeout=max(until - time.monotonic(), 0))
        if not flight.done():
            raise Expired()
        landed = flight.result()
        if isinstance(landed, ToolFailed):
            raise ToolFailed(landed.text, reason=landed.reason, details=landed.details, whose=landed.whose)
        return (await run(), False) if landed is None else (unpack(landed), True)

    async def _lead(
        self, flight_key: tuple[int, bytes], key: bytes, store: Store, run: Callable[[], Awaitable[ToolOutput]]
    ) -> ToolOutput:
        flight: asyncio.Future[bytes | ToolFailed | None] = asyncio.get_running_loop().create_future()
        self._flights[flight_key] = flight
        landed: bytes | ToolFailed | None = None
        try:
            with hearing() as heard:
                output = await run()
            landed = pack(output, heard)
            if landed is not None:
                if store.is_slow:
                    await self.in_thread(store.put, key, landed)
                else:
                    store.put(key, landed)
            return output
        except ToolFailed as failure:
            landed = failure if failure.whose == "policy" and not failure.retryable else None
            raise
        finally:
            if self._flights.get(flight_key) is flight:
                del self._flights[flight_key]
            flight.set_result(landed)

    def _result_key(self, arguments: Mapping[str, Any], context: ToolContext) -> bytes | None:
        """None where the call has no canonical form, as one with NaN, inf or a tuple; then it is simply run."""
        parts = [self.identity, arguments, dict(context.task) if self.depends_on != "arguments" else None]
        with suppress(TypeError):
            if orjson.loads(orjson.dumps(arguments)) == arguments:
                return blake2b(orjson.dumps(parts, option=_SORTED), digest_size=24).digest()
        return None


_log = logging.getLogger("rlenv.tools")
_BUSY_S = 2.0
_SWEEP_EVERY = 64
_DISK_BYTES = 100_000
"""What results have room for on disk, on average: 1 GB for 10,000 of them."""


def default_path() -> Path:
    """The file in the user's cache folder."""
    return user_cache() / "calls.sqlite"


class DiskStore:
    """Results of one tool in a file. A file that cannot be read or written only costs the results: it never raises.

    `owner` is the tool's identity; `max_entries` bounds its entries and `max_bytes` their size together (by default
    100 kB an entry); the oldest are dropped first, after every 64 results.
    """

    is_slow = True

    def __init__(
        self,
        path: Path,
        *,
        owner: str,
        max_entries: int,
        max_bytes: int | None = None,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._owner = owner
        self._max_entries = max_entries
        self._max_bytes = max_entries * _DISK_BYTES if max_bytes is None else max_bytes
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
            "DELETE FROM kept WHERE rowid IN (SELECT id FROM (SELECT rowid AS id, row_number() OVER newest AS place, "
            "sum(length(packed)) OVER newest AS bytes FROM kept WHERE owner = ? "
            "WINDOW newest AS (ORDER BY at DESC, rowid DESC)) WHERE place > ? OR bytes > ?)",
            (self._owner, self._max_entries, self._max_bytes),
        )

    def _connection(self) -> sqlite3.Connection:
        if self._raw is None or self._process != os.getpid():  # SQLite's connections do not survive a fork
            self._path.parent.mkdir(parents=True, exist_ok=True)
            raw = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._raw, self._process = raw, os.getpid()  # closed where what follows fails
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = NORMAL")
            raw.execute(
                "CREATE TABLE IF NOT EXISTS kept (owner TEXT, key BLOB, at REAL, packed BLOB, PRIMARY KEY (owner, key))"
            )
        return self._raw

    def _give_up(self, error: Exception) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
        if not self._is_reported:
            self._is_reported = True
            _log.warning("the cache %s cannot be used: %s", self._path, error)
