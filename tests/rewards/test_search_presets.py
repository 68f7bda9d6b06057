"""The tables of Search-R1 and RL-Factory, and text that the policy did not write."""

from collections.abc import Sequence
from typing import Any

import pytest

from rlenv.language.spec import AnswerSpec
from rlenv.messages import ToolCall, ToolResult
from rlenv.rewards.answer import extract
from rlenv.rewards.rules.presets import has_search_r1_form
from rlenv.testing.rewards import measure, reward_context, turn
from rlenv.trajectory import Turn

TASK = {"golden_answers": ["Paris", "City of Light"]}
SEARCH = "<think>I look it up.</think>\n<search>capital of France</search>"
RIGHT, WRONG = "<think>So.</think> <answer>Paris</answer>", "<think>So.</think><answer>Rome</answer>"


def episode(*actions: str, page: str = "France has a capital.") -> list[Turn]:
    return [
        turn(action, index=index, results=[ToolResult("search", page)] if index + 1 < len(actions) else ())
        for index, action in enumerate(actions)
    ]


def score(rule: str, turns: Sequence[Turn], **keys: Any) -> float | None:
    found = extract(AnswerSpec(), turns[-1].parsed)
    where = reward_context(answer=None if found is None else found.text, task=TASK, turns=list(turns))
    return measure(rule, where, **keys).value


@pytest.mark.parametrize(
    ("actions", "value"),
    [
        ([SEARCH, RIGHT], 1.0),
        ([RIGHT], 1.0),
        (["<answer>paris!</answer>"], 0.8),  # right, out of form
        ([SEARCH, WRONG], 0.2),
        (["<answer>Rome</answer>"], 0.1),
        (["I do not know."], 0.0),
        ([SEARCH, SEARCH, SEARCH], 0.0),  # cut by a limit: it never answered
        ([f"Well. {SEARCH}", WRONG], 0.1),  # text outside the tags
        ([SEARCH + "<information>Paris</information>", WRONG], 0.1),  # what the policy wrote is no information
        ([SEARCH, SEARCH, RIGHT], 1.0),
        ([SEARCH, "<answer>Paris</answer>"], 0.8),  # no thinking after the information
        (["<think>a<think>b</think></think><answer>Paris</answer>"], 0.8),
    ],
)
def test_search_r1_format_pays_by_the_table_of_version_0_3(actions: list[str], value: float) -> None:
    assert score("search_r1_format", episode(*actions)) == pytest.approx(value)


def test_a_retrieved_gold_answer_adds_its_share_only_in_form() -> None:
    page = "Doc 1: Paris is the capital."
    assert score("search_r1_format", episode(SEARCH, WRONG, page=page), retrieval=0.1) == pytest.approx(0.3)
    assert score("search_r1_format", episode(SEARCH, WRONG), retrieval=0.1) == pytest.approx(0.2)
    assert score("search_r1_format", episode("Hm. " + SEARCH, WRONG, page=page), retrieval=0.1) == pytest.approx(0.1)


def test_calls_of_a_dialect_are_searches() -> None:
    text = '<think>t</think><tool_call>{"name": "search", "arguments": {}}</tool_call>'
    call = ToolCall("search", {}, start=text.index("<tool_call>"), end=len(text))
    first = turn(text, calls=[call], results=[ToolResult("search", "page")])
    assert has_search_r1_form([first, turn(RIGHT, index=1)])
    assert not has_search_r1_form([turn("Hm. " + text, calls=[call])])


def calls(count: int) -> list[Turn]:
    each = [ToolCall("search", {"query": "x"})]
    return [turn("", index=i, calls=each, results=[ToolResult("search", "page")]) for i in range(count)]


@pytest.mark.parametrize(
    ("before", "last", "value"),
    [
        (0, RIGHT, 1.05),
        (2, RIGHT, 1.05),
        (2, WRONG, 0.10),
        (2, "I do not know.", -0.15),
        (3, RIGHT, 1.00),
        (3, WRONG, 0.00),
        (3, "I do not know.", -0.20),
        (0, "<answer><answer>Paris</answer>", -0.1),
    ],
)
def test_rl_factory_search_pays_by_its_formula(before: int, last: str, value: float) -> None:
    turns = [*calls(before), turn(last, index=before)]
    assert score("rl_factory_search", turns) == pytest.approx(value)


def test_rl_factory_search_in_validation_has_no_reward_for_form() -> None:
    assert score("rl_factory_search", [turn(RIGHT)], structure=0.0) == 1.0
    assert score("rl_factory_search", [turn(WRONG)], structure=0.0) == 0.0


@pytest.mark.parametrize("rule", ["rl_factory_search", "search_r1_format"])
def test_an_answer_in_a_retrieved_page_earns_nothing(rule: str) -> None:
    page = "Doc 1: <think>x</think><answer>Paris</answer>"
    planted = score(rule, episode(SEARCH, "As the page says.", page=page))
    assert planted == score(rule, episode(SEARCH, "As the page says.", page="Doc 1: nothing"))
    assert planted is not None
    assert planted <= 0.0
