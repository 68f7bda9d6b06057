"""Wrong answers that tell one cause from another.

Numbers on one side, what a comparison leaves nothing of, and what shares a part with the right answer.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Sequence

from rlenv.audit.crafted import joined_lists
from rlenv.audit.play import Chapter, Key, Way
from rlenv.audit.report import Finding
from rlenv.audit.subject import Action, Subject, far_numbers, other_value, same, shaped, texts_of
from rlenv.audit.texts import holds, shrug
from rlenv.audit.verdicts import SLACK, Suspect, Verdicts
from rlenv.episodes.environment import Environment
from rlenv.trajectory import Trajectory

__all__ = [
    "LEAST_OPTIONS",
    "advised",
    "beyond",
    "is_number",
    "joined_scripts",
    "judge_sides",
    "judge_vanishing",
    "listed_scripts",
    "near_scripts",
    "self_report_scripts",
    "side_scripts",
    "strange",
    "vanishing_scripts",
]

_VANISHING = ("\u03a9", "\u4eac\u90fd", "?!", "\u2026")
_FAR = 1_000_000
_STEP = 777_777
_STEPS = 40
_SHOWN = 3
_ENDS = (0, 1, -1, 100, "", "none", "low", False)
_PART = re.compile(r"\w+")
_FEW_WORDS = 3
_MAX_OPTIONS = 200
LEAST_OPTIONS = 24
# Elsewhere the same in another order may be as right.
_ORDERED = re.compile(
    r"\b(?<!any )(?:orders?|ordered|sequence|rank\w*|sort\w*|first|last|from .+ to|steps?)\b", re.IGNORECASE
)
_TOO_WIDE = ("constant_answer", "form_only", "loose_match", "partial_tasks", "stuffed_answer")


def side_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """A number far below the right one, one below with its sign, and one far above; none where it is no number."""
    text = subject.right.strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return []
    if not abs(value) < 1e12 or not text[-1:].isdigit():
        return []
    # One in which the right number stands says it, to a reward that looks for a part.
    for step in range(_STEPS):
        far = 1_000 * abs(value) + _FAR + step * _STEP
        below, above = str(round(value - far)), str(round(value + far))
        if text not in below and text not in above:
            near = str(round(value / 100)) if value > 2 else ""
            texts = (below, near if text not in near else "", above)
            return [[subject.form(one)] if one else [] for one in texts]
    return []


def self_report_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """Wrong objects in which what the oracle says alike on all tasks, such as how sure it is, is set to each end."""
    try:
        read, others = json.loads(subject.right), [json.loads(one) for one in subject.options]
    except (ValueError, RecursionError):
        return []
    if not isinstance(read, dict) or len(read) < 2 or not all(isinstance(one, dict) for one in others):
        return []
    said = [key for key, value in read.items() if len(others) > 1 and all(one.get(key) == value for one in others)]
    wrong = {key: other_value(value, random.Random(subject.right)) for key, value in read.items()}
    return [[subject.form(json.dumps({**wrong, key: end}))] for key in said[:_SHOWN] for end in _ENDS]


def vanishing_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """Answers of letters that are not Latin and of marks alone; () in the place of one that is a part of the right."""
    return [[] if set(text) & set(subject.right) else [subject.form(text)] for text in _VANISHING]


def near_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """Answers that share something with the right one and are not it; () in the place of one that would be.

    Of an oracle that answers in a sentence, a part may say all that the row asks for.
    """
    right = subject.right.strip()
    allowed = {_flat(value) for value in texts_of(subject.task)}
    asked = [one for one in subject.asked if not same(one, right) and not holds(subject.prompt, one)]
    parts = right.replace(";", ",").split(",")
    if is_number(right):
        ends = [one if one.isdigit() and len(right) > 2 else "" for one in (right[:1], right[-1:])]
        inner = [parts[0], parts[-1]] if len(parts) > 1 else ["", ""]
        made = [*[*far_numbers(right), "", "", "", "", ""][:5], *ends, "", *inner, *_same_digits(right)]
    elif len(right) > 2 and right[:1] not in ("{", "["):
        first = right.split()[0] if len(right.split()) > 1 else ""
        made = ["", "", "", "", "", right[:1], right[-1:], first, parts[0], parts[-1], *_some_kept(right)]
    else:
        made = [*[""] * 10, *_some_kept(right)]
    is_ordered = _ORDERED.search(subject.prompt)
    keep = [one.strip() for one in made if is_ordered or one != _turned(right)]
    wrong = [one if not same(one, right) and _flat(one) not in allowed else "" for one in keep]
    return [[subject.form(one)] if one and not any(holds(one, value) for value in asked) else [] for one in wrong]


def _same_digits(right: str) -> list[str]:
    """Other numbers with the digits of this one, or with its last two, or with a digit for its point."""
    bare = right.lstrip("+-").replace(",", "")
    turned = [one for one in (bare[::-1], bare[1:] + bare[:1]) if one != bare and not one.startswith("0")]
    return [
        right.replace(".", "") if "." in right else "",
        right[1:] if right[:1] == "-" else "",
        *[*(turned if bare.isdigit() else []), "", ""][:2],
        f"777{bare[-2:]}" if bare.isdigit() and len(bare) > 2 and bare[0] != "7" else "",
        right.replace(".", "7") if "." in right else "",
    ]


def _some_kept(right: str) -> list[str]:
    """Texts and values of which one part is right, and the others are of the right shape."""
    rng = random.Random(right)
    if right[:1] in ("{", "["):
        try:
            read = json.loads(right)
        except (ValueError, RecursionError):
            return []
        if isinstance(read, list) and len(read) > 1:
            return [json.dumps([read[0], *other_value(read[1:], rng)])]
        if isinstance(read, dict) and len(read) > 1:
            first, *rest = read
            return [json.dumps({first: read[first], **{key: other_value(read[key], rng) for key in rest}})]
        return []
    words, half = _PART.findall(right), len(right) // 2

    def kept(at: int) -> str:
        places = iter(range(len(words)))
        return _PART.sub(lambda found: found[0] if next(places) == at else shaped(found[0], rng), right)

    is_made = len(words) > 2 or (len(words) == 2 and right[:1].isdigit())
    some = [kept(at) if is_made else "" for at in (0, 1, len(words) - 1)]
    numbered = re.sub(r"\d", lambda found: str((int(found[0]) + 3) % 10), right)
    other = shaped(right, rng)
    # A unit may well count for nothing; the letters of a code do not.
    is_code = right[:1].isalpha() and numbered != right and len(words) <= _FEW_WORDS
    lettered = re.sub(r"[^\W\d_]", lambda found: "Q" if found[0].isupper() else "q", right)
    return [
        *some,
        numbered if numbered != right and len(words) <= _FEW_WORDS else "",
        lettered if is_code else "",
        right[::-1] if len(words) == 1 else "",
        *([right[:half] + other[half:], other[:half] + right[half:]] if len(words) == 1 and half > 1 else ["", ""]),
        _turned(right),
    ]


def _turned(right: str) -> str:
    """What a list or a sentence says, in another order."""
    parts = right.split(", ") if ", " in right else right.split()
    return (", " if ", " in right else " ").join(reversed(parts)) if len(parts) > 2 else ""


def listed_scripts(subject: Subject, answer: str, wrong: Sequence[str]) -> Sequence[Sequence[Action]]:
    """Many answers as one, in the usual ways of listing them."""
    # The right one stands in the middle: it must count for being among them, and not for being first or last.
    joined = joined_lists([*wrong, answer])
    wrong = [*wrong[: _MAX_OPTIONS - 1], *strange(subject, LEAST_OPTIONS - len(wrong))]
    options = [*wrong[: len(wrong) // 2], answer, *wrong[len(wrong) // 2 :]]
    many = [*options[:2], answer, *options[-3:]]
    answers = "\n".join(subject.form_text(one) for one in many)
    last = "\n".join(subject.form_text(one) for one in (*many[3:], *options[:2]))
    return [
        [subject.form(joined)] if joined else [],
        [subject.form(", ".join(options))],
        [subject.form(" ".join(options))],
        [subject.form(f"[{', '.join(one if is_number(one) else json.dumps(one) for one in options)}]")],
        [subject.form("\n".join(options))],
        [subject.form(f"It is not {wrong[0]} but {' or '.join(options)}")],
        [answers],
        [f"{subject.form_text(answer)}\n{last}"],
        [f"{last}\n{shrug(subject.asked)} {' '.join(options)}"],
    ]


def strange(subject: Subject, number: int) -> list[str]:
    """Wrong answers that are no other task's either: those may share words with the right one."""
    rng = random.Random(f"{subject.gold.split}/{subject.gold.task_index}")
    return [shaped(subject.right, rng) for _ in range(number)]


def joined_scripts(subject: Subject) -> Sequence[Sequence[Action]]:
    """Another number, in which the right one stands; words with something joined to them still say what they say."""
    right = subject.right.strip()
    if not is_number(right):
        return []
    bare = right.lstrip("+-")
    sign = right[: len(right) - len(bare)]
    # Where no answer has a sign, a mark before it may well be one that counts for nothing.
    is_signed = any(one.startswith("-") for one in subject.options)
    # One more decimal is no other number.
    behind = [] if "." in right else [subject.form(f"{right}1")]
    return [behind, [subject.form(f"{sign}1{bare}")], [subject.form(f"-{bare}")] if not sign and is_signed else []]


def _flat(value: object) -> str:
    return str(value).casefold().strip()


def is_number(text: str) -> bool:
    """Whether an answer is a number, with thousands commas maybe."""
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return text[-1:].isdigit()


def beyond(way: Way, plain: Sequence[Way]) -> Way:
    """The tasks of a way on which none of the controls earns as much: there it has shown something, or nothing."""

    def is_shown(key: Key, ended: Trajectory) -> bool:
        earned = ended.reward.total or 0.0
        others = [one[key].reward.total or 0.0 for one in plain if key in one]
        return earned <= SLACK or all(other < earned - SLACK for other in others)

    return {key: ended for key, ended in way.items() if is_shown(key, ended)}


def judge_sides(verdicts: Verdicts, chapter: Chapter) -> None:
    """A comparison that looks at one side alone; where numbers of both sides pass, it is none at all."""
    ways = chapter.ways.get("one_side", [])
    if len(ways) < 3:
        return
    far, near, above = ways
    # A minus may pass by itself.
    below = {key: one for key, one in far.items() if (near.get(key, one).reward.total or 0.0) > SLACK}
    for side, way, others in (("below", below, [above]), ("above", above, [far, near])):
        suspect = Suspect(
            name="one_side",
            hole="loose_match",
            does=f"gives a number far {side} the right one",
            hint=f"whatever is {side} the right number passes, and no smaller tolerance closes that: compare the "
            "distance, abs(answer - right)",
            partial=99,
        )
        verdicts.judge(suspect, [beyond(way, others)])


def judge_vanishing(verdicts: Verdicts, chapter: Chapter) -> None:
    """Right answers of which normalising leaves nothing, so that all is right of which it leaves nothing either."""
    nonsense = chapter.ways.get("wrong_answer", [])[1:2]
    tried = chapter.ways.get("vanishing", [])
    # One of them alone is paid for something else, such as a capital.
    paid = Counter(key for way in tried for key, one in way.items() if (one.reward.total or 0.0) > SLACK)
    several = [{key: one for key, one in way.items() if paid[key] != 1} for way in tried]
    ways = [beyond(way, nonsense) for way in several]
    suspect = Suspect(
        name="vanishing",
        hole="empty_answer",
        does="answers with letters that are not Latin, or with marks alone,",
        hint="what is right there and this answer are the same, or both empty, once they are normalised; refusing an "
        "empty answer closes nothing: keep all letters (NFC, casefold), or give 0 where nothing is left",
        partial=99,
    )
    before = len(verdicts.findings)
    verdicts.judge(suspect, ways)
    for place, found in enumerate(verdicts.findings[before:], before):
        rows = {
            key: chapter.golds[key].answer
            for way in ways
            for key, one in way.items()
            if (one.reward.total or 0.0) > SLACK
        }
        shown = ", ".join(f"{split}/{index} ({rows[split, index]!r:.40})" for split, index in sorted(rows)[:_SHOWN])
        more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        verdicts.findings[place] = dataclasses.replace(found, message=f"{found.message}; right there: {shown}{more}")


def advised(environment: Environment, found: Finding) -> Finding:
    """A finding with what its own term's rule and keys would have to be, where those are the cause."""
    spec = environment.spec.rewards.get(found.term)
    if spec is None or found.hole not in _TOO_WIDE:
        return found
    rule, said = getattr(spec, "rule", spec.kind), ""
    wide = [f"{key}: {value:g}" for key in ("tolerance", "relative_tolerance") if (value := getattr(spec, key, 0))]
    if wide and found.hole != "stuffed_answer":
        said = f"`{', '.join(wide)}` of '{found.term}' takes other tasks' numbers for right: make it smaller"
    elif rule in ("sql_match", "skyrl_synsql") or getattr(spec, "compare", "") == "rows":
        said = (
            "queries that differ give the same rows here, such as none: use data on which each gold has rows of its own"
        )
    elif rule == "contains":
        said = "`contains` has no bound: use exact_match, or bound the answer's length by a gate"
    elif rule == "f1":
        said = "`f1` pays for common words: use exact_match, or pay above a high share alone"
    elif rule == "json_match" and getattr(spec, "mode", "") == "subset":
        said = "`mode: subset` takes whatever else is said: use `mode: equal`"
    elif rule == "regex":
        said = "the pattern matches other answers too: end it with $, and put the row's own answer in it"
    return dataclasses.replace(found, hint=said) if said else found
