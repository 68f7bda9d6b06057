"""A model's Python, prepared as a notebook cell: what its last expression gives is shown."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass

__all__ = ["Snippet", "read_snippet"]


@dataclass(frozen=True, slots=True)
class Snippet:
    """`code` is what runs, line by line where it stood; `name` holds the last expression's value, None without one."""

    code: str
    name: str | None
    is_async: bool
    """True where the code awaits something."""
    is_simple: bool = False
    """True where it defines no class and calls nothing of its own by the name of a built-in that shows values."""


def read_snippet(code: str, *, name: str) -> Snippet:
    """`code` with its last expression bound to `name`.

    Code that cannot be read here is left as it is: the sandbox says what is wrong with it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's odd escapes are its own affair
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Snippet(code + "\nNone", None, False)
    is_async, is_simple = False, True
    for node in ast.walk(tree):
        is_async = is_async or isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith))
        is_simple = is_simple and not _is_odd(node)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return Snippet(code + "\nNone", None, is_async)
    lines = code.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    whole = code.encode()
    bound = whole[:start] + f"{name} = (".encode() + whole[start:end] + b")" + whole[end:] + b"\nNone"
    return Snippet(bound.decode(), name, is_async, is_simple)


_BUILT_IN = frozenset({"repr", "type", "len", "int", "float", "bool", "str", "list", "dict"})


def _is_odd(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _BUILT_IN and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg in _BUILT_IN
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in _BUILT_IN or node.name == "*"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return node.name in _BUILT_IN
    return isinstance(node, (ast.ClassDef, ast.MatchMapping))
