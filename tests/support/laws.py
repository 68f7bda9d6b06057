"""The rules that a module of `rlenv.testing` states, read from its source: each wants a test that breaks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType


def rules_of(module: ModuleType) -> list[str]:
    """The rules of a module as patterns; what is filled in matches anything."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    return sorted({pattern for node in ast.walk(tree) for pattern in _stated(node)})


def _stated(node: ast.AST) -> Iterator[str]:
    texts: list[ast.expr] = []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        place = {"law": 0, "broken": 0, "in_time": 1}.get(node.func.id)
        texts += node.args[place : place + 1] if place is not None else ()
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "rule":
        texts.append(node.value)
    if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple):
        first = node.target.elts[0]
        if isinstance(first, ast.Name) and first.id == "rule":
            texts += [row.elts[0] for row in node.iter.elts if isinstance(row, ast.Tuple)]
    for text in texts:
        if isinstance(text, ast.Constant):
            yield re.escape(str(text.value))
        elif isinstance(text, ast.JoinedStr):
            yield "".join(
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in text.values
            )


def not_broken(module: ModuleType, broken: Iterable[str]) -> list[str]:
    """The rules of a module that none of `broken` (rules as they were stated) matches."""
    seen = list(broken)
    return [rule for rule in rules_of(module) if not any(re.fullmatch(rule, one) for one in seen)]


def rule_of(error: AssertionError) -> str:
    """The rule that a broken law states."""
    text = str(error)
    assert text.startswith("law: "), text
    assert "; " in text, f"a message says what was found: {text}"
    return text.removeprefix("law: ").split("; ")[0]
