"""Paths that a spec names: what its author writes may lie anywhere, what a row fills in stays where the author said.

The author says so by the template itself: in `../dbs/{{ task.db }}.sqlite` a row names something below `../dbs`, in
`{{ task.image }}` something below the spec's folder. An absolute name, `..` and a link that lead out of there are
refused, unless they lead below one of the spec's `roots`.

Python files of a spec as modules that can import what lies beside them.

Each folder is a package of its own, under a name made from its path, and a file's `import helpers` means
`helpers.py` or `helpers/` in that folder. `sys.path` is not touched and no plain name is taken in `sys.modules`, so
two specs may each have a `helpers.py`. The `import` statement asks the module's own `__builtins__` for `__import__`
(https://docs.python.org/3/reference/import.html), which is where the meaning is changed, for imports inside of
functions too.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.util
import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlenv.language.templates import Template

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
        found = file.read(min(state.st_size or most, most) + 1)  # one of the system's does not say how long it is
        if len(found) > most:
            raise ValueError(f"it has more than {most // 1_000_000:,} MB")
        return found


def bounded_reading(function: Any, *, most: int) -> Any:
    """`function`, or in the place of a path's own that reads a file one that does not wait and reads at most `most`."""
    path, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(path, Path) or name not in ("open", "read_bytes", "read_text"):
        return function

    def read(*args: Any, **kwargs: Any) -> Any:
        held = io.BytesIO(read_file(path, most=most))
        if name == "open":
            mode, *rest = args or (kwargs.pop("mode", "r"),)
            return held if "b" in mode else io.TextIOWrapper(held, *rest[1:], **kwargs)
        return held.read() if name == "read_bytes" else io.TextIOWrapper(held, *args, **kwargs).read()

    return read


def user_cache() -> Path:
    """The user's cache folder of rlenv: all in it can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlenv"


@contextmanager
def draft_of(path: Path, *, mark: str = "") -> Iterator[Path]:
    """The path beside `path` of a file that takes its place, whole, once the block has ended; if it raises, none stays.

    Args:
        mark: tells drafts of one file apart, by default the process.

    Raises:
        OSError: it cannot take the place.
    """
    draft = path.with_name(f"{path.name}.{mark or os.getpid()}.tmp")
    try:
        yield draft
        os.replace(draft, path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


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
    """A function that resolves a text, rendered from `template`, to a path.

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


_PREFIX = "rlenv_spec_"
_STANDARD = frozenset(sys.stdlib_module_names)


def file_module(path: Path) -> ModuleType:
    """The module of the file at `path` (absolute, without links), which is run once per process.

    What running it raises comes through, and the file is run again when it is asked for the next time.
    """
    package = _package(path.parent)
    if "." not in path.stem:
        return importlib.import_module(f"{package}.{path.stem}")
    name = f"{package}.{path.stem.replace('.', '_')}_{_digest(path.name)}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert found is not None
    assert found.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def forget_files() -> None:
    """Has every file of a spec run anew when it is next asked for; functions that somebody holds stay as they are.

    For a process that outlives an edit of its author's. Not to be called while such a file is being run.
    """
    # The packages stay: a function that somebody holds may import what lies beside its file.
    for name in [name for name in sys.modules if name.startswith(_PREFIX) and "." in name]:
        del sys.modules[name]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:12]


def _package(folder: Path) -> str:
    """The name of the package that stands for a folder."""
    name = f"{_PREFIX}{_digest(str(folder))}"
    if name not in sys.modules:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        package = ModuleType(name, f"The Python files of {folder}.")
        package.__path__ = [str(folder)]
        package.__package__ = name
        sys.modules[name] = package
    return name


def find_below(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """The spec of the module that the last part of a dotted name has in these folders; nothing is run."""
    last = name.rpartition(".")[2]
    for folder in map(Path, folders):  # looked up anew each time: the path finder keeps what a folder held
        for file, inside in ((folder / last / "__init__.py", [str(folder / last)]), (folder / f"{last}.py", None)):
            if file.is_file():
                loader = _Loader(name, str(file))
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=inside
                )
    return PathFinder.find_spec(name, folders)  # a compiled module, or a folder without an `__init__.py`


class _Finder:
    """Finds modules below the packages of folders, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if not name.startswith(_PREFIX) or path is None else find_below(name, path)


class _Loader(SourceFileLoader):
    """Runs a file with an `import` that looks beside the spec's file first."""

    def exec_module(self, module: ModuleType) -> None:
        root = ".".join(module.__name__.split(".")[:1])
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _importer(root, module.__name__)}
        super().exec_module(module)


def _importer(root: str, own: str) -> Any:
    (folder,) = sys.modules[root].__path__

    def import_beside(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not is_meant_beside(top, folder=Path(folder), own=own.removeprefix(f"{root}.")):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = builtins.__import__(f"{root}.{name}", globals, locals, fromlist or (), 0)
        return found if fromlist else sys.modules[f"{root}.{top}"]

    return import_beside


def is_meant_beside(name: str, *, folder: Path, own: str) -> bool:
    """True if `import name` in the module `own` of a folder means what lies in that folder.

    True for a module, or a package with an `__init__.py`: a folder of data takes no name from a library. A file that is
    called as what it wraps (`sympy.py` with `import sympy`) does not mean itself.
    """
    if name in _STANDARD or name == own:
        return False
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


_MOST_LOST = 4


def run_on(*argv: str, at: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """The end of a program on folders of ours, `at` one; it is run once more where it was killed half-way."""
    for _ in range(_MOST_LOST):
        ran = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True, cwd=at)
        if 0 <= ran.returncode != 137:  # so bubblewrap says that what it ran was
            break
    return ran


def remove(folder: str | Path) -> None:
    """Removes a folder in which programs may have made anything: closed folders, and trees deeper than a path. Blocks.

    Functions of Python's would call each other once, and keep a file open, for each folder within another.
    """
    with suppress(OSError):
        if os.geteuid() != 0 and not os.path.islink(folder):
            run_on("chmod", "-R", "u+rwX", str(folder))
        run_on("rm", "-rf", "--", str(folder))


def walked(folder: Path, *, at_once: int = 20_000) -> Iterator[tuple[str, os.stat_result | OSError]]:
    """All below a folder by its path from there, beginning with "/"; the error of a folder that cannot be read.

    Folders of up to `at_once` files are in order: to sort more would keep all threads waiting.
    """
    rest = [""]
    while rest:
        place = rest.pop()
        try:
            with os.scandir(f"{folder}{place}") as entries:
                while some := sorted(islice(entries, at_once), key=lambda one: one.name):
                    for entry in some:
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:  # it has gone meanwhile, and must not hide those behind it
                            continue
                        if stat.S_ISDIR(status.st_mode):
                            rest.append(f"{place}/{entry.name}")
                        yield f"{place}/{entry.name}", status
        except FileNotFoundError:
            pass  # so has the folder
        except OSError as error:
            yield place, error
