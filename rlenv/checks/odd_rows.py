"""Warnings of rows: what stands there twice or against itself, what is cut, and columns that nothing reads."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rlenv._base.text import did_you_mean, strings_in
from rlenv.checks.sites import Stub
from rlenv.checks.subject import MAX_ROWS, PATTERNS, ReadSplit, Subject, all_golds, fixed_text, gold_term, prompt_texts
from rlenv.errors import Finding, RlenvError
from rlenv.language.kinds import gold_in, is_own, kind_of
from rlenv.language.spec import TaskSource
from rlenv.language.templates import Template, TemplateError, compile_template, compile_value
from rlenv.tasks.rows import load_tasks

_LOOKED_AT: Final = 1_000
_COLUMNS: Final = "SELECT m.name, p.name, p.pk = 1 FROM sqlite_master m, pragma_table_info(m.name) p"


@dataclass(frozen=True, slots=True)
class RenderedPrompts:
    """The prompts of a split, rendered; those of a row that resources fill have a stand-in there."""

    split: ReadSplit
    texts: Sequence[str]
    users: Sequence[str]


def check_rows(subject: Subject) -> Iterator[Finding]:
    """Warnings of `tasks`."""
    prompt = subject.loaded.spec.prompt
    templates = [compile_template(text) for text in (prompt.system, prompt.user) if text is not None]
    asked = asked_of(subject)
    yield from _check_same(subject, templates, asked)
    for check in (_check_repeats, _check_twice, _check_said_again):
        yield from check(subject, asked)
    for look in (_check_columns, _check_counts, _check_compared, _check_worlds, _check_databases):
        yield from look(subject)


def asked_of(subject: Subject) -> list[RenderedPrompts]:
    """The rendered prompts of each split."""
    templates = [compile_template(text) for _, text in prompt_texts(subject.loaded.spec.prompt)]
    return subject.once("asked", lambda: [_render_all(subject, templates, split) for split in subject.splits.values()])


def _render_all(subject: Subject, templates: Sequence[Template], split: ReadSplit) -> RenderedPrompts:
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


def _check_same(subject: Subject, templates: Sequence[Template], asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """All tasks of a split ask the same, though nothing but the prompt could tell them apart."""
    if any("resources" in template.names for template in templates) or _differs_elsewhere(subject):
        return
    for one in asked:
        if len(one.texts) > 1 and len(set(one.texts)) == 1:
            names = ", ".join(f"task.{column}" for column in sorted(one.split.columns)) or "none"
            reads = any(path[0] == "task" for template in templates for path in template.paths)
            what = "all rows have the same values in what it reads" if reads else "it names no column of the row"
            yield subject.say("same-prompt/of-split", "prompt.user", len(one.texts), one.split.name, what, names)
            return


def _differs_elsewhere(subject: Subject) -> bool:
    """True where a resource, a tool or the user may be another for each task."""
    if subject.loaded.spec.user is not None or subject.loaded.spec.prompt.images:
        return True
    texts = [text for key in ("resources", "tools") for _, text in strings_in(subject.document.get(key), ())]
    is_made = any(spec.kind == "python" for spec in subject.loaded.spec.resources.values())
    of_row = [tool for tool in subject.tools.values() if tool.depends_on != "arguments"]
    return is_made or any("task" in text for text in texts) or any(tool.kind in ("python", "mcp") for tool in of_row)


def _check_repeats(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Rows that stand in a split twice, or in two splits; those that are drawn may well meet."""
    seen, every = dict[str, str](), dict[str, list[str]]()
    sources = subject.loaded.spec.tasks
    for one in asked:
        rows = [repr(sorted(row.items(), key=lambda item: str(item[0]))) for row in one.split.rows]
        # Numbers that a file gives, each row once, are questions as texts are.
        is_made = sources[one.split.name].function is not None or bool(subject.loaded.spec.resources)
        is_once = len({*rows}) == len(rows) and min(map(len, one.split.rows)) > 1
        worded = not _is_drawn(subject, one.split) or (is_once and not is_made)
        counts, place = Counter(rows if worded else ()), f"tasks.{one.split.name}"
        twice = counts.total() - len(counts)
        if not worded and len(rows) > 49 and len(set(rows)) * 10 <= len(rows):
            yield subject.say("duplicate-rows/drawn", place, len(rows), len(set(rows)), at="key")
        if not worded and len(rows) > 2 and (same := [name for name, others in every.items() if others == rows]):
            yield subject.say("shared-rows/all", place, same[0], at="key")
        every[one.split.name] = rows
        if twice:
            first = {row: index for index, row in reversed([*enumerate(rows)])}
            copy = next(index for index, row in enumerate(rows) if first[row] < index)
            given = (twice, len(rows), copy + 1, first[rows[copy]] + 1)
            yield subject.say("duplicate-rows/copies", place, *given, at="key")
        shared = [row for row in counts if row in seen]
        other = seen[shared[0]] if shared else ""
        if other and not _is_part(sources[one.split.name], sources[other], one.split.name):
            yield subject.say("shared-rows/some", place, len(shared), len(counts), other, at="key")
        seen |= dict.fromkeys(counts, one.split.name)
        source = sources[one.split.name]
        limit, by = source.limit, source.report_by
        if limit is not None and limit > len(rows) and one.split.is_whole:
            yield subject.say("idle-limit/of-rows", f"{place}.limit", limit, len(rows))
        if limit is not None and limit < 5 and one.split.name.startswith("train"):
            yield subject.say("idle-limit/few", f"{place}.limit", limit)
        groups = {str(row.get(by)) for row in one.split.rows} if by is not None else set()
        if source.function is not None:
            again, before = load_tasks(subject.loaded, one.split.name), one.split.rows[:20]
            if [again[index] for index in range(min(len(again), len(before)))] != list(before):
                yield subject.say("unsteady/rows", f"{place}.function")
        if by is not None and len(rows) > 1 and len(groups) in (1, len(rows)):
            what = "one value for all rows" if len(groups) == 1 else "another value for each row"
            yield subject.say("idle-groups/of-report", f"{place}.report_by", by, what)


def _is_drawn(subject: Subject, split: ReadSplit) -> bool:
    """True for rows that a function makes, or of numbers alone: chance may give one twice."""
    made = subject.loaded.spec.tasks[split.name].function is not None
    return made or not any(isinstance(value, str) for row in split.rows for value in row.values())


def _check_columns(subject: Subject) -> Iterator[Finding]:
    """Numbers that are sorted as texts, texts that are cut, and columns that nothing reads and something speaks of."""
    for split in subject.splits.values():
        for column in sorted(split.columns):
            values = {text for row in split.rows[:_LOOKED_AT] if isinstance(text := row.get(column), str)}
            is_number = all(text.isdecimal() for text in values) and len({len(text) for text in values}) > 1
            if subject.loaded.spec.tasks[split.name].order == f"task.{column}" and is_number:
                yield subject.say("odd-order/texts", f"tasks.{split.name}.order", column)
            size = max(map(len, values), default=0)
            longest = [text for text in values if len(text) == size]
            # What is whole ends with a sign; texts of one length alone may be made by one pattern.
            whole = [bool(re.search(r"[.?!:;\"”)\]。？！]\s*$", text)) for text in values if len(text) < size]
            is_cut = all(re.search(r"\s.*[\w\s]$", text) for text in longest) and 2 * sum(whole) > len(whole)
            if is_cut and len(longest) > 2 and size > 20 and 4 * len(longest) >= len(values):
                given = (len(longest), column, size, longest[0][-20:])
                yield subject.say("cut-text/of-column", f"tasks.{split.name}", *given, at="key")
        yield from _check_unread(subject, split)


def _check_unread(subject: Subject, split: ReadSplit) -> Iterator[Finding]:
    """Columns that nothing reads, where all episodes share what they name, or the prompt speaks of them."""
    spec, fixed, code = subject.loaded.spec, fixed_text(subject), subject.code
    if code is None:
        return
    texts = [text for path, text in strings_in(subject.document.data, ()) if path[0] != "tasks" or "rows" not in path]
    said = "\n".join([*texts, str([*spec.rewards.values()]), f"task.{spec.tasks[split.name].report_by}"])
    is_whole = r"\*\*\s*(?:\w+\.)?task\b|\btask\.(?:items|values|copy)\(|\((?:\w+\.)?task\)"
    read = {column for column in split.columns
            if re.search(rf"task(?:\.|\W{{2,3}}){re.escape(column)}\b", said)
            or re.search(rf"[\"']{re.escape(column)}[\"']|\.{re.escape(column)}\b", code)}  # fmt: skip
    unread = () if PATTERNS.whole.search(said) or re.search(is_whole, code) else sorted({*split.columns} - read)
    is_compared = any(kind_of("rewards", one).gold or is_own(one) for one in spec.rewards.values())
    lacks_gold = is_compared and not any(map(PATTERNS.golden.fullmatch, read))
    lone = [PATTERNS.gold_path.fullmatch(str(gold_in(one))) for one in spec.rewards.values()]
    of_name = any(PATTERNS.row_id.fullmatch(one[1]) for one in lone if one) and not PATTERNS.of_ids.search(fixed)
    shown = any("{" in image for image in spec.prompt.images)
    if choices := _choice_column(subject, split, [column for column in unread if PATTERNS.option.fullmatch(column)]):
        yield subject.say("unread-column/choices", f"tasks.{split.name}", choices, at="key")
    for column in unread:
        given = [row.get(column) for row in split.rows[:_LOOKED_AT]]
        values = {text for text in given if isinstance(text, str)}
        word = re.escape(column.removesuffix("s").replace("_", " "))
        spoken = rf"(?i)\b(?:read|use|using|from|in|on|given|following|with|about) (?:the |this )?(?:given )?{word}s?\b"
        if len({*map(str, given)}) < 2:
            continue
        if names := _resource_beside(subject, values):
            yield subject.say("same-file/for-all", f"resources.{names}.path", column, at="key")
        elif values and all(PATTERNS.picture.fullmatch(value) for value in values) and not shown:
            yield subject.say("unread-column/pictures", f"tasks.{split.name}", column, at="key")
        elif len(column) > 3 and not PATTERNS.kept.fullmatch(column) and (match := re.search(spoken, fixed)):
            yield subject.say("unread-column/in-prompt", f"tasks.{split.name}", column, match[0], at="key")
        elif lacks_gold and (PATTERNS.golden.fullmatch(column) or of_name):
            yield subject.say("unread-column/gold", f"tasks.{split.name}", column, at="key")


def _choice_column(subject: Subject, split: ReadSplit, unread: Sequence[str]) -> str:
    """A column of choices that nothing shows, whose texts, letters or numbers the gold values are; "" for none."""
    term = gold_term(subject)
    golds = all_golds(subject, term, split)[:_LOOKED_AT] if term is not None else []
    of_letters = all(gold is not None and re.fullmatch(r"[A-Ea-e]|[0-4]", gold.strip()) for gold in golds)
    for column in unread:
        rows = split.rows[:_LOOKED_AT]
        told = [text in str({**row, column: ""}) for row in rows for _, text in strings_in(row.get(column), ())]
        lists = [row.get(column) for row in rows]
        pairs = [(value, gold) for value, gold in zip(lists, golds, strict=False) if isinstance(value, (list, Mapping))]
        is_of = len(pairs) > 1 and all(gold in [*map(str, value)] for value, gold in pairs)
        is_letter = golds and of_letters and (len(pairs) > 1 or len(unread) > 2)
        if (is_of or is_letter) and not (told and all(told)):  # a question may hold its options
            return column
    return ""


def _resource_beside(subject: Subject, values: set[str]) -> str:
    """The resource with a fixed path beside which all of several values name files or folders; "" for none."""
    for name, resource in subject.loaded.spec.resources.items():
        path = str(getattr(resource, "path", None) or "")
        folder = (subject.loaded.base_of(f"resources.{name}.path") / path).parent
        if path and "{" not in path and len(values) > 1 and folder.is_dir():
            files = [*itertools.islice(folder.iterdir(), _LOOKED_AT)]
            if values <= {part for file in files for part in (file.name, file.stem)}:
                return name
    return ""


def _is_part(source: TaskSource, other: TaskSource, name: str) -> bool:
    """True for a split to try things on, and for another one's file under a name that promises nothing unseen."""
    same = source.path is not None and source.path == other.path
    is_unseen = re.search(r"(?i)test|val|dev|eval|held|unseen|final|bench", name)
    is_tried = re.search(r"(?i)sanity|smoke|demo|debug|tiny|overfit|(?<!un)seen$", name)
    return (same and not is_unseen) or is_tried is not None


def _check_said_again(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """What the user says first, said once more: by the prompt's own messages, or by the simulated user."""
    spec, row = subject.loaded.spec, asked[0].split.rows[0] if asked else {}
    first = asked[0].users[0].strip() if asked and asked[0].users and spec.prompt.asks else ""
    places = {"prompt.messages": spec.prompt.messages, "user.replies": getattr(spec.user, "replies", ())}
    for place, source in places.items() if len(first) > 12 else ():
        with contextlib.suppress(TemplateError, RlenvError, TypeError):
            said = strings_in(compile_value(source)(task=row, vars=spec.vars), ())
            if any(text.strip() == first for _, text in said):
                yield subject.say("duplicate-rows/message", place, first[:40], at="key")


def _check_twice(subject: Subject, asked: Sequence[RenderedPrompts]) -> Iterator[Finding]:
    """Tasks that ask what another one asks, with another gold or in another split, if nothing else tells them apart."""
    seen: dict[str, tuple[str, int, str | None, Any]] = {}
    folded: dict[tuple[str, str], tuple[str, int]] = {}
    sources, term = f"{subject.loaded.spec.prompt.system} {subject.loaded.spec.prompt.user}", gold_term(subject)
    for one in () if _differs_elsewhere(subject) or "resources" in sources else asked:
        shared, place = [], f"tasks.{one.split.name}"
        # A sign, or the case of a letter, may be all that tells two questions apart.
        texts = [" ".join(text.split()).rstrip(" ?.？。") for text in one.texts]
        golds = all_golds(subject, term, one.split) if term is not None else [None] * len(texts)
        keys = [_fold_prompt(*told) for told in zip(texts, golds, one.split.rows, strict=False)]
        for index, text in enumerate(texts if len({*texts}) > 1 or len(texts) == 1 else ()):
            row, gold = one.split.rows[index], golds[index]
            split, first, other, same = seen.setdefault(text, (one.split.name, index, gold, row))
            if same == row and (one.split.name, index) == (split, first) and keys[index] in folded:
                split, first = folded[keys[index]]
            elif same == row:  # itself, or one that stands there twice
                continue
            elif gold != other:
                yield subject.say("conflicting-rows/golds", place, index + 1, first + 1, split, at="key")
                break
            shared.append((index, split, first))
        folded |= {key: (one.split.name, index) for index, key in enumerate(keys)}
        if shared and not _is_drawn(subject, one.split):
            index, split, first = shared[0]
            key = "duplicate-rows/prompts" if split == one.split.name else "shared-rows/prompts"
            yield subject.say(key, place, len(shared), len(texts), index + 1, first + 1, split, at="key")


def _fold_prompt(text: str, gold: str | None, row: Mapping[str, Any]) -> tuple[str, str]:
    """A prompt without case, white space and the signs of sentences, and its gold value; else what the row holds."""
    rest = row.items() if gold is None else ()
    plain = [_fold_text(value) for key, value in rest if not PATTERNS.name_of_row.fullmatch(str(key))]
    return _fold_text(text), str(plain) if gold is None else gold.strip()


def _fold_text(value: Any) -> str:
    # What mixes letters with digits, such as a formula, may mean another thing by its case.
    text = re.sub(r"\b[^\W\d]+\b", lambda found: found[0].lower(), PATTERNS.signs.sub("", str(value)))
    return " ".join(text.split())


def _check_counts(subject: Subject) -> Iterator[Finding]:
    """Numbers that are the length of a list in most rows, and not in some."""
    prompt = " ".join(text for _, text in prompt_texts(subject.loaded.spec.prompt))
    golds = " ".join(str(gold_in(one)) for one in subject.loaded.spec.rewards.values())
    for split in subject.splits.values() if "task" in prompt else ():
        rows = split.rows[:_LOOKED_AT]
        lists = [key for key in split.columns if all(isinstance(row.get(key), list) for row in rows)]
        sizes = [key for key in split.columns if all(type(row.get(key)) is int for row in rows)]
        for size, held in itertools.product(sizes, lists):
            pairs = [(row[size], len(row[held])) for row in rows]
            odd = [index for index, (count, length) in enumerate(pairs) if count != length]
            usual = {length for count, length in pairs if count == length}
            is_near = PATTERNS.count.fullmatch(size) or (size, held) in PATTERNS.count_of.findall(prompt)
            is_most = len(odd) <= len(rows) // (2 if is_near else 5) and len(usual) > (1 if is_near else 2)
            if odd and is_most and len(rows) > 3 and f"task.{size}" not in golds:
                given = (odd[0] + 1, split.name, size, pairs[odd[0]][0], held, pairs[odd[0]][1])
                yield subject.say("odd-column/count", f"tasks.{split.name}", *given, at="key")


def _check_compared(subject: Subject) -> Iterator[Finding]:
    """Texts that a condition compares a column with, and that no row holds there, or none but in another case."""
    found = [(path, one[0]) for path, text in strings_in(subject.document.data, ())
             if path[0] != "tasks" or "rows" not in path for one in PATTERNS.compared.finditer(text)]  # fmt: skip
    rows = [row for name in subject.splits for row in _unfiltered(subject, name)] if found and subject.is_whole else []
    roles = getattr(subject.loaded.spec.user, "roles", None)
    rows = [{**row, "player": name} for row in rows for name in roles] if roles else rows
    for path, condition in found:
        column = re.findall(r"\btask\.(\w+)", condition)[0]
        values = {value for row in rows if isinstance(value := row.get(column), str)}
        for literal in re.findall(r"[\"']([^\"']*\w[^\"']*)[\"']", condition) if values else ():
            near = [value for value in values if _fold_text(value.lower()) == _fold_text(literal.lower())]
            is_idle = path[-1] in ("when", "gate") and "!=" in condition and not PATTERNS.no_gold.fullmatch(literal)
            # Other data may have another value; roles are the spec's own, and what begins alike is meant for one.
            is_short = any(len(value) > 1 and literal.lower().startswith(value.lower()) for value in values)
            is_idle |= "==" in condition and path[0] == "prompt" and (is_short or (bool(roles) and column == "player"))
            if literal not in values and (near or is_idle):
                known = f"task.{column} is {', '.join(sorted(values)[:5])}"[:100]
                hint = f"write '{near[0]}'" if near else did_you_mean(literal, values, otherwise=known)
                yield subject.say("no-such-value/compared", path, column, literal, hint)
                break


def _unfiltered(subject: Subject, name: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a split, and those that its condition and its limit leave out."""
    spec = subject.loaded.spec
    every = spec.tasks[name].model_copy(update={"when": None, "order": None, "limit": MAX_ROWS})
    whole = replace(subject.loaded, spec=spec.model_copy(update={"tasks": {name: every}}))
    with contextlib.suppress(RlenvError):
        return [*load_tasks(whole, name)]
    return ()


def _check_worlds(subject: Subject) -> Iterator[Finding]:
    """Columns of a world that the prompt shows, where each episode opens the same world whatever the row says."""
    rest = str([subject.document.get(part) for part in ("tools", "rewards", "user")])
    columns = {*re.findall(r"\btask\.(\w+)", str(prompt_texts(subject.loaded.spec.prompt)))}
    shown = [one for one in sorted(columns) if PATTERNS.of_world.fullmatch(one) and f"task.{one}" not in rest]
    shown = [one for one in shown if len({str(row.get(one)) for _, row in subject.each(_LOOKED_AT)}) > 1]
    for name, one in subject.loaded.spec.resources.items() if shown and subject.code is not None else ():
        is_of_row = "task" in f"{subject.document.get(f'resources.{name}')} {subject.code}"
        if one.kind in ("gymnasium", "openenv") and not is_of_row:
            yield subject.say("same-world/for-all", f"resources.{name}", shown[0], at="key")


def odd_documents(subject: Subject, path: str, fields: Any, read: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Titles and texts of a corpus that have changed places. Its ids and titles are kept for `odd_ids`."""
    key, title, text = (getattr(fields, name, name) for name in ("id", "title", "text"))
    shown = " ".join(str(one.get(name)) for one in read for name in (title, text))
    subject.once("words", set[str]).update(re.findall(r"[^\W\d_]{3,}", shown.lower()))
    subject.once("corpora", list[set[str]]).append({str(one.get(name)) for one in read for name in (key, title)})
    sizes = [(len(str(one.get(title) or "")), len(str(one.get(text) or ""))) for one in read]
    is_named = PATTERNS.body.fullmatch(title) or PATTERNS.heading.fullmatch(text)
    most, times = (30, 2) if is_named else (100, 4)  # a question may well be longer than what answers it
    crossed = [long for long, short in sizes if long > max(most, times * short)]
    if len(crossed) > 1 and len(crossed) >= 0.8 * len(sizes):
        yield subject.say("odd-column/crosswise", f"{path}.path", title, text)


def odd_ids(subject: Subject) -> Iterator[Finding]:
    """Values of a column that names documents, or rows of a table, of which some are none."""
    corpora = subject.once("corpora", list[set[str]])
    groups = [("", set[str]().union(*corpora))] if corpora and all(corpora) else []
    groups += subject.once("keys", list[tuple[str, set[str]]])
    for (table, keys), split in itertools.product(groups, subject.splits.values()):
        rows = [(index, row) for index, row in enumerate(split.rows) if not PATTERNS.refused.search(repr(row))]
        for column in sorted(split.columns):
            named = [(index, text) for index, row in rows for text in _names_of_tables(row.get(column))]
            lost, held = [pair for pair in named if pair[1] not in keys], keys.intersection(text for _, text in named)
            # What looks like a code names nothing else; of other words the column says it.
            is_code = all(map(PATTERNS.code_of_row.fullmatch, [*held, *(text for _, text in lost)]))
            is_of_table = table and column.lower() in (f"{table}_id", f"{table.removesuffix('s')}_id")
            is_meant = is_code or is_of_table or (not table and PATTERNS.of_id.fullmatch(column))
            if is_meant and lost and len(held) > 1 and 4 * len(lost) <= len(named):
                (index, text), place = lost[0], f"tasks.{split.name}"
                hint = did_you_mean(text, keys, otherwise="mend the row")
                yield subject.say("odd-column/no-key", place, index + 1, split.name, column, text[:40], hint, at="key")


def _names_of_tables(value: Any) -> list[str]:
    texts = [str(one) for one in (value if isinstance(value, list) else [value])]
    return [text for text in texts if text.strip() and not PATTERNS.no_gold.fullmatch(text)]


def _check_databases(subject: Subject) -> Iterator[Finding]:
    """Tables and columns that the prompt names and that are none of the database's."""
    tables, fixed = _columns_by_table(subject), fixed_text(subject)
    for found in PATTERNS.table.finditer(fixed) if tables else ():
        table, listed = filter(None, found.groups())
        names = [name.lower() for name in PATTERNS.of_list.findall(listed)]
        owner = max(tables, key=lambda one: (one == table.lower(), len({*names} & tables[one])))
        lost, is_known = [name for name in names if name not in tables[owner]], owner == table.lower()
        if is_known and 0 < len(lost) < len(names):
            known = ", ".join(sorted(tables[owner]))
            yield subject.say("odd-column/of-table", "prompt", lost[0], table, known, at="key")
        before, held = re.split(r"[.\n]", fixed[: found.start()])[-1], len(names) - len(lost)
        is_named = re.search(r"(?i)\btables?\b.{0,12}$", before) and not PATTERNS.of_result.search(before)
        is_table = held > (0 if is_named else 2)
        if not is_known and found["line"] is None and is_table and not PATTERNS.sql_function.fullmatch(table):
            yield subject.say("odd-column/no-table", "prompt", table, ", ".join(tables), at="key")


def _columns_by_table(subject: Subject) -> dict[str, set[str]]:
    """The columns of each table of all SQLite files. Keys are kept for `odd_ids`."""
    tables, keys = dict[str, set[str]](), subject.once("keys", list[tuple[str, set[str]]])
    sources = [name for name, one in subject.loaded.spec.resources.items() if one.kind == "sqlite"]
    for key in [f"resources.{name}.{one}" for name in sources for one in ("path", "init")]:
        file = (subject.loaded.base_of(key) / str(subject.document.get(key))).absolute()
        is_made = key.endswith("init") and file.is_file() and file.stat().st_size < 1_000_000
        uri = "file::memory:" if is_made else f"{file.as_uri()}?mode=ro&immutable=1"
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            made = file.read_text(encoding="utf-8", errors="replace") if is_made else ""
            database.executescript("" if re.search(r"(?i)\b(?:attach|vacuum)\b", made) else made)
            for table, column, is_key in database.execute(_COLUMNS).fetchall():
                tables.setdefault(table.lower(), set()).add(column.lower())
                held = database.execute(f'SELECT "{column}" FROM "{table}" LIMIT {MAX_ROWS + 1}') if is_key else ()
                values = {str(value) for (value,) in held}
                keys += [(table.lower(), values)] if 0 < len(values) <= MAX_ROWS else []
    return tables
