"""Templates in reward terms: what they may read, and gold values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rlenv.errors import RewardError, UsageError
from rlenv.rewards.base import RewardContext
from rlenv.templates import TemplateError, compile_template, compile_value, texts_in

__all__ = ["compile_accepted", "compile_for_context"]

_NAMES = frozenset(("task", "vars", "resources", "answer", "item"))
_COLUMN = re.compile(r"\{\{\s*task\.([A-Za-z_]\w*)\s*\}\}", re.ASCII)


def compile_for_context(value: Any, *, where: str, names: frozenset[str] = _NAMES) -> Callable[..., Any]:
    """Compiles a JSON-like value with templates over `task`, `vars`, `resources`, `answer` and `item`.

    Args:
        value: the value as it stands in the spec.
        where: the key that holds it, for messages.
        names: those of the names above that have a value here.

    Returns:
        A function of a RewardContext (and `item`) that gives the filled value; raises RewardError where a name
        is undefined.

    Raises:
        UsageError: a template does not compile or reads another name.
    """
    for source in texts_in(value):
        if "{" not in source:
            continue
        try:
            template = compile_template(source)
        except TemplateError as error:
            raise UsageError(f"{where}: {error}") from error
        if unknown := sorted(template.names - names):
            known = ", ".join(sorted(names))
            raise UsageError(f"{where}: '{source}' reads '{unknown[0]}', which is not known here; there are: {known}")
    if isinstance(value, str) and (column := _COLUMN.fullmatch(value.strip())):
        return _column(column[1], where)
    fill = compile_value(value)

    def filled(context: RewardContext, item: Any = None) -> Any:
        try:
            return fill(
                task=context.task, vars=context.vars, resources=context.resources, answer=context.answer, item=item
            )
        except TemplateError as error:
            raise RewardError(f"{where}: {error}") from error

    return filled


def compile_accepted(expect: Any, *, where: str = "expect") -> Callable[[RewardContext], tuple[Any, ...]]:
    """Compiles a gold value to a function that gives the accepted answers: the elements of a list, or the one value.

    The function raises RewardError where the task has no gold value: an empty list, null or a missing column cannot
    be scored, and is never a wrong answer of the policy's.
    """
    fill = compile_for_context(expect, where=where, names=frozenset(("task", "vars", "resources")))

    def accepted(context: RewardContext) -> tuple[Any, ...]:
        value = fill(context)
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not values or any(one is None for one in values):
            raise RewardError(f"{where}: the task gives no value for '{expect}' (found {value!r:.80})")
        return values

    return accepted


def _column(name: str, where: str) -> Callable[..., Any]:
    # The commonest template by far; reading the column directly saves Jinja's evaluation.
    def filled(context: RewardContext, item: Any = None) -> Any:
        try:
            return context.task[name]
        except KeyError:
            raise RewardError(f"{where}: the task has no column '{name}'; it has: {', '.join(context.task)}") from None

    return filled
