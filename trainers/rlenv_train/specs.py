"""The specs of a run with their overrides and weights, and the files that they name, shipped to a cluster.

A worker's working directory is its copy of that folder, so specs are named by relative paths there:

    specs/NAME/…   the spec, what it extends, the specs of its agents, and the files these name, laid out as they were
    others/…       files that a spec names by an absolute path, or the command line by any
    rlenv, …       packages that are imported from a checkout and not from an installation
"""

from __future__ import annotations

import glob
import importlib.util
import math
import os
import re
import shutil
import sys
import sysconfig
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from rlenv.episodes.environment import Environment, load
from rlenv.errors import SpecError, UsageError, did_you_mean, told_as
from rlenv.images import RefusedPath, finder
from rlenv.language.document import override_value, read_source
from rlenv.language.loader import LoadedSpec, load_spec
from rlenv.language.shipped import find
from rlenv.language.templates import Template, TemplateError, compile_template, texts_at
from rlenv.runs.folder import RunInfo
from rlenv.tasks.rows import task_files


@dataclass(frozen=True, slots=True)
class TrainedSpec:
    """One spec of a run.

    `source` is an absolute path or the name of a spec that ships; `set` holds values that replace its keys by dotted
    path. `weight` is positive and relative to the other specs' weights.
    """

    environment: Environment
    source: str
    set: Mapping[str, Any]
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The spec's own name, unique in a run."""
        return self.environment.spec.name


def read_override(item: str) -> tuple[str, Any]:
    """The key and the value of `KEY=VALUE`, read as `--set` reads them: `1e-6` is a number, and nothing is None.

    Raises:
        UsageError: the value cannot be read.
    """
    key, _, text = item.partition("=")
    with told_as(UsageError, f"{item}: the value cannot be read", SpecError, hint="close its brackets and quotes"):
        return key, override_value(key, text) if text.strip() else None


def spec_and_overrides(items: Sequence[str]) -> tuple[list[str], list[str]]:
    """Positional arguments as paths or names, and as overrides: what holds a `=` and is no path that exists."""
    specs = [item for item in items if "=" not in item or Path(item).exists()]
    return specs, [item for item in items if item not in specs]


def run_folder(output: Path | None, specs: Sequence[TrainedSpec], *, kind: str = "") -> Path:
    """The folder of a new run: the one that was asked for, or one of its own in `runs`."""
    name = "-".join(spec.name for spec in specs)
    return (output or Path("runs") / f"{kind}{name}-{datetime.now():%Y%m%d-%H%M%S}").resolve()


def unprepared_info(kind: Literal["eval", "train"], arguments: Namespace, specs: Sequence[TrainedSpec]) -> RunInfo:
    """The information on a run that has no policy yet."""
    return RunInfo(
        kind,
        command=arguments.command,
        spec=", ".join(spec.source for spec in specs),
        environment=", ".join(spec.environment.id for spec in specs),
        policy=arguments.model or "tiny",
    )


def load_specs(
    sources: Sequence[str], *, set: Sequence[str] = (), weights: Sequence[str] = ()
) -> tuple[TrainedSpec, ...]:
    """Load and compile the specs of a run.

    Args:
        sources: paths, or names of specs that ship.
        set: `KEY=VALUE` for every spec, `NAME:KEY=VALUE` for the one of that name; values are YAML.
        weights: `NAME=W`; a spec without one weighs 1.

    Raises:
        UsageError: two specs share a name, a name that no spec has, or an argument that cannot be read.
        SpecError: a spec's own faults.
    """
    assignments = [_parse_assignment(item) for item in set]
    everywhere = {key: value for name, key, value in assignments if name is None}
    names = [_name_of(source, everywhere) for source in sources]
    _check_unique(names, sources)
    given = dict(_parse_weight(item) for item in weights)
    asked = [*(("--weight", name) for name in given), *(("--set", name) for name, _, _ in assignments if name)]
    for flag, wanted in asked:
        if wanted not in names:
            hint = did_you_mean(wanted, names, otherwise=f"this run has {', '.join(names)}")
            raise UsageError(f"{flag} names '{wanted}', and no spec of this run is called that", hint=hint)
    out = []
    for source, name in zip(sources, names, strict=True):
        own = everywhere | {key: value for owner, key, value in assignments if owner == name}
        out.append(TrainedSpec(load(source, set=own or None), _absolute_path(source), own, given.get(name, 1.0)))
    _check_unique([spec.name for spec in out], sources)
    return tuple(out)


def check_splits(specs: Sequence[TrainedSpec], run: Mapping[str, Any]) -> None:
    """Raises UsageError where a spec has no split of the name that a run trains on, or is validated on."""
    for spec in specs:
        splits = spec.environment.spec.tasks
        for key in ("train_split", "validation_split"):
            if run[key] not in splits:
                hint = f"it has {', '.join(splits)}; name one by run.{key}=NAME, or add tasks.{run[key]}"
                raise UsageError(f"no split '{run[key]}' in {spec.name}", hint=hint)


def _name_of(source: str, everywhere: Mapping[str, Any]) -> str:
    path = find(source)
    return str(everywhere.get("name") or read_source(path).get("name") or path.stem)


def _check_unique(names: Sequence[str], sources: Sequence[str]) -> None:
    for index, name in enumerate(names):
        first = names.index(name)
        if first < index:
            raise UsageError(
                f"{sources[first]} and {sources[index]} are both called '{name}', and figures are kept by name",
                hint="change `name:` in one of them",
            )


def _parse_assignment(item: str) -> tuple[str | None, str, Any]:
    left, separator, value = item.partition("=")
    name, colon, key = left.rpartition(":")
    if not separator or not key:
        raise UsageError(f"--set wants KEY=VALUE or NAME:KEY=VALUE, not '{item}'")
    with told_as(UsageError, f"--set {item}: the value is not YAML", yaml.YAMLError, hint="put quotes around it"):
        return (name if colon else None), key, yaml.safe_load(value)


def _parse_weight(item: str) -> tuple[str, float]:
    name, separator, text = item.rpartition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not separator or not 0 < weight < math.inf:
        raise UsageError(
            f"--weight wants NAME=W with W above 0, not '{item}'", hint="leave a spec out to train without it"
        )
    return name, weight


def _absolute_path(source: str) -> str:
    path = Path(source)
    return str(path.resolve()) if path.exists() else source


LIMIT_BYTES = 500 * 1024 * 1024
"""What Ray takes for a working directory at most (ray 2.60, RAY_RUNTIME_ENV_WORKING_DIR's default limit)."""

_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".git", ".gitignore", ".mypy_cache", ".pytest_cache")
# Constants count where they are used.
_LEFT_OUT = ("name", "description", "vars")
_OF_A_ROW = re.compile(r"tasks\.[^.]+\.rows\.")
# Here a template may be filled from a task's row; elsewhere it writes text.
_BY_ROW = ("resources.", "tools.", "tasks.", "prompt.images")


@dataclass(frozen=True, slots=True)
class Shipped:
    """A spec as the workers find it: `source` is relative to their working directory, `set` replaces its keys."""

    source: str
    set: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Named:
    """Files that a spec names: `files` by relative paths, `absolute` ones by the dotted key that names them, and
    `modules` by their import name."""

    files: set[Path] = field(default_factory=set)
    absolute: dict[str, Path] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)


def ship(specs: Sequence[TrainedSpec], folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> list[Shipped]:
    """Copy the specs and all that they name into `folder`, which is made anew; one entry a spec.

    Args:
        limit_bytes: the most that Ray sends.

    Raises:
        UsageError: the files are more than Ray sends.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    out = [_ship_spec(spec, folder) for spec in specs]
    for package in ("rlenv", "rlenv_train", "rlenv_verl"):
        _ship_module(package, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > limit_bytes:
        large = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        raise UsageError(
            f"the specs name {size / 1e6:,.0f} MB of files and Ray ships {limit_bytes / 1e6:,.0f} MB at most",
            hint=f"the largest is {large.relative_to(folder)}. Serve it from a resource that every node reaches",
        )
    return out


def named_files(environment: Environment) -> set[Path]:
    """Every file and folder that a compiled spec names, its own file first among them."""
    named = _Named()
    _collect_files(environment.loaded, environment, named, nested=set())
    return named.files | set(named.absolute.values())


def _ship_spec(spec: TrainedSpec, folder: Path) -> Shipped:
    loaded = spec.environment.loaded
    named = _Named()
    _collect_files(loaded, spec.environment, named, nested=set())
    root = Path(os.path.commonpath([path.parent for path in named.files]))
    target = folder / "specs" / spec.name
    for path in sorted(named.files):
        _copy(path, target / path.relative_to(root))
    changed = dict(spec.set)
    for index, (key, path) in enumerate(named.absolute.items()):
        place = Path("others") / spec.name / str(index) / path.name
        _copy(path, folder / place)
        value = loaded.document.get(key)
        # `file.py:function` keeps its function.
        colon = f":{value.rpartition(':')[2]}" if isinstance(value, str) and value.rpartition(":")[0] else ""
        changed[key] = f"{place}{colon}"
    for module in sorted(named.modules):
        _ship_module(module, folder)
    return Shipped(str((target / _real_path(loaded.path).relative_to(root)).relative_to(folder)), changed)


def _collect_files(loaded: LoadedSpec, environment: Environment | None, named: _Named, *, nested: set[Path]) -> None:
    """Add what one spec names. `nested` are the specs on the way here, which may not be followed again."""
    own = _real_path(loaded.path)
    named.files.update(_real_path(path) for path in (loaded.path, *loaded.document.files))
    for split in loaded.spec.tasks:
        for place, path in task_files(loaded, split):
            is_override = loaded.document.value_span(place).file.startswith("--set ")
            if glob.has_magic(str(loaded.document.get(place))) and not is_override:  # a pattern stands for many
                named.files.add(_real_path(path))
    named_by = ((key, value) for key, value in loaded.document.data.items() if key not in _LEFT_OUT)
    for dotted, text in (one for key, value in named_by for one in texts_at(key, value)):
        if _OF_A_ROW.match(dotted):
            continue
        base = loaded.base_of(dotted)
        for written, template in _filled_texts(dotted, text, loaded, environment):
            if template is None:  # no row names a module
                _add_module(written, named)
            file = written.rpartition(":")[0] if ".py:" in written else written
            if not file or len(file) > 1024 or "\n" in file or file.strip("./") == "":
                continue
            try:
                roots, vars = loaded.roots, loaded.spec.vars
                find = base.joinpath if template is None else finder(template, base=base, roots=roots, vars=vars)
                path = _real_path(find(file))
                if not path.exists():
                    continue
            except (RefusedPath, TemplateError, OSError, ValueError):
                continue  # a row may not name it, or nothing can have such a name: an episode says so
            is_override = loaded.document.value_span(dotted).file.startswith("--set ")
            if Path(file).is_absolute() or is_override:
                if not _is_of_the_system(path) and not own.is_relative_to(path):
                    named.absolute[dotted] = path
                continue
            named.files.add(path)
            if path.suffix == ".py":  # a program imports what lies beside it
                named.files.update(path.parent.glob("*.py"))
                named.files.update(file.parent for file in path.parent.glob("*/__init__.py"))
            is_spec = path.suffix in (".yaml", ".yml") and path not in nested and path != own
            if is_spec and dotted.endswith(".spec"):
                _collect_files(load_spec(path), None, named, nested={*nested, own})


def _filled_texts(
    key: str, text: str, loaded: LoadedSpec, environment: Environment | None
) -> Iterator[tuple[str, Template | None]]:
    """The text as it is filled in: from the constants, and from every row where a path may depend on its task.

    What rows fill in comes with its template.
    """
    if "{{" not in text and "{%" not in text:
        yield text, None
        return
    constants = loaded.spec.vars
    try:
        template = compile_template(text)
        if "task" not in template.names:
            yield template.text(vars=constants), None
        elif environment is not None and key.startswith(_BY_ROW):
            seen = set()
            for split in environment.spec.tasks:
                for row in environment.tasks(split):
                    filled = template.text(task=row, vars=constants)
                    if filled not in seen:
                        seen.add(filled)
                        yield filled, template
    except TemplateError:
        return  # it needs more than constants and rows, so it is no path that could be followed


def _is_of_the_system(path: Path) -> bool:
    """Programs and devices, which every node has by itself."""
    places = (sys.prefix, sys.base_prefix, "/usr", "/bin", "/sbin", "/lib", "/opt", "/dev", "/proc", "/sys", "/etc")
    return any(path.is_relative_to(place) for place in places)


def _add_module(text: str, named: _Named) -> None:
    module, colon, function = text.partition(":")
    if colon and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        named.modules.add(module.split(".")[0])


def _ship_module(name: str, folder: Path) -> None:
    """Copy a module or package that is imported from a checkout; what is installed, every node has to have."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if found is None or found.origin is None or found.origin in ("built-in", "frozen"):
        return
    origin = Path(found.origin).resolve()
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")}
    if any(origin.is_relative_to(place) for place in installed):
        return
    whole = origin.parent if found.submodule_search_locations else origin
    _copy(whole, folder / whole.name)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_SKIPPED, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)


def _real_path(path: Path) -> Path:
    """An absolute path without `..`; links stay, so that the layout is the one that the spec sees."""
    return Path(os.path.abspath(path))
