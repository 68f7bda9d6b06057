"""What files and rows hold, by content: nothing here depends on where they stand."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from rlenv._base.jsonable import plain
from rlenv._base.paths import is_file
from rlenv.errors import RlenvError, SpecError
from rlenv.language.functions import import_function
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.spec import Spec
from rlenv.secrets import LITERAL, redact_value
from rlenv.tasks.rows import Tasks

__all__ = ["Say", "canonical", "digest_of", "entry_files", "file_sha256", "kept", "rows_sha256", "tree_sha256"]

Say = Callable[[str], None]
"""Is told, in one line, what takes long before it begins."""

_LARGE_BYTES: Final = 200_000_000
_LARGE_ROWS: Final = 100_000
_PIECE: Final = 1 << 20
_MOST_PATH: Final = 512

_TARGET: Final = re.compile(r"([^\s:]+):([A-Za-z_]\w*)")
_FUNCTION_KEYS: Final = frozenset(("function", "factory", "python"))
_PATH_KEYS: Final = frozenset(("path", "init", "copy_from"))
"""Of resources: templates, filled in for every row by `rlenv.runs.locks.parts`."""

_HIDDEN: Final = frozenset(("api_key", "authorization", "env", "headers", "password", "secret", "token"))
_NOT_SHOWN: Final = "(not shown)"
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s]+@")  # up to the last @: a password may hold others
_QUERY: Final = re.compile(r"(://[^\s?#]*)[?#]\S*")
_NAMED: Final = re.compile(r"\$\{env:[^}]*\}")


def canonical(value: Any) -> bytes:
    """A JSON value as the bytes that are hashed: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def digest_of(value: Any) -> str:
    """SHA-256 (hexadecimal) of any value of a spec: specs, sets and tuples count by what they hold."""
    return hashlib.sha256(canonical(_tidy(value))).hexdigest()


def kept(value: Any, *, hides: bool = False) -> Any:
    """A value as a lock holds it: JSON without nulls and empty mappings, and without anything that looks like a secret.

    Values that were given out for `${env:NAME}` stand by name; credentials and queries of addresses are cut.

    Args:
        hides: what stands under a key that holds secrets (`api_key`, `headers`, `env`) and names no variable is not
            shown; for what others wrote, since a tool or a term may well be called `token`.
    """
    return _filled(_without_secrets(redact_value(_tidy(value)), hides=hides, is_hidden=False))


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: found for key, item in value.items() if (found := _filled(item)) not in (None, {})}
    return [_filled(item) for item in value] if isinstance(value, list) else value


def _tidy(value: Any) -> Any:
    if isinstance(value, Spec):
        value = value.model_dump(by_alias=True)
    if isinstance(value, Mapping):
        return {str(key): _tidy(item) for key, item in value.items() if item is not None}
    if isinstance(value, (set, frozenset)):
        return sorted((_tidy(item) for item in value), key=canonical)  # their own order changes with the process
    if isinstance(value, (list, tuple)):
        return [_tidy(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return plain(value)


def _without_secrets(value: Any, *, hides: bool, is_hidden: bool) -> Any:
    if isinstance(value, str):
        if is_hidden:
            return " ".join(_NAMED.findall(value)) or _NOT_SHOWN  # what stands beside a variable may be a secret too
        return LITERAL.sub(_NOT_SHOWN, _QUERY.sub(r"\1", _CREDENTIALS.sub("", value)))
    if isinstance(value, Mapping):
        found = {}
        for key, item in value.items():
            is_below = is_hidden or (hides and not _HIDDEN.isdisjoint(key.lower().split(".")))
            shown = _without_secrets(key, hides=False, is_hidden=False)
            found[shown] = _without_secrets(item, hides=hides, is_hidden=is_below)
        return found
    if isinstance(value, list):
        return [_without_secrets(item, hides=hides, is_hidden=is_hidden) for item in value]
    return _NOT_SHOWN if is_hidden and value is not None and not isinstance(value, bool) else value


def file_sha256(path: Path, *, say: Say | None = None) -> str:
    """SHA-256 (hexadecimal) of a file, read in pieces; "" where it cannot be read."""
    digest = hashlib.sha256()
    try:
        if not is_file(path):  # a pipe or a device would be read for ever
            return ""
        size = path.stat().st_size
        if say is not None and size > _LARGE_BYTES:
            say(f"hashing {path.name} ({size / 1e9:.1f} GB)")
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return ""
    return digest.hexdigest()


def tree_sha256(folder: Path, *, say: Say | None = None, suffixes: tuple[str, ...] = ()) -> str:
    """SHA-256 (hexadecimal) over the names and contents of the files in a folder, with all below it.

    Args:
        suffixes: only files that end in one of these; all where there are none.
    """
    files = sorted(
        (path.relative_to(folder).as_posix(), path)
        for path in folder.rglob("*")
        if is_file(path) and (not suffixes or path.name.endswith(suffixes))
    )
    return digest_of([[name, file_sha256(path, say=say)] for name, path in files])


def rows_sha256(rows: Tasks, *, on_row: Callable[[Mapping[str, Any]], None], name: str, say: Say | None) -> str:
    """SHA-256 (hexadecimal) over the rows in the order in which they are played, each as JSON with sorted keys.

    Equal rows give an equal digest, whatever kind of file they stand in. They are read one at a time.

    Args:
        on_row: is given every row that can be read.
        name: of the split, for `say`.
    """
    if say is not None and len(rows) > _LARGE_ROWS:
        say(f"hashing the {len(rows):,} rows of {name}")
    digest = hashlib.sha256()
    for index in range(len(rows)):
        try:
            row = rows[index]
        except SpecError:  # the others are played all the same
            digest.update(b"!\n")
            continue
        digest.update(_row(row))
        digest.update(b"\n")
        on_row(row)
    return digest.hexdigest()


def _row(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS, default=_stated)
    except TypeError:  # a long integer, a lone surrogate, a key that is no text
        return json.dumps(plain(row), sort_keys=True, separators=(",", ":")).encode("ascii")


def _stated(value: Any) -> Any:
    """What orjson has no word for, such as bytes or a set, as text that is the same in every process."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__:
        return f"<{kind.__qualname__}>"  # its own text names an address
    return str(value)


def entry_files(loaded: LoadedSpec, path: str, entry: Any) -> dict[str, str]:
    """The SHA-256 of every file that an entry of a spec names, by the words in which it names it.

    Functions count by their file, and by the files beside it that this one imports; an agent's spec by its content and
    its own files. Paths that rows fill in are not among them.
    """
    found: dict[str, str] = {}
    content = entry.model_dump(by_alias=True) if isinstance(entry, Spec) else entry
    for keys, text in _texts(content):
        base = loaded.base_of(".".join((path, *keys)))
        if keys[-1] in _PATH_KEYS and path.startswith("resources."):
            continue
        target = _TARGET.fullmatch(text)
        if target is not None and (target[1].endswith(".py") or keys[-1] in _FUNCTION_KEYS):
            found.update(_function_files(text, target[1], base))
        elif len(text) <= _MOST_PATH and ("." in text or "/" in text) and "\n" not in text and is_file(base / text):
            found[text] = file_sha256(base / text)
            if getattr(entry, "kind", "") == "agent" and keys == ("spec",):
                found.update(_nested(text, base / text))
    return found


def _texts(value: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str) and keys:
        yield keys, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*keys, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _texts(item, (*keys, str(index)))


def _nested(written: str, path: Path) -> dict[str, str]:
    """The content of an agent's spec, and the files that its entries name."""
    inner = load_spec(path)
    found = {f"{written} (content)": inner.digest}
    for group in ("tools", "resources", "rewards"):
        for name, entry in getattr(inner.spec, group).items():
            for file, sha256 in entry_files(inner, f"{group}.{name}", entry).items():
                found[f"{file} (of {written})"] = sha256
    return found


def _function_files(target: str, where: str, base: Path) -> dict[str, str]:
    if where.endswith(".py"):
        file = base / where
        beside = {f"{name} (beside {where})": file_sha256(path) for name, path in _neighbours(file).items()}
        return {target: file_sha256(file), **beside} if is_file(file) else {}
    try:
        function = import_function(target, base=base)  # compiled already, so imported already
        source = inspect.getsourcefile(inspect.unwrap(function)) or getattr(sys.modules.get(where), "__file__", None)
    except (RlenvError, TypeError, ValueError):  # a callable object, or a compiled module
        source = getattr(sys.modules.get(where), "__file__", None)
    return {target: file_sha256(Path(source))} if source else {}


def _neighbours(file: Path) -> dict[str, Path]:
    """The files beside `file` that it imports, and those that these import, by their place in its folder.

    They are read off the text: what was imported from there for other specs says nothing of this one.
    """
    folder = file.resolve().parent
    found: dict[str, Path] = {}
    waiting = [file.resolve()]
    while waiting:
        for name in _imported(waiting.pop()):
            for path in _places(folder, name):
                place = path.relative_to(folder).as_posix()
                if place not in found and path != file.resolve():
                    found[place] = path
                    waiting.append(path)
    return dict(sorted(found.items()))


def _imported(path: Path) -> list[str]:
    """The dotted names that a file imports; names that are imported from a module may be modules too."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = f"{node.module}." if node.module else ""
            names += [f"{inside}{alias.name}" for alias in node.names]
    return names


def _places(folder: Path, name: str) -> Iterator[Path]:
    """The files below `folder` that importing `name` runs: each package on the way, and the module."""
    place = folder
    for part in name.split("."):
        if is_file(place / f"{part}.py"):
            yield place / f"{part}.py"
            return
        place /= part
        if not is_file(place / "__init__.py"):
            return
        yield place / "__init__.py"
