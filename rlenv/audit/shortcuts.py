"""Right answers that the form of a question gives away: its length, its marks, the place or the look of an option.

Rules of a few cheap features are learnt on every second task and tried on the others; what they say is played.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from rlenv.audit.golds import tail
from rlenv.audit.marks import is_mark
from rlenv.audit.play import Leak
from rlenv.audit.subject import Subject, options_of, same
from rlenv.rewards.normalise import number

__all__ = ["find_shortcut"]

_LEAST = 16
_HITS = 0.8
_RARE = 1e-3
_MOST_ANSWERS = 12
_MOST_TASKS = 400
_WORD = re.compile(r"\w+")
# A question about the features themselves is answered by them.
_ASKS_FORM = re.compile(
    r"\b(?:long|short|larg|small|big|great|high|low|most|least|max|min|few|more|less|count|many|letter|word|character|digit"
    r"|alphabet|first|last|even|odd|length|number of|sort|vowel|capital letter)\w*",
    re.IGNORECASE,
)

_WHOLE = re.compile(r"\d{1,9}")
_DENIES = re.compile(r"\b(?:not|never|no|none|nobody|nothing|neither|nor|cannot|without)\b|n't\b", re.IGNORECASE)
_WORDS = (
    "always all only some none every any also very just but because still since later once even and or may"
    " might must".split()
)
_SAYS_HOW = re.compile(r"\b(?:answer|reply|respond)\b[^.\n?]*", re.IGNORECASE)


def _size(text: str) -> float:
    value = number(text)
    return 0.0 if value is None else float(value)


def _has(word: str, text: str) -> bool:
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


def _modulo(by: int, text: str) -> int | None:
    """What is left of the first number that is a mark on the prompt and no part of what is asked."""
    found = next((one for one in _WHOLE.finditer(text) if is_mark(text, *one.span(), "computed")), None)
    return int(found[0]) % by if found else None


_LOOKS: dict[str, Callable[[str], Hashable]] = {
    "how long it is": lambda text: len(text) // 4,
    "how many words it has": lambda text: len(_WORD.findall(text)),
    "whether it has an odd number of characters": lambda text: len(text) % 2,
    "its marks": lambda text: "".join(sorted({one for one in text if not one.isalnum() and not one.isspace()})),
    "its first word": lambda text: next(iter(_WORD.findall(text)), ""),
    "its capitals": lambda text: sum(one.isupper() for one in text),
    "its spaces": lambda text: (len(re.findall(r"\s{2,}", text)), text != text.strip()),
    "whether its first number is odd": lambda text: [int(one) % 2 for one in re.findall(r"\d{1,9}", text)[:1]] == [1],
    "its digits": lambda text: sum(one.isdigit() for one in text),
}
_LOOKS["a word that denies"] = lambda text: _DENIES.search(text) is not None
_LOOKS |= {f"the word {word!r}": partial(_has, word) for word in _WORDS}
_LOOKS |= {f"its mark modulo {by}": partial(_modulo, by) for by in (2, 3, 4, 5, 7, 10)}
"""Features of a prompt that say nothing of what is asked."""
_PICKS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "the longest option": lambda options: max(options, key=len),
    "the shortest option": lambda options: min(options, key=len),
    "the first option": lambda options: options[0],
    "the last option": lambda options: options[-1],
    "the option with most words": lambda options: max(options, key=lambda one: len(one.split())),
    "the option with digits": lambda options: max(options, key=lambda one: sum(sign.isdigit() for sign in one)),
    "the option with most marks": lambda options: max(options, key=lambda one: sum(not s.isalnum() for s in one)),
    "the option with most capitals": lambda options: max(options, key=lambda one: sum(s.isupper() for s in one)),
    "the largest number": lambda options: max(options, key=_size),
    "the smallest number": lambda options: min(options, key=_size),
    "the number in the middle": lambda options: sorted(options, key=_size)[(len(options) - 1) // 2],
    "the option that comes first in the alphabet": lambda options: min(options, key=str.casefold),
    "the option that comes last in the alphabet": lambda options: max(options, key=str.casefold),
}


def find_shortcut(subjects: Sequence[Subject]) -> Leak | None:
    """The best rule that is far above chance on tasks that it was not learnt on, None without any."""
    some = [one for one in subjects if one.right][:_MOST_TASKS]
    if len(some) < _LEAST or 2 * sum(map(_asks_form, some)) > len(some):
        return None
    # Rows may take turns.
    mixed = random.Random(0).sample(range(len(some)), len(some))
    learnt, tested = mixed[::2], mixed[1::2]
    best: Leak | None = None
    for name, said, chance in (*_by_option(some), *_by_look(some, learnt)):
        fired = [at for at in tested if at in said]
        hits = sum(same(said[at], some[at].right) for at in fired)
        of_all = sum(same(said[at], some[at].right) for at in said)
        is_sure = hits >= _HITS * len(tested) and tail(hits, len(tested), chance) < _RARE
        # Learnt or not: of so many rules one fits by chance.
        is_sure = is_sure and tail(of_all, len(some), chance) * len(_LOOKS) < _RARE
        if is_sure and (best is None or hits > best.hits):
            best = Leak(
                name, f"{hits} of {len(tested)} by {name}", {some[at].gold.task_index: said[at] for at in said}, hits
            )
    return best


def _asks_form(subject: Subject) -> bool:
    """Whether a question, without its options and how to answer it, is about the look of something."""
    text = subject.prompt
    for option in sorted(_labelled(subject), key=len, reverse=True):
        text = text.replace(option, "")
    return bool(_ASKS_FORM.search(_SAYS_HOW.sub("", text)))


def _by_option(subjects: Sequence[Subject]) -> Iterator[tuple[str, Mapping[int, str], float]]:
    """What a policy says that picks by the look of an option."""
    listed = [_labelled(one) for one in subjects]
    if any(not options for options in listed):
        return
    chance = sum(1 / len(options) for options in listed) / len(listed)
    for name, pick in _PICKS.items():
        said = {}
        for at, options in enumerate(listed):
            texts = list(options)
            chosen = pick(texts)
            # Of options that are alike none is picked by their look.
            if len({pick(texts), pick(texts[::-1])}) == 1 or "first option" in name or "last option" in name:
                said[at] = options[chosen]
        yield name, said, chance


def _labelled(subject: Subject) -> dict[str, str]:
    """A task's options by text, each with what is said to choose it; {} where it lists none."""
    options = options_of(subject)
    if not options:
        return {}
    texts = [_text_behind(subject.prompt, one) if len(one) == 1 else one for one in options]
    return dict(zip(texts, options, strict=True)) if all(texts) and len(set(texts)) == len(options) else {}


def _text_behind(prompt: str, label: str) -> str:
    found = re.search(
        rf"(?:^|[\s(]){re.escape(label)}[).:]\s+(\S[^\n]*?)(?=\s+\(?[A-J][).:]\s|\n|$)", prompt, re.MULTILINE
    )
    return found[1] if found else ""


def _by_look(subjects: Sequence[Subject], learnt: Sequence[int]) -> Iterator[tuple[str, Mapping[int, str], float]]:
    """What a policy says that has learnt which answer goes with which look of a question."""
    answers = Counter(one.right for one in subjects)
    if len(answers) > _MOST_ANSWERS or len(answers) < 2:
        return
    (common, count), *_ = answers.most_common(1)
    for name, look in _LOOKS.items():
        seen: dict[Hashable, Counter[str]] = defaultdict(Counter)
        for at in learnt:
            seen[look(subjects[at].prompt)][subjects[at].right] += 1
        known = {key: counts.most_common(1)[0][0] for key, counts in seen.items()}
        said = {at: known.get(look(one.prompt), common) for at, one in enumerate(subjects)}
        yield f"{name}, which says which answer is right", said, count / len(subjects)
