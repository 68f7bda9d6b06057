"""The runs that a viewer shows: found below the folders it was given, opened when they are asked for.

The specs below the folders that a server may touch: listed, read and saved; no path leads out of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rlenv._base.bounded import drop_oldest
from rlenv._base.paths import draft_of, read_file
from rlenv.errors import UsageError, told_as
from rlenv.language.shipped import shipped
from rlenv.runs.figures.query import parse
from rlenv.runs.figures.snapshot import Episodes, Snapshot
from rlenv.runs.figures.steps import Overview, overview
from rlenv.runs.figures.tools import asked
from rlenv.runs.folder import RunInfo, is_run, open_run, read_info
from rlenv.runs.recorded import LinesReader
from rlenv.runs.usage import Prices, prices_in, spending_of_usage

_DEPTH: Final = 6
_MOST_FOLDERS: Final = 20_000
_LOOK_S: Final = 3.0
_OPEN: Final = 8
"""Runs whose rows are kept in memory; the one that was asked for longest ago goes first."""
_PARTS: Final = frozenset(("journal", "episodes", "bodies", "late", "blobs", "tape", "locks", "watch", "node_modules"))


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run that is being looked at. Whoever reads it holds `lock`: readers are for one thread at a time."""

    key: str
    path: Path
    episodes: Episodes
    given: Prices | None = None
    """What tokens cost, where whoever opened the viewer said so."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    kept: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """What was computed of one version, by what was asked for; emptied with the next version."""
    _snapshot: Snapshot | None = None
    _looked: float = -1.0

    @property
    def info(self) -> RunInfo | None:
        """The present `run.json`."""
        return read_info(self.path)

    @property
    def prices(self) -> Prices | None:
        """The prices of tokens: those that the viewer was given, or else those that the run was made with."""
        return self.given or prices_in(self.info.facts if self.info else {})

    @property
    def folder(self) -> Path:
        """The folder of the run's files."""
        return self.path if self.path.is_dir() else self.path.parent

    def rows(self) -> Snapshot:
        """The rows as they are now, looked at no more than three times a second."""
        now = time.monotonic()
        if now - self._looked > 0.3:
            self.episodes.refresh()
            self._looked = time.monotonic()  # of its end: a long look is not followed by another in one request
        if self._snapshot is None or self._snapshot.version != self.episodes.version:
            self._snapshot = Snapshot(self.episodes)
            self.kept.clear()
        return self._snapshot

    def compute(self, key: tuple[Any, ...], of: Callable[[Snapshot], Any]) -> Any:
        """A value computed of the rows, once a version."""
        rows = self.rows()
        if key not in self.kept:
            self.kept[key] = of(rows)
        return self.kept[key]

    def places(self, query: str, sort: str = "") -> NDArray[np.int64]:
        """The places of the rows that match, in order; those of the last queries are kept.

        Raises:
            QueryFault: the query or the order is none.
        """
        rows, key = self.rows(), ("places", query, sort)
        if key not in self.kept:
            found = parse(query).places(rows, sort)
            known = [one for one in self.kept if one[0] == "places"]
            for old in known[:-15]:
                del self.kept[old]
            self.kept[key] = found
        places: NDArray[np.int64] = self.kept[key]
        return places


class Shelf:
    """Runs by their keys. A key is the server's word for a run; no path of a client's making is ever opened.

    Args:
        roots: run folders, .jsonl files, or folders below which runs are looked for.
        prices: what tokens cost; by default those that each run was made with.
    """

    def __init__(self, roots: Sequence[Path], *, prices: Prices | None = None) -> None:
        self._prices = prices
        self.roots = tuple(root.resolve() for root in roots)
        self._paths: dict[str, Path] = {}
        self._looked = -_LOOK_S
        self._open: dict[str, OpenRun] = {}
        self._lines: dict[str, tuple[Any, int, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def run_keys(self) -> list[str]:
        """The keys of all runs, found again every few seconds."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_S:
                self._paths = self._find_runs()
                self._looked = now
            return list(self._paths)

    def _find_runs(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for root in self.roots:
            for path in _runs_below(root):
                name = root.name if path in (root, root / "trajectories.jsonl") else str(path.relative_to(root))
                name = name.removesuffix("/trajectories.jsonl")
                key, number = name.replace("/", "~"), 2
                while key in found and found[key] != path:
                    key, number = f"{name.replace('/', '~')}~{number}", number + 1
                found[key] = path
        return found

    def path(self, key: str) -> Path:
        """The folder of the run with a key.

        Raises:
            UsageError: there is none.
        """
        if key not in self._paths:
            self.run_keys()
        if key not in self._paths:
            raise UsageError(f"there is no run '{key[:100]}'", hint="the list of runs says which there are")
        return self._paths[key]

    def open(self, key: str) -> OpenRun:
        """The run of a key.

        Raises:
            UsageError: there is none, or it cannot be read.
        """
        path = self.path(key)
        with self._lock:
            run = self._open.pop(key, None)
            if run is None or run.path != path:
                run = OpenRun(key, path, LinesReader(path) if path.is_file() else open_run(path), self._prices)
            self._open[key] = run
            drop_oldest(self._open, most=_OPEN)
            return run

    def summary(self, key: str) -> dict[str, Any]:
        """The entry of a run in the list: computed again where a file of the run has changed."""
        path = self.path(key)
        seen, held, opened = _change_mark(path), self._lines.get(key), self._open.get(key)
        # Of a large file the first rows are there first: what was read since, for whoever looks at it, counts too.
        if held is None or held[0] != seen or (opened is not None and opened.episodes.version != held[1]):
            version = -1
            try:
                run = self.open(key)
                with run.lock:
                    rows = run.rows()
                    figures, version = {**asdict(overview(rows)), **_token_spend(run)}, rows.version
                    locks, started = _first_words(rows)
            except (UsageError, OSError, ValueError) as error:
                figures, locks, started = {"error": str(error)}, "", None
            held = self._lines[key] = (seen, version, {**figures, "lock": locks, "started": started})
        known = {name: value for name, value in held[2].items() if value not in (None, "")}
        named = _known_facts(key, path, read_info(path))
        if named["started"]:  # the first episode ends, and is kept, long after the command began
            known.pop("started", None)
        return {**named, **known}


def _known_facts(key: str, path: Path, info: RunInfo | None) -> dict[str, Any]:
    """The facts of a run that are known without its rows; figures are put over it."""
    info = info or RunInfo("eval", state="ended")
    return {
        "key": quote(key, safe=""),  # as it stands in addresses
        "name": key.replace("~", "/"),
        "path": str(path),
        **{name: getattr(info, name) for name in ("kind", "spec", "environment", "policy", "model", "state", "lock")},
        **asdict(Overview()),
        "asked": None,
        "cost": None,
        "currency": "",
        "started": info.attempts[0].started if info.attempts else None,
        "ended": info.ended or None,
        "attempts": len(info.attempts),
    }


def _token_spend(run: OpenRun) -> dict[str, Any]:
    """The tokens that were asked of models, prompts and completions together, and their cost."""
    rows = run.rows()
    if rows.table["asked_tokens"].null_count == len(rows):  # nothing was asked, and no list has to be read
        return {}
    found = spending_of_usage(asked(rows), prices=run.prices)
    known = [one for one in (found.prompt_tokens, found.completion_tokens) if one is not None]
    return {"asked": sum(known) if known else None, "cost": found.cost, "currency": found.currency}


def _first_words(rows: Snapshot) -> tuple[str, float | None]:
    if not len(rows):
        return "", None
    started = rows.numbers("started")
    known = started[started > 0]
    return rows.table["lock"][len(rows) - 1].as_py() or "", float(known.min()) if len(known) else None


def _change_mark(path: Path) -> Any:
    """Changes whenever something was kept."""
    if path.is_file():
        state = path.stat()
        return state.st_size, state.st_mtime_ns
    seen: list[Any] = []
    for name in ("journal", "episodes", "late"):
        try:
            with os.scandir(path / name) as entries:
                seen.append(sorted((one.name, one.stat().st_size) for one in entries))
        except OSError:
            seen.append(None)
    return seen


def _runs_below(root: Path) -> Iterator[Path]:
    """Run folders and files of trajectories at and below a folder; links are not followed."""
    if root.is_file():
        yield root
        return
    waiting, looked = [(root, 0)], 0
    while waiting and looked < _MOST_FOLDERS:
        folder, depth = waiting.pop()
        looked += 1
        if is_run(folder):
            yield folder
        elif (folder / "trajectories.jsonl").is_file():
            yield folder / "trajectories.jsonl"
        if depth >= _DEPTH:
            continue
        try:
            with os.scandir(folder) as entries:
                inside = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        names = sorted((one for one in inside if not one.startswith(".") and one not in _PARTS), reverse=True)
        waiting += [(folder / name, depth + 1) for name in names]


_SUFFIXES: Final = (".yaml", ".yml")
_SPEC_DEPTH: Final = 8
_MOST: Final = 2_000
_MOST_SPEC_FOLDERS: Final = 20_000
_HEAD: Final = 8_192
_SPEC: Final = re.compile(rb"^(rlenv[ \t]*:|extends[ \t]*:)", re.MULTILINE)
_SAVING: Final = threading.Lock()
_PASSED: Final = ("node_modules", "__pycache__", "journal", "episodes", "bodies", "blobs", "tape", "late")


class SpecChanged(UsageError):
    """Somebody else has written the spec since it was read."""


def path_below(given: str, roots: Sequence[Path]) -> Path:
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
        message = f"'{given[:200]}' is not below the folders that are served"
        raise UsageError(message, key="path", hint=f"these: {shown}")
    return there or inside[0]


def spec_at(given: str, roots: Sequence[Path]) -> Path:
    """The spec that a text names: a YAML file below the roots, or one that ships with rlenv by its name.

    Raises:
        UsageError: it leads out of the roots, or is no YAML file.
    """
    known = shipped()
    if given in known:
        return known[given]
    path = path_below(given, roots)
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
        is_last = depth >= _SPEC_DEPTH or number >= _MOST_SPEC_FOLDERS
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
    data = _read_content(path)
    with told_as(UsageError, f"'{path}' cannot be read:", ValueError, key="path"):
        return data.decode("utf-8-sig"), _version_of(data)


def _read_content(path: Path) -> bytes:
    try:
        return read_file(path)
    except FileNotFoundError:
        raise UsageError(f"there is no file '{path}'", key="path") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}", key="path") from error


def _version_of(data: bytes) -> str:
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
    with told_as(UsageError, f"'{path}' cannot be written:", OSError, ValueError, key="path"):
        if path.exists() and not path.is_file():
            raise UsageError(f"'{path}' is no file", key="path", hint="give another name")
        data = text.encode("utf-8")
        with _SAVING, draft_of(path) as draft:  # of two pages that save at once the second one is told
            draft.write_bytes(data)
            if path.exists():
                draft.chmod(stat.S_IMODE(path.stat().st_mode))
            if before is not None and before != (_version_of(_read_content(path)) if path.exists() else ""):
                raise SpecChanged(
                    f"'{path}' has changed since it was read here, and is not written over",
                    key="path",
                    hint="copy your text, load the page again, and put the two together",
                )
    return _version_of(data)
