"""Words that are not the language's own: PyYAML's errors, converted here alone, and keys that had another name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from rlenv._base.text import parts_of
from rlenv.errors import SpecError

if TYPE_CHECKING:
    from rlenv.language.yamltree import Node

WORDS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""What is said of faults, as data."""
FORMER: Final[Mapping[str, Mapping[str, str]]] = WORDS["former"]
"""Names that keys had, with the present ones, by the place of their mapping; behind `:` its kinds, or the rule."""


def explain(error: yaml.MarkedYAMLError) -> tuple[str, str, yaml.Mark | None]:
    """The found and the expected text, the nearest fix, and the place."""
    problem = error.problem or "the text cannot be read as YAML"
    mark = error.problem_mark or error.context_mark
    for told in WORDS["problem"]:
        if match := re.search(told["pattern"], problem):
            message = told["found"]
            # A quote or bracket that is never closed is best shown where it opens.
            if "end of stream" in problem and error.context_mark is not None:
                mark = error.context_mark
            if "not closed" in message and "<stream end>" in problem and error.context_mark is not None:
                mark = error.context_mark
            opened, met = error.context_mark, error.problem_mark
            if "but got ':'" in problem and opened is not None and met is not None and opened.line < met.line:
                fix = f"add the missing '}}' before line {met.line + 1}, or ',' between entries"
                return f"found the mapping of '{{' not closed before the key on line {met.line + 1}", fix, opened
            return message.format(*match.groups()), told["fix"].format(), mark
    context = f" ({error.context})" if error.context else ""
    return f"this is not YAML: {problem}{context}", "check the indentation and the quotes here", mark


def rename(root: Node) -> None:
    """Gives each key of a tree that has a former name its present one; the key's place says how it `was` written.

    Raises:
        SpecError: a file has both names in one mapping.
    """
    for place, words in FORMER.items():
        for path, node in _mappings_at(root, place.split("."), ()):
            assert isinstance(node.value, dict)
            held: dict[str, Node] = {}
            for key, child in node.value.items():
                name, at = words.get(key, key), child.key
                if name in held and at and (other := held[name].key) and at.file == other.file:
                    message = f"found '{at.was or key}' beside '{other.was or name}'; both are '{name}'"
                    raise SpecError([at.fault(".".join((*path, key)), message, "remove one of them")])
                held[name] = child
                if name != key and at:
                    child.key = replace(at, was=key)
            node.value = held


def former_names(place: str, kind: str) -> dict[str, str]:
    """The former names of an entry's keys by their present ones, such as those of `tools` of kind `command`."""
    found = [words for at, words in FORMER.items() if at.startswith(f"{place}.*:") and kind in re.split(r"[:|]", at)]
    return {name: was for words in found for was, name in words.items()}


def _mappings_at(node: Node, parts: list[str], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    """The mappings at a place of `FORMER`, with their paths."""
    if not parts:
        if isinstance(node.value, dict):
            yield path, node
        return
    name, _, kinds = parts[0].partition(":")
    for key, child in parts_of(node.value):
        if name in (key, "*") and (not kinds or _kind(child.value) in kinds.split("|")):
            yield from _mappings_at(child, parts[1:], (*path, str(key)))


def _kind(value: Any) -> Any:
    return next((value[key].value for key in ("rule", "kind") if key in value), "") if isinstance(value, dict) else ""
