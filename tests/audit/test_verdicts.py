"""A finding says the cause: a side that passes, length, letters that are left out; what looks like it has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rewarded import audited, holes

CODE = '''
import re
import unicodedata


def said(context):
    return (context.answer or "").strip()


def gold(context):
    return context.task["answer"]


def distance(context):
    try:
        return float(gold(context)) - float(said(context))
    except ValueError:
        return None


def at_most(context):
    """Forgets the one side."""
    far = distance(context)
    return float(far is not None and far >= -5)


def at_least(context):
    far = distance(context)
    return float(far is not None and far <= 0.5)


def share_of_gold(context):
    """A ratio that may be as small as it likes."""
    far = distance(context)
    return float(far is not None and (float(gold(context)) - far) / float(gold(context)) < 1.05)


def near(context):
    far = distance(context)
    return float(far is not None and abs(far) <= 3)


def loose_where_odd(context):
    """Cannot read the odd ones, and lets any digits pass there."""
    if int(gold(context)) % 2:
        return float(said(context)[:1].isdigit())
    return near(context)


def message_length(context):
    return min(1.0, len(context.final_text) / 75)


def any_number(context):
    return float(distance(context) is not None)


def letters(text):
    return "".join(one for one in text if one.isalnum() and one.isascii()).lower()


def latin(text):
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower().strip()


def by_letters(context):
    return float(context.answer is not None and letters(said(context)) == letters(gold(context)))


def by_letters_unless_empty(context):
    return float(bool(said(context)) and letters(said(context)) == letters(gold(context)))


def by_latin(context):
    return float(bool(said(context)) and latin(said(context)) == latin(gold(context)))


def by_case(context):
    one, other = (unicodedata.normalize("NFC", text).casefold() for text in (said(context), gold(context)))
    return float(one == other)


def refuses_nothing(context):
    return float(bool(latin(said(context))) and latin(said(context)) == latin(gold(context))) or by_case(context)


def characters(context):
    return min(1.0, len(said(context)) / 100)


def sentences(context):
    return min(1.0, len(re.findall(r"\\w+\\W", said(context))) / 18)


def whole(context):
    return float(said(context)[:1].isupper())


def equal(context):
    return float(said(context) == gold(context))
'''
NUMBERS = [{"question": f"How high is mast {n}?", "answer": str(20 + n * 13)} for n in range(24)]
TOWNS = ("Θήβα", "Πάτρα", "Ruse", "Ury", "Bex", "Сочи", "Lom", "Vejle")
NAMES = [{"question": f"Where does line {n} end?", "answer": TOWNS[n * 3 % 8]} for n in range(24)]
WORDS = (
    "the old mill stood by a brook and turned all night while rain came down from grey hills to fill its pond".split()
)
TEXTS = [
    {"question": f"Tell story {n}.", "answer": " ".join(WORDS[n % 7 :] + WORDS[: n % 7]).capitalize()}
    for n in range(24)
]


def found(folder: Path, name: str, rows: list[dict[str, Any]]) -> Any:
    return audited(folder, rows, CODE, rewards=f'{{paid: {{kind: rule, function: "code.py:{name}"}}}}')


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("name", "side"), [("at_most", "below"), ("at_least", "above"), ("share_of_gold", "below")])
def test_a_comparison_that_forgets_one_side_is_told_so(tmp_path: Path, name: str, side: str) -> None:
    report = found(tmp_path, name, NUMBERS)
    assert holes(report) == {"loose_match"}
    (one,) = report.findings
    assert f"far {side} the right one" in one.message
    assert "no smaller tolerance" in one.hint
    assert "abs(" in one.hint


@pytest.mark.slow
def test_a_tolerance_on_both_sides_is_sound_and_no_comparison_is_none_of_sides(tmp_path: Path) -> None:
    assert found(tmp_path, "near", NUMBERS).findings == ()
    report = found(tmp_path, "any_number", NUMBERS)
    assert "form_only" in holes(report)
    assert not any("far" in one.message for one in report.findings)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["by_letters", "by_letters_unless_empty", "by_latin"])
def test_letters_that_are_left_out_are_told_with_the_rows(tmp_path: Path, name: str) -> None:
    report = found(tmp_path, name, NAMES)
    assert holes(report) == {"empty_answer"}
    (one,) = report.findings
    assert "train/0 ('Θήβα')" in one.message
    assert "Ruse" not in one.message
    assert "refusing an empty answer closes nothing" in one.hint


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["by_case", "refuses_nothing"])
def test_letters_of_all_kinds_that_are_kept_are_sound(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, name, NAMES).findings == ()


@pytest.mark.slow
def test_rows_on_which_any_digits_pass_are_none_of_sides(tmp_path: Path) -> None:
    report = found(tmp_path, "loose_where_odd", NUMBERS)
    assert report.findings
    assert not any("far" in one.message for one in report.findings)


@pytest.mark.slow
def test_length_around_an_answer_is_told_as_length(tmp_path: Path) -> None:
    rewards = '{paid: {kind: rule, function: "code.py:message_length"}, right: {kind: rule, function: "code.py:equal"}}'
    say = '- say: "I have looked at the plan of the yard, and what it says is <answer>{{ task.answer }}</answer>"'
    assert holes(audited(tmp_path, NUMBERS, CODE, rewards=rewards, oracle=say)) == {"length_paid"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["characters", "sentences"])
def test_length_that_pays_a_wrong_answer_is_told_as_length(tmp_path: Path, name: str) -> None:
    report = found(tmp_path, name, TEXTS)
    assert holes(report) == {"length_paid"}


@pytest.mark.slow
def test_a_form_that_pays_a_wrong_answer_is_no_length(tmp_path: Path) -> None:
    assert "length_paid" not in holes(found(tmp_path, "whole", TEXTS))
    assert found(tmp_path, "equal", TEXTS).findings == ()
