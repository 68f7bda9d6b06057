"""How model families write calls and read results."""

from __future__ import annotations

from typing import Any

from rlenv import registry
from rlenv.dialect_spec import DialectSpec
from rlenv.dialects.base import Dialect

__all__ = ["Dialect", "get", "inline"]


def get(name: str, **options: Any) -> Dialect:
    """The dialect called `name`; `options` are the keys of its spec.

    Raises:
        KeyError: no dialect has that name.
        UsageError: it comes from a plug-in that cannot be loaded.
        pydantic.ValidationError: an option that the dialect does not take.
    """
    kind = registry.get("dialects", name)
    dialect: Dialect = kind.factory(kind.spec(**options))
    return dialect


def inline(spec: DialectSpec, *, name: str = "inline") -> Dialect:
    """A dialect from a mapping, over the built-in one that its `base` names.

    Raises:
        KeyError: `base` is no built-in dialect.
    """
    from rlenv.dialects.built_in import build

    return build(name, spec.model_copy(update={"base": spec.base}) if spec.base else spec)
