"""Folders in the user's cache that are made once: by one process at a time, and seen when they are whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rlenv.errors import UsageError

__all__ = ["MANIFEST", "cache_folder", "digest_of", "is_whole", "made_once", "named_after", "read_manifest"]

MANIFEST: Final = "rlenv_model.json"
"""Written last: what the folder was made of, and the size of each file in it."""


def cache_folder() -> Path:
    """Where models are kept that were made here: `rlenv/models` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlenv" / "models"


def made_once(target: Path, make: Callable[[Path], dict[str, Any]]) -> Path:
    """`target`, made by `make` where it is not there or not whole any more.

    `make` writes into an empty folder beside it and says what it was made of. Of several processes one makes it, and
    the others wait; a process that is killed leaves nothing that is taken for whole, and what it left is removed by
    the next.

    Raises:
        UsageError: the folder cannot be written.
    """
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target) as is_alone:
            if is_whole(target):  # another process made it meanwhile
                return target
            for stale in target.parent.glob(f".{_literal(target.name)}.partial-*") if is_alone else ():
                shutil.rmtree(stale, ignore_errors=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
            try:
                _close(draft, make(draft))
                os.chmod(draft, 0o755)
                if target.is_symlink() or target.is_file():
                    target.unlink()
                elif target.exists():  # what lacks a file, or was made of something else
                    shutil.rmtree(target)
                draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or target} cannot be written ({error.strerror or error}), where the model is to be kept",
            hint="XDG_CACHE_HOME names another folder for what is kept",
        ) from error
    return target


def is_whole(folder: Path) -> bool:
    """Whether a folder was made to its end, and none of its files has changed its size or gone since."""
    sizes = read_manifest(folder).get("files")
    if not isinstance(sizes, dict) or not sizes:
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a folder was made of; {} where it does not say."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _close(folder: Path, made_of: dict[str, Any]) -> None:
    """Closes a folder: from here on it is whole."""
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    text = json.dumps({**made_of, "files": sizes}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def named_after(name: str) -> str:
    """The part of a kept folder's name that tells people what it is."""
    return re.sub(r"[^\w.-]+", "-", name)[:80].strip(".-") or "model"


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content.

    Large files are read once: the digest is kept beside the models, for this path, size and times of change.
    """
    real = path.resolve()
    stat = real.stat()
    seen = [str(real), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    index = cache_folder() / "digests" / f"{hashlib.sha256(os.fsencode(real)).hexdigest()[:24]}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(index.read_text(encoding="utf-8"))
        if known["seen"] == seen:
            return str(known["sha256"])
    with real.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # it only saves time
        index.parent.mkdir(parents=True, exist_ok=True)
        draft = index.with_name(f"{index.name}.{os.getpid()}")
        draft.write_text(json.dumps({"seen": seen, "sha256": found}) + "\n", encoding="utf-8")
        os.replace(draft, index)
    return found


def _literal(name: str) -> str:
    """`name` for a glob that means it letter by letter."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[bool]:
    """Holds the target for this process; False on a file system without locks, where two may make it at once."""
    descriptor = os.open(target.with_name(f".{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        is_alone = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_alone = True
        yield is_alone
    finally:
        os.close(descriptor)
