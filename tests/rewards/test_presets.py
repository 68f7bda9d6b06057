"""The presets give what the functions that they mirror gave, record by record."""

import json
from typing import Any

import pytest

from rlenv.language.spec import AnswerSpec
from rlenv.messages import ParsedAction
from rlenv.rewards.answer import extract
from rlenv.rewards.normalise import qa
from rlenv.rewards.rules.presets import read_gsm8k
from rlenv.testing.rewards import measure, reward_context, turn
from tests.support import data


def records(name: str) -> list[dict[str, Any]]:
    with data.find(f"oracles/{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def scored(rule: str, record: dict[str, Any], gold: Any, **keys: Any) -> float | None:
    text = record["text"]
    found = extract(AnswerSpec(), ParsedAction(text))
    answer = None if found is None else found.text
    return measure(rule, reward_context(answer=answer, task={"gold": gold}, turns=[turn(text)]), **keys).value


@pytest.mark.shared_data
def test_search_r1_scores_as_verl_and_skyrl_recorded() -> None:
    differing = [
        record
        for record in records("qa_em")
        if scored("search_r1", record, record["golden"], expect="{{ task.gold }}") != float(record["verl_em"])
        or float(record["skyrl_em"]) != float(record["verl_em"])
    ]
    assert differing == []


@pytest.mark.shared_data
def test_contains_scores_as_the_substring_match_that_verl_and_skyrl_recorded() -> None:
    differing = [
        record
        for record in records("qa_em")
        if scored("contains", record, record["golden"], expect="{{ task.gold }}", normalise="qa")
        != float(record["verl_subem"])
        or float(record["skyrl_subem"]) != float(record["verl_subem"])
    ]
    assert differing == []


@pytest.mark.shared_data
def test_answers_and_normalised_golds_are_those_that_were_recorded() -> None:
    for record in records("qa_em"):
        found = extract(AnswerSpec(), ParsedAction(record["text"]))
        assert (None if found is None else found.text) == record["verl_extract"]
        assert [qa(gold) for gold in record["golden"]] == record["normalized"]


def only_message(rule: str, record: dict[str, Any], **keys: Any) -> float | None:
    where = reward_context(task={"gold": record["ground_truth"]}, turns=[turn(record["text"])])
    return measure(rule, where, expect="{{ task.gold }}", **keys).value


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("rule", "column"), [("verl_math", "verl_math"), ("verl_dapo", "verl_dapo"), ("skyrl_aime", "skyrl_aime")]
)
def test_math_presets_score_as_recorded(rule: str, column: str) -> None:
    found = records("math")
    assert len(found) == 58
    for record in found:
        recorded = record[column]["score"] if isinstance(record[column], dict) else record[column]
        assert only_message(rule, record) == recorded, record


@pytest.mark.shared_data
def test_the_answers_that_dapo_and_aime_read_are_those_that_were_recorded() -> None:
    for record in records("math"):
        for rule in ("verl_dapo", "skyrl_aime"):
            where = reward_context(task={"gold": record["ground_truth"]}, turns=[turn(record["text"])])
            assert measure(rule, where, expect="{{ task.gold }}").evidence == record[rule.replace("-", "_")]["pred"]


@pytest.mark.shared_data
def test_skyrl_gsm8k_scores_as_recorded_where_verl_differs_too() -> None:
    found = records("gsm8k")
    assert len(found) == 600
    assert [record for record in found if only_message("skyrl_gsm8k", record) != float(record["skyrl_strict"])] == []
    assert sum(float(record["skyrl_strict"]) != float(record["verl_strict"]) for record in found) > 0


@pytest.mark.shared_data
def test_the_double_prompt_of_search_r1_is_its_match_on_the_policys_own_text() -> None:
    # The original wants two answer tags because the prompt holds one; what stands before the policy's text is not read.
    found = records("qa_em")
    assert len(found) == 800
    for record in found:
        score = scored("search_r1", record, record["golden"], expect="{{ task.gold }}")
        assert score == float(record["verl_em_double_prompt"]), record


def gsm8k(record: dict[str, Any], **keys: Any) -> float | None:
    return scored("gsm8k", record, record["ground_truth"], expect="{{ task.gold }}", **keys)


@pytest.mark.shared_data
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_gsm8k_scores_as_verl_recorded(method: str) -> None:
    differing = [
        record for record in records("gsm8k") if gsm8k(record, method=method) != float(record[f"verl_{method}"])
    ]
    assert differing == []


@pytest.mark.shared_data
def test_gsm8k_reads_the_number_that_verl_recorded() -> None:
    for record in records("gsm8k"):
        assert read_gsm8k(record["text"], method="strict") == record["verl_extract_strict"]


def test_gsm8k_takes_the_whole_solution_of_the_dataset_as_gold() -> None:
    where = reward_context(task={"answer": "3 + 4 = 7 apples at $1,000\n#### 7,000"}, turns=[turn("so #### 7,000")])
    assert measure("gsm8k", where).value == 1.0
    assert measure("gsm8k", reward_context(task={"answer": 7000}, turns=[turn("#### 7000")])).value == 1.0
    assert measure("gsm8k", reward_context(task={"answer": "7"}, turns=[turn("#### 8")])).value == 0.0
    assert measure("gsm8k", reward_context(task={"answer": "7"}, turns=[])).value == 0.0
