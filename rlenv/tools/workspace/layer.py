"""Folders that programs of the policy's have written: nothing here follows a link in one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["like", "regular_files", "remove", "unlink_out", "written_to"]

_MOST_RESULT: Final = 16_000_000
"""Bytes of a file that tests leave."""
_LEAST: Final = 1_024


def like(source: Path, copy: Path) -> None:
    """The owner, mode and marks of a folder of the layer, for its copy."""
    shutil.copystat(source, copy, follow_symlinks=False)
    status = os.lstat(source)
    with contextlib.suppress(PermissionError):
        os.chown(copy, status.st_uid, status.st_gid)


def unlink_out(folder: Path) -> None:
    """Removes links that may lead out of the folder, to what tests hold or read."""
    for place, folders, files in os.walk(folder):
        for path in (os.path.join(place, name) for name in (*folders, *files)):
            if os.path.islink(path) and ((to := os.readlink(path)).startswith("/") or ".." in to.split("/")):
                os.unlink(path)


def regular_files(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Regular files of a folder that programs of the policy's may have written to: no link is followed."""
    found: dict[str, bytes] = {}
    try:
        place = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            inner = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        finally:
            os.close(place)
    except OSError:
        return found
    try:
        for name in names:
            with contextlib.suppress(OSError):
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inner)
                with os.fdopen(file, "rb") as opened:
                    if stat.S_ISREG(os.fstat(file).st_mode):
                        found[name] = opened.read(_MOST_RESULT)
    finally:
        os.close(inner)
    return found


def written_to(folder: Path, most: int) -> int:
    """Bytes below a folder, each file and folder with what it takes at least; beyond `most` it is not exact.

    What lies too deep for a path counts as beyond it.
    """
    size, seen, rest = 0, set[int](), [str(folder)]
    while rest and size <= most:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if status.st_ino not in seen:
                        size += max(status.st_blocks * 512, _LEAST)
                    if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                        seen.add(status.st_ino)
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return most + 1
    return size


def remove(folder: Path) -> None:
    """Removes a folder in which programs may have made anything: closed folders, and trees deeper than a path."""
    for argv in (["chmod", "-R", "u+rwX", str(folder)], ["rm", "-rf", "--", str(folder)]):
        if argv[0] == "rm" or os.geteuid() != 0:
            with contextlib.suppress(OSError):
                subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True)
