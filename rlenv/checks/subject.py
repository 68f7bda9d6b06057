"""The subject of the checks: a typed spec with its rows and with every part of it that compiles."""

from __future__ import annotations

import contextlib
import json
import random
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from rlenv._base.text import KeyPath, strings_in
from rlenv.calls.executor import Executor
from rlenv.calls.toolsets import ToolSet, ToolSets
from rlenv.episodes.compile import Compiled, compile_entries, entry_fault
from rlenv.episodes.environment import Environment
from rlenv.errors import EpisodeError, Finding, RlenvError, SpecError, UsageError
from rlenv.language.document import SourceDocument
from rlenv.language.expressions import EpisodeLimits, RowLimits, compile_expression, open_on
from rlenv.language.functions import failure
from rlenv.language.kinds import gold_in, gold_key, kind_of
from rlenv.language.loader import LoadedSpec
from rlenv.language.spec import AnswerSpec, LimitsSpec, OracleStep, PromptSpec, RewardSpec
from rlenv.language.templates import TemplateError, compile_template, compile_value
from rlenv.messages import Message, ParsedAction, ToolCall
from rlenv.policies.scripted import random_value
from rlenv.resources.base import Resource
from rlenv.rewards.answer import extract
from rlenv.rewards.base import Term
from rlenv.secrets import Filled, watched
from rlenv.tasks.rows import harbor_tasks, load_tasks
from rlenv.tools.base import Tool

T = TypeVar("T")
MAX_ROWS = 10_000
"""So many rows of a split are looked at."""
MOST_READ = 1_000
"""So many characters of a sentence, a gold value or a question are held against patterns."""
_FILLED: Final = "\ufffc"
"""Stands in the fixed text where a row or a resource fills something in."""
MAX_BROKEN = 20
"""So many broken lines of a split are listed."""
WORDS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("odd.toml").read_text(encoding="utf-8"))
"""Words and numbers that warnings go by."""
PATTERNS: Final = SimpleNamespace(**{name: re.compile(pattern) for name, pattern in WORDS["patterns"].items()})
"""The patterns among them, by name."""


@dataclass(frozen=True, slots=True)
class ReadSplit:
    """The rows of a split that were read, all if it `is_whole`; `columns` counts in how many of them each column is."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    columns: Mapping[str, int]
    is_whole: bool = True


@dataclass(slots=True)
class Subject:
    """A spec under validation: what compiles of it, and the rows that can be read. `faults` are those of the rest."""

    loaded: LoadedSpec
    compiled: Compiled
    splits: dict[str, ReadSplit] = field(default_factory=dict)
    faults: list[Finding] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    filled: Filled = field(default_factory=Filled)
    """The texts that something fills in."""
    _toolsets: ToolSets | None = None
    _tools: Mapping[str, Tool] | None = None
    made: dict[object, Any] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """The value that `make` gives, made at the first call with that key."""
        if key not in self.made:
            self.made[key] = make()
        found: T = self.made[key]
        return found

    @property
    def resources(self) -> Mapping[str, Resource]:
        """The resources that compile."""
        return self.compiled.resources

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that compile, and those that rows declare, each as the first of them does."""
        if self._tools is None:
            found = dict(self.compiled.tools)
            if self.compiled.row_tools:
                sets: dict[int, ToolSet] = {}
                for row in (row for split in self.splits.values() for row in split.rows):
                    with contextlib.suppress(EpisodeError):
                        made = self.toolset(row)
                        sets[id(made)] = made
                for made in sets.values():
                    found = {**made.tools, **found}
            self._tools = found
        return self._tools

    def toolset(self, row: Mapping[str, Any], user_turn: int = 0) -> ToolSet:
        """The tools that an episode of this row has, once the user has given so many replies.

        Raises:
            EpisodeError: the row does not say which, or declares what is no tool.
        """
        if self._toolsets is None:
            tools, calls = self.compiled.tools, self.loaded.spec.calls
            self._toolsets = ToolSets(self.loaded, tools, self.compiled.row_tools, Executor(tools, calls=calls))
        return self._toolsets.of(row, user_turn)

    def say(self, key: str, place: str | KeyPath, *given: Any, at: str = "value", find: str = "") -> Finding:
        """The warning `CODE/CASE` of odd.toml at a place, with what is given filled in."""
        message, hint = (text.format(*given) for text in WORDS["said"][key])
        return self.document.warning(place, message, hint, key.partition("/")[0], at=at, find=find)

    def each(self, most: int = MAX_ROWS) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The first rows of each split, each after the words that name it."""
        for split in self.splits.values():
            for index, row in enumerate(split.rows[:most]):
                yield f"row {index + 1} of split '{split.name}'", row

    @property
    def is_whole(self) -> bool:
        """True where every row of every split was read."""
        return all(split.is_whole for split in self.splits.values())

    @property
    def limits(self) -> EpisodeLimits:
        """The limits; where rows give one, the widest."""
        rows = chain.from_iterable(split.rows for split in self.splits.values())
        return self.once("limits", lambda: self.row_limits.widest(rows))

    @property
    def row_limits(self) -> RowLimits:
        """The limits of each row; the defaults where those of the spec do not compile."""
        return self.compiled.limits or RowLimits(LimitsSpec(), {})

    @property
    def terms(self) -> Sequence[Term]:
        """The reward terms that compile."""
        return self.compiled.terms

    @property
    def asked(self) -> list[str]:
        """The names of the terms that decide on success."""
        rewards, success = self.loaded.spec.rewards, self.loaded.spec.success
        if success is None:
            return [name for name, one in rewards.items() if one.usual_weight > 0 and one.required]
        return list(compile_expression(success, names=rewards).names)

    def gates(self) -> list[str]:
        """The terms that decide on success, and all that open their gates."""
        rewards, reads = self.loaded.spec.rewards, self.asked
        for name in reads:  # which grows: a gate may read a term with a gate
            gate = rewards[name].gate
            names = compile_expression(gate, names=rewards, by_row=True).names if gate else ()
            reads += [other for other in names if other in rewards and other not in reads]
        return reads

    def gold_at(self, term: Term) -> str:
        """Where what a term compares with is written: its entry where it stands by default."""
        at = f"rewards.{term.name}.{gold_key(term.spec)}"
        return at if self.document.has(at) else f"rewards.{term.name}"

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of tools for hints: those that compile, and the entries that do not."""
        return tuple(dict.fromkeys((*self.tools, *self.loaded.spec.tools)))

    @property
    def document(self) -> SourceDocument:
        """The document behind the spec."""
        return self.loaded.document

    @property
    def code(self) -> str | None:
        """The author's Python files as one text; None where one of them is not a file beside the spec."""
        return self.once("code", self._code)

    def _code(self) -> str | None:
        found: dict[Path, str] = {}
        for path, text in strings_in(self.document.data, ()):
            if (path[0] == "tasks" and "rows" in path) or (match := PATTERNS.code.match(text)) is None:
                continue
            if match[1] is None:
                return None
            file = self.loaded.base_of(".".join(map(str, path))) / match[1]
            try:
                found[file] = found.get(file) or file.read_text(encoding="utf-8")
            except (OSError, ValueError):
                return None
        return "\n".join(found.values())

    def lacks(self, group: str, name: str) -> bool:
        """True for an entry that is itself at fault: what names it is not."""
        return self.compiled.lacks(group, name)

    def does_not_compile(self, path: KeyPath) -> bool:
        """True where a fault of compiling stands at that place already."""
        dotted = ".".join(map(str, path))
        return any(fault.path == dotted for fault in self.compiled.faults)


def gives_away(gold: str, text: str) -> bool:
    """True where a text holds the right answer and little else; a passage in which it stands is to be read."""
    is_short = len(gold) > 1 and len(text) <= 3 * len(gold) + 30
    return is_short and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text, re.IGNORECASE) is not None


def calls_in(step: OracleStep) -> Iterator[tuple[KeyPath, str, Mapping[str, Any]]]:
    """The calls whose tool and arguments stand in the spec: their places below `call`, tools and arguments."""
    is_list = isinstance(step.call, tuple)
    for index, group in enumerate(step.call if isinstance(step.call, tuple) else (step.call,)):
        is_plain = isinstance(group, Mapping) and "name" not in group and "function" not in group
        for tool, given in group.items() if is_plain else ():
            if isinstance(given, Mapping) and "{" not in tool:
                yield (index, tool) if is_list else (tool,), tool, given


def prompt_texts(prompt: PromptSpec) -> list[tuple[KeyPath, str]]:
    """Every template of a prompt but the images', with its place, in the order of the messages."""
    said = {"system": prompt.system, "messages": prompt.messages, "user": prompt.user if prompt.asks else None}
    return [*strings_in(said, ("prompt",))]


def gold_term(subject: Subject) -> Term | None:
    """The first term that compares with a gold value of the row."""
    return next((one for one in subject.terms if has_gold(subject, one)), None)


def all_golds(subject: Subject, term: Term, split: ReadSplit) -> Sequence[str | None]:
    """The gold value of each row as text; None where there is none, or several."""
    return subject.once(("golds", term.name, split.name), lambda: [gold_of(subject, term, row) for row in split.rows])


def has_gold(subject: Subject, term: Term) -> bool:
    is_of_row = bool(gold_in(term.spec)) and "resources" not in str(subject.document.get(f"rewards.{term.name}"))
    return is_of_row and not is_condition(subject, term.name)


def is_condition(subject: Subject, name: str) -> bool:
    """True for words that a text has to hold, and that nobody has to find: they are all that the prompt shows of a row,
    the prompt asks for them, or for each; or another term is paid as much, or decides on success."""
    spec, term = subject.loaded.spec, subject.loaded.spec.rewards[name]
    others = [one for one in spec.rewards.values() if kind_of("rewards", one).form != "all" and one is not term]
    is_asked = spec.success is None or name in subject.asked
    is_lesser = any(one.usual_weight >= term.usual_weight for one in others)
    is_beside = bool(others) and (is_lesser or not is_asked)
    shown = {column for _, text in prompt_texts(spec.prompt) for column in re.findall(r"\btask\.(\w+)", text)}
    is_given = bool(shown) and shown <= {*gold_columns(term)}
    held = [found[1].lower() for one in demands(subject) for found in PATTERNS.to_hold.finditer(one)]
    is_given |= any(word in text for text in held for word in (*gold_columns(term), *WORDS["held"]))
    return getattr(term, "rule", "") == "contains" and (getattr(term, "mode", "") == "all" or is_beside or is_given)


def gold_of(subject: Subject, term: Term, row: Mapping[str, Any]) -> str | None:
    """The gold value as text; None where there is none, or several."""
    expect = gold_in(term.spec)
    try:
        fill = subject.once(("gold", term.name), lambda: compile_value(getattr(expect, "value", expect)))
        is_open = subject.once(("gate", term.name), lambda: open_on(term.spec.gate))(row)
        value = fill(task=row, vars=subject.loaded.spec.vars) if is_open else None
    except (TemplateError, TypeError, RlenvError):
        return None
    if isinstance(value, (list, Mapping)) and getattr(term.spec, "rule", "") == "json_match":
        return json.dumps(value, ensure_ascii=False, default=str)
    return None if isinstance(value, bool) or not isinstance(value, (str, int, float)) else str(value)


def gold_answer(subject: Subject, term: Term, split: ReadSplit, index: int) -> str | None:
    """The answer that a row's gold value is, or the argument of its gold call where the answer stands; else None."""
    expect, given = gold_in(term.spec), getattr(term.spec, "arguments", {})
    called = getattr(expect, "arguments", None) if term.spec.kind == "verify" else None
    for key, source in called.items() if isinstance(called, Mapping) else ():
        if str(given.get(key)).replace(" ", "") == "{{answer}}":
            try:
                value = compile_value(source)(task=split.rows[index], vars=subject.loaded.spec.vars)
            except (TemplateError, TypeError):
                return None
            value = value[0] if isinstance(value, (list, tuple)) and value else value
            return value if isinstance(value, str) else None
    return all_golds(subject, term, split)[index]


def gold_columns(reward: RewardSpec) -> Sequence[str]:
    """The columns that a term compares with as they are: a gold value, a gold call, hidden tests."""
    wanted = gold_in(reward)
    if reward.kind == "tests":
        wanted = [getattr(reward, key) for key in ("calls", "stdin", "programs")]
    elif reward.kind == "verify":
        wanted = getattr(wanted, "arguments", None) or getattr(wanted, "value", wanted)
    found = [match[1] for _, text in strings_in(wanted, ()) if (match := PATTERNS.gold_path.fullmatch(text))]
    return [column for column in found if f"task.{column}" not in str(getattr(reward, "arguments", ""))]


def fill_template(subject: Subject, source: str) -> str:
    """A template as the first row fills it in; as it stands where it cannot."""
    with contextlib.suppress(TemplateError, RlenvError, StopIteration):
        return compile_template(source).text(task=next(subject.each(1))[1], vars=subject.loaded.spec.vars)
    return source


def fixed_text(subject: Subject) -> str:
    """The part of the prompt that is the same for every task, with constants filled in and U+FFFC for the rest."""
    return subject.once("fixed", lambda: _fixed_text(subject))


def demands(subject: Subject) -> list[str]:
    """The sentences of the fixed text that hold for every task, and forbid nothing; none that nobody would read."""
    said = PATTERNS.such_as.sub("", fixed_text(subject))
    if re.search(r">,? or <", said):  # a choice of whole answers is one of words
        said = re.sub(r"<(\w+)>([\w -]{1,40})</\1>", r'"\2"', said)
    sentences = re.split(r"(?<=[.!?;。])\s+|\n", said)
    return [one for one in sentences if len(one) <= MOST_READ and not PATTERNS.partly.search(one)]


def _fixed_text(subject: Subject) -> str:
    prompt, parts = subject.loaded.spec.prompt, []
    for _, source in prompt_texts(prompt):
        try:
            parts.append(compile_template(source).text(vars=subject.loaded.spec.vars))
        except (TemplateError, RlenvError):
            parts.append(re.sub(r"\{[{%#].*?[}%#]\}", _FILLED, source, flags=re.DOTALL))
    return "\n".join(parts)[: 20 * MOST_READ]


def to_action(subject: Subject, text: str, tools: Mapping[str, Tool]) -> str | Message | None:
    """An action that gives `text` as its answer; None where no text surely does."""
    spec = subject.loaded.spec.answer
    if spec.from_ == "tool":
        tool = tools.get(spec.tool or "")
        if tool is None:
            return None
        given = random_value({"type": "object", **tool.parameters}, random.Random(0))
        name = spec.argument or next(iter(tool.parameters.get("properties", {})), "")
        fits = tool.parameters.get("properties", {}).get(name, {}).get("type") in (None, "string")
        value = {**given, name: text} if fits and isinstance(given, dict) else given
        return Message("assistant", "", (ToolCall(tool.name, value),))
    forms = {"tag": f"<{spec.tag}>{text}</{spec.tag}>", "boxed": f"\\boxed{{{text}}}"}
    return _fitting_message(spec, text) if spec.from_ == "regex" else forms.get(spec.from_, text)


def _fitting_message(spec: AnswerSpec, text: str) -> str | None:
    """A message with `text` where the pattern's group stands; None if it finds no answer there, or cannot be told."""
    around = PATTERNS.group.fullmatch(spec.pattern or "")
    sides: list[str] = []
    for side in around.groups() if around is not None else ():
        atoms = re.findall(r"(?s)(\\.|.)([*?+]?)", re.sub(r"\[([^\]\\^])[^\]\\]*\]", r"\\\1", side))
        if any(re.fullmatch(r"[].[|(){}*+?]|\\[dDwWSpP]", atom) for atom, _ in atoms):
            return None
        kept = [" " if atom == "\\s" else atom[-1] for atom, often in atoms
                if often not in ("*", "?") and atom not in ("^", "$", "\\b", "\\A", "\\z", "\\Z")]  # fmt: skip
        sides.append("".join(kept))
    message = f"{sides[0]}{text}{sides[1]}" if sides else ""
    return message if message and extract(spec, ParsedAction(message)) is not None else None


def step_at(subject: Subject, tool: str = "", *, said: str = "") -> KeyPath:
    """The place of the oracle's step that a failure names, or that calls a tool; else that of its last words."""
    steps = subject.loaded.spec.steps
    if (named := re.match(r"oracle\.(\d+)(?:\.(expect))?:", said)) is not None:
        return ("oracle", int(named[1]), *filter(None, (named[2],)))
    for index, step in enumerate(steps):
        if tool and (tool in str(step.call) or "{{" in str(step.call)):
            return ("oracle", index, "call")
    return ("oracle", len(steps) - 1, "say" if steps[-1].say is not None else "call") if steps else ("oracle",)


def subject_of(loaded: LoadedSpec, *, lost: Iterable[str] = ()) -> Subject:
    """Reads the rows and compiles every entry by itself, so that one that is broken does not hide the others.

    Args:
        lost: the dotted places of what was taken out of the spec, since it is at fault itself.
    """
    gone = frozenset(lost)
    filled = Filled()
    token = watched.set(filled)
    try:
        compiled = compile_entries(loaded, Environment, lost=gone)
        subject = Subject(loaded, compiled, filled=filled)
        if "tasks" not in gone:  # what stands in for them has no rows of anybody's
            for name in loaded.spec.tasks:
                _read_split(subject, name)
    finally:
        watched.reset(token)
    subject.faults.extend(compiled.faults)
    return subject


def _read_split(subject: Subject, name: str) -> None:
    try:
        tasks = load_tasks(subject.loaded, name)
    except SpecError as error:
        subject.faults.extend(error.faults)
        return
    except UsageError as error:
        subject.faults.append(entry_fault(subject.document, f"tasks.{name}", error))
        return
    except Exception as error:  # a file of any content
        message = f"its rows cannot be read: {failure(error)}"
        subject.faults.append(subject.document.fault(f"tasks.{name}", message, "look at the file", at="key"))
        return
    if subject.loaded.spec.tasks[name].harbor is not None:
        others = {getattr(one, "sandbox", "bubblewrap") for one in subject.loaded.spec.resources.values()}
        subject.faults.extend(harbor_tasks(subject.loaded, name).oddities(is_live=others <= {"bubblewrap"}))
    rows: list[Mapping[str, Any]] = []
    broken = 0
    for index in range(min(len(tasks), MAX_ROWS)):
        try:
            rows.append(tasks[index])
        except SpecError as error:
            broken += 1
            if broken <= MAX_BROKEN:
                subject.faults.extend(error.faults)
    if broken > MAX_BROKEN:
        subject.not_checked.append(f"split {name}: {broken - MAX_BROKEN} more broken rows are not listed")
    if tasks.is_endless:
        subject.not_checked.append(f"split {name} has no end: its first {len(tasks):,} rows were looked at")
    if len(tasks) > MAX_ROWS:
        subject.not_checked.append(f"split {name}: only the first {MAX_ROWS:,} of {len(tasks):,} rows were looked at")
    columns = Counter(column for row in rows for column in row)
    if rows:
        is_whole = not tasks.is_endless and len(rows) == len(tasks)
        subject.splits[name] = ReadSplit(name, rows, columns, is_whole)
