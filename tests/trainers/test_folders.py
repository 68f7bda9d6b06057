"""The adapter's plan: few rooms on its ground floor, and imports that go one way."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import rlenv_verl

ROOT = Path(rlenv_verl.__file__).parent

# A folder knows itself and those before it. `contract.py` knows none, and nobody knows it.
FOLDERS = ("estimators", "loop", "export", "cpu", "hf", "settings", "tiny", "run", "sft", "rehearse")
# A command that hands over to another's, which stands on it.
HANDED_OVER = {("run.train", "rehearse.command")}
MOST_ROOMS = 12


def _modules() -> dict[str, Path]:
    """The files by their dotted names below the package, a folder's `__init__` by the folder's."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path, modules: dict[str, Path], *, late: bool) -> set[str]:
    """The adapter's modules that a file imports: when it is itself imported, and in its functions too where `late`."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not late:
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: relative import"
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}".removeprefix("rlenv_verl.") for alias in node.names]
            yield from (f"rlenv_verl.{name}" if name in modules else node.module for name in names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    found = visit(ast.parse(path.read_text(encoding="utf-8")))
    return {name.removeprefix("rlenv_verl.") for name in found if name.startswith("rlenv_verl.")}


def test_the_ground_floor_has_few_rooms() -> None:
    rooms = {entry.name for entry in ROOT.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


def test_folders_know_those_before_them_alone() -> None:
    modules = _modules()
    place = {folder: at for at, folder in enumerate(FOLDERS)}
    unknown = {name.partition(".")[0] for name in modules} - place.keys() - {"", "contract"}
    assert not unknown, f"{sorted(unknown)}: give it a place in FOLDERS"
    wrong = [
        f"{name} imports {other}"
        for name, path in modules.items()
        for other in _imports(path, modules, late=True)
        if (name, other) not in HANDED_OVER
        and place.get(other.partition(".")[0], len(FOLDERS)) > place.get(name.partition(".")[0], -1)
    ]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = _modules()
    graph = {name: _imports(path, modules, late=False) for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_what_verl_loads_by_name_is_listed_in_one_page() -> None:
    # Not a configuration's to name: a rehearsal's stand-ins, what `cpu.registries` hands to veRL, and a command.
    inner = ("rlenv_verl.rehearse.", "rlenv_verl.cpu.adapter.", "rlenv_verl.contract")
    name = re.compile(r"\brlenv_verl(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")
    named = set()
    for path in [*ROOT.rglob("*.yaml"), *ROOT.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".yaml":
            named |= {found for line in text.splitlines() for found in name.findall(line.partition("#")[0])}
            continue
        constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        texts = (value.removeprefix("pkg://") for value in constants if isinstance(value, str))
        named |= {value for value in texts if name.fullmatch(value)}
    page = (ROOT.parents[1] / "docs" / "training" / "training.md").read_text(encoding="utf-8")
    section = page.partition("### What veRL loads by name\n")[2].partition("\n#")[0]
    rows = {row.split("`")[1].removeprefix("pkg://") for row in section.splitlines() if row.startswith("| `")}
    assert {found for found in named if not found.startswith(inner)} == rows
    for row in rows:
        module = re.sub(r"^rlenv_verl\.|\.[A-Z]\w*$", "", row)
        assert module in _modules(), f"docs/training/training.md names {row}, which is not there"
