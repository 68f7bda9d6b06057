"""The code blocks of a page of the docs, and how each is run.

A block runs as its language says, in a folder of the page's own and in the order of the page:

    python  is executed, with the names of the blocks before it; functions called `test_…` are called
    sh      is run line by line; each is an `rlenv` command, and `rlenv train` only prepares its run (`--dry-run`), if
            veRL is installed
    yaml    is a whole spec, which is validated
    text    is shown and not run: output, pictures, patterns of usage

A comment in the line before a block says otherwise:

    <!-- file: NAME -->       the block is written to NAME; a spec is validated
    <!-- over: NAME -->       the block is a part of a spec: it is laid over the spec NAME and validated
    <!-- with: A=B C=D -->    A and C stand for something; B and D are taken
    <!-- not run: REASON -->  the block is read only: its options, scripts and targets of make have to exist

A comment that begins with `hidden LANGUAGE`, and has its code on the lines below, is run like a block and not shown; a
marker may follow the language. Hidden files are written before anything runs; those of a page of docs/ may stand in
tests/support/set_up/ under its name. Two comments are for a whole page:

    <!-- needs: MODULE -->    the page is left out if the module is not installed
    <!-- run by: FILE -->     a test file of its own runs the page
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.util
import inspect
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlenv.checks.validate import validate
from rlenv.cli.commands import ALIASES, SHORT, Entry, command_at
from rlenv.cli.main import main
from rlenv.cli.options import options_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SET_UP = Path(__file__).parent / "set_up"
LANGUAGES = ("python", "sh", "yaml", "text", "jinja", "json", "sql", "toml", "lua", "elisp")
_HAS_TRAINER = importlib.util.find_spec("verl") is not None

_PART = re.compile(
    r"^<!-- hidden (?P<hidden>\w+) ?(?P<aside>[^\n]*)\n(?P<code>.*?)^-->$"
    r"|(?:^<!-- (?P<marker>[^\n]*) -->\n)?^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_WHOLE = re.compile(r"^<!-- (needs|run by): (\S+) -->$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Block:
    """One block: `line` is that of its first line of code; `marker` is "" where nothing is said."""

    page: Path
    line: int
    language: str
    text: str
    marker: str = ""
    is_hidden: bool = False

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT) if ROOT in self.page.parents else self.page.name}:{self.line}"

    def says(self, what: str) -> str | None:
        """What stands behind `what:` in the marker; None where the marker says something else."""
        head, colon, rest = self.marker.partition(":")
        return rest.strip() if colon and head == what else None


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page in order, hidden ones too."""
    text = page.read_text(encoding="utf-8")
    found = []
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start("code" if part["hidden"] else "text")) + 1
        if part["hidden"]:
            found.append(Block(page, line, part["hidden"], part["code"], part["aside"], is_hidden=True))
        else:
            assert not part["indent"], f"{page}:{line}: a block stands at the beginning of its lines"
            found.append(Block(page, line, part["language"], part["text"], part["marker"] or ""))
    return found


def needs_of(page: Path) -> list[str]:
    """The modules, and `bwrap`, without which a page cannot be run."""
    return [name for what, name in _WHOLE.findall(page.read_text(encoding="utf-8")) if what == "needs"]


def runner_of(page: Path) -> str | None:
    """The test file that runs a page by itself."""
    return next((name for what, name in _WHOLE.findall(page.read_text(encoding="utf-8")) if what == "run by"), None)


def prose_of(page: Path) -> str:
    """A page without its blocks."""
    return _PART.sub("", page.read_text(encoding="utf-8"))


def run_page(page: Path) -> list[str]:
    """Runs the blocks of a page in the working directory; the places of commands that wait for veRL to be installed.

    Raises:
        AssertionError: a block does not do what a block of its kind has to; the message has its place.
    """
    blocks = blocks_of(page)
    aside = SET_UP / page.relative_to(ROOT / "docs") if ROOT / "docs" in page.parents else page
    for block in [*blocks_of(aside), *blocks] if aside.is_file() else blocks:
        assert block.language in LANGUAGES, f"{block.place}: a block says its language: {', '.join(LANGUAGES)}"
        if block.is_hidden and (file := block.says("file")) is not None:
            _write(file, block.text)
    names: dict[str, Any] = {}
    left: list[str] = []
    for block in blocks:
        if (reason := block.says("not run")) is not None:
            assert len(reason) > 5, f"{block.place}: why is it not run?"
            left += _read(block)
        elif block.language == "text":
            left += _read(block)
        else:
            left += _run(block, names)
    return left


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command; a line that ends in a backslash goes on."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def _run(block: Block, names: dict[str, Any]) -> list[str]:
    text = block.text
    for pair in (block.says("with") or "").split():
        name, _, value = pair.partition("=")
        text = re.sub(rf"\b{name}\b", value, text)
    if (file := block.says("file")) is not None:
        _write(file, text)
        if block.language == "yaml" and re.search(r"^rlenv:", text, re.MULTILINE):
            _validate(block, file)
    elif (base := block.says("over")) is not None:
        file = f"over-{block.line}.yaml"
        _write(file, f"extends: {base}\n{text}")
        _validate(block, file)
    elif block.language == "yaml":
        file = f"spec-{block.line}.yaml"
        _write(file, text)
        _validate(block, file)
    elif block.language == "python":
        _execute(block, text, names)
    elif block.language == "sh":
        return [block.place for words in commands(text) if not _command(block, words)]
    else:
        raise AssertionError(f"{block.place}: a block of {block.language} needs a marker: file, or not run")
    return []


def _write(file: str, text: str) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(text, encoding="utf-8")


def _validate(block: Block, file: str) -> None:
    faults = validate([file]).faults
    assert not faults, f"{block.place}: " + "\n".join(map(str, faults))


def _execute(block: Block, text: str, names: dict[str, Any]) -> None:
    known = set(names)
    code = compile("\n" * (block.line - 1) + text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)
    for name in set(names) - known:
        if name.startswith("test_"):
            names[name]()


def _command(block: Block, words: list[str]) -> bool:
    """Runs a command; False where it needs veRL, which is not installed."""
    assert words[0] == "rlenv", f"{block.place}: only rlenv's own commands are run; mark others: not run"
    if needs_trainer(words):
        if not _HAS_TRAINER:
            return False
        words = [*words, "--dry-run"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words[1:])
    assert code == 0, f"{block.place}: {shlex.join(words)} ended with {code}\n{said.getvalue()}"
    return True


def needs_trainer(words: Sequence[str]) -> bool:
    """True for a command that only the trainer's adapter has."""
    return command_at(words[1:])[1] in (("train",), ("sft",), ("runs", "export-policy"))


def _read(block: Block) -> list[str]:
    """Looks at a block that is not run, as far as can be done without running it; `check_words` says what is left."""
    if block.language == "python":
        compile(block.text, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    if block.language == "sh" or block.text.startswith("rlenv "):
        return check_words(block.place, block.text.replace("[", " "))
    return []


def check_words(place: str, text: str) -> list[str]:
    """Holds commands against what there is: rlenv's options, the Makefile's targets, the repository's scripts.

    Returns:
        `place` for each command whose options nobody knows before veRL is installed.
    """
    left: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        for said in re.split(r"&&|;|\|", line.partition(" #")[0]):
            words = said.split()
            if "rlenv" in words:
                words = words[words.index("rlenv") :]
                if words[1] in ("--help", "--version"):
                    continue
                entry, named, _ = command_at([*{**ALIASES, **SHORT}.get(words[1], words[1:2]), *words[2:]])
                if entry.place.startswith("@") and not _HAS_TRAINER:
                    left.append(place)
                    continue
                given = {word.partition("=")[0] for word in words if _OPTION.match(word)}
                unknown = given - _options(entry, " ".join(named)) - {*named}
                assert not unknown, f"{place}: rlenv {' '.join(named)} has no option {', '.join(sorted(unknown))}"
            elif words[:1] == ["make"]:
                targets = {word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)}
                assert targets <= _targets(), f"{place}: the Makefile has no target {targets - _targets()}"
            elif words[:1] == ["python"] and re.match(r"(examples|benchmarks|specs)/", words[1]):
                assert (ROOT / words[1]).is_file(), f"{place}: there is no {words[1]}"
    return left


def _options(entry: Entry, name: str) -> set[str]:
    """The options of a command, with those of the commands that stand below it."""
    found = {"--help", *entry.modes}
    if entry.place:
        found |= {flag for one in options_of(entry.record(name)) for flag in one.flags}
    return found.union(*(_options(mode, f"{name} {word}") for word, mode in entry.modes.items()))


@cache
def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.findall(r"^\.PHONY: (.*)$", makefile.replace("\\\n", " "), re.MULTILINE)
    return {name for line in phony for name in line.split()}
