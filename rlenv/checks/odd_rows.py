"""Warnings of rows: what stands there twice or against itself, golds in another form than is asked for, and leaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_DAMAGED: Final = re.compile(
    r"[ÃÅÄ][\x80-\xbfŸœŽ¼€‚ƒ„…†‡ˆ‰Š‹Œ˜™š›ž]|â€|Â[\xa0-\xbf]|ï»¿|\ufffd|&(?:amp|lt|gt|quot|nbsp|#39);"
)
_LOOKED_AT: Final = 1_000
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
    yield from _columns(subject)
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
            first = {row: index for index, row in reversed([*enumerate(rows)])}
            copy = next(index for index, row in enumerate(rows) if first[row] < index)
            message = f"{twice} of {len(rows)} rows stand there before (row {copy + 1} is row {first[rows[copy]] + 1})"
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
        if sources[one.split.name].function is not None:
            again, before = load_tasks(subject.loaded, one.split.name), one.split.rows[:20]
            if [again[index] for index in range(min(len(again), len(before)))] != list(before):
                message = "its rows are others each time that they are made"
                hint = "draw from a seed: random.Random(1)"
                yield subject.document.warning(f"{place}.function", message, hint, "unsteady")
        if by is not None and len(rows) > 1 and len(groups) in (1, len(rows)):
            what = "one value for all rows" if len(groups) == 1 else "another value for each row"
            message = f"'{by}' has {what}, so that its groups say nothing"
            yield subject.document.warning(f"{place}.report_by", message, "name another column", "idle-groups")


def _columns(subject: Subject) -> Iterator[Finding]:
    """Numbers that are sorted as texts, and names of files that nothing reads, beside one file for all episodes."""
    texts = [text for _, text in strings_in(subject.document.data, ())]
    fixed = [(name, str(getattr(one, "path", None) or "")) for name, one in subject.loaded.spec.resources.items()]
    near = {name: (subject.loaded.base_of(f"resources.{name}.path") / path).parent
            for name, path in fixed if path and "{" not in path and subject.code is not None}  # fmt: skip
    for split in subject.splits.values():
        order = subject.loaded.spec.tasks[split.name].order
        for column in sorted(split.columns):
            values = {text for row in split.rows[:_LOOKED_AT] if isinstance(text := row.get(column), str)}
            is_number = all(text.isdecimal() for text in values) and len({len(text) for text in values}) > 1
            if order == f"task.{column}" and is_number:
                message = f"'{column}' holds texts, of which '10' stands before '9'"
                hint = f"write task.{column}|int"
                yield subject.document.warning(f"tasks.{split.name}.order", message, hint, "odd-order")
            reads = re.compile(rf"task(?:\.|\W{{2,3}}){re.escape(column)}\b|\btask\b(?!\.|\[)")
            named = re.search(rf"[\"']{re.escape(column)}[\"']|\.{re.escape(column)}\b", subject.code or "")
            is_read = named or any("{" in text and reads.search(text) for text in texts)
            for name, folder in near.items() if len(values) > 1 and not is_read else ():
                if folder.is_dir() and values <= {part for one in folder.iterdir() for part in (one.name, one.stem)}:
                    message = f"all episodes open this, and nothing reads the column '{column}', which names others"
                    hint = f"write {{{{ task.{column} }}}} where the name stands"
                    yield subject.document.warning(f"resources.{name}.path", message, hint, "same-file")


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
    """Golds that are none, and golds and prompts with damaged characters."""
    name = one.split.name
    for what, odd in (
        ("is no gold value", [bool(NO_GOLD.fullmatch(gold)) for gold in golds]),
        ("holds damaged characters", [bool(_DAMAGED.search(gold)) for gold in golds]),
    ):
        if any(odd) and (2 * sum(odd) <= len(golds) or what != "is no gold value"):
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
