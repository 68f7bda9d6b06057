"""Warnings of golds: another form than is asked for, none at all, of the row beside them, and shown or always alike."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from rlenv._base.text import did_you_mean, nearest
from rlenv.checks.odd_rows import RenderedPrompts, asked_of
from rlenv.checks.odd_terms import check_asked_numbers, check_asked_shapes
from rlenv.checks.subject import PATTERNS, WORDS, Subject, all_golds, demands, fixed_text, gives_away, has_gold
from rlenv.errors import Finding, RlenvError
from rlenv.language.kinds import gold_in
from rlenv.language.templates import TemplateError, compile_value
from rlenv.rewards.base import Term
from rlenv.rewards.normalise import number
from rlenv.tools._arithmetic import CannotCalculate, calculate

NUMBERS: Final = "zero one two three four five six seven eight nine ten eleven twelve".split()
_MOST: Final = 1_000
"""So many rows, and so many characters of a text, are looked at."""
_Odd = Iterator[tuple[str, str]]
_Pairs = Sequence[tuple[int, str]]
_Given = Iterator[tuple[Any, ...]]  # keys of odd.toml, each with what it is given


def check_golds(subject: Subject) -> Iterator[Finding]:
    """Warnings of golds beside prompts."""
    if (asked := asked_of(subject)) and asked[0].texts:
        yield from _check_keys(subject, f"{fixed_text(subject)} {asked[0].texts[0]}")
    for term in subject.terms:
        path = at if (at := subject.gold_at(term)).count(".") > 1 else f"rewards.{term.name}"
        seen: dict[str, set[str]] = {}
        for one in asked if has_gold(subject, term) and term.spec.usual_weight > 0 else ():
            told = enumerate(all_golds(subject, term, one.split)[:_MOST])
            pairs = [(index, gold.strip()) for index, gold in told if gold is not None and gold.strip()]
            seen[one.split.name] = {gold for _, gold in pairs}
            if one.texts:
                yield from _outliers(subject, path, one, pairs)
            given = [gold for _, gold in pairs]
            for code, odd in (
                ("odd-gold", _check_forms(subject, term, one, pairs)),
                ("odd-gold", check_asked_numbers(subject, term, given)),
                ("odd-gold", _check_labels(term, one, pairs)),
                ("odd-gold", _check_letters(term, one, pairs)),
                ("gold-in-prompt", _check_given_away(one, pairs)),
                ("wrong-gold", _check_arithmetic(one, pairs)),
                ("constant-gold", _check_constants(one, pairs, seen)),
            ):
                for message, hint in odd if pairs and one.texts else ():
                    yield subject.document.warning(path, message, hint, code, at="value" if path == at else "key")


def _check_forms(subject: Subject, term: Term, one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """A gold value of another form, unit or choice than the prompt asks for."""
    rule, fixed = getattr(term.spec, "rule", ""), fixed_text(subject)
    golds = [gold for _, gold in pairs if len(gold) <= _MOST]
    sentences = [sentence for sentence in demands(subject) if PATTERNS.asks.search(sentence)]
    yield from check_asked_shapes(subject, rule, golds)
    is_text, is_folded = rule in ("exact_match", "f1", "contains"), getattr(term.spec, "normalise", "none") != "none"
    for sentence in sentences if is_text or rule == "numeric_match" else ():
        for wanted, fits in WORDS["forms"] if is_text else WORDS["forms"][-1:]:
            asked = None if is_folded and "case" in wanted else re.search(wanted, sentence, re.IGNORECASE)
            if asked and (lost := [gold for gold in golds if re.fullmatch(fits, gold) is None]):
                yield f"the prompt says '{asked[0]}', and a gold value is {lost[0][:40]!r}", "write both alike"
                return
    yield from _check_choices(subject, term, one, pairs)
    for pattern, what in WORDS["marked"] if is_text else ():
        fitting = [gold for gold in golds if re.fullmatch(pattern, gold)]
        if 2 * len(fitting) > len(golds) and not {*re.findall(r"[\[({<\"*#\\]", fitting[0])} & {*one.texts[0]}:
            yield f"a gold value {what}, and is compared as it stands: {fitting[0][:40]!r}", "take it out"
            return
    columns = re.findall(r"task\.(\w+)", str(gold_in(term.spec)))
    # A letter is a unit behind a name alone, as in `length_m`.
    parts = [re.sub(r"^min(?:_|$)|^[a-z]$", "", column).split("_") for column in columns]
    mine = _singular(itertools.chain.from_iterable(parts))
    counted = [_singular(PATTERNS.how_many.findall(text.lower())) for text in one.users]
    mine |= set[str]().union(*counted[:1]).intersection(*counted)
    theirs = _singular(re.findall(r"\b(?:in|of|many|to|degrees)(?= ([a-z]+)\b)", fixed.lower()))
    for family in WORDS["units"]:
        kinds = [{*names.split()} for names in family]
        here, there = ([one for one in kinds if one & words] for words in (mine, theirs))
        if here and there and not any(one in there for one in here):
            asked_unit, unit = (sorted(kinds[0], key=len)[-1] for kinds in (there, here))
            yield f"the prompt asks for {asked_unit}s, and each row is of {unit}s", "convert one of them"


def _singular(words: Iterable[str]) -> set[str]:
    return {re.sub(r"(?<=..)s$", "", word) for word in words}


def _check_choices(subject: Subject, term: Term, one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """A gold value that is none of the choices which the prompt asks for, or lists as most others are."""
    rule, is_folded = getattr(term.spec, "rule", ""), getattr(term.spec, "normalise", "none") != "none"
    golds = [(gold, gold.lower() if is_folded else gold, one.users[index]) for index, gold in pairs]
    for words, choices in _choices_in(subject) if rule in ("exact_match", "contains", "numeric_match") else ():
        known = {text.lower() if is_folded else text for text in choices}
        meets = {gold.lower() for gold, _, _ in golds} & {text.lower() for text in choices}
        others = [(gold, f"{fixed_text(subject)} {user}") for gold, text, user in golds if text not in known]
        held = {text for _, text, _ in golds} & known
        lost = [gold for gold, text in others if words or (len(held) > 1 and not _is_told(gold, known, text))]
        is_most = len({*lost}) <= len(held) > 1 and 2 * len(lost) <= len(golds)
        is_most &= not any(gold[:1].isdigit() for gold in lost)  # numbers of a text are no choices
        if lost and (is_most if not words else meets or PATTERNS.sure_choices.search(words)):
            shown = ", ".join(choices if words else sorted(held))
            near = did_you_mean(lost[0], choices, otherwise=f"the choices are: {shown}"[:100])
            asked = words.strip() or f"one of {', '.join(sorted(held)[:3])} and others"
            yield f"the prompt asks for {asked}, and a gold value is {lost[0][:40]!r}", near
            return


def _is_told(gold: str, known: set[str], text: str) -> bool:
    """True for several choices at once, and for what stands elsewhere in the prompt or in the row's own text."""
    is_several = {*re.split(r"\s*[,;/|]\s*|\s+and\s+", gold)} <= known
    return is_several or re.search(rf"(?i)(?<!\w){re.escape(gold)}(?!\w)", text) is not None


def _choices_in(subject: Subject) -> Iterator[tuple[str, list[str]]]:
    """The choices that a sentence asks for, with its words; and lists, at whose ends any few words may be a choice."""
    for found in [found for one in demands(subject) if PATTERNS.asks.search(one) and not PATTERNS.several.search(one)
                  for found in PATTERNS.choices.finditer(one)]:  # fmt: skip
        yield found[0], [text.strip("\"'`‘’“” ") for text in re.split(r",|\bor\b|/", found[0]) if text.strip()]
    for block in PATTERNS.block.findall(PATTERNS.such_as.sub("", fixed_text(subject))):
        yield "", [item for line in block.splitlines() for item in PATTERNS.line.findall(line)]
    for part in [part for one in demands(subject) for part in re.split(r"[:;()–—]|\.(?=\s|$)", one)]:
        sign = next((sign for sign in ",|/" if sign in part), ",")
        listed = re.sub(r"(,\s*(?:\S+\s+){1,3}?)(?:and|or)\s(?=[^,]*$)", r"\1,", part) if sign == "," else part
        items = [PATTERNS.quotes.sub(" ", item).split() for item in listed.split(sign)]
        if len(items) > 2 and all(0 < len(item) < 5 for item in items[1:-1]) and not PATTERNS.open_list.search(part):
            ends = [(words, at) for words in (items[0][-3:], items[-1][:5]) for at in range(len(words))]
            few = [" ".join(words[at : at + size]) for words, at in ends for size in (1, 2, 3)]
            yield "", [*map(" ".join, items[1:-1]), *few]


def _check_letters(term: Term, one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """Letters and numbers of options of which the row, or its prompt, has fewer."""
    golds, is_folded = {gold for _, gold in pairs}, getattr(term.spec, "normalise", "none") != "none"
    is_chosen = PATTERNS.of_option.search(one.texts[0]) is not None
    is_letter, lost = all(re.fullmatch(r"[A-Za-z]", gold) for gold in golds), list[tuple[int, str, str]]()
    if not is_letter and not all(re.fullmatch(r"\d{1,2}", gold) for gold in golds):
        return
    for index, gold in pairs:
        shown = {text.upper() if is_folded else text for text in PATTERNS.options.findall(one.texts[index])}
        if is_letter and len(shown) > 2 and (gold.upper() if is_folded else gold) not in shown:
            lost.append((index, gold, f"it shows {sorted(shown)}"))
        steps = PATTERNS.numbered.findall(one.texts[index]) if gold == "0" and is_chosen else []
        if "1" in steps and gold not in steps:
            lost.append((index, gold, f"it shows {steps}"))
        place = ord(gold.lower()) - 97 if is_letter else int(gold) - ("0" not in golds)
        for column in filter(PATTERNS.option.fullmatch, one.split.columns):
            held = one.split.rows[index].get(column)
            if isinstance(held, (list, Mapping)) and 1 < len(held) <= place and gold not in map(str, held):
                lost.append((index, gold, f"task.{column} has {len(held)}"))
    few = 2 * len({index for index, _, _ in lost}) <= len(pairs)
    if lost and (few or lost[0][2].startswith("it shows")):  # what is shown is surely meant
        yield f"the gold value of row {lost[0][0] + 1} is {lost[0][1]!r}, and {lost[0][2]}", "mend the row"


def _check_given_away(one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """A gold value that stands in its own prompt under a name for it, or in a column of remarks."""
    golds = {gold for _, gold in pairs}
    sure = [(index, gold) for index, gold in pairs if len(gold) > 1 or len(golds) > 2]
    told = [any(PATTERNS.told.search(one.users[index][max(0, at.start() - 24) : at.start()])
                for at in re.finditer(rf"(?<!\w){re.escape(gold)}(?!\w)", one.users[index]))
            for index, gold in sure]  # fmt: skip
    if len(sure) > 1 and len(golds) > 1 and all(told):
        yield f"the prompt of each of {len(told)} rows says it: {sure[0][1][:40]!r}", "take it out of the prompt"
    for column in filter(PATTERNS.remark.fullmatch, one.split.columns) if len(sure) > 1 and len(golds) > 1 else ():
        values = [(str(one.split.rows[index].get(column) or ""), one.texts[index], gold) for index, gold in sure]
        if all(gives_away(gold, value) and value in text for value, text, gold in values):
            yield f"task.{column}, which the prompt shows, holds it in each row", "take it out of the prompt"


def _check_arithmetic(one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """Golds that the arithmetic of their own prompt refutes, and golds that fit the prompt of the row beside them."""
    golds, values = dict(pairs), dict[int, float]()
    for index, gold in pairs:
        text = one.texts[index].replace(",", "")
        sums: list[str] = PATTERNS.sum.findall(text) if len(text) <= _MOST else []
        with contextlib.suppress(CannotCalculate, ValueError, OverflowError):
            if len(sums) == 1 and number(gold) is not None:
                values[index] = float(calculate(sums[0]))
    read = {index: float(value) for index, gold in pairs if (value := number(gold)) is not None}
    fits = {(index, beside): abs(value - read[index + beside]) < 0.01 * max(1, abs(value))
            for index, value in values.items() for beside in (-1, 0, 1) if index + beside in read}  # fmt: skip
    # What else stands around a sum may ask for more than its value, but not in every row that reads so.
    frames = {index: PATTERNS.sum.sub("", one.texts[index].replace(",", "")) for index in values}
    usual = {frames[index] for index in values if fits[index, 0]}
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
        for row in [index for index in wrong if frames[index] in usual][:1]:
            yield f"row {row + 1} asks for what is {values[row]:g}, and its gold value is {golds[row]}", "mend the row"


def _check_constants(one: RenderedPrompts, pairs: Sequence[tuple[int, str]], seen: Mapping[str, set[str]]) -> _Odd:
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
        lists = [(one.split.rows[index].get(column), gold, one.texts[index]) for index, gold in pairs]
        texts = [([*map(str, value)] if isinstance(value, list) and len(value) > 1 else [], gold, text)
                 for value, gold, text in lists]  # fmt: skip
        # Other spellings of what is right are no choices: these are shown.
        places = {known.index(gold) if gold in known and all(choice in text for choice in known) else -1
                  for known, gold, text in texts}  # fmt: skip
        if len(texts) > 3 and len(places) == 1 and -1 not in places:
            yield f"it is number {places.pop() + 1} of task.{column} in each row", "shuffle the choices"


def _check_labels(term: Term, one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> _Odd:
    """Golds of a few classes that are written in two ways."""
    counts, folded = Counter(gold for _, gold in pairs), dict[str, str]()
    if getattr(term.spec, "rule", "") != "exact_match" or getattr(term.spec, "normalise", "") != "none":
        return
    for label in counts if 3 * len(counts) <= 2 * len(pairs) else ():
        if (other := folded.setdefault(label.lower(), label)) != label:
            yield f"a gold value is written as {label[:30]!r} and as {other[:30]!r}", "write it in one way"
            return
        near = nearest(label, [known for known in counts if counts[known] > 2 and counts[label] == 1])
        if near is not None and sorted(near) == sorted(label):
            yield f"a single row has {label[:30]!r}, and {counts[near]} have {near[:30]!r}", "mend the row"


def _outliers(subject: Subject, path: str, one: RenderedPrompts, pairs: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """Golds that are none, and golds and prompts with damaged characters."""
    name = one.split.name
    about_code = subject.once(("code", name), lambda: any(map(PATTERNS.of_code.search, one.texts[:_MOST])))
    # A prompt that names it, or asks what code gives, may mean it.
    none = [(index, gold) for index, gold in pairs if PATTERNS.no_gold.fullmatch(gold) and not about_code]
    none = [(index, gold) for index, gold in none if not re.search(rf"(?i)\b{re.escape(gold)}", one.texts[index])]
    damaged = [(index, gold) for index, gold in pairs if PATTERNS.damaged.search(gold) and not about_code]
    damaged += [(index, gold) for index, gold in pairs if PATTERNS.invisible.search(gold)]
    for index, gold in (none[:1] if 2 * len(none) <= len(pairs) else []) or damaged[:1]:
        what = "holds damaged or unseen characters" if damaged and (index, gold) == damaged[0] else "is no gold value"
        yield subject.say("odd-gold/of-row", path, index + 1, name, what, gold[:40])
        return
    holes = [(index, match[0]) for index, text in enumerate(one.users[:_MOST])
             if not {*"\\$"} & {*text} and (match := PATTERNS.hole.search(text))]  # fmt: skip
    holes = [hole for hole in holes if hole[1] not in dict(pairs).get(hole[0], "")]  # texts to be translated keep it
    if len(holes) > 1 and not about_code:
        yield subject.say("unfinished/of-rows", f"tasks.{name}", holes[0][0] + 1, name, holes[0][1], at="key")
    broken = [(index, match[0]) for index, text in enumerate(one.users[:_MOST])
              if (match := PATTERNS.damaged.search(text))]  # fmt: skip
    if broken and "&" not in subject.loaded.spec.prompt.user and not about_code:
        yield subject.say("damaged-text/of-row", f"tasks.{name}", broken[0][0] + 1, name, broken[0][1], at="key")


def _check_keys(subject: Subject, said: str) -> Iterator[Finding]:
    """Keys of the JSON that is compared, of which the prompt names some and not others."""
    row = next((row for split in subject.splits.values() for row in split.rows), {})
    for name, reward in subject.loaded.spec.rewards.items():
        schema = getattr(reward, "schema_", None) or {}
        keys = list(schema.get("required", ())) if reward.kind == "rule" else []
        if getattr(reward, "rule", "") == "json_match":
            try:
                value = compile_value(gold_in(reward))(task=row, vars=subject.loaded.spec.vars)
            except (TemplateError, TypeError, RlenvError):
                continue
            keys = list(value) if isinstance(value, Mapping) else []
        named = [key for key in keys if re.search(rf"(?<!\w){re.escape(str(key))}(?!\w)", said)]
        if len(named) < len(keys) and (named or re.search(r"(?i)\bkeys?\b", said)):
            lost = next(key for key in keys if key not in named)
            told = f"the keys {', '.join(named)}" if named else "keys"
            yield subject.say("answer-form/key", "prompt", told, lost, name, at="key")
            return


def check_relations(subject: Subject) -> Iterator[Finding]:
    """Warnings of golds, columns, terms and descriptions beside what the prompt and other columns say of them."""
    for term, one in [(term, one) for term in subject.terms for one in asked_of(subject)]:
        path = at if (at := subject.gold_at(term)).count(".") > 1 else f"rewards.{term.name}"
        is_meant = term.spec.usual_weight > 0 and has_gold(subject, term) and one.texts
        told = enumerate(all_golds(subject, term, one.split)[:_MOST] if is_meant else ())
        pairs = [(row, gold.strip()) for row, gold in told if gold and gold.strip()]
        for look in _BESIDE if len(pairs) > 1 else ():
            for key, *given in look(subject, term, one, pairs):
                yield subject.say(key, path, *given, at="value" if path == at else "key")
    for split in subject.splits.values():
        for column in sorted(split.columns):
            for key, *given in _check_values(column, [str(row.get(column)) for row in split.rows[:_MOST]]):
                yield subject.say(key, f"tasks.{split.name}", *given, at="key")


def _check_cut_off(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """A text that the prompt cuts before the gold value, which stands in it."""
    for column in [found[0] for found in PATTERNS.sliced.findall(str(subject.document.get("prompt")))]:
        held = [row for row, gold in pairs if len(gold) > 1 and gold in str(one.split.rows[row].get(column))]
        lost = [row for row in held if dict(pairs)[row] not in one.texts[row]]
        if len(lost) > 1 and 3 * len(lost) >= len(pairs):
            yield "cut-answer/in-prompt", column, len(lost), len(pairs)


def _check_tolerance(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """A tolerance within which one number meets nearly all gold values."""
    near, share = (getattr(term.spec, key, 0) or 0 for key in ("tolerance", "relative_tolerance"))
    values = sorted(float(value) for _, gold in pairs if (value := number(gold)) is not None)
    if getattr(term.spec, "rule", "") != "numeric_match" or not (near or share) or len(values) < len(pairs):
        return
    spans = [(value - size, value + size) for value in values for size in [max(near, share * abs(value))]]
    lows = [low for low, _ in spans]
    count, place = max((bisect.bisect_right(lows, high) - place, -place) for place, (_, high) in enumerate(spans))
    met = values[-place : count - place]
    if len({*met}) > 2 and count >= 0.8 * len(values):
        yield "any-answer/middle", f"{(met[0] + met[-1]) / 2:g}", count, len(values)


def _check_wording(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """Golds that are a part of others, that end their questions, or that have more words than the prompt allows."""
    golds, rule = [gold for _, gold in pairs], getattr(term.spec, "rule", "")
    labels = sorted({*golds})
    held = [(one, two) for one in labels for two in labels if one != two and one.lower() in two.lower()]
    if rule == "contains" and len(labels) < 13 and len(labels) < len(pairs) and held:
        yield "short-gold/in-another", *held[0]
    ends = [re.search(rf"[(\[]\W*{re.escape(gold)}\W*[)\]]\W*$", one.users[row]) for row, gold in pairs]
    if len(labels) > 2 and all(ends) and not PATTERNS.in_brackets.search(fixed_text(subject)):
        yield "gold-in-prompt/at-end", golds[0][:40]
    said = " ".join(one for one in demands(subject) if not PATTERNS.of_parts.search(one))
    lengths = [len(gold.split()) for gold in golds]
    for found in PATTERNS.most_words.finditer(said) if rule in ("exact_match", "f1") else ():
        if median(lengths) > number_of(found[2]) - bool(found[1]) > 0:
            yield "odd-gold/too-long", found[0], max(lengths)
            return


def number_of(text: str) -> int:
    """The number that digits, or a word of `NUMBERS`, write."""
    return int(text) if text.isdecimal() else NUMBERS.index(text.lower())


def _check_order(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """Columns that a gold value has in another order than is asked for."""
    if getattr(term.spec, "rule", "") != "exact_match":
        return
    said = " ".join(one for one in demands(subject) if PATTERNS.asks.search(one))
    way = r"(?i)\b{}\w*(?:,|,? and(?: then)?|,? then)(?: the| its)? {}\w*"
    for first, then in itertools.pairwise(re.findall(r"task\.(\w{3,})", str(gold_in(term.spec)))):
        found = re.search(way.format(then, first), said)
        if found is not None and not re.search(way.format(first, then), said):
            yield "odd-gold/other-order", found[0], pairs[0][1][:40]


def _check_language(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """Gold values in another language than the prompt asks for."""
    words = {name: {*known.split()} for name, known in WORDS["languages"].items()}
    asked, others = words.keys() & {*PATTERNS.in_language.findall(fixed_text(subject))}, list[str]()
    for held in [{*re.findall(r"[^\W\d_]+", gold.lower())} for _, gold in pairs if len(asked) == 1]:
        most, name = max((len(held & known), name) for name, known in words.items())
        others += [name] if most > 1 and not held & words[min(asked)] else []
    if others and 2 * len(others) >= len(pairs):
        yield "odd-gold/language", min(asked), others[0]


def _check_documents(subject: Subject, term: Term, one: RenderedPrompts, pairs: _Pairs) -> _Given:
    """A gold value of which no document has a word, where those of most rows stand there."""
    known, counts = subject.once("words", set[str]), Counter(gold for _, gold in pairs)
    is_sought = known and all(tool.kind == "search" for tool in subject.tools.values())
    # What several rows have, has no capitals or stands in the prompt may be a class.
    told = [(row, gold, {*re.findall(r"[^\W\d_]{3,}", gold.lower())}) for row, gold in pairs
            if is_sought and counts[gold] == 1 and gold.lower() not in one.texts[row].lower()]  # fmt: skip
    lost = [(row, gold) for row, gold, words in told if words and not words & known and re.search("[A-Z]", gold)]
    if lost and 3 * len(lost) <= len(told):
        yield "odd-gold/in-no-document", lost[0][0] + 1, one.split.name, lost[0][1][:40]


_BESIDE: Final = (_check_cut_off, _check_tolerance, _check_wording, _check_order, _check_language, _check_documents)


def _check_values(column: str, values: Sequence[str]) -> _Given:
    """Days and degrees that there are not, and a name of a row that another row has."""
    for names, usual, odd in WORDS["no_such"] if len(values) > 1 else ():
        held = [(row, value) for row, value in enumerate(values) if re.fullmatch(usual, value)]
        lost = [(row, value) for row, value in held if re.fullmatch(odd, value)]
        if re.fullmatch(names, column) and lost and 2 * len(lost) <= len(held):
            yield "odd-column/no-such-value", column, lost[0][0] + 1, lost[0][1]
    rows, twice = dict[str, int](), len(values) - len({*values})
    for row, name in enumerate(values if PATTERNS.row_id.fullmatch(column) and 0 < 4 * twice <= len(values) else ()):
        if rows.setdefault(name, row) != row:
            yield "duplicate-rows/ids", column, row + 1, rows[name] + 1, name[:40]
            return
