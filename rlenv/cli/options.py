"""Options of commands, declared once as fields of a record, for the command line, the viewer's jobs and the docs."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NoReturn, Protocol, Union, get_args, get_origin, get_type_hints

import orjson

from rlenv._base.text import did_you_mean
from rlenv.errors import UsageError

__all__ = ["Executes", "Option", "Options", "WithOut", "WithRecord", "WithSet", "WithSpec", "argument", "fields"]
__all__ += ["given", "keywords", "option", "options_of", "overrides", "parsed", "parser_of", "refuse_unknown"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or with no `flags` a positional argument.

    `kind` is the type of a value (str, int, float, bool or Path), of each value with `is_list`. Options of one record
    with the same `one_of` exclude each other. `writes` is true where the value names what the command writes, `local`
    where the option is the command line's alone: no page may give it.
    """

    name: str
    kind: type
    is_list: bool
    help: str
    flags: tuple[str, ...] = ()
    default: Any = None
    metavar: str | tuple[str, ...] | None = None
    choices: Sequence[str] | None = None
    nargs: str | int | None = None
    group: str = ""
    one_of: str = ""
    required: bool = False
    writes: bool = False
    local: bool = False
    least: float | None = None
    above: float | None = None
    read: Callable[[str], Any] | None = None

    @property
    def flag(self) -> str:
        """The longest name on the command line; a positional argument's own name."""
        return max(self.flags, key=len, default=self.name)

    def check(self, value: Any) -> None:
        """Refuses a number below its bound.

        Raises:
            UsageError: the value is below `least`, or not above `above`.
        """
        for one in value if isinstance(value, list) else [value]:
            if one is not None and self.least is not None and one < self.least:
                raise UsageError(f"{self.flag} is at least {self.least:g}, not {one}")
            if one is not None and self.above is not None and not one > self.above:
                raise UsageError(f"{self.flag} is above {self.above:g}, not {one}")

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Adds the option to a parser, or to a group of one."""
        name = None if self.choices else self.flag.lstrip("-").replace("-", "_").upper()
        said: dict[str, Any] = {"help": self.help, "metavar": self.metavar or name}
        if self.kind is bool:
            parser.add_argument(*self.flags, dest=self.name, action="store_true", help=self.help)
            return
        said |= {"choices": self.choices, "default": self.default, "type": self.read or self.kind}
        said |= {} if self.nargs is None else {"nargs": self.nargs}
        if not self.flags:
            parser.add_argument(self.name, **{**said, "metavar": self.metavar or self.name})
            return
        is_appended = self.is_list and self.nargs is None
        parser.add_argument(
            *self.flags, dest=self.name, required=self.required, **said, **({"action": "append"} if is_appended else {})
        )


def option(help: str = "", *flags: str, default: Any = None, **said: Any) -> Any:
    """A field that is an option of the command line: `--NAME` after the field, `-N` where it has one letter.

    Its type is the field's annotation; a list is given by several options, or by several words with `nargs`.

    Args:
        help: one line for `--help` and the docs.
        flags: other names than that of the field.
        said: further fields of `Option`.
    """
    return _make_field({"help": help, "flags": flags or None, **said}, default)


def argument(help: str = "", *, default: Any = None, **said: Any) -> Any:
    """A field that is a positional argument; an optional one where its annotation allows None."""
    return _make_field({"help": help, "flags": (), **said}, default)


def _make_field(said: dict[str, Any], default: Any) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=said)
    return field(default=default, metadata=said)


@dataclass
class Options:
    """The base of commands: a record whose fields are its options. A command is one that `Executes` too."""

    usage: ClassVar[str | None] = None
    epilog: ClassVar[str | None] = None


class Executes(Protocol):
    """A command that does its own work."""

    def execute(self) -> int:
        """Runs the command; returns its exit code."""


@dataclass
class WithSet(Options):
    """A command that takes `--set`."""

    set: list[str] = option(
        "replace a key of the spec, such as tasks.test.path=rows.jsonl; may be given several times",
        default=[],
        metavar="KEY=VALUE",
    )

    @property
    def overrides(self) -> dict[str, Any]:
        """The mapping that `load` takes as `set`."""
        return overrides(self.set)


@dataclass
class WithSpec(WithSet):
    """A command about one spec."""

    spec: str = argument("a YAML file, or the name of a shipped environment")


@dataclass
class WithOut(Options):
    """A command that keeps a run in a folder."""

    out: str | None = option("keep the run there", "-o", "--out", metavar="DIR", writes=True)
    overwrite: bool = option("replace the run that is in the folder of -o")


@dataclass
class WithRecord(Options):
    """A command that takes `--record`."""

    record: bool = option("keep also what tools of this process give, for rlenv replay --all-tools")


def options_of(record: type[Options]) -> list[Option]:
    """The options of a command in the order of its `--help`: its own, then those of its bases."""
    hints, known = get_type_hints(record), {one.name: one for one in dataclasses.fields(record)}
    names = dict.fromkeys(name for base in record.__mro__ for name in inspect.get_annotations(base))
    return [_option_of(known[name], hints[name]) for name in names if name in known]


def _option_of(declared: dataclasses.Field[Any], hint: Any) -> Option:
    said, name = dict(declared.metadata), declared.name
    is_optional = get_origin(hint) in (types.UnionType, Union)
    (hint,) = [one for one in get_args(hint) if one is not types.NoneType] if is_optional else [hint]
    is_list = get_origin(hint) is list
    kind = get_args(hint)[0] if is_list else hint
    if get_origin(kind) is Literal:
        kind, said["choices"] = str, get_args(kind)
    if said["flags"] is None:
        said["flags"] = (f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}",)
    if not said["flags"] and (is_list or is_optional):
        said.setdefault("nargs", "+" if is_list else "?")
    factory = declared.default_factory
    default = declared.default if factory is dataclasses.MISSING else factory()
    return Option(name, kind, is_list, default=default, **said)


def parser_of(
    record: type[Options], words: Sequence[str], *, summary: str = "", modes: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """The parser of a command. `words` are what it is called by; `modes` make another command of it."""
    parser = argparse.ArgumentParser(
        prog=" ".join(words),
        usage=record.usage,
        description=summary and f"{summary[0].upper()}{summary[1:]}.",
        epilog=record.epilog,
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    exclusive: dict[str, argparse._ActionsContainer] = {}
    declared = options_of(record)
    for one in declared:
        place = groups.setdefault(one.group, groups.get(one.group) or parser.add_argument_group(one.group))
        if one.one_of:
            is_needed = any(other.required for other in declared if other.one_of == one.one_of)
            if one.one_of not in exclusive:
                exclusive[one.one_of] = place.add_mutually_exclusive_group(required=is_needed)
            dataclasses.replace(one, required=False).add_to(exclusive[one.one_of])
        else:
            one.add_to(place)
    if modes:
        behind = "; ".join(f"{word}: {said}" for word, said in modes.items() if word[0] != "-")
        others = parser.add_argument_group("commands of their own, each with its own --help", behind or None)
        for word, said in modes.items():
            if word[0] == "-":
                others.add_argument(word, action="store_true", default=argparse.SUPPRESS, help=said)
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options in `argv`, which may stand between its other words; the program ends at one that is not known."""
    args, rest = parser.parse_known_intermixed_args(list(argv))
    if rest:
        refuse_unknown(parser, rest)
    return args


_THEIRS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("limit", "num-examples", "num-tasks", "max-samples"), "-n"),
    **dict.fromkeys(("epochs", "num-samples", "rollouts-per-example", "samples"), "-k"),
    **dict.fromkeys(("output", "output-dir", "save"), "-o"),
    **dict.fromkeys(("max-concurrent", "max-connections"), "--concurrency"),
    "api-base-url": "--base-url",
}
"""Options of other libraries' commands, and what says the same here."""


def refuse_unknown(parser: argparse.ArgumentParser, rest: Sequence[str]) -> NoReturn:
    """Ends the program for arguments that a command does not take, and names the option that was likely meant."""
    options = re.findall(r"(?<![\w-])--?\w[\w-]*", parser.format_help())
    word = rest[0].partition("=")[0].removeprefix("--")
    meant = next((one for one in (f"-{word}", _THEIRS.get(word, "")) if one in options), "")
    told = (
        f"did you mean '{meant}'?"
        if meant
        else did_you_mean(word, [one[2:] for one in options if one[:2] == "--"], prefix="--")
    )
    hint = told if rest[0].startswith("--") else ""
    parser.error("; ".join(part for part in (f"unrecognized arguments: {' '.join(rest)}", hint) if part))


def given(options: Options, *names: str) -> dict[str, Any]:
    """The options of these names, for a function that takes them under the same names."""
    return {name: getattr(options, name) for name in names}


def overrides(items: list[str]) -> dict[str, Any]:
    """The `--set` options as a mapping of dotted paths to texts; the loader reads the texts as YAML.

    Raises:
        UsageError: an option without '='.
    """
    return dict(_pairs(items, option="--set", example="--set limits.turns=4"))


def keywords(items: list[str]) -> dict[str, Any]:
    """The `--kwarg` options as names for a chat template; values are JSON, or text where they are none.

    Raises:
        UsageError: an option without '='.
    """
    return _parse_values(_pairs(items, option="--kwarg", example="enable_thinking=false"))


def fields(items: list[str]) -> dict[str, Any]:
    """The `--extra` options as fields of a request; values are JSON, or text where they are none.

    Raises:
        UsageError: an option without '='.
    """
    return _parse_values(_pairs(items, option="--extra", example="repetition_penalty=1"))


def _parse_values(pairs: Iterator[tuple[str, str]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        try:
            found[key] = orjson.loads(value)
        except orjson.JSONDecodeError:
            found[key] = value
    return found


def _pairs(items: list[str], *, option: str, example: str) -> Iterator[tuple[str, str]]:
    for item in items:
        key, sign, value = item.partition("=")
        if not sign or not key:
            raise UsageError(f"{option} {item}: expected KEY=VALUE, such as {example}")
        yield key, value
