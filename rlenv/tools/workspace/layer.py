"""Folders that programs of the policy's have written: nothing here follows a link in one."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final

from rlenv.tools.workspace.machine import OUTSIDE_ROOT, own
from rlenv.tools.workspace.starters import groups

__all__ = [
    "kept_of",
    "made_here",
    "packed",
    "published",
    "regular_files",
    "remove",
    "swept",
    "swept_once",
    "unlink_out",
]
__all__ += ["written_to"]

_MOST_RESULT: Final = 16_000_000
"""Bytes of a file that tests leave."""
_LEAST: Final = 1_024
_MOST_LOST: Final = 4
_PREFIX: Final = "rlenv-machine-"


def _like(source: Path, copy: Path) -> None:
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
    with contextlib.suppress(OSError):
        if os.geteuid() != 0:
            _run("chmod", "-R", "u+rwX", str(folder))
        _run("rm", "-rf", "--", str(folder))


def _run(*argv: str) -> None:
    """Runs a program on folders of ours; once more where somebody outside has killed it half-way."""
    for _ in range(_MOST_LOST):
        if subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True).returncode >= 0:
            return


@lru_cache(maxsize=1)
def swept_once() -> None:
    """`swept`, once in a process."""
    swept()


def swept() -> None:
    """Removes the machines' folders of processes that were killed."""
    mine = (os.geteuid(), OUTSIDE_ROOT if os.geteuid() == 0 else os.geteuid())
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        found = re.fullmatch(rf"{_PREFIX}(\d+)-(\d+)-.*", path.name)
        if found is not None and found[2] != _begun(int(found[1])) and path.lstat().st_uid in mine:
            remove(path)
    for folder in groups(f"{_PREFIX}*"):
        found = re.search(rf"{_PREFIX}(\d+)-(\d+)-", str(folder))
        if found is None or found[2] != _begun(int(found[1])):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def _begun(pid: int) -> str:
    """When a process began, in ticks of the system since its start; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def kept_of(target: Path, keep: Sequence[str], layer: Path) -> Path:
    """The part of a layer that is kept: a copy of it, in which no link leads out."""
    if any(PurePosixPath(one) == PurePosixPath("/") for one in keep):
        return layer
    target.mkdir()
    own(target)
    for one in keep:
        source, copy = layer, target
        for part in PurePosixPath(one).parts[1:]:
            if source.is_symlink() or not source.is_dir() or part == "..":  # a link on the way keeps nothing
                source = target.parent / "nothing"
                break
            if not os.path.lexists(copy):
                copy.mkdir()
                _like(source, copy)
            source, copy = source / part, copy / part
        if os.path.lexists(source) and not os.path.lexists(copy):
            _run("cp", "--archive", "--link", "--no-target-directory", str(source), str(copy))
    return target


def made_here() -> Path:
    """A new folder for a machine, named after this process."""
    swept_once()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_begun(os.getpid())}-"))


def packed(folder: Path) -> str:
    """A folder's files as a packed archive, in base64: what a shell can take."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        tar.add(folder, ".")
    return base64.b64encode(held.getvalue()).decode()


def published(layer: Path, upper: Path) -> None:
    """Copies what an episode has put into `/logs/artifacts` to where tests see it; no link is followed."""
    source = layer / "logs" / "artifacts"
    if source.is_dir() and not source.is_symlink() and not source.parent.is_symlink():
        _run("cp", "--archive", "--no-target-directory", str(source), str(upper / "logs" / "artifacts"))
