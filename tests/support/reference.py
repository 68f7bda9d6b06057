"""The pages of the docs that are made from the code: the command line, and the names of the API.

python tests/support/reference.py     # writes them
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import rlenv
from rlenv.cli.commands import ALIASES, COMMANDS, Entry
from rlenv.cli.options import Option, Options, options_of

ROOT = Path(__file__).resolve().parents[2]
COMMANDS_PAGE = ROOT / "docs" / "api" / "commands.md"
NAMES_PAGE = ROOT / "docs" / "api" / "names.md"
PACKAGES = ("rlenv", "rlenv.testing", "rlenv.tokens", "rlenv.tools.base", "rlenv.rewards.base", "rlenv.policies.base")


def commands_page() -> str:
    """Every command with its options."""
    lines = [
        "# Command line",
        "",
        "Every command and its options, made from their declarations; `--help` behind a command shows the same.",
        "Exit codes: 0 fine, 1 faults found or a bar missed, 2 wrong usage, 130 interrupted.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`rlenv {name}`](#rlenv-{name}) | {entry.summary} |" for name, entry in COMMANDS.items()),
        "",
        "Names of the version before still work, and say the new one on standard error:",
        "",
        "| old | new |",
        "|---|---|",
        *(f"| `rlenv {name}` | `rlenv {' '.join(words)}` |" for name, words in ALIASES.items()),
    ]
    for name, entry in COMMANDS.items():
        lines += section(name, entry, depth=2)
    return "\n".join(lines) + "\n"


def section(name: str, entry: Entry, *, depth: int) -> list[str]:
    """A command, and below it those that are chosen by a word behind its name."""
    lines = ["", f"{'#' * depth} `rlenv {name}`", "", f"{entry.summary[0].upper()}{entry.summary[1:]}."]
    if entry.place:
        lines += ["", *rows(entry.record(name))]
    for word, mode in entry.modes.items():
        lines += section(f"{name} {word}", mode, depth=depth + 1)
    return lines


def rows(record: type[Options]) -> Iterator[str]:
    """The options of a command as a table."""
    yield "| option | value | meaning |"
    yield "|---|---|---|"
    for one in options_of(record):
        text = one.help.replace("%%", "%").replace("|", "\\|")
        group = f"{one.group.partition(':')[0]}: " if one.group.startswith("--") else ""
        default = (
            "" if one.default in (None, False, [], "") or "default" in text else f" (default: {shown(one.default)})"
        )
        yield f"| {flags(one)} | {value(one)} | {group}{text}{default} |"


def flags(one: Option) -> str:
    """An option as it is written."""
    return ", ".join(f"`{flag}`" for flag in one.flags) if one.flags else f"`{named(one)}`"


def named(one: Option) -> str:
    """What stands in an option's place in `--help`."""
    words = one.metavar or one.name
    return (words if isinstance(words, str) else " ".join(words)).replace("|", "\\|")


def value(one: Option) -> str:
    """What an option takes."""
    kinds = {str: "text", int: "whole number", float: "number", bool: "", Path: "path"}
    kind = ", ".join(f"`{word}`" for word in one.choices) if one.choices else kinds[one.kind]
    if one.required:
        kind += ", required"
    return f"{kind}, several" if one.is_list else kind


def shown(value: object) -> str:
    """A default as it is typed."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def names_page() -> str:
    """The names that people import, each with where it is described."""
    lines = [
        "# Names",
        "",
        "What people import, made from the packages' own lists. Other paths may move.",
    ]
    described = pages()
    for package in PACKAGES:
        module = importlib.import_module(package)
        lines += ["", f"## `{package}`", "", "| name | what it is | page |", "|---|---|---|"]
        for name in sorted(module.__all__):
            if name.startswith("_"):
                continue
            item = getattr(module, name)
            place = place_of(item, package, name)
            page = next((described[one] for one in (place, place.rpartition(".")[0], package) if one in described), "")
            lines.append(f"| `{name}` | {summary(item)} | {f'[{page}]({page})' if page else ''} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """The page on which each described name stands."""
    found = {}
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for place in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M):
            found[place] = page.name
    return found


def place_of(item: object, package: str, name: str) -> str:
    """Where a name is defined."""
    if package == "rlenv" and name in rlenv._LAZY:
        return f"{rlenv._LAZY[name]}.{name}"
    return f"{getattr(item, '__module__', package)}.{name}"


def summary(item: object) -> str:
    """The first sentence of a docstring; what a value is without one."""
    if not (inspect.isclass(item) or inspect.isroutine(item) or inspect.ismodule(item)):
        return "a value" if not isinstance(item, str) else f"`{item}`"
    text = " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text)[0].rstrip(".:").replace("|", "\\|")


def main() -> None:
    """Writes the pages."""
    for page, made in ((COMMANDS_PAGE, commands_page), (NAMES_PAGE, names_page)):
        page.write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
