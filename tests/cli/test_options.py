"""Options are declared once: the command line, the viewer's jobs and the docs are made from the same record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from rlenv.cli.commands import ALIASES, COMMANDS, Entry, command_at, parser_named
from rlenv.cli.eval import EvalCommand
from rlenv.cli.main import main
from rlenv.cli.options import Options, argument, option, options_of, parsed, parser_of
from rlenv.errors import UsageError
from rlenv.web.jobs import KINDS, job_options
from tests.support import reference

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("rlenv", "trainers", "docs", "specs", "examples", "benchmarks")
MOST_COMMANDS = 18
MOST_OPTIONS = 347
"""Of all commands together: a new option makes room for itself."""


def entries() -> Iterator[tuple[str, Entry]]:
    """Every command with its words."""
    waiting = list(COMMANDS.items())
    while waiting:
        name, entry = waiting.pop()
        yield name, entry
        waiting += [(f"{name} {word}", mode) for word, mode in entry.modes.items()]


PLACES = {name: entry for name, entry in entries() if entry.place}


def record_of(name: str) -> type[Options]:
    if PLACES[name].place.startswith("@"):
        pytest.importorskip("verl", reason="the verl extra is not installed")
    return PLACES[name].record(name)


@dataclass
class Longer(EvalCommand):
    """`rlenv eval` with one option more."""

    patience: int = option("turns without progress that end an episode", default=3, least=1)


def test_a_new_option_is_known_to_the_command_line_the_viewer_and_the_docs() -> None:
    given = parsed(parser_named("eval", Longer), ["arithmetic", "--patience", "5"])
    assert given.patience == 5
    assert job_options(Longer)["patience"].kind is int
    assert "| `--patience` | whole number | turns without progress that end an episode (default: 3) |" in [
        *reference.rows(Longer)
    ]


@pytest.mark.parametrize("name", sorted(PLACES))
def test_each_record_makes_a_parser_that_fills_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(name)
    with pytest.raises(SystemExit) as ended:
        parser_named(name, record).parse_args(["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    for one in options_of(record):
        assert all(flag in said for flag in one.flags)
        assert one.help, f"{name} {one.flag} says nothing of itself"


@pytest.mark.parametrize("kind", KINDS)
def test_the_viewer_takes_every_option_of_its_commands_but_what_leaves_the_machine(kind: str) -> None:
    declared = {one.name: one for one in options_of(record_of(kind)) if one.flags}
    left_out = declared.keys() - {one.name for one in job_options(record_of(kind)).values()}
    assert left_out == {name for name, one in declared.items() if one.local}
    assert left_out == ({"ray_address"} if kind == "train" else set())


def test_there_are_few_commands_and_each_old_name_leads_to_one() -> None:
    assert len(COMMANDS) <= MOST_COMMANDS
    for name, words in ALIASES.items():
        assert name not in COMMANDS
        assert command_at(words)[1] == words


def test_the_options_of_all_commands_together_only_get_fewer() -> None:
    assert sum(bool(one.flags) for name in sorted(PLACES) for one in options_of(record_of(name))) <= MOST_OPTIONS


@pytest.mark.parametrize("old", ALIASES)
def test_an_old_name_does_the_same_and_says_the_new_one(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for words in (ALIASES[old], (old,)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0
        told.append(capsys.readouterr())
    assert told[1].out == told[0].out
    now = " ".join(ALIASES[old])
    assert told[0].err == ""
    assert told[1].err == f"rlenv: `rlenv {old}` is now `rlenv {now}`; the old name goes with the next version\n"


def test_an_old_name_stands_in_the_table_of_old_names_alone() -> None:
    """No message, docstring or page sends anybody to a name that goes with the next version."""
    old = re.compile(rf"rlenv ({'|'.join(ALIASES)})\b(?! is now)")
    told_of_it = {"docs/api/commands.md", "docs/decisions/0025-eighteen-commands-and-one-declaration.md"}
    files = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")
    ]
    found = {
        f"{path.relative_to(ROOT)}: {one[0]}"
        for path in files
        for one in old.finditer(path.read_text(encoding="utf-8"))
        if str(path.relative_to(ROOT)) not in told_of_it
    }
    assert found == set()


@pytest.mark.parametrize("name", ["train", "sft"])
def test_trainers_take_the_name_that_other_commands_give_to_what_they_write(name: str) -> None:
    parser = parser_named(name, record_of(name))
    assert [parsed(parser, [flag, "r"]).output for flag in ("-o", "--output", "--out")] == [Path("r")] * 3


@dataclass
class Small(Options):
    """A command of every kind of option."""

    name: str = argument("a name")
    rest: list[str] = argument("more names", default=[], nargs="*")
    level: Literal["low", "high"] | None = option("how much")
    share: float = option("of all", "-s", "--share", default=0.5, above=0)
    k: list[int] = option("samples", default=[1], nargs="+", least=1)
    tag: list[str] = option("a tag", default=[], one_of="which")
    all: bool = option("every tag", one_of="which")


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["a"], {"name": "a", "rest": [], "level": None, "share": 0.5, "k": [1], "tag": [], "all": False}),
        (["--all", "a", "-s", "1", "b"], {"name": "a", "rest": ["b"], "share": 1.0, "all": True}),
        (["a", "--tag", "x", "--tag=y", "--level", "low"], {"tag": ["x", "y"], "level": "low"}),
        (["a", "-k", "2", "3"], {"k": [2, 3]}),
    ],
)
def test_options_stand_anywhere_and_have_the_type_of_their_field(words: list[str], given: dict[str, Any]) -> None:
    made = vars(Small(**vars(parsed(parser_of(Small, ("small",)), words))))
    assert {name: made[name] for name in given} == given


@pytest.mark.parametrize(
    "words", [[], ["a", "--level", "middle"], ["a", "--tag", "x", "--all"], ["a", "--lev", "low"], ["a", "-s", "much"]]
)
def test_what_does_not_fit_ends_the_program(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(parser_of(Small, ("small",)), words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: small")


@pytest.mark.parametrize(
    ("name", "value", "said"), [("share", 0.0, "--share is above 0"), ("k", [1, 0], "-k is at least 1")]
)
def test_a_number_below_its_bound_is_refused(name: str, value: Any, said: str) -> None:
    (declared,) = [one for one in options_of(Small) if one.name == name]
    with pytest.raises(UsageError, match=said):
        declared.check(value)


@pytest.mark.parametrize("page", ["commands", "names"])
def test_the_reference_is_up_to_date(page: str) -> None:
    pytest.importorskip("verl", reason="the verl extra is not installed")
    path, made = {
        "commands": (reference.COMMANDS_PAGE, reference.commands_page),
        "names": (reference.NAMES_PAGE, reference.names_page),
    }[page]
    assert path.read_text(encoding="utf-8") == made(), "run: python tests/support/reference.py"
