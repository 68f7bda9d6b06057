"""Paths that a spec names: what its author writes may lie anywhere, what a row fills in stays where the author said.

The author says so by the template itself: in `../dbs/{{ task.db }}.sqlite` a row names something below `../dbs`, in
`{{ task.image }}` something below the spec's folder. An absolute name, `..` and a link that lead out of there are
refused, unless they lead below one of the spec's `roots`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlenv.language.templates import Template

__all__ = ["RefusedPath", "finder", "is_file", "is_folder", "leads_out", "names_in", "read_file", "real"]

MAX_SPEC_BYTES = 64_000_000


class RefusedPath(ValueError):
    """A path that a row may not name, or that no file can have; the message is short."""


def is_file(path: Path) -> bool:
    """True for a regular file that can be looked at; never raises."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):  # too long, a NUL, a circle of links
        return False


def is_folder(path: Path) -> bool:
    """True for a folder that can be looked at; never raises."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(item.name for item in folder.iterdir())
    except (OSError, ValueError):
        return []


def read_file(path: Path, *, most: int = MAX_SPEC_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError, ValueError: it is none (a device or a pipe would be read for ever), is larger, or cannot be read.
    """
    # Opening a pipe that nobody writes into waits, unless it is told not to.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("it is no regular file")
        if state.st_size > most:
            raise ValueError(f"it has more than {most // 1_000_000:,} MB")
        return file.read(state.st_size)


def real(path: Path) -> Path:
    """The absolute path without links.

    Raises:
        RefusedPath: no file can have it.
    """
    try:
        return path.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RefusedPath(f"'{str(path)[:80]}' is no path: {reason}") from error


def finder(template: Template, *, base: Path, roots: Sequence[Path] = (), **values: Any) -> Callable[[str], Path]:
    """What makes a path of a text that `template` was rendered to.

    Args:
        template: of a path, or of a name that is one.
        base: the folder that relative paths refer to.
        roots: folders of the spec's `roots`, below which rows may name paths too.
        values: what the template is rendered with; what it reads of `task` is not asked for.

    The function raises RefusedPath for a path that a row may not name.
    """
    if template.is_constant:
        return base.joinpath

    def find(text: str) -> Path:
        written = template.folder(**values)
        path = base / text
        if leads_out(path, (base / written, *roots)):
            raise RefusedPath(
                f"'{text[:200]}' leads out of '{written or '.'}'; a row names paths below it, or below one of the "
                "spec's roots"
            )
        return path

    return find


def leads_out(path: Path, folders: Iterable[Path]) -> bool:
    """True where `path`, its links followed, lies below none of `folders`.

    Raises:
        RefusedPath: no file can have such a path.
    """
    target = real(path)
    return not any(target.is_relative_to(real(folder)) for folder in folders)
