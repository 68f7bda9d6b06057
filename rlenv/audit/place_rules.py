"""Rules of place: where in a text a gold stands, learnt on one half of the tasks and tried on the other.

A rule is what a policy could do without reading the question: take what stands behind `ref: `, or in front of `.txt`.
A value in a prompt may be a mark on it, or part of what is asked."""

from __future__ import annotations

import base64
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from rlenv.audit.golds import binomial_tail
from rlenv.audit.subject import same
from rlenv.audit.texts import WORDS, any_of
from rlenv.rewards.normalise import number

_STEM = 5
_WORD = re.compile(r"[^\W\d_]{3,}")
_BOUNDS = re.compile(r"[.?!:](?=\s)|[\n()\[\]{}|;<>]")
_LABEL = re.compile(r"([^\W\d_]+)[\"']?\s*[:=#]*\s*(?:no\.?|number)?\s*[\"'(\[]?[\w/.-]*$", re.IGNORECASE)
_FIELD = re.compile(r"[^\W\d_]+[\"']?\s*[:=]\s*[\"']?[\w-]")
_ASKED = re.compile(r"[^.?!\n:\]>]*\?")
_RECORD = 3
_STEM_OF_LABEL = 4
_OPENS, _CLOSES = tuple("([{<"), tuple(")]}>")
_REST = re.compile(r"[\w-]*(?: ?[-(][\w )-]*)?\.[a-z]\w{1,4}\b|_\w")
_EMPTY = frozenset(WORDS["without_content"])
# A prompt that says so shows its gold by nature.
_READ = any_of("shown")
_LISTED = re.compile(r"\b(?:following|below|above|lists?|options?|choose|pick)\b", re.IGNORECASE)
_TURNS = any_of("turned")
CASED = any_of("cased")
"""What a prompt says where to write its own words with other capitals is the task."""
_GIVEN = frozenset(WORDS["given"])


def is_mark(text: str, start: int, end: int, transform: str) -> bool:
    """True if a value in a prompt is a mark on it and no part of what is asked: a label's, or in an identifier.

    Prose that says the gold is what a task reads: "It weighs 5 kg. How heavy is it?"

    Args:
        transform: what hides it, "itself" for nothing.
    """
    if text.rfind("<!--", 0, start) > text.rfind("-->", 0, start):
        return True  # nobody is shown a comment to read it
    if text[:start].endswith("<answer>") and text.startswith("</answer>", end):
        return True  # an example of the form shows an answer of another task
    bounds = [0, *(match.end() for match in _BOUNDS.finditer(text)), len(text)]
    first = max(at for at in bounds if at <= start)
    last = min((at for at in bounds if at >= end), default=len(text))
    begin = text.rfind("\n", 0, start) + 1
    line = text[begin:start]
    label = _LABEL.search(line)
    elsewhere = f"{text[: min(first, begin + label.start()) if label else first]} {text[last:]}"
    named = stems_of(label[1]) if label else frozenset()
    asked = {word for match in _ASKED.finditer(text) for word in stems_of(match[0])}
    if named & asked or (transform != "itself" and _TURNS.search(text)) or CASED.search(text):
        return False
    if label and (label[1].casefold() in _GIVEN or label[1].casefold().rstrip("s") in _GIVEN):
        return True
    if is_glued(text, start, end):
        return not _READ.search(elsewhere)
    # A record, or a text to be read: its fields are its own.
    if (
        _READ.search(text)
        or _LISTED.search(text)
        or len(_FIELD.findall(text)) >= _RECORD
        or named & stems_of(elsewhere)
    ):
        return False
    inside, after = text[first:start], text[end : end + 1]
    if "?" in text[:first] and text[start - 1 : start] in _OPENS and after in _CLOSES:
        return True  # alone in brackets behind the question
    if text[end:last].rstrip().endswith("?") and stems_of(inside):
        return False
    if not re.search(r"[^\W\d_]", line):
        # The number of a task, in front of it.
        return after in ("", "\n") or not (after.isalnum() or after.isspace() or after in "+*/=<>,%-")
    is_alone = after in ("", "\n") or not text[end:last].strip(" .)]}>;:|")
    words = re.findall(r"\w+", inside)
    return label is not None and (not words or (len(words) == 1 and (is_alone or after == ":")))


def is_mark_anywhere(text: str, start: int, end: int, transform: str) -> bool:
    """As `is_mark`, where the answer is no part of the prompt: whatever is not written otherwise on purpose."""
    return transform == "itself" or not _TURNS.search(text)


def is_glued(text: str, start: int, end: int) -> bool:
    """True if a value is part of an identifier: `12/C`, `q007B`, `2001_report.csv`; not so `5kg` or `$5`."""
    if _REST.match(text, end) or (text[start:end].isalpha() and re.match(r"[-_#/]\d", text[end:])):
        return True
    before = re.search(r"[\w/#.-]*$", text[:start])
    ahead = before[0] if before else ""
    is_named = re.search(r"[^\W\d_]", ahead + text[start:end])
    parts = re.search(r"[/#_.-]\w{0,3}$", ahead) or (re.search(r"[^\W\d_]", ahead) and re.search(r"\d", ahead))
    return bool(is_named and parts and re.search(r"\w", ahead))


def stems_of(text: str) -> Set[str]:
    """The beginnings of a text's words that mean something, by which two are taken for one."""
    return {word[:_STEM] for word in _WORD.findall(text.casefold()) if word not in _EMPTY}


Allowed = Callable[[str, int, int, str], bool]
_Shape = tuple[str | None, str, str, int | None]

_LEARNT = 100
_MARKS = (", ", ": ", "; ", " - ", " / ", " ")
_MOST_FIELDS = 4
_TESTED = 300
_RULES = 60
_TEXT_CHARS = 20_000
_GOLD_CHARS = 200
_HITS = 0.7
_FIRES = 0.25
_FEW_TESTED = 32
_LEAST = 4
_FEW = 16
_SO_FEW = 6
_PLACES = {0: "first", 1: "second", 2: "third", -1: "last", -2: "last but one"}
_MOST_NUMBER = 10**15
_RARE = 1e-3
_BASE64 = re.compile(r"(?<![\w+/])[\w+/-]{12,}(?![\w+/-])", re.ASCII)
_FILLED_UP = re.compile(r"(?<=[A-Za-z0-9+/])={1,2}(?![\w=])")
_DIGITS, _LETTERS = re.compile(r"\d+"), re.compile(r"[^\W\d_]+")
_HEAD = re.compile(r"[^\W_]+(?:[_-][^\W_]+)*[_-]$")
_RUNS = {r"\d+": r"\d+", r"\l+": r"[^\W\d_]+"}
"""What stands for any digits and any letters in what a rule says is in front of a gold."""
_NUMBER = r"(?<!\d)(?<!\d[.,])[-+]?\d+(?:[.,]\d+)*(?!\d)"
_WORD_OF_PLACE_RULES = r"(?<![^\W\d_])[^\W_]+"
_LINE = r"[^\n]{1,200}?"
_TOKEN = r"[^\s\"'`()\[\]{}<>,;]*\w"
_JOINED = r"(?<![^\W\d_])[^\W\d_]+(?:[_-][^\W\d_]+)*"
_VALUES = {"number": _NUMBER, "word": _WORD_OF_PLACE_RULES, "token": _TOKEN, "line": _LINE, "name": _JOINED}
_VALUES |= {"spelt": r"(?<!\w)\w(?:[ -]\w)+(?!\w)"}
_BETWEEN = (" ", "-")
_ALONE = _VALUES | {"line": r"^[^\n]+$"}
_OF = {
    **dict.fromkeys(("times 100", "times 1000", "by its number from 0", "by its number from 1", "as 1 or 0"), "number"),
    "by its first letter": "word",
    "by its first letters": "word",
    "in base64": "line",
    **{f"with {by!r} for spaces": "name" for by in ("_", "-", "")},
    **{f"spelt with {by!r}": "spelt" for by in _BETWEEN},
}
"""What a hidden gold looks like; of the other forms it looks like the gold."""
_LEFTS = (r"[^\n]{1,40}$", r"\w+\W+\w+\W*$", r"\w+\W*$", r"[^\w\s]\s*$")
_NEXT = re.compile(r"[_-][^\W\d_]+")
_BESIDE = (("one", "low", -1), ("one", "high", 1))
NEAR = frozenset(f"{word} too {way}" for word, way, _ in _BESIDE)
"""Transforms of a number that a prompt may well hold: what comes next is a question."""
_FLAGS = {"yes": "1", "no": "0", "true": "1", "false": "0"}
_SHORT_FLAGS = {"yes": "y", "no": "n", "true": "t", "false": "f"}


@dataclass(frozen=True, slots=True)
class PlaceRule:
    """Take what stands between `left` and `right` for the `at`-th time (from 0, or from the end), and undo `transform`.

    Without `left` it is the `at`-th number, word or line of the whole text.
    """

    left: str | None
    right: str
    transform: str
    at: int
    kind: str
    pattern: re.Pattern[str]

    def take(self, text: str) -> str | None:
        """The text at the place, None where the text has no such place."""
        found = self.pattern.findall(text[:_TEXT_CHARS])
        return found[self.at].strip() if -len(found) <= self.at < len(found) else None

    def __str__(self) -> str:
        form = "" if self.transform == "itself" else f", {self.transform}"
        if self.left is None:
            return f"the {_PLACES[self.at]} {self.kind}{form}"
        behind = f"behind {self.left!r}" if self.left else "at the start of a line"
        before = " and ends the line" if self.right == "\n" else f" and before {self.right!r}" if self.right else ""
        return f"what stands {behind}{before} ({'last' if self.at else 'first'} such place{form})"


@dataclass(frozen=True, slots=True)
class Proof:
    """A rule that gives golds away: right on `hits` of the `of` tasks of the other half where it says anything."""

    rule: str
    hits: int
    of: int
    chance: float
    taken: Mapping[int, str]
    """By the place of a text among those given: what the rule takes there, with its transform undone."""


def learn_rule(
    texts: Sequence[str], golds: Sequence[str], *, allowed: Allowed = lambda *place: True, parts: bool = False
) -> Proof | None:
    """The best rule that finds golds in the texts, or with `parts` one for each part; None where none is above chance.

    With fewer than 16 texts a rule is tried on those that it was learnt on.

    Args:
        golds: their golds, "" where there is none.
        allowed: asked with the text, the place and the transform; False where to read there is what the task asks for.
    """
    if (whole := _learn_whole(texts, golds, allowed)) is not None:
        return whole
    for columns, join in _gold_columns(golds) if parts else ():
        found = [
            Proof("", len(golds), len(golds), 0.0, dict(enumerate(some)))
            if len(set(some)) == 1
            else _learn_whole(texts, some, allowed)
            for some in columns
        ]
        sure = [one for one in found if one is not None]
        if len(sure) == len(columns) and any(one.rule for one in sure):
            taken = {at: join([one.taken.get(at, "") for one in sure]) for at in range(len(golds))}
            rules = ", and ".join(one.rule for one in sure if one.rule)
            return Proof(rules, min(one.hits for one in sure), len(golds), max(one.chance for one in sure), taken)
    return None


def _gold_columns(golds: Sequence[str]) -> Iterator[tuple[list[list[str]], Callable[[Sequence[str]], str]]]:
    """The columns of golds that have equally many parts, each way in which they have them, and how parts are joined."""
    for mark in _MARKS:
        rows = [gold.split(mark) for gold in golds]
        if 2 <= len(rows[0]) <= _MOST_FIELDS and all(len(row) == len(rows[0]) and all(row) for row in rows):
            yield [list(column) for column in zip(*rows, strict=True)], mark.join


def _learn_whole(texts: Sequence[str], golds: Sequence[str], allowed: Allowed) -> Proof | None:
    known = [at for at, gold in enumerate(golds) if 0 < len(gold) <= _GOLD_CHARS and "\n" not in gold]
    if len(known) < _LEAST - 1 or 2 * len(known) < len(golds) or len({golds[at].casefold() for at in known}) < 2:
        return None
    if len(known) <= _SO_FEW and any(len(golds[at]) < 2 for at in known):
        return None  # a letter or a digit stands everywhere
    is_few = len(known) < _FEW
    random.Random(0).shuffle(known)  # rows may take turns
    learnt = _sample(known if is_few else known[::2], _LEARNT)
    tested = _sample(known if is_few else known[1::2], _TESTED)
    kind = _value_kind([golds[at] for at in known])
    counts: Counter[_Shape] = Counter()
    for at in learnt:
        counts.update(set(_place_shapes(texts[at][:_TEXT_CHARS], golds[at], kind, allowed)))
    least = max(2, len(learnt) * _FIRES / 2)
    shapes = [one for one, count in counts.most_common(_RULES) if count >= least]
    best: Proof | None = None
    for rule in (rule for shape in shapes for rule in _rules_of_shape(shape, kind)):
        # A few tasks are all looked at where a rule is right on each, for as many rules as could have been.
        sure = _try_rule(rule, texts, golds, tested, tries=2 * len(shapes))
        if sure is None and len(known) <= _FEW_TESTED:
            sure = _try_rule(rule, texts, golds, known, tries=2 * len(counts))
            sure = sure if sure is not None and sure.hits == len(known) else None
        if sure is not None and (best is None or sure.hits > best.hits):
            best = sure
    return best


def is_no_chance(hits: int, fired: int, of: int, *, chance: float, tries: int) -> bool:
    """True if golds are given away: the one judgement of chance for all places.

    A rule that says anything on `fired` of `of` tasks is right on `hits` of them: most, and so many that the
    probability of that many by `chance`, times the rules that were tried, is below 0.001. Of six tasks or fewer it has
    to be right on all.
    """
    if of <= _SO_FEW:
        return hits == fired == of >= _LEAST - 1 and chance < 1 / 2
    is_much = fired >= max(_LEAST, _FIRES * of) and hits >= _HITS * fired
    return is_much and binomial_tail(hits, fired, chance) * tries < _RARE


def hit_chance(said: Sequence[str], golds: Sequence[str]) -> float:
    """The share of hits by chance: by saying these to shuffled golds, or always the commonest, whichever is more."""
    dealt, fired = Counter(golds), len(said)
    anew = sum(count * dealt.get(one, 0) for one, count in Counter(said).items()) / fired**2
    return max(anew, max(dealt.values()) / fired, 1 / (fired + 1))


def says_in_any_form(text: str, gold: str) -> bool:
    """True if a gold stands in a text as a whole, in any form that a rule could undo."""
    low = text.casefold()
    return any(form.casefold() in low and _exact(form).search(text) for _, form in _forms_of(gold)) if gold else False


def with_base64(text: str) -> str:
    """A text without the padding of base64, and below it what its base64 words decode to."""
    found = []
    for word in _BASE64.findall(text[:_TEXT_CHARS]):
        try:
            word = word.replace("-", "+").replace("_", "/")
            said = base64.b64decode(word + "=" * (-len(word) % 4), validate=True).decode()
        except ValueError:
            continue
        found += [said] if said.isprintable() else []
    return "\n".join([_FILLED_UP.sub("", text), *found])


def holds(text: str, gold: str) -> bool:
    """True if a gold stands in a text as it is, as a whole word or number."""
    return bool(gold) and bool(re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(gold)}(?!\w|[.,]\d)", text, re.IGNORECASE))


def _sample(places: Sequence[int], most: int) -> list[int]:
    return list(places[:: max(1, -(-len(places) // most))])


def _place_regex(left: str, value: str, right: str) -> str:
    before = "".join(_RUNS.get(part) or re.escape(part) for part in re.split(r"(\\[dl]\+)", left)) or "^"
    after = "$" if right == "\n" else re.escape(right)
    return f"{before}({value})(?={after})" if after else f"{before}({value})"


def _value_kind(golds: Sequence[str]) -> str:
    if all(number(gold) is not None for gold in golds):
        return "number"
    looks = {"word": r"[^\W_]+", "token": _TOKEN}
    return next((kind for kind, one in looks.items() if all(re.fullmatch(one, gold) for gold in golds)), "line")


def _forms_of(gold: str) -> Iterator[tuple[str, str]]:
    """The gold, and what it is hidden as: each with the words that say so."""
    yield "itself", gold
    if len(gold) > 1 and gold != gold[::-1]:
        yield "written backwards", gold[::-1]
    if " " in gold:
        # A name has no spaces: a file's, a table's.
        yield from ((f"with {by!r} for spaces", re.sub(r"\W+", by, gold).strip(by)) for by in ("_", "-", ""))
    data = gold.encode("utf-8", "replace")
    yield "in base64", base64.b64encode(data).decode().rstrip("=")
    if (exact := number(gold)) is not None and exact and abs(exact) < _MOST_NUMBER:
        yield from ((f"times {by}", f"{exact * by:.0f}") for by in (100, 1000) if exact * by == int(exact * by))
        near = _BESIDE if exact == int(exact) else ()
        yield from ((f"{word} too {way}", f"{int(exact) + by}") for word, way, by in near)
    if gold.isalpha():
        yield "by its first letters", gold[:_STEM_OF_LABEL]
        yield from ((f"spelt with {by!r}", by.join(gold)) for by in _BETWEEN if len(gold) > 1)
    if re.fullmatch("[A-Z]", gold):
        yield "by its number from 0", str(ord(gold) - 65)
        yield "by its number from 1", str(ord(gold) - 64)
    if gold.casefold() in _FLAGS:
        yield "as 1 or 0", _FLAGS[gold.casefold()]
        yield "by its first letter", _SHORT_FLAGS[gold.casefold()]


def _exact(form: str) -> re.Pattern[str]:
    bound = r"\d" if form[:1].isdigit() else r"[^\W\d_]"
    ends = r"\d" if form[-1:].isdigit() else r"[^\W\d_]"
    return re.compile(f"(?<!{bound}){'0*' if form.isdigit() else ''}{re.escape(form)}(?!{ends})", re.IGNORECASE)


def _place_shapes(text: str, gold: str, kind: str, allowed: Allowed) -> Iterator[_Shape]:
    """The shapes of the places where the text has the gold."""
    low = text.casefold()
    for transform, form in _forms_of(gold):
        if form.casefold() not in low:
            continue
        found = [match for match in list(_exact(form).finditer(text))[:20] if allowed(text, *match.span(), transform)]
        for start, end in (match.span() for match in found):
            before = text[:start].rpartition("\n")[2]
            after = text[end : end + 1]
            right = "\n" if after in ("", "\n") else after if not after.isalnum() and not after.isspace() else ""
            if _OF.get(transform) == "name" and (more := _NEXT.match(text, end)):
                right = more[0]  # what is joined ends where the next word begins
            lefts = [""] if not before else [match[0] for left in _LEFTS if (match := re.search(left, before))]
            # Of a name's parts, such as a file's, one has its place whatever the others say.
            lefts += [_LETTERS.sub(lambda _: r"\l+", head[0])] if (head := _HEAD.search(before)) else []
            for left in dict.fromkeys(lefts):
                shape = _DIGITS.sub(lambda _: r"\d+", left)
                yield shape, right, transform, None
                if right and transform == "itself" and kind != "line":
                    yield shape, "", transform, None
        if found:
            places = [match.span() for match in re.finditer(_ALONE[_OF.get(transform, kind)], text, re.MULTILINE)]
            spans = {match.span() for match in found}
            yield from (
                (None, "", transform, at) for at in _PLACES if places[at : at + 1 or None][:1] and places[at] in spans
            )


def _rules_of_shape(shape: _Shape, kind: str) -> Iterator[PlaceRule]:
    left, right, transform, at = shape
    looks = _OF.get(transform, kind)
    pattern = re.compile(_ALONE[looks] if left is None else _place_regex(left, _VALUES[looks], right), re.MULTILINE)
    for place in (0, -1) if at is None else (at,):
        said = left and left.replace(r"\d+", "0").replace(r"\l+", "word")
        yield PlaceRule(said, right, transform, place, looks, pattern)


def _try_rule(
    rule: PlaceRule, texts: Sequence[str], golds: Sequence[str], tested: Sequence[int], *, tries: int
) -> Proof | None:
    found = {at: taken for at, text in enumerate(texts) if (taken := rule.take(text)) is not None}
    fired = [at for at in tested if at in found]
    # What reads the same from behind is written backwards as it is, and one word has no spaces.
    otherwise = "backwards" in rule.transform or _OF.get(rule.transform) == "name"
    forms = {at: dict(_forms_of(golds[at])).get(rule.transform, golds[at] if otherwise else "\0") for at in found}
    right = {at for at in found if golds[at] and same(found[at], forms[at])}
    hits = len(right & set(fired))
    if not hits:
        return None
    chance = hit_chance([found[at].casefold() for at in fired], [forms[at].casefold() for at in fired])
    if not is_no_chance(hits, len(fired), len(tested), chance=chance, tries=tries):
        return None
    undone = {at: golds[at] if at in right else text for at, text in found.items()}
    return Proof(str(rule), hits, len(fired), chance, undone)
