"""Built-in dialects by name, and inline ones over them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from rlenv.dialect_spec import DialectSpec
from rlenv.dialects.aliases import row_name
from rlenv.dialects.engine import TextDialect
from rlenv.dialects.families import ROWS
from rlenv.registry import Kind

__all__ = ["KINDS", "build", "row_of", "whole_row"]


@cache
def row_of(name: str) -> DialectSpec:
    """The whole row of a built-in family, which any of its names gives.

    Raises:
        KeyError: there is no such family.
    """
    name = row_name(name, ROWS)
    return DialectSpec.model_validate({"base": name, **ROWS[name]})


def build(name: str, spec: DialectSpec) -> TextDialect:
    """A dialect from the keys that `spec` gives, over the row of its `base`; keys of `chat` are merged.

    Raises:
        KeyError: `base` is no built-in family.
    """
    return TextDialect(name, whole_row(name, spec))


def whole_row(name: str, spec: DialectSpec) -> DialectSpec:
    """What `build` makes a dialect of.

    Raises:
        KeyError: `base` is no built-in family.
    """
    base = row_of(spec.base if "base" in spec.model_fields_set or name not in ROWS else name)
    given: dict[str, Any] = {key: getattr(spec, key) for key in spec.model_fields_set if key != "base"}
    if "chat" in given:
        chat = spec.chat
        given["chat"] = base.chat.model_copy(update={key: getattr(chat, key) for key in chat.model_fields_set})
    return base.model_copy(update=given)


def _kind(name: str) -> Kind:
    return Kind(DialectSpec, lambda spec=None: build(name, spec if spec is not None else DialectSpec()))


KINDS: Mapping[str, Kind] = {name: _kind(name) for name in ROWS}


def __getattr__(name: str) -> Kind:
    # The registry names each kind by an attribute of a module, and by any name that people know it by.
    try:
        return KINDS[row_name(name, ROWS)]
    except KeyError as error:
        raise AttributeError(name) from error
