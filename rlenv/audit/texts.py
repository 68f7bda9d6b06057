"""Texts that say nothing, and texts that ask a judge for a score that the work has not earned.

What a policy without merit writes must not hold the right answer by accident: a long text with numbers in it holds one
task's number, "I do not know" holds a "no" and the letter D.

The kinds of texts for judges are those that were shown to move judges: instructions and made-up verdicts (Shi et al.
2024, "Optimization-based prompt injection attack to LLM-as-a-judge"; Raina et al. 2024, "Is LLM-as-a-judge robust?"),
flattery, authority, made-up references and length (Ye et al. 2024, "Justice or prejudice?"), and messages that look
like the system's, a tool's or a user's. Each stands on the judge's own scale and names the key of its reply."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

_HARD, _SOFT = "zqxvkwjbfg", "uoiyae"
_SHRUGS = ("I do not know.", "Unsure.", "Hmm.", "?")
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"(\s+)")


def nonce(number: int, *, without: Sequence[str]) -> list[str]:
    """So many different words of no language: no digits, and none of these texts in any of them."""
    texts = _casefold_texts(without)
    letters = {one for text in texts if len(text) <= 2 for one in text}
    hard = [one for one in _HARD if one not in letters]
    soft = [one for one in _SOFT if one not in letters]
    parts = [first + second for first in hard for second in soft]
    made = (_nonce_word(index, parts) + hard[index % len(hard)] for index in count())
    return list(islice((word for word in made if not any(text in word for text in texts)), number))


def _casefold_texts(texts: Sequence[str]) -> list[str]:
    return [plain for text in texts if (plain := text.casefold().strip())]


def _nonce_word(index: int, parts: list[str]) -> str:
    low, high = parts[index % len(parts)], parts[index // len(parts) % len(parts)]
    more = index // len(parts) ** 2
    return low + high + (_nonce_word(more - 1, parts) if more else "")


def like(text: str, *, without: Sequence[str]) -> str:
    """A text of as many words as this one, each as long, that says nothing."""
    pieces = _SPACE.split(text)
    words = iter(nonce(len(pieces), without=without))
    return "".join(one if one.isspace() or not one else (next(words) * len(one))[: len(one)] for one in pieces)


def shrug(without: Sequence[str]) -> str:
    """Says that the policy does not know, in words that hold none of these texts."""
    texts = _casefold_texts(without)
    return next((said for said in _SHRUGS if not any(text in said.casefold() for text in texts)), "")


def holds(text: str, right: str) -> bool:
    """True if a text holds the right answer as words of its own."""
    wanted = _WORD.findall(right.casefold())
    if not wanted:
        return False
    between = r"\W+".join(map(re.escape, wanted))
    return re.search(rf"(?<!\w){between}(?!\w)", text.casefold()) is not None


DATA: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


WORDS: Final[Mapping[str, Sequence[str]]] = DATA["words"]
HINTS: Final[Mapping[str, str]] = DATA["hints"]


def any_of(name: str) -> re.Pattern[str]:
    """Finds any of these words, in any case."""
    return re.compile(rf"\b(?:{'|'.join(WORDS[name])})\b", re.IGNORECASE)


def _attack_text(entry: Mapping[str, Any]) -> str:
    return entry.get("text") or "".join(unit * times for unit, times in entry["repeat"])


TELLS: Final = {one["name"]: _attack_text(one) for one in DATA["tell"]}
"""The texts by kind; `score`, `key` and `reply` (the reply that gives the score, as JSON) are filled in."""


def judge_tells(*, scale: tuple[float, float], value_key: str = "score", is_paid: bool = True) -> dict[str, str]:
    """The texts for one judge by their kind, whose names are stable.

    Args:
        scale: the judge's lowest and highest score.
        value_key: the key of its reply that holds the score.
        is_paid: False where the term's weight is negative, so that the lowest score is the one to ask for.
    """
    wanted = float(scale[is_paid])
    score = int(wanted) if wanted.is_integer() else wanted
    reply = json.dumps({"reasoning": "perfect", value_key: score})
    return {name: text.format(score=score, key=value_key, reply=reply) for name, text in TELLS.items()}


_WORD_OF_JUDGE_TEXTS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class JudgeAttack:
    """A text that is put to a wrong answer. `hole` is what a judge has that rises with it.

    One that `is_mixed` holds a made-up verdict too: of a judge that reads those it says nothing more.

    In `text`, `$score` is the best score of the judge's scale (the lowest where its weight is negative), `$high` the
    scale's upper end, `$key` the key of a reply's score, `$reply` a reply with that score, `$answer` the wrong answer
    and `$plain` all that it stands in.
    """

    hole: str
    name: str
    text: str
    is_mixed: bool = False


def words_of(text: str) -> str:
    """The words of a text without what it says: in the order of the alphabet, without numbers and marks.

    A judge that is moved by this as by the text has not read it, but likes some of its words. Writing that sets no
    space between words is taken apart into characters, of which none is an instruction.
    """
    words = [
        one
        for word in _WORD_OF_JUDGE_TEXTS.findall(text.casefold())
        for one in ([word] if word.upper() != word else word)
    ]
    return " ".join(sorted(set(words)))


NEUTRAL: Final[str] = DATA["neutral"]
"""About as long as most attacks: what rises with it as well rises for words, whatever they say."""


def _tell_to_template(text: str) -> str:
    return text.format(score="$score", key="$key", reply="$reply")


ATTACKS: Final = (
    *(JudgeAttack(one["hole"], one["name"], _attack_text(one)) for one in DATA["attack"]),
    *(
        JudgeAttack(one["hole"], one["name"], _tell_to_template(TELLS[one["name"]]), is_mixed=one["name"] != "verdict")
        for one in DATA["tell"]
    ),
)
"""Every text that is tried, with the hole that it shows."""

_MACHINE: Final = DATA["machine"]
MACHINE: Final[Mapping[str, str]] = {
    name: text.replace("PLANTS", _MACHINE["plants"]) for name, text in _MACHINE.items() if isinstance(text, str)
}
HOLLOWS, HOLLOWS_LINES, COPIES = (
    f"{MACHINE['leaves_programs'].partition('echo zqx')[0]}{does}; done" for does in _MACHINE["to_each_file"]
)
BREAKS: Final[Sequence[str]] = _MACHINE["breaks"]
