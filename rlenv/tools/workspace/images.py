"""Images: the folders that machines are booted over, as this machine's user can use them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from rlenv.errors import ResourceError
from rlenv.tools.workspace.machine import OUTSIDE_ROOT

__all__ = ["Image", "prepared"]

_BINDS: Final = ("/usr", "/etc", "/opt")
_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FOLDERS: Final = ("app", "home", "mnt", "proc", "dev", "root", "run", "srv", "sys", "tmp", "var/tmp", "var/log")


@dataclass(frozen=True, slots=True)
class Image:
    """A read-only folder; `binds` are folders of this machine that stand in it, read-only."""

    folder: Path
    binds: Sequence[str] = ()


def prepared(path: Path | None) -> Image:
    """The image in a folder or a .tar file; None gives one with this machine's own programs, which nobody changes.

    As root the files inside have owners of their own outside, so that an image is copied into the user's cache folder
    once; another user's image is one that this user has unpacked, and is taken as it is. Blocks.

    Raises:
        ResourceError: it cannot be read or unpacked.
    """
    try:
        if path is None:
            return Image(_cached("host", _host), tuple(one for one in _BINDS if Path(one).is_dir()))
        found = path.resolve(strict=True)
        if found.is_dir():
            owner = OUTSIDE_ROOT if os.geteuid() == 0 else os.geteuid()
            return Image(found) if found.stat().st_uid == owner else Image(_copied(found, _state(found)))
        status = found.stat()
        return Image(_copied(found, f"{found}\0{status.st_size}\0{status.st_mtime_ns}"))
    except (OSError, tarfile.TarError, shutil.Error) as error:
        raise ResourceError(f"the image '{path}' cannot be used: {error}") from error


def _state(folder: Path) -> str:
    """A folder's files by name, mode, size and time of their last change."""
    lines = [str(folder)]
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted((*files, *folders)):
            status = os.lstat(path := os.path.join(place, name))
            lines.append(f"{path}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}")
    return "\n".join(lines)


@lru_cache(maxsize=4_096)
def _copied(source: Path, state: str) -> Path:
    return _cached(
        hashlib.sha256(state.encode(errors="replace")).hexdigest()[:32], lambda target: _fill(source, target)
    )


def _fill(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=_special)
        for path in (target, *target.rglob("*")):
            status = os.lstat(source / path.relative_to(target))
            _owned(path, status.st_uid, status.st_gid)
        return
    with tarfile.open(source) as tar:
        for member in tar:
            if member.isdev():
                continue
            tar.extract(member, target, set_attrs=True, numeric_owner=True, filter="tar")
            _owned(target / member.name, member.uid, member.gid)
            if not member.issym():
                os.chmod(target / member.name, member.mode & 0o7777)


def _special(folder: str, names: list[str]) -> list[str]:
    """Devices, pipes and sockets, which no image needs: a machine has its own."""
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [
        name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


def _owned(path: Path, user: int, group: int) -> None:
    if os.geteuid() == 0:
        mode = os.lstat(path).st_mode
        os.lchown(path, OUTSIDE_ROOT + user % 65_536, OUTSIDE_ROOT + group % 65_536)
        if not os.path.islink(path):  # a change of owner takes away what lets a program run as another
            os.chmod(path, mode & 0o7777)


def _host(target: Path) -> None:
    for name in _FOLDERS:
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    for name in _LINKS:
        if (link := Path("/", name)).is_symlink():
            (target / name).symlink_to(os.readlink(link))
    for name in _BINDS:
        (target / name.strip("/")).mkdir(exist_ok=True)
    for path in target.rglob("*"):
        _owned(path, 0, 0)


def _cached(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by the first who asks, whole or not at all."""
    # Who is root inside is somebody else outside, and root's home is closed to others.
    home = "/var/cache" if os.geteuid() == 0 else Path.home() / ".cache"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home) / "rlenv" / "images"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{name}-{os.geteuid()}"
    with _locked(cache / f"{name}.lock"):
        if not target.is_dir():
            made = Path(tempfile.mkdtemp(dir=cache))
            try:
                made.chmod(0o755)
                _owned(made, 0, 0)
                fill(made)
                made.rename(target)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
