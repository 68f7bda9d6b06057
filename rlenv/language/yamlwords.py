"""Words that are not the language's own: PyYAML's errors, converted here alone, and keys that had another name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import yaml

from rlenv.errors import SpecError

if TYPE_CHECKING:
    from rlenv.language.yamltree import Node

FORMER: Mapping[str, Mapping[str, str]] = {
    "dialect": {"tool_schemas": "tools"},
    "dialect.chat": {"system_default": "system", "strips": "trim"},
    "dialect.chat_template": {"kwargs": "vars"},
    "oracle": {"python": "function"},
    "resources.*:gymnasium|python": {"factory": "function"},
    "resources.*:gymnasium": {"args": "arguments"},
    "resources.*:tempdir|workspace": {"copy_from": "path"},
    "resources.*:workspace": {"workdir": "cwd", "most_processes": "processes"},
    "rewards.*:calls_match": {"ordered": "order"},
    "rewards.*:contains": {"match": "mode"},
    "rewards.*:gsm8k": {"clip_chars": "max_chars"},
    "rewards.*:judge": {"limit_s": "timeout_s", "value_key": "key"},
    "rewards.*:judge.judges.*": {"limit_s": "timeout_s"},
    "rewards.*:judge.pairwise": {"least": "quorum", "opponents": "limit", "among": "with"},
    "rewards.*:math_equal": {"limit_s": "cpu_s"},
    "rewards.*:rule|python|group": {"python": "function"},
    "rewards.*:rl_factory_search": {"form": "structure"},
    "rewards.*:state": {"after": "expect", "by": "function"},
    "rewards.*:tests": {"total_s": "timeout_s"},
    "rewards.*:workspace": {"run": "command", "strategy": "combine"},
    "tasks.*": {"python": "function", "rows_at": "key", "args": "arguments"},
    "tasks.*.reasoning_gym": {"size": "limit"},
    "tools.*.faults.delay_s": {"uniform": "range"},
    "calls.faults.delay_s": {"uniform": "range"},
    "tasks.*.hf": {"dataset": "path", "config": "name"},
    "tools.*:agent": {"max_turns": "turns"},
    "tools.*:command": {"argv": "command", "expect_status": "expect", "expect_exit": "expect", "file_mb": "disk_mb"},
    "tools.*:http": {"expect_status": "expect"},
    "tools.*:mcp": {"size": "workers"},
    "tools.*:python": {"schemas": "tools"},
    "tools.*:search": {"corpus": "path", "fields": "columns"},
    "tools.*:verl": {"functions": "tools"},
    "tools.*.cache": {"max_entries": "limit"},
    "calls.cache": {"max_entries": "limit"},
    "user:scripted.cues.*": {"when": "pattern"},
}
"""Names that keys had, with the present ones, by the place of their mapping; behind `:` its kinds, or the rule."""

# (PyYAML 6.0's problem as a pattern, what was found and expected, the nearest fix); the first that fits is taken.
_WORDS: tuple[tuple[str, str, str], ...] = (
    (r"found character '\\t'", "found a tab; YAML indents with spaces only", "replace the tab with spaces"),
    (
        r"found character '([@`%|>])' that cannot start",
        "found a value that starts with '{0}', which YAML reserves",
        "put the value in quotes",
    ),
    (
        r"mapping values are not allowed here",
        "found a ':' inside a value, or a key that is indented differently from its neighbours",
        "put the value in quotes, or align the key",
    ),
    (
        r"could not find expected ':'",
        "found a line that is no 'key: value'",
        "add ': ' after the key, or indent the line to continue the one above",
    ),
    (
        r"expected <block end>, but found '-'",
        "found a '-' that does not line up with the list or the key above",
        "align it with its neighbours",
    ),
    (
        r"expected <block end>",
        "found something that does not line up with the keys above, or text after a closing quote or bracket",
        "align it with its neighbours, or quote the whole value",
    ),
    (
        r"expected ',' or '[\]}]', but got '\?'",
        "found a '?' before a bracket or comma in a text without quotes, which YAML reads as its own sign",
        "put the text in quotes",
    ),
    (
        r"expected ',' or '\}', but got ':'",
        "found a second ':' in one entry of '{{'",
        "add ',' between entries, or put the text in quotes",
    ),
    (r"expected ',' or '\]'", "found the list of '[' not closed here", "add ',' between items, or the missing ']'"),
    (
        r"expected ',' or '\}'",
        "found the mapping of '{{' not closed here",
        "add ',' between entries, or the missing '}}'",
    ),
    (r"found unexpected end of stream", "found the end of the file inside a quoted text", "add the closing quote"),
    (
        r"found unknown escape character '(.+)'",
        "found the escape '\\{0}', which YAML does not know",
        "use single quotes",
    ),
    (
        r"expected escape sequence of",
        "found an escape with too few hexadecimal digits",
        "use \\xNN, \\uNNNN or \\UNNNNNNNN",
    ),
    (
        r"found undefined tag handle|expected the tag|tag directive",
        "found a tag; tags are not part of the language",
        "remove it",
    ),
    (r"expected '<document start>'", "found text after the end of the document", "remove '...' or fix the indentation"),
    (r"sequence entries are not allowed here", "found a '-' where no list can start", "put the list on its own lines"),
    (r"expected a comment or a line break", "found text after '|' or '>'", "start the text on the next line"),
    (r"expected indentation indicator", "found a wrong number after '|' or '>'", "use a number from 1 to 9, or none"),
    (r"found document separator", "found '---' inside a quoted text", "indent the text or close the quote"),
)


def explain(error: yaml.MarkedYAMLError) -> tuple[str, str, yaml.Mark | None]:
    """The found and the expected text, the nearest fix, and the place."""
    problem = error.problem or "the text cannot be read as YAML"
    mark = error.problem_mark or error.context_mark
    for pattern, message, hint in _WORDS:
        if match := re.search(pattern, problem):
            # A quote or bracket that is never closed is best shown where it opens.
            if "end of stream" in problem and error.context_mark is not None:
                mark = error.context_mark
            if "not closed" in message and "<stream end>" in problem and error.context_mark is not None:
                mark = error.context_mark
            return message.format(*match.groups()), hint.format(), mark
    context = f" ({error.context})" if error.context else ""
    return f"this is not YAML: {problem}{context}", "check the indentation and the quotes here", mark


def rename(root: Node) -> None:
    """Gives each key of a tree that has a former name its present one; the key's place says how it `was` written.

    Raises:
        SpecError: a file has both names in one mapping.
    """
    for place, words in FORMER.items():
        for path, node in _at(root, place.split("."), ()):
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


def _at(node: Node, parts: list[str], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    """The mappings at a place of `FORMER`, with their paths."""
    if not parts:
        if isinstance(node.value, dict):
            yield path, node
        return
    name, _, kinds = parts[0].partition(":")
    held = node.value.items() if isinstance(node.value, dict) else ()
    for key, child in enumerate(node.value) if isinstance(node.value, list) else held:
        if name in (key, "*") and (not kinds or _kind(child.value) in kinds.split("|")):
            yield from _at(child, parts[1:], (*path, str(key)))


def _kind(value: Any) -> Any:
    named = [value[key].value for key in ("rule", "kind") if key in value] if isinstance(value, dict) else []
    return named[0] if named else ""
