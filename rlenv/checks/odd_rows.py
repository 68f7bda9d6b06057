"""Warnings of rows: what stands there twice or against itself, golds in another form than is asked for, and leaks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from rlenv._base.text import strings_in
from rlenv.checks.sites import Stub
from rlenv.checks.subject import ReadSplit, Subject, prompt_texts
from rlenv.errors import Finding, RlenvError
from rlenv.language.expressions import open_on
from rlenv.language.kinds import gold_in
from rlenv.language.spec import TaskSource
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.rewards.base import Term
from rlenv.tasks.rows import load_tasks

_MOJIBAKE: Final = re.compile(r"[ÃÅÄ][\x80-\xbfŸœŽ¼€‚ƒ„…†‡ˆ‰Š‹Œ˜™š›ž]|â€|Â[\xa0-\xbf]|ï»¿|\ufffd")
_DAMAGED: Final = re.compile(rf"{_MOJIBAKE.pattern}|&(?:amp|lt|gt|quot|nbsp|#39);")
_TOLD: Final = re.compile(r"(?i)\b(?:answer|solution|label|gold|result)\W{1,4}")
_LOOKED_AT: Final = 1_000
_SHAPES: Final = (
    ("date", "2031-05-30", r"\d{4}-\d\d-\d\d"),
    ("date", "30.5.2031", r"\d\d?\.\d\d?\.\d{2,4}"),
    ("date", "5/30/2031", r"\d\d?/\d\d?/\d{2,4}"),
    ("date", "30 May 2031", r"(?:\d\d?(?:st|nd|rd|th|\.)? )?[A-Z][a-z]{2,8}\.? (?:\d\d?(?:st|nd|rd|th)?,? )?\d{4}"),
    ("time", "24 hours", r"\d\d?:\d\d(?::\d\d)?"),
    ("time", "12 hours", r"\d\d?(?::\d\d)? ?[apAP]\.?[mM]\.?"),
    ("number", "commas", r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
    ("number", "no commas", r"[-+]?\d+(?:\.\d+)?"),
    ("number", "a unit", r"[-+]?[$€£]?\d[\d.,]*\s?(?:[^\W\d]{1,12}|[%°$€£])?"),
    ("verdict", "yes or no", r"(?i:yes|no)"),
    ("verdict", "true or false", r"(?i:true|false)"),
)
"""Forms of values that are written in several ways, by what they are."""
_OPTIONS: Final = re.compile(r"(?:options?|choices?|candidates?|alternatives?)$", re.IGNORECASE)
_LETTER: Final = re.compile(r"\(?([A-Za-z])[.)]?")
NO_GOLD: Final = re.compile(r"(?i)n/?a|none|null|nan|todo|tbd|\?+|xxx+|fixme|undefined")


@dataclass(frozen=True, slots=True)
class RenderedPrompts:
    """The prompts of a split, rendered; those of a row that resources fill have a stand-in there."""

    split: ReadSplit
    texts: Sequence[str]
    users: Sequence[str]


def check_rows(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`, and of golds beside prompts."""
    prompt = subject.loaded.spec.prompt
    templates = [compile_template(text) for text in (prompt.system, prompt.user) if text is not None]
    asked = asked_of(subject)
    yield from _same(subject, templates, asked)
    yield from _rows(subject, asked)
    yield from _splits(subject)
    term = gold_term(subject)
    prompts = _prompts(subject, asked)
    golds = [[None] * len(one.split.rows) if term is None else all_golds(subject, term, one.split) for one in asked]
    yield from _twice(subject, asked, prompts, golds)
    if term is None or term.spec.usual_weight < 0:
        return
    path = at if (at := subject.gold_at(term)).count(".") > 1 else "tasks"
    for one, told in zip(asked, golds, strict=True):
        if given := _whole(told):
            yield from _outliers(subject, path, one, given)
    if getattr(term.spec, "rule", "") in ("exact_match", "contains", "f1"):
        yield from _mixed(
            subject, path, term, [(one.split.name, _whole(told)) for one, told in zip(asked, golds, strict=True)]
        )


def gold_term(subject: Subject) -> Term | None:
    """The first term that compares with a gold value of the row."""
    return next((one for one in subject.terms if _has_gold(subject, one)), None)


def golds_of(subject: Subject, term: Term, one: RenderedPrompts) -> list[str]:
    """The gold values of the first rows as text; none where one is empty, or is no text."""
    return _whole(all_golds(subject, term, one.split))


def all_golds(subject: Subject, term: Term, split: ReadSplit) -> Sequence[str | None]:
    """The gold value of each row as text; None where there is none, or several."""
    return subject.once(("golds", term.name, split.name), lambda: [gold_of(subject, term, row) for row in split.rows])


def _whole(golds: Sequence[str | None]) -> list[str]:
    given = [gold.strip() for gold in golds[:_LOOKED_AT] if gold is not None and gold.strip()]
    return given if len(given) == len(golds[:_LOOKED_AT]) else []


def _has_gold(subject: Subject, term: Term) -> bool:
    return bool(gold_in(term.spec)) and "resources" not in str(subject.document.get(f"rewards.{term.name}"))


def gold_of(subject: Subject, term: Term, row: Mapping[str, Any]) -> str | None:
    """The gold value as text; None where there is none, or several."""
    try:
        fill = subject.once(("gold", term.name), lambda: compile_value(_expected(term)))
        is_open = subject.once(("gate", term.name), lambda: open_on(term.spec.gate))(row)
        value = fill(task=row, vars=subject.loaded.spec.vars) if is_open else None
    except (TemplateError, TypeError, RlenvError):
        return None
    return None if isinstance(value, bool) or not isinstance(value, (str, int, float)) else str(value)


def _expected(term: Term) -> Any:
    expect = gold_in(term.spec)
    return getattr(expect, "value", expect)


def asked_of(subject: Subject) -> list[RenderedPrompts]:
    """The rendered prompts of each split."""
    return subject.once("asked", lambda: _asked(subject))


def _asked(subject: Subject) -> list[RenderedPrompts]:
    prompt = subject.loaded.spec.prompt
    templates = [compile_template(text) for _, text in prompt_texts(prompt)]
    return [_rendered(subject, templates, split) for split in subject.splits.values()]


def fixed_text(subject: Subject) -> str:
    """The part of the prompt that is the same for every task, with constants filled in."""
    return subject.once("fixed", lambda: _fixed_text(subject))


def _fixed_text(subject: Subject) -> str:
    prompt, parts = subject.loaded.spec.prompt, []
    for _, source in prompt_texts(prompt):
        try:
            parts.append(compile_template(source).text(vars=subject.loaded.spec.vars))
        except (TemplateError, RlenvError):
            parts.append(re.sub(r"\{[{%#].*?[}%#]\}", " ", source, flags=re.DOTALL))
    return "\n".join(parts)


def _rendered(subject: Subject, templates: Sequence[Template], split: ReadSplit) -> RenderedPrompts:
    texts, users = [], []
    values: dict[str, Any] = {"vars": subject.loaded.spec.vars, "resources": Stub()}
    for row in split.rows:
        try:
            parts = [template.text(task=row, **values) for template in templates]
        except TemplateError:
            return RenderedPrompts(split, (), ())  # reported with the templates
        texts.append("\n".join(parts))
        users.append(parts[-1] if parts else "")
    return RenderedPrompts(split, texts, users)


def _same(subject: Subject, templates: Sequence[Template], asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """All tasks of a split ask the same, though nothing but the prompt could tell them apart."""
    if any("resources" in template.names for template in templates) or _differs_elsewhere(subject):
        return
    for one in asked:
        if len(one.texts) > 1 and len(set(one.texts)) == 1:
            names = ", ".join(f"task.{column}" for column in sorted(one.split.columns)) or "none"
            reads = any(path[0] == "task" for template in templates for path in template.paths)
            what = "all rows have the same values in what it reads" if reads else "it names no column of the row"
            message = f"all {len(one.texts)} tasks of split '{one.split.name}' ask the same: {what}"
            yield subject.document.warning("prompt.user", message, f"the columns are: {names}", "same-prompt")
            return


def _splits(subject: Subject) -> Iterator[Finding]:
    """Columns with odd names, rows with one id, files of other splits, and rows that are drawn."""
    splits = list(subject.splits.values())
    for one in splits:
        spaced = next((name for name in one.columns if str(name) != str(name).strip("\ufeff \t")), None)
        if spaced is not None:
            message = f"the column {spaced!r} has blanks around its name"
            yield subject.document.warning(f"tasks.{one.name}", message, "mend the file", "odd-column", at="key")
        ids = [str(row["id"]) for row in one.rows if isinstance(row.get("id"), (str, int))]
        if len(set(ids)) < len(ids):
            twice = next(value for value, count in Counter(ids).items() if count > 1)
            message = f"two of its rows have the id '{twice}'"
            yield subject.document.warning(f"tasks.{one.name}", message, "mend them", "duplicate-rows", at="key")
    spec = subject.loaded.spec
    for name, source in spec.tasks.items():
        for path in source.paths:
            words = re.findall(r"[a-z]+", Path(path).name.lower())
            other = next((one for one in spec.tasks if one != name and one in words and name not in words), None)
            if other is not None and spec.tasks[other].path not in (None, source.path):
                message = f"it reads {Path(path).name}, which is called like the split '{other}'"
                yield subject.document.warning(f"tasks.{name}.path", message, "exchange the files", "other-split")
        if source.function is not None and name in subject.splits:
            again = load_tasks(subject.loaded, name)
            first = subject.splits[name].rows[:20]
            if [again[index] for index in range(min(len(again), len(first)))] != list(first):
                message = "its rows are others each time that they are made"
                hint = "draw from a seed: random.Random(1)"
                yield subject.document.warning(f"tasks.{name}.function", message, hint, "unsteady")
    if spec.roots and not any(
        (path[-1] in ("path", "init", "copy_from", "function", "spec") and "task" in text) or "images" in path
        for path, text in strings_in(subject.document.data, ())
        if path[0] != "tasks"
    ):
        message = "no path is filled in by a row, so that nothing looks below them"
        yield subject.document.warning("roots", message, "take 'roots' out", "unused-roots", at="key")


def _differs_elsewhere(subject: Subject) -> bool:
    """True where a resource, a tool or the user may be another for each task."""
    if subject.loaded.spec.user is not None or subject.loaded.spec.prompt.images:
        return True
    texts = [text for key in ("resources", "tools") for _, text in strings_in(subject.document.get(key), ())]
    return (
        any("task" in text for text in texts)
        or any(spec.kind == "python" for spec in subject.loaded.spec.resources.values())
        or any(tool.depends_on != "arguments" and tool.kind in ("python", "mcp") for tool in subject.tools.values())
    )


def _rows(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Rows that stand in a split twice, or in two splits; rows of numbers alone are drawn, and may well meet."""
    seen: dict[str, str] = {}
    sources = subject.loaded.spec.tasks
    for one in asked:
        worded = any(isinstance(value, str) for row in one.split.rows for value in row.values())
        rows = [repr(sorted(row.items(), key=lambda item: str(item[0]))) for row in one.split.rows]
        counts = Counter(rows if worded else ())
        twice = counts.total() - len(counts)
        place = f"tasks.{one.split.name}"
        if twice:
            first = next(index for index, row in enumerate(rows) if counts[row] > 1)
            message = f"{twice} of {len(rows)} rows stand there before (first: row {first + 1})"
            yield subject.document.warning(place, message, "take them out", "duplicate-rows", at="key")
        shared = [row for row in counts if row in seen]
        if shared and not _is_part(sources[one.split.name], sources[seen[shared[0]]], one.split.name):
            other = seen[shared[0]]
            message = f"{len(shared)} of its {len(counts)} rows are rows of split '{other}' too"
            hint = "keep what is measured apart from what is trained on"
            yield subject.document.warning(place, message, hint, "shared-rows", at="key")
        seen |= dict.fromkeys(counts, one.split.name)
        limit = subject.loaded.spec.tasks[one.split.name].limit
        if limit is not None and limit > len(rows) and len(rows) < 10_000:
            message = f"the limit is {limit}, and there are {len(rows)} rows"
            yield subject.document.warning(f"{place}.limit", message, "take it out", "idle-limit")
        by = subject.loaded.spec.tasks[one.split.name].report_by
        groups = {str(row.get(by)) for row in one.split.rows} if by is not None else set()
        if by is not None and len(rows) > 1 and len(groups) in (1, len(rows)):
            what = "one value for all rows" if len(groups) == 1 else "another value for each row"
            message = f"'{by}' has {what}, so that its groups say nothing"
            yield subject.document.warning(f"{place}.report_by", message, "name another column", "idle-groups")


def _is_part(source: TaskSource, other: TaskSource, name: str) -> bool:
    """True for a split that is another one's file under a name that promises nothing unseen."""
    same = source.path is not None and source.path == other.path
    return same and not re.search(r"(?i)test|val|dev|eval|held|unseen|final|bench", name)


def _prompts(subject: Subject, asked: Sequence[RenderedPrompts]) -> list[list[str]]:
    """The texts that tell the tasks of each split apart, without case and punctuation; [] where that is not the prompt
    alone.
    """
    sources = f"{subject.loaded.spec.prompt.system} {subject.loaded.spec.prompt.user}"
    if _differs_elsewhere(subject) or "resources" in sources:
        return [[] for _ in asked]
    # A sign may be all that tells two questions of mathematics apart.
    told = [[re.sub(r"[^\w*/+<=>-]+|_+", " ", text.lower()).strip() for text in one.texts] for one in asked]
    return [texts if len(set(texts)) > 1 or len(texts) == 1 else [] for texts in told]


def _twice(
    subject: Subject,
    asked: Sequence[RenderedPrompts],
    prompts: Sequence[Sequence[str]],
    golds: Sequence[Sequence[str | None]],
) -> Iterator[Finding]:
    """Tasks that ask what another one asks: with another gold, or in another split."""
    seen: dict[str, tuple[str, int, str | None, Any]] = {}
    for one, texts, told in zip(asked, prompts, golds, strict=True):
        shared, place = [], f"tasks.{one.split.name}"
        for index, (text, gold) in enumerate(zip(texts, told, strict=False)):
            row = one.split.rows[index]
            split, first, other, same = seen.setdefault(text, (one.split.name, index, gold, row))
            if same == row:  # itself, or one that stands there twice
                continue
            if gold != other:
                message = f"row {index + 1} asks what row {first + 1} of '{split}' asks, and its gold value is another"
                yield subject.document.warning(place, message, "keep the right one", "conflicting-rows", at="key")
                break
            shared.append((index, split, first))
        if shared:
            index, split, first = shared[0]
            which = f"row {index + 1}: row {first + 1} of '{split}'"
            message = f"{len(shared)} of its {len(texts)} rows ask what others ask ({which})"
            code = "duplicate-rows" if split == one.split.name else "shared-rows"
            yield subject.document.warning(place, message, "take them out", code, at="key")


def _outliers(subject: Subject, path: str, one: RenderedPrompts, golds: Sequence[str]) -> Iterator[Finding]:
    """Golds that are broken, that are questions, or that their prompt says."""
    name = one.split.name
    for what, odd, least in (
        ("is no gold value", [bool(NO_GOLD.fullmatch(gold)) for gold in golds], 0.0),
        ("is no day of any calendar", [_is_no_day(gold) for gold in golds], 0.0),
        ("is a question", [gold.endswith("?") for gold in golds], -1.0),
        ("holds damaged characters (UTF-8 read as Latin-1)", [bool(_MOJIBAKE.search(gold)) for gold in golds], -1.0),
        ("holds damaged characters", [bool(_DAMAGED.search(gold)) for gold in golds], 0.0),
        ("stands behind a word such as 'answer' in its own prompt", [_is_told(text, gold) for text, gold
         in zip(one.users, golds, strict=False)], 0.5),
    ):  # fmt: skip
        count = sum(odd)
        if count and count > least * len(golds) and (least or count * 2 <= len(golds)):
            index = odd.index(True)
            message = f"the gold value of row {index + 1} of split '{name}' {what}: {golds[index][:40]!r}"
            yield subject.document.warning(path, message, "mend the row", "odd-gold")
            return
    broken = [
        (index, found[0]) for index, text in enumerate(one.users[:_LOOKED_AT]) if (found := _DAMAGED.search(text))
    ]
    if broken and "&" not in subject.loaded.spec.prompt.user:
        message = f"row {broken[0][0] + 1} of split '{name}' holds damaged characters, such as {broken[0][1]!r}"
        hint = "read the file as what it is"
        yield subject.document.warning(f"tasks.{name}", message, hint, "damaged-text", at="key")
    yield from _options(subject, path, one, golds)


def _mixed(subject: Subject, path: str, term: Term, told: Sequence[tuple[str, Sequence[str]]]) -> Iterator[Finding]:
    """Gold values in two forms of one thing, which are two texts, and lists that were written as texts."""
    warn, said = subject.document.warning, fixed_text(subject)
    golds = [(name, index, gold) for name, given in told for index, gold in enumerate(given)]
    lists = [one for one in golds if one[2][:1] in tuple("[{(") and _is_literal(one[2])]
    if lists and not re.search(r"(?i)list|json|array|tuple|pair|interval|coordinate|bracket|\bset\b|dict", said):
        name, index, gold = lists[0]
        message = (
            f"the gold value of row {index + 1} of split '{name}' is a list that was written as text: {gold[:40]!r}"
        )
        yield warn(path, message, "give a list of accepted answers", "odd-gold")
        return
    shapes = [(name, index, gold, *_shape(gold)) for name, index, gold in golds]
    families = {one[3] for one in shapes}
    forms = Counter(one[4] for one in shapes if one[4])
    rare, count = min(forms.items(), key=lambda pair: pair[1], default=("", 0))
    if units := forms["a unit"]:
        rare, count = "a unit", 5 * units
    is_mixed = len(forms) > 1 if not units else count <= len(shapes)
    if len(families) == 1 and "" not in families and len(shapes) > 2 and is_mixed:
        name, index, gold = next(one[:3] for one in shapes if one[4] == rare)
        other = next(one[2] for one in shapes if one[4] != rare)
        message = f"the gold value of row {index + 1} of split '{name}' is {gold[:40]!r}, and another {other[:40]!r}"
        yield warn(path, message, "write all of them in one form", "gold-form")
        return


def _shape(gold: str) -> tuple[str, str]:
    """The family of a value that is written in several forms, and its form; "" where every form agrees with it."""
    family, form = next(((family, form) for family, form, pattern in _SHAPES if re.fullmatch(pattern, gold)), ("", ""))
    is_small = form == "no commas" and len(re.sub(r"\..*|\D", "", gold)) < 4
    return family, "" if is_small else form


def _is_literal(gold: str) -> bool:
    try:
        return isinstance(ast.literal_eval(gold), (list, tuple, set, dict))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_no_day(gold: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", gold)) and not date.fromisoformat(gold)
    except ValueError:
        return True


def _is_told(text: str, gold: str) -> bool:
    ends = (found.end() for found in _TOLD.finditer(text))
    return any(
        text[end:].startswith(gold) and not text[end + len(gold) : end + len(gold) + 1].isalnum() for end in ends
    )


def option_columns(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[int, Mapping[str, str]]]]:
    """Columns that hold each row's options: by the row's place, label (or number) to text, in order."""
    for name in dict.fromkeys(name for row in rows[:100] for name in row if _OPTIONS.search(str(name))):
        found: dict[int, Mapping[str, str]] = {}
        for at, row in enumerate(rows):
            value = row.get(name)
            if isinstance(value, Mapping) and set(value) >= {"label", "text"} and isinstance(value["text"], list):
                value = dict(zip(map(str, value["label"]), value["text"], strict=False))
            elif isinstance(value, (list, tuple)):
                value = {str(number): one for number, one in enumerate(value)}
            if isinstance(value, Mapping) and len(value) > 1:
                found[at] = {str(key): str(one) for key, one in value.items()}
        if 2 * len(found) >= len(rows) and found:
            yield name, found


def place_of(golds: Sequence[str], options: Mapping[str, str]) -> int | None:
    """The place of a gold among the options, from 0: by its text, its label, its letter or its number."""
    keys, texts = [*options], [one.strip().casefold() for one in options.values()]
    for gold in map(str.strip, golds):
        if gold.casefold() in texts:
            return texts.index(gold.casefold())
        if gold in keys:
            return keys.index(gold)
        if (letter := _LETTER.fullmatch(gold)) and (place := ord(letter[1].upper()) - ord("A")) < len(keys):
            return place
    return None


def _options(subject: Subject, path: str, one: RenderedPrompts, golds: Sequence[str]) -> Iterator[Finding]:
    """A gold value that is not among the options of its row, or always the same one of them."""
    user = subject.loaded.spec.prompt.user
    texts, where = f"{user} {subject.loaded.spec.prompt.system}", f"of split '{one.split.name}'"
    for column, options in option_columns(one.split.rows):
        if not re.search(rf"\btask\.{re.escape(column)}\b", texts) or len(options) < len(one.split.rows):
            continue
        if "0" in golds and re.search(r"\bloop\.index\b(?!0)", user) and f"in task.{column}" in user:
            message = "a gold value is 0, and the prompt numbers the options from 1"
            yield subject.document.warning(path, message, "add 1, or write loop.index0", "odd-gold")
            return
        places = [place_of([gold], options[at]) for at, gold in enumerate(golds)]
        lost = next((at for at, place in enumerate(places) if place is None and not golds[at].isdigit()), None)
        if lost is not None:
            message = f"the gold value of row {lost + 1} {where} is none of its '{column}': {golds[lost][:40]!r}"
            yield subject.document.warning(path, message, "mend the row", "odd-gold")
        elif len(places) >= 4 and len(set(places)) == 1 and places[0] is not None:
            message = f"the right one of '{column}' is number {places[0] + 1} in all {len(places)} rows {where}"
            yield subject.document.warning(path, message, "shuffle them", "constant-gold")
