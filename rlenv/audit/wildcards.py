"""Answers that match anything where an answer is read as a pattern: wildcards of the usual pattern languages.

A reward that puts the answer on the pattern's side (`re.search(answer, gold)`, `fnmatch(gold, answer)`, `gold LIKE
answer`, a schema, a template) takes any of these for right. The last ways are controls: marks that are no wildcard in
any of the languages, so that what they earn too is paid for something else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from rlenv.audit.subject import Action, Subject

__all__ = ["CONTROLS", "wildcard_scripts"]

_REGEX = (".*", ".+", r"[\s\S]*")
_GLOB = ("*", "?*")
_LIKE = ("%", "%%%")
_SCHEMA = json.dumps({"type": ["string", "number", "boolean", "object", "array", "null"]})
_OTHERS = ("judge", "tests", "group")
"""Kinds of terms that compare no answer with a gold: for them a wildcard is a wrong answer like others."""
_PLAIN = (",;", "~", json.dumps({"zqx": 1}))
CONTROLS = len(_PLAIN)
"""How many of the last ways are no wildcards."""


def wildcard_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """One wildcard a way, then the controls; () in the place of one that may be right on the row.

    That is what the row names, what the right answer stands in, and a control that is a part of the right answer.
    """
    if all(spec.kind in _OTHERS for spec in subject.environment.spec.rewards.values() if spec.weight):
        return []
    said, right = {text.strip() for text in _texts(subject.task)}, subject.right.strip().casefold()
    texts = [*_REGEX, *_GLOB, *_LIKE, _SCHEMA, *_of_shape(subject.right), *_filled(subject)]
    scripts = [[] if text in said or right in text.casefold() else [subject.form(text)] for text in texts]
    return [*scripts, *([] if text in subject.right else [subject.form(text)] for text in _PLAIN)]


def _of_shape(right: str) -> Iterator[str]:
    """Patterns as long as a right answer, its marks in place: for a rule that refuses those that match everything."""
    text = right.strip()[:200] or "x"
    yield "".join(r"\d" if one.isdigit() else r"\w" if one.isalpha() else re.escape(one) for one in text)
    yield re.sub(r"\w", "?", text)
    yield re.sub(r"\w", "_", text)


def _filled(subject: Subject) -> Iterator[str]:
    """Places that a template fills with what the row names right."""
    names = [name for name, value in subject.task.items() if str(value).strip() == subject.right.strip() != ""]
    name = names[0] if names else "gold"
    yield from (f"{{{{ {name} }}}}", f"{{{{ task.{name} }}}}", f"{{{name}}}", f"${{{name}}}")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    else:
        yield str(value)
