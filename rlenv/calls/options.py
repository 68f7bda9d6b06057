"""What of a tool's entry decides the answer to a call, for a tape.

Whatever a kind does not name under `aside` does, an option that is new too: where it has changed, a recorded answer is
none to the call that is made now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rlenv._base.jsonable import plain
from rlenv.language.spec import ToolSpec
from rlenv.language.templates import TemplateError, compile_template, texts_in

__all__ = ["options_of"]

_CONSTANT: Final = re.compile(r"\{\{\s*vars\.([\w.]+)\s*\}\}")
_SERVER: Final = re.compile(r"(?:\w+://)?[^/?#]*")


def options_of(entry: ToolSpec, *, vars: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide an answer, as they are written, and under `vars` the constants that they read.

    Those at their default are left out, and of `url` the server. Secrets stand by their names.
    """
    options = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(type(entry).aside))
    if isinstance(url := options.get("url"), str):
        # A constant may hold the server, and a part of the path with it.
        options["url"] = _SERVER.sub("", _CONSTANT.sub(lambda one: _constant(one, vars), url), count=1)
    read = {name: value for text in texts_in(options) for name, value in _read(text, vars)}
    return {**options, "vars": read} if read else options


def _constant(match: re.Match[str], vars: Mapping[str, Any]) -> str:
    path = ("vars", *match[1].split("."))
    found, value = _held(path, vars)
    return value if found == path and isinstance(value, str) else match[0]


def _read(text: str, vars: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The constants that a template reads, by their dotted names."""
    try:
        paths = compile_template(text).paths if "{" in text else ()
    except TemplateError:  # a text that is no template
        return
    for path in paths:
        if path[0] == "vars":
            found, value = _held(path, vars)
            yield ".".join(found), plain(value)


def _held(path: tuple[str, ...], vars: Mapping[str, Any]) -> tuple[tuple[str, ...], Any]:
    """As much of `path` as leads to a constant, and what stands there: a template may ask a text for its parts."""
    value: Any = vars
    for index, key in enumerate(path[1:], 1):
        if not isinstance(value, Mapping) or key not in value:
            return path[:index], value
        value = value[key]
    return path, value
