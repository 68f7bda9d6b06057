"""Rules of place: where in a text a gold stands, learnt on one half of the rows and tried on the other.

A rule is what a policy could do without reading the question: take what stands behind `ref: `, or in front of `.txt`.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from rlenv.audit.golds import tail
from rlenv.rewards.normalise import number

__all__ = ["PlaceRule", "Sure", "learn"]

_LEARNT = 100
_TESTED = 300
_RULES = 60
_TEXT_CHARS = 20_000
_GOLD_CHARS = 200
_HITS = 0.8
_FIRES = 0.25
_LEAST = 4
_RARE = 1e-3
_DIGITS = re.compile(r"\d+")
_NUMBER = r"(?<!\d)(?<!\d[.,])[-+]?\d+(?:[.,]\d+)*(?!\d)"
_WORD = r"(?<![^\W\d_])[^\W_]+"
_LINE = r"[^\n]{1,200}?"
_VALUES = {"number": _NUMBER, "word": _WORD, "line": _LINE}
_OF = {
    **dict.fromkeys(("times 100", "by its number from 0", "by its number from 1", "as 1 or 0"), "number"),
    **dict.fromkeys(("in hexadecimal", "as a hexadecimal number", "by its first letter"), "word"),
    "in base64": "line",
}
"""What a hidden gold looks like; of the other forms it looks like the gold."""
_LEFTS = (r"[^\n]{1,40}$", r"\w+\W+\w+\W*$", r"\w+\W*$", r"[^\w\s]\s*$")
_FLAGS = {"yes": "1", "no": "0", "true": "1", "false": "0"}
_SHORT_FLAGS = {"yes": "y", "no": "n", "true": "t", "false": "f"}


@dataclass(frozen=True, slots=True)
class PlaceRule:
    """Take the first or last thing between `left` and `right`, and undo `transform`."""

    left: str
    right: str
    transform: str
    is_last: bool
    pattern: re.Pattern[str]

    def take(self, text: str) -> str | None:
        """What stands at the place, None where the text has no such place."""
        found = self.pattern.findall(text[:_TEXT_CHARS])
        return found[-self.is_last] if found else None

    def __str__(self) -> str:
        behind = f"behind {self.left!r}" if self.left else "at the start of a line"
        before = " and ends the line" if self.right == "\n" else f" and before {self.right!r}" if self.right else ""
        form = "" if self.transform == "itself" else f", {self.transform}"
        return f"what stands {behind}{before} ({'last' if self.is_last else 'first'} such place{form})"


@dataclass(frozen=True, slots=True)
class Sure:
    """A rule that gives golds away: right on `hits` of the `of` rows of the other half where it says anything."""

    rule: PlaceRule
    hits: int
    of: int
    chance: float
    rows: tuple[int, ...]
    """Places of the rows, of those given, on which it is right."""


def learn(
    texts: Sequence[str],
    golds: Sequence[str],
    *,
    allowed: Callable[[str, str, int, int, str], bool] = lambda text, left, start, end, transform: True,
) -> Sure | None:
    """The best rule that finds golds in the texts, None where no rule is far above chance.

    Chance is what the rule would hit if the golds were dealt anew, or always saying the commonest one, whichever is
    more; the probability of so many hits, times the number of rules tried, is below 0.001.

    Args:
        texts: one of each row.
        golds: their golds.
        allowed: asked with the text, what stands before, the place and the transform; False where to read there is
            what the task asks for.
    """
    pairs = [(text, gold) for text, gold in zip(texts, golds, strict=True)]
    learnt, tested = _sample(range(0, len(pairs), 2), _LEARNT), _sample(range(1, len(pairs), 2), _TESTED)
    usable = [at for at in (*learnt, *tested) if 0 < len(pairs[at][1]) <= _GOLD_CHARS and "\n" not in pairs[at][1]]
    if len(tested) < _LEAST or 2 * len(usable) < len(learnt) + len(tested):
        return None
    kind = _kind_of([pairs[at][1] for at in usable])
    counts: Counter[tuple[str, str, str]] = Counter()
    for at in learnt:
        text, gold = pairs[at][0][:_TEXT_CHARS], pairs[at][1]
        counts.update(set(_candidates(text, gold, kind, allowed)))
    least = max(2, len(learnt) * _FIRES / 2)
    candidates = [one for one, count in counts.most_common(_RULES) if count >= least]
    best: Sure | None = None
    for left, right, transform in candidates:
        pattern = re.compile(_regex(left, _VALUES[_OF.get(transform, kind)], right), re.MULTILINE)
        for is_last in (False, True):
            rule = PlaceRule(left.replace(r"\d+", "0"), right, transform, is_last, pattern)
            sure = _tried(rule, pairs, tested, tries=2 * len(candidates))
            if sure is not None and (best is None or (sure.hits, len(left)) > (best.hits, len(best.rule.left))):
                best = sure
    return best


def _sample(places: range, most: int) -> list[int]:
    return list(places[:: max(1, -(-len(places) // most))])


def _regex(left: str, value: str, right: str) -> str:
    before = "".join(r"\d+" if part == r"\d+" else re.escape(part) for part in re.split(r"(\\d\+)", left)) or "^"
    after = "$" if right == "\n" else re.escape(right)
    return f"{before}({value})(?={after})" if after else f"{before}({value})"


def _kind_of(golds: Sequence[str]) -> str:
    if all(number(gold) is not None for gold in golds):
        return "number"
    return "word" if all(re.fullmatch(r"[^\W_]+", gold) for gold in golds) else "line"


def _forms(gold: str) -> Iterator[tuple[str, str]]:
    """The gold, and what it is hidden as: each with the words that say so."""
    yield "itself", gold
    if len(gold) > 1 and gold != gold[::-1]:
        yield "written backwards", gold[::-1]
    data = gold.encode("utf-8", "replace")
    yield "in base64", base64.b64encode(data).decode().rstrip("=")
    yield "in hexadecimal", data.hex()
    if (turned := codecs.encode(gold, "rot13")) != gold:
        yield "in rot13", turned
    if (exact := number(gold)) is not None and exact == int(exact) and exact:
        yield "times 100", str(int(exact) * 100)
        yield "as a hexadecimal number", f"{abs(int(exact)):x}"
    if re.fullmatch("[A-Z]", gold):
        yield "by its number from 0", str(ord(gold) - 65)
        yield "by its number from 1", str(ord(gold) - 64)
    if gold.casefold() in _FLAGS:
        yield "as 1 or 0", _FLAGS[gold.casefold()]
        yield "by its first letter", _SHORT_FLAGS[gold.casefold()]


def _candidates(
    text: str, gold: str, kind: str, allowed: Callable[[str, str, int, int, str], bool]
) -> Iterator[tuple[str, str, str]]:
    for transform, form in _forms(gold):
        bound = r"\d" if form[:1].isdigit() else r"[^\W\d_]"
        ends = r"\d" if form[-1:].isdigit() else r"[^\W\d_]"
        zeros = "0*" if form.isdigit() else ""
        pattern = re.compile(f"(?<!{bound}){zeros}{re.escape(form)}(?!{ends})", re.IGNORECASE)
        for found in list(pattern.finditer(text))[:20]:
            start, end = found.span()
            before = text[:start].rpartition("\n")[2]
            after = text[end : end + 1]
            right = "\n" if after in ("", "\n") else after if not after.isalnum() and not after.isspace() else ""
            lefts = [""] if not before else [match[0] for left in _LEFTS if (match := re.search(left, before))]
            for left in dict.fromkeys(lefts):
                if allowed(text, left, start, end, transform):
                    shape = _DIGITS.sub(lambda _: r"\d+", left)
                    yield shape, right, transform
                    if right and transform == "itself" and kind != "line":
                        yield shape, "", transform


def _same(taken: str, form: str) -> bool:
    if taken.strip().casefold() == form.casefold():
        return True
    mine = _value(taken)
    return mine is not None and mine == _value(form)


def _value(text: str) -> Decimal | None:
    return number(text.strip())


def _tried(rule: PlaceRule, pairs: Sequence[tuple[str, str]], tested: Sequence[int], *, tries: int) -> Sure | None:
    taken: list[str] = []
    wanted: list[str] = []
    right: list[int] = []
    for at in tested:
        text, gold = pairs[at]
        # What reads the same from behind is written backwards as it is.
        form = dict(_forms(gold)).get(rule.transform, gold if "backwards" in rule.transform else None) if gold else None
        found = rule.take(text)
        if found is None:
            continue
        taken.append(found.strip().casefold())
        wanted.append((form or "\0").casefold())
        if form is not None and _same(found, form):
            right.append(at)
    fired = len(taken)
    if fired < max(_LEAST, _FIRES * len(tested)) or len(right) < _HITS * fired:
        return None
    dealt, said = Counter(wanted), Counter(taken)
    anew = sum(count * dealt.get(one, 0) for one, count in said.items()) / fired**2
    chance = max(anew, max(dealt.values()) / fired, 1 / (fired + 1))
    if tail(len(right), fired, chance) * tries >= _RARE:
        return None
    return Sure(rule, len(right), fired, chance, tuple(right))
