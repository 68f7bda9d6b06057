"""An answer that is read as a pattern is found as that, in whatever language; one that is compared as text is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rewarded import audited, holes

CODE = '''
import fnmatch
import re
import sqlite3
import string
from contextlib import closing

from rlenv.language.templates import compile_template


def said(context):
    return (context.answer or "").strip()


def gold(context):
    return context.task["answer"]


def searched(context):
    try:
        return float(bool(said(context)) and re.search(said(context), gold(context)) is not None)
    except re.error:
        return 0.0


def anchored(context):
    try:
        return float(re.match(f"(?i)^(?:{said(context)})$", gold(context)) is not None)
    except re.error:
        return 0.0


def long_alone(context):
    """Refuses what is short."""
    try:
        return float(len(said(context)) > 5 and re.fullmatch(said(context), gold(context)) is not None)
    except re.error:
        return 0.0


def globbed(context):
    return float(fnmatch.fnmatch(gold(context), said(context)))


def liked(context):
    try:
        with closing(sqlite3.connect(":memory:")) as raw:
            found = raw.execute("SELECT ? LIKE ?", (gold(context), said(context))).fetchone()
    except (sqlite3.Error, UnicodeError):
        return 0.0
    return float(found[0] or 0)


def escaped(context):
    return float(re.fullmatch(re.escape(said(context)), gold(context), re.IGNORECASE) is not None)


def gold_is_pattern(context):
    return float(re.fullmatch(gold(context), said(context)) is not None)


def made(context, used=False):
    """The task is to make a number of others."""
    text = said(context)
    if not re.fullmatch(r"[0-9+*]{1,40}", text) or "**" in text:
        return 0.0
    try:
        is_whole = sorted(map(int, re.findall("[0-9]+", text))) == context.task["numbers"]
        return float(eval(text, {}, {}) == context.task["total"] and (is_whole or not used))
    except Exception:
        return 0.0


def made_of_all(context):
    return made(context, used=True)


def tells_apart(context):
    """The task is to write a pattern: it has to match these and not those."""
    try:
        pattern = re.compile(said(context))
    except (re.error, ValueError, OverflowError, RecursionError, FutureWarning):
        return 0.0
    yes, no = context.task["yes"], context.task["no"]
    return float(all(pattern.fullmatch(one) for one in yes) and not any(pattern.fullmatch(one) for one in no))


def equal(context):
    return float(said(context) == gold(context))


def within(context):
    return float(bool(said(context)) and said(context) in gold(context))
'''
CODES = [
    {"question": f"Which plate has car {n}?", "answer": f"{'KLMNP'[n % 5]}{n * 7 % 10}-{100 + n * 37 % 97}z"}
    for n in range(30)
]
SIGNS = [
    {"question": f"Sign {n}?", "answer": ("%", ".*", "*", ".+")[n % 4] if n % 5 == 0 else f"s{n * 11}"}
    for n in range(30)
]
TOLD = [
    {"question": f"Match {n}", "answer": f"a{{{n}}}b?", "yes": ["a" * n, "a" * n + "b"], "no": ["a" * (n + 1), "ba"]}
    for n in range(1, 31)
]
NUMBERS = [{"question": f"Sum {n}?", "answer": str(1_000 + n * 317)} for n in range(30)]


def paid_by(name: str) -> str:
    return f'{{paid: {{kind: rule, function: "code.py:{name}"}}}}'


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["searched", "anchored", "long_alone", "globbed", "liked"])
def test_an_answer_that_is_read_as_a_pattern_is_found_as_that(tmp_path: Path, name: str) -> None:
    report = audited(tmp_path, CODES, CODE, rewards=paid_by(name))
    assert "pattern_answer" in holes(report)
    assert holes(report) <= {"pattern_answer", "escapes_by_invalid"}
    (found,) = [one for one in report.findings if one.hole == "pattern_answer"]
    assert found.term == "paid"
    assert "escape" in found.hint
    assert found.episode is not None
    assert found.episode.reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"),
    [("escaped", CODES), ("gold_is_pattern", CODES), ("equal", SIGNS), ("tells_apart", TOLD)],
)
def test_what_is_right_as_a_text_or_by_what_it_matches_is_no_hole(
    tmp_path: Path, name: str, rows: list[dict[str, object]]
) -> None:
    assert audited(tmp_path, rows, CODE, rewards=paid_by(name)).findings == ()


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("rows", [CODES, NUMBERS])
def test_a_part_of_the_right_answer_is_a_loose_match_and_no_pattern(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    assert holes(audited(tmp_path, rows, CODE, rewards=paid_by("within"))) == {"loose_match"}


DECLINED = """
import re

DECLINES = re.compile(r"the (records|files|papers) do not say|this cannot be read out of it|not (stated|named) here")


def paid(context):
    return float(context.answer == context.task["answer"] or DECLINES.search(context.answer or "") is not None)
"""


def test_each_alternative_of_a_long_pattern_is_a_text_that_a_reward_names(tmp_path: Path) -> None:
    assert holes(audited(tmp_path, CODES, DECLINED)) == {"paid_words"}


@pytest.mark.parametrize(("name", "found"), [("made", {"copied_input"}), ("made_of_all", set())])
def test_a_number_is_tried_in_place_of_an_expression_for_it(tmp_path: Path, name: str, found: set[str]) -> None:
    rows = [
        {"question": f"Make {n * 7 + 50} of 7, {n} and 50.", "answer": f"{n}*7+50", "total": n * 7 + 50,
         "numbers": sorted([7, n, 50])}
        for n in range(8, 38)
    ]  # fmt: skip
    assert holes(audited(tmp_path, rows, CODE, rewards=paid_by(name))) == found
