"""The contents of files and rows, and of the code: nothing here depends on where they stand.

A command as it is kept and shown: without what looks like a secret, as a lock is. The identity of the code: rlenv's
version and commit, the packages that it stands on, Python and the platform.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

import rlenv
from rlenv._base.bounded import plain
from rlenv._base.paths import is_file, is_folder
from rlenv.errors import SpecError
from rlenv.language.spec import Spec
from rlenv.secrets import LITERAL, redact_value
from rlenv.tasks.rows import Tasks

Say = Callable[[str], None]
"""Is told, in one line, what takes long before it begins."""

UNREADABLE: Final = "unreadable"
"""Stands for the digest of what could not be read: nobody knows whether two of them are equal."""
_LARGE_BYTES: Final = 200_000_000
_LARGE_ROWS: Final = 100_000

_LOGS: Final = ("-wal", ".wal")
"""The suffixes of the logs of SQLite and of DuckDB."""

_HIDDEN: Final = frozenset(("api_key", "authorization", "env", "headers", "password", "secret", "token"))
_NOT_SHOWN: Final = "(not shown)"
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s]+@")  # up to the last @: a password may hold others
_QUERY: Final = re.compile(r"(://[^\s?#]*)[?#]\S*")
_NAMED: Final = re.compile(r"\$\{env:[^}]*\}")


def json_bytes(value: Any) -> bytes:
    """A JSON value as the bytes that are hashed: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def digest_of(value: Any) -> str:
    """SHA-256 (hexadecimal) of any value of a spec: specs, sets and tuples count by what they hold."""
    return hashlib.sha256(json_bytes(_to_json(value))).hexdigest()


def to_lock(value: Any, *, hides: bool = False) -> Any:
    """A value as a lock holds it: JSON without nulls and empty mappings, and without anything that looks like a secret.

    Values that were given out for `${env:NAME}` stand by name; credentials and queries of addresses are cut.

    Args:
        hides: what stands under a key that holds secrets (`api_key`, `headers`, `env`) and names no variable is not
            shown; for what others wrote, since a tool or a term may well be called `token`.
    """
    return _drop_empty(_without_secrets(redact_value(_to_json(value)), hides=hides, is_hidden=False))


def _drop_empty(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: found for key, item in value.items() if (found := _drop_empty(item)) not in (None, {})}
    return [_drop_empty(item) for item in value] if isinstance(value, list) else value


def _to_json(value: Any) -> Any:
    if isinstance(value, Spec):
        value = value.model_dump(by_alias=True)
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items() if item is not None}
    if isinstance(value, (set, frozenset)):
        return sorted((_to_json(item) for item in value), key=json_bytes)  # their own order changes with the process
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else plain(value)


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
    """SHA-256 (hexadecimal) of a file, read in pieces; UNREADABLE where it cannot be read."""
    try:
        if not is_file(path):  # a pipe or a device would be read for ever
            return UNREADABLE
        size = path.stat().st_size
        if say is not None and size > _LARGE_BYTES:
            say(f"hashing {path.name} ({size / 1e9:.1f} GB) …")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return UNREADABLE


def tree_sha256(folder: Path, *, say: Say | None = None, suffixes: tuple[str, ...] = ()) -> str:
    """SHA-256 (hexadecimal) over the names and contents of the files in a folder, with all below it.

    Links are followed. UNREADABLE where a file or a folder cannot be read.

    Args:
        suffixes: only files that end in one of these; all where there are none.
    """
    found: dict[str, str] = {}
    faults: list[OSError] = []
    seen: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=faults.append, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a circle of links
            folders.clear()
            continue
        seen.add(real)
        for path in (Path(place, name) for name in names if not suffixes or name.endswith(suffixes)):
            if is_file(path):
                found[path.relative_to(folder).as_posix()] = file_sha256(path, say=say)
    return UNREADABLE if faults else files_digest(found)


def path_sha256(path: Path, *, say: Say | None = None) -> str:
    """SHA-256 (hexadecimal) of a file or a folder, "" where there is neither.

    What a database has written and not yet taken into its file stands in a log beside it, and counts with it.
    """
    if is_folder(path):
        return tree_sha256(path, say=say)
    if not is_file(path):
        return ""
    own = file_sha256(path, say=say)
    logs = {end: log for end in _LOGS if is_file(log := path.with_name(path.name + end)) and log.stat().st_size}
    return files_digest({"": own, **{end: file_sha256(log) for end, log in logs.items()}}) if logs else own


def files_digest(files: Mapping[str, str]) -> str:
    """One digest of many files' by name; UNREADABLE where one of them is."""
    return UNREADABLE if UNREADABLE in files.values() else digest_of([list(one) for one in sorted(files.items())])


def rows_sha256(rows: Tasks, *, on_row: Callable[[Mapping[str, Any]], None], name: str, say: Say | None) -> str:
    """SHA-256 (hexadecimal) over the rows in the order in which they are played, each as JSON with sorted keys.

    Equal rows give an equal digest, whatever kind of file they stand in. They are read one at a time.

    Args:
        on_row: is given every row that can be read.
        name: of the split, for `say`.
    """
    if say is not None and len(rows) > _LARGE_ROWS:
        say(f"hashing the {len(rows):,} rows of {name} …")
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
        return orjson.dumps(row, option=orjson.OPT_SORT_KEYS, default=_stable_text)
    except TypeError:  # a long integer, a lone surrogate, a key that is no text
        return json.dumps(plain(row), sort_keys=True, separators=(",", ":")).encode("ascii")


def _stable_text(value: Any) -> Any:
    """A value that orjson has no word for, such as bytes or a set, as text that is the same in every process."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__:
        return f"<{kind.__qualname__}>"  # its own text names an address
    return str(value)


def kept_command(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command line with the values of keys that hold secrets, credentials and queries of addresses, and
    what has the form of a key taken out.

    `KEY=VALUE` is read wherever it stands, also behind an option's name: `--set endpoints.w.api_key=…`,
    `--extra='metadata={"api_key": "…"}'`.
    """
    return tuple(map(_redact_word, words))


def kept_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings of `--set` as they are kept; those whose values hold a secret are left out, as nobody could set them
    again."""
    shown = {key: _value(key, str(value)) for key, value in settings.items()}
    return {key: value for key, value in shown.items() if _NOT_SHOWN not in value}


def _redact_word(word: str) -> str:
    option, sign, rest = word.partition("=")
    if not sign:
        return str(to_lock(word))
    if word.startswith("-") and "=" in rest and rest[:1].isalpha() and "://" not in rest.partition("=")[0]:
        return f"{option}={_redact_word(rest)}"
    if "://" in option:
        return str(to_lock(word))
    return f"{to_lock(option)}={_value(option.lstrip('-+').replace('-', '_'), rest)}"


def _value(key: str, text: str) -> str:
    held: Any = text
    if text.lstrip()[:1] in ("{", "["):  # --set reads YAML, --extra JSON, which is YAML too
        try:
            held = yaml.safe_load(text)
        except yaml.YAMLError:
            held = text
    if not isinstance(held, (dict, list)):
        return str(to_lock({key: text}, hides=True).get(key, text))
    shown = to_lock({key: held}, hides=True).get(key, held)
    if shown == held:
        return text
    return shown if isinstance(shown, str) else orjson.dumps(shown, default=str).decode()


_PACKAGE: Final = Path(rlenv.__file__).resolve().parent
_CODE: Final = ("rlenv", "trainers")
_TIMEOUT_S: Final = 10.0
_REQUIREMENT: Final = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA: Final = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_NOT_AN_EXTRA: Final = "dev"


class Code:
    """rlenv's own code. Git is asked when it is made, and heard in `section`: meanwhile others work.

    Leaving it ends a git that was not heard.

    Args:
        root: the folder that holds the package, which is a checkout where it has a `.git`: a package that was
            installed into a folder of somebody's own repository is none.
    """

    def __init__(self, root: Path = _PACKAGE.parent) -> None:
        self._root = root
        self._git: subprocess.Popen[bytes] | None = None
        if (root / ".git").exists():
            # Variables of a hook that runs us name another repository; a status must not take git's locks.
            told = ("--porcelain=v2", "--branch", "-z", "--untracked-files=all", "--no-renames")
            command = ("git", "-c", "core.fsmonitor=false", "--no-optional-locks", "status", *told, "--", *_CODE)
            env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
            try:
                self._git = subprocess.Popen(
                    command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            except OSError:  # there is no git
                self._git = None

    def __enter__(self) -> Code:
        return self

    def __exit__(self, *_: object) -> None:
        if self._git is not None and self._git.returncode is None:
            self._git.kill()
            self._git.communicate()

    def section(self) -> dict[str, Any]:
        """Version, commit, and `changes`: a digest over what differs from that commit, left out where nothing does.

        Where no commit can be told, `code` is a digest over the package's files.
        """
        said = self._commit_changes()
        if said is None:
            return {"version": rlenv.__version__, "code": tree_sha256(self._root / "rlenv", suffixes=(".py",))}
        commit, changed = said
        found: dict[str, Any] = {"version": rlenv.__version__, "commit": commit}
        if changed:
            found["changes"] = digest_of([[name, file_sha256(self._root / name)] for name in sorted(changed)])
        return found

    def _commit_changes(self) -> tuple[str, list[str]] | None:
        """The commit and the names of changed files; None where git says neither."""
        if self._git is None:
            return None
        try:
            out, _ = self._git.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._git.kill()
            self._git.communicate()
            return None
        if self._git.returncode != 0:
            return None
        commit, changed = "", []
        # https://git-scm.com/docs/git-status, "Porcelain Format Version 2"
        for line in out.decode("utf-8", "surrogateescape").split("\0"):
            if line.startswith("# branch.oid "):
                commit = line.removeprefix("# branch.oid ")
            elif line.startswith("? "):
                changed.append(line[2:])
            elif line.startswith(("1 ", "u ")):
                changed.append(line.split(" ", 8 if line[0] == "1" else 10)[-1])
        return (commit, changed) if re.fullmatch("[0-9a-f]{40,64}", commit) else None


def machine_facts() -> tuple[str, str]:
    """Python and the platform: `CPython 3.12.4`, `linux x86_64`. The kernel is the host's, and not told."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{platform.python_implementation()} {version}", f"{sys.platform} {platform.machine()}"


def package_versions(plug_ins: Iterable[str] = ()) -> dict[str, str]:
    """The versions of what rlenv stands on, and of `plug_ins`, by name: as an import here and now would find them.

    Extras count where they are installed, imported yet or not: what an episode imports late changes it too, and a hash
    must not depend on what else a process has done.
    """
    return dict(_package_closure(tuple(sorted(plug_ins)), tuple(sys.path), _PACKAGE.parent))


@lru_cache(maxsize=4)
def _package_closure(plug_ins: tuple[str, ...], path: tuple[str, ...], root: Path) -> tuple[tuple[str, str], ...]:
    own, extras = _own_requirements(root)
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in plug_ins]
    waiting += [one for text in own if (one := _parse_requirement(text, extras)) is not None]
    known: dict[str, tuple[str, Sequence[str], frozenset[str]] | None] = {}
    while waiting:
        name, wanted = waiting.pop()
        if name == "rlenv":
            continue
        if name in known:
            before = known[name]
            if before is None or wanted <= before[2]:
                continue
            version, requires, had = before
            known[name] = (version, requires, had | wanted)
        else:
            installed = _find_distribution(name)
            known[name] = None if installed is None else (*installed, wanted)
            if installed is None:
                continue
            requires = installed[1]
        waiting += [one for text in requires if (one := _parse_requirement(text, wanted)) is not None]
    return tuple(sorted((name, found[0]) for name, found in known.items() if found is not None))


def _own_requirements(root: Path) -> tuple[list[str], frozenset[str]]:
    """The requirements of rlenv: a checkout's own word, which an installation beside it may be older than."""
    project = root / "pyproject.toml"
    if is_file(project):
        held = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extras = {name: found for name, found in held["optional-dependencies"].items() if name != _NOT_AN_EXTRA}
        return [*held["dependencies"], *(one for found in extras.values() for one in found)], frozenset()
    try:
        own = metadata.distribution("rlenv")
    except metadata.PackageNotFoundError:
        return [], frozenset()
    return list(own.requires or ()), frozenset(own.metadata.get_all("Provides-Extra") or ()) - {_NOT_AN_EXTRA}


def _parse_requirement(requirement: str, extras: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    """The name and the extras that a requirement asks for; None where it belongs to an extra that nobody asked for.

    Its other conditions need no look: what they leave out is not installed, or counts as well.
    """
    given, _, condition = requirement.partition(";")
    found = _REQUIREMENT.match(given)
    named = _EXTRA.findall(condition)
    if found is None or (named and extras.isdisjoint(named)):
        return None
    return _normal_name(found[1]), frozenset(one.strip() for one in (found[2] or "").split(",") if one.strip())


def _find_distribution(name: str) -> tuple[str, list[str]] | None:
    """The version and the requirements of a distribution; None where it is not installed."""
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None
    # The whole is a page of prose behind these lines, which a parser of mails would read too.
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    version = next((line[9:] for line in head.split("\n") if line.startswith("Version: ")), None)
    if version is None:
        return found.version, list(found.requires or ())
    return version.strip(), [line[15:] for line in head.split("\n") if line.startswith("Requires-Dist: ")]


def _normal_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
