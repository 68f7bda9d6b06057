"""The description of a function and of its parameters, from a Google, NumPy or Sphinx docstring."""

from __future__ import annotations

import inspect
import re

__all__ = ["read_docstring"]

_GOOGLE = re.compile(r"(?:Args|Arguments|Parameters|Params)\s*:\s*$")
_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Params|Keyword Args|Other Parameters|Returns?|Yields?|Raises|Examples?|Notes?|"
    r"Warnings?|See Also|References|Attributes|Todo)\s*:?\s*$"
)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX = re.compile(r":(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)$")
_SPHINX_ANY = re.compile(r":\w+[^:]*:")


def read_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the descriptions of parameters by name; white space is folded.

    Reading never raises; what is not understood is left out.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    head: list[str] = []
    found: dict[str, list[str]] = {}
    index = 0
    in_head = True
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        is_ruled = len(following) >= 3 and not following.strip("-")
        if match := _SPHINX.match(line.strip()):
            in_head = False
            index = _sphinx(lines, index, match, found)
        elif _SECTION.match(line) and (is_ruled or line.rstrip().endswith(":")):
            in_head = False
            if is_ruled and line.strip().rstrip(":") in ("Parameters", "Other Parameters", "Args"):
                index = _numpy(lines, index + 2, found)
            elif _GOOGLE.match(line):
                index = _google(lines, index + 1, found)
            else:
                index += 1
        else:
            if _SPHINX_ANY.match(line.strip()):
                in_head = False
            if in_head:
                head.append(line)
            index += 1
    return _folded(head), {name: " ".join(" ".join(parts).split()) for name, parts in found.items()}


def _folded(lines: list[str]) -> str:
    paragraphs = "\n".join(lines).strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _sphinx(lines: list[str], index: int, match: re.Match[str], found: dict[str, list[str]]) -> int:
    parts = found.setdefault(match[1], [])
    parts.append(match[2])
    depth = _indent(lines[index])
    index += 1
    while index < len(lines) and lines[index].strip() and _indent(lines[index]) > depth:
        parts.append(lines[index].strip())
        index += 1
    return index


def _google(lines: list[str], index: int, found: dict[str, list[str]]) -> int:
    depth: int | None = None
    parts: list[str] = []
    while index < len(lines):
        line = lines[index]
        if line.strip():
            indent = _indent(line)
            if indent == 0:
                break
            depth = indent if depth is None else depth
            match = _GOOGLE_ITEM.match(line.strip()) if indent <= depth else None
            if match:
                parts = found.setdefault(match[1], [])
                parts.append(match[2])
            else:
                parts.append(line.strip())
        index += 1
    return index


def _numpy(lines: list[str], index: int, found: dict[str, list[str]]) -> int:
    current: list[list[str]] = []
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        if line.strip():
            if _indent(line) == 0:
                if len(following) >= 3 and not following.strip("-"):
                    break
                match = _NUMPY_ITEM.match(line.strip())
                if not match:
                    break
                current = [found.setdefault(name.strip(" *"), []) for name in match[1].split(",")]
            else:
                for parts in current:
                    parts.append(line.strip())
        index += 1
    return index
