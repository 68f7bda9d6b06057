"""Checks of a spec's rows before anybody plays them: repeats, contradictions, broken texts."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rlenv._base.bounded import grouped
from rlenv.audit.golds import Gold, canonical_json, check_golds, gold_readers, golds_of
from rlenv.audit.report import Hole, hole_of
from rlenv.audit.shortcuts import check_tests
from rlenv.checks.validate import validate_loaded
from rlenv.endpoints import Endpoint
from rlenv.episodes.environment import Environment
from rlenv.errors import EpisodeError, SpecError
from rlenv.language.templates import TemplateError, compile_template, texts_in
from rlenv.trajectory import Trajectory

MOST_ROWS = 50_000
"""Rows of a split that are looked at, spread evenly."""
_FEW = 0.01
"""A share of faulty rows that a large set may have by accident: below it they are a note."""
_NAMED = 5
_EVALUATES = re.compile(r"(?:^|[^a-z])(?:test|eval\w*|dev\w*|val\w*|held\w*|bench\w*|exam\w*)(?:[^a-z]|$)")
_TOKEN = re.compile(r"\d+|\w+|[^\w\s]")
_DIGITS = 7
_ENOUGH = 12
_REPEATED = 4
"""So many rows for each question are no chance."""
_TEMPLATE = 8
_NO_SURPRISE = 0.01
_SPACES = re.compile(r"\s+")
_MARKS = ".,;:!?\"'“”‘’"
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")
_RUN = re.compile("[\x80-\uffff]{2,16}")
_OF_REWARDS = frozenset(
    "any-answer blind-judge gold-in-prompt odd-pair other-scale paid-for-length paid-for-nothing paid-for-silence"
    " not-read read self-masking short-gold unread-answer wrong-gate wrong-sign".split()
)
"""The codes of warnings that are causes of holes."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One row as a policy meets it. `prompt` is None where it needs what only an episode opens."""

    split: str
    index: int
    task: Mapping[str, Any]
    prompt: str | None
    golds: Mapping[str, tuple[Gold, ...]]
    """By term: the accepted values; without those of rules that read something else than the row."""
    answer: str | None = None
    """What the oracle answered, None where it did not play or gave none."""

    @property
    def place(self) -> str:
        """`split/index`, as all reports name it."""
        return f"{self.split}/{self.index}"


Rows = Mapping[str, Sequence[PromptRow]]


@dataclass(slots=True)
class DataFindings:
    """The findings of the checks of data; the same in several splits is one finding."""

    findings: list[Hole]
    notes: list[str]

    def add_hole(self, hole: str, rows: Sequence[PromptRow], message: str, term: str = "") -> None:
        """A finding that one row is enough for."""
        splits = tuple(dict.fromkeys(row.split for row in rows))
        self.findings.append(hole_of(hole, f"{message}: {list_places(rows)}", term, splits=splits))

    def add_share(self, hole: str, rows: Sequence[PromptRow], of: int, message: str, term: str = "") -> None:
        """A finding over so many of a split's rows, or a note where they are few of a large one."""
        if not rows:
            return
        if len(rows) >= _FEW * of:
            self.add_hole(hole, rows, message, term)
        else:
            self.notes.append(f"{hole}: {message}: {list_places(rows)}")


def list_places(rows: Iterable[PromptRow]) -> str:
    """The rows' places, the first few of them."""
    places = [row.place for row in rows]
    return ", ".join(places[:_NAMED]) + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def check_data(environment: Environment, golds: Sequence[Trajectory]) -> tuple[tuple[Hole, ...], tuple[str, ...]]:
    """Findings and notes over the rows of the splits that the oracle played."""
    played = grouped((gold.split, gold) for gold in golds)
    found = DataFindings([], [])
    rows = read_rows(environment, played, found.notes)
    check_rows(environment, rows, found)
    check_golds(environment, rows, found)
    check_tests(environment, rows, found)
    return tuple(found.findings), tuple(found.notes)


def warnings_as_holes(environment: Environment, reader: Endpoint | None = None) -> list[Hole]:
    """The warnings of validation by which a wrong answer earns or a right one does not, with their terms.

    With a reader's endpoint what its model reads too, which is shown what scripted episodes earn.
    """
    found = []
    for one in validate_loaded(environment.loaded, plays=reader is not None, reader=reader).warnings:
        group, _, rest = one.where.partition(".")
        term = rest.partition(".")[0] if group == "rewards" else ""
        if one.code in _OF_REWARDS:
            code = one.code.replace("-", "_")
            found.append(hole_of(code, one.message, term, one.hint, where=one.where))
    return found


def read_rows(environment: Environment, played: Mapping[str, Sequence[Trajectory]], notes: list[str]) -> Rows:
    """The rows of the splits that the oracle played, those that it did not play too."""
    readable = gold_readers(environment)
    renders = not any("resources" in one.names for one in environment.parts.prompted)
    found: dict[str, list[PromptRow]] = {}
    for split, trajectories in played.items():
        tasks = environment.tasks(split)
        step = -(-len(tasks) // MOST_ROWS)
        if step > 1:
            notes.append(f"of {len(tasks)} rows in split '{split}' every {step}th was looked at for faults of the data")
        by_index = {one.task_index: one for one in trajectories}
        rows = found[split] = []
        for index in range(0, len(tasks), step):
            try:
                task = tasks[index]
                gold = by_index.get(index)
                messages = gold.messages if gold is not None else ()
                if not messages and renders and not environment.parts.images:
                    messages = environment.prompt(task, {})
            except (SpecError, EpisodeError):  # what the oracle's own episode has failed of
                continue
            prompt = "\n\n".join(one.content for one in messages) if messages else None
            values = golds_of(readable, task, environment.spec.vars)
            rows.append(PromptRow(split, index, task, prompt, values, gold.answer if gold is not None else None))
    return found


def seen_columns(environment: Environment) -> Set[str] | None:
    """The columns that reach a policy by another way than the prompt's texts; None where any may.

    Tools, resources, users and images are made of a row: two rows with one prompt are two tasks where these differ.
    """
    spec, parts = environment.spec, environment.parts
    entries: list[Any] = [one.model_dump() for one in spec.resources.values()]
    has_code = any(one.kind == "python" for one in spec.resources.values()) or bool(parts.row_tools)
    if has_code or (spec.user is not None and spec.user.kind not in ("scripted", "model")):
        return None
    entries += [template.source for template in parts.images]
    entries += [spec.user.model_dump()] if spec.user is not None else []
    for tool in parts.tools.values():
        entry = spec.tools[tool.entry]
        if tool.depends_on == "arguments" or entry.kind == "sql":
            entries.append(entry.offered)
            continue
        if entry.kind not in ("http", "command", "model", "agent", "search", "code", "calculator"):
            return None
        entries.append(entry.model_dump())
    columns: set[str] = set()
    for text in texts_in(entries):
        try:
            paths = compile_template(text).paths if "{" in text else ()
        except TemplateError:
            continue
        for path in paths:
            if path[0] == "task":
                if len(path) == 1:
                    return None
                columns.add(path[1])
    return columns


def check_rows(environment: Environment, rows: Rows, found: DataFindings) -> None:
    """Findings over whole rows: repeats, golds that contradict each other, missing values, broken texts."""
    seen = seen_columns(environment)
    keys = {split: [_row_key(row, seen) for row in some] for split, some in rows.items()}
    _check_repeats(rows, keys, found, opaque=seen is None)
    _check_overlaps(rows, keys, found, opaque=seen is None)
    for some in rows.values():
        _check_contradictions(some, seen, found)
        _check_missing_values(environment, some, found)
        _check_broken_texts(some, found)


def _normalise_text(text: str) -> str:
    """A text without case, repeated space and marks around words: what a copy may differ in."""
    words = (word.strip(_MARKS) or word for word in unicodedata.normalize("NFC", text).casefold().split())
    return " ".join(words)


def _other_data(row: PromptRow, seen: Set[str] | None) -> str:
    """The other data that the row gives a policy, as text that is equal for equal data."""
    columns = row.task if seen is None else {name: row.task.get(name) for name in seen}
    return canonical_json(columns)


def _row_key(row: PromptRow, seen: Set[str] | None) -> tuple[object, ...]:
    """Equal for rows that are one task twice."""
    if row.prompt is None:
        return (canonical_json(row.task),)
    golds = tuple((term, tuple(sorted(gold.text for gold in golds))) for term, golds in sorted(row.golds.items()))
    return _normalise_text(row.prompt), golds or row.answer, _other_data(row, seen)


def _normal_prompts(rows: Sequence[PromptRow]) -> list[str]:
    return [_normalise_text(row.prompt) for row in rows if row.prompt is not None]


def _expected_repeats(prompts: Sequence[str], others: Sequence[str]) -> float:
    """The expected number of `prompts` among `others` where both are drawn from as few questions as they look like.

    Prompts of equally many words are one template; it has as many questions as its slots have combinations. What
    comes again and again in a slot is all that it has; other numbers have their range, and a word that comes once is
    of a list that nobody can see the end of.
    """
    groups = grouped((len(words), words) for words in map(_TOKEN.findall, prompts))
    theirs = Counter(len(_TOKEN.findall(prompt)) for prompt in others)
    expected = 0.0
    for length, some in groups.items():
        size, slots = 1.0, [set(column) for column in zip(*some, strict=True)]
        slots = [slot for slot in slots if len(slot) > 1]
        for slot in slots:
            if 2 * len(slot) <= len(some):
                size *= len(slot)
            elif all(word.isdecimal() and len(word) < _DIGITS for word in slot):
                size *= max(map(int, slot)) - min(map(int, slot)) + 1
            else:
                size = math.inf
        if slots and len(some) >= _TEMPLATE:
            expected += len(some) * theirs[length] / size
    return expected


def _is_chance(count: int, expected: float) -> bool:
    """True if so many repeats or more are no surprise: the upper tail of the Poisson distribution is above 0.01."""
    below = (
        math.fsum(math.exp(-expected + k * math.log(expected) - math.lgamma(k + 1)) for k in range(count))
        if expected
        else 1.0
    )
    return 1 - below > _NO_SURPRISE


def _check_repeats(rows: Rows, keys: Mapping[str, Sequence[object]], found: DataFindings, *, opaque: bool) -> None:
    for split, some in rows.items():
        first: dict[object, PromptRow] = {}
        again, pairs = [], []
        for row, key in zip(some, keys[split], strict=True):
            if key in first:
                again.append(row)
                pairs.append(f"{row.place} is {first[key].place}")
            else:
                first[key] = row
        message = f"{len(again)} of {len(some)} rows in split '{split}' stand there before ({'; '.join(pairs[:3])})"
        if not opaque and len(some) >= _ENOUGH and _REPEATED * len(first) <= len(some):
            fix = "more rows of them teach and measure no more: write other questions"
            found.add_hole(
                "few_questions", again, f"{len(some)} rows in split '{split}' ask {len(first)} questions; {fix}"
            )
        elif opaque and again:
            # What code makes of a row may differ by the episode's seed.
            found.notes.append(f"{message}; whether their episodes differ is known to the code that reads them")
        elif again and _is_chance(len(again), _expected_repeats(prompts := _normal_prompts(some), prompts) / 2):
            found.notes.append(
                f"{message}; there are few questions of this kind, and so many repeats are to be expected"
            )
        else:
            found.add_share("duplicate_rows", again, len(some), f"{message}; drop the copies")


def _check_overlaps(rows: Rows, keys: Mapping[str, Sequence[object]], found: DataFindings, *, opaque: bool) -> None:
    for one, other in itertools.combinations(rows, 2):
        held = [split for split in (one, other) if _EVALUATES.search(split.lower())]
        inner, outer = (other, one) if other in held or not held else (one, other)
        there = dict(zip(reversed(keys[outer]), reversed(rows[outer]), strict=True))
        pairs = [(row, there[key]) for row, key in zip(rows[inner], keys[inner], strict=True) if key in there]
        shown = "; ".join(f"{row.place} is {twin.place}" for row, twin in pairs[:3])
        message = f"{len(pairs)} of {len(rows[inner])} rows in split '{inner}' stand in '{outer}' too ({shown})"
        if not pairs:
            continue
        expected = _expected_repeats(_normal_prompts(rows[inner]), _normal_prompts(rows[outer]))
        if _is_chance(len(pairs), expected):
            found.notes.append(f"{message}; there are few questions of this kind, and so many are to be expected")
        elif held and not opaque:
            fix = f"drop them from '{outer}', or success on '{inner}' is partly memory"
            found.add_share("split_overlap", [row for row, _ in pairs], len(rows[inner]), f"{message}; {fix}")
        else:
            why = "whether their episodes differ is known to the code that reads them" if opaque else "neither measures"
            found.notes.append(f"{message}; {why}")


def _check_contradictions(rows: Sequence[PromptRow], seen: Set[str] | None, found: DataFindings) -> None:
    groups: dict[str, list[PromptRow]] = defaultdict(list)
    for row in rows:
        if row.prompt is not None and (row.golds or row.answer is not None):
            groups[_SPACES.sub(" ", row.prompt).strip()].append(row)
    against: list[PromptRow] = []
    pairs, told_apart = [], []
    for group in groups.values():
        for row in group[1:]:
            if not (term := _contradiction(group[0], row)):
                continue
            if _other_data(group[0], seen) != _other_data(row, seen):
                told_apart.append(row)
                continue
            against.append(row)
            pairs.append(f"{group[0].place} and {row.place} ({term})")
    if told_apart:
        message = "rows have an earlier row's prompt and another gold; tools or resources give them other data"
        found.notes.append(f"{len(told_apart)} {message}: {list_places(told_apart)}")
    message = f"{len(against)} rows ask what another row asks, show the same and want another answer"
    fix = "drop one of each, put into the prompt what tells them apart, or accept both answers"
    found.add_share("contradictory_golds", against, len(rows), f"{message}: {'; '.join(pairs[:3])}; {fix}")


def _contradiction(one: PromptRow, other: PromptRow) -> str:
    """In what two rows contradict each other: a term, or the oracle's answer where no term names a gold."""
    for term, golds in one.golds.items():
        theirs = {gold.key for gold in other.golds.get(term, ())}
        mine = {gold.key for gold in golds}
        if mine and theirs and not mine & theirs:
            return f"{term}: {golds[0].text[:40]!r} and {other.golds[term][0].text[:40]!r}"
    if one.golds or other.golds or None in (one.answer, other.answer) or one.answer == other.answer:
        return ""
    return f"{one.answer!r:.40} and {other.answer!r:.40}"


def _check_missing_values(environment: Environment, rows: Sequence[PromptRow], found: DataFindings) -> None:
    """Values that are not there, and that the prompt shows as the word None or nan."""
    columns = {
        path[1] for one in environment.parts.prompted for path in one.paths if path[0] == "task" and len(path) > 1
    }
    words = {"None": re.compile(r"\bNone\b"), "nan": re.compile(r"\bnan\b")}
    # Where other rows say the word too, it is the author's own.
    for column in sorted(columns):
        for word, pattern in words.items():
            lacking = [row for row in rows if str(row.task.get(column)) == word and row.prompt is not None]
            if len(lacking) == len(rows):
                continue
            if any(row.prompt and pattern.search(row.prompt) for row in rows if str(row.task.get(column)) != word):
                continue
            shown = [row for row in lacking if pattern.search(row.prompt or "") and row.task.get(column) != word]
            message = f"'{column}' has no value and the prompt says {word!r}; fill it in or guard the template"
            found.add_share("missing_values", shown, len(rows), message)


def _check_broken_texts(rows: Sequence[PromptRow], found: DataFindings) -> None:
    """Texts that were decoded by the wrong table, or hold what no text holds."""
    bad, shown = [], ""
    for row in rows:
        texts = [row.prompt or "", *(gold.text for golds in row.golds.values() for gold in golds)]
        if broken := next((piece for text in texts for piece in _broken_pieces(text)), ""):
            bad.append(row)
            shown = shown or repr(broken)
    found.add_share(
        "broken_text", bad, len(rows), f"prompts or golds hold {shown}, which no reader wrote; decode them anew"
    )


def _broken_pieces(text: str) -> Iterable[str]:
    yield from _CONTROL.findall(text)
    for run in _RUN.findall(text):
        try:
            meant = run.encode("cp1252").decode("utf-8")
        except UnicodeError:
            continue
        if len(meant) < len(run):
            yield run
