"""The names of a host that an adapter says it stands on, and which of them are gone; prints those as JSON."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from operator import attrgetter
from typing import Any


def held(value: Any) -> set[str]:
    """What a thing has: members and fields of a class, and parameters of a function."""
    names = set(dir(value)) | set(getattr(value, "model_fields", ()))
    if dataclasses.is_dataclass(value):
        names |= {field.name for field in dataclasses.fields(value)}
    if isinstance(value, type):
        return names | {name for base in value.__mro__ for name in getattr(base, "__annotations__", ())}
    return names | set(inspect.signature(value).parameters)


def gone(place: str, needs: str) -> list[str]:
    module, _, name = place.partition(":")
    try:
        value = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return [place]
    return [f"{place}: {one}" for one in needs.split() if one not in held(value)]


contract = importlib.import_module(sys.argv[1]).CONTRACT
print(json.dumps([fault for place, needs in contract.items() for fault in gone(place, needs)]))
