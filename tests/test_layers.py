"""The one-way flow: imports go down the layers only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rlenv"

# A module belongs to the longest prefix that names it. Lower layers know nothing of higher ones; modules of one layer
# may know each other.
LAYERS: dict[str, int] = {
    "rlenv": 6,  # the package itself re-exports the top, lazily
    "rlenv.errors": 0,
    "rlenv.reasons": 0,
    "rlenv.source": 0,
    "rlenv.yamltree": 0,
    "rlenv.yamlwords": 0,
    "rlenv.messages": 0,
    "rlenv.templates": 0,
    "rlenv.expressions": 0,
    "rlenv.functions": 0,
    "rlenv._neighbours": 0,
    "rlenv.paths": 0,
    "rlenv._visible": 0,
    "rlenv._nearest": 0,
    "rlenv.images": 0,
    "rlenv.secrets": 0,
    "rlenv._chat": 0,
    "rlenv._pictures": 0,
    "rlenv._plain": 0,
    "rlenv._bounded": 0,
    "rlenv._json_limits": 0,
    "rlenv._strict_json": 0,
    "rlenv._schemas": 0,
    "rlenv._threads": 0,
    "rlenv._quick": 0,
    "rlenv._hosted": 0,
    "rlenv._deadline": 0,
    "rlenv.spec_types": 1,
    "rlenv.dialect_spec": 1,
    "rlenv.spec": 1,
    "rlenv.faults": 1,
    "rlenv.trajectory": 1,
    "rlenv.requirements": 1,
    "rlenv.registry": 1,
    "rlenv.loader": 1,
    "rlenv.shipped": 1,
    "rlenv.calls": 2,
    "rlenv.tools": 2,
    "rlenv.dialects": 2,
    "rlenv.rewards": 2,
    "rlenv.resources": 2,
    "rlenv.policies": 2,
    "rlenv.endpoints": 2,
    "rlenv.users": 2,
    "rlenv.tasks": 2,
    "rlenv.hub": 2,
    "rlenv.retrieval": 2,
    "rlenv.observe": 2,
    "rlenv.control": 2,
    "rlenv.schema": 2,
    "rlenv._arguments": 2,
    "rlenv._coercion": 2,
    "rlenv.executor": 3,
    "rlenv.scoring": 3,
    "rlenv.weighing": 3,
    "rlenv.compile": 4,
    "rlenv.nested": 4,
    "rlenv.drive": 4,
    "rlenv.episode": 4,
    "rlenv.episode_tools": 4,
    "rlenv.episode_reward": 4,
    "rlenv.retaken": 4,
    "rlenv.environment": 4,
    "rlenv.tokens": 4,
    "rlenv.text_space": 5,
    "rlenv.gym": 5,
    "rlenv.registration": 5,
    "rlenv.rollout": 5,
    "rlenv.record": 5,
    "rlenv.replay": 5,
    "rlenv.evaluate": 5,
    "rlenv.credit": 5,
    "rlenv.groups": 5,
    "rlenv.collect": 5,
    "rlenv.audit": 5,
    "rlenv.rescore": 5,
    "rlenv.preflight": 5,
    "rlenv.models": 5,
    "rlenv.validate": 5,
    "rlenv.diagnose": 5,
    "rlenv.checks": 5,
    "rlenv.salvage": 5,
    "rlenv.testing": 5,
    "rlenv.cli": 6,
    "rlenv.__main__": 6,
}

FORBIDDEN = {"torch", "ray", "transformers", "verl", "vllm", "tensordict", "rlenv_verl"}


def _modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def _layer(module: str) -> int:
    name = module
    while name not in LAYERS or (name == "rlenv" and module != "rlenv"):
        name, dot, _ = name.rpartition(".")
        if not dot:
            pytest.fail(f"{module} has no layer; add it to LAYERS with a reason in docs/extend/architecture.md")
    return LAYERS[name]


def _imports(path: Path) -> list[str]:
    """What a module imports at run time; a TYPE_CHECKING block is for readers and type checkers only."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            found.extend(
                name if (ROOT / (name.replace(".", "/") + ".py")).is_file() else node.module for name in submodules
            )
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_imports_go_down_the_layers_only() -> None:
    wrong = [
        f"{module} (layer {_layer(module)}) imports {name} (layer {_layer(name)})"
        for module, path in _modules()
        for name in _imports(path)
        if name.split(".")[0] == "rlenv" and name != "rlenv" and _layer(name) > _layer(module)
    ]
    assert wrong == []


def test_the_package_never_imports_a_trainer_or_torch() -> None:
    # A policy of the adapter's is imported where it is named, which says which extra is missing; the models'
    # import transformers and torch where a GGUF file is made into a folder, and ask which architectures are known.
    doors = {"rlenv.cli.policies"}
    doors |= {f"rlenv.models.{name}" for name in ("architecture", "dequantised", "lacking")}
    wrong = [
        f"{module} imports {name}"
        for module, path in _modules()
        for name in _imports(path)
        if name.split(".")[0] in FORBIDDEN and module not in doors
    ]
    assert wrong == []


def test_importing_the_package_stays_light() -> None:
    code = (
        "import sys, rlenv\n"
        "heavy = {'torch', 'ray', 'transformers', 'verl', 'mcp', 'sqlglot', 'tokenizers', 'pyarrow', 'bm25s',"
        " 'aiohttp', 'rich', 'pydantic', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_an_environment_loads_no_heavy_library() -> None:
    code = (
        "import sys, rlenv\n"
        "rlenv.load('arithmetic')\n"
        "heavy = {'torch', 'ray', 'transformers', 'verl', 'mcp', 'sqlglot', 'tokenizers', 'pyarrow', 'bm25s'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
