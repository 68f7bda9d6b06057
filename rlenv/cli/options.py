"""Options that several commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import orjson

from rlenv._base.nearest import did_you_mean
from rlenv.errors import UsageError

__all__ = ["add_set", "fields", "given", "keywords", "overrides", "parsed", "refuse_unknown"]


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The options in `argv`, which may stand between its other words; the program ends at one that is not known."""
    args, rest = parser.parse_known_intermixed_args(list(argv))
    if rest:
        refuse_unknown(parser, rest)
    return args


def refuse_unknown(parser: argparse.ArgumentParser, rest: Sequence[str]) -> NoReturn:
    """Ends the program for arguments that a command does not take, and names the option that was likely meant."""
    options = re.findall(r"--[\w-]+", parser.format_help())
    hint = did_you_mean(rest[0].partition("=")[0], options) if rest[0].startswith("--") else ""
    parser.error("; ".join(part for part in (f"unrecognized arguments: {' '.join(rest)}", hint) if part))


def add_out(parser: argparse.ArgumentParser, *, help: str) -> None:
    """Adds `-o DIR` and `--overwrite`."""
    parser.add_argument("-o", "--out", metavar="DIR", help=help)
    parser.add_argument("--overwrite", action="store_true", help="replace the run that is in the folder of -o")


def add_record(parser: argparse.ArgumentParser) -> None:
    """Adds `--record`."""
    parser.add_argument(
        "--record", action="store_true", help="keep also what tools of this process give, for rlenv replay --all-tools"
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds `--set KEY=VALUE`."""
    parser.add_argument(
        "--set",
        dest="set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="replace a key of the spec, such as tasks.test.path=rows.jsonl; may be given several times",
    )


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The arguments of these names, for a function that takes them under the same names."""
    return {name: getattr(args, name) for name in names}


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
    return _values(_pairs(items, option="--kwarg", example="enable_thinking=false"))


def fields(items: list[str]) -> dict[str, Any]:
    """The `--extra` options as fields of a request; values are JSON, or text where they are none.

    Raises:
        UsageError: an option without '='.
    """
    return _values(_pairs(items, option="--extra", example="repetition_penalty=1"))


def _values(pairs: Iterator[tuple[str, str]]) -> dict[str, Any]:
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
