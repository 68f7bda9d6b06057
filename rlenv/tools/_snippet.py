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
    awaits = (ast.Await, ast.AsyncFor, ast.AsyncWith)
    is_async = any(isinstance(node, awaits) for node in ast.walk(tree))
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return Snippet(code + "\nNone", None, is_async)
    lines = code.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: last.lineno - 1])) + last.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    whole = code.encode()
    bound = whole[:start] + f"{name} = (".encode() + whole[start:end] + b")" + whole[end:] + b"\nNone"
    return Snippet(bound.decode(), name, is_async)
