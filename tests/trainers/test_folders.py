"""The plan of trainers/: few rooms on the adapter's ground floor, imports that go one way, and no trainer below it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import rlenv_train
import rlenv_verl
from tests.support.imports import circle, imports, modules

ROOT = Path(rlenv_verl.__file__).parent
MODULES = modules(ROOT)
NEUTRAL = modules(Path(rlenv_train.__file__).parent)
OF_TRAINERS = set("verl torch ray transformers vllm peft omegaconf hydra transfer_queue rlenv_verl".split())

# A folder knows itself and those before it.
FOLDERS = ("estimators", "loop", "export", "cpu", "hf", "settings", "tiny", "run", "sft", "rehearse")
# A command that hands over to another's, which stands on it.
HANDED_OVER = {("rlenv_verl.run.train", "rlenv_verl.rehearse.command")}
MOST_ROOMS = 12


def test_the_ground_floor_has_few_rooms() -> None:
    rooms = {entry.name for entry in ROOT.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)


def test_folders_know_those_before_them_alone() -> None:
    place = {folder: at for at, folder in enumerate(FOLDERS)}
    unknown = {_folder(name) for name in MODULES} - place.keys() - {""}
    assert not unknown, f"{sorted(unknown)}: give it a place in FOLDERS"
    wrong = [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        for other in imports(path, MODULES) & MODULES.keys() - {"rlenv_verl"}
        if (name, other) not in HANDED_OVER and place.get(_folder(other), len(FOLDERS)) > place.get(_folder(name), -1)
    ]
    assert wrong == []


def _folder(name: str) -> str:
    return name.partition(".")[2].partition(".")[0]


def test_what_no_trainer_is_needed_for_imports_none() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, path in NEUTRAL.items()
        for other in imports(path, NEUTRAL)
        if other.partition(".")[0] in OF_TRAINERS
    ]
    assert wrong == []


def test_it_is_imported_where_no_trainer_is_installed() -> None:
    blocked = "".join(f"sys.modules[{other!r}] = None\n" for other in sorted(OF_TRAINERS))
    code = f"import sys\n{blocked}import {', '.join(NEUTRAL)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    found = {**MODULES, **NEUTRAL}
    # What a function imports once it is called is no circle of files.
    assert circle({name: imports(path, found, late=False) & found.keys() for name, path in found.items()}) == ""


def test_what_verl_loads_by_name_is_listed_in_one_page() -> None:
    # Not a configuration's to name: a rehearsal's stand-ins, and what `cpu.registries` hands to veRL.
    inner = ("rlenv_verl.rehearse.", "rlenv_verl.cpu.rollout.")
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
    page = (ROOT.parents[1] / "docs" / "training" / "run-folder.md").read_text(encoding="utf-8")
    section = page.partition("### What veRL loads by name\n")[2].partition("\n#")[0]
    rows = {row.split("`")[1].removeprefix("pkg://") for row in section.splitlines() if row.startswith("| `")}
    assert {found for found in named if not found.startswith(inner)} == rows
    for row in rows:
        module = re.sub(r"\.[A-Z]\w*$", "", row)
        assert module in MODULES, f"docs/training/run-folder.md names {row}, which is not there"
