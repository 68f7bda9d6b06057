"""Where an answer is read from, and where it is not."""

import math
import random
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlenv.errors import UsageError
from rlenv.language.spec import AnswerSpec
from rlenv.messages import MalformedCall, ParsedAction, ToolCall
from rlenv.rewards.answer import SEARCHED_CHARS, GivenAnswer, check, compile_pattern, extract, is_explicit


def spec(**keys: object) -> AnswerSpec:
    return AnswerSpec.model_validate(keys)


def read(text: str, **keys: object) -> str | None:
    found = extract(spec(**keys), ParsedAction(text))
    return None if found is None else found.text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer>one</answer> no, <answer>two</answer>", "two"),
        ("<answer>one</answer> <answer>two", "one"),
        ("<answer>two", None),
        ("two</answer>", None),
        ("</answer><answer>", None),
        ("<answer></answer>", ""),
        ("<answer>a\nb</answer>", "a\nb"),
        ("<answer><answer>a</answer>", "<answer>a"),
        ("<Answer>a</Answer>", None),
        ("", None),
    ],
)
def test_the_last_closed_tag_is_the_answer(text: str, answer: str | None) -> None:
    assert read(text, **{"from": "tag"}) == answer


def test_the_tag_can_be_named() -> None:
    assert read("<answer>a</answer><solution>b</solution>", **{"from": "tag", "tag": "solution"}) == "b"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{ \{1, 2\} }", r"\{1, 2\}"),
        (r"\boxed {3}", "3"),
        (r"{ \boxed{3}", "3"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed 3", None),
        (r"\boxed{a and {x}", None),
        (r"}} \boxed{3} }}", "3"),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_with_balanced_braces_is_the_answer(text: str, answer: str | None) -> None:
    assert read(text, **{"from": "boxed"}) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("first 3, then 4.", "4"),
        ("it costs $1,234.50.", "$1,234.50"),
        ("x = -5", "-5"),
        ("5-3", "3"),
        ("about .5", ".5"),
        ("45%", "45%"),
        ("1.5e3 m", "1.5e3"),
        ("7 of H2O", "7"),
        ("none", None),
    ],
)
def test_the_last_number_is_the_answer(text: str, answer: str | None) -> None:
    assert read(text, **{"from": "last_number"}) == answer


def test_the_first_group_of_the_last_match_is_the_answer() -> None:
    keys = {"from": "regex", "pattern": r"Answer: (\w+)"}
    assert read("Answer: a\nAnswer: b", **keys) == "b"
    assert read("none", **keys) is None
    assert read("x1 x2", **{"from": "regex", "pattern": r"x\d"}) == "x2"


def test_a_whole_final_message_is_the_answer() -> None:
    assert read("  It is Paris.\n", **{"from": "final_message"}) == "It is Paris."
    assert read("  ", **{"from": "final_message"}) is None


@pytest.mark.parametrize("rule", ["final_message", "last_number"])
def test_a_message_with_calls_or_cut_short_is_not_final(rule: str) -> None:
    call = ToolCall("add", {"a": 1})
    assert extract(spec(**{"from": rule}), ParsedAction("4", calls=(call,))) is None
    assert extract(spec(**{"from": rule}), ParsedAction("4", calls=(MalformedCall("{", "not JSON"),))) is None
    assert extract(spec(**{"from": rule}), ParsedAction("4", is_cut=True)) is None
    assert not is_explicit(spec(**{"from": rule}))


def test_a_marked_answer_counts_beside_calls() -> None:
    action = ParsedAction("<answer>4</answer>", calls=(ToolCall("add", {"a": 1}),))
    assert extract(spec(), action) == GivenAnswer("4")
    assert all(is_explicit(spec(**{"from": rule})) for rule in ("tag", "boxed", "regex", "tool"))


@pytest.mark.parametrize(
    "keys",
    [
        {"from": "tag"},
        {"from": "boxed"},
        {"from": "regex", "pattern": r"(\d+)"},
        {"from": "tool", "tool": "submit"},
        {"from": "last_number"},
        {"from": "final_message"},
    ],
    ids=lambda keys: str(keys["from"]),
)
def test_no_answer_stands_beside_a_call_that_cannot_be_read(keys: dict[str, object]) -> None:
    submit = ToolCall("submit", {"x": "4"})
    said = r"<answer>4</answer> \boxed{4} 4"
    broken = MalformedCall('{"name": "submit", "arguments": {"answer": "e"', "unclosed")
    for calls in ((broken,), (submit, broken), (broken, submit)):
        assert extract(spec(**keys), ParsedAction(said, calls=calls)) is None
    if keys["from"] != "tool":
        assert extract(spec(**keys), ParsedAction(said, calls=(submit,), is_cut=True)) is None


def test_the_argument_of_the_last_well_formed_submit_call_is_the_answer() -> None:
    submit = spec(**{"from": "tool", "tool": "submit", "argument": "answer"})
    calls = (
        ToolCall("submit", {"answer": " a "}),
        ToolCall("submit", {"answer": "b", "note": "c"}),
        ToolCall("other", {"answer": "d"}),
    )
    assert extract(submit, ParsedAction("", calls=calls)) == GivenAnswer("b")
    assert extract(submit, ParsedAction('submit(answer="x")')) is None
    assert extract(submit, ParsedAction("", calls=(ToolCall("submit", {"text": "b"}),))) is None


def test_the_only_argument_of_a_submit_call_needs_no_name_and_json_stays_json() -> None:
    submit = spec(**{"from": "tool", "tool": "submit"})
    assert extract(submit, ParsedAction("", calls=(ToolCall("submit", {"x": [1, True]}),))) == GivenAnswer("[1,true]")
    assert extract(submit, ParsedAction("", calls=(ToolCall("submit", {"x": 42}),))) == GivenAnswer("42")
    assert extract(submit, ParsedAction("", calls=(ToolCall("submit", {"x": 1, "y": 2}),))) is None


@pytest.mark.parametrize("rule", ["tag", "boxed", "last_number", "final_message"])
def test_thinking_is_never_read(rule: str) -> None:
    thinking = r"<answer>42</answer> \boxed{42} 42"
    assert extract(spec(**{"from": rule}), ParsedAction("", thinking=thinking)) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"from": "regex"}, "no pattern"),
        ({"from": "regex", "pattern": "("}, "does not compile"),
        ({"from": "regex", "pattern": r"(\w+)(?=x)"}, "match what follows"),
        ({"from": "tool"}, "no tool is named"),
        ({"from": "tag", "tag": "<answer>"}, "write it alone"),
    ],
)
def test_a_rule_without_what_it_needs_is_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(spec(**keys))


@pytest.mark.parametrize(
    "pattern", [r"#### (-?[\d,]+)", r"(\d+,)*\d+", r"(?:ab)+", r"[(a+)+]+", r"(a{2,3})+", r"\((a+)\)*"]
)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    check(spec(**{"from": "regex", "pattern": pattern}))


@pytest.mark.parametrize("piece", ["<answer>", "</answer>", r"\boxed{", "{", "}", "1,", "-", "1.", "$"])
@pytest.mark.parametrize("rule", ["tag", "boxed", "last_number", "final_message"])
def test_degenerate_text_is_read_in_linear_time(piece: str, rule: str) -> None:
    # A quadratic reading of this much text takes minutes and runs into the suite's time limit.
    read(piece * 200_000, **{"from": rule})
    read(piece * 200_000 + "</answer>", **{"from": rule})


@given(
    st.text(alphabet=st.sampled_from("<answer>/\\boxed{}0123456789.,-$% \n")),
    st.sampled_from(["tag", "boxed", "last_number"]),
)
def test_reading_never_raises_and_gives_a_part_of_the_text(text: str, rule: str) -> None:
    found = read(text, **{"from": rule})
    assert found is None or found in text


# Author's patterns: Python's meaning where RE2 can have it, a clear refusal where it cannot, bounded time always


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


@pytest.mark.parametrize(
    ("rule", "text", "place"),
    [
        ("tag", "so <answer> 5 </answer>.", (12, 13)),
        ("boxed", r"so \boxed{ 5 }.", (11, 12)),
        ("last_number", "1 and 42 apples", (6, 8)),
        ("final_message", "  5 \n", (2, 3)),
        ("final_message", "   ", None),
        ("tag", "<answer></answer>", (8, 8)),
    ],
)
def test_an_answer_says_where_it_stands(rule: str, text: str, place: tuple[int, int] | None) -> None:
    found = extract(AnswerSpec.model_validate({"from": rule}), ParsedAction(text))
    assert (None if found is None else (found.start, found.end)) == place
    if found is not None:
        assert (text[found.start : found.end], found.call) == (found.text, -1)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer><answer>b</answer>", "b"),
        ("<answer>a<answer>b</answer>", "a<answer>b"),
        ("<answer>a</answer> <answer>b", "a"),
        ("a</answer><answer>b</answer>", "b"),
        ("</answer><answer>", None),
        ("<answer>a</answer></answer>", "a"),
    ],
)
def test_tags_pair_from_the_left_and_the_last_closed_one_counts(text: str, answer: str | None) -> None:
    found = extract(AnswerSpec(), ParsedAction(text))
    assert (None if found is None else found.text) == answer


@pytest.mark.parametrize(
    ("spec", "calls", "answer"),
    [
        ({"argument": "x"}, [("submit", {"x": 5, "y": 1})], "5"),
        ({"argument": "x"}, [("submit", {"y": 1})], None),
        ({}, [("submit", {"x": " a "})], "a"),
        ({}, [("submit", {"x": 1, "y": 2})], None),
        ({}, [("submit", {})], None),
        ({}, [("other", {"x": 1})], None),
        ({}, [("submit", {"x": 1}), ("submit", {"x": 2}), ("other", {"x": 3})], "2"),
        ({}, [("submit", {"x": None})], "null"),
        ({}, [("submit", {"x": 2**70})], str(2**70)),
        ({}, [("submit", {"x": math.nan})], "null"),
        ({}, [("submit", {"x": {"b": [1, "é"]}})], '{"b":[1,"é"]}'),
    ],
)
def test_the_argument_of_the_last_call_is_the_answer_and_its_place_that_call(
    spec: dict[str, Any], calls: list[tuple[str, dict[str, Any]]], answer: str | None
) -> None:
    given = AnswerSpec.model_validate({"from": "tool", "tool": "submit", **spec})
    found = extract(given, ParsedAction("", "", tuple(ToolCall(*call) for call in calls)))
    assert (None if found is None else found.text) == answer
    if found is not None:
        last = max(at for at, (name, _) in enumerate(calls) if name == "submit")
        assert (found.call, found.start, found.end) == (last, -1, -1)


@pytest.mark.parametrize(("spare", "is_found"), [(0, True), (1, False)])
def test_a_box_and_a_number_are_looked_for_near_the_end(spare: int, is_found: bool) -> None:
    for rule, text in (("boxed", r"\boxed{5}"), ("last_number", "5 ")):
        content = text + "x" * (65_536 - len(text) + spare)
        found = extract(AnswerSpec.model_validate({"from": rule}), ParsedAction(content))
        assert (found is not None) is is_found, rule


def test_a_pattern_looks_at_the_end_of_a_long_text_and_says_where() -> None:
    pattern = compile_pattern(r"n=(\d+)")
    assert pattern.sees == SEARCHED_CHARS
    long = "n=1 " + "x" * (SEARCHED_CHARS - 8) + " n=2 n=3"  # whose first match is just out of sight
    first = pattern.search(long)
    assert first is not None
    assert first[1] == "2"
    assert pattern.search("n=1" + "x" * SEARCHED_CHARS) is None
    for text in (long, long[4:], "n=2 n=3"):
        found, begin = pattern.last_at(text)
        assert found is not None
        assert text[begin + found.start() :] == "n=3"
    assert pattern.last_at("n=1" + "x" * SEARCHED_CHARS) == (None, 0)


def test_a_whole_text_is_matched_up_to_what_a_pattern_sees() -> None:
    pattern = compile_pattern("x*")
    assert pattern.fullmatch("x" * SEARCHED_CHARS) is not None
    assert pattern.fullmatch("x" * (SEARCHED_CHARS + 1)) is None
    assert pattern.fullmatch("x" * 5 + "y") is None
