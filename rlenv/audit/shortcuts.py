"""Right answers that need no work: the form of a question or of its options gives them away, or the prompt's examples.

Rules of a few cheap features are learnt on each half of the tasks and tried on the other. A prompt may show some of
what hidden tests expect, as the usual data sets do; what counts is a row of which a table of what is shown would pass
nearly everything."""

from __future__ import annotations

import ast
import json
import math
import random
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rlenv.audit.golds import binomial_tail
from rlenv.audit.play import Leak
from rlenv.audit.subject import AuditSubject, options_of, same
from rlenv.audit.texts import DATA, WORDS, any_of
from rlenv.language.templates import compile_value, texts_in
from rlenv.rewards.base import Term
from rlenv.rewards.normalise import number
from rlenv.rewards.tests import TestsSpec

if TYPE_CHECKING:
    from rlenv.audit.data import DataFindings, PromptRow, Rows
    from rlenv.episodes.environment import Environment


_LEAST_TASKS = 16
_LEAST_OPTIONED = 8
_HITS = 0.8
_RARE = 1e-3
_MOST_ANSWERS = 12
_MOST_TASKS = 400
_WORD = re.compile(r"\w+")
# A question about the features themselves is answered by them.
_ASKS_FORM = any_of("asks_form")

_DENIES = re.compile(r"\b(?:not|never|no|none|nobody|nothing|neither|nor|cannot|without)\b|n't\b", re.IGNORECASE)
_SAYS_HOW = re.compile(r"\b(?:answer|reply|respond)\b[^.\n?]*", re.IGNORECASE)


def _number_or_zero(text: str) -> float:
    value = number(text)
    return 0.0 if value is None else float(value)


def _first_number(text: str) -> int:
    return int(next(iter(re.findall(r"\d{1,9}", text)), -1))


def _has_word(word: str, text: str) -> bool:
    return re.search(rf"\b{word}\b", text, re.IGNORECASE) is not None


_LOOKS: dict[str, Callable[[str], Hashable]] = {
    "how long it is": lambda text: len(text) // 4,
    "how many words it has": lambda text: len(_WORD.findall(text)),
    "whether it has an odd number of characters": lambda text: len(text) % 2,
    "its marks": lambda text: "".join(sorted({one for one in text if not one.isalnum() and not one.isspace()})),
    "its first word": lambda text: next(iter(_WORD.findall(text)), ""),
    "its capitals": lambda text: sum(one.isupper() for one in text),
    "its spaces": lambda text: (len(re.findall(r"\s{2,}", text)), text != text.strip()),
    "its digits": lambda text: sum(one.isdigit() for one in text),
}
_LOOKS["the letters before a number"] = lambda text: next(iter(re.findall(r"\b([^\W\d_]{1,6})[-_/]?\d", text)), "")
_LOOKS["a word that denies"] = lambda text: _DENIES.search(text) is not None
_LOOKS["whether its first number is odd"] = lambda text: _first_number(text) % 2
_LOOKS |= {f"the word {word!r}": partial(_has_word, word) for word in WORDS["small"]}
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
    "the largest number": lambda options: max(options, key=_number_or_zero),
    "the smallest number": lambda options: min(options, key=_number_or_zero),
    "the number in the middle": lambda options: sorted(options, key=_number_or_zero)[(len(options) - 1) // 2],
    "the option that comes first in the alphabet": lambda options: min(options, key=str.casefold),
    "the option that comes last in the alphabet": lambda options: max(options, key=str.casefold),
}
_SERIAL = re.compile(DATA["serial"])
_RANGES = 4
_RANKS = {"largest": -1, "second largest": -2, "smallest": 0, "second smallest": 1}
_ASKS_RANK = any_of("asks_rank")
_QUESTION = re.compile(r"[^.?!\n]*\?")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")
_AS_THE_GAP = "the option that is as long as the gap"
_GAPS = re.compile(r"__+|\.\.\.+|--+|\*\*+")
_MOST_NAMED = 4
_CYCLES = range(3, 13)


def find_shortcut(subjects: Sequence[AuditSubject]) -> Leak | None:
    """The best rule that is far above chance on tasks that it was not learnt on, with others as good; None for none."""
    some = [one for one in subjects if one.right][:_MOST_TASKS]
    if len(some) < _LEAST_OPTIONED:
        return None
    asks_form = 2 * sum(map(_asks_form, some)) > len(some)
    # Rows may take turns.
    mixed = random.Random(0).sample(range(len(some)), len(some))
    halves = [mixed[::2], mixed[1::2]] if len(some) >= _LEAST_TASKS else []
    # What is learnt on each half is tried on the other; what goes by the look of an option has learnt nothing.
    learnt = [dict(_look_rules(some, half, {} if asks_form else _LOOKS)) for half in halves]
    tried = [one for one in _option_rules(some) if one[0] == _AS_THE_GAP or not asks_form]
    tried += _rank_rules(some)
    common = Counter(one.right for one in some).most_common(1)[0][1] / len(some)
    for name in learnt[0] if learnt else ():
        if name in learnt[1]:
            sides = zip(halves, (learnt[1][name], learnt[0][name]), strict=True)
            tried.append((name, {at: said[at] for half, said in sides for at in half}, common))
    sure: list[Leak] = []
    for name, said, chance in tried:
        hits = sum(same(said[at], some[at].right) for at in said)
        # Of so many rules one fits by chance.
        if hits >= _HITS * len(some) and binomial_tail(hits, len(some), chance) * len(_LOOKS) < _RARE:
            taken = {some[at].gold.task_index: said[at] for at in said}
            sure.append(Leak(name, f"{hits} of {len(some)} by {name}", taken, hits))
    sure.sort(key=lambda one: -one.hits)
    others = "; ".join(one.rule for one in sure[1:_MOST_NAMED])
    return replace(sure[0], rule=f"{sure[0].rule}{others and f'; also {others}'}") if sure else None


def _asks_form(subject: AuditSubject) -> bool:
    """True if a question, without its options and how to answer it, is about the look of something."""
    text = subject.prompt
    for option in sorted(_options_by_text(subject), key=len, reverse=True):
        text = text.replace(option, "")
    return bool(_ASKS_FORM.search(_SAYS_HOW.sub("", text)))


def _option_rules(subjects: Sequence[AuditSubject]) -> Iterator[tuple[str, Mapping[int, str], float]]:
    """The answers of a policy that picks by the look of an option."""
    listed = {at: options for at, one in enumerate(subjects) if (options := _options_by_text(one))}
    if len(listed) < _HITS * len(subjects):
        return
    chance = sum(1 / len(options) for options in listed.values()) / len(listed)
    for name, pick in _PICKS.items():
        said = {}
        for at, options in listed.items():
            texts = list(options)
            chosen = pick(texts)
            # Of options that are alike none is picked by their look.
            if len({pick(texts), pick(texts[::-1])}) == 1 or "first option" in name or "last option" in name:
                said[at] = options[chosen]
        yield name, said, chance
    gaps = {at: max(map(len, _GAPS.findall(subjects[at].prompt)), default=0) for at in listed}
    fits = {at: [said for text, said in options.items() if len(text) == gaps[at]] for at, options in listed.items()}
    yield _AS_THE_GAP, {at: some[0] for at, some in fits.items() if len(some) == 1}, chance


def _rank_rules(subjects: Sequence[AuditSubject]) -> Iterator[tuple[str, Mapping[int, str], float]]:
    """The answers of a policy that takes a number of the prompt by its size, where no question asks for a size."""
    golds = [_number_or_zero(one.right) for one in subjects]
    questions = [" ".join(_QUESTION.findall(one.prompt)) or one.prompt for one in subjects]
    if 5 * sum(_ASKS_RANK.search(one) is not None for one in questions) > len(subjects):
        return
    shown = [{_number_or_zero(text): text for text in _NUMBER.findall(one.prompt)} for one in subjects]
    fit = [sorted(size for size in some if min(golds) / 10 <= size <= 10 * max(golds)) for some in shown]
    listed = {at: sizes for at, sizes in enumerate(fit) if len(sizes) >= 3}
    if len(listed) < _HITS * len(subjects):
        return
    chance = sum(1 / len(sizes) for sizes in listed.values()) / len(listed)
    for name, place in _RANKS.items():
        yield f"the {name} number of the prompt", {at: shown[at][sizes[place]] for at, sizes in listed.items()}, chance


def _options_by_text(subject: AuditSubject) -> dict[str, str]:
    """A task's options by text, each with what is said to choose it; {} where it lists none."""
    options = options_of(subject)
    if not options:
        return {}
    texts = [_text_behind_label(subject.prompt, one) if len(one) == 1 else one for one in options]
    return dict(zip(texts, options, strict=True)) if all(texts) and len(set(texts)) == len(options) else {}


def _text_behind_label(prompt: str, label: str) -> str:
    found = re.search(
        rf"(?:^|[\s(]){re.escape(label)}[).:]\s+(\S[^\n]*?)(?=\s+\(?[A-J][).:]\s|\n|$)", prompt, re.MULTILINE
    )
    return found[1] if found else ""


def _number_remainder(by: int, text: str) -> int:
    return _first_number(text) % by


def _look_rules(
    subjects: Sequence[AuditSubject], learnt: Sequence[int], known_looks: Mapping[str, Callable[[str], Hashable]]
) -> Iterator[tuple[str, Mapping[int, str]]]:
    """The answers of a policy that has learnt which answer goes with which look of a question, or its number."""
    answers = Counter(one.right for one in subjects)
    if len(answers) > _MOST_ANSWERS or len(answers) < 2:
        return
    ((common, _),) = answers.most_common(1)
    numbers, looks = [_first_number(one.prompt) for one in subjects], dict(known_looks)
    # A number that counts the rows says nothing of what is asked.
    runs = all(other == one + 1 for one, other in pairwise(numbers))
    runs &= 2 * len({re.sub(r"\d+", "", one.prompt) for one in subjects}) > len(subjects)  # else it is what is asked
    for by in _CYCLES if runs else ():
        looks[f"the remainder of its running number by {by}"] = partial(_number_remainder, by)
    serials = {one.prompt: int(found[1]) for one in subjects if (found := _SERIAL.search(one.prompt))}
    sizes = sorted(serials.values())
    if 2 * len({*sizes}) > len(subjects):
        places = {text: bisect(sizes, one) * _RANGES // len(sizes) for text, one in serials.items()}
        looks["the range of its serial number"] = places.get
    for name, look in looks.items():
        seen: dict[Hashable, Counter[str]] = defaultdict(Counter)
        for at in learnt:
            seen[look(subjects[at].prompt)][subjects[at].right] += 1
        known = {key: counts.most_common(1)[0][0] for key, counts in seen.items()}
        said = {at: known.get(look(one.prompt), common) for at, one in enumerate(subjects)}
        yield f"{name}, which says which answer is right", said


_PATTERN_CHARS = 2_000
_TOKEN = re.compile(r"\w+|[^\w\s]")
_FLAGS = {"true": "(?:true|True)", "false": "(?:false|False)", "none": "(?:None|null)", "null": "(?:None|null)"}
_MOST_ROWS = 500
_MOST_TESTS = 100
_PASSES = 0.8
"""What a table of the shown tests has to pass of a row's for the row to count."""
_FEW = 0.05
_LEAST_ROWS = 2
_GAP = 60
_LEADS_TO = (
    r"(?:=|->|→|⇒|➞|:|\n|\b(?:returns?|gives?|outputs?|prints?|expect\w*|results?|is|be|yields?|becomes?|equals?)\b)"
)

Pairs = Sequence[tuple[str, str]]
"""What each part of a test gives and expects, as patterns that find it in a prompt; ("", "") where that is unknown."""


def check_tests(environment: Environment, rows: Rows, found: DataFindings) -> None:
    """A finding for each term that tests answers, and split, whose rows' prompts show (nearly) all that is tested."""
    for term in environment.parts.terms:
        spec = term.spec
        if spec.usual_weight <= 0 or not isinstance(spec, TestsSpec):
            continue
        form = next(key for key in ("calls", "stdin", "programs") if getattr(spec, key) is not None)
        tested = [getattr(spec, form), spec.entry or ""]
        if not any("resources" in text for text in texts_in(tested)):
            for some in rows.values():
                _check_term_tests(term, form, tested, environment.spec.vars, some, found)


def _check_term_tests(
    term: Term,
    form: str,
    tested: Sequence[Any],
    known: Mapping[str, Any],
    rows: Sequence[PromptRow],
    found: DataFindings,
) -> None:
    name, is_whole = term.name, getattr(term.spec, "credit", "") == "all"
    fill = compile_value(tested)
    earned: list[tuple[PromptRow, float]] = []
    shares: list[float] = []
    for row in [one for one in rows[:: -(-len(rows) // _MOST_ROWS) or 1] if one.prompt]:
        try:
            given, entry = fill(task=row.task, vars=known)
            tests = list(_read_tests(form, given, str(entry)))[:_MOST_TESTS]
        except Exception:  # rows of any kind: the oracle's own episode has failed of it
            continue
        if not tests:
            continue
        passed = [all(_is_shown(part, row.prompt or "") for part in test) for test in tests]
        shares.append(sum(passed) / len(passed))
        earned.append((row, float(all(passed)) if is_whole else shares[-1]))
    shown = [row for row, value in earned if value >= _PASSES]
    if not shown:
        return
    mean = math.fsum(shares) / len(shares)
    message = (
        f"the prompt shows what '{name}' tests on {len(shown)} of {len(earned)} rows ({mean:.0%} of all tests): a "
        "table of the examples passes them; test with arguments that are not shown"
    )
    if len(shown) >= max(_LEAST_ROWS, _FEW * len(earned)):
        found.add_hole("tests_in_prompt", shown, message, name)
    else:
        found.notes.append(f"tests_in_prompt: {message}")


def _read_tests(form: str, given: Any, entry: str) -> Iterator[Pairs]:
    """Each test with its parts; what cannot be read has a part that no prompt shows."""
    if form == "programs":
        for text in [given] if isinstance(given, str) else given:
            yield [
                _assertion_patterns(node, text) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)
            ] or [(_text_pattern(text), "")]
        return
    value = json.loads(given) if isinstance(given, str) else given
    if isinstance(value, Mapping):
        value = [{"input": one, "output": two} for one, two in zip(value["inputs"], value["outputs"], strict=True)]
    for row in value:
        told, wanted = row.get("args", row.get("input")), row.get("expected", row.get("output"))
        if form == "stdin":
            yield [(_printed_pattern(told), _printed_pattern(wanted))]
            continue
        if isinstance(told, str):  # one JSON value a line
            told, wanted = [json.loads(line) for line in told.splitlines()], json.loads(wanted)
        yield [(_arguments_pattern(told, row.get("kwargs") or {}, entry), _value_pattern(wanted))]


def _assertion_patterns(node: ast.Assert, text: str) -> tuple[str, str]:
    """The call of an assertion and its expected value; the whole text where it is of another form."""
    test: ast.expr = node.test
    wanted: object = True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, wanted = test.operand, False
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is)):
        sides = [test.left, test.comparators[0]]
        calls = [side for side in sides if isinstance(side, ast.Call)]
        others = [side for side in sides if not isinstance(side, ast.Call)]
        if len(calls) == 1:
            try:
                test, wanted = calls[0], ast.literal_eval(others[0])
            except (ValueError, TypeError, SyntaxError):
                return (_text_pattern(ast.get_source_segment(text, node) or "?"), "")
    if isinstance(test, ast.Call):
        try:
            told = [ast.literal_eval(one) for one in test.args]
            named = {one.arg or "": ast.literal_eval(one.value) for one in test.keywords}
        except (ValueError, TypeError, SyntaxError):
            pass
        else:
            return (_arguments_pattern(told, named, ""), _value_pattern(wanted))
    return (_text_pattern(ast.get_source_segment(text, node) or "?"), "")


def _arguments_pattern(told: Sequence[Any], named: Mapping[str, Any], entry: str) -> str:
    parts = [_value_pattern(one) for one in [*told, *named.values()]]
    if not parts:
        return (re.escape(entry) or r"\w+") + r"\s*\(\s*\)"
    return r"[\s,;]*(?:\w+\s*[=:]\s*)?".join(parts)


def _printed_pattern(value: Any) -> str:
    return _text_pattern("\n".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))


def _value_pattern(value: Any) -> str:
    return _text_pattern(value if isinstance(value, str) else repr(value), quoted=True)


def _is_shown(part: tuple[str, str], prompt: str) -> bool:
    """True if a prompt says what is given and, close behind it, what is expected."""
    told, wanted = part
    if not wanted:
        return bool(told) and re.search(told, prompt) is not None
    # What stands between has no other values.
    between = rf"(?=[^\d]{{0,{_GAP}}}?{_LEADS_TO})[^\d]{{0,{_GAP}}}?"
    return re.search(f"{told}{between}{wanted}", prompt) is not None


def _text_pattern(text: str, *, quoted: bool = False) -> str:
    """Finds a value as Python, JSON or prose writes it: whatever the space, the quotes and the brackets."""
    found = [_token_pattern(one) for one in _TOKEN.findall(text[:_PATTERN_CHARS])]
    inside = r"\s*".join(one for one in found if one)
    begins = r"(?<![\w.])(?<![\w.]-)" if re.match(r"\w", text) else ""
    ends = r"(?![\w]|\.\d)" if re.search(r"\w$", text) else ""
    marks = "[\"'`]*" if quoted else ""
    return f"{marks}{begins}{inside}{ends}{marks}"


def _token_pattern(token: str) -> str:
    if token in "\"'":
        return "[\"']"
    if token in "([":
        return r"[\[(]"
    return r"(?:,\s*)?[\])]" if token in ")]" else _FLAGS.get(token.lower(), re.escape(token))
