"""Templates of an entry that are filled for each call, over `args`, `task` and `vars`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlenv._base.nearest import did_you_mean
from rlenv.language.templates import UnfitTemplate, compile_template, compile_value, template_of, texts_at, texts_in
from rlenv.secrets import set_aside

__all__ = ["Filling", "compile_filling", "is_dynamic", "read_parameters"]

_NAMES = ("args", "task", "vars")

Filling = Callable[..., Any]
"""Filled by `filling(args=…, task=…)`."""


def read_parameters(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """From a call's arguments to what templates read as `args`.

    Every name of the schema is there: one that the call left out has its `default`, or None.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    defaults = {name: one.get("default") if isinstance(one, Mapping) else None for name, one in properties.items()}
    return lambda arguments: {**defaults, **arguments}


def compile_filling(value: Any, *, key: str, parameters: Mapping[str, Any], vars: Mapping[str, Any]) -> Filling:
    """Compiles `value`, in which every string is a template; secrets named in it are put in.

    Args:
        key: the key that holds it, for messages.
        parameters: the tool's parameters, whose names `args` has.

    Raises:
        UsageError: a template cannot be read, or reads a name that is not there; a secret is not set.
    """
    for place, text in texts_at(key, value):
        _check(text, key=place, parameters=parameters)
    marked, with_secrets = set_aside(value)
    fill = compile_value(marked)
    return lambda *, args, task: with_secrets(fill(args=args, task=task, vars=vars))


def is_dynamic(value: Any) -> bool:
    """True if a template in `value` reads what differs from call to call."""
    return any(compile_template(text).names & {"args", "task"} for text in texts_in(value))


def _check(text: str, *, key: str, parameters: Mapping[str, Any]) -> None:
    template = template_of(text, key=key)
    named = list(parameters.get("properties", {}))
    for name in sorted(template.names - set(_NAMES)):
        listed = f"did you mean 'args.{name}'?" if name in named else f"known names: {', '.join(_NAMES)}"
        hint = did_you_mean(name, _NAMES, otherwise=listed)
        raise UnfitTemplate(f"'{name}' is not known here", key=key, hint=hint, find=name)
    for path in sorted(template.paths):
        if path[0] == "args" and len(path) > 1 and path[1] not in named:
            hint = did_you_mean(path[1], named, otherwise="name it under 'parameters'", prefix="args.")
            found = ".".join(path[:2])
            raise UnfitTemplate(f"there is no argument '{path[1]}'", key=key, hint=hint, find=found)
