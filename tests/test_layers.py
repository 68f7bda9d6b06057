"""The one-way flow: folders in one order, imports down it only, and no circle of files."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import rlenv
from tests.support.imports import circle, imports, modules

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rlenv"
MODULES = modules(PACKAGE)
PAGE = ROOT / "docs" / "extend" / "architecture.md"

# Each folder or module of the ground floor knows those before it. docs/extend/architecture.md has them as a table, made
# of the first line of each one's docstring.
ORDER = (
    "_base",
    "errors",
    "secrets",
    "messages",
    "concurrency",
    "language",
    "trajectory",
    "dialects",
    "endpoints",
    "images",
    "resources",
    "tools",
    "rewards",
    "users",
    "policies",
    "calls",
    "tokens",
    "tasks",
    "episodes",
    "models",
    "runs",
    "retrieval",
    "hosts",
    "checks",
    "audit",
    "collect",
    "preflight",
    "gym",
    "testing",
    "cli",
    "web",
    "__main__",
)
ROOMS = 32
FORBIDDEN = {"torch", "ray", "transformers", "verl", "vllm", "tensordict", "rlenv_train", "rlenv_trl"}
FORBIDDEN |= {"inspect_ai", "verifiers", "rlenv_hosts", "rlenv_inspect", "rlenv_verifiers", "rlenv_verl"}


def _room(module: str) -> str:
    """The folder or module of the ground floor that a module stands in; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def _imports(path: Path) -> set[str]:
    return imports(path, MODULES, handed_out={f"rlenv.{name}": module for name, module in rlenv._LAZY.items()})


@cache
def _imported() -> dict[str, set[str]]:
    """The modules that each module of the package imports."""
    return {module: _imports(path) for module, path in MODULES.items()}


def _inside() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    return {module: names & MODULES.keys() for module, names in _imported().items()}


def table() -> str:
    """The ground floor as a table: each room with the first line of its docstring, in the order of the arrows."""
    rows = ["| part | what stands in it |", "|---|---|"]
    for room in ORDER:
        file = PACKAGE / f"{room}.py"  # a folder of that name may be left of an older state
        file = file if file.is_file() else PACKAGE / room / "__init__.py"
        said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        rows.append(f"| `{room}` | {' '.join(said.split(chr(10) * 2)[0].split())} |")
    return "\n".join(rows)


@pytest.mark.slow
def test_imports_go_down_the_order_only() -> None:
    rank = {room: index for index, room in enumerate(ORDER)}
    rank[""] = len(ORDER)  # the package itself hands out the top, lazily
    wrong = [
        f"{module} imports {name}"
        for module, names in _inside().items()
        for name in names
        if name != "rlenv" and rank[_room(name)] > rank[_room(module)]
    ]
    assert wrong == []


def test_the_order_names_every_room_of_the_ground_floor() -> None:
    rooms = {_room(module) for module in MODULES} - {""}
    assert sorted(ORDER) == sorted(rooms)
    assert len(rooms) <= ROOMS


def test_no_files_import_each_other_in_a_circle() -> None:
    # A package stands for its own file alone, which hands out names of its modules and is imported for these.
    assert circle(_inside()) == ""


def test_a_name_of_the_front_door_counts_as_an_import_of_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "low.py"
    for text in ("def late():\n    from rlenv import load", "import rlenv\ndef late():\n    rlenv.load('x')"):
        path.write_text(text, encoding="utf-8")
        assert rlenv._LAZY["load"] in _imports(path)


def test_the_page_has_the_order_as_its_table() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"{PAGE.name} lacks\n{table()}"


def test_the_package_hands_out_what_users_type() -> None:
    assert rlenv.__all__ == sorted(rlenv.__all__)
    for name in rlenv.__all__:
        assert getattr(rlenv, name) is not None
    assert set(rlenv.__all__) - {"__version__"} == set(rlenv._LAZY)
    assert set(rlenv.__all__) <= set(dir(rlenv))


def test_each_module_has_the_names_that_it_lists() -> None:
    lists = [name for name, path in MODULES.items() if "__all__" in path.read_text(encoding="utf-8")]
    assert not {(name, one) for name in lists for one in _lacking(importlib.import_module(name))}


def _lacking(module: Any) -> list[str]:
    return [one for one in getattr(module, "__all__", ()) if not hasattr(module, one)]


ADAPTER = {
    name: path
    for package in ("rlenv_hosts", "rlenv_inspect", "rlenv_train", "rlenv_trl", "rlenv_verifiers", "rlenv_verl")
    for name, path in modules(ROOT / "trainers" / package).items()
}


def public() -> set[str]:
    """The names that a third party may import: those of `rlenv` itself and of what stands in the reference."""
    names = {f"rlenv.{name}" for name in rlenv.__all__} | {f"{rlenv._LAZY[name]}.{name}" for name in rlenv._LAZY}
    for page in (ROOT / "docs" / "api").glob("*.md"):
        names |= set(re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    return names


def test_the_adapter_for_verl_imports_what_a_third_party_could() -> None:
    known = public()
    inner = {
        node.module
        for path in ADAPTER.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module is not None and _room(node.module)
        if node.module.startswith("rlenv.") and node.module not in known
        if not all(f"{node.module}.{alias.name}" in known for alias in node.names)
    }
    assert inner == set(), "what an adapter needs stands in docs/api/trainers.md, and never in _base"


def test_the_package_never_imports_a_trainer_or_torch() -> None:
    # The models' import transformers and torch where a GGUF file is made into a folder, and ask which architectures
    # are known.
    doors = {"rlenv.models", "rlenv.models.architecture", "rlenv.models.gguf"}
    wrong = [
        f"{module} imports {name}"
        for module, names in _imported().items()
        for name in names
        if name.split(".")[0] in FORBIDDEN and module not in doors
    ]
    assert wrong == []


def test_importing_the_package_stays_light() -> None:
    code = (
        "import sys, rlenv\n"
        "heavy = {'torch', 'ray', 'transformers', 'verl', 'mcp', 'sqlglot', 'tokenizers', 'pyarrow', 'bm25s',"
        " 'aiohttp', 'rich', 'pydantic', 'jinja2', 'gymnasium', 'numpy', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


NAMED = {
    "tools": "tools: {far: {kind: http, url: 'http://127.0.0.1:9/', parameters: {q: string}}}",
    "endpoints": "endpoints: {far: {base_url: 'http://127.0.0.1:9/v1', model: m}}",
}


@pytest.mark.slow
@pytest.mark.parametrize("named", NAMED)
def test_what_an_episode_asks_a_server_with_is_loaded_when_the_spec_is_compiled(named: str, tmp_path: Path) -> None:
    spec = "rlenv: 1\nname: far\ntasks: {train: {rows: [{answer: a}]}}\nprompt: {user: q}\n"
    (tmp_path / "far.yaml").write_text(f"{spec}rewards: {{r: {{kind: rule, rule: exact_match}}}}\n{NAMED[named]}\n")
    code = "import sys, rlenv\nrlenv.load('far.yaml')\nprint('aiohttp' in sys.modules)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "True"


def test_compiling_and_validating_an_environment_load_no_heavy_library_and_need_no_extra() -> None:
    code = (
        "import sys, rlenv, rlenv.cli.main\n"
        "rlenv.load('arithmetic')\n"
        "rlenv.cli.main.main(['validate', 'arithmetic'])\n"
        "heavy = {'torch', 'ray', 'transformers', 'verl', 'mcp', 'mcp_types', 'sqlglot', 'tokenizers', 'pyarrow',"
        " 'bm25s', 'gymnasium', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["1 file: no faults", "[]"]
