"""Frozen records made quickly, for the paths that every turn takes.

A frozen dataclass sets each field through `object.__setattr__`: 1 to 2 µs a record, and a turn makes about ten. A
draft of the same slots is filled by plain assignment and becomes the frozen record at once; nobody else ever sees the
draft. That takes a third of the time (`benchmarks/turns.py`: a text turn 46.8 µs before, see
docs/measurements/performance.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["quick"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def quick(record: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function with the arguments of `record`, a frozen and slotted dataclass, that makes an equal one.

    Raises:
        TypeError: `record` is not such a class, or has a `__post_init__` that would be left out.
    """
    cls: Any = record
    if not hasattr(cls, "__dataclass_fields__") or "__slots__" not in vars(cls) or hasattr(cls, "__post_init__"):
        raise TypeError(f"{cls!r} is not a slotted dataclass without __post_init__")
    names = [field.name for field in dataclasses.fields(cls)]
    values: dict[str, Any] = {"draft": type(f"_{cls.__name__}", (), {"__slots__": tuple(names)}), "record": cls}
    values["MISSING"] = dataclasses.MISSING
    arguments: list[str] = []
    # Source as dataclasses itself makes it for __init__: plain assignments are what is quick.
    lines = [" made = draft()"]
    for field in dataclasses.fields(cls):
        name, given = field.name, field.name
        if field.default is not dataclasses.MISSING:
            values[f"default_{name}"] = field.default
            given = f"{name}=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            values[f"factory_{name}"] = field.default_factory
            given = f"{name}=MISSING"
            lines.append(f" if {name} is MISSING: {name} = factory_{name}()")
        arguments.append(given)
        lines.append(f" made.{name} = {name}")
    lines.insert(0, f"def make({', '.join(arguments)}):")
    lines += [" made.__class__ = record", " return made"]
    exec("\n".join(lines), values)
    make: Callable[_P, _T] = values["make"]
    return make
