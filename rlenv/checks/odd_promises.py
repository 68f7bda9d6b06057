"""Warnings of what a prompt promises or asks for, and nothing in the spec or the rows keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rlenv.checks.odd_rows import Asked, asked_of, fixed_text, gold_of, gold_term, golds_of
from rlenv.checks.subject import Subject, strings_in
from rlenv.errors import Finding
from rlenv.rewards.base import Term

__all__ = ["check_promises"]

_NUMBER: Final = re.compile(r"[-+]?[$€£]?\d[\d,]*(?:\.\d+)?%?")
COUNTS: Final = dict(zip("one two three four five six seven eight nine ten".split(), range(1, 11), strict=True))


def _is_between(gold: str) -> bool:
    return bool(_NUMBER.fullmatch(gold)) and 0 < float(re.sub(r"[^\d.]", "", gold)) < 1 and "%" not in gold


_FORMS: Final[Sequence[tuple[str, str, Callable[[str], object]]]] = (
    ("yes or no", r"\b(?:yes or no|yes/no)\b|\"yes\" or \"no\"", lambda gold: gold.lower() in ("yes", "no")),
    ("true or false", r"\btrue or false\b|\btrue/false\b", lambda gold: gold.lower() in ("true", "false")),
    ("one letter", r"\b(?:single|one|the) letter (?:of|alone|between|only)|\bA, B, C,? (?:or|and) D\b",
     lambda gold: len(gold.strip("(). ")) == 1),
    ("one word", r"\b(?:one|a single|in one) word\b", 
     lambda gold: len(gold.split()) == 1 and re.search(r"[^\W\d_]", gold)),
    ("a whole number", r"\b(?:whole number|an? integer)\b|\bin (?:cents|pence|whole \w+)\b",
     lambda gold: re.fullmatch(r"[-+]?[\d,]+(?:\.0*)?", gold)),
    ("a number", r"\bwrite (?:only |just )?(?:the|a) (?:final )?number\b|\b(?:the|a) number (?:alone|only|between)\b",
     lambda gold: re.search(r"\d", gold)),
    ("YYYY-MM-DD", r"\bYYYY-MM-DD\b", re.compile(r"\d{4}-\d\d-\d\d").search),
    ("HH:MM", r"\bHH:MM\b", re.compile(r"\d\d?:\d\d").search),
    ("DD.MM.YYYY", r"\bDD\.MM\.YYYY\b", re.compile(r"\d\d?\.\d\d?\.\d{4}").search),
    ("capital letters", r"\b(?:in|all) (?:capitals|capital letters|upper ?case)\b", lambda gold: gold == gold.upper()),
    ("lower case", r"\bin lower ?case\b|\bin small letters\b", lambda gold: gold == gold.lower()),
    ("a unit", r"\bwith (?:its|the|a) (?:correct |right )?units?\b", re.compile(r"[^\W\d_]|[%$€£°]").search),
    ("a percentage", r"\b(?:what|which|as a|give the|in) (?:percent|percentage)\b", lambda gold: not _is_between(gold)),
)  # fmt: skip
"""What a prompt may ask for, how that is said, and which golds are of that form."""


def check_promises(subject: Subject) -> Iterator[Finding]:
    """Warnings of `prompt` beside limits, tools and golds."""
    asked = asked_of(subject)
    if asked and asked[0].texts:
        yield from _limits(subject, subject.loaded.spec.prompt.system or "")
        yield from _shots(subject)
        yield from _sizes(subject, asked[0].texts[0])
    yield from _images(subject)
    yield from _units(subject)
    term = gold_term(subject)
    if term is not None and term.spec.weight >= 0:
        for one in asked:
            golds = golds_of(subject, term, one)
            if golds:
                path = f"rewards.{term.name}.expect"
                yield from _forms(subject, path if subject.document.has(path) else "tasks", one, golds, term)


def _forms(subject: Subject, path: str, one: Asked, golds: Sequence[str], term: Term) -> Iterator[Finding]:
    """Golds that are not of the form that their own prompt asks for."""
    warn, where = subject.document.warning, f"of split '{one.split.name}'"
    rule, name = getattr(term.spec, "rule", ""), one.split.name
    if rule in ("json_match", "json_schema", "sql_match") or term.spec.kind != "rule":
        return
    for index, (text, gold) in enumerate(zip(one.texts, golds, strict=False)):
        asked = [(word, fits) for word, said, fits in _FORMS if re.search(said, text, re.IGNORECASE)]
        loose = ["capital letters", "lower case"] if getattr(term.spec, "normalise", "case") != "none" else []
        loose += ["a unit"] if rule in ("math_equal", "f1", "contains") else []
        loose += ["a whole number"] if getattr(term.spec, "tolerance", 0) >= 0.5 else []
        if word := next((word for word, fits in asked if word not in loose and not fits(gold)), ""):
            message = f"row {index + 1} {where} asks for {word}, and its gold value is {gold[:40]!r}"
            yield warn(path, message, "ask for what is right, or mend the row", "gold-form")
            return
        found = re.search(r"\b(\d|one|two|three|four) decimal(?:s| places?)\b", text, re.IGNORECASE)
        places = 0 if found is None else COUNTS.get(found[1].lower()) or int(found[1])
        if found is not None and getattr(term.spec, "tolerance", 0) >= 10 * 0.1**places:
            message = f"row {index + 1} {where} asks for {found[0]}, and the tolerance is {term.spec.tolerance:g}"  # type: ignore[attr-defined]
            yield warn(f"rewards.{term.name}.tolerance", message, "make it smaller", "any-answer")
            return
        if found is not None and re.fullmatch(r"-?\d+\.\d+", gold):
            places = COUNTS.get(found[1].lower()) or int(found[1])
            most = max(
                getattr(term.spec, "tolerance", 0), abs(float(gold)) * getattr(term.spec, "relative_tolerance", 0)
            )
            if abs(float(gold) - round(float(gold), places)) > most + 1e-12:
                message = f"row {index + 1} of split '{name}' asks for {found[0]}, and its gold value is {gold}"
                yield warn(path, message, "round the gold value, or allow a tolerance", "gold-form")
                return
        found = re.search(r"(?:at most|no more than|up to|fewer than|under) (\d+|\w+) words\b", text, re.IGNORECASE)
        most_words = None if found is None else COUNTS.get(found[1].lower()) or (found[1].isdigit() and int(found[1]))
        if found is not None and most_words and len(gold.split()) > most_words:
            message = (
                f"row {index + 1} of split '{name}' asks for {found[0]}, and its gold value has {len(gold.split())}"
            )
            yield warn(path, message, "shorten the gold value", "gold-form")
            return


_IMAGE: Final = re.compile(
    r"\b(?:look at|see|in|from|describe|read|given|attached|this)\s+(?:the |this |an? )?(?:attached |following )?"
    r"(?:image|picture|photo|photograph|screenshot)s?\b",
    re.IGNORECASE,
)
_UNITS: Final = (
    (r"celsius|metric|°C", r"fahrenheit|imperial|°F"),
    (r"kilomet(?:re|er)s?|km", r"miles?"),
    (r"kilograms?|kg", r"pounds?|lbs?"),
    (r"euros?|EUR", r"dollars?|USD"),
    (r"met(?:re|er)s", r"feet|inches"),
)
"""Units of which a prompt names one, and an entry another."""


def _images(subject: Subject) -> Iterator[Finding]:
    """A prompt that speaks of an image where nothing shows one, and one image for every task."""
    prompt = subject.loaded.spec.prompt
    if prompt.images and not any("task" in text or "resources" in text for text in prompt.images):
        message = "every task shows the same images"
        yield subject.document.warning("prompt.images", message, "name a column of the row", "same-prompt", at="key")
    may_show = any(tool.kind in ("python", "mcp", "model") for tool in subject.tools.values())
    for key in ("system", "user"):
        found = _IMAGE.search(getattr(prompt, key) or "")
        if found is not None and not prompt.images and not may_show:
            message = f"'{found[0]}' is spoken of, and no image is shown"
            yield subject.document.warning(f"prompt.{key}", message, "add 'images:'", "no-image", find=found[0])


def _units(subject: Subject) -> Iterator[Finding]:
    said = fixed_text(subject)
    for name in subject.loaded.spec.tools:
        entry = " ".join(text for path, text in strings_in(subject.document.get(("tools", name)), ()))
        for pair in _UNITS:
            for mine, other in (pair, pair[::-1]):
                here, there = (re.search(rf"(?i)\b(?:{mine})\b", text) for text in (said, entry))
                strange = re.search(rf"(?i)\b(?:{other})\b", entry)
                if here and strange and not there and not re.search(rf"(?i)\b(?:{other})\b", said):
                    message = f"the prompt speaks of {here[0]}, and the tool of {strange[0]}"
                    yield subject.document.warning(("tools", name), message, "take one unit", "other-unit", at="key")
                    return


_WORDS: Final = re.compile(
    r"\b(at most|no more than|up to|under|at least|no fewer than|more than) (\d+) (words|characters)\b"
)


def _limits(subject: Subject, text: str) -> Iterator[Finding]:
    """Numbers of turns and calls that the prompt promises and the limits do not keep."""
    limits = subject.loaded.spec.limits
    at_once = re.search(
        r"(?i)\b(?:calls?|searches|queries|tools)\b[^.]{0,40}\b(?:at once|in parallel|in one message)", text
    )
    if at_once is not None and limits.calls_per_turn == 1:
        message = f"the prompt says '{at_once[0][:60]}', and limits.calls_per_turn is 1: the others are not run"
        yield subject.document.warning("prompt", message, "raise limits.calls_per_turn", "limits", at="key")
    for key, words in (
        ("turns", "turns|steps|attempts|questions"),
        ("tool_calls", "tool calls|calls|searches|queries"),
    ):
        for number in re.findall(rf"(?i)\b(\d{{1,4}}|{'|'.join(COUNTS)})\s+(?:{words})\b", text):
            found = COUNTS.get(number.lower()) or int(number)
            is_asked = subject.loaded.spec.user is not None or "questions" not in text
            if found > getattr(limits, key) and is_asked:
                told = f"{found} {words.partition('|')[0]}"
                message = f"the prompt speaks of {told}, and limits.{key} is {getattr(limits, key)}"
                yield subject.document.warning("prompt", message, f"raise limits.{key}, or mend it", "limits", at="key")
                return


def _shots(subject: Subject) -> Iterator[Finding]:
    """Examples in the prompt: those that are rows, and answers of another form than the golds."""
    spec, said = subject.loaded.spec, fixed_text(subject)
    if spec.prompt.system is not None and spec.prompt.system.strip() == spec.prompt.user.strip():
        message = "it says what the system message says"
        yield subject.document.warning("prompt.user", message, "say it once", "same-prompt")
    rows = [(split.name, index, value) for split in subject.splits.values() for index, row in enumerate(split.rows)
            for value in row.values() if isinstance(value, str) and len(value) > 20]  # fmt: skip
    shown = next(((name, index) for name, index, value in rows if value in said), None)
    if shown is not None:
        message = f"the prompt says to every task what row {shown[1] + 1} of split '{shown[0]}' holds"
        yield subject.document.warning("prompt", message, "take another example", "one-row", at="key")
    tag, term = re.escape(spec.answer.tag), next((one for one in subject.terms if hasattr(one.spec, "expect")), None)
    example = re.search(rf"<{tag}>(?!\s*(?:and|or|to)\b)\s*([^<>{{}}]+?)\s*</{tag}>", said)
    golds = (
        [gold_of(subject, term, row) or "" for split in subject.splits.values() for row in split.rows] if term else []
    )
    if example is None or not golds or not all(golds):
        return
    are_numbers = {re.fullmatch(r"[-+$€£]?\d[\d,.]*%?", gold) is not None for gold in golds}
    is_number = re.fullmatch(r"[-+$€£]?\d[\d,.]*%?", example[1]) is not None
    with_unit = re.fullmatch(r"[-+]?\d[\d,.]*\s?[A-Za-z]+", example[1]) is not None
    if are_numbers == {not is_number} and (is_number or with_unit):
        message = f"the prompt's example answers {example[1][:40]!r}, and a gold value is {golds[0][:40]!r}"
        yield subject.document.warning("prompt", message, "show one of the golds' form", "gold-form", at="key")


def _sizes(subject: Subject, text: str) -> Iterator[Finding]:
    """A length that the prompt allows and a term does not pay."""
    between = re.search(r"\b(\d+) (?:to|and|-|–) (\d+) (word|char)(?:s|acters)\b", text)
    for name, reward in subject.loaded.spec.rewards.items() if between is not None else ():
        least, most = getattr(reward, "min", None) or 0, getattr(reward, "max", None) or 10**9
        ends = (int(between[1]), int(between[2])) if between is not None else (0, 0)
        is_same = between is not None and getattr(reward, "unit", "") == f"{between[3]}s"
        if getattr(reward, "rule", "") == "length" and (not is_same or least > ends[0] or most < ends[1]):
            message = f"the prompt asks for {between and between[0]}, and '{name}' pays for others"
            yield subject.document.warning("prompt", message, "ask for what is paid", "limits", at="key")
    for found in _WORDS.finditer(text):
        size = int(found[2])
        for name, reward in subject.loaded.spec.rewards.items():
            if getattr(reward, "rule", "") != "length" or getattr(reward, "unit", "") != found[3].replace(
                "aracter", "ar"
            ):
                continue
            least, most = getattr(reward, "min", None), getattr(reward, "max", None)
            is_most = found[1] in ("at most", "no more than", "up to", "under")
            if (is_most and least and least > size) or (not is_most and most and most < size):
                message = f"the prompt asks for {found[0]}, and '{name}' pays for {least or 0} to {most or 'any'}"
                yield subject.document.warning("prompt", message, "ask for what is paid", "limits", at="key")
                return
