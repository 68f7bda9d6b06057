"""Values of tagged calls whose objects and lists are tags inside tags, as MiniMax-M3 writes them."""

from __future__ import annotations

from typing import Any, Final

from rlenv.dialects.json_call import MAX_DEPTH
from rlenv.dialects.literals import Broken
from rlenv.dialects.reading import Reading, typed
from rlenv.dialects.schema import Shape
from rlenv.language.dialect import CallSpec

__all__ = ["Element", "tree_at", "value_of"]

Element = str | list[tuple[str, "Element"]]
"""What stands between two tags: a text, or the tags inside with their names."""

ITEM: Final = "item"
"""How the tag around an item of a list is called."""


def tree_at(reading: Reading, spec: CallSpec, key: str, at: int) -> tuple[Element, int]:
    """What stands in the tag of `key`, whose content starts at `at`, and the end of its closing tag.

    Raises:
        Broken: a tag is not closed, text stands beside tags, or they are nested more than `MAX_DEPTH` levels deep.
    """
    text, opened = reading.text, _first(spec.key_open)
    ending = spec.value_close.partition("{key}")[0]
    stack: list[tuple[str, list[tuple[str, Element]], int]] = [(key, [], at)]
    while True:
        name, inside, begin = stack[-1]
        close_mark = spec.value_close.replace("{key}", name)
        mark = reading.find(opened, at)
        close = reading.find(ending, at)
        # `opened` may be the beginning of `ending`; then both stand where a tag is closed.
        if 0 <= mark < close:
            _only_space(text, at, mark)
            end = reading.find(spec.key_close, mark + len(opened))
            child = text[mark + len(opened) : end] if 0 <= end <= mark + len(opened) + 512 else ""
            if not child.strip() or "<" in child or "\n" in child:
                raise Broken(f"{child[:40]!r} is no name of a tag", mark)
            if len(stack) >= MAX_DEPTH:
                raise Broken(f"the tags are nested more than {MAX_DEPTH} levels deep", mark)
            at = end + len(spec.key_close)
            stack.append((child, [], at))
            continue
        if close < 0 or not text.startswith(close_mark, close):
            raise Broken(f"the value of {name[:40]!r} is not closed; expected {close_mark}", at)
        value: Element = inside
        if inside:
            _only_space(text, at, close)
        else:
            value = text[begin:close]
        at = close + len(close_mark)
        stack.pop()
        if not stack:
            return value, at
        stack[-1][1].append((name, value))


def value_of(reading: Reading, element: Element, shape: Shape | None) -> Any:
    """The value that an element stands for, in the type of its shape.

    Tags are an object, or a list where the shape says so or all of them are called `item`.

    Raises:
        Broken: a name stands twice in an object.
    """
    kinds = shape.kinds if shape is not None else ()
    if isinstance(element, str):
        if not element.strip() and "string" not in kinds:
            for kind, empty in (("object", {}), ("array", [])):
                if kind in kinds:
                    return empty
        return typed(element, shape)
    is_list = "array" in kinds if ("array" in kinds) != ("object" in kinds) else all(n == ITEM for n, _ in element)
    if is_list:
        return [value_of(reading, item, shape and shape.at_index(i)) for i, (_, item) in enumerate(element)]
    out: dict[str, Any] = {}
    several: set[str] = set()
    for name, item in element:
        value = value_of(reading, item, shape and shape.at_key(name))
        if name not in out:
            out[name] = value
            continue
        if not reading.allows("repeated_tags"):
            raise Broken(f"{name[:40]!r} stands twice in one object; expected it once", 0)
        if name not in several:
            several.add(name)
            out[name] = [out[name]]
        out[name].append(value)
    return out


def _only_space(text: str, at: int, end: int) -> None:
    if text[at:end].strip():
        raise Broken(f"text stands beside tags ({text[at:end].strip()[:20]!r}); expected tags alone", at)


def _first(marks: str | tuple[str, ...]) -> str:
    return marks if isinstance(marks, str) else marks[0]
