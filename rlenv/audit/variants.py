"""Right answers of which one part is changed: a date with another day, a list with another order, a formula that
agrees at a few points. What earns all the same was not looked at, and the part names the finding.

An answer is taken apart by its structure: JSON, a formula, a number, a table, a list, a date or a time, a path or a
code, words, letters. A part that is the same in all right answers is not asked for, and is left as it is."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from rlenv.audit.crafted import is_query
from rlenv.audit.subject import Action, AuditSubject, flat, is_near, is_number, other_value, same, shaped, texts_of
from rlenv.audit.texts import WORDS, any_of, holds
from rlenv.language.kinds import kind_of
from rlenv.rewards.normalise import qa

CONTROL = "without its point: "
"""Begins the label of what a change is beside: where that earns too, as a number nearby does, it has shown nothing."""

_MONTHS = "january february march april may june july august september october november december".split()
_DATED = (
    (re.compile(r"\d{4}-\d{1,2}(?:-\d{1,2}(?:[T ]\d{1,2}:\d\d(?::\d\d)?Z?)?)?"), "year month day hour minute second"),
    (re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{4}"), "day month year"),
    (re.compile(r"\d{1,2}:\d\d(?::\d\d)?(?: ?[ap]\.?m\.?)?", re.IGNORECASE), "hour minute second"),
)
_PARTS = re.compile(r"\d+\.\d+(?![.\d])|\d+|[^\W\d_]+")
_DIGITS = re.compile(r"\d+|[^\W\d_]+")
_ITEMS = re.compile(r"[\n;,|>]")
_SEPARATORS = ("\n", ";", " -> ", "->", " > ", "|", ", ", ",", " x ", " × ", " * ", "*")
_CODE = re.compile(r"\b(?:def|return|lambda|select|import)\b|print\(", re.IGNORECASE)
_PATTERN = re.compile(r"\b(?:regular expressions?|reg(?:ular )?ex\w*|glob(?:bing)?|wildcards?)\b", re.IGNORECASE)
_HALVES = {"@": ("name before the @", "domain"), "/": ("folder", "name behind the last /")}
_CELLS = (",", "|", ";", "\t", ":")
_REMAINDERS = math.lcm(*range(2, 17), 97, 100, 360, 1000, 1024, 1440)
_LAST = "the last number of the prompt in its place"
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_RANGE = re.compile(r"[2-9]\d{0,3}|1\d{1,3}|\d{1,4} ?[-–] ?\d{1,4}")
WHERE = re.compile(r"\bwhere\b(?:(?!\bwhere\b).)*?(?=\b(?:group|order) by\b|\blimit\b|;|$)", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"^(\s*select\s+)(?!distinct\b)[^()]*?(\s+from\b)", re.IGNORECASE)
_ORDERS = re.compile(r"\border\s+by\b((?:(?!\border\s+by\b|\blimit\s+1\b).)*)$", re.IGNORECASE | re.DOTALL)
_NEAR = 0.1
_NEAR_BY = ("other decimals", f"{CONTROL}other decimals")
_SHARED = 0.9
_MOST_KIN = 24
_MOST_NAMED = 8
_FEW = 4
_FREE_WORDS = 4
_NAME_WORDS = 2
_AGAIN = 8
_VOWELS = "aeiou"
# Elsewhere the same in another order may be as right.
ORDERED = re.compile(
    r"\b(?<!any )(?:orders?|ordered|sequence|rank\w*|sort\w*|first|last|from .+ to|steps?|route)\b", re.IGNORECASE
)
# Where one of several right answers is asked for, what shares a property with one of them may be another.
_ONE_OF_MANY = any_of("one_of_many")


@dataclass(frozen=True, slots=True)
class _View:
    """An answer in parts: `names` where these have meanings of their own, and how parts become an answer again."""

    kind: str
    values: tuple[Any, ...]
    join: Callable[[Sequence[Any]], str]
    names: tuple[str, ...] = ()

    def groups(self) -> list[tuple[str, tuple[int, ...]]]:
        """The parts that are changed together, by name."""
        count = len(self.values)
        if self.names:
            return [(name, (at,)) for at, name in enumerate(self.names[:_MOST_NAMED])]
        inner = tuple(range(1, count - 1))
        between = [("parts between the first and the last", inner)] if inner else []
        return [("first part", (0,)), ("last part", (count - 1,)), *between]


def variant_scripts(subject: AuditSubject, heart: str) -> dict[str, list[Action]]:
    """Answers that share much with the right answer and are not it, by what is other there.

    Of an oracle that answers in a sentence, a part may say all that the row asks for: `heart`, as far as it is known.
    """
    right = subject.right.strip()
    heart = heart if heart and heart in right else right
    allowed = {flat(value) for value in texts_of(subject.task)}
    parts = {flat(part) for part in _ITEMS.split(heart)}
    is_known = parts <= allowed or flat(heart) in allowed
    # A list of names is none, however many there are.
    is_prose = max(len(part.split()) for part in _ITEMS.split(right)) > _NAME_WORDS
    is_prose = is_prose and right[:1] not in ("{", "[") and len(right.split()) > _FREE_WORDS
    paying = [one for one in subject.environment.spec.rewards.values() if one.usual_weight > 0]
    if heart == right and not is_known and is_prose and not any(kind_of("rewards", one).gold for one in paying):
        return {}  # of prose that no row holds another is as right
    asked = [one for one in subject.asked if not same(one, right) and not holds(subject.prompt, one) and not is_known]
    found: dict[str, list[Action]] = {}
    for label, text in _answer_variants(heart, subject):
        said = right.replace(heart, text, 1)
        is_right = same(text, heart) or (flat(text) in allowed and label != _LAST) or not text.strip()
        # An article or a mark more is no other name; of a number a sign is.
        is_right = is_right or (not is_number(heart) and qa(text) == qa(heart))
        is_right = is_right or (label == _LAST and holds(heart, text))
        given = {flat(part) for part in _ITEMS.split(text)}
        is_right = is_right or (len(parts) > 1 and parts != given <= allowed and len(given) >= len(parts))
        # One in which the right answer stands says it, to a reward that looks for a part.
        is_right = is_right or (label not in _NEAR_BY and is_near(text, heart, _NEAR))
        is_right = is_right or (heart in text and not is_query(text))
        if label not in found and not is_right and not any(holds(said, one) for one in asked):
            found[label] = [subject.form(said)]
    return found


def _answer_variants(right: str, subject: AuditSubject) -> Iterator[tuple[str, str]]:
    rng, prompt = random.Random(right), subject.prompt
    asked = " ".join(message.content for message in subject.gold.messages)
    is_any = _ONE_OF_MANY.search(prompt) is not None
    is_ordered = ORDERED.search(prompt) is not None and not is_any
    if is_query(right) and (cut := WHERE.sub(" ", right)) != right:
        yield "no condition of the query", cut
    if is_query(right):
        other = _COLUMNS.sub(r"\1'zqx'\2", right, count=1)
        yield "other values in its rows", other if other != right else f"SELECT 'zqx' FROM ({right.rstrip(' ;')})"
    if is_query(right) and (ends := _ORDERS.findall(right)) and ends[-1].count("(") == ends[-1].count(")"):
        yield "another order of its rows", f"SELECT * FROM ({right.rstrip(' ;')}) ORDER BY 1 DESC"
    # Another program, query or pattern may do the same.
    if not right or len(right) > 2_000 or _CODE.search(right) or _PATTERN.search(asked):
        return
    for at, number in enumerate(dict.fromkeys(_NUMBERS.findall(prompt)) if not is_any else ()):
        if at < _FEW - 1 and not right.startswith(number):
            yield f"a number of the prompt in its place ({at + 1})", number
    if (numbers := _NUMBERS.findall(prompt)) and not is_any and not is_number(right):
        yield _LAST, numbers[-1]
    if len(_NUMBERS.findall(right)) > 1 and (zeros := _NUMBERS.sub("0", right)) != right:
        yield "zeros for all its numbers", zeros
    if _RANGE.fullmatch(right) and not is_any:
        yield from ((f"a range that holds everything ({one})", one) for one in WORDS["wide"])
    if is_number(right):
        yield from _number_variants(right, any(one.startswith("-") for one in subject.options), is_any)
    views = _views_of(right)
    differing: tuple[Any, ...] = ()
    for view in views:
        others = _other_part_values(view, subject.options, rng)
        differing = tuple(one for one, other in zip(view.values, others, strict=True) if other is not None)
        yield from _part_variants(view, others)
        yield from _list_variants(view, is_ordered=is_ordered, is_any=is_any)
    for label, text in _letter_variants(right, rng) if not is_number(right) and right[:1] not in "{[" else ():
        # What all answers share may count for nothing.
        if not differing or not all(holds(text, str(one)) for one in differing):
            yield label, text


def _number_variants(right: str, is_signed: bool, is_any: bool) -> Iterator[tuple[str, str]]:
    """Other numbers that have something of this one: digits, a remainder, a sign."""
    bare = right.lstrip("+-").replace(",", "")
    sign = "-" if right.startswith("-") else ""
    whole, point, decimals = bare.partition(".")
    if sign or is_signed:
        yield "another sign", bare if sign else f"-{bare}"
    if point:
        yield "no point", f"{sign}{whole}{decimals}"
        yield "another sign for its point", f"{sign}{whole}7{decimals}"
        # The same whole number, and a nearer one on the other side of it: a tolerance takes both.
        is_low = float(f"0.{decimals}") <= 0.5
        yield "other decimals", f"{sign}{whole}.{'95' if is_low else '05'}"
        yield (f"{CONTROL}other decimals", f"{sign}{int(whole) + (-0.05 if is_low else 1.05):.2f}")
        yield "another number before its point", f"{sign}{int(whole) + 7}.{decimals}"
        return
    if is_any:
        return
    if len(bare) > 2:
        yield "its first digit alone", bare[:1]
        yield "its last digit alone", bare[-1:]
        yield ("other digits behind its first", sign + bare[:1] + "".join(str((int(one) + 3) % 10) for one in bare[1:]))
        yield ("other digits before its last two", f"{sign}777{bare[-2:]}" if bare[0] != "7" else "")
    parts = right.split(",")
    if len(parts) > 1:
        yield "its digits before the comma alone", parts[0]
        yield "its digits behind the comma alone", parts[-1]
    for turned in (bare[::-1], bare[1:] + bare[:1]):
        if turned != bare and not turned.startswith("0"):
            yield (f"its digits in another order ({'backwards' if turned == bare[::-1] else 'turned'})", sign + turned)
    value = int(bare)
    yield "nothing but the same remainder", f"{sign}{value + _REMAINDERS}"
    if value:
        yield "zero in its place", "0"
        yield "a multiple of it in its place", f"{sign}{value * 7}"


@lru_cache(maxsize=4_096)
def _views_of(right: str) -> tuple[_View, ...]:
    """The answer in parts, each way in which it can be taken apart."""
    if right[:1] in ("{", "["):
        try:
            return tuple(_json_views(json.loads(right)))
        except (ValueError, RecursionError):
            return ()
    return () if is_number(right) else tuple(_text_views(right))


def _json_views(read: Any) -> Iterator[_View]:
    if isinstance(read, dict) and len(read) > 1:
        names = tuple(map(str, read))
        yield _View("object", tuple(read.values()), lambda some: json.dumps(dict(zip(read, some, strict=True))), names)
    elif isinstance(read, list) and read:
        rows = read
        if all(isinstance(one, dict) and list(one) == list(rows[0]) and len(one) > 1 for one in rows):
            keys = list(rows[0])
            columns = tuple(tuple(one[key] for one in rows) for key in keys)

            def join_table(some: Sequence[Any]) -> str:
                return json.dumps([dict(zip(keys, one, strict=True)) for one in zip(*some, strict=True)])

            yield _View("columns", columns, join_table, tuple(f"'{key}' of each" for key in keys))
        elif all(isinstance(one, list) and len(one) == len(rows[0]) > 1 for one in rows):
            columns = tuple(zip(*rows, strict=True))
            names = tuple(f"column {at + 1}" for at in range(len(columns)))
            yield _View("columns", columns, lambda some: json.dumps(list(zip(*some, strict=True))), names)
        if len(rows) > 1:
            yield _View("list", tuple(rows), lambda some: json.dumps(list(some)))


def _text_views(right: str) -> Iterator[_View]:
    lines = right.splitlines()
    for mark in _CELLS if len(lines) > 1 else ():
        cells = [line.split(mark) for line in lines]
        if len(cells[0]) > 1 and all(len(one) == len(cells[0]) for one in cells):
            columns = tuple(zip(*cells, strict=True))
            names = tuple(f"column {at + 1}" for at in range(len(columns)))
            yield _View("columns", columns, _table_joiner(mark), names)
            break
    for mark in _SEPARATORS:
        items = [one.strip() for one in right.split(mark)]
        if len(items) > 1 and all(items):
            joiner = mark if mark.strip() != mark or f"{mark} " not in right else f"{mark} "
            yield _View("list", tuple(items), _list_joiner(joiner))
            break
    for mark, names in _HALVES.items():
        before, _, after = right.rpartition(mark)
        if before and after and " " not in right:
            yield _View("halves", (before, after), mark.join, names)
            break
    pattern = _DIGITS if re.search(r"\d\.\d+\.\d", right) else _PARTS
    words = tuple(pattern.findall(right))
    if len(words) > 1:

        def join_words(some: Sequence[Any]) -> str:
            left = iter(some)
            made = pattern.sub(lambda _: str(next(left, "")), right)
            return made if len(some) == len(words) else re.sub(r"\W+$", "", made)

        yield _View("words", words, join_words, _date_part_names(right, words))


def _list_joiner(joiner: str) -> Callable[[Sequence[Any]], str]:
    """Makes a list of text again; a part may come from another row's list, which was JSON."""
    return lambda some: joiner.join(map(str, some))


def _table_joiner(mark: str) -> Callable[[Sequence[Any]], str]:
    """Makes a table of text of its columns again."""
    return lambda some: "\n".join(mark.join(map(str, one)) for one in zip(*some, strict=True))


def _date_part_names(right: str, words: Sequence[str]) -> tuple[str, ...]:
    """The names of the parts of a date or a time, () for other texts."""
    for pattern, names in _DATED:
        if pattern.fullmatch(right):
            return (*names.split(), "half of the day")[: len(words)]
    months = [one for one in words if any(month.startswith(one.casefold()[:3]) for month in _MONTHS) and one.isalpha()]
    if len(months) != 1 or not 2 <= len(words) <= 4 or not any(one.isdigit() for one in words):
        return ()
    numbers = {one: "year" if len(one) == 4 else "day" for one in words if one.isdigit()}
    return tuple({months[0]: "month", **numbers}.get(one, one) for one in words)


def _other_part_values(view: _View, options: Sequence[str], rng: random.Random) -> list[Any]:
    """Another value for each part, of another right answer or made; None for one that is the same in all."""
    kin = [one for other in options[:_MOST_KIN] for one in _views_of(other.strip()) if one.kind == view.kind]
    count, is_fixed = len(view.values), view.kind != "list"
    alike = [one for one in kin if len(one.values) == count and one.names == view.names] if is_fixed else []
    return [_other_part_value(view, at, alike, kin, rng) for at in range(count)]


def constant_parts(answers: Sequence[str]) -> list[str]:
    """The keys of answers that are objects of the same keys of which nearly all have the same value."""
    views = [view for one in answers for view in _views_of(one.strip()) if view.kind == "object"]
    alike = [one.values for one in views if one.names == views[0].names]
    if len(alike) < max(_FEW, _SHARED * len(answers)):
        return []
    most = [Counter(map(str, column)).most_common(1)[0][1] for column in zip(*alike, strict=True)]
    return [name for name, count in zip(views[0].names, most, strict=True) if count >= _SHARED * len(answers)]


def _part_variants(view: _View, others: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """With another value of each part, and with the right value of that part alone."""
    count = len(view.values)
    groups = view.groups()
    whole = "" if view.names else f" of {'a list' if view.kind == 'list' else 'the answer'}"
    for name, group in groups:
        if all(others[at] is None for at in group):
            continue
        changed = [others[at] if at in group and others[at] is not None else view.values[at] for at in range(count)]
        yield (f"another {name}{whole}".replace("another parts", "other parts"), view.join(changed))
        rest = [at for at in range(count) if at not in group]
        if len(rest) > 1 and any(others[at] is not None for at in rest):
            kept = [view.values[at] if at in group or others[at] is None else others[at] for at in range(count)]
            yield f"its {name} alone", view.join(kept)
    if not view.names and None not in (others[0], others[-1]):
        yield f"no first part{whole}", view.join(view.values[1:])
        yield f"no last part{whole}", view.join(view.values[:-1])
        yield f"nothing but the first part{whole}", view.join(view.values[:1])
        yield f"nothing but the last part{whole}", view.join(view.values[-1:])
        yield f"no parts between the first and the last{whole}", view.join([view.values[0], view.values[-1]])
    if view.kind == "list" and others[0] is not None:
        yield "its first part again and again", view.join(view.values[:1] * _AGAIN)


def _other_part_value(view: _View, at: int, alike: Sequence[_View], kin: Sequence[_View], rng: random.Random) -> Any:
    """Another value of a part: of another answer, or made; None where no other is asked for."""
    right = view.values[at]
    if isinstance(right, str) and view.kind == "object" and len(right.split()) >= _FREE_WORDS:
        return None
    if view.kind == "list":
        found = [one for other in kin for one in other.values if one not in view.values]
        found = [one for one in found if not is_near(str(one), str(right), _NEAR)]
        return found[rng.randrange(len(found))] if found else _made_up_value(right, rng)
    if view.kind == "columns":
        # With the column of each row turned, or made where all are alike.
        turned = (*right[1:], right[0])
        return turned if turned != right and view.names[at] else tuple(_made_up_value(one, rng) for one in right)
    found = [one.values[at] for one in alike if flat(one.values[at]) != flat(right)]
    found = [one for one in found if len(str(right)) < _FEW or not is_near(str(one), str(right), _NEAR)] or found
    if found:
        return found[rng.randrange(len(found))]
    return None if len(alike) > _FEW - 1 else _made_up_value(right, rng)


def _made_up_value(value: Any, rng: random.Random) -> Any:
    """A value of the same kind that may stand in the same place: a day of a month, an hour, a word as long."""
    if isinstance(value, (list, tuple)):
        return [_made_up_value(one, rng) for one in value]
    if not isinstance(value, str):
        return other_value(value, rng)
    if value.casefold() in _MONTHS:
        return _MONTHS[(_MONTHS.index(value.casefold()) + 5) % 12].capitalize()
    if not value.isdecimal():
        return shaped(value, rng) if value else "zqx"
    number = int(value)
    if number <= 31:
        return str(number % (12 if number <= 12 else 28) + 1).zfill(len(value))
    made = "".join(str((int(one) + 3) % 10) for one in value)
    return made if not made.startswith("0") else f"1{made[1:]}"


def _list_variants(view: _View, *, is_ordered: bool, is_any: bool) -> Iterator[tuple[str, str]]:
    """The same parts in another order, and other numbers with the same sum, product, ends and length."""
    values, count = list(view.values), len(view.values)
    if view.names or is_any:
        return
    if is_ordered and count > 2:
        yield "another order of its parts", view.join(values[::-1])
        yield ("another order of its parts between the ends", view.join([values[0], *values[-2:0:-1], values[-1]]))
    if is_ordered and view.kind == "list":
        yield "one of its parts twice", view.join([values[0], *values])
    if view.kind != "list":
        return
    try:
        numbers = [int(str(one)) for one in values]
    except ValueError:
        return
    kept = (lambda one: one) if isinstance(values[0], int) else str
    low, high = (1, count - 2) if count > 3 else (0, count - 1)
    changed = [*numbers]
    change = max(1, abs(changed[low]) // 2, abs(changed[high]) // 2)
    changed[low], changed[high] = changed[low] - change, changed[high] + change
    yield "other numbers of the same sum", view.join([kept(one) for one in changed])
    product = math.prod(numbers)
    if abs(product) < 10**15:
        yield "the product of its parts in their place", view.join([kept(product)])
        yield ("the product of its parts and a one in their place", view.join([kept(1), kept(product)]))
    if all(one <= other for one, other in pairwise(numbers)):
        yield "the same number in place of each", view.join([kept(numbers[0])] * count)


def _letter_variants(right: str, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Pieces of a text, and texts that have its initials, its consonants, its digits or its letters alone."""
    words, half = re.findall(r"\w+", right), len(right) // 2
    if len(right) > 2:
        yield "its first letter alone", right[:1]
        yield "its last letter alone", right[-1:]
        yield "its first half alone", right[:half]
        yield "its last half alone", right[half:]
    if len(words) > 3 * _FEW:
        return
    made = shaped(right, rng)
    if len(words) == 1 and half > 1:
        yield "its first half and other letters", right[:half] + made[half:]
        yield "other letters and its last half", made[:half] + right[half:]
        yield "its letters backwards", right[::-1]
    if len(words) > 1:
        yield ("its initials alone", re.sub(r"\w+", lambda found: found[0][:1] + shaped(found[0], rng)[1:], right))
    numbered = re.sub(r"\d", lambda found: str((int(found[0]) + 3) % 10), right)
    # A unit may well count for nothing; the letters of a code do not.
    is_code = right[:1].isalpha() and numbered != right and len(words) <= 3
    if numbered != right and not _date_part_names(right, tuple(_PARTS.findall(right))):
        yield "other digits", numbered
    if is_code:
        yield ("other letters", re.sub(r"[^\W\d_]", lambda found: "Q" if found[0].isupper() else "q", right))
    if numbered == right and len(right) > 3:
        turned = {one: _VOWELS[(at + 2) % 5] for at, one in enumerate(_VOWELS)}
        yield "other vowels", "".join(turned.get(one, one) for one in right)
