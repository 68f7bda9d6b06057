"""The tree of exceptions, as errors.py draws it, is the tree of the classes."""

from __future__ import annotations

import importlib
import pkgutil
import re

import rlenv
from rlenv import errors

_NODE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)\b")


def drawn() -> dict[str, str]:
    """Each class of the drawing with the one that it hangs on; "" for the root."""
    assert errors.__doc__ is not None
    above: list[tuple[int, str]] = []
    found: dict[str, str] = {}
    for line in errors.__doc__.splitlines():
        match = _NODE.match(line)
        if match is None or (not match["indent"] and found):
            continue
        if not match["indent"] and match["name"] != "RlenvError":
            continue
        depth = len(match["indent"])
        while above and above[-1][0] >= depth:
            above.pop()
        found[match["name"]] = above[-1][1] if above else ""
        above.append((depth, match["name"]))
    return found


def classes() -> dict[str, str]:
    """Each exception that rlenv raises on purpose, wherever it is defined, with its base."""
    for module in pkgutil.walk_packages(rlenv.__path__, "rlenv."):
        if not module.name.startswith(("rlenv.testing.", "rlenv.__main__")):
            try:
                importlib.import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    found: dict[str, str] = {}

    def add(kind: type[BaseException], base: str) -> None:
        if kind.__module__.split(".")[0] == "rlenv":
            found[kind.__name__] = base
        for one in kind.__subclasses__():
            add(one, kind.__name__)

    add(errors.RlenvError, "")
    return found


def test_every_exception_stands_in_the_drawing_under_its_base() -> None:
    assert drawn() == classes()


def test_the_module_gives_out_its_own_exceptions() -> None:
    own = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert set(errors.__all__) == own
