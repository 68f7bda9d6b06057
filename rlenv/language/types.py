"""What every class of the language is made of: a frozen mapping without unknown keys, and types without coercion."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Strict

__all__ = ["Bool", "Float", "Int", "Spec", "Text"]

# YAML 1.2 has real types, so nothing is coerced: "3" is not a number and yes is not a boolean.
Text = Annotated[str, Strict()]
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]


class Spec(BaseModel):
    """A mapping of the language: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
