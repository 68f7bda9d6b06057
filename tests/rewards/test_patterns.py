"""Author's patterns: Python's meaning where RE2 can have it, a clear refusal where it cannot, bounded time always."""

import random
import re
import time

import pytest

from rlenv.errors import UsageError
from rlenv.rewards.patterns import SEARCHED_CHARS, compile_pattern


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("(?=a)b", "match what follows as well"),
        ("(?<=a)b", "match what stands before as well"),
        ("(?!a)b", "write what may follow as a class"),
        (r"(a)\1", "write out what may repeat"),
        ("(?P<x>a)(?P=x)", "write out what may repeat"),
        ("a++", "write +"),
        ("(?>a)b", "write (?:"),
        ("a{2000}", "up to 1000"),
        (".{1,1000}", "rule: length"),
        ("(", "missing )"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_takes_more_than_linear_time_is_refused_with_the_nearest_fix(source: str, fix: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fix)):
        compile_pattern(source)


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        (r"(\d+)$", "7\n", True),
        (r"(\d+)\Z", "7\n", False),
        (r"(?m)^b$", "a\nb\nc", True),
        (r"^a{,2}$", "aaa", False),
        (r"[[]x", "[x", True),
        (r"[]a]$", "]", True),
        (r"[$]5", "$5", True),
        (r"a.b", "a\nb", True),
        (r"\d", "٣", False),
        (r"\p{Nd}", "٣", True),
        ("x", "\ud800x", True),
        ("(?i)É", "é", True),
    ],
)
def test_the_words_mean_what_they_say(source: str, text: str, found: bool) -> None:
    assert (compile_pattern(source).search(text) is not None) is found


def test_the_last_match_is_the_one_that_python_finds_last_however_many_there_are() -> None:
    words = random.Random(0)
    for source in (r"(-?\d+)", r"\d+(?: \d+)*", r"(\d)", r"#### (.+)", r"Answer: (\w+)", r"\s*"):
        for _ in range(10):
            parts = ("word", "12", "-345", "foo", "Answer: x1", "#### 7\n")
            text = " ".join(words.choice(parts) for _ in range(words.randint(1, 4_000)))[-SEARCHED_CHARS:]
            *_, expected = [None, *re.finditer(source, text, re.DOTALL | re.ASCII)]
            found = compile_pattern(source).last(text)
            assert (found and found[0]) == (expected and expected[0])


def test_a_letter_case_that_does_not_count_does_not_hide_a_match() -> None:
    assert compile_pattern("order", ignore_case=True).search("My ORDER") is not None


BLOW_UP = [
    *("(a|aa)+!", "^(?:a|a?)+$", r"(\w+ ?|\w+-)+$", "^(([a-z])+.)+[A-Z]$", r"\s*\s*\s*\s*\s*\s*x", "(.*)(.*)(.*)(.*)="),
    *(
        r"(?P<n>\d{1,20}\d{0,20})+\.$",
        r"^(\w{1,9}\w{1,9})*!$",
        "(a+)+b",
        "(a.*?b|a)",
        "(a.*[ab]{30}c|a)",
        "a[ab]{900}c",
    ),
]


@pytest.mark.parametrize("source", BLOW_UP)
def test_no_text_holds_the_loop(source: str) -> None:
    coin = random.Random(1)
    pattern = compile_pattern(source)
    texts = ["a" * 100_000, "ab" * 50_000, "".join(coin.choice("ab") for _ in range(100_000)), " " * 100_000]
    for text in [*texts, "1" * 100_000, "a " * 50_000]:
        for match in (pattern.search, pattern.last, lambda text: pattern.fullmatch(text[: pattern.sees])):
            took = []
            for _ in range(3):  # the collector of the whole test run may come by
                begun = time.thread_time()
                match(text)
                took.append(time.thread_time() - begun)
            assert min(took) < 0.05
