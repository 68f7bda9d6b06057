"""Warnings of rows: what stands there twice or against itself, golds in another form than is asked for, and leaks."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.sites import Stub
from rlenv.checks.subject import PATTERNS, WORDS, ReadSplit, Subject, prompt_texts
from rlenv.errors import Finding, RlenvError
from rlenv.language.expressions import open_on
from rlenv.language.kinds import gold_in, kind_of
from rlenv.language.spec import TaskSource
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.rewards.base import Term
from rlenv.rewards.normalise import number
from rlenv.tasks.rows import load_tasks
from rlenv.tools._arithmetic import CannotCalculate, calculate

_LOOKED_AT: Final = 1_000


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
    yield from _columns(subject)
    term = gold_term(subject)
    prompts = _prompts(subject, asked)
    golds = [[None] * len(one.split.rows) if term is None else all_golds(subject, term, one.split) for one in asked]
    yield from _twice(subject, asked, prompts, golds)
    for term in subject.terms:
        path = at if (at := subject.gold_at(term)).count(".") > 1 else f"rewards.{term.name}"
        seen: dict[str, set[str]] = {}
        for one in asked if _has_gold(subject, term) and term.spec.usual_weight > 0 else ():
            told = enumerate(all_golds(subject, term, one.split)[:_LOOKED_AT])
            pairs = [(index, gold.strip()) for index, gold in told if gold is not None and gold.strip()]
            seen[one.split.name] = {gold for _, gold in pairs}
            yield from _outliers(subject, path, one, [gold for _, gold in pairs])
            given = [gold for _, gold in pairs]
            for code, odd in (
                ("odd-gold", _forms(subject, term, given)),
                ("gold-in-prompt", _given_away(one, pairs)),
                ("wrong-gold", _against(one, pairs)),
                ("constant-gold", _few(one, pairs, seen)),
            ):
                for message, hint in odd if pairs and one.texts else ():
                    yield subject.document.warning(path, message, hint, code, at="value" if path == at else "key")


def gold_term(subject: Subject) -> Term | None:
    """The first term that compares with a gold value of the row."""
    return next((one for one in subject.terms if _has_gold(subject, one)), None)


def all_golds(subject: Subject, term: Term, split: ReadSplit) -> Sequence[str | None]:
    """The gold value of each row as text; None where there is none, or several."""
    return subject.once(("golds", term.name, split.name), lambda: [gold_of(subject, term, row) for row in split.rows])


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
            yield subject.say("same-prompt/tasks-split", "prompt.user", len(one.texts), one.split.name, what, names)
            return


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
    seen, every = dict[str, str](), dict[str, list[str]]()
    sources = subject.loaded.spec.tasks
    for one in asked:
        worded = any(isinstance(value, str) for row in one.split.rows for value in row.values())
        rows = [repr(sorted(row.items(), key=lambda item: str(item[0]))) for row in one.split.rows]
        counts, place = Counter(rows if worded else ()), f"tasks.{one.split.name}"
        twice = counts.total() - len(counts)
        if not worded and len(rows) > 49 and len(set(rows)) * 10 <= len(rows):
            yield subject.say("duplicate-rows/differ", place, len(rows), len(set(rows)), at="key")
        if not worded and len(rows) > 2 and (same := [name for name, others in every.items() if others == rows]):
            yield subject.say("shared-rows/those-split", place, same[0], at="key")
        every[one.split.name] = rows
        if twice:
            first = {row: index for index, row in reversed([*enumerate(rows)])}
            copy = next(index for index, row in enumerate(rows) if first[row] < index)
            same_row = first[rows[copy]] + 1
            yield subject.say("duplicate-rows/stand-before", place, twice, len(rows), copy + 1, same_row, at="key")
        shared = [row for row in counts if row in seen]
        if shared and not _is_part(sources[one.split.name], sources[seen[shared[0]]], one.split.name):
            other = seen[shared[0]]
            yield subject.say("shared-rows/split-too", place, len(shared), len(counts), other, at="key")
        seen |= dict.fromkeys(counts, one.split.name)
        limit = subject.loaded.spec.tasks[one.split.name].limit
        if limit is not None and limit > len(rows) and len(rows) < 10_000:
            yield subject.say("idle-limit/rows", f"{place}.limit", limit, len(rows))
        by = subject.loaded.spec.tasks[one.split.name].report_by
        groups = {str(row.get(by)) for row in one.split.rows} if by is not None else set()
        if sources[one.split.name].function is not None:
            again, before = load_tasks(subject.loaded, one.split.name), one.split.rows[:20]
            if [again[index] for index in range(min(len(again), len(before)))] != list(before):
                yield subject.say("unsteady/rows-others", f"{place}.function")
        if by is not None and len(rows) > 1 and len(groups) in (1, len(rows)):
            what = "one value for all rows" if len(groups) == 1 else "another value for each row"
            yield subject.say("idle-groups/has-so", f"{place}.report_by", by, what)


def _columns(subject: Subject) -> Iterator[Finding]:
    """Numbers that are sorted as texts, texts that are cut, and columns that nothing reads and something speaks of."""
    spec = subject.loaded.spec
    texts = [text for _, text in strings_in(subject.document.data, ())] + [str([*spec.rewards.values()])]
    texts += [f"task.{one.report_by}" for one in spec.tasks.values()]
    whole = re.search(r"\*\*\s*(?:\w+\.)?task\b|\btask\.(?:items|values|copy)\(|\((?:\w+\.)?task\)", subject.code or "")
    for split in subject.splits.values():
        for column in sorted(split.columns):
            given = [row.get(column) for row in split.rows[:_LOOKED_AT]]
            values = {text for text in given if isinstance(text, str)}
            is_number = all(text.isdecimal() for text in values) and len({len(text) for text in values}) > 1
            if spec.tasks[split.name].order == f"task.{column}" and is_number:
                yield subject.say("odd-order/holds-texts", f"tasks.{split.name}.order", column)
            longest = [text for text in values if len(text) == max(map(len, values))]
            is_cut = 4 * len(longest) >= len(values) and all(re.search(r"\s.*[\w\s]$", text) for text in longest)
            if len(longest) > 2 and len(longest[0]) > 20 and is_cut:
                size, end = len(longest[0]), longest[0][-20:]
                yield subject.say(
                    "cut-text/texts-column", f"tasks.{split.name}", len(longest), column, size, end, at="key"
                )
            reads = re.compile(rf"task(?:\.|\W{{2,3}}){re.escape(column)}\b")
            named = whole or re.search(rf"[\"']{re.escape(column)}[\"']|\.{re.escape(column)}\b", subject.code or "")
            is_read = named or any(reads.search(text) or PATTERNS.whole.search(text) for text in texts)
            if not is_read and len(set(map(str, given))) > 1 and subject.code is not None:
                is_long = all(not isinstance(one, str) or re.search(r"[\n/]|.{60}", one) for one in given)
                yield from _unread(subject, split.name, column, values, is_long=is_long)


def _unread(subject: Subject, split: str, column: str, values: set[str], *, is_long: bool) -> Iterator[Finding]:
    """A column that nothing reads, where all episodes share what it names, or the prompt speaks of it."""
    spec, warn, fixed = subject.loaded.spec, subject.document.warning, fixed_text(subject)
    code, said, place = "unread-column", "", f"tasks.{split}"
    word = re.escape(column.removesuffix("s").replace("_", " "))
    for name, resource in spec.resources.items():
        path = str(getattr(resource, "path", None) or "")
        folder = (subject.loaded.base_of(f"resources.{name}.path") / path).parent
        is_fixed = path and "{" not in path and len(values) > 1 and folder.is_dir()
        if is_fixed and values <= {part for one in folder.iterdir() for part in (one.name, one.stem)}:
            place, said = f"resources.{name}.path", "all episodes open this, and it names others"
    is_kept = PATTERNS.kept.fullmatch(column)
    is_compared = any(not kind_of("rewards", one).form for one in spec.rewards.values())
    if said:
        code = "same-file"
    elif values and all(PATTERNS.picture.fullmatch(value) for value in values) and not spec.prompt.images:
        said = "it names pictures, and 'prompt.images' is missing"
    elif len(column) > 3 and not is_kept and (found := re.search(rf"(?i)\b{word}(?:s|es)?\b", fixed)):
        said = f"the prompt speaks of '{found[0]}'"
    elif PATTERNS.golden.fullmatch(column) and is_compared:
        said = "it looks like what is right"
    elif not is_kept and (spec.user is not None or is_long):
        part = "user" if spec.user is not None else "resources"
        said = f"'{part}' is the same for every row" if "task" not in str(subject.document.get(part) or "task") else ""
    if said:
        message = f"nothing reads the column '{column}': {said}"
        yield warn(place, message, f"write {{{{ task.{column} }}}} where it belongs", code, at="key")


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
                yield subject.say("conflicting-rows/row-asks", place, index + 1, first + 1, split, at="key")
                break
            shared.append((index, split, first))
        if shared:
            index, split, first = shared[0]
            which = f"row {index + 1}: row {first + 1} of '{split}'"
            message = f"{len(shared)} of its {len(texts)} rows ask what others ask ({which})"
            code = "duplicate-rows" if split == one.split.name else "shared-rows"
            yield subject.document.warning(place, message, "take them out", code, at="key")


_Odd = Iterator[tuple[str, str]]


def _forms(subject: Subject, term: Term, golds: Sequence[str]) -> _Odd:
    """A gold value of another form, unit or choice than the prompt asks for."""
    rule, fixed = getattr(term.spec, "rule", ""), fixed_text(subject)
    sentences = [one for one in re.split(r"(?<=[.!?;])\s+|\n", fixed) if not PATTERNS.partly.search(one)]
    is_text, is_folded = rule in ("exact_match", "f1", "contains"), getattr(term.spec, "normalise", "none") != "none"
    for sentence in sentences if is_text or rule == "numeric_match" else ():
        for wanted, fits in WORDS["forms"] if is_text else WORDS["forms"][-1:]:
            asked = None if is_folded and "case" in wanted else re.search(wanted, sentence, re.IGNORECASE)
            if asked and (lost := [gold for gold in golds if re.fullmatch(fits, gold) is None]):
                yield f"the prompt says '{asked[0]}', and a gold value is {lost[0][:40]!r}", "write both alike"
                return
        for found in PATTERNS.choices.finditer(sentence) if rule != "f1" else ():
            choices = [one.strip("\"'`‘’“” ") for one in re.split(r",|\bor\b|/", found[0]) if one.strip()]
            known = {one.lower() if is_folded else one for one in choices}
            meets = {gold.lower() for gold in golds} & {one.lower() for one in choices}
            is_meant = meets or PATTERNS.sure_choices.search(found[0])
            if is_meant and (lost := [one for one in golds if (one.lower() if is_folded else one) not in known]):
                near = did_you_mean(lost[0], choices, otherwise=f"the choices are: {', '.join(choices)}")
                yield f"the prompt asks for {found[0].strip()}, and a gold value is {lost[0][:40]!r}", near
                return
    for pattern, what in WORDS["marked"] if is_text else ():
        fitting = [gold for gold in golds if re.fullmatch(pattern, gold)]
        if 2 * len(fitting) > len(golds) and not {*re.findall(r"[\[({<\"*#\\]", fitting[0])} & {*fixed}:
            yield f"a gold value {what}, and is compared as it stands: {fitting[0][:40]!r}", "take it out"
            return
    mine = {one.rstrip("s") for name in re.findall(r"task\.(\w+)", str(gold_in(term.spec))) for one in name.split("_")}
    theirs = {one.rstrip("s") for one in re.findall(r"\b(?:in|of|many|to) ([a-z]+)\b", fixed.lower())}
    for family in WORDS["units"]:
        if mine & {*family} and theirs & {*family} and not mine & theirs & {*family}:
            asked_unit, unit = min(theirs & {*family}), min(mine & {*family})
            yield f"the prompt asks for {asked_unit}s, and the gold column is of {unit}s", "convert one of them"


def _given_away(one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """A gold value that stands in its own prompt under a name for it, or in a column of remarks."""
    golds = {gold for _, gold in pairs}
    sure = [(index, gold) for index, gold in pairs if len(gold) > 1 or len(golds) > 2]
    told = [
        any(
            PATTERNS.told.search(one.texts[index][max(0, at.start() - 24) : at.start()])
            for at in re.finditer(rf"(?<!\w){re.escape(gold)}(?!\w)", one.texts[index])
        )
        for index, gold in sure
    ]
    if len(sure) > 1 and len(golds) > 1 and all(told):
        yield f"the prompt of each of {len(told)} rows says it: {sure[0][1][:40]!r}", "take it out of the prompt"
    for column in filter(PATTERNS.remark.fullmatch, one.split.columns) if len(sure) > 1 and len(golds) > 1 else ():
        values = [(str(one.split.rows[index].get(column) or ""), one.texts[index], gold) for index, gold in sure]
        if all(len(gold) > 1 and gold.lower() in value.lower() and value in text for value, text, gold in values):
            yield f"task.{column}, which the prompt shows, holds it in each row", "take it out of the prompt"


def _against(one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """Golds that the arithmetic of their own prompt refutes, and golds that fit the prompt of the row beside them."""
    golds, values = dict(pairs), dict[int, float]()
    for index, gold in pairs:
        sums = PATTERNS.sum.findall(one.texts[index].replace(",", ""))
        with contextlib.suppress(CannotCalculate, ValueError, OverflowError):
            if len(sums) == 1 and number(gold) is not None:
                values[index] = float(calculate(sums[0]))
    read = {index: float(value) for index, gold in pairs if (value := number(gold)) is not None}
    fits = {
        (index, beside): abs(value - read[index + beside]) < 0.01 * max(1, abs(value))
        for index, value in values.items()
        for beside in (-1, 0, 1)
        if index + beside in read
    }
    wrong = [index for index in values if not fits[index, 0]]
    words = [(gold.lower(), index) for index, gold in pairs if len(gold) > 2]
    own = sum(gold in one.texts[index].lower() for gold, index in words)
    for beside in (1, -1):
        sums_there = [fits[index, beside] for index in values if (index, beside) in fits]
        there = sum(gold in one.texts[index - beside].lower() for gold, index in words if index - beside in golds)
        is_told = len({*golds.values()}) > 3 and there >= 0.7 * len(words) > 2 and own <= 0.2 * len(words)
        if is_told or (len(sums_there) > 2 and wrong and all(sums_there)):
            yield "each row has the gold value of the row beside it", "shift the column back"
            return
    if len(values) > 3 and 4 * len(wrong) <= len(values):
        for row in wrong[:1]:
            yield f"row {row + 1} asks for what is {values[row]:g}, and its gold value is {golds[row]}", "mend the row"


def _few(one: RenderedPrompts, pairs: Sequence[tuple[int, str]], seen: Mapping[str, set[str]]) -> _Odd:
    """Golds that a constant meets nearly always, and sets of labels that two splits do not share."""
    name, counts = one.split.name, Counter(gold for _, gold in pairs)
    (most, count), labels = counts.most_common(1)[0], set(counts)
    if len(pairs) > 9 and 0.9 * len(pairs) <= count < len(pairs):
        yield f"{count} of {len(pairs)} rows of split '{name}' have {most[:40]!r}: a constant earns it", "balance them"
    for other, theirs in seen.items():
        if other != name and len(labels | theirs) <= 12 and not labels & theirs and len(pairs) >= 3 * len(labels) > 3:
            message = f"none of split '{name}' ({', '.join(sorted(labels)[:3])}) is one of split '{other}'"
            yield message, f"there they are: {', '.join(sorted(theirs)[:4])}"
    for column in one.split.columns:
        lists = [(one.split.rows[index].get(column), gold) for index, gold in pairs]
        texts = [
            ([*map(str, value)] if isinstance(value, list) and len(value) > 1 else [], gold) for value, gold in lists
        ]
        places = {known.index(gold) if gold in known else -1 for known, gold in texts}
        if len(texts) > 3 and len(places) == 1 and -1 not in places:
            yield f"it is number {places.pop() + 1} of task.{column} in each row", "shuffle the choices"


def _outliers(subject: Subject, path: str, one: RenderedPrompts, golds: Sequence[str]) -> Iterator[Finding]:
    """Golds that are none, and golds and prompts with damaged characters."""
    name = one.split.name
    for what, odd in (
        ("is no gold value", [bool(PATTERNS.no_gold.fullmatch(gold)) for gold in golds]),
        ("holds damaged characters", [bool(PATTERNS.damaged.search(gold)) for gold in golds]),
    ):
        if any(odd) and (2 * sum(odd) <= len(golds) or what != "is no gold value"):
            index = odd.index(True)
            yield subject.say("odd-gold/value-row", path, index + 1, name, what, golds[index][:40])
            return
    broken = [
        (index, found[0])
        for index, text in enumerate(one.users[:_LOOKED_AT])
        if (found := PATTERNS.damaged.search(text))
    ]
    if broken and "&" not in subject.loaded.spec.prompt.user:
        yield subject.say("damaged-text/row-split", f"tasks.{name}", broken[0][0] + 1, name, broken[0][1], at="key")
