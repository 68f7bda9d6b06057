"""The checks of IFEval: the verdicts of the original code, which were recorded, and bounds that it has not."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlenv.episodes.environment import load
from rlenv.errors import RewardError

AT_LEAST, LESS = {"relation": "at least"}, {"relation": "less than"}
NTH = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Kite"}

FOLLOWED: dict[str, list[tuple[Mapping[str, Any], list[str], list[str]]]] = {
    "keywords:existence": [({"keywords": ["kite", "two words"]}, ["Kites, TWO WORDS."], ["kite two  words", "kites"])],
    "keywords:frequency": [
        ({**AT_LEAST, "keyword": " war ", "frequency": 2}, ["war, towards"], ["war"]),
        ({**LESS, "keyword": "a.c", "frequency": 1}, ["a\nc"], ["abc"]),
    ],
    "keywords:forbidden_words": [({"forbidden_words": ["we"]}, ["west", "owe"], ["So we go", "WE"])],
    "keywords:letter_frequency": [
        ({"letter": "Q", "let_frequency": 2, "let_relation": "at least"}, ["qQ"], ["q"]),
        ({"letter": "#", "let_frequency": 2, "let_relation": "at least"}, ["# #"], ["#"]),
    ],
    "language:response_language": [
        ({"language": "de"}, ["Das ist nicht der Tag, an dem wir gehen."], ["This is not the day on which we go."]),
        ({"language": "hi"}, ["यह एक बहुत शांत दिन था और हम शहर में थे।"], ["Es war ein Tag."]),
    ],
    "length_constraints:number_sentences": [
        (
            {**AT_LEAST, "num_sentences": 3},
            ["One. Two! Three?", "See etc. and e.g. this", "1. One\n2. Two"],
            ["Mr. X. Yes!"],
        ),
        ({**LESS, "num_sentences": 2}, ["Dr. Ann came at 5 p.m. with us", "Well... then"], ["No.) Yes", "**Go.** On"]),
    ],
    "length_constraints:number_paragraphs": [
        ({"num_paragraphs": 2}, ["a ***b", "***a***b***"], ["a\n\nb", "a ****** b", "a *** *** b"]),
    ],
    "length_constraints:number_words": [
        ({**AT_LEAST, "num_words": 3}, ["it's on", "a_b c-d"], ["a_b c"]),
        ({**LESS, "num_words": 2}, ["— one!"], ["one-two"]),
    ],
    "length_constraints:nth_paragraph_first_word": [
        (NTH, ["a\n\n'kite, x", "a\n\nKITE!b"], ["kite\n\na", "a\n\nkite\n\nb", "a\n\nkites", "a\n\n\n\nkite", ""]),
    ],
    "detectable_content:number_placeholders": [({"num_placeholders": 2}, ["[a] [b]", "[[a] []"], ["[a", "[a\n] [b]"])],
    "detectable_content:postscript": [
        ({"postscript_marker": "P.S."}, ["a\np. s. b", "x P.S."], ["PS b"]),
        ({"postscript_marker": "P.P.S"}, ["p.p.s yes"], ["P.S. no"]),
    ],
    "detectable_format:number_bullet_lists": [
        ({"num_bullets": 2}, ["* a\n - b", "\n\n  *a\n-"], ["** a\n* b", "* a", "*\n* a"]),
        ({"num_bullets": 1}, ["*\n* a"], ["*"]),
    ],
    "detectable_format:constrained_response": [({}, ["So: My answer is no. "], ["My answer is No."])],
    "detectable_format:number_highlighted_sections": [
        ({"num_highlights": 2}, ["*a* *b*", "**a** *b*"], ["*a*", "**a**", "* * *b*", "*a\n* *b*"]),
    ],
    "detectable_format:multiple_sections": [
        ({"section_spliter": " Day ", "num_sections": 2}, ["Day 1 Day2"], ["day 1 Day 2", "Day one Day 2", "Day 1"]),
    ],
    "detectable_format:json_format": [({}, ["```json\n[1]\n```", "3", '"a"'], ["{a: 1}", "[1] yes", "[" * 50_000])],
    "detectable_format:title": [({}, ["a <<b>>", "<<<>x>>"], ["<<>>", "<< >>", "<a>", "<<a\n>>"])],
    "combination:two_responses": [({}, ["a******b", "******a******b"], ["a", "a******a", "a************b"])],
    "combination:repeat_prompt": [({"prompt_to_repeat": "Say It "}, [" say it now"], ["I say it"])],
    "startend:end_checker": [({"end_phrase": " The End"}, ['b the end"', "THE END "], ["the end."])],
    "startend:quotation": [({}, [' "a" ', '""'], ["“a”", '"'])],
    "change_case:capital_word_frequency": [
        (
            {"capital_relation": "at least", "capital_frequency": 2},
            ["DON'T", "A I", "YES/NO NASA", "U.S. (NO)", "CANNOT", "OK,NO"],
            ["YES/NO", "Hello WORLD", "3PM"],
        ),
        ({"capital_relation": "less than", "capital_frequency": 1}, ["none"], ["ONE"]),
    ],
    "change_case:english_capital": [
        ({}, ["THIS IS THE DAY ON WHICH WE GO."], ["This is it", "THIS IS THE DAY ON WHICH we GO"])
    ],
    "change_case:english_lowercase": [
        ({}, ["this is the day on which we go."], ["This is it", "das ist nicht der tag"])
    ],
    "punctuation:no_comma": [({}, ["a; b، c"], ["a, b"])],
}


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    return _module("instructions_tools")


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parents[2] / "specs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_the_25_kinds_of_the_original(tools: ModuleType) -> None:
    assert set(tools.CHECKS) == set(FOLLOWED)
    assert len(FOLLOWED) == 25


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_check_says_what_the_original_says(name: str, tools: ModuleType) -> None:
    for kwargs, followed, not_followed in FOLLOWED[name]:
        assert [text for text in followed if not tools.follows(text, name, kwargs)] == []
        assert [text for text in not_followed if text.strip() and tools.follows(text, name, kwargs)] == []


@pytest.mark.slow(but=5)
@pytest.mark.parametrize("name", FOLLOWED)
def test_no_text_takes_a_check_more_than_linear_time(name: str, tools: ModuleType) -> None:
    started = time.process_time()
    for text in ("\n", " ", "[", "<<", "* ", "*", ". ", "a.b!", "p.", "Day ", "'", "x"):
        tools.follows((text * 50_000)[:50_000], name, FOLLOWED[name][0][0])
    assert time.process_time() - started < 8  # a second in all; quadratic time would be minutes


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"instruction_id_list": ["no:such"], "kwargs": [{}]}, "no instruction is called 'no:such'"),
        ({"instruction_id_list": ["startend:quotation"], "kwargs": []}, "1 instructions and 0 kwargs"),
        ({"instruction_id_list": ["startend:end_checker"], "kwargs": [{}]}, "cannot be checked with {}"),
        ({"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["(a"]}]}, "'(a' cannot be read"),
        (
            {
                "instruction_id_list": ["length_constraints:number_words"],
                "kwargs": [{"relation": "most", "num_words": 1}],
            },
            "the relation is 'most'",
        ),
    ],
)
def test_a_row_that_cannot_be_checked_is_nothing_that_the_policy_did(row: Any, said: str, tools: ModuleType) -> None:
    from rlenv.testing.rewards import reward_context, turn

    with pytest.raises(RewardError) as raised:
        tools.strict(reward_context(task=row, turns=[turn("a b")]))
    assert said in str(raised.value)


def test_null_arguments_of_the_hubs_copy_are_none(tools: ModuleType) -> None:
    assert tools.follows("a", "punctuation:no_comma", {"num_words": None, "keywords": None})


@pytest.mark.parametrize(
    ("response", "terms"),
    [
        ("Kite.", {"all": 1.0, "share": 1.0, "loose": 1.0}),
        ("Sure:\n*kite*", {"all": 0.0, "share": 0.5, "loose": 1.0}),
        ("kite,\nSo: yes,", {"all": 0.0, "share": 0.5, "loose": 0.5}),
        (" ", {"all": 0.0, "share": 0.0, "loose": 0.0}),
    ],
)
def test_the_loose_reading_leaves_out_stars_and_an_end(response: str, terms: Any, tmp_path: Path) -> None:
    names = ["keywords:existence", "punctuation:no_comma"]
    row = {"key": 1, "prompt": "Go.", "instruction_id_list": names, "kwargs": [{"keywords": ["^kite"]}, {}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")

    async def run() -> None:
        environment = load("instructions", set={"tasks": {"test": {"path": str(tmp_path / "rows.jsonl")}}})
        async with environment.start(split="test") as episode:
            await episode.step(response)
            assert {name: term.value for name, term in episode.trajectory.reward.terms.items()} == terms

    asyncio.run(run())


def test_each_kind_of_instruction_stands_in_both_splits() -> None:
    environment = load("instructions")
    for split in ("train", "test"):
        assert {name for row in environment.tasks(split) for name in row["instruction_id_list"]} == set(FOLLOWED)


def test_each_language_is_told_from_the_others(tools: ModuleType) -> None:
    sentences = _module("instructions_gold").SENTENCES
    assert {code: tools._language(text, "own") for code, text in sentences.items()} == {
        code: code for code in sentences
    }
