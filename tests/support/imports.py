"""What the files of a package import of each other."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

__all__ = ["circle", "imports", "modules"]


def modules(root: Path) -> dict[str, Path]:
    """The files of the package in the folder `root` by their dotted names; `__init__.py` has its folder's."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(
    path: Path, known: Container[str], *, late: bool = True, handed_out: Mapping[str, str] | None = None
) -> set[str]:
    """What a file imports at run time; a TYPE_CHECKING block is for readers and type checkers only.

    Args:
        known: the modules that `from PACKAGE import NAME` may name.
        late: with what its functions import once they are called.
        handed_out: names that a module hands out, as `MODULE.NAME`, and where each comes from, which is what counts.
    """
    handed_out = handed_out or {}
    lasts = {name.rpartition(".")[2] for name in handed_out}

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
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield handed_out.get(name, name if name in known else node.module)
        elif isinstance(node, ast.Attribute) and node.attr in lasts and (name := ast.unparse(node)) in handed_out:
            yield handed_out[name]
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    return set(visit(ast.parse(path.read_text(encoding="utf-8"))))


def circle(ways: Mapping[str, set[str]]) -> str:
    """Modules that import each other in a circle, "" where none do; one may import itself."""
    try:
        TopologicalSorter({name: others - {name} for name, others in ways.items()}).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return ""
