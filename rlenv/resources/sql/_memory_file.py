"""Files in memory, by which the image of a database goes from one process to another."""

from __future__ import annotations

import os
import tempfile

__all__ = ["read", "written"]


def written(image: bytes) -> int:
    """A descriptor of a new file that holds `image`; to be closed by whoever asked."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rlenv-image", os.MFD_CLOEXEC)
    else:
        fd, name = tempfile.mkstemp()
        os.unlink(name)
    try:
        view = memoryview(image)
        while view:
            view = view[os.write(fd, view) :]
    except BaseException:
        os.close(fd)
        raise
    return fd


def read(fd: int) -> bytes:
    """What the file holds."""
    size = os.fstat(fd).st_size
    found = bytearray()
    while len(found) < size:
        if not (piece := os.pread(fd, size - len(found), len(found))):
            break
        if len(piece) == size:
            return piece
        found += piece
    return bytes(found)
