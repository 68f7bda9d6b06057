"""The places of the environments that ship with rlenv, and the spec that tasks in Harbor's format start from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlenv._base.paths import is_file, is_folder
from rlenv._base.text import did_you_mean
from rlenv.errors import UsageError
from rlenv.language.yamltree import parse_text

__all__ = ["find", "harbor_splits", "of_harbor", "parts_of", "shipped"]

_HERE = Path(__file__).resolve().parent.parent  # the package
# In an installed wheel the specs lie inside the package; in a checkout, beside it.
_FOLDERS = (_HERE / "specs", _HERE.parent / "specs")


def shipped() -> dict[str, Path]:
    """The shipped specs by name."""
    for folder in _FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def parts_of(name: str) -> list[Path]:
    """The file of a shipped spec, then all that it stands on: specs and Python beside it, and folders of data."""
    found = [shipped()[name]]
    folder = found[0].parent
    names = {path.name: path for path in folder.glob("*.yaml")} | {path.stem: path for path in folder.glob("*_*.py")}
    names |= {f"data/{path.name}": path for path in folder.glob("data/*")}
    for path in found:  # which grows
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        told = [one for said, one in names.items() if re.search(rf"(?<![\w./-]){re.escape(said)}(?![\w-])", text)]
        found += [one for one in sorted(told) if one not in found]
    return found


def find(name: str | Path) -> Path:
    """The spec file that `name` means: a path, or the name of a shipped environment.

    Raises:
        UsageError: neither exists; the message names the nearest.
    """
    path = Path(name)
    if is_file(path):
        return path
    known = shipped()
    if str(name) in known:
        return known[str(name)]
    inside = sorted(path.glob("*.y*ml"), key=lambda item: item.stem != path.name) if is_folder(path) else []
    if inside:
        raise UsageError(f"'{str(name)[:200]}' is a folder; expected a spec", hint=f"did you mean '{inside[0]}'?")
    nearby = [str(item) for item in path.parent.glob("*.y*ml")] if is_folder(path.parent) else []
    hint = did_you_mean(str(name), [*nearby, *known], otherwise=f"shipped: {', '.join(known)}")
    raise UsageError(f"no spec at '{str(name)[:200]}'", hint=hint)


def harbor_splits(data: Mapping[str, Any]) -> list[str]:
    """The splits of a spec's text whose tasks are in Harbor's format."""
    splits = data.get("tasks")
    held = splits.items() if isinstance(splits, Mapping) else ()
    return [name for name, one in held if isinstance(one, Mapping) and isinstance(one.get("harbor"), str)]


def of_harbor(data: Mapping[str, Any], split: str, base: Path) -> dict[str, Any]:
    """What a spec with such a split says where it says nothing itself (see `harbor.yaml`), and its `roots`."""
    text, lacks = Path(__file__).with_name("harbor.yaml").read_text(encoding="utf-8"), set[str]()
    for group, kind, mark, usual in (
        ("resources", "workspace", "@MACHINE", "machine"), ("tools", "bash", "@BASH", "bash"),
        ("rewards", "workspace", "@TESTS", "solved"),
    ):  # fmt: skip
        given = data[group] if isinstance(data.get(group), Mapping) else {}
        kinds = {name: one.get("kind", kind) for name, one in given.items() if isinstance(one, Mapping)}
        text = text.replace(mark, next((name for name, one in kinds.items() if one == kind), usual))
        lacks |= {group} if given and kind not in kinds.values() else set()
    lacks |= {"oracle"} if "tools" in lacks else set()
    folder = base / (named := data["tasks"][split]["harbor"])
    lacks |= set() if is_folder(folder / "steps") or any(folder.glob("*/steps")) else {"user"}
    found: dict[str, Any] = parse_text(text, file="harbor.yaml", base=base).plain()
    roots = data["roots"] if isinstance(data.get("roots"), list) else []
    place = str(Path(named).parent) if is_file(folder) else named
    return {key: value for key, value in found.items() if key not in lacks} | {"roots": [*roots, place]}
