"""Built-in dialects by name, and inline ones over them.

A family is a file in `families/`, in the keys that a spec has under `dialect`; it is read once it is asked for.
Formats: the chat templates that the families publish, and what vLLM 0.33's tool parsers of the same names accept
(Apache-2.0; facts only). What a family offers as leniency is what that parser reads beyond the family's own format.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from rlenv.dialects.aliases import row_name
from rlenv.dialects.engine import TextDialect
from rlenv.language.dialect import DialectSpec
from rlenv.language.kinds import BUILT_IN, Kind
from rlenv.language.yamltree import parse_text

__all__ = ["FAMILIES", "KINDS", "build", "family_text", "row_of", "whole_row"]

FAMILIES: Final[tuple[str, ...]] = tuple(BUILT_IN["dialects"])
"""The names of the built-in families."""
_FOLDER: Final = Path(__file__).with_name("families")


def family_text(name: str) -> str:
    """The YAML of a built-in family, which any of its names gives.

    Raises:
        KeyError: there is no such family.
    """
    family = row_name(name, FAMILIES)
    if family not in FAMILIES:
        raise KeyError(name)
    return (_FOLDER / f"{family}.yaml").read_text(encoding="utf-8")


@cache
def row_of(name: str) -> DialectSpec:
    """The whole row of a built-in family, which any of its names gives.

    Raises:
        KeyError: there is no such family.
    """
    name = row_name(name, FAMILIES)
    given = DialectSpec.model_validate(parse_text(family_text(name), file=f"{name}.yaml", base=_FOLDER).plain())
    return whole_row(name, given).model_copy(update={"base": name})


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
    base_name = spec.base if "base" in spec.model_fields_set or name not in FAMILIES else name
    if base_name is None:
        return spec
    base = row_of(base_name)
    given: dict[str, Any] = {key: getattr(spec, key) for key in spec.model_fields_set if key != "base"}
    if "chat" in given:
        chat = spec.chat
        given["chat"] = base.chat.model_copy(update={key: getattr(chat, key) for key in chat.model_fields_set})
    return base.model_copy(update=given)


def _kind(name: str) -> Kind:
    return Kind(DialectSpec, lambda spec=None: build(name, spec if spec is not None else DialectSpec()))


KINDS: Mapping[str, Kind] = {name: _kind(name) for name in FAMILIES}


def __getattr__(name: str) -> Kind:
    # The registry names each kind by an attribute of a module, and by any name that people know it by.
    try:
        return KINDS[row_name(name, FAMILIES)]
    except KeyError as error:
        raise AttributeError(name) from error
