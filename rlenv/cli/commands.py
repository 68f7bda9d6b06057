"""The commands by name: what each is for, where its record stands, and what its forms are called."""

from __future__ import annotations

import argparse
import importlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from rlenv._base.text import all_known
from rlenv.cli.options import Options, parser_of
from rlenv.errors import UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: one line for `--help`, and its record as `module:class`.

    A module that begins with "@" is one of the trainer's adapter. `main` is a function of a module that reads the
    arguments itself. `modes` are other commands under the same name, chosen by a word: by an action where the command
    has no record of its own, else by a flag or a word.
    """

    summary: str
    place: str = ""
    modes: Mapping[str, Entry] = field(default_factory=dict)
    main: str = ""

    def record(self, name: str) -> type[Options]:
        """The record of the options; importing it loads what the command needs.

        Raises:
            MissingExtra: it is the trainer's, which is not installed.
        """
        return cast("type[Options]", _object_at(self.place, f"rlenv {name}"))

    def main_of(self, name: str) -> object:
        """The function that reads the arguments itself, None where the record does.

        Raises:
            MissingExtra: it is the trainer's, which is not installed.
        """
        return _object_at(self.main, f"rlenv {name}") if self.main else None


def _object_at(place: str, wanted_by: str) -> object:
    module, _, name = place.partition(":")
    if module.startswith("@"):
        from rlenv.models import adapter

        return getattr(adapter(module[1:], wanted_by=wanted_by), name)
    return getattr(importlib.import_module(f"rlenv.{module}"), name)


def _to_entry(told: Mapping[str, Any]) -> Entry:
    modes = {word: _to_entry(mode) for word, mode in told.get("modes", {}).items()}
    return Entry(told["summary"], told.get("place", ""), modes, told.get("main", ""))


_TABLE: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COMMANDS: Final[Mapping[str, Entry]] = {name: _to_entry(told) for name, told in _TABLE.items()}

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "dialects": ("list", "dialects"),
    "doctor": ("validate", "--machine"),
    "bench": ("eval", "--bench"),
    "lock": ("runs", "lock"),
    "report": ("runs", "report"),
    "export-policy": ("runs", "export-policy"),
    "power": ("compare", "--plan"),
    "ablate": ("rescore", "--ablate"),
    "preflight": ("train", "--preflight"),
    "schema": ("editor", "schema"),
    "lsp": ("editor", "lsp"),
}
"""Names of the version before, with what they are called now. They go with the next version."""
SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "images": ("validate", "--images"),
    "export": ("init", "--export"),
    "serve-search": ("serve", "--search"),
    "mcp": ("serve", "--mcp"),
    "gateway": ("serve", "--gateway"),
}
"""Short names, which stay."""


def near_command(name: str) -> str:
    """A hint for a command that there is not: the one of `runs` with that name, else the nearest, and all."""
    known = f"there are {', '.join(COMMANDS)}"
    return f"did you mean 'runs {name}'? {known}" if name in COMMANDS["runs"].modes else all_known(name, COMMANDS)


def command_at(argv: Sequence[str]) -> tuple[Entry, tuple[str, ...], list[str]]:
    """The command that `argv` begins with, the words that name it, and the other words.

    Raises:
        UsageError: there is no such command.
    """
    name, *rest = argv
    if name not in COMMANDS:
        raise UsageError(f"there is no command '{name}'", hint=near_command(name))
    command = COMMANDS[name]
    if command.place:
        mode = next((word for word in rest if word in command.modes), None)
    else:
        mode = rest[0] if rest and not rest[0].startswith("-") else None
        if mode is not None and mode not in command.modes:
            raise UsageError(f"`rlenv {name}` has no '{mode}'", hint=all_known(mode, command.modes))
    if mode is None:
        return command, (name,), rest
    rest.remove(mode)
    return command.modes[mode], (name, mode), rest


def parser_named(name: str, record: type[Options]) -> argparse.ArgumentParser:
    """The parser of a command by its name, such as `train` or `runs list`."""
    words = name.split()
    entry = COMMANDS[words[0]]
    for word in words[1:]:
        entry = entry.modes[word]
    modes = {word: mode.summary for word, mode in entry.modes.items()}
    return parser_of(record, ("rlenv", *words), summary=entry.summary, modes=modes)
