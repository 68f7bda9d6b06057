"""The check of reasoning.yaml."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from fractions import Fraction

from rlenv.rewards.base import RewardContext

__all__ = ["correct"]

_SUM = re.compile(r"[0-9+*/() -]{1,200}")


def correct(context: RewardContext) -> float:
    """1 for the right answer. Several are right in `countdown`; spaces count nowhere."""
    task, answer = context.task, (context.answer or "").strip()
    if task["dataset"] == "countdown":
        return float(_makes(answer, task["metadata"]["numbers"], task["metadata"]["target"]))
    return float(answer.replace(" ", "") == task["answer"].replace(" ", ""))


def _makes(answer: str, numbers: Sequence[int], target: int) -> bool:
    """True for an expression that is the target, of each number once."""
    if not _SUM.fullmatch(answer) or sorted(map(int, re.findall("[0-9]+", answer))) != sorted(numbers):
        return False
    try:
        return _value(ast.parse(answer, mode="eval").body) == target
    except (SyntaxError, MemoryError, RecursionError, ValueError, ZeroDivisionError):
        return False


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left) + _value(right)
        case ast.BinOp(left, ast.Sub(), right):
            return _value(left) - _value(right)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left) * _value(right)
        case ast.BinOp(left, ast.Div(), right):
            return _value(left) / _value(right)
    raise ValueError("only + - * / are allowed")
