"""Who writes or packs a run: one at a time, also of two that begin in the same instant."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Claim"]


class Claim:
    """A lock of the system on a folder, which ends with the process whatever ends it. It leaves no file.

    `is_sure` says whether the file system has such locks on folders; NFS has not, and nothing is told there. Between
    hosts it holds as far as the file system's locks do.

    Raises:
        BlockingIOError: another one has it.
        OSError: the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self.is_sure = False
        self._handle = -1
        if fcntl is None:
            return
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise BlockingIOError(error.errno, os.strerror(error.errno), str(folder)) from error
            return
        self.is_sure, self._handle = True, handle

    def release(self) -> None:
        """Lets the next one begin; a second time is nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
