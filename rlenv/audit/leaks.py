"""Answers that stand where a policy can read them without doing the task.

An answer may well stand in a prompt that has to be read. It is given away where one rule finds it that knows nothing of
the question: the n-th number, the last word, what stands between two texts, the whole of what a call without a purpose
gives. Such a rule counts if it hits more often than a random choice of as many candidates would.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlenv.audit.golds import tail
from rlenv.audit.subject import same, trimmed

__all__ = ["Leak", "Source", "find", "lookup", "stands_in", "stands_in_each"]

Source = Mapping[str, str]
"""The texts of one task by what they are, in the same words on every task."""

Rule = Callable[[str], Sequence[str]]

_KINDS: Mapping[str, Rule] = {
    "number": re.compile(r"[-+]?\d+(?:[.,]\d+)*").findall,
    "word": re.compile(r"[^\W_]+(?:[-'.][^\W_]+)*").findall,
    "part": re.compile(r"[^\W_]+").findall,
    "quotation": re.compile(r"[`'\"]([^`'\"\n]+)[`'\"]").findall,
    "bracket": re.compile(r"[(\[{<]([^()\[\]{}<>\n]+)[)\]}>]").findall,
    "value behind a colon": re.compile(r"[:=]\s*([^\n:=;,]+)").findall,
    "line": lambda text: [line for line in text.splitlines() if line.strip()],
    "text": lambda text: [text] if text.strip() else [],
}
_PLACES = (0, 1, 2, -1, -2)
_CONTEXT = 8
_MOST_CHARS = 20_000
_SURE = 0.01
_ABOVE_CHANCE = 0.2
_MANY = 0.8


@dataclass(frozen=True, slots=True)
class Leak:
    """A rule that finds answers: where it looks, in words, and what it takes on each task (by its number)."""

    where: str
    rule: str
    taken: Mapping[int, str]
    hits: int


def find(sources: Sequence[Source], rights: Sequence[str]) -> list[Leak]:
    """The rules that find the right answers in texts of their tasks, best first; one for each place."""
    found: list[Leak] = []
    known = [index for index, right in enumerate(rights) if trimmed(right)]
    if len(known) < 3 or len({trimmed(rights[index]) for index in known}) < 2:
        return []
    for label in dict.fromkeys(label for source in sources for label in source):
        texts = {index: sources[index].get(label, "")[:_MOST_CHARS] for index in known}
        leaks = [*_positions(label, texts, rights), *_anchored(label, texts, rights)]
        if leaks:
            found.append(max(leaks, key=lambda leak: leak.hits))
    return sorted(found, key=lambda leak: -leak.hits)


def _positions(label: str, texts: Mapping[int, str], rights: Sequence[str]) -> list[Leak]:
    found = []
    for kind, rule in _KINDS.items():
        candidates = {index: rule(text) for index, text in texts.items()}
        if not any(any(same(one, rights[index]) for one in some) for index, some in candidates.items()):
            continue
        for place in _PLACES:
            taken = {
                index: some[place].strip()
                for index, some in candidates.items()
                if len(some) > place and len(some) >= -place
            }
            chance = _mean([1 / max(2, len(set(candidates[index]))) for index in taken])
            leak = _leak(label, f"the {kind} {_nth(place)}", taken, rights, chance, len(texts))
            found += [leak] if leak is not None else []
    return found


def _nth(place: int) -> str:
    return {0: "at its beginning", -1: "at its end"}.get(place, f"number {place + 1 if place > 0 else place}")


def _anchored(label: str, texts: Mapping[int, str], rights: Sequence[str]) -> list[Leak]:
    """What stands behind a text that stands before the answer on other tasks too, up to the same next character."""
    anchors: Counter[tuple[str, str]] = Counter()
    for index, text in texts.items():
        right = rights[index].strip()
        for at in [found.start() for found in re.finditer(re.escape(right), text)][:4]:
            if not _is_whole(text, at, at + len(right)):
                continue
            before, after = text[max(0, at - _CONTEXT) : at], text[at + len(right) :][:1]
            for length in {3, len(before)}:
                anchors[before[-length:], after] += 1
    found = []
    for (before, after), count in anchors.most_common(4):
        if count < 2 or not before.strip():
            continue
        pattern = re.compile(re.escape(before) + r"([^\n]+?)" + (re.escape(after) if after else r"\Z"))
        matches = {index: pattern.findall(text) for index, text in texts.items()}
        taken = {index: some[0] for index, some in matches.items() if some}
        chance = _mean([1 / max(2, len(some)) for some in matches.values() if some])
        leak = _leak(label, f"what stands behind {before!r}", taken, rights, chance, len(texts))
        found += [leak] if leak is not None else []
    return found


def _leak(
    label: str, rule: str, taken: Mapping[int, str], rights: Sequence[str], chance: float, tasks: int
) -> Leak | None:
    hits = sum(same(text, rights[index]) for index, text in taken.items())
    if not hits or hits / tasks <= _ABOVE_CHANCE:
        return None
    # One answer for many tasks is a guess, which others try.
    common = Counter(trimmed(rights[index]) for index in taken).most_common(1)[0][1]
    if len({trimmed(text) for text in taken.values()}) == 1 and common >= hits:
        return None
    is_every = tasks <= 6 and hits == tasks
    rules = len(_KINDS) * len(_PLACES)
    is_sure = hits / tasks - chance > _ABOVE_CHANCE and tail(hits, tasks, chance) * rules < _SURE
    return Leak(label, rule, taken, hits) if is_every or is_sure else None


def lookup(prompts: Sequence[str], label: str, text: str, rights: Sequence[str]) -> Leak | None:
    """A text that is the same on all tasks and says the answer behind, or before, a word that a task's prompt has."""
    words = Counter(trimmed(word) for word in _KINDS["part"](text))
    best: Leak | None = None
    for kind in ("number", "word"):
        for side in (1, -1):
            taken = {}
            for index, prompt in enumerate(prompts):
                for key in sorted(set(_KINDS["part"](prompt)), key=lambda one: (words[trimmed(one)], -len(one))):
                    if not words[trimmed(key)] or same(key, rights[index]):
                        continue
                    at = re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text, re.IGNORECASE)
                    rest = "" if at is None else text[at.end() :] if side > 0 else text[: at.start()]
                    some = _KINDS[kind](rest[:60] if side > 0 else rest[-60:])
                    if some:
                        taken[index] = some[0 if side > 0 else -1]
                        break
            if taken:
                chance = 1 / max(2, len({trimmed(right) for right in rights}))
                leak = _leak(label, f"the {kind} beside a word of the prompt", taken, rights, chance, len(rights))
                best = leak if leak is not None and (best is None or leak.hits > best.hits) else best
    return best


def stands_in(text: str, right: str) -> bool:
    """Whether an answer stands in a text as a whole word or number."""
    right = right.strip()
    if not right or len(text) > 10 * _MOST_CHARS:
        return False
    return any(_is_whole(text, found.start(), found.end()) for found in re.finditer(re.escape(right), text))


def _is_whole(text: str, start: int, end: int) -> bool:
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    inside = (before.isalnum() and text[start].isalnum()) or (after.isalnum() and text[end - 1].isalnum())
    # 42 does not stand in 3.42, nor in 42.5.
    behind, ahead = text[end : end + 2], text[max(0, start - 2) : start]
    decimal = text[end - 1].isdigit() and behind[:1] in (".", ",") and behind[1:].isdigit()
    decimal = decimal or (text[start].isdigit() and ahead[1:] in (".", ",") and ahead[:1].isdigit())
    return not inside and not decimal


def stands_in_each(texts: Sequence[str], rights: Sequence[str]) -> int:
    """On how many tasks the answer stands in the task's text, without as many answers of other tasks.

    Where other tasks' answers stand there too, the options are listed and none is given away.
    """
    count = 0
    for text, right in zip(texts, rights, strict=True):
        others = [other for other in dict.fromkeys(rights) if not same(other, right)]
        if stands_in(text, right) and not any(stands_in(text, other) for other in others):
            count += 1
    return count


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.5
