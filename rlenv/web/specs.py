"""The specs below the folders that a server may touch: listed, read and saved; no path leads out of them."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rlenv._base.paths import read_file
from rlenv.errors import UsageError
from rlenv.language.shipped import shipped

__all__ = ["SpecChanged", "below", "read_versioned", "save_spec", "spec_at", "specs_below"]

_SUFFIXES: Final = (".yaml", ".yml")
_DEPTH: Final = 8
_MOST: Final = 2_000
_MOST_FOLDERS: Final = 20_000
_HEAD: Final = 8_192
_SPEC: Final = re.compile(rb"^(rlenv[ \t]*:|extends[ \t]*:)", re.MULTILINE)
_SAVING: Final = threading.Lock()
_PASSED: Final = ("node_modules", "__pycache__", "journal", "episodes", "bodies", "blobs", "tape", "late")


class SpecChanged(UsageError):
    """Somebody else has written the spec since it was read."""


def below(given: str, roots: Sequence[Path]) -> Path:
    """The path that a text names, once no link in it leads out of the roots.

    A relative one is taken from each root, the first under which something stands; from the first root otherwise.

    Raises:
        UsageError: it leads out of the roots, or there are none.
    """
    if not given or "\0" in given:
        raise UsageError("expected a path", key="path", hint="GET /api/specs lists the specs")
    whole = [Path(os.path.realpath(root)) for root in roots]
    tried = [Path(given)] if Path(given).is_absolute() else [root / given for root in whole]
    try:
        real = [Path(os.path.realpath(path)) for path in tried]
        inside = [path for path in real if any(path.is_relative_to(root) for root in whole)]
        there = next((path for path in inside if path.exists()), None)
    except (OSError, ValueError) as error:  # a name that is too long, or half of a character
        reason = error.strerror if isinstance(error, OSError) else "it is no text of UTF-8"
        raise UsageError(f"no file can have this path: {reason}", key="path", hint="give another name") from error
    if not inside:
        shown = ", ".join(map(str, roots)) or "none are given"
        raise UsageError(
            f"'{given[:200]}' is not below the folders that are served", key="path", hint=f"these: {shown}"
        )
    return there or inside[0]


def spec_at(given: str, roots: Sequence[Path]) -> Path:
    """The spec that a text names: a YAML file below the roots, or one that ships with rlenv by its name.

    Raises:
        UsageError: it leads out of the roots, or is no YAML file.
    """
    known = shipped()
    if given in known:
        return known[given]
    path = below(given, roots)
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"'{given[:200]}' is no spec", key="path", hint="specs end in .yaml or .yml")
    return path


def specs_below(roots: Sequence[Path]) -> Iterator[Path]:
    """The YAML files below the roots that look like specs, by name; links to folders are not followed."""
    left = _MOST
    for root in roots:
        for path in _yaml_files(Path(os.path.realpath(root))):
            if left and _is_spec(path):
                left -= 1
                yield path


def _yaml_files(root: Path) -> Iterator[Path]:
    for number, (folder, inner, files) in enumerate(os.walk(root)):
        depth = len(Path(folder).relative_to(root).parts)
        is_last = depth >= _DEPTH or number >= _MOST_FOLDERS
        inner[:] = [] if is_last else sorted(one for one in inner if one[0] != "." and one not in _PASSED)
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(_SUFFIXES))


def _is_spec(path: Path) -> bool:
    try:
        if not path.is_file() or path.is_symlink():
            return False
        with path.open("rb") as file:
            return _SPEC.search(file.read(_HEAD)) is not None
    except OSError:
        return False


def read_versioned(path: Path) -> tuple[str, str]:
    """The text of a spec, and what tells it from any other text that may stand there later; see `save_spec`.

    Raises:
        UsageError: it cannot be read, or is not UTF-8.
    """
    data = _content(path)
    return _decoded(path, data), _version(data)


def _content(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}'", key="path") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}", key="path") from error


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except ValueError as error:
        raise UsageError(f"'{path}' cannot be read: {error}", key="path") from error


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def save_spec(path: Path, text: str, *, before: str | None = None) -> str:
    """Writes a spec, whole or not at all, and returns the version of what now stands there.

    Args:
        before: the version that the text was made of, "" for a file that was not there: another one is not written
            over. None writes over whatever is there.

    Raises:
        SpecChanged: another version stands there.
        UsageError: it cannot be written, or the text is none that UTF-8 can hold.
    """
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder '{path.parent}'", key="path", hint="make it first")
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"'{path}' is no file", key="path", hint="give another name")
        data = text.encode("utf-8")
        beside.write_bytes(data)
        with _SAVING:  # of two pages that save at once the second one is told
            if path.exists():
                beside.chmod(stat.S_IMODE(path.stat().st_mode))
            if before is not None and before != (_version(_content(path)) if path.exists() else ""):
                raise SpecChanged(
                    f"'{path}' has changed since it was read here, and is not written over",
                    key="path",
                    hint="copy your text, load the page again, and put the two together",
                )
            beside.replace(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be written: {error}", key="path") from error
    finally:
        beside.unlink(missing_ok=True)
    return _version(data)
