"""A limit on calls at once over all processes of a machine, kept by the system's file locks.

A place is one byte of a file, locked by the process that has it (POSIX record locks, `fcntl`). The system gives a
process's locks back however it ends, SIGKILL included, and a forked child inherits none.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import stat
import tempfile
import threading
import time
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from rlenv.errors import ResourceError

__all__ = ["SharedPlaces", "shared_places"]

_FIRST_S = 0.002
_LONGEST_S = 0.05


class SharedPlaces:
    """At most `limit` places taken at once by all processes that name the same file.

    One object a file and process: closing any descriptor of a file gives all of the process's locks on it back.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self.path = path
        self.limit = limit
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._process = os.getpid()
        try:
            _make_own(path.parent.parent)
            _make_own(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise ResourceError(f"shared_concurrency: cannot open {path}: {error.strerror}") from error
        finalize(self, os.close, self._file)

    def try_take(self) -> int | None:
        """A place, or None where all are taken."""
        with self._lock:
            if os.getpid() != self._process:  # a forked child has none of its parent's places
                self._taken = set()
                self._process = os.getpid()
            first = random.randrange(self.limit)
            for offset in range(self.limit):
                place = (first + offset) % self.limit
                if place in self._taken:
                    continue
                try:
                    fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                except OSError:
                    continue
                self._taken.add(place)
                return place
            return None

    async def take(self, *, until: float) -> int | None:
        """A place once there is one; None where none is free until then (on the clock of `time.monotonic()`)."""
        pause = _FIRST_S
        while (place := self.try_take()) is None:
            left = until - time.monotonic()
            if left <= 0:
                return None
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(pause * 1.5, _LONGEST_S)
        return place

    def free(self, place: int) -> None:
        """Gives a place back."""
        with self._lock:
            if place in self._taken:
                self._taken.discard(place)
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _make_own(folder: Path) -> None:
    """Makes a folder that is this user's alone; in a folder for all, others may have made it first.

    Raises:
        ResourceError: it is another user's, a link, or open to others.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ResourceError(
            f"shared_concurrency: {folder} is not a folder that only this user can write; remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own"
        )


_open: WeakValueDictionary[Path, SharedPlaces] = WeakValueDictionary()
_open_lock = threading.Lock()


def shared_places(name: str, *, limit: int) -> SharedPlaces:
    """The places that all processes of this user and machine share under `name`.

    Raises:
        ResourceError: the file of the locks cannot be made.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR")
    root = Path(folder) / "rlenv" if folder else Path(tempfile.gettempdir()) / f"rlenv-{os.getuid()}"
    # The limit is part of the name: processes that disagree on it do not share.
    path = root / "places" / f"{name}-{limit}"
    with _open_lock:
        found = _open.get(path)
        if found is None:
            found = _open[path] = SharedPlaces(path, limit=limit)
        return found
