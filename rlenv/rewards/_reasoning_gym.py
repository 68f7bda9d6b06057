"""The process in which reasoning-gym scores an answer. Started by `rlenv.rewards.rules.mathematics`.

Some of its generators hand the answer, which a policy wrote, to `eval` (matrices, boards) or to sympy's `parse_expr`
(countdown, integrals), which evaluates what it reads. Here the first reads literals alone, and the second nothing but
arithmetic over names and sympy's functions, so that no answer is run as a program. What still takes any time or memory
is ended with the process.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import math
import socket
import sys
from functools import lru_cache
from typing import Any, Final

from rlenv.concurrency import served

_MEMORY_BYTES: Final = 1 << 30
_ALLOWED: Final = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load, ast.Tuple)
_OPERATORS: Final = (ast.operator, ast.unaryop)
_MOST_CHARS: Final = 10_000


def _literal(text: Any, *_names: Any) -> Any:
    return ast.literal_eval(text)


def _is_arithmetic(text: str) -> bool:
    """True for arithmetic over numbers, names and calls of names: no attribute, no text, no program."""
    try:
        nodes = [*ast.walk(ast.parse(text.strip().replace("!", ""), mode="eval"))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    numbers = all(type(node.value) in (int, float) for node in nodes if isinstance(node, ast.Constant))
    plain = all(isinstance(node, _ALLOWED + _OPERATORS) for node in nodes)
    return plain and numbers and not any("__" in name for name in names) and all(map(_is_of_sympy, calls))


def _is_of_sympy(call: ast.Call) -> bool:
    """True for a call of a mathematical function of sympy's, such as `sin`, without names of arguments."""
    sympy = importlib.import_module("sympy")
    found = getattr(sympy, call.func.id, None) if isinstance(call.func, ast.Name) else None
    is_function = isinstance(found, type) and issubclass(found, (sympy.Function, sympy.Pow))
    return not call.keywords and (is_function or found in (sympy.sqrt, sympy.cbrt, sympy.root))


def _guard() -> None:
    """Replaces what evaluates an answer, in every module of the library that has it."""
    parser = importlib.import_module("sympy.parsing.sympy_parser")
    sympy, original = importlib.import_module("sympy"), parser.parse_expr

    def parse_expr(text: str, *given: Any, **named: Any) -> Any:
        if not _is_arithmetic(text):
            raise ValueError("the answer is no expression of mathematics")
        return original(text, *given, **named)

    for one in (parser, sympy):
        setattr(one, "parse_expr", parse_expr)  # noqa: B010 - modules have no such attribute to a checker of types
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith("reasoning_gym"):
            continue
        if getattr(module, "parse_expr", None) is original:
            setattr(module, "parse_expr", parse_expr)  # noqa: B010
        try:
            evaluates = "eval(answer)" in inspect.getsource(module)
        except (OSError, TypeError):
            continue
        if evaluates:
            setattr(module, "eval", _literal)  # noqa: B010


@lru_cache(maxsize=64)
def _made(name: str, size: int, seed: int, config: str) -> Any:
    library = importlib.import_module("reasoning_gym")
    return library.create_dataset(name, size=size, seed=seed, **json.loads(config))


def _scored(asked: dict[str, Any]) -> dict[str, Any]:
    made = _made(asked["name"], asked["size"], asked["seed"], json.dumps(asked["config"], sort_keys=True))
    entry = made[asked["index"]]
    answer = asked["answer"] if asked["answer"] is not None else entry.get("answer") or ""
    try:
        score = float(made.score_answer(answer=answer, entry=entry))
    except Exception as error:  # of what it reads of an answer, whatever that is
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return {"score": score} if math.isfinite(score) else {"error": f"it gives {score}"}


def serve(host: socket.socket, told: dict[str, Any]) -> None:
    """Answers until the socket closes."""
    importlib.import_module("reasoning_gym")
    _guard()

    def ask(body: bytes, given: int | None) -> tuple[bytes, int | None]:
        asked = json.loads(body)
        with served.within(cpu_s=asked["cpu_s"], wall_s=asked["wall_s"], memory=_MEMORY_BYTES):
            return json.dumps(_scored(asked)).encode(), None

    served.answer(host, ask)
